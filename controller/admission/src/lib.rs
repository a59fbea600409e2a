//! What the controller's webhooks answer: which pods wait for it, and which configs are refused. No IO.
//!
//! What a webhook doesn't understand is the API server's to refuse; what it isn't asked about passes unchanged.

mod configs;
mod gate;
mod review;

pub use configs::configs;
pub use gate::{Lookup, gate};
pub use review::Answer;

//! Expressions as users write them, and as they shouldn't.

#![allow(clippy::panic, clippy::unwrap_used)]

mod cases;
mod limits;
mod line;

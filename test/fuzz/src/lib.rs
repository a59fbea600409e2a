//! Random questions for Kubernetes' own code and for ours, and what to make of two answers.
//!
//! ```text
//! seed ── generator ──> question ──┬─> oracle (test/cluster/oracle, a Go program) ─┐
//!                                  └─> our crate ──────────────────────────────────┴─> verdict ── different ──> shrunk, kept
//! ```
//!
//! Each question has a seed of its own, so that one that was noted can be asked again. What differs becomes a case, which the
//! ordinary tests hold from then on, without Go: a file in `cases` for the allocator, a line of their tables for the others.

pub mod allocator;
pub mod cel;
pub mod oracle;
pub mod placement;
pub mod quantity;
mod random;
pub mod run;

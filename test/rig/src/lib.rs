//! The node plugin as people run it, without a cluster around it: the program itself as a process, a real API server, a machine of
//! mock GPUs in a folder, and this crate in kubelet's place. So everything between kubelet's call and the files on disk can be
//! killed, restarted and measured in milliseconds.
//!
//! For tests and benchmarks: what goes wrong here ends them, with a message that says what was missing.

#![allow(clippy::expect_used, clippy::missing_panics_doc, clippy::panic, clippy::unwrap_used)]

mod control;
mod folder;
mod kubelet;
mod node;
mod plugin;
mod process;

use std::time::Duration;

pub use control::ControlPlane;
pub use folder::{Folder, names};
pub use kubelet::{Answers, Dra, HealthReports, Healths, Kubelet};
pub use node::{Claim, Machine, Node};
pub use plugin::{Memory, Plugin};
pub use process::Process;

/// How long anything may take on a busy machine. What works takes a moment.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Says where a program or folder is, as `cargo xtask` does.
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} isn't set: run this through `cargo xtask`"))
}

/// Waits until something is there.
pub async fn eventually<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "not after {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

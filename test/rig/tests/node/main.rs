//! The node plugin under everything that can happen to it on a node: `cargo xtask test node`.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod claims;
mod crashes;

use aliquot_rig::{ControlPlane, Machine, Node};

/// Runs a test on a node of its own.
fn test(body: impl AsyncFnOnce(&Node)) {
    test_on(Machine::default(), body);
}

/// Runs a test on a node like this.
fn test_on(machine: Machine, body: impl AsyncFnOnce(&Node)) {
    run(async {
        let node = Node::new(ControlPlane::shared(), machine).await;
        body(&node).await;
    });
}

fn run(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(body);
}

//! The node plugin under everything that can happen to it on a node: `cargo xtask test node`.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod claims;
mod crashes;
mod driver;
mod health;
mod names;
mod restarts;
mod slices;
mod soak;
mod versions;

use std::sync::Arc;

use aliquot_rig::{Claim, ControlPlane, Dra, Machine, Node, Plugin};

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

/// Runs a test on a node with an API server of its own, which it may stop.
fn test_alone(body: impl AsyncFnOnce(&Node)) {
    run(async {
        let node = Node::new(Arc::new(ControlPlane::start().await), Machine::default()).await;
        body(&node).await;
    });
}

fn run(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(body);
}

/// A plugin that takes calls.
async fn start(node: &Node, instance: &str) -> (Plugin, Dra) {
    let plugin = node.start_plugin(instance);
    let dra = node.kubelet.register(&plugin).await;
    (plugin, dra)
}

/// What is left of a claim on the node.
fn traces(node: &Node, claim: &Claim) -> Vec<String> {
    let names = node.files().into_iter().map(|(path, _)| path.display().to_string());
    names.filter(|name| name.contains(&claim.uid)).collect()
}

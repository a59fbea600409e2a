//! What people see of Aliquot on a real Kubernetes. `cargo xtask test e2e [NAME]` starts the cluster that this needs: node-0 is a
//! DGX H100, node-1 has two L4, node-2 one GPU without a memory figure, node-3 GPUs in all states.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod choices;
mod claims;
mod driver;
mod extended;
mod handover;
mod harness;
mod health;
mod mig;
mod mistakes;
mod outage;
mod policy;
mod reports;
mod restarts;
mod selectors;
mod upgrade;
mod waves;

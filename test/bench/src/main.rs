//! Measures the node plugin beside a real API server, on a mock DGX H100 (`cargo xtask bench node`), and the allocator beside
//! Kubernetes' own (`cargo xtask bench allocator`), and serves requests that come and go (`cargo xtask bench streams`).
//!
//! Figures, not judgements: a busy machine has other ones. What can't be measured ends it.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod allocator;
mod figures;
mod node;
mod problems;
mod streams;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let output = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["node"] => node(false),
        ["node", "--json"] => node(true),
        ["allocator"] => allocator::measure(false),
        ["allocator", "--json"] => allocator::measure(true),
        ["streams"] => streams::measure(false),
        ["streams", "--json"] => streams::measure(true),
        _ => {
            eprintln!(
                "usage: aliquot-bench node|allocator|streams [--json]; `cargo xtask bench` knows where everything is"
            );
            return ExitCode::from(2);
        }
    };
    println!("{}", output.trim_end());
    ExitCode::SUCCESS
}

fn node(json: bool) -> String {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let report = runtime.block_on(node::measure());
    if json { report.json() } else { report.table() }
}

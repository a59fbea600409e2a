//! Measures the node plugin beside a real API server, on a mock DGX H100: `cargo xtask bench node`.
//!
//! Figures, not judgements: a busy machine has other ones. What can't be measured ends it.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod figures;
mod node;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let json = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["node"] => false,
        ["node", "--json"] => true,
        _ => {
            eprintln!("usage: aliquot-bench node [--json]; `cargo xtask bench node` knows where everything is");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let report = runtime.block_on(node::measure());
    if json {
        println!("{}", report.json());
    } else {
        print!("{}", report.table());
    }
    ExitCode::SUCCESS
}

//! `cargo xtask bench`: figures, not judgements.

use crate::error::Result;
use crate::kubernetes;
use crate::packages;
use crate::paths::Paths;
use crate::process::{Program, step};
use crate::rust::{self, Products, TESTED, What};
use crate::suite::node_environment;

const PROGRAM: &str = "aliquot-bench";

/// Measures the node plugin as it is shipped, on a machine of the tests.
pub(crate) fn node(paths: &Paths, json: bool) -> Result<()> {
    packages::install(paths, &[packages::BUILD])?;
    let kubernetes = kubernetes::build(paths)?;
    let tools = rust::build(paths, TESTED, What::Cluster)?;
    eprintln!("     the plugin is built as it is shipped, optimized as a whole: about ten minutes, if it has changed");
    let shipped = rust::build(paths, "release", What::Shipped)?;
    let products = Products { mock: tools.mock, ..shipped };
    let mut program = Program::new(products.mock.join(PROGRAM)).arg("node");
    if json {
        program = program.arg("--json");
    }
    let program = program.envs(node_environment(&kubernetes, &products));
    let figures = step("measure the node plugin", &paths.log("bench-node"), |step| step.output(&program))?;
    print!("{figures}");
    Ok(())
}

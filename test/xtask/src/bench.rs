//! `cargo xtask bench`: figures, not judgements.

use crate::error::Result;
use crate::kubernetes::{self, go};
use crate::packages;
use crate::paths::Paths;
use crate::process::{Program, step};
use crate::rust::{self, Products, TESTED, What, cargo};
use crate::suite::node_environment;

const PROGRAM: &str = "aliquot-bench";
const ALLOCATOR: &str = "aliquot-allocator";
const SOLVE: &str = "aliquot-solve";

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

/// Serves streams of requests by placement and by first fit.
pub(crate) fn streams(paths: &Paths, json: bool) -> Result<()> {
    packages::install(paths, &[packages::BUILD])?;
    let tools = rust::build(paths, TESTED, What::Cluster)?;
    let mut program = Program::new(tools.mock.join(PROGRAM)).arg("streams");
    if json {
        program = program.arg("--json");
    }
    let figures = step("serve the streams", &paths.log("bench-streams"), |step| step.output(&program))?;
    print!("{figures}");
    Ok(())
}

/// Measures the allocator as it is shipped beside Kubernetes' own.
pub(crate) fn allocator(paths: &Paths, json: bool) -> Result<()> {
    packages::install(paths, &[packages::BUILD])?;
    let oracle = paths.target.join("oracle-allocator");
    step("build Kubernetes' allocator", &paths.log("build-oracle"), |step| {
        step.run(&go(paths).args(["build", "-o"]).arg(&oracle).arg("./oracle/allocator"))
    })?;
    let tools = rust::build(paths, TESTED, What::Cluster)?;
    step("build the allocator as it is shipped", &paths.log("build-allocator"), |step| {
        step.run(&cargo(paths).args(["build", "--profile", "release", "--package", ALLOCATOR]))
    })?;
    let mut program = Program::new(tools.mock.join(PROGRAM)).arg("allocator");
    if json {
        program = program.arg("--json");
    }
    let program = program.env("ALIQUOT_SOLVE", paths.target.join("release").join(SOLVE)).env("ALIQUOT_ORACLE", oracle);
    let figures = step("measure both (three minutes)", &paths.log("bench-allocator"), |step| step.output(&program))?;
    print!("{figures}");
    Ok(())
}

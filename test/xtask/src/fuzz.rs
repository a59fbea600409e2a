//! `cargo xtask fuzz`, and the part of the tests that is the same with a fixed end.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::kubernetes::go;
use crate::packages;
use crate::paths::Paths;
use crate::process::{Program, step};
use crate::rust::{self, TESTED, What};

/// What can be compared.
pub(crate) const SUBJECTS: [&str; 4] = ["allocator", "placement", "cel", "quantity"];
const ORACLES: [&str; 3] = ["allocator", "cel", "quantity"];
/// How many questions of each the tests ask: about a minute on two slow cores.
const COUNTS: [u64; 4] = [5_000, 2_000, 30_000, 200_000];
/// Always the same questions, so that nobody's change fails by somebody else's bug.
const SEED: &str = "1";
/// In per cent. Upstream walks through all combinations, and ends some of the walks; there are few of these.
const MOST_SKIPPED: &str = "2";

/// Who answers as Kubernetes does.
fn oracle(subject: &str) -> &str {
    if subject == "placement" { "allocator" } else { subject }
}

/// Builds what is needed and becomes the program: the terminal is its own, and its exit code the caller's.
pub(crate) fn run(paths: &Paths, subject: &str, args: &[OsString]) -> Result<Error> {
    let [program, oracles] = build(paths)?;
    let cases = paths.root.join("test/fuzz/cases");
    let program = Program::new(program).arg(subject).arg("--oracle").arg(oracles.join(oracle(subject)));
    Ok(program.arg("--cases").arg(cases).args(args).become_it())
}

/// Compares all of them, with the same questions each time.
pub(crate) fn test(paths: &Paths) -> Result<()> {
    let [program, oracles] = build(paths)?;
    for (subject, count) in SUBJECTS.iter().zip(COUNTS) {
        let title = format!("compare with Kubernetes: {subject}");
        step(&title, &paths.log(&format!("fuzz-{subject}")), |step| {
            let program = Program::new(&program).arg(subject).arg("--oracle").arg(oracles.join(oracle(subject)));
            step.run(&program.args(["--seed", SEED, "--most-skipped", MOST_SKIPPED, "--count", &count.to_string()]))
        })?;
    }
    Ok(())
}

/// The program, and the folder of the oracles.
fn build(paths: &Paths) -> Result<[PathBuf; 2]> {
    packages::install(paths, &[packages::BUILD])?;
    let oracles = paths.target.join("oracle");
    step("build the oracles: Kubernetes' own code", &paths.log("oracles"), |step| {
        let packages = ORACLES.map(|subject| format!("./oracle/{subject}"));
        // As a folder only if it ends like one.
        step.run(&go(paths).args(["build", "-trimpath", "-o"]).arg(oracles.join("")).args(packages))
    })?;
    rust::build(paths, TESTED, What::Cluster)?;
    Ok([paths.target.join(TESTED).join("aliquot-fuzz"), oracles])
}

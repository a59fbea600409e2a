//! The Rust programs.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::paths::Paths;
use crate::process::{Program, Step, step};

/// The profile of everything that is tested.
pub(crate) const TESTED: &str = "ci";
const PLUGIN: &str = "aliquot-kubelet-plugin";
const HOOK: &str = "aliquot-cdi-hook";

/// What was built.
pub(crate) struct Products {
    pub(crate) plugin: PathBuf,
    pub(crate) hook: PathBuf,
    /// The folder with the mock's library and program.
    pub(crate) mock: PathBuf,
}

/// Cargo in this workspace.
pub(crate) fn cargo(paths: &Paths) -> Program {
    Program::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())).dir(&paths.root)
}

/// Which targets to build.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// What is installed on people's nodes, with just the features that it needs.
    Shipped,
    /// What runs on a test cluster.
    Cluster,
    /// All of it, with the tests.
    Everything,
}

impl What {
    fn args(self) -> &'static [&'static str] {
        match self {
            Self::Shipped => &["--package", PLUGIN],
            // Naming a test, any test, makes cargo choose the same features of dependencies as for all the tests, so that
            // they are built once.
            Self::Cluster => &["--workspace", "--lib", "--bins", "--test", "docs"],
            Self::Everything => &["--workspace", "--all-targets"],
        }
    }
}

/// Builds the programs.
pub(crate) fn build(paths: &Paths, profile: &str, what: What) -> Result<Products> {
    let hook = step(&format!("build Aliquot (profile {profile})"), &paths.log("build"), |step| {
        step.run(&cargo(paths).args(["build", "--profile", profile]).args(what.args()))?;
        build_hook(paths, profile, step)
    })?;
    let dir = paths.target.join(profile);
    Ok(Products { plugin: dir.join(PLUGIN), hook, mock: dir })
}

/// The hook runs with the libraries of whatever host it meets, so it has none.
fn build_hook(paths: &Paths, profile: &str, step: &mut Step) -> Result<PathBuf> {
    let host = host()?;
    let program = cargo(paths)
        .args(["rustc", "--package", HOOK, "--bin", HOOK, "--profile", profile, "--target", &host])
        .args(["--", "-C", "target-feature=+crt-static"]);
    step.run(&program)?;
    Ok(paths.target.join(host).join(profile).join(HOOK))
}

fn host() -> Result<String> {
    let program = Program::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    Ok(program.args(["--print", "host-tuple"]).output()?.trim().to_owned())
}

/// The integration tests: package and name.
pub(crate) fn integration_tests(paths: &Paths) -> Result<Vec<(String, String)>> {
    let program = cargo(paths).args(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&program.output()?)
        .map_err(|error| Error::Answer { command: program.shown(), why: error.to_string() })?;
    let mut tests = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let is_test = target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "test"));
            if let (true, Some(package), Some(name)) = (is_test, package["name"].as_str(), target["name"].as_str()) {
                tests.push((package.to_owned(), name.to_owned()));
            }
        }
    }
    tests.sort();
    Ok(tests)
}

/// The version of the workspace's packages.
pub(crate) const fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// A file's size, for people.
pub(crate) fn size(path: &Path) -> Result<String> {
    let bytes = std::fs::metadata(path).map_err(Error::io("read", path))?.len();
    Ok(format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000))
}

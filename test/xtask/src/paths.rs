//! Where things are.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::process::Program;

/// The folders that the commands use.
pub(crate) struct Paths {
    /// The checkout.
    pub(crate) root: PathBuf,
    /// Build outputs of this checkout.
    pub(crate) target: PathBuf,
    /// What is slow to make, for all checkouts on this machine.
    pub(crate) cache: PathBuf,
    /// The running clusters.
    pub(crate) state: PathBuf,
}

impl Paths {
    pub(crate) fn find() -> Result<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = here.join("../..").canonicalize().map_err(Error::io("find the checkout above", here))?;
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = var("ALIQUOT_CACHE")
            .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("aliquot")))
            .or_else(|| var("HOME").map(|dir| dir.join(".cache/aliquot")))
            .ok_or_else(|| Error::Refused("no place for the cache: set HOME or ALIQUOT_CACHE".to_owned()))?;
        Ok(Self {
            target: var("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir)),
            cache,
            state: var("ALIQUOT_STATE").unwrap_or_else(|| PathBuf::from("/var/tmp/aliquot")),
            root,
        })
    }

    /// The log file of a step.
    pub(crate) fn log(&self, step: &str) -> PathBuf {
        self.target.join("logs").join(format!("{step}.log"))
    }

    pub(crate) fn chart(&self) -> PathBuf {
        self.root.join("charts/aliquot")
    }

    pub(crate) fn examples(&self) -> PathBuf {
        self.root.join("docs/examples")
    }

    /// What the nodes of the test clusters look like.
    pub(crate) fn machine(&self, name: &str) -> PathBuf {
        self.root.join("test/machines").join(name).with_extension("yaml")
    }

    /// The chart's values on the test clusters.
    pub(crate) fn mock_values(&self) -> PathBuf {
        self.root.join("test/values-mock.yaml")
    }

    /// The Go module.
    pub(crate) fn harness(&self) -> PathBuf {
        self.root.join("test/cluster")
    }
}

/// The SHA-256 of some bytes, in hexadecimal.
pub(crate) fn digest(bytes: Vec<u8>) -> Result<String> {
    let program = Program::new("sha256sum").input(bytes);
    let text = program.output()?;
    text.split_whitespace()
        .next()
        .map(str::to_owned)
        .ok_or_else(|| Error::Answer { command: program.shown(), why: "it is empty".to_owned() })
}

/// The SHA-256 of some files, in hexadecimal. Where they are doesn't matter, their order does.
pub(crate) fn digest_files<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> Result<String> {
    let mut sums = String::new();
    for file in files {
        let text = Program::new("sha256sum").arg("--").arg(file.as_ref()).output()?;
        sums.push_str(text.split_whitespace().next().unwrap_or_default());
        sums.push('\n');
    }
    digest(sums.into_bytes())
}

/// The whole of a text file.
pub(crate) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(Error::io("read", path))
}

/// The entries of a folder, by name.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).map_err(Error::io("list", dir))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(Error::io("list", dir))?.path());
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_sha256() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest(b"abc".to_vec()).unwrap(), abc);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "abc").unwrap();
        assert_eq!(digest_files([&file]).unwrap(), digest(format!("{abc}\n").into_bytes()).unwrap());
    }
}

//! Where the container's root file system is, as the runtime tells it.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::Deserialize;

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) root: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ContainerError {
    #[error("can't read the OCI state on stdin")]
    State(#[source] io::Error),
    #[error("the OCI state on stdin is not understood")]
    StateFormat(#[source] serde_json::Error),
    #[error("can't read {path}")]
    Config { path: PathBuf, source: io::Error },
    #[error("{path} is not understood")]
    ConfigFormat { path: PathBuf, source: serde_json::Error },
}

#[derive(Deserialize)]
struct State {
    bundle: PathBuf,
}

#[derive(Deserialize)]
struct Config {
    root: Root,
}

#[derive(Deserialize)]
struct Root {
    path: PathBuf,
}

impl Container {
    pub(crate) fn read(mut state: impl Read) -> Result<Self, ContainerError> {
        let mut text = Vec::new();
        state.read_to_end(&mut text).map_err(ContainerError::State)?;
        let State { bundle } = serde_json::from_slice(&text).map_err(ContainerError::StateFormat)?;
        let path = bundle.join("config.json");
        let text = std::fs::read(&path).map_err(|source| ContainerError::Config { path: path.clone(), source })?;
        let config = serde_json::from_slice::<Config>(&text);
        let config = config.map_err(|source| ContainerError::ConfigFormat { path, source })?;
        Ok(Self { root: root(&bundle, &config.root.path) })
    }
}

/// The specification allows a path relative to the bundle.
fn root(bundle: &Path, path: &Path) -> PathBuf {
    bundle.join(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_absolute_or_relative_to_the_bundle() {
        let bundle = tempfile::tempdir().unwrap();
        let state = format!(r#"{{"ociVersion":"1.2.0","id":"a","status":"creating","bundle":{:?}}}"#, bundle.path());
        for (path, expected) in [("rootfs", bundle.path().join("rootfs")), ("/run/r", PathBuf::from("/run/r"))] {
            let config = format!(r#"{{"ociVersion":"1.2.0","root":{{"path":"{path}","readonly":true}}}}"#);
            std::fs::write(bundle.path().join("config.json"), config).unwrap();
            assert_eq!(Container::read(state.as_bytes()).unwrap().root, expected);
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        assert!(matches!(Container::read(&b"{}"[..]), Err(ContainerError::StateFormat(_))));
        let error = Container::read(&br#"{"bundle":"/nonexistent"}"#[..]).unwrap_err();
        assert_eq!(error.to_string(), "can't read /nonexistent/config.json");
    }
}

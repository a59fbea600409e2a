//! The arrows between crates, as CONTRIBUTING.md has them.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// No IO, no clock, no client: what they decide can be tested without any of it.
const PURE: [&str; 8] = [
    "aliquot-admission",
    "aliquot-allocator",
    "aliquot-api",
    "aliquot-cel",
    "aliquot-device",
    "aliquot-fit",
    "aliquot-machine",
    "aliquot-planner",
];
const IO: [&str; 6] = ["hyper", "kube", "kube-client", "nvml-wrapper", "tokio", "tonic"];
/// Calls a C library; is one.
const UNSAFE: [&str; 2] = ["kubelet-plugin/nvml", "test/mock-nvml"];

struct Package {
    name: String,
    /// Relative to the workspace.
    dir: PathBuf,
    dependencies: Vec<String>,
}

/// All packages by id, with their normal dependencies, and the ids of the workspace's own.
fn packages() -> (BTreeMap<String, Package>, Vec<String>) {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let root = metadata["workspace_root"].as_str().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut packages = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        let dir = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        let dir = dir.strip_prefix(root).unwrap_or(dir).to_owned();
        packages.insert(text(&package["id"]), Package { name: text(&package["name"]), dir, dependencies: Vec::new() });
    }
    for node in metadata["resolve"]["nodes"].as_array().unwrap() {
        let is_normal = |dep: &&Value| dep["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"].is_null());
        let normal = node["deps"].as_array().unwrap().iter().filter(is_normal);
        packages.get_mut(node["id"].as_str().unwrap()).unwrap().dependencies =
            normal.map(|dep| text(&dep["pkg"])).collect();
    }
    let own = metadata["workspace_members"].as_array().unwrap().iter().map(text).collect();
    (packages, own)
}

/// Everything that is built into a package.
fn tree<'a>(packages: &'a BTreeMap<String, Package>, id: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![id]);
    while let Some(id) = next.pop() {
        if seen.insert(id) {
            next.extend(packages[id].dependencies.iter().map(String::as_str));
        }
    }
    seen
}

#[test]
fn pure_crates_have_no_io() {
    let (packages, own) = packages();
    let pure: Vec<&String> = own.iter().filter(|id| PURE.contains(&packages[*id].name.as_str())).collect();
    assert_eq!(pure.len(), PURE.len(), "a pure crate isn't in the workspace any more");
    for id in pure {
        let names: BTreeSet<&str> = tree(&packages, id).into_iter().map(|id| packages[id].name.as_str()).collect();
        let io: Vec<&&str> = names.iter().filter(|name| IO.contains(name)).collect();
        assert!(io.is_empty(), "{} depends on {io:?}; cargo tree -p {0} shows how", packages[id].name);
    }
}

#[test]
fn io_crates_are_named_as_they_are_used() {
    let (packages, _) = packages();
    for name in IO {
        assert!(packages.values().any(|package| package.name == name), "nobody uses {name} any more");
    }
}

#[test]
fn products_do_not_depend_on_tests() {
    let (packages, own) = packages();
    for id in own.iter().filter(|id| !packages[*id].dir.starts_with("test")) {
        for dependency in tree(&packages, id) {
            let dir = &packages[dependency].dir;
            assert!(!dir.starts_with("test"), "{} depends on {}", packages[id].name, dir.display());
        }
    }
}

#[test]
fn unsafe_code_is_where_c_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (packages, own) = packages();
    let mut allowed = BTreeSet::new();
    for id in &own {
        let dir = &packages[id].dir;
        let manifest = fs::read_to_string(root.join(dir).join("Cargo.toml")).unwrap();
        let lints_of_workspace = manifest.contains("[lints]\nworkspace = true");
        let texts = sources(&root.join(dir).join("src"));
        if !lints_of_workspace || texts.iter().any(|text| text.contains("allow(unsafe_code")) {
            allowed.insert(dir.display().to_string());
        }
    }
    let others: Vec<&String> = allowed.iter().filter(|dir| !UNSAFE.contains(&dir.as_str())).collect();
    assert!(others.is_empty(), "unsafe code is allowed in {others:?}, too");
    assert!(!allowed.is_empty(), "this test doesn't find where unsafe code is allowed");
}

fn sources(dir: &Path) -> Vec<String> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            texts.push(fs::read_to_string(&path).unwrap());
        }
    }
    texts
}

//! What the documentation says must be there: commands, files, and YAML that Kubernetes would read.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_yaml::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), "md");
    pages.extend(["README.md", "CONTRIBUTING.md", "charts/aliquot/README.md"].map(|name| root().join(name)));
    pages
}

/// The blocks of a page that are in this language.
fn blocks(page: &Path, language: &str) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let mut blocks = Vec::new();
    let mut block: Option<(bool, String)> = None;
    for line in text.lines() {
        match (line.trim().strip_prefix("```"), block.take()) {
            (Some(found), None) => block = Some((found == language, String::new())),
            (Some(_), Some((wanted, text))) => blocks.extend(wanted.then_some(text)),
            (None, Some((wanted, text))) => block = Some((wanted, format!("{text}{line}\n"))),
            (None, None) => {}
        }
    }
    assert!(block.is_none(), "{}: a block isn't closed", page.display());
    blocks
}

fn documents(text: &str, place: &Path) -> Vec<Value> {
    text.split("\n---\n")
        .map(|document| {
            serde_yaml::from_str(document).unwrap_or_else(|error| panic!("{}: {error}:\n{document}", place.display()))
        })
        .collect()
}

#[test]
fn every_yaml_block_is_yaml() {
    let mut count = 0;
    for page in pages() {
        for block in blocks(&page, "yaml") {
            count += documents(&block, &page).len();
        }
    }
    assert!(count >= 5, "only {count} documents were found");
}

#[test]
fn the_readme_shows_the_first_example() {
    let example = fs::read_to_string(root().join("docs/examples/one-gpu.yaml")).unwrap();
    let example: Vec<&str> = example.lines().filter(|line| !line.starts_with('#')).collect();
    let readme = blocks(&root().join("README.md"), "yaml").concat();
    assert_eq!(readme.lines().collect::<Vec<_>>(), example);
}

#[test]
fn examples_are_complete() {
    for file in files(&root().join("docs/examples"), "yaml") {
        let text = fs::read_to_string(&file).unwrap();
        let objects = documents(&text, &file);
        let of_kind = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
        let named = |kind: &str, name: &Value| of_kind(kind).iter().any(|object| object["metadata"]["name"] == *name);
        let pods = of_kind("Pod");
        assert!(!pods.is_empty(), "{}: no pod", file.display());
        for pod in pods {
            let claims = pod["spec"]["resourceClaims"].as_sequence().expect("resourceClaims");
            for claim in claims {
                let from =
                    [("ResourceClaimTemplate", "resourceClaimTemplateName"), ("ResourceClaim", "resourceClaimName")];
                assert!(from.iter().any(|(kind, field)| named(kind, &claim[*field])), "{}: {claim:?}", file.display());
            }
            for container in pod["spec"]["containers"].as_sequence().expect("containers") {
                for used in container["resources"]["claims"].as_sequence().expect("claims of the container") {
                    let known = claims.iter().any(|claim| claim["name"] == used["name"]);
                    assert!(known, "{}: {used:?}", file.display());
                }
            }
        }
    }
}

#[test]
fn links_lead_somewhere() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for rest in text.split("](").skip(1) {
            let target = rest.split([')', '#']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") {
                let path = page.parent().unwrap().join(target);
                assert!(path.exists(), "{}: {target} isn't there", page.display());
            }
        }
    }
}

#[test]
fn commands_are_known() {
    let help = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    // Other words are this command's arguments, or another program's.
    let known: BTreeSet<&str> =
        help.lines().filter_map(|line| line.strip_prefix("cargo xtask ")?.split("  ").next()).collect();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for rest in text.split("cargo xtask ").skip(1) {
            let command = rest.split(['`', '\n', ',', ';']).next().unwrap_or_default().trim();
            let words: Vec<&str> = command.split_whitespace().take(2).collect();
            let found = known.iter().any(|line| match words.as_slice() {
                [name] => line.split_whitespace().next() == Some(name),
                [name, next] => {
                    let mut line = line.split_whitespace();
                    line.next() == Some(name) && line.next().is_some_and(|word| word == *next || word == "...")
                }
                _ => false,
            });
            assert!(found || command == "help", "{}: `cargo xtask {command}` isn't in the help", page.display());
            count += 1;
        }
    }
    assert!(count >= 10, "only {count} commands were found");
}

#[test]
fn the_readme_names_the_two_commands() {
    let commands = blocks(&root().join("README.md"), "sh");
    for command in ["cargo xtask demo\n", "cargo xtask test\n"] {
        assert!(commands.iter().any(|block| block == command), "{command} isn't a block of its own");
    }
}

//! Problems that differed once, and some that never did, with Kubernetes' answers.

use std::fs;
use std::path::{Path, PathBuf};

use aliquot_fuzz::allocator::{Allocator, Said};
use serde_json::Value;

#[test]
fn they_are_what_kubernetes_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let allocator = Allocator::new(None);
    let mut wrong = Vec::new();
    for file in &files {
        let case: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let (theirs, ours) = (Said::of(&case), allocator.ours(&case["problem"].to_string()));
        if ours != theirs {
            wrong.push(format!("{}\n  Kubernetes: {theirs:?}\n  ours: {ours:?}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), files.len(), wrong.join("\n"));
    assert!(files.len() > 20, "there are only {} cases", files.len());
}

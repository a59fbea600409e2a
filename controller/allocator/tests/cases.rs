//! Problems with upstream's answers, where there are some.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

use aliquot_allocator::problem::{Answer, Problem};
use aliquot_allocator::{Limits, Mode, Programs};
use k8s_openapi::api::resource::v1::AllocationResult;
use serde_json::Value;

/// Cases that lost something on their way into a file: a number that Kubernetes prints without its zeros, and what the node
/// declares.
const LOST: [&str; 2] = ["consumable-capacity-requests-are-not-modified", "optional-node-operations"];

/// A folder of them: one problem with its answer a line.
fn folder() -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/cases/allocator");
    std::env::var_os("ALIQUOT_ALLOCATOR_CASES").map(PathBuf::from).or_else(|| beside.exists().then_some(beside))
}

/// What counts of an error is its class.
fn class(error: &str) -> &'static str {
    if error.contains("invalid resource pools were encountered") {
        "nodeError"
    } else if error.contains("filter operation aborted") || error.contains("context") {
        "timeout"
    } else {
        "fatal"
    }
}

/// Without what is empty, and without the ids of shares.
fn plain(results: &[AllocationResult]) -> Value {
    fn prune(value: Value) -> Value {
        let is_empty = |value: &Value| match value {
            Value::Null => true,
            Value::Array(all) => all.is_empty(),
            Value::Object(all) => all.is_empty(),
            _ => false,
        };
        match value {
            Value::Object(all) => Value::Object(
                all.into_iter()
                    .map(|(key, value)| if key == "shareID" { (key, "any".into()) } else { (key, prune(value)) })
                    .filter(|(_, value)| !is_empty(value))
                    .collect(),
            ),
            Value::Array(all) => Value::Array(all.into_iter().map(prune).collect()),
            value => value,
        }
    }
    prune(serde_json::to_value(results).unwrap())
}

#[test]
fn cases_of_upstream_hold() {
    let Some(folder) = folder() else {
        println!("left out: ALIQUOT_ALLOCATOR_CASES names no folder with cases");
        return;
    };
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    let programs = Programs::default();
    let mut wrong = Vec::new();
    let mut held = 0;
    for file in files {
        for line in fs::read_to_string(&file).unwrap().lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            if LOST.iter().any(|lost| case["name"] == *lost) {
                continue;
            }
            let name = format!("{} {}", file.file_stem().unwrap().display(), case["name"]);
            // Upstream's oldest variant has answers of its own; what it solves the others solve, too.
            let line = if case["channel"] == "stable" {
                let mut case = case.clone();
                case["channel"] = "".into();
                case.to_string()
            } else {
                line.to_owned()
            };
            let results: Option<Vec<AllocationResult>> = serde_json::from_value(case["results"].clone()).unwrap();
            let results = results.unwrap_or_default();
            let outcome = match case["err"].as_str().unwrap_or_default() {
                "" if results.is_empty() => "none",
                "" => "allocated",
                error => class(error),
            };
            let expected = (outcome.to_owned(), plain(&results));
            let answer = Problem::parse(&line).and_then(|problem| {
                problem.solve(Mode::Parity, &programs, Limits { steps: 1_000_000, is_over: &|| false })
            });
            let answer = match answer {
                Ok(outcome) => Answer::new(String::new(), outcome),
                Err(error) => Answer::bad_input(String::new(), &error),
            };
            let got = (answer.outcome.clone(), plain(&answer.results));
            if got == expected {
                held += 1;
            } else {
                wrong.push(format!("{name}\n  expected {expected:?}\n  got      {got:?} {}\n", answer.err));
            }
        }
    }
    assert!(wrong.is_empty(), "{held} hold, {} don't:\n{}", wrong.len(), wrong.join("\n"));
    assert!(held > 0, "the folder has no cases");
}

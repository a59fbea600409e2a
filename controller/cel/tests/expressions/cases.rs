//! Expressions against what Kubernetes' own code says of them. `go run ./oracle/cel` in `test/cluster` makes the table.

use std::thread;

use aliquot_cel::Environment;

use crate::line::{Line, answer, devices};

#[test]
fn they_are_what_kubernetes_says() {
    let devices = devices().unwrap();
    let (mut lines, mut wrong) = (0, Vec::new());
    for text in include_str!("cases.jsonl").lines() {
        let line: Line = serde_json::from_str(text).unwrap();
        lines += 1;
        let (outcome, value, cost) = answer(&line, &devices[&line.device]);
        if (&outcome, &value, cost) != (&line.outcome, &line.value, line.cost) {
            wrong.push(format!("{text}\n  gave {outcome} {value:?} at {cost:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {lines}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(lines > 900, "the table has only {lines} lines");
}

#[test]
fn one_program_serves_many_threads() {
    let program = Environment.compile("device.driver.matches('^gpu') && device.capacity.size() == 2").unwrap();
    let devices = devices().unwrap();
    thread::scope(|scope| {
        for (name, matches) in [("gpu", true), ("bare", false), ("gpu", true)] {
            let (program, device) = (&program, &devices[name]);
            scope.spawn(move || assert_eq!(program.matches(device), Ok(matches), "{name}"));
        }
    });
}

#[test]
fn a_device_that_cannot_be_read_says_why() {
    let program = Environment.compile("true || device.driver == ''").unwrap();
    let error = program.matches(&devices().unwrap()["broken"]).unwrap_err().to_string();
    assert_eq!(error, "attribute version: \"1.2\" is no semantic version");
}

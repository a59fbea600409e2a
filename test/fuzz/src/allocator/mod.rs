//! The allocator.

mod generator;
mod shrink;

use std::fs;
use std::path::PathBuf;

use aliquot_allocator::problem::{Answer, Problem};
use aliquot_allocator::{Limits, Mode, Programs};
use serde_json::{Value, json};

use crate::oracle::Oracle;
use crate::run::{RunError, Subject, Verdict};

/// Our limit for one problem.
const STEPS: u64 = 2_000_000;

/// Compares allocations.
pub struct Allocator {
    programs: Programs,
    cases: Option<PathBuf>,
}

/// What both sides say of a problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// As upstream calls it.
    pub outcome: String,
    /// The allocations, without what is empty: Go leaves out some of it.
    pub results: Value,
}

impl Allocator {
    /// What differs is kept in this folder, if there is one.
    pub fn new(cases: Option<PathBuf>) -> Self {
        Self { programs: Programs::default(), cases }
    }

    /// What our allocator says.
    pub fn ours(&self, problem: &str) -> Said {
        let limits = Limits { steps: STEPS, is_over: &|| false };
        let answer =
            match Problem::parse(problem).and_then(|problem| problem.solve(Mode::Parity, &self.programs, limits)) {
                Ok(outcome) => Answer::new(String::new(), outcome),
                Err(error) => Answer::bad_input(String::new(), &error),
            };
        Said { outcome: answer.outcome, results: prune(json!(answer.results)) }
    }

    fn verdict(&self, problem: &str, theirs: &Said) -> Verdict {
        if matches!(theirs.outcome.as_str(), "timeout" | "crash") {
            return Verdict::NoAnswer(theirs.outcome.clone());
        }
        let ours = self.ours(problem);
        if ours == *theirs {
            Verdict::Agreed(ours.outcome)
        } else if ours.outcome == "outOfSteps" {
            Verdict::OutOfSteps
        } else if ours.outcome == theirs.outcome {
            Verdict::Different("other devices".to_owned())
        } else {
            Verdict::Different(format!("{} where Kubernetes has {}", ours.outcome, theirs.outcome))
        }
    }

    /// Asks both sides, out of turn.
    fn ask(&self, oracle: &mut Oracle, problem: &Value) -> Result<(Verdict, Said), RunError> {
        let problem = problem.to_string();
        oracle.ask(problem.clone());
        let theirs = read(&oracle.answer()?)?;
        Ok((self.verdict(&problem, &theirs), theirs))
    }
}

/// Reads an answer, or what a case has of one.
fn read(line: &str) -> Result<Said, RunError> {
    let answer: Value =
        serde_json::from_str(line).map_err(|source| RunError::Answer { line: line.to_owned(), source })?;
    Ok(Said::of(&answer))
}

impl Said {
    /// What an answer or a case says.
    pub fn of(answer: &Value) -> Self {
        Self {
            outcome: answer["outcome"].as_str().unwrap_or_default().to_owned(),
            results: prune(json!(answer["results"].as_array().map(Vec::as_slice).unwrap_or_default())),
        }
    }
}

/// The problem of a seed.
pub(crate) fn problem(seed: u64) -> Value {
    generator::problem(seed)
}

impl Subject for Allocator {
    fn question(&self, seed: u64) -> String {
        generator::problem(seed).to_string()
    }

    fn judge(&self, question: &str, theirs: &str) -> Result<Verdict, RunError> {
        Ok(self.verdict(question, &read(theirs)?))
    }

    fn explain(&self, oracle: &mut Oracle, seed: u64, question: &str, theirs: &str) -> Result<String, RunError> {
        let verdict = self.judge(question, theirs)?;
        let mut problem: Value =
            serde_json::from_str(question).map_err(|source| RunError::Answer { line: question.to_owned(), source })?;
        let mut said = read(theirs)?;
        shrink::shrink(&mut problem, &mut |smaller| {
            let (found, theirs) = self.ask(oracle, smaller)?;
            let is_same = found == verdict;
            if is_same {
                said = theirs;
            }
            Ok(is_same)
        })?;
        let ours = self.ours(&problem.to_string());
        let mut lines = vec![
            format!("{problem:#}"),
            format!("Kubernetes: {} {}", said.outcome, said.results),
            format!("ours: {} {}", ours.outcome, ours.results),
        ];
        if let Some(folder) = &self.cases {
            let path = folder.join(format!("seed-{seed}.json"));
            let case = json!({ "problem": problem, "outcome": said.outcome, "results": said.results });
            let keep = fs::create_dir_all(folder).and_then(|()| fs::write(&path, format!("{case}\n")));
            keep.map_err(|source| RunError::Keep { path: path.clone(), source })?;
            lines.push(format!("kept as {}", path.display()));
        }
        Ok(lines.join("\n"))
    }
}

fn prune(value: Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(all) => {
            let entries = all.into_iter().map(|(name, value)| (name, prune(value)));
            Value::Object(entries.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(all) => Value::Array(all.into_iter().map(prune).filter(|value| !is_empty(value)).collect()),
        other => other,
    }
}

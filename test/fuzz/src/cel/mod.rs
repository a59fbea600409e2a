//! The expressions of device selectors and derived attributes.

mod generator;
/// The table's form of questions and answers.
#[path = "../../../../controller/cel/tests/expressions/line.rs"]
mod line;

use std::collections::BTreeMap;

use aliquot_cel::Device;
use generator::Kind;
use line::{Line, answer, devices};
use serde_json::json;

use crate::oracle::Oracle;
use crate::random::Random;
use crate::run::{RunError, Subject, Verdict};

/// Compares expressions.
pub struct Cel {
    devices: BTreeMap<String, Device>,
}

impl Cel {
    /// With the devices of the table.
    pub fn new() -> Result<Self, RunError> {
        let devices = devices().map_err(|error| RunError::Broken(format!("devices.json: {error}")))?;
        Ok(Self { devices })
    }

    fn answered(&self, line: &Line) -> Result<Line, RunError> {
        let unknown = || RunError::Broken(format!("there is no device {:?}", line.device));
        let device = self.devices.get(&line.device).ok_or_else(unknown)?;
        let (outcome, value, cost) = answer(line, device);
        Ok(Line { outcome, value, cost, ..line.clone() })
    }
}

fn read(line: &str) -> Result<Line, RunError> {
    serde_json::from_str(line).map_err(|source| RunError::Answer { line: line.to_owned(), source })
}

impl Subject for Cel {
    fn question(&self, seed: u64) -> String {
        let mut random = Random(seed);
        let device = if random.percent(95) { "gpu" } else { "bare" };
        if random.percent(85) {
            let expression = generator::expression(&mut random, Kind::Bool);
            return json!({ "expression": expression, "device": device }).to_string();
        }
        let kinds = [Kind::Bool, Kind::Int, Kind::Text, Kind::Semver, Kind::Ints, Kind::Texts, Kind::Dyn, Kind::Odd];
        let kind = *random.one(&kinds);
        let expression = generator::expression(&mut random, kind);
        json!({ "expression": expression, "device": device, "attribute": true }).to_string()
    }

    fn judge(&self, _: &str, theirs: &str) -> Result<Verdict, RunError> {
        let theirs = read(theirs)?;
        let ours = self.answered(&theirs)?;
        // Go's panics, caught where the scheduler would catch them.
        let crashed = theirs.error.contains("internal error") || theirs.error.starts_with("panic");
        Ok(if ours == theirs {
            Verdict::Agreed(ours.outcome)
        } else if crashed {
            Verdict::NoAnswer(theirs.error)
        } else if ours.outcome != theirs.outcome {
            Verdict::Different(format!("{} where Kubernetes has {}", ours.outcome, theirs.outcome))
        } else if ours.value != theirs.value {
            Verdict::Different("another value".to_owned())
        } else {
            Verdict::Different("another cost".to_owned())
        })
    }

    /// A line that the table can have.
    fn explain(&self, _: &mut Oracle, _: u64, _: &str, theirs: &str) -> Result<String, RunError> {
        let ours = self.answered(&read(theirs)?)?;
        Ok(format!("{theirs}\n  gave {} {:?} at {:?}", ours.outcome, ours.value, ours.cost))
    }
}

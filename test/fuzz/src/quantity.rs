//! Quantities.

/// The table's form of questions and answers.
#[path = "../../../api/tests/quantity/line.rs"]
mod line;

use line::Line;
use serde_json::json;

use crate::oracle::Oracle;
use crate::random::Random;
use crate::run::{RunError, Subject, Verdict};

/// Compares what texts mean, and what comes of adding, taking away and comparing.
pub struct Quantities;

const SUFFIXES: [&str; 17] =
    ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3"];
/// No suffixes, or not of this form; and what has no place in a quantity at all.
const WRONG: [&str; 20] = [
    "K", "mi", "ki", "KI", "Kib", "i", "ni", "mm", "e", "E+", "e-", "e1.5", " ", "Zi", "Y", "_", "é", "e3k", "ee3", "+",
];
/// Where something changes: what fits and what doesn't, and the ends of the suffixes.
const NUMBERS: [&str; 22] = [
    "0",
    "1",
    "9",
    "10",
    "999",
    "1000",
    "1023",
    "1024",
    "1025",
    "1048576",
    "999999999",
    "1000000000",
    "999999999999999999",
    "1000000000000000000",
    "4611686018427387904",
    "9007199254740993",
    "9223372036854775806",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "123456789012345678901234567890",
    "00000000000000000001",
];

fn digits(random: &mut Random, most: usize) -> String {
    let count = random.between(1, most);
    let kind = random.below(4);
    let digit = |random: &mut Random| match kind {
        0 => '0',
        1 => '9',
        _ => char::from_digit(u32::try_from(random.below(10)).unwrap_or(0), 10).unwrap_or('0'),
    };
    (0..count).map(|_| digit(random)).collect()
}

/// Mostly a quantity.
fn text(random: &mut Random) -> String {
    let sign = match random.below(8) {
        0 | 1 => "-",
        2 => "+",
        _ => "",
    };
    let whole = match random.below(10) {
        0 => String::new(),
        1..=4 => (*random.one(&NUMBERS)).to_owned(),
        _ => {
            let most = *random.one(&[3, 10, 19, 32]);
            digits(random, most)
        }
    };
    let fraction = match random.below(10) {
        0 => ".".to_owned(),
        1..=3 => {
            let most = *random.one(&[2, 9, 10, 20]);
            format!(".{}", digits(random, most))
        }
        _ => String::new(),
    };
    let suffix = match random.below(12) {
        0 => format!("{}{}", random.one(&["e", "E"]), random.below(41)),
        1 => format!("{}-{}", random.one(&["e", "E"]), random.below(41)),
        2 => format!("e{}{}", random.one(&["+", "", "0", "-0"]), random.one(&[0, 1, 3, 9, 18, 19, 99, 400])),
        _ => (*random.one(&SUFFIXES)).to_owned(),
    };
    let mut text = format!("{sign}{whole}{fraction}{suffix}");
    let plain = text.clone();
    if random.percent(8) {
        let all = text.chars().count();
        let at = text.char_indices().nth(random.below(all + 1)).map_or(text.len(), |(at, _)| at);
        let wrong = WRONG[random.below(WRONG.len())];
        text.insert_str(at, wrong);
    }
    if random.percent(3) {
        text.push_str(WRONG[random.below(WRONG.len())]);
    }
    if has_long_exponent(&text) { plain } else { text }
}

/// Go takes such a one, and hours; here it is refused.
fn has_long_exponent(text: &str) -> bool {
    text.split(['e', 'E']).skip(1).any(|rest| rest.trim_start_matches(['+', '-']).len() > 3)
}

fn read(line: &str) -> Result<Line, RunError> {
    serde_json::from_str(line).map_err(|source| RunError::Answer { line: line.to_owned(), source })
}

impl Subject for Quantities {
    fn question(&self, seed: u64) -> String {
        let random = &mut Random(seed);
        let a = text(random);
        if random.percent(30) {
            return json!({ "a": a }).to_string();
        }
        let b = if random.percent(10) { a.clone() } else { text(random) };
        json!({ "a": a, "b": b }).to_string()
    }

    fn judge(&self, _: &str, theirs: &str) -> Result<Verdict, RunError> {
        let theirs = read(theirs)?;
        let ours = theirs.answered();
        Ok(match (ours.error, theirs.error) {
            _ if ours == theirs => Verdict::Agreed(if ours.error { "errors" } else { "quantities" }.to_owned()),
            (true, false) => Verdict::Different("an error where Kubernetes has none".to_owned()),
            (false, true) => Verdict::Different("no error where Kubernetes has one".to_owned()),
            _ => Verdict::Different("another quantity".to_owned()),
        })
    }

    /// A line that the table can have.
    fn explain(&self, _: &mut Oracle, _: u64, _: &str, theirs: &str) -> Result<String, RunError> {
        Ok(format!("{theirs}\n  gave {:?}", read(theirs)?.answered()))
    }
}

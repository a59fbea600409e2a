//! The allocator beside Kubernetes' own: the same problems, in turns, in the same run.
//!
//! Both read a problem, prepare what they know of the cluster, and tell how long it takes to answer then. That is what the
//! scheduler does for each node and pod.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use aliquot_fuzz::allocator::Said;
use aliquot_rig::variable;
use serde_json::{Map, Value, json};

use crate::problems::{TIMEOUT, gpus, partitions, problem, profile, request, selecting};

/// How much faster than Kubernetes' allocator it is meant to be: with what is possible, and with what isn't.
const ORDINARY: f64 = 10.0;
const HOPELESS: f64 = 1000.0;

/// Each has so many turns, of which the median counts.
const TURNS: usize = 5;
/// What takes longer has one turn.
const SLOW_MICROS: f64 = 500_000.0;
/// How long a turn is, about.
const TURN_MICROS: f64 = 50_000.0;
const NODES: usize = 1000;

struct Case {
    key: String,
    title: String,
    problem: Value,
    aim: Option<f64>,
}

fn case(key: &str, title: &str, aim: f64, problem: Value) -> Case {
    Case { key: key.to_owned(), title: title.to_owned(), problem, aim: Some(aim) }
}

fn one(request: &Value) -> Value {
    json!({ "requests": [request] })
}

fn cases() -> Vec<Case> {
    let mig = partitions(8, &[""]);
    let large = partitions(16, &["", "+me"]);
    let mut matching = one(&request("r", "gpu", 4));
    matching["constraints"] = json!([{ "matchAttribute": "gpu.example.com/numa" }]);
    let any = problem(&gpus(8), 1, &one(&request("r", "gpu", 1)));
    let mut all = vec![
        case("one_of_8", "1 of 8 GPUs", ORDINARY, any),
        case("matching_4_of_8", "4 of 8 GPUs of one NUMA node", ORDINARY, problem(&gpus(8), 1, &matching)),
        case("one_of_112", "1 of 112 MIG devices", ORDINARY, problem(&mig, 1, &one(&request("r", "mig", 1)))),
        case("last_of_112", "  one 1g of them", ORDINARY, problem(&mig, 1, &one(&profile("r", "1g.10gb", 1)))),
        case("eight_7g", "  8 × 7g of them", ORDINARY, problem(&mig, 1, &one(&profile("r", "7g.80gb", 8)))),
        case("any_20", "  any 20 of them", ORDINARY, problem(&mig, 1, &one(&request("r", "mig", 20)))),
        case("one_of_448", "1 of 448 MIG devices", ORDINARY, problem(&large, 1, &one(&request("r", "mig", 1)))),
        case("sixteen_7g", "  16 × 7g of them", ORDINARY, problem(&large, 1, &one(&profile("r", "7g.80gb", 16)))),
        case(
            "nodes_1000",
            "1 of 8 GPUs, on 1,000 nodes",
            ORDINARY,
            problem(&gpus(8), NODES, &one(&request("r", "gpu", 1))),
        ),
    ];
    for count in [8, 12, 16, 20, 24] {
        let (key, title) = (format!("too_many_of_{count}"), format!("{} of {count} GPUs", count + 1));
        all.push(case(&key, &title, HOPELESS, problem(&gpus(count), 1, &one(&request("r", "gpu", count + 1)))));
    }
    for count in [6, 8, 16] {
        let requests: Vec<Value> = (0..=count).map(|index| request(&format!("r{index}"), "gpu", 1)).collect();
        let (key, title) = (format!("requests_for_{count}"), format!("{} requests for 1 of {count} GPUs", count + 1));
        all.push(case(&key, &title, HOPELESS, problem(&gpus(count), 1, &json!({ "requests": requests }))));
    }
    let too_many = one(&profile("r", "3g.40gb", 17));
    all.push(case("seventeen_3g", "17 × 3g of 8 GPUs", HOPELESS, problem(&mig, 1, &too_many)));
    all
}

/// Expressions as people write them.
const EXPRESSIONS: [(&str, &str, &str); 3] = [
    (
        "cold_equal",
        "the class's and one ==",
        "device.attributes['gpu.example.com'].productName == 'NVIDIA H100 80GB HBM3'",
    ),
    ("cold_quantity", "  and a quantity", "device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) >= 0"),
    (
        "cold_version",
        "  and versions, a list and a pattern",
        "device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('570.0.0')) && \
         device.attributes['gpu.example.com'].architecture in ['Hopper', 'Blackwell'] && \
         device.attributes['gpu.example.com'].productName.matches('H100|B200')",
    ),
];

/// A program that answers problems.
struct Solver {
    child: Child,
    questions: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Solver {
    fn start(program: &str, args: &[&str]) -> Self {
        let mut child = Command::new(variable(program))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program} doesn't start: {error}"));
        let (questions, answers) = (child.stdin.take(), child.stdout.take().expect("it was piped"));
        Self { child, questions, answers: BufReader::new(answers).lines() }
    }

    fn answer(&mut self, problem: &Value, repeat: u64) -> Value {
        let mut problem = problem.clone();
        problem["repeat"] = repeat.into();
        let questions = self.questions.as_mut().expect("it is open until the end");
        questions.write_all(format!("{problem}\n").as_bytes()).expect("a solver that reads");
        let line = self.answers.next().expect("a solver that answers").expect("text");
        serde_json::from_str(&line).expect("an answer")
    }

    /// What it found, if it did in time; how long it took the first time, and how long again.
    fn measure(&mut self, problem: &Value, repeat: u64) -> Option<Measured> {
        let answer = self.answer(problem, repeat);
        let outcome = answer["outcome"].as_str().unwrap_or_default();
        assert!(["allocated", "none", "timeout", "outOfSteps"].contains(&outcome), "not a good problem: {answer}");
        let first = answer["micros"].as_f64().unwrap_or_default();
        let again = answer["meanMicros"].as_f64().unwrap_or(first);
        let found = Said::of(&answer);
        (outcome != "timeout" && outcome != "outOfSteps").then_some(Measured { found, first, again })
    }
}

impl Drop for Solver {
    fn drop(&mut self) {
        self.questions = None;
        let _ = self.child.wait();
    }
}

struct Measured {
    found: Said,
    first: f64,
    again: f64,
}

/// What came out, in microseconds; nothing where there was no answer in time.
struct Row {
    key: String,
    title: String,
    ours: Option<f64>,
    placed: Option<f64>,
    theirs: Option<f64>,
    aim: Option<f64>,
    is_same: bool,
}

impl Row {
    /// Without an answer of Kubernetes in time it took at least that long.
    fn least_ratio(&self, ours: Option<f64>) -> Option<f64> {
        let theirs = self.theirs.unwrap_or(f64::from(u32::try_from(TIMEOUT).unwrap()) * 1e6);
        Some(theirs / ours?)
    }
}

/// Measures everything. A few minutes, most of them Kubernetes'.
pub(crate) fn measure(json: bool) -> String {
    let mut solvers = [
        Solver::start("ALIQUOT_SOLVE", &["--mode", "parity"]),
        Solver::start("ALIQUOT_SOLVE", &["--mode", "placement"]),
        Solver::start("ALIQUOT_ORACLE", &[]),
    ];
    let mut rows = Vec::new();
    for case in cases() {
        eprintln!("{}", case.title.trim());
        rows.push(compared(&mut solvers, case));
    }
    let mut cold = Vec::new();
    for (key, title, expression) in EXPRESSIONS {
        eprintln!("for the first time: {}", title.trim());
        cold.push(first_time(&mut solvers, key, title, expression));
    }
    if json { as_json(&rows, &cold) } else { table(&rows, &cold) }
}

fn compared(solvers: &mut [Solver; 3], case: Case) -> Row {
    let first = solvers.each_mut().map(|solver| solver.measure(&case.problem, 0));
    let is_same = match &first {
        [Some(ours), _, Some(theirs)] => ours.found == theirs.found,
        _ => true,
    };
    let mut last = first.map(|first| first.map(|first| first.first));
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        for ((solver, last), times) in solvers.iter_mut().zip(&mut last).zip(&mut times) {
            let Some(micros) = last.filter(|micros| *micros < SLOW_MICROS) else { continue };
            // Not negative, and far from the most.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let repeat = (TURN_MICROS / micros.max(0.1)).ceil() as u64;
            if let Some(again) = solver.measure(&case.problem, repeat).map(|again| again.again) {
                times.push(again);
                *last = Some(again);
            }
        }
    }
    let mut median = |index: usize| if times[index].is_empty() { last[index] } else { Some(median(&mut times[index])) };
    Row {
        ours: median(0),
        placed: median(1),
        theirs: median(2),
        key: case.key,
        title: case.title,
        aim: case.aim,
        is_same,
    }
}

/// Each time an expression that nobody has seen.
fn first_time(solvers: &mut [Solver; 3], key: &str, title: &str, expression: &str) -> Row {
    let mut times = [const { Vec::new() }; 3];
    let mut is_same = true;
    for turn in 0..TURNS {
        let new = format!("{expression} && device.driver != 'turn-{turn}'");
        let problem = problem(&gpus(8), 1, &one(&selecting(request("r", "gpu", 1), &new)));
        let answers = solvers.each_mut().map(|solver| solver.measure(&problem, 0));
        if let [Some(ours), _, Some(theirs)] = &answers {
            is_same &= ours.found == theirs.found;
        }
        for (times, answer) in times.iter_mut().zip(answers) {
            times.extend(answer.map(|answer| answer.first));
        }
    }
    let [ours, placed, theirs] = times.map(|mut times| (!times.is_empty()).then(|| median(&mut times)));
    Row { key: key.to_owned(), title: title.to_owned(), ours, placed, theirs, aim: None, is_same }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// One line. What wasn't known in time is null.
fn as_json(rows: &[Row], cold: &[Row]) -> String {
    let rounded = |value: Option<f64>| json!(value.map(|value| (value * 1000.0).round() / 1000.0));
    let mut figures = Map::new();
    for row in rows.iter().chain(cold) {
        figures.insert(format!("{}_us", row.key), rounded(row.ours));
        figures.insert(format!("{}_placement_us", row.key), rounded(row.placed));
        figures.insert(format!("{}_kubernetes_us", row.key), rounded(row.theirs));
    }
    Value::Object(figures).to_string()
}

/// For people.
fn table(rows: &[Row], cold: &[Row]) -> String {
    let mut table = format!(
        "{:<32} {:>12} {:>12} {:>10} {:>12} {:>10} {:>6}\n",
        "TIME, µs", "KUBERNETES", "PARITY", "FASTER", "PLACEMENT", "FASTER", "AIM"
    );
    for row in rows {
        line(&mut table, row);
    }
    let _ = writeln!(table, "\nthe first time, with an expression that was never seen");
    for row in cold {
        line(&mut table, row);
    }
    table
}

fn line(table: &mut String, row: &Row) {
    let micros =
        |value: Option<f64>| value.map_or_else(|| format!("none in {TIMEOUT} s"), |value| format!("{value:.2}"));
    let more = if row.theirs.is_none() { ">" } else { "" };
    let faster = [row.ours, row.placed].map(|own| row.least_ratio(own));
    let [first, second] = faster.map(|faster| faster.map_or_else(String::new, |faster| format!("{more}{faster:.1}")));
    let aim = row.aim.map_or_else(String::new, |aim| format!("{aim:.0}"));
    let is_missed = |faster: &Option<f64>| row.aim.is_some_and(|aim| faster.is_none_or(|faster| faster < aim));
    let verdict = if faster.iter().any(is_missed) { "  missed" } else { "" };
    let differ = if row.is_same { "" } else { "  THE ANSWERS DIFFER" };
    let [ours, placed, theirs] = [row.ours, row.placed, row.theirs].map(micros);
    // Writing to a String can't fail.
    let _ = writeln!(
        table,
        "{:<32} {theirs:>12} {ours:>12} {first:>10} {placed:>12} {second:>10} {aim:>6}{verdict}{differ}",
        row.title
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours: Option<f64>, theirs: Option<f64>, aim: f64) -> Row {
        Row { key: "k".into(), title: "some case".into(), ours, placed: ours, theirs, aim: Some(aim), is_same: true }
    }

    #[test]
    fn a_missed_aim_is_told() {
        let rows = [row(Some(2.0), Some(30.0), 10.0), row(Some(2.0), Some(10.0), 10.0), row(Some(2.0), None, 1000.0)];
        let table = table(&rows, &[]);
        let lines: Vec<&str> = table.lines().collect();
        assert!(!lines[1].contains("missed"), "{table}");
        assert!(lines[2].contains("missed"), "{table}");
        assert!(lines[3].contains("none in 10 s") && lines[3].contains(">5000000.0"), "{table}");
        assert!(!lines[3].contains("missed"), "{table}");
    }

    #[test]
    fn what_is_not_known_has_no_figure() {
        let line = as_json(&[row(Some(2.0), None, 10.0)], &[]);
        assert_eq!(line, r#"{"k_kubernetes_us":null,"k_placement_us":2.0,"k_us":2.0}"#);
    }

    #[test]
    fn answers_are_compared_without_what_is_empty() {
        let said = |outcome: &str, results: Value| Said::of(&json!({ "outcome": outcome, "results": results }));
        let found = said("allocated", json!([{ "devices": { "results": [{ "device": "d" }], "config": [] } }]));
        let same = said("allocated", json!([{ "devices": { "results": [{ "device": "d" }] } }]));
        assert_eq!(found, same);
        assert_ne!(found, said("none", Value::Null));
    }
}

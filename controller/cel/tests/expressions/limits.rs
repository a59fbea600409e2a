//! What somebody might write to keep the evaluator busy, or to bring it down.

use std::collections::BTreeMap;

use aliquot_cel::{CompileError, Device, Environment, EvaluationError, MAX_COST, MAX_LENGTH};

fn evaluate(expression: &str) -> Result<bool, EvaluationError> {
    let device = Device::new("gpu.aliquot.dev", &BTreeMap::new(), &BTreeMap::new(), false);
    Environment.compile(expression).unwrap().matches(&device)
}

/// `first`, and `step` of it and of what that gives, so many times.
fn again_and_again(times: usize, first: &str, step: &str, last: &str) -> String {
    let mut expression = format!("cel.bind(x, {first}, ");
    for _ in 0..times {
        expression.extend(["cel.bind(x, ", step, ", "]);
    }
    expression + last + &")".repeat(times + 1)
}

#[test]
fn what_doubles_comes_to_an_end() {
    let expressions = [
        again_and_again(60, "[1]", "x + x", "x.size() > 0"),
        again_and_again(60, "[1]", "[x, x]", "x == x"),
        again_and_again(60, "[1]", "[x, x]", "dyn(x) != dyn([x])"),
        again_and_again(60, "[dyn([1])]", "[dyn(x), dyn(x)]", "x.flatten(99).size() > 0"),
        again_and_again(60, "[1]", "[x, x]", "x.indexOf(x[0]) >= 0"),
        again_and_again(60, "[1]", "[dyn(x), dyn(x)]", "x.includes(x)"),
        again_and_again(60, "[1]", "[x, x]", "'%s'.format([x]).size() > 0"),
        again_and_again(60, "'ab'", "'%s%s%s'.format([x, x, x])", "x.size() > 0"),
        again_and_again(60, "'ab'", "x + x", "x.size() > 0"),
        again_and_again(60, "'ab'", "[x, x, x].join()", "x.size() > 0"),
        again_and_again(60, "'ab'", "x.replace('', x)", "x.size() > 0"),
        again_and_again(60, "'\\\\'", "strings.quote(x)", "x.size() > 0"),
        again_and_again(60, "{'a': 1}", "{'a': x, 'b': x}", "x == x"),
        "lists.range(1000000).map(x, x).size() > 0".to_owned(),
        "lists.range(1000).all(x, lists.range(1000).all(y, lists.range(1000).all(z, true)))".to_owned(),
    ];
    for expression in expressions {
        match evaluate(&expression) {
            Ok(_) | Err(EvaluationError::Cost(MAX_COST)) => {}
            Err(other) => assert_eq!(other, EvaluationError::Cost(MAX_COST), "{expression}"),
        }
    }
}

#[test]
fn a_small_stack_is_enough() {
    let deep = |count: usize| {
        [
            format!("{}true{}", "(".repeat(count), ")".repeat(count)),
            format!("{}1{} == []", "[".repeat(count), "]".repeat(count)),
            format!("{}true", "!(".repeat(count)) + &")".repeat(count),
            format!("true{}", " ? true : true".repeat(count)),
            format!("1{} > 0", " + 1".repeat(count)),
            format!("device{}", ".a".repeat(count)),
            format!("[[1]]{} == []", "[0]".repeat(count)),
            again_and_again(count, "1", "x + 1", "x > 0"),
            format!("{}true{}", "[1].all(x, ".repeat(count), ")".repeat(count)),
            format!("{}1{} == 1", "size([".repeat(count), "])".repeat(count)),
            format!("{}'a'{} == ''", "'%s'.format([".repeat(count), "])".repeat(count)),
        ]
    };
    let expressions: Vec<String> = [10, 100, 248, 260, 1000].into_iter().flat_map(deep).collect();
    let small = std::thread::Builder::new().stack_size(1 << 20);
    let evaluated = small.spawn(move || {
        let device = Device::new("gpu.aliquot.dev", &BTreeMap::new(), &BTreeMap::new(), false);
        let programs = expressions.iter().filter_map(|expression| Environment.compile(expression).ok());
        programs.filter(|program| program.matches(&device).is_ok()).count()
    });
    assert!(evaluated.unwrap().join().unwrap() > 10);
}

#[test]
fn types_that_double_are_refused() {
    for step in ["{x: x}", "{type(x): type(x)}"] {
        let expression = again_and_again(60, "1", step, "true");
        assert_eq!(Environment.compile(&expression).map(|_| ()), Err(CompileError::TooDeep), "{step}");
    }
}

#[test]
fn long_expressions_are_refused() {
    let long = |length: usize| format!("true{}", " ".repeat(length - 4));
    assert!(Environment.compile(&long(MAX_LENGTH)).is_ok());
    let refused = Environment.compile(&long(MAX_LENGTH + 1)).map(|_| ());
    assert_eq!(refused, Err(CompileError::TooLong { length: MAX_LENGTH + 1, max: MAX_LENGTH }));
}

/// Whatever somebody leaves off or puts in, there is an answer.
#[test]
fn broken_expressions_have_an_answer() {
    let devices = crate::line::devices().unwrap();
    let mut compiled = 0;
    for (at, text) in include_str!("cases.jsonl").lines().enumerate() {
        let line: crate::line::Line = serde_json::from_str(text).unwrap();
        let all: Vec<char> = line.expression.chars().take(200).collect();
        for cut in (at % 5..all.len()).step_by(5) {
            let (before, behind) = all.split_at(cut);
            let broken = [
                before.iter().collect::<String>(),
                before.iter().chain(&behind[1..]).collect(),
                before.iter().chain(&['(']).chain(behind).collect(),
                before.iter().chain(&['é', '\\']).chain(&behind[1..]).collect(),
            ];
            for program in broken.iter().filter_map(|expression| Environment.compile(expression).ok()) {
                compiled += 1;
                let _ = program.matches(&devices["gpu"]);
            }
        }
    }
    assert!(compiled > 1000, "only {compiled} of them are expressions");
}

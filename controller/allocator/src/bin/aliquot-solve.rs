//! Answers allocation problems: a JSON object a line in, an answer a line out.

use std::io::{self, BufRead, Write};
use std::thread;
use std::time::{Duration, Instant};

use aliquot_allocator::problem::{Answer, Problem};
use aliquot_allocator::{Limits, Mode, Programs};
use clap::{Parser, ValueEnum};
use serde_json::Value;

/// Reads problems from standard input, one JSON object a line, and writes what Kubernetes' allocator would answer.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The most devices that are tried for one problem
    #[arg(long, default_value_t = 10_000_000)]
    steps: u64,
    /// Whose rules hold, and which of several solutions is wanted
    #[arg(long, value_enum, default_value_t = ModeArg::Parity)]
    mode: ModeArg,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeArg {
    /// What Kubernetes' allocator answers
    Parity,
    /// The solution that leaves the most to others, and why
    Placement,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Parity => Self::Parity,
            ModeArg::Placement => Self::Placement,
        }
    }
}

/// The search goes as deep as there are devices to allocate.
const STACK: usize = 1 << 29;

fn main() -> io::Result<()> {
    let args = Args::parse();
    let worker = thread::Builder::new().stack_size(STACK).spawn(move || answer_all(&args))?;
    worker.join().unwrap_or_else(|_| Err(io::Error::other("the search crashed")))
}

fn answer_all(args: &Args) -> io::Result<()> {
    let programs = Programs::default();
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let answer = match line {
            Ok(line) => answer(&line, args, &programs),
            // A line that is no text isn't the end.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Answer { outcome: "badInput".into(), err: error.to_string(), ..Answer::default() }
            }
            Err(error) => return Err(error),
        };
        serde_json::to_writer(&mut out, &answer)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

fn answer(line: &str, args: &Args, programs: &Programs) -> Answer {
    let problem = match Problem::parse(line) {
        Ok(problem) => problem,
        Err(error) => {
            let any: Value = serde_json::from_str(line).unwrap_or_default();
            return Answer::bad_input(any["id"].as_str().unwrap_or_default().to_owned(), &error);
        }
    };
    let allocator = match problem.allocator(args.mode.into(), programs) {
        Ok(allocator) => allocator,
        Err(error) => return Answer::bad_input(problem.id, &error),
    };
    let end = (problem.timeout_ms > 0).then(|| Instant::now() + Duration::from_millis(problem.timeout_ms));
    let is_over = || end.is_some_and(|end| Instant::now() >= end);
    let limits = Limits { steps: args.steps, is_over: &is_over };
    let start = Instant::now();
    let outcome = problem.solve_with(&allocator, limits);
    let micros = start.elapsed().as_micros().try_into().unwrap_or(u64::MAX);
    let mut mean_micros = None;
    if problem.repeat > 0 {
        // What is the first time for a node isn't again.
        problem.solve_elsewhere(&allocator, limits);
        let start = Instant::now();
        for _ in 0..problem.repeat {
            let _ = problem.solve_with(&allocator, limits);
            problem.solve_elsewhere(&allocator, limits);
        }
        mean_micros = Some(start.elapsed().as_secs_f64() * 1e6 / f64::from(problem.repeat));
    }
    Answer { micros, mean_micros, ..Answer::new(problem.id.clone(), outcome) }
}

//! Asks both sides until the time is over, or the questions are.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::oracle::{Oracle, OracleError};

/// How many questions the oracle has in advance, so that neither side waits for the other.
const AHEAD: usize = 16;
/// How often Kubernetes is asked again where it differs: it may leave the answer to chance, as with the order of a map.
const AGAIN: usize = 20;
/// After so many the rest would most likely be the same again.
const MOST_DIFFERENCES: u64 = 10;

/// What two answers to one question say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The same; in which class.
    Agreed(String),
    /// Kubernetes has no answer in time, or crashed.
    NoAnswer(String),
    /// Ours gave up.
    OutOfSteps,
    /// Both have an answer; in which way they differ.
    Different(String),
}

/// What can be asked.
pub trait Subject {
    /// The question of a seed, as the oracle reads it.
    fn question(&self, seed: u64) -> String;

    /// Compares the oracle's answer with ours.
    fn judge(&self, question: &str, theirs: &str) -> Result<Verdict, RunError>;

    /// Makes the most of a difference; what a person should see of it.
    fn explain(&self, oracle: &mut Oracle, seed: u64, question: &str, theirs: &str) -> Result<String, RunError>;
}

/// Why a run couldn't go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is nobody to ask.
    #[error(transparent)]
    Oracle(#[from] OracleError),
    /// The oracle said something that isn't an answer.
    #[error("not an answer: {line}: {source}")]
    Answer {
        /// What it said.
        line: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A case can't be kept.
    #[error("can't write {path}: {source}")]
    Keep {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What this program is made of is broken.
    #[error("{0}")]
    Broken(String),
}

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After so long.
    Time(Duration),
    /// After so many questions.
    Count(u64),
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Tally {
    questions: u64,
    agreed: BTreeMap<String, u64>,
    no_answer: u64,
    out_of_steps: u64,
    /// In the order of their questions.
    pub different: u64,
    stopped: bool,
}

impl Tally {
    /// How many per cent of the questions have no pair of answers.
    pub fn skipped_percent(&self) -> f64 {
        let skipped = u32::try_from(self.no_answer + self.out_of_steps).unwrap_or(u32::MAX);
        100.0 * f64::from(skipped) / f64::from(u32::try_from(self.questions.max(1)).unwrap_or(u32::MAX))
    }

    /// Whether a signal ended it.
    pub fn was_stopped(&self) -> bool {
        self.stopped
    }

    fn count(&mut self, verdict: &Verdict) {
        self.questions += 1;
        match verdict {
            Verdict::Agreed(class) => *self.agreed.entry(class.clone()).or_default() += 1,
            Verdict::NoAnswer(_) => self.no_answer += 1,
            Verdict::OutOfSteps => self.out_of_steps += 1,
            Verdict::Different(_) => self.different += 1,
        }
    }
}

/// The table at the end.
impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let agreed: u64 = self.agreed.values().sum();
        let classes: Vec<String> = self.agreed.iter().map(|(class, count)| format!("{count} {class}")).collect();
        writeln!(formatter, "{:>10}  questions", self.questions)?;
        writeln!(formatter, "{agreed:>10}  agreed: {}", classes.join(", "))?;
        writeln!(formatter, "{:>10}  where Kubernetes has no answer in time", self.no_answer)?;
        writeln!(formatter, "{:>10}  where ours is out of steps", self.out_of_steps)?;
        write!(formatter, "{:>10}  different", self.different)
    }
}

/// Asks the questions from this seed on. What differs is shown at once.
pub fn run(
    subject: &dyn Subject,
    oracle: &mut Oracle,
    seed: u64,
    until: Until,
    stop: &AtomicBool,
    show: &mut dyn FnMut(&str),
) -> Result<Tally, RunError> {
    let started = Instant::now();
    let is_over = |asked: u64| match until {
        Until::Time(time) => started.elapsed() >= time,
        Until::Count(count) => asked >= count,
    };
    let mut progress = Progress::new();
    let mut tally = Tally::default();
    let mut next = seed;
    loop {
        tally.stopped = stop.load(Ordering::SeqCst);
        while oracle.waiting() < AHEAD && !tally.stopped && !is_over(next.wrapping_sub(seed)) {
            oracle.ask(subject.question(next));
            next = next.wrapping_add(1);
        }
        let Some(question) = oracle.question().map(str::to_owned).filter(|_| !tally.stopped) else { break };
        let theirs = oracle.answer()?;
        let mut verdict = subject.judge(&question, &theirs)?;
        if matches!(verdict, Verdict::Different(_)) {
            drain(oracle, &mut next)?;
            if is_chance(subject, oracle, &question)? {
                verdict = Verdict::Agreed("left to chance".to_owned());
            }
        }
        let seed = seed.wrapping_add(tally.questions);
        tally.count(&verdict);
        if let Verdict::Different(kind) = &verdict {
            progress.clear();
            show(&format!("seed {seed}: {kind}"));
            show(&subject.explain(oracle, seed, &question, &theirs)?);
            if tally.different >= MOST_DIFFERENCES {
                break;
            }
        }
        progress.tick(&tally, until, started);
    }
    progress.clear();
    Ok(tally)
}

/// Whether Kubernetes sometimes says what ours says.
fn is_chance(subject: &dyn Subject, oracle: &mut Oracle, question: &str) -> Result<bool, RunError> {
    for _ in 0..AGAIN {
        oracle.ask(question.to_owned());
        if matches!(subject.judge(question, &oracle.answer()?)?, Verdict::Agreed(_)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes back what was asked ahead: the oracle is wanted for something else.
fn drain(oracle: &mut Oracle, next: &mut u64) -> Result<(), RunError> {
    while oracle.waiting() > 0 {
        oracle.answer()?;
        *next = next.wrapping_sub(1);
    }
    Ok(())
}

/// On a terminal one line that changes, elsewhere a line now and then.
struct Progress {
    terminal: bool,
    shown: Instant,
}

impl Progress {
    fn new() -> Self {
        Self { terminal: io::stderr().is_terminal(), shown: Instant::now() }
    }

    fn tick(&mut self, tally: &Tally, until: Until, started: Instant) {
        let pause = Duration::from_millis(if self.terminal { 300 } else { 5000 });
        if self.shown.elapsed() < pause {
            return;
        }
        self.shown = Instant::now();
        let of = match until {
            Until::Time(time) => format!("{} of {} s", started.elapsed().as_secs(), time.as_secs()),
            Until::Count(count) => format!("{} of {count} questions", tally.questions),
        };
        let line = format!("{of}: {} asked, {} different", tally.questions, tally.different);
        // That a line can't be shown is no reason to stop.
        let _ = if self.terminal { write!(io::stderr(), "\r\x1b[K{line}") } else { writeln!(io::stderr(), "{line}") };
    }

    fn clear(&self) {
        if self.terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

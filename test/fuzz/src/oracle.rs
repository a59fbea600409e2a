//! Kubernetes' own code, in a program that answers a line for each line.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// An oracle that can't be asked.
#[derive(Debug, thiserror::Error)]
pub enum OracleError {
    /// It isn't there, or no program.
    #[error("can't start the oracle {program}: {source}")]
    Start {
        /// Its file.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It broke down, or was ended.
    #[error("the oracle {program} ended at the question {question}")]
    Ended {
        /// Its file.
        program: PathBuf,
        /// What it was asked.
        question: String,
    },
}

/// A running oracle.
pub struct Oracle {
    program: PathBuf,
    child: Child,
    questions: Option<Sender<String>>,
    answers: Lines<BufReader<ChildStdout>>,
    waiting: VecDeque<String>,
}

impl Oracle {
    /// Starts the program.
    pub fn start(program: &Path, args: &[&Path]) -> Result<Self, OracleError> {
        let failed = |source| OracleError::Start { program: program.to_owned(), source };
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Not in our group: a Ctrl-C ends the questions, and their end the oracle.
        let mut child = command.process_group(0).spawn().map_err(failed)?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let (questions, next) = channel::<String>();
        // Its pipes hold only so much: who asks ahead has to be able to read meanwhile. When it is gone, its answers end.
        thread::spawn(move || next.into_iter().try_for_each(|line| stdin.write_all(line.as_bytes())));
        Ok(Self {
            program: program.to_owned(),
            child,
            questions: Some(questions),
            answers: BufReader::new(stdout).lines(),
            waiting: VecDeque::new(),
        })
    }

    /// Asks, without waiting for the answer.
    pub fn ask(&mut self, question: String) {
        if let Some(questions) = &self.questions {
            // That nobody takes it shows where the answer is read.
            let _ = questions.send(format!("{question}\n"));
        }
        self.waiting.push_back(question);
    }

    /// How many answers are still to come.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The next question that is waiting; its answer is still to come.
    pub fn question(&self) -> Option<&str> {
        self.waiting.front().map(String::as_str)
    }

    /// The answer to the next question.
    pub fn answer(&mut self) -> Result<String, OracleError> {
        let question = self.waiting.pop_front().unwrap_or_default();
        match self.answers.next() {
            Some(Ok(line)) => Ok(line),
            Some(Err(_)) | None => Err(OracleError::Ended { program: self.program.clone(), question }),
        }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        self.questions = None;
        // It may think for long about what nobody wants to know any more, or be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

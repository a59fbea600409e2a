//! What can go wrong, in words for the person who ran the command.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) enum Error {
    /// The command line is wrong.
    Usage(String),
    /// A file or folder can't be used.
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// A program can't be started.
    Start { program: String, source: io::Error },
    /// A program ended with an error.
    Failed { command: String, status: String, output: String, log: Option<PathBuf> },
    /// A program said something that this one doesn't understand.
    Answer { command: String, why: String },
    /// Something that was waited for didn't come.
    Timeout { what: String, seconds: u64, last: String },
    /// It can't work like this; the text says why and what would help.
    Refused(String),
    /// A signal asked to stop.
    Interrupted,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(why) => write!(f, "{why}\n`cargo xtask help` shows the commands"),
            Self::Io { doing, path, source } => write!(f, "can't {doing} {}: {source}", path.display()),
            Self::Start { program, source } => write!(f, "can't start {program}: {source}"),
            Self::Failed { command, status, output, log } => {
                if !output.trim().is_empty() {
                    writeln!(f, "{}\n", output.trim_end())?;
                }
                write!(f, "`{command}` failed ({status})")?;
                match log {
                    Some(log) => write!(f, "; all of its output: {}", log.display()),
                    None => Ok(()),
                }
            }
            Self::Answer { command, why } => write!(f, "`{command}` gave an answer that can't be read: {why}"),
            Self::Timeout { what, seconds, last } => {
                write!(f, "after {seconds} s still waiting for {what}")?;
                if last.is_empty() { Ok(()) } else { write!(f, ": {last}") }
            }
            Self::Refused(why) => f.write_str(why),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

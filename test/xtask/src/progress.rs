//! What a waiting person sees: on a terminal one line that changes, elsewhere a line now and then.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Nobody needs to be told that something takes less.
const QUIET: Duration = Duration::from_secs(2);
/// How often a log that nobody may be watching gets a line.
const EVERY: Duration = Duration::from_secs(15);
const WIDTH: usize = 110;

pub(crate) struct Progress {
    title: String,
    started: Instant,
    next: Duration,
    to: To,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Terminal,
    Log,
    Nobody,
}

impl Progress {
    pub(crate) fn start(title: &str) -> Self {
        let to = if std::io::stderr().is_terminal() { To::Terminal } else { To::Log };
        Self { title: title.to_owned(), started: Instant::now(), next: QUIET, to }
    }

    /// For work in the background: the foreground has the line.
    pub(crate) fn silent(title: &str) -> Self {
        Self { to: To::Nobody, ..Self::start(title) }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// To be called often; `detail` says what is going on just now.
    pub(crate) fn tick(&mut self, detail: impl FnOnce() -> String) {
        let elapsed = self.elapsed();
        if elapsed < self.next {
            return;
        }
        let line = || shortened(&format!("...  {} {}  {}", self.title, clock(elapsed), detail()));
        match self.to {
            To::Terminal => {
                self.next = elapsed + Duration::from_millis(500);
                let line = line();
                // Without wrapping, so that it stays one line on a narrow terminal. That a line can't be shown is no reason
                // to stop the work.
                let _ = write!(std::io::stderr(), "\r\x1b[K\x1b[?7l{line}\x1b[?7h");
            }
            To::Log => {
                self.next = if self.next == QUIET { EVERY } else { self.next + EVERY };
                eprintln!("{}", line());
            }
            To::Nobody => {}
        }
    }

    /// The last line.
    pub(crate) fn end(&self, ok: bool) {
        let clear = match self.to {
            To::Terminal => "\r\x1b[K",
            To::Log => "",
            To::Nobody => return,
        };
        let word = if ok { "ok  " } else { "FAIL" };
        eprintln!("{clear}{word} {} {}", self.title, clock(self.elapsed()));
    }
}

fn shortened(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).take(WIDTH).collect()
}

/// `4.2s`, `3m07s`.
pub(crate) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 { format!("{:.1}s", time.as_secs_f32()) } else { format!("{}m{:02}s", seconds / 60, seconds % 60) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(clock(Duration::from_millis(4240)), "4.2s");
        assert_eq!(clock(Duration::from_secs(187)), "3m07s");
    }

    #[test]
    fn a_line_stays_one_line() {
        let line = shortened(&format!("a\u{1b}[1m\n{}", "x".repeat(200)));
        assert_eq!(line.len(), WIDTH);
        assert!(line.starts_with("a[1mx"));
    }
}

//! Other programs: started, watched, and ended when it is time to stop.
//!
//! A child has a process group of its own, so that a signal reaches all that it started, once. Should this process be
//! killed, the kernel tells the child (by `setpriv`, since asking for that here would need unsafe code).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::signals;

/// How long a child that was asked to end may take: `cluster` and `go` clean up after themselves.
const PATIENCE: Duration = Duration::from_secs(20);

/// A program with its arguments.
#[derive(Clone)]
pub(crate) struct Program {
    name: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
    input: Option<Vec<u8>>,
    cleanup: bool,
}

impl Program {
    pub(crate) fn new(name: impl AsRef<OsStr>) -> Self {
        Self {
            name: name.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            dir: None,
            input: None,
            cleanup: false,
        }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn envs<V: AsRef<OsStr>>(self, values: impl IntoIterator<Item = (&'static str, V)>) -> Self {
        values.into_iter().fold(self, |program, (name, value)| program.env(name, value))
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.to_owned());
        self
    }

    pub(crate) fn input(mut self, bytes: Vec<u8>) -> Self {
        self.input = Some(bytes);
        self
    }

    /// Runs although a signal has come: it is what the signal asked for. One more signal ends it.
    pub(crate) fn cleanup(mut self) -> Self {
        self.cleanup = true;
        self
    }

    /// As a person would type it.
    pub(crate) fn shown(&self) -> String {
        let name = Path::new(&self.name).file_name().unwrap_or(&self.name);
        let mut shown = name.to_string_lossy().into_owned();
        for arg in &self.args {
            shown.push(' ');
            shown.push_str(&arg.to_string_lossy());
        }
        shown
    }

    fn command(&self, guarded: bool) -> Command {
        let mut command = match (guarded, setpriv()) {
            (true, Some(setpriv)) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "SIGTERM", "--"]).arg(&self.name);
                command
            }
            _ => Command::new(&self.name),
        };
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
    }

    fn spawn(&self, stdout: Stdio, stderr: Stdio) -> Result<Child> {
        if find(&self.name).is_none() {
            let source = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(Error::Start { program: self.name.to_string_lossy().into_owned(), source });
        }
        let stdin = if self.input.is_some() { Stdio::piped() } else { Stdio::null() };
        let mut command = self.command(true);
        command.stdin(stdin).stdout(stdout).stderr(stderr).process_group(0);
        let mut child = command
            .spawn()
            .map_err(|source| Error::Start { program: self.name.to_string_lossy().into_owned(), source })?;
        if let (Some(input), Some(mut stdin)) = (self.input.clone(), child.stdin.take()) {
            // A program that doesn't read all of it says why by its exit status.
            thread::spawn(move || stdin.write_all(&input));
        }
        Ok(child)
    }

    /// What the program writes to stdout; its stderr is part of the error.
    pub(crate) fn output(&self) -> Result<String> {
        self.output_while(&mut || {})
    }

    fn output_while(&self, tick: &mut dyn FnMut()) -> Result<String> {
        let mut child = self.spawn(Stdio::piped(), Stdio::piped())?;
        let stdout = reader(child.stdout.take());
        let stderr = reader(child.stderr.take());
        let status = wait(&mut child, self.cleanup, tick)?;
        let stdout = stdout.join().unwrap_or_default();
        let stderr = stderr.join().unwrap_or_default();
        if status.success() { Ok(stdout) } else { Err(self.failed(status, format!("{stdout}{stderr}"), None)) }
    }

    fn failed(&self, status: ExitStatus, output: String, log: Option<PathBuf>) -> Error {
        let status = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => status.to_string(),
        };
        Error::Failed { command: self.shown(), status, output, log }
    }

    /// Becomes the program: its input, output, signals and exit code are the caller's.
    pub(crate) fn become_it(&self) -> Error {
        let source = self.command(false).exec();
        Error::Start { program: self.name.to_string_lossy().into_owned(), source }
    }
}

fn reader(stream: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // What could be read is still worth showing.
            let _ = stream.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for a child, and ends it when it is time to stop: politely at first, then (or at one more signal) not.
fn wait(child: &mut Child, cleanup: bool, tick: &mut dyn FnMut()) -> Result<ExitStatus> {
    let seen = signals::count();
    let stop = || if cleanup { signals::count() > seen } else { signals::stop() };
    let group = Pid::from_child(child);
    let mut asked: Option<(Instant, usize)> = None;
    let mut pause = Duration::from_millis(1);
    loop {
        let status = child
            .try_wait()
            .map_err(|source| Error::Start { program: format!("the child with pid {}", child.id()), source })?;
        if let Some(status) = status {
            return if asked.is_some() { Err(Error::Interrupted) } else { Ok(status) };
        }
        match asked {
            None if stop() => {
                // It may have ended just now; then there is nobody to tell.
                let _ = kill_process_group(group, Signal::INT);
                asked = Some((Instant::now(), signals::count()));
            }
            Some((since, count)) if since.elapsed() > PATIENCE || signals::count() > count => {
                let _ = kill_process_group(group, Signal::KILL);
            }
            _ => tick(),
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn setpriv() -> Option<&'static Path> {
    static SETPRIV: OnceLock<Option<PathBuf>> = OnceLock::new();
    SETPRIV.get_or_init(|| find(OsStr::new("setpriv"))).as_deref()
}

/// Where a program is, if it is there.
pub(crate) fn find(name: &OsStr) -> Option<PathBuf> {
    if Path::new(name).components().count() > 1 {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// One thing that a person waits for: a title, a log file for the noise, and the programs it takes.
pub(crate) struct Step {
    progress: Progress,
    log: PathBuf,
}

/// Does the work and says how it went.
pub(crate) fn step<T>(title: &str, log: &Path, work: impl FnOnce(&mut Step) -> Result<T>) -> Result<T> {
    Step { progress: Progress::start(title), log: log.to_owned() }.finish(work)
}

/// The same, unseen.
pub(crate) fn hidden_step<T>(title: &str, log: &Path, work: impl FnOnce(&mut Step) -> Result<T>) -> Result<T> {
    Step { progress: Progress::silent(title), log: log.to_owned() }.finish(work)
}

impl Step {
    fn finish<T>(mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(dir) = self.log.parent() {
            fs::create_dir_all(dir).map_err(Error::io("make", dir))?;
        }
        File::create(&self.log).map_err(Error::io("write", &self.log))?;
        let result = work(&mut self);
        self.progress.end(result.is_ok());
        result
    }

    /// Runs a program; what it prints goes to the step's log.
    pub(crate) fn run(&mut self, program: &Program) -> Result<()> {
        let mut log = OpenOptions::new().append(true).open(&self.log).map_err(Error::io("write", &self.log))?;
        writeln!(log, "$ {}", program.shown()).map_err(Error::io("write", &self.log))?;
        let err = log.try_clone().map_err(Error::io("write", &self.log))?;
        let mut child = program.spawn(Stdio::from(log), Stdio::from(err))?;
        let (progress, log) = (&mut self.progress, &self.log);
        let status = wait(&mut child, program.cleanup, &mut || progress.tick(|| last_line(log)))?;
        if status.success() {
            return Ok(());
        }
        let output = [tail(&self.log, 60), panics(&self.log)].join("\n\n");
        Err(program.failed(status, output, Some(self.log.clone())))
    }

    /// Runs a program and gives back what it says.
    pub(crate) fn output(&mut self, program: &Program) -> Result<String> {
        let progress = &mut self.progress;
        program.output_while(&mut || progress.tick(String::new))
    }

    /// Asks again and again, until there is an answer. `ask` returns what it is still waiting for.
    pub(crate) fn wait_for<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut ask: impl FnMut(&mut Self) -> Result<std::result::Result<T, String>>,
    ) -> Result<T> {
        let started = Instant::now();
        loop {
            signals::check()?;
            let last = match ask(self)? {
                Ok(answer) => return Ok(answer),
                Err(last) => last,
            };
            if started.elapsed() > limit {
                return Err(Error::Timeout { what: what.to_owned(), seconds: limit.as_secs(), last });
            }
            self.pause(Duration::from_millis(500), &last)?;
        }
    }

    /// Lets some time pass.
    pub(crate) fn pause(&mut self, time: Duration, detail: &str) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < time {
            signals::check()?;
            self.progress.tick(|| detail.to_owned());
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// So much is shown of tests that failed.
const MOST_PANICS: usize = 20;
const LINES_OF_A_PANIC: usize = 4;
const CHARS_OF_A_LINE: usize = 400;

/// The end of a log.
pub(crate) fn tail(log: &Path, lines: usize) -> String {
    let text = end_of(log, 64 * 1024);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Why tests failed: what each said first. That may be far up in the log, under what was said of the cluster since.
fn panics(log: &Path) -> String {
    let text = end_of(log, 16 * 1024 * 1024);
    let mut lines = text.lines();
    let mut found: Vec<String> = Vec::new();
    while let Some(line) = lines.find(|line| line.starts_with("thread '") && line.contains(" panicked at ")) {
        let is_message = |line: &&str| !line.starts_with("stack backtrace:") && !line.starts_with("note:");
        let message = lines.clone().take_while(is_message).take(LINES_OF_A_PANIC);
        let cut = |line: &str| line.chars().take(CHARS_OF_A_LINE).collect();
        let said: Vec<String> = std::iter::once(line).chain(message).map(cut).collect();
        found.push(said.join("\n"));
    }
    found.truncate(MOST_PANICS);
    found.join("\n")
}

pub(crate) fn last_line(log: &Path) -> String {
    end_of(log, 2048).lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

fn end_of(log: &Path, bytes: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
        let mut end = Vec::new();
        file.read_to_end(&mut end)?;
        Ok(end)
    };
    // The log is only shown; a log that can't be read must not hide the error that it is shown for.
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_input() {
        let text = Program::new("cat").input(b"one\ntwo\n".to_vec()).output().unwrap();
        assert_eq!(text, "one\ntwo\n");
    }

    #[test]
    fn a_failure_names_the_command_and_shows_its_output() {
        let error = Program::new("sh").args(["-c", "echo oh dear >&2; exit 7"]).output().unwrap_err().to_string();
        assert!(error.contains("oh dear") && error.contains("exit code 7") && error.contains("sh -c"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Program::new("no-such-program").output().unwrap_err().to_string();
        assert!(error.contains("no-such-program"), "{error}");
    }

    #[test]
    fn a_step_logs_what_its_programs_print() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("logs/step.log");
        let error = step("step", &log, |step| {
            step.run(&Program::new("echo").arg("first"))?;
            step.run(&Program::new("sh").args(["-c", "echo second; exit 1"]))
        })
        .unwrap_err();
        assert_eq!(fs::read_to_string(&log).unwrap(), "$ echo first\nfirst\n$ sh -c echo second; exit 1\nsecond\n");
        assert!(error.to_string().contains(&log.display().to_string()), "{error}");
        assert_eq!(last_line(&log), "second");
        assert_eq!(tail(&log, 2), "$ sh -c echo second; exit 1\nsecond");
    }

    #[test]
    fn why_a_test_failed_is_said_last() {
        let dir = tempfile::tempdir().unwrap();
        let (log, output) = (dir.path().join("log"), dir.path().join("output"));
        let panic =
            "thread 'a::b' (7) panicked at x.rs:1:2:\nnot after 120s: it is there\nstack backtrace:\n 0: frame\n";
        let rest: Vec<String> = (0..100).map(|line| format!("line {line}\n")).collect();
        fs::write(&output, [panic, &rest.concat()].concat()).unwrap();
        let error =
            step("step", &log, |step| step.run(&Program::new("sh").args(["-c", "cat $0; exit 101"]).arg(&output)));
        let error = error.unwrap_err().to_string();
        let said = "line 99\n\nthread 'a::b' (7) panicked at x.rs:1:2:\nnot after 120s: it is there\n\n`sh";
        assert!(error.contains(said), "{error}");
    }

    #[test]
    fn a_step_gives_input() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        step("step", &log, |step| step.run(&Program::new("cat").input(b"said".to_vec()))).unwrap();
        assert_eq!(last_line(&log), "said");
    }

    #[test]
    fn waiting_ends_with_what_was_missing() {
        let dir = tempfile::tempdir().unwrap();
        let error = step("step", &dir.path().join("log"), |step| {
            step.wait_for::<()>("the moon", Duration::ZERO, |_| Ok(Err("it is day".to_owned())))
        })
        .unwrap_err()
        .to_string();
        assert!(error.contains("the moon") && error.contains("it is day"), "{error}");
    }
}

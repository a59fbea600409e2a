//! Programs that end with us, whatever ends us.
//!
//! The kernel kills a child when the thread that started it ends (by `setpriv`, since asking for that here would need unsafe code).
//! Tests come and go in threads of their own, so one thread that stays starts them all.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

type Job = (Command, Sender<std::io::Result<Child>>);

static STARTER: LazyLock<Mutex<Sender<Job>>> = LazyLock::new(|| {
    let (jobs, todo) = channel::<Job>();
    thread::spawn(move || {
        for (mut command, started) in todo {
            // Nobody waits for it any more: fine.
            let _ = started.send(command.spawn());
        }
    });
    Mutex::new(jobs)
});

/// A running program, whose output goes to a file.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// The words in front of a program that make it end with its parent.
pub(crate) const GUARD: [&str; 4] = ["setpriv", "--pdeathsig", "KILL", "--"];

impl Process {
    /// Starts a program. `log` is appended to.
    pub fn start<A: AsRef<OsStr>>(
        words: impl IntoIterator<Item = A>,
        environment: &[(&str, &OsStr)],
        log: &Path,
    ) -> Self {
        let words: Vec<_> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        let name = Path::new(&words[0]).file_name().unwrap().to_string_lossy().into_owned();
        let file = OpenOptions::new().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(GUARD[0]);
        command
            .args(&GUARD[1..])
            .args(words)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(File::try_clone(&file).unwrap())
            .stderr(file);
        let (started, child) = channel();
        STARTER.lock().unwrap().send((command, started)).unwrap();
        let child = child.recv().unwrap().unwrap_or_else(|error| panic!("{name} can't be started: {error}"));
        Self { name, child, log: log.to_owned() }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap_or_else(|error| panic!("{} can't be signalled: {error}", self.name));
    }

    /// Kills it as no program can be prepared for.
    pub fn kill(&mut self) {
        // An error says that it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + crate::PATIENCE;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < end, "{} doesn't end; it says:\n{}", self.name, self.output());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// What it and those before it have said into its log.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

//! A process of the node plugin, and what can be seen of it from outside.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::ExitStatus;

use rustix::process::Signal;

use crate::process::Process;

/// A running plugin.
#[derive(Debug)]
pub struct Plugin {
    pub(crate) process: Process,
    pub(crate) port: u16,
}

/// Memory of a process that is in RAM, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// All of it.
    pub resident: u64,
    /// What is no file's.
    pub anonymous: u64,
}

impl Plugin {
    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it has said into its log.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Waits until it has ended by itself, or by what a test has set on it.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    /// Asks it to end, and doesn't wait.
    pub fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Asks it to end, and expects it to do so without error.
    pub fn stop(mut self) {
        self.terminate();
        let status = self.wait();
        assert!(status.success(), "the plugin ended with {status}");
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Whether it has ended, and nobody has asked how.
    pub(crate) fn has_ended(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
    }

    /// Its memory.
    pub fn memory(&self) -> Memory {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let bytes = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
            line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
        };
        Memory { resident: bytes("VmRSS:"), anonymous: bytes("RssAnon:") }
    }

    /// How many descriptors it has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Status and text of what it serves over HTTP.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: plugin\r\nConnection: close\r\n\r\n").as_bytes())
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// The sum of a metric over all its labels that hold this text.
    pub fn metric(&self, name: &str, labels: &str) -> f64 {
        let (_, text) = self.get("/metrics").expect("the plugin's metrics");
        let of_metric = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        let values = of_metric
            .filter(|line| line.contains(labels))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
        let values: Vec<f64> = values.collect();
        assert!(!values.is_empty(), "no {name} with {labels} in:\n{text}");
        values.iter().sum()
    }
}

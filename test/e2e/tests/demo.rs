//! `cargo xtask demo`, as people use it: the first time, again, interrupted, killed, and stopped. `cargo xtask test demo` runs this.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;

use rustix::process::{Pid, Signal, kill_process};

/// There is one demo cluster.
static TURN: Mutex<()> = Mutex::new(());

fn state() -> PathBuf {
    std::env::var_os("ALIQUOT_STATE").map_or_else(|| PathBuf::from("/var/tmp/aliquot"), PathBuf::from)
}

fn xtask(args: &[&str]) -> Command {
    let program = std::env::var_os("ALIQUOT_XTASK").expect("ALIQUOT_XTASK is set by `cargo xtask test demo`");
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs to the end. Gives what it printed on stdout.
fn run(args: &[&str]) -> String {
    let output = xtask(args).stderr(Stdio::piped()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Starts the demo and sends it a signal when its progress says `moment`.
fn demo_until(moment: &str, signal: Signal) -> ExitStatus {
    let mut child: Child = xtask(&["demo"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&child);
    let mut said = String::new();
    let mut sent = false;
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if !sent && line.contains(moment) {
            kill_process(pid, signal).unwrap();
            sent = true;
        }
        said += &(line + "\n");
        // Who is killed leaves children that hold the pipe.
        if sent && signal == Signal::KILL {
            break;
        }
    }
    assert!(sent, "it never said {moment:?}:\n{said}");
    child.wait().unwrap()
}

/// What is left of a cluster on this machine.
fn left() -> Vec<String> {
    let mut left = Vec::new();
    let demo = state().join("demo");
    left.extend(demo.exists().then(|| format!("folder {}", demo.display())));
    let demo = demo.to_string_lossy().into_owned();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let is_process = process.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit());
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if is_process && (command.contains(&demo) || command.contains("/run/test-cluster/")) {
            left.push(format!("process {}", command.trim()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    left.extend(mounts.lines().filter(|line| line.contains(&demo)).map(|line| format!("mount {line}")));
    let interfaces = fs::read_dir("/sys/class/net").unwrap().flatten().map(|entry| entry.file_name());
    let ours = interfaces.filter(|name| name.to_string_lossy().starts_with("aq"));
    left.extend(ours.map(|name| format!("interface {}", name.display())));
    cgroups(Path::new("/sys/fs/cgroup"), 2, &mut left);
    left
}

fn cgroups(folder: &Path, depth: usize, left: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        if entry.file_name().to_string_lossy().contains("aliquot") {
            left.push(format!("cgroup {}", entry.path().display()));
        } else if depth > 0 {
            cgroups(&entry.path(), depth - 1, left);
        }
    }
}

fn stop() {
    run(&["demo", "stop"]);
    assert_eq!(left(), Vec::<String>::new());
}

#[test]
fn it_shows_pods_with_their_gpus_each_time_and_leaves_nothing() {
    let _turn = TURN.lock();
    stop();
    for _ in 0..2 {
        let shown = run(&["demo"]);
        for expected in ["POD", "SEES", "one-gpu", "node-", "gpu-0", "H100", "GPU-", "export KUBECONFIG=", "demo stop"]
        {
            assert!(shown.contains(expected), "no {expected} in:\n{shown}");
        }
        let slices = run(&["kubectl", "get", "resourceslices", "--output", "name"]);
        assert_eq!(slices.lines().count(), 2, "{slices}");
    }
    assert_ne!(left(), Vec::<String>::new(), "what is looked for is what a cluster leaves");
    stop();
    stop();
}

#[test]
fn it_ends_cleanly_when_interrupted_and_starts_cleanly_after_anything() {
    let _turn = TURN.lock();
    stop();
    assert_eq!(demo_until("start the cluster", Signal::INT).code(), Some(130));
    assert_eq!(left(), Vec::<String>::new());

    // Killed, it can't clean up.
    demo_until("start the cluster", Signal::KILL);
    assert_eq!(demo_until("install the chart", Signal::INT).code(), Some(130));
    let shown = run(&["demo"]);
    assert!(shown.contains("SEES"), "{shown}");
    stop();
}

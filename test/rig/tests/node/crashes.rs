//! kill -9 at every system call that touches the plugin's files: of a prepare, of an unprepare, of a start.
//!
//! strace first records which calls there are, then kills the process as it enters the first of them, the second, and so on. Whatever
//! was done up to there is on disk, whatever would have come isn't.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_rig::{Claim, Node, Plugin, Process, eventually, variable};

use crate::{start, test, traces};

/// The calls that change files, or open them to be changed.
const CALLS: &str = "trace=openat,openat2,creat,write,writev,pwrite64,fsync,fdatasync,ftruncate,fallocate,rename,renameat,\
                     renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat,mknodat,chmod,fchmod,fchmodat";

/// A place to die at: as the process enters one of these calls on one of these files for the `count`-th time.
#[derive(Debug, Clone)]
struct Point {
    call: String,
    count: usize,
    /// strace counts for each thread, so these are what one thread touches.
    files: BTreeSet<String>,
}

/// What strace wrote with `-f -y`: `1234  rename("/a/b", "/a/c") = 0`, `1234  write(5</a/b>, …`.
fn points(recording: &str, folders: &[PathBuf]) -> Vec<Point> {
    let mut threads = BTreeMap::<&str, Vec<(&str, Vec<String>)>>::new();
    for line in recording.lines() {
        let Some((thread, rest)) = line.split_once(char::is_whitespace) else { continue };
        // The second half of a call that another thread's came between.
        if rest.trim().starts_with("<...") {
            continue;
        }
        let starts = folders.iter().flat_map(|folder| {
            let folder = folder.to_str().unwrap();
            line.match_indices(folder).map(|(at, _)| at).collect::<Vec<_>>()
        });
        let files = starts.filter_map(|at| line[at..].split(['"', '>']).next()).map(str::to_owned).collect();
        threads.entry(thread).or_default().push((rest.trim(), files));
    }
    let is_change = |line: &str| {
        !line.starts_with("openat") || ["O_CREAT", "O_WRONLY", "O_RDWR"].iter().any(|flag| line.contains(flag))
    };
    let mut points = Vec::new();
    for lines in threads.values() {
        let changes = lines.iter().filter(|(line, _)| is_change(line));
        let changed: BTreeSet<String> = changes.flat_map(|(_, files)| files.clone()).collect();
        let mut counts = BTreeMap::new();
        for (line, _) in lines.iter().filter(|(_, files)| files.iter().any(|file| changed.contains(file))) {
            let call = line.split('(').next().unwrap_or_default().to_owned();
            let count = counts.entry(call.clone()).or_insert(0);
            *count += 1;
            points.push(Point { call, count: *count, files: changed.clone() });
        }
    }
    points
}

impl Point {
    /// strace's arguments to die here, where `from` in the files' names is now `to`.
    fn arguments(&self, from: &str, to: &str) -> Vec<String> {
        let files = self.files.iter().flat_map(|file| ["-P".to_owned(), file.replace(from, to)]);
        let kill = format!("inject={}:signal=SIGKILL:when={}", self.call, self.count);
        files.chain(["-e".to_owned(), kill]).collect()
    }
}

/// Without these, a test of crashes would test little.
fn assert_have(points: &[Point], calls: &[&str]) {
    for call in calls {
        assert!(points.iter().any(|point| point.call.starts_with(call)), "no {call}: {points:#?}");
    }
}

/// strace's words up to its more special arguments.
fn strace(node: &Node) -> Vec<String> {
    let output = node.path("calls");
    // A recording is read as a whole.
    let _ = fs::remove_file(&output);
    ["strace", "-f", "-y", "-o", &output.display().to_string(), "-e", CALLS].map(str::to_owned).to_vec()
}

fn recorded(node: &Node) -> Vec<Point> {
    points(&fs::read_to_string(node.path("calls")).unwrap(), &[node.kubelet_root(), node.path("cdi")])
}

/// strace on a running plugin, once it has hold of it.
async fn attach(node: &Node, plugin: &Plugin, arguments: Vec<String>) -> Process {
    let log = node.path("strace.log");
    fs::write(&log, "").unwrap();
    let target = ["-p".to_owned(), plugin.pid().to_string()];
    let strace = Process::start(strace(node).into_iter().chain(target).chain(arguments), &[], &log);
    eventually("strace is attached", async || strace.output().contains("attached").then_some(())).await;
    strace
}

/// Half written files, and sockets of the dead.
fn rubbish(node: &Node, alive: &str) -> Vec<PathBuf> {
    let is_rubbish = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with('.') || (path.extension() == Some("sock".as_ref()) && !name.contains(alive))
    };
    node.files().into_iter().map(|(path, _)| path).filter(is_rubbish).collect()
}

/// The CDI file that all claims share.
fn driver_spec(node: &Node) -> Vec<(PathBuf, Vec<u8>)> {
    let is_shared = |path: &Path| path.starts_with(node.path("cdi")) && !path.display().to_string().contains("claim");
    node.files().into_iter().filter(|(path, _)| is_shared(path)).collect()
}

/// The next prepare has to write it.
fn forget_driver_spec(node: &Node) {
    for (path, _) in driver_spec(node) {
        fs::remove_file(path).unwrap();
    }
}

/// The files of a claim, without what is only its own.
fn content(node: &Node, claim: &Claim) -> Vec<String> {
    let of_claim = node.files().into_iter().filter(|(path, _)| path.display().to_string().contains(&claim.uid));
    of_claim.map(|(_, content)| String::from_utf8(content).unwrap().replace(&claim.uid, "UID")).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Prepare,
    Unprepare,
}

async fn crash_at_every_step(node: &Node, operation: Operation) {
    let (mut plugin, mut dra) = start(node, "p-first").await;
    node.published(8).await;
    let bystander = node.allocate("bystander", &["gpu-7"]).await;
    let of_bystander = dra.prepare_one(&bystander).await.unwrap();
    let (files_of_bystander, driver_files) = (content(node, &bystander), driver_spec(node));
    assert_eq!(driver_files.len(), 1);

    let example = node.allocate("example", &["gpu-0"]).await;
    if operation == Operation::Unprepare {
        dra.prepare_one(&example).await.unwrap();
    }
    forget_driver_spec(node);
    let mut recorder = attach(node, &plugin, Vec::new()).await;
    let spec = match operation {
        Operation::Prepare => {
            dra.prepare_one(&example).await.unwrap();
            node.cdi_file(&example)
        }
        Operation::Unprepare => {
            let spec = node.cdi_file(&example);
            dra.unprepare_one(&example).await.unwrap();
            spec
        }
    };
    recorder.kill();
    let spec = spec.unwrap().to_string().replace(&example.uid, "UID");
    dra.unprepare_one(&example).await.unwrap();
    let points = recorded(node);
    match operation {
        Operation::Prepare => assert_have(&points, &["openat", "write", "fsync", "rename"]),
        Operation::Unprepare => assert_have(&points, &["unlink", "fsync"]),
    }

    for (number, point) in points.iter().enumerate() {
        let at = format!("after a crash at {} {} ({number})", point.call, point.count);
        let claim = node.allocate(&format!("claim-{number}"), &["gpu-0"]).await;
        if operation == Operation::Unprepare {
            dra.prepare_one(&claim).await.unwrap();
        }
        forget_driver_spec(node);
        let killer = attach(node, &plugin, point.arguments(&example.uid, &claim.uid)).await;
        match operation {
            Operation::Prepare => dra.prepare_one(&claim).await.map(drop),
            Operation::Unprepare => dra.unprepare_one(&claim).await,
        }
        .expect_err("the plugin was killed");
        assert!(!plugin.wait().success());
        drop(killer);

        let instance = format!("p-{number}");
        (plugin, dra) = start(node, &instance).await;
        let left = traces(node, &claim);
        assert!(left.is_empty() || left.len() == 2, "{at}: {left:?}");
        assert_eq!(rubbish(node, &instance), Vec::<PathBuf>::new(), "{at}");
        if operation == Operation::Prepare {
            let devices = dra.prepare_one(&claim).await.unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(devices.len(), 1, "{at}");
            let found = node.cdi_file(&claim).expect("a CDI file").to_string().replace(&claim.uid, "UID");
            assert_eq!(found, spec, "{at}");
            assert_eq!(driver_spec(node), driver_files, "{at}");
        }
        dra.unprepare_one(&claim).await.unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(traces(node, &claim), Vec::<String>::new(), "{at}");
        assert_eq!(rubbish(node, &instance), Vec::<PathBuf>::new(), "{at}");
        assert_eq!(content(node, &bystander), files_of_bystander, "{at}");
    }
    assert_eq!(dra.prepare_one(&bystander).await.unwrap(), of_bystander);
    println!("{} crashes", points.len());
}

#[test]
fn prepare_survives_a_crash_at_every_step() {
    test(async |node| crash_at_every_step(node, Operation::Prepare).await);
}

#[test]
fn unprepare_survives_a_crash_at_every_step() {
    test(async |node| crash_at_every_step(node, Operation::Unprepare).await);
}

/// A start with everything to do: nothing installed, a claim that lost its CDI file, one that lost its claim file, a half written file.
#[test]
fn a_start_survives_a_crash_at_every_step() {
    test(async |node| {
        let (mut plugin, dra) = start(node, "p-first").await;
        node.published(8).await;
        let [whole, bare, orphan] = [("whole", "gpu-0"), ("bare", "gpu-1"), ("orphan", "gpu-2")];
        let whole = node.allocate(whole.0, &[whole.1]).await;
        let bare = node.allocate(bare.0, &[bare.1]).await;
        let orphan = node.allocate(orphan.0, &[orphan.1]).await;
        let mut answers = Vec::new();
        for claim in [&whole, &bare, &orphan] {
            answers.push(dra.prepare_one(claim).await.unwrap());
        }
        plugin.kill();
        let expected = [content(node, &whole), content(node, &bare)];
        let of = |claim: &Claim, below: &str| {
            let file = traces(node, claim).into_iter().find(|path| path.contains(below));
            PathBuf::from(file.expect("a file of the claim"))
        };
        fs::remove_file(of(&bare, "/cdi/")).unwrap();
        fs::remove_file(of(&orphan, "/claims/")).unwrap();
        fs::write(node.plugin_folder().join(format!("claims/.{}.json.new", orphan.uid)), "{\"form").unwrap();
        for name in ["gpus.json", "aliquot-cdi-hook"] {
            fs::remove_file(node.plugin_folder().join(name)).unwrap();
        }
        let folders = [node.kubelet_root(), node.path("cdi")];
        let seeds = [node.path("seed-kubelet"), node.path("seed-cdi")];
        copy(&folders, &seeds);

        // What a whole start does: this one's end is only waited for.
        let recorder = node.start_plugin_under(&strace(node), "p");
        eventually("the traced plugin is up", async || is_up(node, &recorder).then_some(())).await;
        drop(recorder);
        let points = recorded(node);
        assert_have(&points, &["openat", "write", "fsync", "rename", "unlink"]);

        let program = fs::read(variable("ALIQUOT_HOOK")).unwrap();
        for (number, point) in points.iter().enumerate() {
            let at = format!("after a crash at {} {} ({number})", point.call, point.count);
            copy(&seeds, &folders);
            let words: Vec<String> = strace(node).into_iter().chain(point.arguments("", "")).collect();
            assert!(!node.start_plugin_under(&words, "p").wait().success());

            let (plugin, dra) = start(node, "q").await;
            eventually("the plugin is up", async || is_up(node, &plugin).then_some(())).await;
            assert_eq!(rubbish(node, "q.sock"), Vec::<PathBuf>::new(), "{at}");
            assert_eq!([content(node, &whole), content(node, &bare)], expected, "{at}");
            assert_eq!(traces(node, &orphan), Vec::<String>::new(), "{at}");
            assert_eq!(fs::read(node.plugin_folder().join("aliquot-cdi-hook")).unwrap(), program, "{at}");
            for (claim, answer) in [&whole, &bare, &orphan].into_iter().zip(&answers) {
                assert_eq!(&dra.prepare_one(claim).await.unwrap(), answer, "{at}");
            }
            drop(plugin);
        }
        println!("{} crashes", points.len());
    });
}

/// Whether it has looked at the GPUs and can be found.
fn is_up(node: &Node, plugin: &Plugin) -> bool {
    let has_looked = plugin.get("/metrics").is_some_and(|(_, text)| text.contains("aliquot_gpu_info{"));
    has_looked && node.kubelet.sockets().iter().any(|socket| UnixStream::connect(socket).is_ok())
}

/// Replaces folders by others' content.
fn copy(from: &[PathBuf; 2], to: &[PathBuf; 2]) {
    for (from, to) in from.iter().zip(to) {
        if to.exists() {
            fs::remove_dir_all(to).unwrap();
        }
        let status = Command::new("cp").arg("--archive").args([from, to]).status().unwrap();
        assert!(status.success());
    }
}

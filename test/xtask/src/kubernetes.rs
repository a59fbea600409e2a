//! Kubernetes, containerd and the CNI plugins, built from their Go modules once per machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::paths::{Paths, digest, list, read};
use crate::process::{Program, Step, find, hidden_step, last_line, step};
use crate::signals;

const TITLE: &str = "build Kubernetes and containerd (the first time about 15 minutes)";
/// What containerd would need C libraries for.
const TAGS: &str = "no_btrfs,no_devmapper,no_zfs";
const KUBERNETES: &str = "k8s.io/kubernetes";

/// Go as this project runs it: what it builds depends on nothing of the machine.
pub(crate) fn go(paths: &Paths) -> Program {
    Program::new("go")
        .dir(&paths.harness())
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .env("GOFLAGS", "-buildvcs=false")
}

/// The folder of built programs that fits this checkout; it may not be there yet.
fn entry(paths: &Paths) -> Result<PathBuf> {
    let module = paths.harness();
    let mut files = vec![module.join("go.mod"), module.join("go.sum")];
    files.extend(list(&module.join("kube"))?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "go")));
    if find("go".as_ref()).is_none() {
        return Err(Error::Refused(
            "Go isn't on the PATH; test/cluster/go.mod says which version is needed".to_owned(),
        ));
    }
    let mut inputs = go(paths).arg("version").output()?.into_bytes();
    for file in files {
        inputs.extend(read(&file)?.into_bytes());
        inputs.push(0);
    }
    for (name, args) in programs(&module)? {
        inputs.extend(format!("{name} {args:?}\n").into_bytes());
    }
    Ok(paths.cache.join(format!("kubernetes-{}", &digest(inputs)?[..16])))
}

/// Each program with the arguments of `go build`.
fn programs(module: &Path) -> Result<Vec<(String, Vec<String>)>> {
    let file = module.join("go.mod");
    let text = read(&file)?;
    let version = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(KUBERNETES)?.trim().strip_prefix('v'))
        .ok_or_else(|| Error::Refused(format!("{} doesn't require {KUBERNETES}", file.display())))?;
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let set = "-X k8s.io/component-base/version";
    let flags = format!("-s -w {set}.gitVersion=v{version} {set}.gitMajor={major} {set}.gitMinor={minor}");
    let mut programs = vec![("kube".to_owned(), vec!["-ldflags".to_owned(), flags, "./kube".to_owned()])];
    for path in tools(&text) {
        let name = path.rsplit('/').next().unwrap_or(path);
        let args = ["-tags", TAGS, "-ldflags", "-s -w", path].map(str::to_owned).to_vec();
        programs.push((name.to_owned(), args));
    }
    Ok(programs)
}

/// The import paths of go.mod's tools.
fn tools(go_mod: &str) -> Vec<&str> {
    let mut inside = false;
    let mut tools = Vec::new();
    for line in go_mod.lines().map(str::trim) {
        match line {
            "tool (" => inside = true,
            ")" => inside = false,
            _ if inside && !line.is_empty() && !line.starts_with("//") => tools.push(line),
            _ => tools.extend(line.strip_prefix("tool ")),
        }
    }
    tools
}

/// The folder with the programs; built if it isn't there.
pub(crate) fn build(paths: &Paths) -> Result<PathBuf> {
    let dir = entry(paths)?;
    if dir.is_dir() {
        return Ok(dir);
    }
    let lock = take_lock(paths)?;
    let built = step(TITLE, &paths.log("kubernetes"), |step| fill(paths, &dir, step));
    drop(lock);
    built
}

fn take_lock(paths: &Paths) -> Result<Lock> {
    Lock::take(&paths.cache.join("kubernetes.lock"), "the build of Kubernetes")
}

/// Builds everything into a folder beside the entry, which becomes the entry when it is complete.
fn fill(paths: &Paths, dir: &Path, step: &mut Step) -> Result<PathBuf> {
    if dir.is_dir() {
        return Ok(dir.to_owned());
    }
    for path in list(&paths.cache)? {
        // Left by a run that was killed; with the lock held nobody writes to it.
        if path.extension().is_some_and(|e| e == "part") {
            fs::remove_dir_all(&path).map_err(Error::io("remove", &path))?;
        }
    }
    let part = dir.with_extension("part");
    let result = (|| {
        for (name, args) in programs(&paths.harness())? {
            let out = part.join(name);
            step.run(&go(paths).args(["build", "-v", "-trimpath", "-o"]).arg(&out).args(args))?;
        }
        fs::rename(&part, dir).map_err(Error::io("rename", &part))
    })();
    if result.is_err() && part.is_dir() {
        fs::remove_dir_all(&part).map_err(Error::io("remove", &part))?;
    }
    result.map(|()| dir.to_owned())
}

/// A build that goes on while the foreground does something else.
pub(crate) struct Background {
    thread: Option<JoinHandle<Result<PathBuf>>>,
    log: PathBuf,
}

impl Background {
    /// Starts the build if there is one to do and the machine is up to it.
    pub(crate) fn start(paths: &Paths) -> Result<Option<Self>> {
        /// `go build` of Kubernetes takes three, rustc with its tests two.
        const MEMORY_GIB: u64 = 8;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let dir = entry(paths)?;
        if dir.is_dir() || cores < 2 || free_memory_gib() < MEMORY_GIB {
            return Ok(None);
        }
        let lock = take_lock(paths)?;
        eprintln!("     Kubernetes is built in the background meanwhile: the first time it takes about 15 minutes");
        let own = Paths::find()?;
        let log = paths.log("kubernetes");
        let thread = thread::spawn({
            let log = log.clone();
            move || {
                let built = hidden_step(TITLE, &log, |step| fill(&own, &dir, step));
                drop(lock);
                built
            }
        });
        Ok(Some(Self { thread: Some(thread), log }))
    }

    /// Waits for the build.
    pub(crate) fn finish(mut self, paths: &Paths) -> Result<PathBuf> {
        let Some(thread) = self.thread.take() else { return build(paths) };
        step("build Kubernetes and containerd (goes on)", &paths.log("wait"), |step| {
            // The thread, too, sees a signal, and ends.
            while !thread.is_finished() && step.pause(Duration::from_millis(200), &last_line(&self.log)).is_ok() {}
            thread.join().unwrap_or_else(|_| Err(Error::Refused("the thread of the build panicked".to_owned())))
        })
    }
}

impl Drop for Background {
    /// The foreground has failed: nobody waits for the build any more.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            signals::give_up();
            // Its error is that it was told to stop.
            let _ = thread.join();
        }
    }
}

fn free_memory_gib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: Option<u64> = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
    kib.unwrap_or(0) / (1024 * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_those_of_go_mod() {
        let text = "module m\n\nrequire (\n\ta v1\n)\n\ntool x.example/one\n\ntool (\n\t// why\n\tx.example/two\n)\n";
        assert_eq!(tools(text), ["x.example/one", "x.example/two"]);
    }

    #[test]
    fn kubernetes_knows_its_version() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("go.mod"), "require (\n\tk8s.io/kubernetes v1.37.2\n)\ntool a/b/ctr\n").unwrap();
        let programs = programs(dir.path()).unwrap();
        let names: Vec<&str> = programs.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["kube", "ctr"]);
        let flags = programs[0].1.join(" ");
        assert!(
            flags.contains("gitVersion=v1.37.2 ") && flags.contains("gitMajor=1 ") && flags.contains("gitMinor=37")
        );
    }

    #[test]
    fn a_go_mod_without_kubernetes_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("go.mod"), "module m\n").unwrap();
        assert!(programs(dir.path()).unwrap_err().to_string().contains("go.mod"));
    }
}

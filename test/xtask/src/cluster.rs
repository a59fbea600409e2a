//! The clusters on this machine, by the program in `test/cluster`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::images::{self, Images};
use crate::kubernetes::go;
use crate::lock::Lock;
use crate::paths::{Paths, digest_files, read};
use crate::process::{Program, step};

/// A cluster by name, and what each of its nodes looks like.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) machines: &'static [&'static str],
}

/// The cluster that people play with.
pub(crate) const DEMO: Kind = Kind { name: "demo", machines: &["dgx-h100", "dgx-h100"] };
/// The cluster that tests run on.
pub(crate) const E2E: Kind = Kind { name: "e2e", machines: &["dgx-h100", "l4", "no-memory", "mixed"] };

/// One cluster, running or not.
pub(crate) struct Cluster {
    name: &'static str,
    machines: Vec<PathBuf>,
    tool: PathBuf,
    /// Says what the running cluster was made of, and where its programs are.
    stamp: PathBuf,
    state: PathBuf,
    lock: PathBuf,
    logs: [PathBuf; 3],
}

/// Builds the harness; Go's own cache makes it quick.
pub(crate) fn tool(paths: &Paths) -> Result<PathBuf> {
    let tool = paths.target.join("cluster");
    step("build the cluster tool", &paths.log("cluster-tool"), |step| {
        step.run(&go(paths).args(["build", "-trimpath", "-o"]).arg(&tool).arg("./cluster"))
    })?;
    Ok(tool)
}

impl Cluster {
    pub(crate) fn new(paths: &Paths, kind: &Kind, tool: &Path) -> Self {
        let name = kind.name;
        // Beside what stays: of a stopped cluster, nothing does.
        let place = paths.state.to_string_lossy().replace('/', "-");
        Self {
            name,
            machines: kind.machines.iter().map(|machine| paths.machine(machine)).collect(),
            tool: tool.to_owned(),
            stamp: paths.state.join(format!("{name}.stamp")),
            state: paths.state.join(name),
            lock: paths.cache.join(format!("cluster{place}-{name}.lock")),
            logs: ["up", "down", "load"].map(|verb| paths.log(&format!("{name}-{verb}"))),
        }
    }

    /// Keeps other runs of this program off this cluster.
    pub(crate) fn lock(&self) -> Result<Lock> {
        Lock::take(&self.lock, &format!("the cluster {}", self.name))
    }

    fn tool(&self, verb: &str) -> Program {
        Program::new(&self.tool).args([verb, "--name", self.name])
    }

    /// Whether all of it runs; if not, what is wrong.
    pub(crate) fn status(&self) -> std::result::Result<(), Error> {
        self.tool("status").output().map(drop)
    }

    /// Starts the cluster, or keeps the one that is there if it is healthy and made of the same things.
    pub(crate) fn up(&self, kubernetes: &Path, mock: &Path) -> Result<()> {
        let mut parts = vec![self.tool.clone(), mock.join("libnvidia_ml_mock.so"), mock.join("mock-nvml")];
        parts.extend(self.machines.iter().cloned());
        let content = digest_files(parts)?;
        let stamp = format!("{}\n{content}\n", kubernetes.display());
        if self.state.exists() {
            match self.status() {
                Ok(()) if read(&self.stamp).is_ok_and(|old| old == stamp) => {
                    eprintln!("ok   the cluster {} is up already", self.name);
                    return Ok(());
                }
                Ok(()) => eprintln!("     the cluster {} is of another build: it is started anew", self.name),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(_) => eprintln!("     the cluster {} isn't healthy: it is started anew", self.name),
            }
        }
        self.down()?;
        let nodes = self.machines.len().to_string();
        let mut up = self.tool("up").args(["--nodes", &nodes, "--bin"]).arg(kubernetes).arg("--mock").arg(mock);
        for machine in &self.machines {
            up = up.arg("--machine").arg(machine);
        }
        let title = format!("start the cluster {} ({nodes} nodes)", self.name);
        if let Err(error) = step(&title, &self.logs[0], |step| step.run(&up)) {
            if let Error::Interrupted = error {
                self.down()?;
            }
            return Err(error);
        }
        fs::write(&self.stamp, stamp).map_err(Error::io("write", &self.stamp))
    }

    /// Removes the cluster, whatever is left of it. Works after a signal, too.
    pub(crate) fn down(&self) -> Result<()> {
        if self.stamp.exists() {
            fs::remove_file(&self.stamp).map_err(Error::io("remove", &self.stamp))?;
        }
        let title = format!("remove the cluster {}", self.name);
        if self.state.exists() {
            step(&title, &self.logs[1], |step| step.run(&self.tool("down").cleanup()))?;
        } else {
            // What a killed run left outside the state folder.
            self.tool("down").cleanup().output()?;
        }
        // Other clusters may be in it, or it may not be there.
        if let Some(all) = self.state.parent() {
            let _ = fs::remove_dir(all);
        }
        Ok(())
    }

    pub(crate) fn load(&self, images: &Images) -> Result<()> {
        step("load images", &self.logs[2], |step| images::load(step, &self.tool, self.name, images))
    }

    /// Where its kubeconfig is, once it is up.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    /// What the cluster's programs wrote.
    pub(crate) fn log_files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        collect_logs(&self.state, 3, &mut files);
        files.sort();
        files
    }
}

/// Log files, not further down than components keep them: below are the containers' own files.
fn collect_logs(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => collect_logs(&path, depth - 1, files),
            Ok(kind) if kind.is_file() && path.extension().is_some_and(|e| e == "log") => files.push(path),
            _ => {}
        }
    }
}

/// The cluster that `cargo xtask kubectl` and its like mean: `ALIQUOT_CLUSTER_NAME`, or the demo, or the tests'.
struct Running {
    name: String,
    kubernetes: PathBuf,
    kubeconfig: PathBuf,
}

fn running(paths: &Paths) -> Result<Running> {
    let asked = std::env::var("ALIQUOT_CLUSTER_NAME").ok();
    let names = asked.as_deref().map_or_else(|| vec![DEMO.name, E2E.name], |name| vec![name]);
    for name in &names {
        let Ok(stamp) = read(&paths.state.join(format!("{name}.stamp"))) else { continue };
        return Ok(Running {
            name: (*name).to_owned(),
            kubernetes: stamp.lines().next().unwrap_or_default().into(),
            kubeconfig: paths.state.join(name).join("kubeconfig"),
        });
    }
    Err(Error::Refused(format!("no cluster named {} is up; `cargo xtask demo` starts one", names.join(" or "))))
}

/// `cargo xtask kubectl …`, `cargo xtask helm …`: becomes that program.
pub(crate) fn client(paths: &Paths, name: &str, args: &[OsString]) -> Result<Error> {
    let running = running(paths)?;
    let kube = running.kubernetes.join("kube");
    Ok(Program::new(kube).arg(name).args(args).env("KUBECONFIG", running.kubeconfig).become_it())
}

/// `cargo xtask cluster VERB …`: the same for the harness.
pub(crate) fn harness(paths: &Paths, args: &[OsString]) -> Result<Error> {
    let tool = paths.target.join("cluster");
    let tool = if tool.is_file() { tool } else { self::tool(paths)? };
    let Some((verb, rest)) = args.split_first() else { return Ok(Program::new(tool).become_it()) };
    let names_it = verb == "image"
        || verb.to_string_lossy().starts_with('-')
        || rest.iter().take_while(|arg| *arg != "--").any(|arg| arg.to_string_lossy().starts_with("--name"));
    if names_it {
        return Ok(Program::new(tool).args(args).become_it());
    }
    let name = running(paths)?.name;
    Ok(Program::new(tool).arg(verb).args(["--name", &name]).args(rest).become_it())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_found_where_components_keep_them() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("node-0/logs/kubelet.log");
        let deep = dir.path().join("node-0/a/b/c/d/other.log");
        for file in [&log, &deep] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let mut files = Vec::new();
        collect_logs(dir.path(), 3, &mut files);
        assert_eq!(files, [log]);
    }
}

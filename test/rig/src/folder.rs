//! Folders that go when this process ends, however it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// On a disk, since what is tested is written durably, and short, since a socket's path has 107 bytes.
const PARENT: &str = "/var/tmp/aliquot-rig";

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A folder of its own.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Removes the folder when our end of its pipe is closed: by us, or by the kernel.
    keeper: Child,
}

impl Folder {
    /// Makes the folder.
    pub fn new() -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        if count == 0 {
            remove_orphans();
        }
        Self::at(Path::new(PARENT).join(format!("{}-{count}", std::process::id())))
    }

    /// Makes a folder whose path has just this many bytes. It lasts no longer than the machine is up.
    pub fn of_length(length: usize) -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let start = format!("/run/r{}-{count}-", std::process::id());
        assert!(start.len() <= length, "{start} is longer than {length}");
        Self::at(PathBuf::from(format!("{start:x<length$}")))
    }

    fn at(path: PathBuf) -> Self {
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // What was killed with us may write for a moment.
        let script = "cat; for i in $(seq 100); do rm -rf -- \"$0\" && exit; sleep 0.1; done";
        let keeper = Command::new("setsid")
            .args(["sh", "-c", script])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("setsid and sh");
        Self { path, keeper }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // It has a hundred tries, and then there is nothing that we could do.
        let _ = self.keeper.wait();
    }
}

/// A machine that lost its power has folders of processes that are no more.
fn remove_orphans() {
    for name in names(Path::new(PARENT)) {
        let is_running = name.split('-').next().is_some_and(|pid| Path::new("/proc").join(pid).exists());
        if !is_running {
            // Its keeper may be at it.
            let _ = fs::remove_dir_all(Path::new(PARENT).join(name));
        }
    }
}

/// The names in a folder, sorted; none if there is no such folder.
pub fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

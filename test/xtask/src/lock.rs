//! One at a time: a cache entry is built once, a cluster is started by one command.
//!
//! The kernel lets go of the lock with the process, however that ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::paths::read;
use crate::progress::Progress;
use crate::signals;

/// Held while this value lives.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until nobody else holds the lock, and says whom it waits for.
    pub(crate) fn take(path: &Path, what: &str) -> Result<Self> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(Error::io("make", dir))?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(Error::io("open", path))?;
        let mut waiting: Option<Progress> = None;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    let holder = read(path).unwrap_or_default();
                    let title = format!("wait for {what}, in use by process {}", holder.trim());
                    waiting.get_or_insert_with(|| Progress::start(&title)).tick(String::new);
                }
                Err(TryLockError::Error(source)) => return Err(Error::io("lock", path)(source)),
            }
            signals::check()?;
            thread::sleep(Duration::from_millis(100));
        }
        if let Some(progress) = waiting {
            progress.end(true);
        }
        file.set_len(0).map_err(Error::io("write", path))?;
        writeln!(file, "{}", std::process::id()).map_err(Error::io("write", path))?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/lock");
        let first = Lock::take(&path, "it").unwrap();
        assert_eq!(read(&path).unwrap().trim(), std::process::id().to_string());
        let other = path.clone();
        let second = thread::spawn(move || Lock::take(&other, "it").map(|_| ()));
        let file = File::open(&path).unwrap();
        assert!(matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
        drop(first);
        second.join().unwrap().unwrap();
    }
}

//! Files that are whole at any moment: written beside, then renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Something about a file or folder failed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {doing}: {cause}", .path.display())]
pub(crate) struct FileError {
    /// Which.
    pub path: PathBuf,
    /// What was tried.
    pub doing: &'static str,
    /// Why it failed.
    #[source]
    pub cause: io::Error,
}

/// Names the path and the deed of an [`io::Error`].
pub(crate) trait At<T> {
    /// As an error about `path`.
    fn at(self, doing: &'static str, path: &Path) -> Result<T, FileError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, doing: &'static str, path: &Path) -> Result<T, FileError> {
        self.map_err(|cause| FileError { path: path.to_owned(), doing, cause: cause.into() })
    }
}

/// Whether a file must be there after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It is of no use after a reboot.
    UntilReboot,
    /// It is on the disk before the call returns.
    OnDisk,
}

/// Replaces or creates a file at once.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32, durability: Durability) -> Result<(), FileError> {
    let folder = parent(path)?;
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let new = folder.join(name);
    // A leftover of a process that died has another mode or owner at worst: start afresh.
    remove(&new, Durability::UntilReboot)?;
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(content)?;
        if durability == Durability::OnDisk {
            file.sync_all()?;
        }
        fs::rename(&new, path)
    })();
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&new);
    }
    written.at("write", path)?;
    sync_folder(folder, durability)
}

/// Removes a file. Says whether there was one.
pub(crate) fn remove(path: &Path, durability: Durability) -> Result<bool, FileError> {
    match fs::remove_file(path) {
        Ok(()) => {
            sync_folder(parent(path)?, durability)?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).at("remove", path),
    }
}

/// A file's content, if there is such a file.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let mut content = Vec::new();
    match File::open(path).and_then(|mut file| file.read_to_end(&mut content)) {
        Ok(_) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).at("read", path),
    }
}

/// The names in a folder, sorted. None where there is no such folder.
pub(crate) fn list(folder: &Path) -> Result<Vec<String>, FileError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).at("list", folder),
    };
    let mut names = Vec::new();
    for entry in entries {
        // A name that is no UTF-8 is none of ours.
        names.extend(entry.at("list", folder)?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// Creates a folder and those above it.
pub(crate) fn create_folder(folder: &Path) -> Result<(), FileError> {
    fs::create_dir_all(folder).at("create the folder", folder)
}

fn parent(path: &Path) -> Result<&Path, FileError> {
    path.parent().ok_or(io::Error::from(io::ErrorKind::IsADirectory)).at("find the folder of", path)
}

fn sync_folder(folder: &Path, durability: Durability) -> Result<(), FileError> {
    match durability {
        Durability::UntilReboot => Ok(()),
        Durability::OnDisk => File::open(folder).and_then(|folder| folder.sync_all()).at("sync the folder", folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_the_new_one_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(folder.path().join(".file.new"), "half writ").unwrap();
        for content in ["one", "two"] {
            replace(&path, content.as_bytes(), 0o600, Durability::OnDisk).unwrap();
            assert_eq!(read(&path).unwrap().unwrap(), content.as_bytes());
        }
        assert_eq!(list(folder.path()).unwrap(), ["file"]);
        assert!(remove(&path, Durability::OnDisk).unwrap());
        assert!(!remove(&path, Durability::OnDisk).unwrap());
        assert_eq!(read(&path).unwrap(), None);
    }

    #[test]
    fn an_error_names_the_file() {
        let error = replace(Path::new("/proc/nowhere/file"), b"", 0o600, Durability::OnDisk).unwrap_err();
        assert!(error.to_string().starts_with("/proc/nowhere/file: write:"), "{error}");
    }
}

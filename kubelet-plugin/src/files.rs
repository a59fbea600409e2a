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

/// A change that everybody sees, and that a power cut may undo. Who is in a hurry may let go of locks before it waits for the disk.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Unsynced(Vec<(PathBuf, File)>);

impl Unsynced {
    /// Waits until it is on the disk.
    pub(crate) fn sync(self) -> Result<(), FileError> {
        self.0.into_iter().try_for_each(|(path, file)| file.sync_all().at("sync", &path))
    }

    fn folder_of(path: &Path) -> Result<Self, FileError> {
        let folder = parent(path)?;
        Ok(Self(vec![(folder.to_owned(), File::open(folder).at("open", folder)?)]))
    }
}

/// Replaces or creates a file at once. A power cut leaves the old one or the new one.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32, durability: Durability) -> Result<(), FileError> {
    write(path, content, mode, durability)?;
    match durability {
        Durability::UntilReboot => Ok(()),
        Durability::OnDisk => Unsynced::folder_of(path)?.sync(),
    }
}

/// The same for a file that nobody misses before the change is synced: until then, a power cut may leave an empty one.
pub(crate) fn put(path: &Path, content: &[u8], mode: u32) -> Result<Unsynced, FileError> {
    let file = write(path, content, mode, Durability::UntilReboot)?;
    let mut unsynced = Unsynced::folder_of(path)?;
    unsynced.0.insert(0, (path.to_owned(), file));
    Ok(unsynced)
}

fn write(path: &Path, content: &[u8], mode: u32, durability: Durability) -> Result<File, FileError> {
    let folder = parent(path)?;
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let new = folder.join(name);
    // A leftover of a process that died has another mode or owner at worst: start afresh.
    remove(&new)?;
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(content)?;
        if durability == Durability::OnDisk {
            file.sync_all()?;
        }
        fs::rename(&new, path)?;
        Ok::<_, io::Error>(file)
    })();
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&new);
    }
    written.at("write", path)
}

/// Removes a file, if there is one.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).at("remove", path),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The same, for a file that may not come back after a power cut.
pub(crate) fn take_away(path: &Path) -> Result<Unsynced, FileError> {
    match fs::remove_file(path) {
        Ok(()) => Unsynced::folder_of(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Unsynced::default()),
        Err(error) => Err(error).at("remove", path),
    }
}

/// Opens a file that is locked but never removed, creating it where it isn't.
pub(crate) fn open_lock(path: &Path) -> Result<File, FileError> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).at("open", path)
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
        for _ in 0..2 {
            take_away(&path).unwrap().sync().unwrap();
            assert_eq!(read(&path).unwrap(), None);
        }
    }

    #[test]
    fn an_error_names_the_file() {
        let error = replace(Path::new("/proc/nowhere/file"), b"", 0o600, Durability::OnDisk).unwrap_err();
        assert!(error.to_string().starts_with("/proc/nowhere/file: write:"), "{error}");
    }
}

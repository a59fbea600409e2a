//! Files that are put in place whole, or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nvidia_ml_mock::state::{self, FILE_SIZE, State, Writer};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use tempfile::NamedTempFile;

/// What couldn't be put in place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("state file {} {source}", path.display())]
    State { path: PathBuf, source: state::Error },
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, FileError> {
    result.map_err(|source| FileError::Io { path: path.to_owned(), source })
}

fn parent(path: &Path) -> Result<&Path, FileError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    at(parent, fs::create_dir_all(parent))?;
    Ok(parent)
}

/// Puts a file there, unless it is there already.
pub(crate) fn put(path: &Path, contents: &[u8], mode: u32) -> Result<(), FileError> {
    let is_plain = fs::symlink_metadata(path).is_ok_and(|old| old.is_file() && old.mode() & 0o7777 == mode);
    if is_plain && fs::read(path).is_ok_and(|old| old == contents) {
        return Ok(());
    }
    let mut file = at(path, NamedTempFile::new_in(parent(path)?))?;
    at(path, file.write_all(contents))?;
    at(path, fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)))?;
    at(path, file.persist(path).map_err(|error| error.error))?;
    Ok(())
}

/// Puts a symbolic link there.
pub(crate) fn put_link(path: &Path, target: &Path) -> Result<(), FileError> {
    if fs::read_link(path).is_ok_and(|old| old == target) {
        return Ok(());
    }
    parent(path)?;
    remove(path)?;
    at(path, symlink(target, path))
}

/// Puts a character device node there.
pub(crate) fn put_node(path: &Path, major: u32, minor: u32, mode: u32) -> Result<(), FileError> {
    let device = makedev(major, minor);
    let is_there = |old: fs::Metadata| old.file_type().is_char_device() && old.rdev() == device;
    if !fs::symlink_metadata(path).is_ok_and(is_there) {
        parent(path)?;
        remove(path)?;
        let result = mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(mode), device);
        at(path, result.map_err(io::Error::from))?;
    }
    // The process's umask had a say in the mode.
    at(path, fs::set_permissions(path, fs::Permissions::from_mode(mode)))
}

/// Puts a state file there. One that is there is changed in place, since programs may have it mapped.
pub(crate) fn put_state(path: &Path, state: &State) -> Result<(), FileError> {
    let of_state = |source| FileError::State { path: path.to_owned(), source };
    if fs::metadata(path).is_ok_and(|old| old.len() == FILE_SIZE as u64) {
        Writer::open(path).map_err(of_state)?.replace(state);
        return Ok(());
    }
    let file = at(path, NamedTempFile::new_in(parent(path)?))?;
    at(path, file.as_file().set_len(FILE_SIZE as u64))?;
    Writer::open(file.path()).map_err(of_state)?.replace(state);
    at(path, fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)))?;
    at(path, file.persist(path).map_err(|error| error.error).and_then(|file: File| file.sync_all()))
}

/// Removes whatever is there.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::symlink_metadata(path) {
        Ok(old) if old.is_dir() => at(path, fs::remove_dir_all(path)),
        Ok(_) => at(path, fs::remove_file(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => at(path, Err(error)),
    }
}

/// The names in a folder; none if it isn't there.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>, FileError> {
    match fs::read_dir(folder) {
        Ok(entries) => {
            let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
            let mut names = at(folder, names.collect::<io::Result<Vec<_>>>())?;
            names.sort();
            Ok(names)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => at(folder, Err(error)),
    }
}

//! Finds the GPU driver's files below its root: the management library for us, everything that a container needs for CDI.
//!
//! The root may be a container image of its own, with absolute links in it: every path is resolved inside the root.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use aliquot_device::cdi::{DeviceNode, DriverFiles};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::files::{self, At, FileError};

const LIBRARY: &str = "libnvidia-ml.so.1";

/// Where distributions and driver containers put the libraries.
const LIBRARY_FOLDERS: [&str; 7] = [
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib",
];

const PROGRAMS: [&str; 7] = [
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-persistenced",
    "nvidia-smi",
];

const SOCKETS: [&str; 2] = ["/run/nvidia-fabricmanager/socket", "/run/nvidia-persistenced/socket"];

const CONTROL_NODES: [&str; 4] = ["nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"];

/// The driver can't be found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverRootError {
    /// The file system failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no driver, or not yet.
    #[error(
        "{}: no {LIBRARY} in {}: is the GPU driver installed, and is this its root?",
        .root.display(), LIBRARY_FOLDERS.join(", ")
    )]
    NoLibrary {
        /// The root.
        root: PathBuf,
    },
    /// There is a driver of another version than the one that answered.
    #[error("{}: no library of driver version {version} in {folder}", .root.display())]
    NoLibraries {
        /// The root.
        root: PathBuf,
        /// Below it.
        folder: String,
        /// The version that the management library told.
        version: String,
    },
}

/// The folder below which a driver has its files.
#[derive(Debug, Clone)]
pub(crate) struct DriverRoot {
    here: PathBuf,
    on_host: PathBuf,
}

impl DriverRoot {
    /// A root that is `here` for us and `on_host` for container runtimes.
    pub(crate) fn new(here: PathBuf, on_host: Option<PathBuf>) -> Self {
        Self { on_host: on_host.unwrap_or_else(|| here.clone()), here }
    }

    /// The management library's path, as seen from here.
    pub(crate) fn library(&self) -> Result<PathBuf, DriverRootError> {
        let (folder, _) = self.library_folder()?;
        let path = format!("{folder}/{LIBRARY}");
        let file = self.open(&path)?.ok_or_else(|| DriverRootError::NoLibrary { root: self.here.clone() })?;
        Ok(real_path(&file)?)
    }

    /// All that a container needs of the driver of this version.
    pub(crate) fn files(&self, version: &str, dev_root: &Path) -> Result<DriverFiles, DriverRootError> {
        let (folder, open_folder) = self.library_folder()?;
        let real_folder = real_path(&open_folder)?;
        let mut found =
            DriverFiles { host_root: self.on_host.to_string_lossy().into_owned(), ..DriverFiles::default() };
        let names = files::list(&real_folder)?;

        let suffix = format!(".so.{version}");
        for name in names.iter().filter(|name| name.ends_with(&suffix)) {
            if is_file(&real_folder.join(name)) {
                found.files.push(format!("{folder}/{name}"));
            }
        }
        if found.files.is_empty() {
            let root = self.here.clone();
            return Err(DriverRootError::NoLibraries { root, folder: folder.to_owned(), version: version.to_owned() });
        }
        found.links = links(&real_folder, folder, &names, &suffix);
        found.library_folders.push(folder.to_owned());

        for program in PROGRAMS {
            self.push_if(&mut found.files, format!("/usr/bin/{program}"), FileType::is_file)?;
        }
        let firmware = format!("/lib/firmware/nvidia/{version}");
        if let Some(folder) = self.open(&firmware)? {
            for name in files::list(&real_path(&folder)?)?.iter().filter(|name| name.starts_with("gsp")) {
                self.push_if(&mut found.files, format!("{firmware}/{name}"), FileType::is_file)?;
            }
        }
        for socket in SOCKETS {
            self.push_if(&mut found.sockets, socket.to_owned(), FileType::is_socket)?;
        }
        for name in CONTROL_NODES {
            found.control_nodes.extend(device_node(dev_root, name)?);
        }
        Ok(found)
    }

    fn library_folder(&self) -> Result<(&'static str, OwnedFd), DriverRootError> {
        for folder in LIBRARY_FOLDERS {
            if self.open(&format!("{folder}/{LIBRARY}"))?.is_some()
                && let Some(open) = self.open(folder)?
            {
                return Ok((folder, open));
            }
        }
        Err(DriverRootError::NoLibrary { root: self.here.clone() })
    }

    fn push_if(&self, list: &mut Vec<String>, path: String, is: fn(FileType) -> bool) -> Result<(), FileError> {
        if let Some(file) = self.open(&path)? {
            let stat = rustix::fs::fstat(&file).at("look at", &self.here.join(path.trim_start_matches('/')))?;
            if is(FileType::from_raw_mode(stat.st_mode)) {
                list.push(path);
            }
        }
        Ok(())
    }

    /// Opens a path below the root, without leave to read.
    fn open(&self, path: &str) -> Result<Option<OwnedFd>, FileError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = match rustix::fs::openat(CWD, &self.here, flags | OFlags::DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            root => root.at("open", &self.here)?,
        };
        match rustix::fs::openat2(root.as_fd(), path, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error).at("open", &self.here.join(path.trim_start_matches('/'))),
        }
    }
}

/// Where an open file is, as seen from here.
fn real_path(file: &OwnedFd) -> Result<PathBuf, FileError> {
    let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    fs::read_link(&link).at("read the link", &link)
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Links beside the libraries that lead to one of them, directly or over each other: (target, path in the container).
fn links(real_folder: &Path, folder: &str, names: &[String], suffix: &str) -> Vec<(String, String)> {
    let target = |name: &str| fs::read_link(real_folder.join(name)).ok()?.file_name()?.to_str().map(str::to_owned);
    let leads_to_library = |name: &str| {
        // Five is more than any driver has, and ends a circle.
        let end = (0..5).try_fold(name.to_owned(), |at, _| target(&at).ok_or(at));
        end.is_err_and(|end| end.ends_with(suffix) && is_file(&real_folder.join(&end)))
    };
    names
        .iter()
        .filter(|name| leads_to_library(name))
        .filter_map(|name| Some((target(name)?, format!("{folder}/{name}"))))
        .collect()
}

/// A character device below the folder of device nodes, by the name that it has in a container's `/dev`, if it is there.
pub(crate) fn device_node(dev_root: &Path, name: &str) -> Result<Option<DeviceNode>, FileError> {
    let path = dev_root.join(name);
    let metadata = match fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).at("look at", &path),
    };
    let device = metadata.rdev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = DeviceNode::new(format!("/dev/{name}"), major, minor, metadata.mode() & 0o777);
    Ok(metadata.file_type().is_char_device().then_some(node))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn put(root: &Path, path: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    /// A driver container's root: libraries behind an absolute link, a second version beside the first.
    fn root() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for library in ["libnvidia-ml", "libcuda"] {
            put(root, &format!("usr/lib/x86_64-linux-gnu/{library}.so.570.1"));
            put(root, &format!("usr/lib/x86_64-linux-gnu/{library}.so.535.2"));
            let link = root.join(format!("usr/lib/x86_64-linux-gnu/{library}.so.1"));
            symlink(format!("{library}.so.570.1"), link).unwrap();
        }
        symlink("libcuda.so.1", root.join("usr/lib/x86_64-linux-gnu/libcuda.so")).unwrap();
        symlink("libother.so.1", root.join("usr/lib/x86_64-linux-gnu/libother.so")).unwrap();
        symlink("loop", root.join("usr/lib/x86_64-linux-gnu/loop")).unwrap();
        symlink("/usr/lib/x86_64-linux-gnu", root.join("usr/lib64")).unwrap();
        put(root, "usr/bin/nvidia-smi");
        put(root, "lib/firmware/nvidia/570.1/gsp_ga10x.bin");
        folder
    }

    #[test]
    fn files_are_found_inside_the_root_though_its_links_are_absolute() {
        let folder = root();
        let driver = DriverRoot::new(folder.path().to_owned(), Some("/run/nvidia/driver".into()));
        let real = fs::canonicalize(folder.path()).unwrap();
        assert_eq!(driver.library().unwrap(), real.join("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.1"));
        let files = driver.files("570.1", &folder.path().join("dev")).unwrap();
        assert_eq!(files.host_root, "/run/nvidia/driver");
        let expected = [
            "/usr/lib64/libcuda.so.570.1",
            "/usr/lib64/libnvidia-ml.so.570.1",
            "/usr/bin/nvidia-smi",
            "/lib/firmware/nvidia/570.1/gsp_ga10x.bin",
        ];
        assert_eq!(files.files, expected);
        let links = [
            ("libcuda.so.1", "/usr/lib64/libcuda.so"),
            ("libcuda.so.570.1", "/usr/lib64/libcuda.so.1"),
            ("libnvidia-ml.so.570.1", "/usr/lib64/libnvidia-ml.so.1"),
        ];
        assert_eq!(files.links, links.map(|(target, link)| (target.to_owned(), link.to_owned())));
        assert_eq!(files.library_folders, ["/usr/lib64"]);
    }

    #[test]
    fn a_driver_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for root in [folder.path().to_owned(), folder.path().join("none")] {
            let error = DriverRoot::new(root.clone(), None).library().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{}: no libnvidia-ml.so.1 in /usr/lib64", root.display())), "{error}");
        }
        let folder = root();
        let error = DriverRoot::new(folder.path().to_owned(), None).files("1.2", Path::new("/dev")).unwrap_err();
        assert!(error.to_string().ends_with("no library of driver version 1.2 in /usr/lib64"), "{error}");
    }

    #[test]
    fn a_device_node_tells_its_numbers() {
        let null = device_node(Path::new("/dev"), "null").unwrap().unwrap();
        assert_eq!((null.path.as_str(), null.major, null.minor), ("/dev/null", 1, 3));
        assert_eq!(device_node(Path::new("/dev"), "none").unwrap(), None);
        assert_eq!(device_node(Path::new("/"), "proc").unwrap(), None);
    }
}

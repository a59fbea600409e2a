//! The container's root file system, seen from the host. Its symbolic links are the image's, so every path is resolved by
//! the kernel with this root as the end of the world, and changes go through descriptors of folders.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    str::FromStr,
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags},
    io::Errno,
};

/// An absolute path in the container, without `.` and `..`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerPath(Vec<String>);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    #[error("it is not an absolute path")]
    NotAbsolute,
    #[error("it has a `.` or `..`")]
    Dots,
}

impl FromStr for ContainerPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        let names = text.strip_prefix('/').ok_or(PathError::NotAbsolute)?;
        let names: Vec<_> = names.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        if names.iter().any(|name| name == "." || name == "..") {
            return Err(PathError::Dots);
        }
        Ok(Self(names))
    }
}

impl fmt::Display for ContainerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0.join("/"))
    }
}

impl ContainerPath {
    pub(crate) fn of(names: &[&str]) -> Self {
        Self(names.iter().map(|name| (*name).to_owned()).collect())
    }

    /// The folder and the name in it; the root itself has none.
    pub(crate) fn split(&self) -> Option<(Self, &str)> {
        let (name, folder) = self.0.split_last()?;
        Some((Self(folder.to_vec()), name))
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RootfsError {
    #[error("can't open the container's root {path}")]
    Open { path: PathBuf, source: io::Error },
    #[error("the container's root {path} is the host's root; this program has to run as a createContainer hook")]
    Host { path: PathBuf },
    #[error("can't open folder {path} of the container")]
    Resolve { path: ContainerPath, source: io::Error },
    #[error("folder {path} of the container lies on a volume; only the container's own files are changed")]
    Volume { path: ContainerPath },
    #[error("can't make folder {path} in the container")]
    Make { path: ContainerPath, source: io::Error },
    #[error("can't make folder {path} in the container: there is a link that leads nowhere")]
    Dangling { path: ContainerPath },
}

pub(crate) struct Rootfs(OwnedFd);

impl AsFd for Rootfs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Rootfs {
    pub(crate) fn open(path: &Path) -> Result<Self, RootfsError> {
        let error = |source: Errno| RootfsError::Open { path: path.to_owned(), source: source.into() };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(error)?;
        let (container, host) = (rustix::fs::fstat(&root).map_err(error)?, rustix::fs::stat(c"/").map_err(error)?);
        if (container.st_dev, container.st_ino) == (host.st_dev, host.st_ino) {
            return Err(RootfsError::Host { path: path.to_owned() });
        }
        Ok(Self(root))
    }

    /// A folder that must exist, and lie on the container's own file system: volumes are shared with others.
    pub(crate) fn folder(&self, path: &ContainerPath) -> Result<OwnedFd, RootfsError> {
        self.resolve(&path.0).map_err(|error| match error {
            Errno::XDEV => RootfsError::Volume { path: path.clone() },
            error => RootfsError::Resolve { path: path.clone(), source: error.into() },
        })
    }

    /// A folder, made with its parents where it is missing.
    pub(crate) fn make_folder(&self, path: &ContainerPath) -> Result<OwnedFd, RootfsError> {
        let mut folder = self.folder(&ContainerPath::of(&[]))?;
        for depth in 0..path.0.len() {
            let part = ContainerPath(path.0[..=depth].to_vec());
            if matches!(self.resolve(&part.0), Err(Errno::NOENT)) {
                match rustix::fs::mkdirat(&folder, path.0[depth].as_str(), Mode::from_raw_mode(0o755)) {
                    Ok(()) => {}
                    Err(Errno::EXIST) => return Err(RootfsError::Dangling { path: part }),
                    Err(error) => return Err(RootfsError::Make { path: part, source: error.into() }),
                }
            }
            folder = self.folder(&part)?;
        }
        Ok(folder)
    }

    fn resolve(&self, names: &[String]) -> Result<OwnedFd, Errno> {
        // From here, not from `/`: one spelling for the root itself and what is below.
        let path = format!("./{}", names.join("/"));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        // The kernel gives up when something, anywhere, is mounted or renamed while it resolves a `..`.
        let mut tries = 0;
        loop {
            match rustix::fs::openat2(&self.0, &path, flags, Mode::empty(), how) {
                Err(Errno::AGAIN) if tries < 1000 => tries += 1,
                result => return result,
            }
        }
    }
}

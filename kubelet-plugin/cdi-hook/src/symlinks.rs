//! Symbolic links in the container: programs open libraries by names that the driver's files don't have.

use std::{io, str::FromStr};

use rustix::{fs::AtFlags, io::Errno};

use crate::rootfs::{ContainerPath, PathError, Rootfs, RootfsError};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) target: String,
    pub(crate) path: ContainerPath,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("it is not TARGET::LINK")]
    Format,
    #[error("the target is empty")]
    Target,
    #[error("the link has no name")]
    Name,
    #[error(transparent)]
    Path(#[from] PathError),
}

impl FromStr for Link {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let (target, path) = text.split_once("::").ok_or(LinkError::Format)?;
        if target.is_empty() {
            return Err(LinkError::Target);
        }
        let path: ContainerPath = path.parse()?;
        if path.split().is_none() {
            return Err(LinkError::Name);
        }
        Ok(Self { target: target.to_owned(), path })
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SymlinkError {
    #[error(transparent)]
    Rootfs(#[from] RootfsError),
    #[error("can't make link {path} in the container: the image has a file or folder there, which is left alone")]
    Occupied { path: ContainerPath },
    #[error("can't make link {path} in the container")]
    Create { path: ContainerPath, source: io::Error },
}

pub(crate) fn create(rootfs: &Rootfs, links: &[Link]) -> Result<(), SymlinkError> {
    links.iter().try_for_each(|link| create_one(rootfs, link))
}

fn create_one(rootfs: &Rootfs, link: &Link) -> Result<(), SymlinkError> {
    let Some((folder, name)) = link.path.split() else { return Ok(()) };
    let error = |error: Errno| SymlinkError::Create { path: link.path.clone(), source: error.into() };
    let folder = rootfs.make_folder(&folder)?;
    match rustix::fs::readlinkat(&folder, name, Vec::new()) {
        Ok(target) if target.as_bytes() == link.target.as_bytes() => return Ok(()),
        // The container doesn't run yet: nobody sees the moment without the link.
        Ok(_) => rustix::fs::unlinkat(&folder, name, AtFlags::empty()).map_err(error)?,
        Err(Errno::NOENT) => {}
        Err(Errno::INVAL) => return Err(SymlinkError::Occupied { path: link.path.clone() }),
        Err(other) => return Err(error(other)),
    }
    rustix::fs::symlinkat(link.target.as_str(), &folder, name).map_err(error)
}

//! The container's loader cache: programs find the driver's libraries by it, and some read it themselves.
//!
//! The folders go to `ldconfig` as arguments, which works on images with no configuration at all. An image that has
//! `/etc/ld.so.conf.d` gets one small file there too, so that an `ldconfig` that runs later in the container (any package
//! manager does that) doesn't lose the driver.

use std::{
    ffi::{CString, NulError},
    fmt::Write as _,
    io::{self, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use nix::fcntl::AtFlags as ExecFlags;
use rustix::{
    fs::{AtFlags, Mode, OFlags, StatVfsMountFlags},
    io::Errno,
};

use crate::{
    jail, ldconfig,
    rootfs::{ContainerPath, Rootfs, RootfsError},
};

const CONFIGURATION: &str = "00-aliquot.conf";
const TEMPORARY: &str = "00-aliquot.conf.tmp";

#[derive(Debug, thiserror::Error)]
pub(crate) enum LdcacheError {
    #[error(transparent)]
    Rootfs(#[from] RootfsError),
    #[error("can't read the container's root")]
    Root(#[source] io::Error),
    #[error("can't write {CONFIGURATION} to /etc/ld.so.conf.d of the container")]
    Configuration(#[source] io::Error),
    #[error("can't copy {path} to memory")]
    Copy { path: PathBuf, source: io::Error },
    #[error("can't enter the container's root")]
    Enter(#[source] io::Error),
    #[error("can't give up capabilities")]
    Rights(#[source] io::Error),
    #[error("a folder's name has a zero byte")]
    Zero(#[from] NulError),
    #[error("can't run the copy of {path} (does sysctl vm.memfd_noexec forbid it?)")]
    Run { path: PathBuf, source: io::Error },
}

/// Updates the cache, or says on stderr why there is none to update. On success it doesn't return: the process has become
/// `ldconfig`.
pub(crate) fn update(rootfs: &Rootfs, preferred: Option<&Path>, folders: &[ContainerPath]) -> Result<(), LdcacheError> {
    if !has_glibc(rootfs) {
        skip("the container has no loader of glibc");
        return Ok(());
    }
    // Not so for `readOnlyRootFilesystem`, which the runtime sets up after its hooks.
    let mount = rustix::fs::fstatvfs(rootfs).map_err(|error| LdcacheError::Root(error.into()))?;
    if mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
        skip("the container's root is read-only");
        return Ok(());
    }
    match rootfs.make_folder(&ContainerPath::of(&["etc"])) {
        Ok(_) => {}
        Err(error @ RootfsError::Volume { .. }) => {
            skip(&error.to_string());
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    let ldconfig = match ldconfig::find(preferred) {
        Ok(ldconfig) => ldconfig,
        Err(unfit) => {
            let unfit: Vec<_> = unfit.iter().map(ToString::to_string).collect();
            skip(&format!("the host has no ldconfig that can be used ({})", unfit.join("; ")));
            return Ok(());
        }
    };
    let program = ldconfig.sealed().map_err(|source| LdcacheError::Copy { path: ldconfig.path.clone(), source })?;
    let mut arguments = vec![CString::from(c"ldconfig")];
    for folder in folders {
        arguments.push(CString::new(folder.to_string())?);
    }
    configure(rootfs, folders)?;
    jail::enter(rootfs).map_err(LdcacheError::Enter)?;
    jail::drop_rights().map_err(LdcacheError::Rights)?;
    let environment: [CString; 0] = [];
    let Err(error) = nix::unistd::execveat(&program, c"", &arguments, &environment, ExecFlags::AT_EMPTY_PATH);
    Err(LdcacheError::Run { path: ldconfig.path, source: error.into() })
}

fn skip(reason: &str) {
    eprintln!("aliquot-cdi-hook: the loader cache is left as it is: {reason}");
}

/// Only glibc's loader reads the cache, and only images with it can use the driver's libraries.
fn has_glibc(rootfs: &Rootfs) -> bool {
    ["lib", "lib64"].iter().filter_map(|folder| rootfs.folder(&ContainerPath::of(&[folder])).ok()).any(|folder| {
        let Ok(entries) = rustix::fs::Dir::new(folder) else { return false };
        entries.flatten().any(|entry| {
            let name = entry.file_name().to_bytes();
            [&b"ld-linux"[..], b"ld64.so.", b"ld.so."].iter().any(|loader| name.starts_with(loader))
        })
    })
}

fn configure(rootfs: &Rootfs, folders: &[ContainerPath]) -> Result<(), LdcacheError> {
    // Not there, or not the container's own: what runs now doesn't need it.
    let Ok(folder) = rootfs.folder(&ContainerPath::of(&["etc", "ld.so.conf.d"])) else { return Ok(()) };
    let mut text = String::from("# The GPU driver's libraries\n");
    for folder in folders {
        let _ = writeln!(text, "{folder}");
    }
    write(&folder, &text).map_err(LdcacheError::Configuration)
}

fn write(folder: &OwnedFd, text: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, TEMPORARY, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, TEMPORARY, flags, Mode::from_raw_mode(0o644))?;
    std::fs::File::from(file).write_all(text.as_bytes())?;
    rustix::fs::renameat(folder, TEMPORARY, folder, CONFIGURATION)?;
    Ok(())
}

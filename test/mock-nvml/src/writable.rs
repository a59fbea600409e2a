//! Writing through a read-only mount.
//!
//! On a real node it doesn't matter how the driver's files are mounted: what GPUs are like is in the kernel, which lets an
//! administrator change it. Here it is in a file beside the library. So whoever has the right to mount file systems, as a
//! privileged container has, may write to that file system through a mount of his own, which nobody else sees.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, open, statvfs};
use rustix::mount::{OpenTreeFlags, open_tree};

/// What `mount_setattr` takes.
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

const READ_ONLY: u64 = 1;

/// The file or folder, and a path by which it can be written as long as the descriptor is open.
pub(crate) fn writable(path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let file = if statvfs(path)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        let mount = open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
        make_writable(&mount)?;
        mount
    } else {
        open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?
    };
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok((file, path))
}

fn make_writable(mount: &OwnedFd) -> io::Result<()> {
    let attributes = Attributes { set: 0, clear: READ_ONLY, propagation: 0, user_namespace: 0 };
    // SAFETY: an empty path that ends, and a struct of the size that is told.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            AtFlags::EMPTY_PATH.bits(),
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

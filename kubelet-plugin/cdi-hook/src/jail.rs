//! Leaving the host's files and rights behind.

use std::io;

use nix::sched::CloneFlags;
use rustix::{
    fs::CWD,
    io::Errno,
    mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags},
    thread::{CapabilitySet, CapabilitySets},
};

use crate::rootfs::Rootfs;

/// Makes the container's root this process's root, in a mount namespace of its own, with nothing of the host reachable.
pub(crate) fn enter(rootfs: &Rootfs) -> io::Result<()> {
    // A descriptor keeps pointing into the namespace that it was opened in; the working folder goes along.
    rustix::process::fchdir(rootfs)?;
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)?;
    rustix::mount::mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // A root must be a mount point.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let root = rustix::mount::open_tree(CWD, c".", flags)?;
    let from_root = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&root, c"", CWD, c".", from_root)?;
    rustix::process::fchdir(&root)?;
    match rustix::process::pivot_root(c".", c".") {
        // The old root now lies over the new one.
        Ok(()) => rustix::mount::unmount(c".", UnmountFlags::DETACH)?,
        // The root of a host that runs from its initial RAM disk can't be replaced, only covered.
        Err(Errno::INVAL) => {
            rustix::mount::move_mount(&root, c"", CWD, c"/", from_root)?;
            rustix::process::chroot(c".")?;
        }
        Err(error) => return Err(error.into()),
    }
    rustix::process::chdir(c"/")?;
    Ok(())
}

/// Leaves only the right to write to files of any owner. The program that follows reads files of the image.
pub(crate) fn drop_rights() -> io::Result<()> {
    let kept = CapabilitySet::DAC_OVERRIDE;
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if capability == kept {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Past the kernel's last one.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

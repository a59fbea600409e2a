//! The files by which the driver grants the use of partitions: what the kernel module has in `/proc/driver/nvidia`, and the
//! device nodes that belong to them. They come and go with the partitions.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::state::{Gpu, MAX_COMPUTE_INSTANCES, MAX_GPU_INSTANCES};
use crate::writable::writable;

/// The number of the character devices.
pub const MAJOR: u32 = 237;

/// The right to change partitions.
pub const CONFIG: u32 = 1;

/// The right to watch partitions.
pub const MONITOR: u32 = 2;

const MODE: u32 = 0o444;

/// The minor number of a GPU instance.
pub fn gpu_instance(gpu_minor: u32, gpu_instance: usize) -> u32 {
    3 + 135 * gpu_minor + 9 * u32::try_from(gpu_instance).unwrap_or_default()
}

/// The minor number of a compute instance.
pub fn compute_instance(gpu_minor: u32, of: usize, compute_instance: usize) -> u32 {
    gpu_instance(gpu_minor, of) + 1 + u32::try_from(compute_instance).unwrap_or_default()
}

/// The device node of a minor number.
pub fn node(dev: &Path, minor: u32) -> PathBuf {
    dev.join(format!("nvidia-caps/nvidia-cap{minor}"))
}

/// What a file in `/proc` says.
pub fn access(minor: u32, mode: u32) -> String {
    format!("DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")
}

/// All minor numbers that there can be: the contents of `/proc/driver/nvidia-caps/mig-minors`.
pub fn minors() -> String {
    let mut text = format!("config {CONFIG}\nmonitor {MONITOR}\n");
    for gpu in 0..32 {
        for of in 0..MAX_GPU_INSTANCES {
            // Writing to a string can't fail.
            let _ = writeln!(text, "gpu{gpu}/gi{of}/access {}", gpu_instance(gpu, of));
            for id in 0..MAX_COMPUTE_INSTANCES {
                let _ = writeln!(text, "gpu{gpu}/gi{of}/ci{id}/access {}", compute_instance(gpu, of, id));
            }
        }
    }
    text
}

/// Where a node has these files.
pub struct Caps {
    /// What says where they are; keeps the folder writable.
    _root: OwnedFd,
    /// The folder for the kernel module's files.
    proc: PathBuf,
    dev: PathBuf,
}

impl Caps {
    /// The files below a driver's root and a folder for device nodes. Whoever may mount file systems may write them, even if
    /// the root is mounted read-only here: to him the kernel module says yes on a real node, too.
    pub fn open(root: &Path, dev: &Path) -> io::Result<Self> {
        let (root, path) = writable(root)?;
        Ok(Self { _root: root, proc: path.join("proc/driver/nvidia/capabilities"), dev: dev.to_owned() })
    }

    fn folder(&self, gpu: &Gpu) -> PathBuf {
        self.proc.join(format!("gpu{}/mig", gpu.minor))
    }

    /// Makes the files of all partitions of a GPU.
    pub fn add(&self, gpu: &Gpu) -> io::Result<()> {
        let folder = self.folder(gpu);
        fs::create_dir_all(&folder)?;
        for (of, instance) in there(gpu) {
            let folder = folder.join(format!("gi{of}"));
            self.put(&folder, gpu_instance(gpu.minor, of))?;
            for (id, _) in instance.compute_instances() {
                self.put(&folder.join(format!("ci{id}")), compute_instance(gpu.minor, of, id))?;
            }
        }
        Ok(())
    }

    fn put(&self, folder: &Path, minor: u32) -> io::Result<()> {
        let file = folder.join("access");
        if !file.exists() {
            fs::create_dir_all(folder)?;
            // It is whole as soon as it has its name.
            let new = folder.join(".access");
            fs::write(&new, access(minor, MODE))?;
            fs::set_permissions(&new, fs::Permissions::from_mode(MODE))?;
            fs::rename(new, file)?;
        }
        let node = node(&self.dev, minor);
        if !node.exists() {
            mknodat(CWD, &node, FileType::CharacterDevice, Mode::from_raw_mode(MODE), makedev(MAJOR, minor))?;
            fs::set_permissions(&node, fs::Permissions::from_mode(MODE))?;
        }
        Ok(())
    }

    /// Removes the files of partitions that a GPU doesn't have any more.
    pub fn prune(&self, gpu: &Gpu) -> io::Result<()> {
        let wanted = there(gpu).flat_map(|(of, instance)| {
            let compute = instance.compute_instances().map(move |(id, _)| compute_instance(gpu.minor, of, id));
            std::iter::once(gpu_instance(gpu.minor, of)).chain(compute)
        });
        let wanted = wanted.collect::<BTreeSet<_>>();
        let is_wanted = |minor: u32| wanted.contains(&minor);
        let folder = self.folder(gpu);
        for of in 0..MAX_GPU_INSTANCES {
            let folder = folder.join(format!("gi{of}"));
            for id in 0..MAX_COMPUTE_INSTANCES {
                let minor = compute_instance(gpu.minor, of, id);
                if !is_wanted(minor) {
                    absent(fs::remove_file(node(&self.dev, minor)))?;
                    absent(fs::remove_dir_all(folder.join(format!("ci{id}"))))?;
                }
            }
            let minor = gpu_instance(gpu.minor, of);
            if !is_wanted(minor) {
                absent(fs::remove_file(node(&self.dev, minor)))?;
                absent(fs::remove_dir_all(folder))?;
            }
        }
        Ok(())
    }
}

fn there(gpu: &Gpu) -> impl Iterator<Item = (usize, &crate::state::GpuInstance)> {
    gpu.gpu_instances.iter().enumerate().filter(|(_, instance)| instance.is_there != 0)
}

/// That something isn't there is as good as that it was removed.
fn absent(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

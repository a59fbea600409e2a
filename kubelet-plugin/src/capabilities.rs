//! The device nodes by which the driver lets a process use a MIG device: one of its GPU instance, one of its compute instance.
//!
//! The nodes may not exist yet when a container is prepared, so their numbers come from procfs, where the driver tells them.

use std::path::{Path, PathBuf};

use aliquot_device::cdi::DeviceNode;
use aliquot_device::prepare::MigInstance;

use crate::files::{self, FileError};

/// The driver's own name for these devices, in `/proc/devices`.
const DEVICES: &str = "nvidia-caps";

/// What the driver says of them can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CapabilityError {
    /// The file system failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no such file, or nothing in it.
    #[error("no {what} in {}", .places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or "))]
    Missing {
        /// What was looked for.
        what: &'static str,
        /// Where.
        places: Vec<PathBuf>,
    },
}

/// The nodes of a MIG device of GPU `minor`. `procs` are where the driver's procfs may be, best first.
pub(crate) fn nodes(procs: &[PathBuf], minor: u32, mig: MigInstance) -> Result<Vec<DeviceNode>, CapabilityError> {
    let major = find(procs, Path::new("devices"), DEVICES, |text| {
        text.lines().find_map(|line| line.trim().split_once(' ').filter(|(_, name)| *name == DEVICES)?.0.parse().ok())
    })?;
    let instance = format!("driver/nvidia/capabilities/gpu{minor}/mig/gi{}", mig.gpu_instance);
    let paths = [format!("{instance}/access"), format!("{instance}/ci{}/access", mig.compute_instance)];
    paths
        .iter()
        .map(|path| {
            let minor: u32 = find(procs, Path::new(path), "DeviceFileMinor", |text| value(text, "DeviceFileMinor"))?;
            let mode = find(procs, Path::new(path), "DeviceFileMode", |text| value(text, "DeviceFileMode"))?;
            Ok(DeviceNode::new(format!("/dev/nvidia-caps/nvidia-cap{minor}"), major, minor, mode))
        })
        .collect()
}

fn find<T>(
    procs: &[PathBuf],
    path: &Path,
    what: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, CapabilityError> {
    for proc in procs {
        let content = files::read(&proc.join(path))?.unwrap_or_default();
        if let Some(value) = parse(&String::from_utf8_lossy(&content)) {
            return Ok(value);
        }
    }
    Err(CapabilityError::Missing { what, places: procs.iter().map(|proc| proc.join(path)).collect() })
}

/// `name: value` on a line.
fn value(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name)?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn numbers_come_from_the_first_place_that_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let (host, driver) = (folder.path().join("host"), folder.path().join("driver"));
        let instance = driver.join("driver/nvidia/capabilities/gpu2/mig/gi7");
        fs::create_dir_all(instance.join("ci0")).unwrap();
        fs::create_dir_all(&host).unwrap();
        fs::write(host.join("devices"), "Character devices:\n  1 mem\n").unwrap();
        fs::write(driver.join("devices"), "Character devices:\n195 nvidia\n237 nvidia-caps\n").unwrap();
        let access = |minor: u32| format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        fs::write(instance.join("access"), access(336)).unwrap();
        fs::write(instance.join("ci0/access"), access(337)).unwrap();

        let mig = MigInstance { gpu_instance: 7, compute_instance: 0 };
        let found = nodes(&[host.clone(), driver.clone()], 2, mig).unwrap();
        let numbers: Vec<_> =
            found.iter().map(|node| (node.path.as_str(), node.major, node.minor, node.file_mode)).collect();
        let expected =
            [("/dev/nvidia-caps/nvidia-cap336", 237, 336, 0o444), ("/dev/nvidia-caps/nvidia-cap337", 237, 337, 0o444)];
        assert_eq!(numbers, expected);

        let gone = MigInstance { gpu_instance: 8, compute_instance: 0 };
        let error = nodes(&[host, driver], 2, gone).unwrap_err().to_string();
        assert!(error.starts_with("no DeviceFileMinor in") && error.contains("gpu2/mig/gi8/access"), "{error}");
    }
}

//! Where a GPU is in its machine. NVML doesn't tell all of it; sysfs does, driver or not.

use std::fs;
use std::path::Path;

use aliquot_api::ids::PciAddress;

use crate::files;

/// What sysfs says about a PCI function. What it doesn't say is absent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The NUMA node that it is close to, where there is more than none.
    pub numa_node: Option<u32>,
    /// The root complex that it hangs off: `pci0000:17`.
    pub pcie_root: Option<String>,
}

/// NVIDIA's number among PCI's vendors.
const VENDOR: &str = "0x10de";

/// The addresses of the machine's GPUs, whether a driver has them or not.
pub(crate) fn gpus(sys_root: &Path) -> Vec<PciAddress> {
    let devices = sys_root.join("bus/pci/devices");
    let says = |device: &str, file: &str, start: &str| {
        fs::read_to_string(devices.join(device).join(file)).is_ok_and(|text| text.starts_with(start))
    };
    // A display controller, with or without a display.
    let is_gpu = |device: &String| says(device, "vendor", VENDOR) && says(device, "class", "0x03");
    let names = files::list(&devices).unwrap_or_default();
    names.iter().filter(|name| is_gpu(name)).filter_map(|name| name.parse().ok()).collect()
}

/// Looks up a PCI function.
pub(crate) fn place(sys_root: &Path, address: PciAddress) -> Place {
    let device = sys_root.join("bus/pci/devices").join(address.to_string());
    let numa_node = fs::read_to_string(device.join("numa_node"))
        .ok()
        // -1 means that the machine has no opinion.
        .and_then(|text| text.trim().parse().ok());
    let pcie_root = fs::canonicalize(&device).ok().and_then(|path| {
        let is_root = |part: &&str| part.strip_prefix("pci").is_some_and(|rest| rest.contains(':'));
        path.iter().filter_map(|part| part.to_str()).find(is_root).map(str::to_owned)
    });
    Place { numa_node, pcie_root }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_function_behind_bridges_is_placed() {
        let folder = tempfile::tempdir().unwrap();
        let sys = folder.path();
        let device = sys.join("devices/pci0000:17/0000:17:01.0/0000:1b:00.0");
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(sys.join("bus/pci/devices")).unwrap();
        symlink("../../../devices/pci0000:17/0000:17:01.0/0000:1b:00.0", sys.join("bus/pci/devices/0000:1b:00.0"))
            .unwrap();
        for (text, numa_node) in [("1\n", Some(1)), ("-1\n", None), ("", None)] {
            fs::write(device.join("numa_node"), text).unwrap();
            let expected = Place { numa_node, pcie_root: Some("pci0000:17".to_owned()) };
            assert_eq!(place(sys, "0000:1b:00.0".parse().unwrap()), expected);
        }
        assert_eq!(place(sys, "0000:43:00.0".parse().unwrap()), Place::default());

        assert_eq!(gpus(sys), []);
        for (vendor, class, found) in [("0x10de", "0x030200", 1), ("0x10de", "0x040300", 0), ("0x8086", "0x030000", 0)]
        {
            fs::write(device.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(device.join("class"), format!("{class}\n")).unwrap();
            assert_eq!(gpus(sys).len(), found, "{vendor} {class}");
        }
    }
}

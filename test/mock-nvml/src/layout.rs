//! The files of a GPU driver, as on a node with such GPUs.
//!
//! Laying out twice makes what laying out once makes; a node that boots again, or as another machine, needs no cleaning up.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use aliquot_api::ids::PciAddress;
use aliquot_machine::{Machine, PcieRoot};
use nvidia_ml_mock::caps::{self, Caps};
use nvidia_ml_mock::state::{FILE_PREFIX, State, Writer};

use crate::compile::VENDOR;
use crate::elf;
use crate::files::{FileError, names, put, put_link, put_node, put_state, remove};
use crate::inspect::state_files;

/// Why a driver can't be laid out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayoutError {
    #[error("--root {}: that would replace this machine's own files; name a folder of its own", .0.display())]
    Root(PathBuf),
    #[error("--library {}: {source}", path.display())]
    Library { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Libraries that a driver has beside NVML: what their names begin with, and the version in the name that programs look
/// for. Those without one are found by the driver's version.
const LIBRARIES: [(&str, Option<u32>); 10] = [
    ("libcuda", Some(1)),
    ("libcudadebugger", Some(1)),
    ("libnvcuvid", Some(1)),
    ("libnvidia-allocator", Some(1)),
    ("libnvidia-cfg", Some(1)),
    ("libnvidia-encode", Some(1)),
    ("libnvidia-gpucomp", None),
    ("libnvidia-nvvm", Some(4)),
    ("libnvidia-opencl", Some(1)),
    ("libnvidia-ptxjitcompiler", Some(1)),
];

/// Programs that a driver has beside `nvidia-smi`.
const PROGRAMS: [&str; 4] =
    ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-debugdump", "nvidia-persistenced"];

/// The numbers of NVIDIA's character devices.
mod major {
    pub(super) const NVIDIA: u32 = 195;
    pub(super) const CAPS: u32 = nvidia_ml_mock::caps::MAJOR;
    pub(super) const UVM: u32 = 511;
}

/// Lays out a driver for these GPUs.
pub(crate) fn layout(
    machine: &Machine,
    state: &State,
    root: &Path,
    dev: &Path,
    library: &Path,
) -> Result<(), LayoutError> {
    if root.canonicalize().is_ok_and(|root| root == Path::new("/")) {
        return Err(LayoutError::Root(root.to_owned()));
    }
    let state_path =
        root.join(machine.driver.library_dir.below_root()).join(format!("{FILE_PREFIX}{}", machine.driver.version));
    for old in state_files(root)?.iter().filter(|old| **old != state_path) {
        retire(old, Gone::Replaced)?;
    }
    let read =
        |path: &Path| std::fs::read(path).map_err(|source| LayoutError::Library { path: path.to_owned(), source });
    libraries(machine, &root.join(machine.driver.library_dir.below_root()), &read(library)?)?;
    programs(&root.join("usr/bin"), &read(Path::new("/proc/self/exe"))?)?;
    proc(machine, state, &root.join("proc"))?;
    sysfs(machine, &root.join("sys"))?;
    device_nodes(machine, state, dev)?;
    partitions(state, root, dev)?;
    // Last, because a process that finds it may expect the rest.
    put_state(&state_path, state)?;
    Ok(())
}

/// Why a driver isn't there any more.
#[derive(Clone, Copy)]
enum Gone {
    Unloaded,
    Replaced,
}

impl Gone {
    /// The result of NVML's calls.
    fn number(self) -> u32 {
        match self {
            Self::Unloaded => 9,
            Self::Replaced => 18,
        }
    }
}

/// Tells the programs that use a driver that it has gone, and removes its libraries.
fn retire(state_file: &Path, why: Gone) -> Result<(), FileError> {
    // What can't be read tells programs as much.
    if let Ok(mut writer) = Writer::open(state_file) {
        let _ = writer.update(|state| state.gone = why.number());
    }
    let folder = state_file.parent().unwrap_or(Path::new("/"));
    let version = state_file.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(FILE_PREFIX));
    let suffix = format!(".so.{}", version.unwrap_or_default());
    for name in names(folder)? {
        let path = folder.join(&name);
        let target = path.read_link().ok().and_then(|target| target.to_str().map(str::to_owned));
        if name.ends_with(&suffix) || target.is_some_and(|target| target.ends_with(&suffix) || target == "libcuda.so.1")
        {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Takes a driver away.
pub(crate) fn remove_driver(root: &Path, dev: &Path) -> Result<(), LayoutError> {
    if root.canonicalize().is_ok_and(|root| root == Path::new("/")) {
        return Err(LayoutError::Root(root.to_owned()));
    }
    for state_file in state_files(root)? {
        retire(&state_file, Gone::Unloaded)?;
    }
    for name in PROGRAMS.iter().chain(&["nvidia-smi"]) {
        remove(&root.join("usr/bin").join(name))?;
    }
    remove(&root.join("proc"))?;
    // The GPUs stay in their slots: they have no driver any more.
    let bus = root.join("sys/bus/pci");
    for gpu in names(&bus.join("drivers/nvidia"))? {
        remove(&bus.join("devices").join(gpu).join("driver"))?;
    }
    remove(&bus.join("drivers/nvidia"))?;
    for name in names(dev)?.iter().filter(|name| name.starts_with("nvidia")) {
        remove(&dev.join(name))?;
    }
    Ok(())
}

fn libraries(machine: &Machine, folder: &Path, nvml: &[u8]) -> Result<(), FileError> {
    let version = &machine.driver.version;
    let install = |name: &str, soname: &str, contents: &[u8]| {
        let file = format!("{name}.so.{version}");
        put(&folder.join(&file), contents, 0o755)?;
        if soname == file { Ok(()) } else { put_link(&folder.join(soname), Path::new(&file)) }
    };
    install("libnvidia-ml", "libnvidia-ml.so.1", nvml)?;
    for (name, soname_version) in LIBRARIES {
        let soname = match soname_version {
            Some(number) => format!("{name}.so.{number}"),
            None => format!("{name}.so.{version}"),
        };
        install(name, &soname, &elf::library(&soname))?;
    }
    put_link(&folder.join("libcuda.so"), Path::new("libcuda.so.1"))
}

fn programs(folder: &Path, nvidia_smi: &[u8]) -> Result<(), FileError> {
    put(&folder.join("nvidia-smi"), nvidia_smi, 0o755)?;
    for name in PROGRAMS {
        let script = format!("#!/bin/sh\necho '{name}: there is no GPU behind this driver' >&2\nexit 1\n");
        put(&folder.join(name), script.as_bytes(), 0o755)?;
    }
    Ok(())
}

fn proc(machine: &Machine, state: &State, proc: &Path) -> Result<(), FileError> {
    let driver = proc.join("driver/nvidia");
    let version = &machine.driver.version;
    let text = format!("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n");
    put(&driver.join("version"), text.as_bytes(), 0o444)?;
    let (nvidia, caps, uvm) = (major::NVIDIA, major::CAPS, major::UVM);
    let devices = format!(
        "Character devices:\n  1 mem\n{nvidia} nvidia\n{nvidia} nvidia-modeset\n{nvidia} nvidiactl\n\
         {caps} nvidia-caps\n{uvm} nvidia-uvm\n\nBlock devices:\n"
    );
    put(&proc.join("devices"), devices.as_bytes(), 0o444)?;
    let mut gpus = BTreeSet::new();
    for (gpu, address) in state.gpus().iter().zip(addresses(machine)) {
        let (name, uuid, minor) = (gpu.name.as_str(), gpu.uuid.as_str(), gpu.minor);
        let text = format!(
            "Model: \t\t {name}\nIRQ:   \t\t 0\nGPU UUID: \t {uuid}\nVideo BIOS: \t ??.??.??.??.??\n\
             Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t {address}\n\
             Device Minor: \t {minor}\nGPU Firmware: \t {version}\nGPU Excluded:\t No\n"
        );
        put(&driver.join("gpus").join(address.to_string()).join("information"), text.as_bytes(), 0o444)?;
        gpus.insert(address.to_string());
    }
    keep_only(&driver.join("gpus"), &gpus)?;
    let rights = driver.join("capabilities/mig");
    put(&rights.join("config"), caps::access(caps::CONFIG, 0o400).as_bytes(), 0o400)?;
    put(&rights.join("monitor"), caps::access(caps::MONITOR, 0o444).as_bytes(), 0o444)?;
    put(&proc.join("driver/nvidia-caps/mig-minors"), caps::minors().as_bytes(), 0o444)
}

/// The files of the partitions that there are at boot. Later ones are the library's business.
fn partitions(state: &State, root: &Path, dev: &Path) -> Result<(), FileError> {
    let can_be = || state.gpus().iter().filter(|gpu| gpu.mig_table != 0);
    let folders = can_be().map(|gpu| format!("gpu{}", gpu.minor));
    let folder = root.join("proc/driver/nvidia/capabilities");
    keep_only(&folder, &folders.chain(["mig".to_owned()]).collect())?;
    let make = || {
        let caps = Caps::open(root, dev)?;
        can_be().try_for_each(|gpu| caps.add(gpu).and_then(|()| caps.prune(gpu)))
    };
    make().map_err(|source| FileError::Io { path: folder.clone(), source })
}

/// The GPUs' addresses in order.
fn addresses(machine: &Machine) -> BTreeSet<PciAddress> {
    machine.gpus.iter().map(|gpu| gpu.pci.address).collect()
}

/// The ids of the root ports that GPUs are put behind: an Intel server's.
const ROOT_PORT: (u16, u16) = (0x8086, 0x352a);
const CLASS_ROOT_PORT: u32 = 0x06_0400;
const CLASS_GPU: u32 = 0x03_0200;

/// What sysfs says about a PCI device.
struct PciDevice<'a> {
    address: PciAddress,
    /// The folder in `/sys/devices`, without that.
    place: &'a Path,
    id: (u16, u16),
    subsystem: (u16, u16),
    class: u32,
    numa_node: Option<u32>,
    driver: &'a str,
}

fn sysfs(machine: &Machine, sys: &Path) -> Result<(), FileError> {
    let mut devices = BTreeSet::new();
    let mut roots = BTreeSet::new();
    let mut ports = std::collections::BTreeMap::<PcieRoot, u8>::new();
    let mut gpus = machine.gpus.iter().collect::<Vec<_>>();
    gpus.sort_by_key(|gpu| gpu.pci.address);
    for gpu in gpus {
        let Some(model) = machine.model(gpu) else { continue };
        let (root, address) = (gpu.pci.root, gpu.pci.address);
        roots.insert(root.to_string());
        let mut place = PathBuf::from(root.to_string());
        // A GPU on the root's own bus has no port above it.
        if address.bus != root.bus {
            let number = ports.entry(root).or_insert(0);
            *number += 1;
            let port = PciAddress { domain: root.domain, bus: root.bus, device: *number, function: 0 };
            place.push(port.to_string());
            let numa_node = gpu.numa_node;
            let (id, class) = (ROOT_PORT, CLASS_ROOT_PORT);
            put_device(
                sys,
                &PciDevice {
                    address: port,
                    place: &place,
                    id,
                    subsystem: (0, 0),
                    class,
                    numa_node,
                    driver: "pcieport",
                },
            )?;
            devices.insert(port.to_string());
        }
        place.push(address.to_string());
        let device = PciDevice {
            address,
            place: &place,
            id: (VENDOR, model.pci.device),
            subsystem: (VENDOR, model.pci.subsystem),
            class: CLASS_GPU,
            numa_node: gpu.numa_node,
            driver: "nvidia",
        };
        put_device(sys, &device)?;
        devices.insert(address.to_string());
    }
    keep_only(&sys.join("bus/pci/devices"), &devices)?;
    for driver in ["nvidia", "pcieport"] {
        keep_only(&sys.join("bus/pci/drivers").join(driver), &devices)?;
    }
    keep_only(&sys.join("devices"), &roots)
}

fn put_device(sys: &Path, device: &PciDevice<'_>) -> Result<(), FileError> {
    let folder = sys.join("devices").join(device.place);
    let numa_node = device.numa_node.map_or_else(|| "-1".to_owned(), |node| node.to_string());
    let files = [
        ("vendor", format!("{:#06x}", device.id.0)),
        ("device", format!("{:#06x}", device.id.1)),
        ("subsystem_vendor", format!("{:#06x}", device.subsystem.0)),
        ("subsystem_device", format!("{:#06x}", device.subsystem.1)),
        ("class", format!("{:#08x}", device.class)),
        ("numa_node", numa_node),
    ];
    for (name, text) in files {
        put(&folder.join(name), format!("{text}\n").as_bytes(), 0o444)?;
    }
    let up = |levels: usize| "../".repeat(levels);
    let levels = device.place.components().count();
    let address = device.address.to_string();
    let (place, driver) = (device.place.display(), device.driver);
    put_link(&folder.join("driver"), Path::new(&format!("{}bus/pci/drivers/{driver}", up(levels + 1))))?;
    put_link(&folder.join("subsystem"), Path::new(&format!("{}bus/pci", up(levels + 1))))?;
    put_link(
        &sys.join("bus/pci/drivers").join(driver).join(&address),
        Path::new(&format!("{}devices/{place}", up(4))),
    )?;
    put_link(&sys.join("bus/pci/devices").join(&address), Path::new(&format!("{}devices/{place}", up(3))))
}

fn device_nodes(machine: &Machine, state: &State, dev: &Path) -> Result<(), FileError> {
    let minors = machine.gpus.iter().map(|gpu| gpu.minor).collect::<BTreeSet<_>>();
    for name in names(dev)? {
        let minor = name.strip_prefix("nvidia").and_then(|digits| digits.parse::<u32>().ok());
        if minor.is_some_and(|minor| !minors.contains(&minor)) {
            remove(&dev.join(name))?;
        }
    }
    for minor in minors {
        put_node(&dev.join(format!("nvidia{minor}")), major::NVIDIA, minor, 0o666)?;
    }
    put_node(&dev.join("nvidiactl"), major::NVIDIA, 255, 0o666)?;
    put_node(&dev.join("nvidia-modeset"), major::NVIDIA, 254, 0o666)?;
    put_node(&dev.join("nvidia-uvm"), major::UVM, 0, 0o666)?;
    put_node(&dev.join("nvidia-uvm-tools"), major::UVM, 1, 0o666)?;
    // The rights to change and to watch partitions.
    put_node(&caps::node(dev, caps::CONFIG), major::CAPS, caps::CONFIG, 0o400)?;
    put_node(&caps::node(dev, caps::MONITOR), major::CAPS, caps::MONITOR, 0o444)?;
    // Those of GPUs that can be partitioned are seen to with the partitions.
    let of_gpu = |minor: u32| caps::gpu_instance(minor, 0)..caps::gpu_instance(minor + 1, 0);
    let can_be = state.gpus().iter().filter(|gpu| gpu.mig_table != 0);
    let folder = dev.join("nvidia-caps");
    for name in names(&folder)? {
        let minor = name.strip_prefix("nvidia-cap").and_then(|digits| digits.parse::<u32>().ok());
        let is_of_none = |minor: u32| !can_be.clone().any(|gpu| of_gpu(gpu.minor).contains(&minor));
        if minor.is_some_and(|minor| minor > caps::MONITOR && is_of_none(minor)) {
            remove(&folder.join(name))?;
        }
    }
    Ok(())
}

/// Removes what isn't to be in a folder.
fn keep_only(folder: &Path, wanted: &BTreeSet<String>) -> Result<(), FileError> {
    for name in names(folder)?.iter().filter(|name| !wanted.contains(*name)) {
        remove(&folder.join(name))?;
    }
    Ok(())
}

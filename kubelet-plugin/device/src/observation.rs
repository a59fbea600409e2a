//! What the hardware and its driver said, once, in Aliquot's words. Whatever a machine can't tell is absent, never zero.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_api::ids::{GpuUuid, PciAddress};

/// A look at a node's GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observation {
    /// The driver, where it answered.
    pub driver: Option<Driver>,
    /// The GPUs that answered, in PCI order.
    pub gpus: Vec<Gpu>,
    /// What didn't answer: each names its GPU.
    pub problems: Vec<Problem>,
    /// Critical errors (XID) of GPUs, also of those that don't answer any more: each number once, oldest first.
    pub xids: BTreeMap<PciAddress, Vec<u64>>,
}

/// The versions of a GPU driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// The kernel driver's and its libraries' version, as they print it: `570.124.06`.
    pub version: String,
    /// The newest CUDA that it serves: major, minor.
    pub cuda: Option<(u32, u32)>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// What it is known by for ever.
    pub uuid: GpuUuid,
    /// Where it is.
    pub pci: PciAddress,
    /// N of its `/dev/nvidiaN`.
    pub minor: u32,
    /// The model, as the driver prints it.
    pub product_name: Option<String>,
    /// The brand, as the driver's tools print it.
    pub brand: Option<String>,
    /// The generation, as the driver's tools print it.
    pub architecture: Option<String>,
    /// CUDA compute capability: major, minor.
    pub compute_capability: Option<(u32, u32)>,
    /// Memory in bytes. GPUs that share the machine's memory have none of their own.
    pub memory: Option<u64>,
    /// The NUMA node that it is close to.
    pub numa_node: Option<u32>,
    /// The PCIe root complex that it hangs off, as `pci0000:17`.
    pub pcie_root: Option<String>,
    /// How it is linked to other GPUs, or why that can't be told: it can be had all the same.
    pub nvlink: Result<NvLink, String>,
    /// Its MIG devices, where MIG mode is on: then it can't be had as a whole.
    pub mig: Option<Vec<Mig>>,
}

impl Gpu {
    /// A GPU that tells nothing but where it is.
    pub fn new(uuid: GpuUuid, pci: PciAddress, minor: u32) -> Self {
        Self {
            uuid,
            pci,
            minor,
            product_name: None,
            brand: None,
            architecture: None,
            compute_capability: None,
            memory: None,
            numa_node: None,
            pcie_root: None,
            nvlink: Ok(NvLink::default()),
            mig: None,
        }
    }
}

/// What a GPU has of NVLink.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NvLink {
    /// Where the links that are up lead.
    pub ends: BTreeSet<LinkEnd>,
    /// The fabric, where switches serve only GPUs that have joined one.
    pub fabric: Option<Fabric>,
}

/// What is at the other end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkEnd {
    /// Another GPU.
    Gpu(PciAddress),
    /// An `NVSwitch`, wherever that is.
    Switch,
}

/// The fabric that `NVSwitches` form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    /// Not yet, or in vain.
    NotJoined,
    /// The GPU is part of it.
    Joined {
        /// Its UUID, all zero where it is that of one machine.
        cluster: [u8; 16],
        /// The number of the GPUs in it that reach each other.
        clique: u32,
    },
}

/// A MIG device: a compute instance in a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mig {
    /// What it is known by until it is destroyed.
    pub uuid: GpuUuid,
    /// The GPU instance's id on its GPU.
    pub gpu_instance: u32,
    /// The compute instance's id in its GPU instance.
    pub compute_instance: u32,
    /// As the driver's tools print it: `1g.10gb`, `1c.3g.40gb`, `1g.10gb+me`.
    pub profile: String,
    /// Where it starts on its GPU, in memory slices.
    pub start: u32,
    /// Whether the compute instance has all of its GPU instance.
    pub is_whole_instance: bool,
    /// Memory in bytes, which compute instances of one GPU instance share.
    pub memory: u64,
    /// Engines and multiprocessors.
    pub engines: Engines,
}

/// What a MIG device has besides memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Engines {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Copy engines.
    pub copy: u32,
    /// Video decoders.
    pub decoders: u32,
    /// Video encoders.
    pub encoders: u32,
    /// JPEG decoders.
    pub jpeg: u32,
    /// Optical flow accelerators.
    pub ofa: u32,
}

/// A GPU that failed to answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("GPU {}: {reason}", place(*.index, *.pci))]
pub struct Problem {
    /// Its place in the driver's list.
    pub index: u32,
    /// Its address, where that is known.
    pub pci: Option<PciAddress>,
    /// What went wrong.
    pub reason: String,
}

fn place(index: u32, pci: Option<PciAddress>) -> String {
    pci.map_or_else(|| format!("at index {index}"), |pci| pci.to_string())
}

//! The machine file: the GPUs and the GPU driver of one kind of node, written down by hand.
//!
//! Everything that needs a machine without having one reads it from here, so that a fact about a GPU is written once. A
//! model is described once and GPUs refer to it by name. Reading is strict: what isn't known is refused, and every error
//! names the path of the field, such as `gpus[3].pci.address`.

use std::collections::BTreeMap;
use std::fmt;

use aliquot_api::ids::PciAddress;
use serde::Deserialize;

mod derive;
mod mig;
mod text;

pub use mig::{Mig, Partition, Partitions, Profile, ProfileKind};
pub use text::{ClusterUuid, DriverVersion, GpuUuid, LibraryDir, MajorMinor, Malformed, MemorySize, PcieRoot};

/// A node's GPUs and its GPU driver.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Machine {
    /// The GPU driver.
    pub driver: Driver,
    /// What GPUs of one model have in common, by a name that GPUs refer to. Models that are in many machines are written
    /// once, in files of their own: whoever reads a machine file adds those before it validates the machine.
    #[serde(default)]
    pub models: BTreeMap<String, Model>,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The switches that all `NVLinks` of all GPUs without a bridge lead to; none if they are outside the machine.
    #[serde(default)]
    pub nv_switches: Vec<PciAddress>,
    /// The NVLink fabric that the GPUs belong to.
    pub fabric: Option<Fabric>,
}

/// An NVLink fabric that has been set up.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fabric {
    /// The fabric's UUID, where it has several machines.
    pub cluster: Option<ClusterUuid>,
    /// The number of the group of GPUs that can reach each other.
    pub clique: u32,
}

/// The GPU driver.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Driver {
    /// The driver's version.
    pub version: DriverVersion,
    /// The newest CUDA version that the driver can run.
    pub cuda: MajorMinor,
    /// NVML's version, where it isn't CUDA's major version and the driver's version.
    pub nvml: Option<String>,
    /// Where the driver's libraries are, below the driver's root.
    #[serde(default)]
    pub library_dir: LibraryDir,
}

impl Driver {
    /// NVML's version.
    pub fn nvml_version(&self) -> String {
        self.nvml.clone().unwrap_or_else(|| format!("{}.{}", self.cuda.major, self.version))
    }
}

/// What GPUs of one model have in common.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Model {
    /// The name that NVML gives.
    pub product_name: String,
    /// The brand that NVML gives.
    pub brand: Brand,
    /// The chip's architecture.
    pub architecture: Architecture,
    /// The CUDA compute capability.
    pub compute_capability: MajorMinor,
    /// The GPU's own memory. A GPU that shares the processor's has no figure.
    pub memory: Option<Memory>,
    /// The size of the window through which the processor sees the GPU's memory.
    pub bar1: Option<MemorySize>,
    /// What the PCI configuration space says.
    pub pci: PciId,
    /// The board's part number.
    pub board_part_number: Option<String>,
    /// How many `NVLinks` the GPU has without a bridge, all of them up.
    #[serde(default)]
    pub nv_links: u32,
    /// Present if the GPU can be partitioned.
    pub mig: Option<Mig>,
}

/// A GPU's own memory.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Memory {
    /// All of it.
    pub total: MemorySize,
    /// What the driver and the firmware keep for themselves.
    pub reserved: MemorySize,
}

/// What a GPU's PCI configuration space says. The vendor is NVIDIA.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PciId {
    /// The device id.
    pub device: u16,
    /// The subsystem's device id.
    pub subsystem: u16,
}

/// One GPU.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gpu {
    /// The name of its model.
    pub model: String,
    /// Where it is.
    pub pci: PciPlace,
    /// The number in the name of its device node.
    pub minor: u32,
    /// The NUMA node that it is attached to, where the firmware says so.
    pub numa_node: Option<u32>,
    /// Its serial number, where it isn't derived from the node's name and the address.
    pub serial: Option<String>,
    /// Its UUID, where it isn't derived from the node's name and the address.
    pub uuid: Option<GpuUuid>,
    /// The bridge between it and another GPU.
    pub bridge: Option<Bridge>,
    /// Present if it is in MIG mode at boot.
    pub mig: Option<Partitions>,
    /// What is wrong with it from the beginning.
    pub fault: Option<Fault>,
}

/// An NVLink bridge, as one of its two GPUs has it.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bridge {
    /// Where the other GPU is.
    pub to: PciAddress,
    /// How many `NVLinks` it has, all of them up.
    pub links: u32,
}

/// How all calls about a GPU fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The GPU has fallen off the bus.
    GpuIsLost,
    /// Nobody knows why.
    Unknown,
}

/// Where a GPU is on the PCI buses.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PciPlace {
    /// Its address.
    pub address: PciAddress,
    /// The root complex above it.
    pub root: PcieRoot,
}

impl Gpu {
    /// Its UUID on the node of that name: the same each time, another one on another node.
    pub fn uuid(&self, node: &str) -> GpuUuid {
        self.uuid.unwrap_or_else(|| derive::uuid(node, self.pci.address))
    }

    /// Its serial number on the node of that name.
    pub fn serial(&self, node: &str) -> String {
        self.serial.clone().unwrap_or_else(|| derive::serial(node, self.pci.address))
    }
}

/// A brand, as NVML knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "names are all there is to say")]
pub enum Brand {
    #[serde(rename = "NVIDIA")]
    Nvidia,
    #[serde(rename = "NVIDIA RTX")]
    NvidiaRtx,
    GeForce,
    Tesla,
}

/// A chip's architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "names are all there is to say")]
pub enum Architecture {
    Turing,
    Ampere,
    Ada,
    Hopper,
    Blackwell,
}

/// The first minor number that is not a GPU's: `/dev/nvidia-modeset`.
const FIRST_RESERVED_MINOR: u32 = 254;

impl Machine {
    /// The model of one of the machine's GPUs. Always there once [`Machine::validate`] found no problem.
    pub fn model(&self, gpu: &Gpu) -> Option<&Model> {
        self.models.get(&gpu.model)
    }

    /// Checks what the fields alone can't say.
    pub fn validate(&self) -> Result<(), Problems> {
        let mut problems = Vec::new();
        for (name, model) in &self.models {
            if let Some(memory) = model.memory
                && memory.reserved > memory.total
            {
                problems.push(Problem {
                    path: format!("models.{name}.memory.reserved"),
                    what: format!("{} is more than the total of {}", memory.reserved, memory.total),
                });
            }
            let mig = model.mig.iter().flat_map(Mig::problems);
            problems.extend(mig.map(|(path, what)| Problem { path: format!("models.{name}.mig.{path}"), what }));
        }
        for (index, gpu) in self.gpus.iter().enumerate() {
            let at = |field: &str, what: String| Problem { path: format!("gpus[{index}].{field}"), what };
            if let (Some(partitions), Some(model)) = (&gpu.mig, self.model(gpu)) {
                match &model.mig {
                    Some(mig) => {
                        problems.extend(partitions.problems(mig).map(|(path, what)| at(&format!("mig.{path}"), what)));
                    }
                    None => problems.push(at("mig", format!("a {} can't be partitioned", gpu.model))),
                }
            }
            if let Some(bridge) = gpu.bridge {
                let is_other = |other: &Gpu| {
                    let back =
                        other.bridge.is_some_and(|back| back.to == gpu.pci.address && back.links == bridge.links);
                    other.pci.address == bridge.to && back
                };
                if bridge.to == gpu.pci.address || !self.gpus.iter().any(is_other) {
                    problems.push(at("bridge", format!("no bridge leads back from {}", bridge.to)));
                }
            }
            if self.model(gpu).is_none() {
                let known = self.models.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                problems.push(at("model", format!("no model is called {:?}; there are: {known}", gpu.model)));
            }
            if gpu.minor >= FIRST_RESERVED_MINOR {
                problems.push(at("minor", format!("{} is not below {FIRST_RESERVED_MINOR}", gpu.minor)));
            }
            if gpu.pci.address.domain != gpu.pci.root.domain {
                problems.push(at("pci.root", format!("{} is not in the domain of {}", gpu.pci.root, gpu.pci.address)));
            }
        }
        problems.extend(self.duplicates("pci.address", |gpu| Some(gpu.pci.address)));
        problems.extend(self.duplicates("minor", |gpu| Some(gpu.minor)));
        problems.extend(self.duplicates("uuid", |gpu| gpu.uuid));
        if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
    }

    /// The GPUs whose `field` is that of a GPU before them.
    fn duplicates<'a, T: Ord + fmt::Display + 'a>(
        &'a self,
        field: &'a str,
        value: impl Fn(&'a Gpu) -> Option<T> + 'a,
    ) -> impl Iterator<Item = Problem> + 'a {
        let mut first = BTreeMap::new();
        self.gpus.iter().enumerate().filter_map(move |(index, gpu)| {
            let value = value(gpu)?;
            let path = format!("gpus[{index}].{field}");
            if let Some(other) = first.get(&value) {
                return Some(Problem { path, what: format!("{value} is already that of gpus[{other}]") });
            }
            first.insert(value, index);
            None
        })
    }
}

/// Something in a machine file that can't be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The path of the field.
    pub path: String,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.what)
    }
}

/// All that is wrong with a machine file, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.0.iter().map(ToString::to_string).collect::<Vec<_>>();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Problems {}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
driver: {version: 580.95.05, cuda: "13.0"}
models:
  h100:
    productName: NVIDIA H100 80GB HBM3
    brand: NVIDIA
    architecture: Hopper
    computeCapability: "9.0"
    memory: {total: 81559Mi, reserved: 480Mi}
    pci: {device: 0x2330, subsystem: 0x16c1}
    mig:
      memoryUnits: 8
      profiles:
      - {name: 1g.10gb, kind: 1_SLICE, id: 19, instances: 7, memory: 9984Mi, sms: 16, copy: 1, size: 1, starts: [0, 1]}
      - {name: 7g.80gb, kind: 7_SLICE, id: 0, instances: 1, memory: 81152Mi, sms: 132, copy: 8, size: 8, starts: [0]}
gpus:
- {model: h100, pci: {address: 0000:1b:00.0, root: pci0000:17}, minor: 0, numaNode: 0}
- {model: h100, pci: {address: 0000:43:00.0, root: pci0000:3d}, minor: 1, numaNode: 0}
"#;

    fn problems(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from));
        let machine: Machine = serde_yaml::from_str(&GOOD.replacen(from, to, 1)).unwrap();
        machine.validate().unwrap_err().to_string()
    }

    fn refusal(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from));
        serde_yaml::from_str::<Machine>(&GOOD.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn a_good_file_is_read() {
        let machine: Machine = serde_yaml::from_str(GOOD).unwrap();
        machine.validate().unwrap();
        assert_eq!(machine.gpus.len(), 2);
        assert_eq!(machine.driver.nvml_version(), "13.580.95.05");
        assert_eq!(machine.driver.library_dir.to_string(), "/usr/lib/x86_64-linux-gnu");
        assert_eq!(machine.model(&machine.gpus[1]).unwrap().memory.unwrap().total.bytes(), 81559 << 20);
    }

    #[test]
    fn what_cannot_be_is_named_by_its_path() {
        assert_eq!(
            problems("0000:43:00.0", "0000:1b:00.0"),
            "gpus[1].pci.address: 0000:1b:00.0 is already that of gpus[0]"
        );
        assert_eq!(problems("minor: 1", "minor: 0"), "gpus[1].minor: 0 is already that of gpus[0]");
        assert_eq!(problems("minor: 1", "minor: 255"), "gpus[1].minor: 255 is not below 254");
        assert_eq!(
            problems("{model: h100", "{model: h1000"),
            "gpus[0].model: no model is called \"h1000\"; there are: h100"
        );
        assert_eq!(
            problems("root: pci0000:3d", "root: pci0001:3d"),
            "gpus[1].pci.root: pci0001:3d is not in the domain of 0000:43:00.0"
        );
        let bridge = |to: &str| problems("minor: 0", &format!("minor: 0, bridge: {{to: {to}, links: 4}}"));
        for to in ["0000:43:00.0", "0000:1b:00.0"] {
            assert_eq!(bridge(to), format!("gpus[0].bridge: no bridge leads back from {to}"));
        }
        assert_eq!(
            problems("reserved: 480Mi", "reserved: 80Gi"),
            "models.h100.memory.reserved: 80Gi is more than the total of 81559Mi"
        );
    }

    #[test]
    fn partitions_are_checked_against_the_model() {
        let with = |mig: &str| problems("minor: 1", &format!("minor: 1, mig: {{devices: [{mig}]}}"));
        assert_eq!(
            with("{profile: 1g.5gb, start: 0}"),
            "gpus[1].mig.devices[0].profile: no profile is called \"1g.5gb\"; there are: 1g.10gb, 7g.80gb"
        );
        assert_eq!(
            with("{profile: 1g.10gb, start: 1}, {profile: 1g.10gb, start: 7}"),
            "gpus[1].mig.devices[1].start: no 1g.10gb begins at 7; one begins at: 0, 1"
        );
        let model = problems("id: 19", "id: 0");
        assert_eq!(model, "models.h100.mig.profiles[1].id: 0 is already that of 1g.10gb");
        let outside = problems("size: 8", "size: 9");
        assert_eq!(outside, "models.h100.mig.profiles[1].starts: 9 from 0 on are not within the 8 memory units");
        let twice = problems("kind: 7_SLICE", "kind: 1_SLICE");
        assert_eq!(twice, "models.h100.mig.profiles[1].kind: is already that of 1g.10gb");
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let machine: Machine =
            serde_yaml::from_str(&GOOD.replace("0000:43:00.0", "0000:1b:00.0").replace("minor: 1", "minor: 0"))
                .unwrap();
        assert_eq!(machine.validate().unwrap_err().0.len(), 2);
    }

    #[test]
    fn a_typo_is_named_by_its_path() {
        let unknown = refusal("address: 0000:43:00.0", "adress: 0000:43:00.0");
        assert!(unknown.starts_with("gpus[1].pci: unknown field `adress`, expected `address` or `root`"), "{unknown}");
        let malformed = refusal("0000:43:00.0", "0000:4g:00.0");
        assert!(
            malformed
                .starts_with("gpus[1].pci.address: PCI address \"0000:4g:00.0\" is not domain:bus:device.function"),
            "{malformed}"
        );
        let number = refusal("\"9.0\"", "9");
        assert!(number.starts_with("models.h100.computeCapability: invalid"), "{number}");
        let brand = refusal("brand: NVIDIA", "brand: Nvidia");
        assert!(brand.contains("models.h100.brand: unknown variant `Nvidia`"), "{brand}");
    }

    #[test]
    fn identities_are_stable_and_differ_between_nodes_and_addresses() {
        let machine: Machine = serde_yaml::from_str(GOOD).unwrap();
        let [first, second] = &machine.gpus[..] else { panic!("two GPUs") };
        assert_eq!(first.uuid("node-0"), first.uuid("node-0"));
        assert_eq!(first.uuid("node-0").to_string(), "GPU-90467dfb-bf50-8880-a374-1777c361f20d");
        assert_ne!(first.uuid("node-0"), second.uuid("node-0"));
        assert_ne!(first.uuid("node-0"), first.uuid("node-1"));
        assert_ne!(first.serial("node-0"), second.serial("node-0"));
        assert_eq!(first.serial("node-0").len(), 13);
    }

    #[test]
    fn a_given_identity_is_kept() {
        let uuid = "GPU-11111111-2222-3333-4444-555555555555";
        let text = GOOD.replacen("minor: 0", &format!("minor: 0, serial: '42', uuid: {uuid}"), 1);
        let machine: Machine = serde_yaml::from_str(&text).unwrap();
        assert_eq!(machine.gpus[0].uuid("node-0").to_string(), uuid);
        assert_eq!(machine.gpus[0].serial("node-0"), "42");
    }
}

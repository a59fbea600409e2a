//! The devices of a node: what each is called, what it says of itself, what preparing it takes.

use std::collections::BTreeMap;

use aliquot_api::ids::{DeviceName, PciAddress};
use aliquot_api::names::{STANDARD_DOMAIN, TYPE, TYPE_GPU, TYPE_MIG, UNHEALTHY_TAINT};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceCapacity, DeviceTaint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::numbering::Numbering;
use crate::nvlink;
use crate::observation::{Driver, Gpu, Mig, Observation};

/// The longest text that the API takes as an attribute.
const ATTRIBUTE_MAX: usize = 64;

const ISOLATION: &str = "isolation";

const NVLINK_DOMAIN: &str = "nvlinkDomain";
const NVLINK_CLIQUE: &str = "nvlinkClique";
const NV_SWITCH: &str = "nvSwitch";

/// The devices that a node offers, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    driver: Option<Driver>,
    gpus: BTreeMap<u32, Gpu>,
    domains: BTreeMap<u32, String>,
    by_name: BTreeMap<DeviceName, (u32, Option<usize>)>,
    xids: BTreeMap<PciAddress, Vec<u64>>,
}

/// What a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// The part of it, if it isn't the whole.
    pub mig: Option<&'a Mig>,
}

/// An attribute that a device has and that can't be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device {device}: attribute {attribute} is left out: {reason}")]
pub struct LeftOut {
    /// The device.
    pub device: String,
    /// The attribute.
    pub attribute: &'static str,
    /// Why.
    pub reason: String,
}

impl Inventory {
    /// Names what was observed. GPUs without a number are not offered: `numbering` has to have seen them.
    pub fn new(observation: Observation, numbering: &Numbering) -> Self {
        let gpus: BTreeMap<u32, Gpu> =
            observation.gpus.into_iter().filter_map(|gpu| Some((numbering.get(gpu.pci)?, gpu))).collect();
        let forms = gpus.iter().flat_map(|(number, gpu)| match &gpu.mig {
            None => vec![(name(*number), (*number, None))],
            Some(parts) => {
                let part = |(index, mig)| (mig_name(*number, mig), (*number, Some(index)));
                parts.iter().enumerate().map(part).collect()
            }
        });
        let by_name = forms.filter_map(|(name, place)| Some((name.parse().ok()?, place))).collect();
        let domains = nvlink::domains(&gpus);
        Self { driver: observation.driver, gpus, domains, by_name, xids: observation.xids }
    }

    /// What is behind a name.
    pub fn find(&self, device: &DeviceName) -> Option<Found<'_>> {
        let (number, part) = self.by_name.get(device)?;
        let gpu = self.gpus.get(number)?;
        let mig = match part {
            None => None,
            Some(index) => Some(gpu.mig.as_ref()?.get(*index)?),
        };
        Some(Found { gpu, mig })
    }

    /// How many devices there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The devices' names, with their GPUs.
    pub fn names(&self) -> impl Iterator<Item = (&DeviceName, &Gpu)> {
        self.by_name.iter().filter_map(|(name, (number, _))| Some((name, self.gpus.get(number)?)))
    }

    /// The critical errors (XID) of a GPU, oldest first. It needn't be among those that answer.
    pub fn xids(&self, gpu: PciAddress) -> &[u64] {
        self.xids.get(&gpu).map_or(&[], Vec::as_slice)
    }

    /// The GPUs, by number.
    pub fn gpus(&self) -> impl Iterator<Item = (u32, &Gpu)> {
        self.gpus.iter().map(|(number, gpu)| (*number, gpu))
    }

    /// What a GPU has in common with those that it reaches over NVLink.
    pub fn nvlink_domain(&self, number: u32) -> Option<&str> {
        self.domains.get(&number).map(String::as_str)
    }

    /// The part that a GPU is in of an NVLink fabric of several machines.
    pub fn nvlink_clique(&self, number: u32) -> Option<String> {
        nvlink::clique(self.gpus.get(&number)?.nvlink.as_ref().ok()?)
    }

    /// The devices as they are published, each GPU's together, and what had to be left out.
    pub fn devices(&self) -> (Vec<Vec<Device>>, Vec<LeftOut>) {
        let mut left_out = Vec::new();
        let mut all = Vec::new();
        for (number, gpu) in &self.gpus {
            all.push(match &gpu.mig {
                None => vec![self.device(*number, gpu, &mut left_out)],
                Some(parts) => parts.iter().map(|mig| self.mig_device(*number, gpu, mig, &mut left_out)).collect(),
            });
        }
        (all, left_out)
    }

    fn device(&self, number: u32, gpu: &Gpu, left_out: &mut Vec<LeftOut>) -> Device {
        let mut attributes = Attributes { device: name(number), values: BTreeMap::new(), left_out };
        attributes.text(TYPE, Some(TYPE_GPU));
        attributes.text("uuid", Some(gpu.uuid.as_str()));
        attributes.int("minor", Some(gpu.minor));
        attributes.text(ISOLATION, Some("hard"));
        self.describe(number, gpu, &mut attributes);
        // MIG devices have none of these: they reach nobody over NVLink.
        match &gpu.nvlink {
            Ok(links) => {
                attributes.text(NVLINK_DOMAIN, self.nvlink_domain(number));
                attributes.text(NVLINK_CLIQUE, self.nvlink_clique(number).as_deref());
                attributes.bool(NV_SWITCH, nvlink::has_switch(links));
            }
            Err(reason) => {
                for attribute in [NVLINK_DOMAIN, NVLINK_CLIQUE, NV_SWITCH] {
                    attributes.leave_out(attribute, reason.clone());
                }
            }
        }
        let values = attributes.values;
        let capacity =
            gpu.memory.map(|bytes| BTreeMap::from([("memory".to_owned(), capacity(binary_quantity(bytes)))]));
        let taints = self.taints(gpu);
        Device { name: name(number), attributes: Some(values), capacity, taints, ..Device::default() }
    }

    fn mig_device(&self, number: u32, gpu: &Gpu, mig: &Mig, left_out: &mut Vec<LeftOut>) -> Device {
        let name = mig_name(number, mig);
        let mut attributes = Attributes { device: name.clone(), values: BTreeMap::new(), left_out };
        attributes.text(TYPE, Some(TYPE_MIG));
        attributes.text("uuid", Some(mig.uuid.as_str()));
        attributes.text("parentUUID", Some(gpu.uuid.as_str()));
        attributes.text("profile", Some(&mig.profile));
        // Compute instances of one GPU instance share its memory.
        attributes.text(ISOLATION, Some(if mig.is_whole_instance { "hard" } else { "none" }));
        self.describe(number, gpu, &mut attributes);
        let values = attributes.values;
        let engines = &mig.engines;
        let counts = [
            ("multiprocessors", engines.multiprocessors),
            ("copyEngines", engines.copy),
            ("decoders", engines.decoders),
            ("encoders", engines.encoders),
            ("jpegEngines", engines.jpeg),
            ("ofaEngines", engines.ofa),
        ];
        let counts = counts.into_iter().map(|(key, count)| (key.to_owned(), capacity(count.to_string())));
        let memory = ("memory".to_owned(), capacity(binary_quantity(mig.memory)));
        let (capacity, taints) = (Some(counts.chain([memory]).collect()), self.taints(gpu));
        Device { name, attributes: Some(values), capacity, taints, ..Device::default() }
    }

    /// Nobody new gets a GPU with a critical error. The first one stands for those that it led to.
    fn taints(&self, gpu: &Gpu) -> Option<Vec<DeviceTaint>> {
        let xid = self.xids(gpu.pci).first()?;
        Some(vec![DeviceTaint {
            key: UNHEALTHY_TAINT.to_owned(),
            value: Some(xid.to_string()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        }])
    }

    /// What is true of a GPU and of each part of it.
    fn describe(&self, number: u32, gpu: &Gpu, attributes: &mut Attributes<'_>) {
        attributes.int("index", Some(number));
        attributes.text("productName", gpu.product_name.as_deref());
        attributes.text("brand", gpu.brand.as_deref());
        attributes.text("architecture", gpu.architecture.as_deref());
        attributes
            .version("cudaComputeCapability", gpu.compute_capability.map(|(major, minor)| format!("{major}.{minor}")));
        attributes.version("driverVersion", self.driver.as_ref().map(|driver| driver.version.clone()));
        let cuda = self.driver.as_ref().and_then(|driver| driver.cuda);
        attributes.version("cudaDriverVersion", cuda.map(|(major, minor)| format!("{major}.{minor}")));
        attributes.standard_text("pciBusID", Some(&gpu.pci.to_string()));
        attributes.standard_text("pcieRoot", gpu.pcie_root.as_deref());
        attributes.standard_int("numaNode", gpu.numa_node);
    }
}

fn capacity(value: String) -> DeviceCapacity {
    DeviceCapacity { request_policy: None, value: Quantity(value) }
}

fn name(number: u32) -> String {
    format!("gpu-{number}")
}

/// `gpu-0-mig-1g10gb-4`. Compute instances that share a GPU instance differ in their ids.
fn mig_name(number: u32, mig: &Mig) -> String {
    let profile = mig.profile.replace('.', "").replace('+', "-");
    let name = format!("gpu-{number}-mig-{profile}-{}", mig.start);
    if mig.is_whole_instance { name } else { format!("{name}-{}", mig.compute_instance) }
}

struct Attributes<'a> {
    device: String,
    values: BTreeMap<String, DeviceAttribute>,
    left_out: &'a mut Vec<LeftOut>,
}

impl Attributes<'_> {
    fn leave_out(&mut self, attribute: &'static str, reason: String) {
        self.left_out.push(LeftOut { device: self.device.clone(), attribute, reason });
    }

    fn put_text(&mut self, key: String, attribute: &'static str, value: Option<&str>) {
        let Some(value) = value else { return };
        if value.len() > ATTRIBUTE_MAX {
            self.leave_out(attribute, too_long(value));
        } else {
            self.values.insert(key, DeviceAttribute { string: Some(value.to_owned()), ..DeviceAttribute::default() });
        }
    }

    fn text(&mut self, attribute: &'static str, value: Option<&str>) {
        self.put_text(attribute.to_owned(), attribute, value);
    }

    fn standard_text(&mut self, attribute: &'static str, value: Option<&str>) {
        self.put_text(format!("{STANDARD_DOMAIN}/{attribute}"), attribute, value);
    }

    fn put_int(&mut self, key: String, value: Option<u32>) {
        if let Some(value) = value {
            self.values.insert(key, DeviceAttribute { int: Some(i64::from(value)), ..DeviceAttribute::default() });
        }
    }

    fn int(&mut self, attribute: &'static str, value: Option<u32>) {
        self.put_int(attribute.to_owned(), value);
    }

    fn standard_int(&mut self, attribute: &'static str, value: Option<u32>) {
        self.put_int(format!("{STANDARD_DOMAIN}/{attribute}"), value);
    }

    fn bool(&mut self, attribute: &'static str, value: Option<bool>) {
        if let Some(value) = value {
            let value = DeviceAttribute { bool: Some(value), ..DeviceAttribute::default() };
            self.values.insert(attribute.to_owned(), value);
        }
    }

    fn version(&mut self, attribute: &'static str, value: Option<String>) {
        let Some(value) = value else { return };
        match semantic_version(&value) {
            Some(version) if version.len() <= ATTRIBUTE_MAX => {
                let version = DeviceAttribute { version: Some(version), ..DeviceAttribute::default() };
                self.values.insert(attribute.to_owned(), version);
            }
            Some(_) => self.leave_out(attribute, too_long(&value)),
            None => self.leave_out(attribute, format!("{value:?} is no version")),
        }
    }
}

fn too_long(value: &str) -> String {
    format!("{value:?} is longer than {ATTRIBUTE_MAX} characters")
}

/// A driver's version as the API takes it: three numbers without leading zeros. `535.104.05` becomes `535.104.5`.
fn semantic_version(text: &str) -> Option<String> {
    let mut numbers = [0_u64; 3];
    let mut parts = text.split('.');
    for (place, number) in numbers.iter_mut().enumerate() {
        match parts.next() {
            Some(part) => *number = part.parse().ok()?,
            None if place > 0 => {}
            None => return None,
        }
    }
    parts.next().is_none().then(|| numbers.map(|number| number.to_string()).join("."))
}

/// Bytes as Kubernetes prints them, so that what is read back equals what was written.
fn binary_quantity(bytes: u64) -> String {
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut value = bytes;
    let mut suffix = 0;
    while value != 0 && value.is_multiple_of(1024) && suffix + 1 < suffixes.len() {
        value /= 1024;
        suffix += 1;
    }
    format!("{value}{}", suffixes[suffix])
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::observation::{Engines, Fabric, LinkEnd, NvLink};

    pub(crate) fn gpu(bus: &str, uuid: &str) -> Gpu {
        let fabric = Fabric::Joined { cluster: [0; 16], clique: 0 };
        Gpu {
            product_name: Some("NVIDIA H100 80GB HBM3".to_owned()),
            brand: Some("Nvidia".to_owned()),
            architecture: Some("Hopper".to_owned()),
            compute_capability: Some((9, 0)),
            memory: Some(81559 << 20),
            numa_node: Some(0),
            pcie_root: Some("pci0000:17".to_owned()),
            nvlink: Ok(NvLink { ends: [LinkEnd::Switch].into(), fabric: Some(fabric) }),
            ..Gpu::new(uuid.parse().unwrap(), format!("0000:{bus}:00.0").parse().unwrap(), 0)
        }
    }

    pub(crate) fn inventory(gpus: Vec<Gpu>) -> Inventory {
        let mut numbering = Numbering::default();
        numbering.add(gpus.iter().map(|gpu| gpu.pci));
        let driver = Driver { version: "570.124.06".to_owned(), cuda: Some((12, 8)) };
        Inventory::new(Observation { driver: Some(driver), gpus, ..Observation::default() }, &numbering)
    }

    #[test]
    fn a_gpu_says_what_selectors_ask_for() {
        let (devices, left_out) = inventory(vec![gpu("1b", "GPU-a")]).devices();
        assert_eq!(left_out, []);
        let expected = serde_json::json!([{
            "name": "gpu-0",
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": "GPU-a"},
                "isolation": {"string": "hard"},
                "nvlinkDomain": {"string": "GPU-a"},
                "nvSwitch": {"bool": true},
                "index": {"int": 0},
                "minor": {"int": 0},
                "productName": {"string": "NVIDIA H100 80GB HBM3"},
                "brand": {"string": "Nvidia"},
                "architecture": {"string": "Hopper"},
                "cudaComputeCapability": {"version": "9.0.0"},
                "driverVersion": {"version": "570.124.6"},
                "cudaDriverVersion": {"version": "12.8.0"},
                "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:17"},
                "resource.kubernetes.io/numaNode": {"int": 0},
            },
            "capacity": {"memory": {"value": "81559Mi"}},
        }]);
        assert_eq!(serde_json::to_value(devices.concat()).unwrap(), expected);
    }

    pub(crate) fn mig(uuid: &str, profile: &str, gpu_instance: u32, start: u32) -> Mig {
        Mig {
            uuid: uuid.parse().unwrap(),
            gpu_instance,
            compute_instance: 0,
            profile: profile.to_owned(),
            start,
            is_whole_instance: true,
            memory: 9984 << 20,
            engines: Engines { multiprocessors: 16, copy: 1, decoders: 1, encoders: 0, jpeg: 1, ofa: 0 },
        }
    }

    #[test]
    fn a_gpu_in_mig_mode_is_its_parts() {
        let parts = vec![mig("MIG-a", "1g.10gb", 9, 4), mig("MIG-b", "1g.10gb+me", 7, 0)];
        let shared = Mig { is_whole_instance: false, compute_instance: 1, ..mig("MIG-c", "1c.2g.20gb", 3, 2) };
        let parts = [parts, vec![shared]].concat();
        let inventory = inventory(vec![Gpu { mig: Some(parts), ..gpu("1b", "GPU-a") }, gpu("43", "GPU-b")]);
        let devices = inventory.devices().0.concat();
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["gpu-0-mig-1g10gb-4", "gpu-0-mig-1g10gb-me-0", "gpu-0-mig-1c2g20gb-2-1", "gpu-1"]);
        let device = serde_json::to_value(&devices[0]).unwrap();
        let attributes = [
            ("type", "mig"),
            ("uuid", "MIG-a"),
            ("parentUUID", "GPU-a"),
            ("profile", "1g.10gb"),
            ("isolation", "hard"),
        ];
        for (attribute, value) in attributes {
            assert_eq!(device["attributes"][attribute]["string"], value);
        }
        let shared = serde_json::to_value(&devices[2]).unwrap();
        assert_eq!(shared["attributes"]["isolation"]["string"], "none");
        for attribute in ["nvlinkDomain", "nvSwitch", "minor"] {
            assert_eq!(device["attributes"].get(attribute), None);
        }
        // The whole GPU beside it is linked as ever.
        assert_eq!(inventory.nvlink_domain(1), Some("GPU-a"));
        let capacity = serde_json::json!({
            "memory": {"value": "9984Mi"}, "multiprocessors": {"value": "16"}, "copyEngines": {"value": "1"},
            "decoders": {"value": "1"}, "encoders": {"value": "0"}, "jpegEngines": {"value": "1"}, "ofaEngines": {"value": "0"},
        });
        assert_eq!(device["capacity"], capacity);
        assert_eq!(inventory.find(&names[2].parse().unwrap()).unwrap().mig.unwrap().uuid.as_str(), "MIG-c");
        assert_eq!(inventory.find(&"gpu-0".parse().unwrap()), None);
    }

    #[test]
    fn a_critical_error_taints_all_parts_of_its_gpu() {
        let gpus =
            vec![Gpu { mig: Some(vec![mig("MIG-a", "1g.10gb", 9, 4)]), ..gpu("1b", "GPU-a") }, gpu("43", "GPU-b")];
        let (sick, lost) = (gpus[0].pci, "0000:9b:00.0".parse().unwrap());
        let mut numbering = Numbering::default();
        numbering.add(gpus.iter().map(|gpu| gpu.pci));
        let xids = BTreeMap::from([(sick, vec![79, 48]), (lost, vec![64])]);
        let inventory = Inventory::new(Observation { gpus, xids, ..Observation::default() }, &numbering);
        let devices = inventory.devices().0.concat();
        let taints: Vec<_> = devices.iter().map(|device| serde_json::to_value(&device.taints).unwrap()).collect();
        let taint = serde_json::json!([{"key": "aliquot.dev/unhealthy", "value": "79", "effect": "NoSchedule"}]);
        assert_eq!(taints, [taint, serde_json::Value::Null]);
    }

    #[test]
    fn what_a_gpu_cannot_tell_is_absent() {
        let gpu = gpu("1b", "GPU-a");
        let silent = Gpu::new(gpu.uuid, gpu.pci, 0);
        let (devices, _) = inventory(vec![silent]).devices();
        assert_eq!(devices[0][0].capacity, None);
        let keys: Vec<&str> = devices[0][0].attributes.as_ref().unwrap().keys().map(String::as_str).collect();
        let expected = [
            "cudaDriverVersion",
            "driverVersion",
            "index",
            "isolation",
            "minor",
            "resource.kubernetes.io/pciBusID",
            "type",
            "uuid",
        ];
        assert_eq!(keys, expected);
    }

    #[test]
    fn an_attribute_that_the_api_would_refuse_costs_only_itself() {
        let odd = Gpu { product_name: Some("x".repeat(65)), ..gpu("1b", "GPU-a") };
        let (devices, left_out) = inventory(vec![odd]).devices();
        assert!(!devices[0][0].attributes.as_ref().unwrap().contains_key("productName"));
        let told: Vec<String> = left_out.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("device gpu-0: attribute productName is left out"), "{}", told[0]);
    }

    #[test]
    fn links_that_cannot_be_asked_for_cost_only_what_is_said_of_them() {
        let silent = Gpu { nvlink: Err("NVLink 3: unknown".to_owned()), ..gpu("1b", "GPU-a") };
        let inventory = inventory(vec![silent, gpu("43", "GPU-b")]);
        let (devices, left_out) = inventory.devices();
        let has =
            |device: usize, attribute: &str| devices[device][0].attributes.as_ref().unwrap().contains_key(attribute);
        for attribute in ["nvlinkDomain", "nvSwitch"] {
            assert!(!has(0, attribute) && has(1, attribute), "{attribute}");
        }
        assert!(has(0, "productName"));
        let told: Vec<String> = left_out.iter().map(ToString::to_string).collect();
        assert_eq!(told[0], "device gpu-0: attribute nvlinkDomain is left out: NVLink 3: unknown");
        assert_eq!(told.len(), 3);
    }

    /// The rows of the reference's table below a heading, without their examples.
    fn documented(heading: &str) -> BTreeSet<String> {
        let reference = include_str!("../../../docs/reference/devices.md");
        let section = reference.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| row.trim_end_matches(" |").rsplit_once(" | ").unwrap().0.to_owned()).collect()
    }

    #[test]
    fn the_reference_lists_what_is_published() {
        let fabric = Fabric::Joined { cluster: [1; 16], clique: 2 };
        let nvlink = Ok(NvLink { ends: [LinkEnd::Switch].into(), fabric: Some(fabric) });
        let whole = Gpu { nvlink, ..gpu("1b", "GPU-a") };
        let parted = Gpu { mig: Some(vec![mig("MIG-a", "1g.10gb", 9, 4)]), ..gpu("43", "GPU-b") };
        let devices = serde_json::to_value(inventory(vec![whole, parted]).devices().0.concat()).unwrap();
        let rows = |field: &str, start: &dyn Fn(&str, &serde_json::Value) -> String| -> BTreeSet<String> {
            let fields = [&devices[0][field], &devices[1][field]].map(|of| of.as_object().unwrap());
            let has = |name: &str| fields.map(|of| if of.contains_key(name) { "yes" } else { "no" }).join(" | ");
            fields
                .iter()
                .flat_map(|of| of.iter())
                .map(|(name, value)| format!("| {} | {}", start(name, value), has(name)))
                .collect()
        };
        let kind = |value: &serde_json::Value| value.as_object().unwrap().keys().next().unwrap().clone();
        let attributes = rows("attributes", &|name, value| format!("`{name}` | {}", kind(value)));
        assert_eq!(attributes, documented("Attributes"));
        assert_eq!(rows("capacity", &|name, _| format!("`{name}`")), documented("Capacity"));
    }

    #[test]
    fn versions_become_three_numbers() {
        let cases = [("570.124.06", Some("570.124.6")), ("9.0", Some("9.0.0")), ("1", Some("1.0.0")), ("a.b", None)];
        for (text, version) in cases {
            assert_eq!(semantic_version(text).as_deref(), version, "{text}");
        }
        assert_eq!(semantic_version("1.2.3.4"), None);
    }

    #[test]
    fn bytes_print_as_kubernetes_prints_them() {
        let cases = [(0, "0"), (1023, "1023"), (1024, "1Ki"), (81559 << 20, "81559Mi"), (24 << 30, "24Gi")];
        for (bytes, text) in cases {
            assert_eq!(binary_quantity(bytes), text);
        }
    }

    #[test]
    fn a_device_is_found_by_its_exact_name() {
        let inventory = inventory(vec![gpu("1b", "GPU-a"), gpu("43", "GPU-b")]);
        let found = |name: &str| inventory.find(&name.parse().unwrap()).map(|found| found.gpu.uuid.to_string());
        assert_eq!(found("gpu-1").as_deref(), Some("GPU-b"));
        for wrong in ["gpu-2", "gpu-01", "gpu", "1"] {
            assert_eq!(found(wrong), None, "{wrong}");
        }
    }
}

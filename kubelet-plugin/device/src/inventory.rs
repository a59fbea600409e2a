//! The devices of a node: what each is called, what it says of itself, what preparing it takes.

use std::collections::BTreeMap;

use aliquot_api::ids::DeviceName;
use aliquot_api::names::{STANDARD_DOMAIN, TYPE, TYPE_GPU, TYPE_MIG};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::numbering::Numbering;
use crate::observation::{Driver, Gpu, Mig, Observation};

/// The longest text that the API takes as an attribute.
const ATTRIBUTE_MAX: usize = 64;

/// The devices that a node offers, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    driver: Option<Driver>,
    gpus: BTreeMap<u32, Gpu>,
    by_name: BTreeMap<DeviceName, (u32, Option<usize>)>,
}

/// What a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// The part of it, if it isn't the whole.
    pub mig: Option<&'a Mig>,
}

/// An attribute that a device has and the API would refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device {device}: attribute {attribute} is left out: {value:?} {reason}")]
pub struct LeftOut {
    /// The device.
    pub device: String,
    /// The attribute.
    pub attribute: &'static str,
    /// Its value.
    pub value: String,
    /// Why the API takes no such value.
    pub reason: &'static str,
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
        Self { driver: observation.driver, gpus, by_name }
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

    /// The GPUs, by number.
    pub fn gpus(&self) -> impl Iterator<Item = (u32, &Gpu)> {
        self.gpus.iter().map(|(number, gpu)| (*number, gpu))
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
        self.describe(number, gpu, &mut attributes);
        let values = attributes.values;
        let capacity =
            gpu.memory.map(|bytes| BTreeMap::from([("memory".to_owned(), capacity(binary_quantity(bytes)))]));
        Device { name: name(number), attributes: Some(values), capacity, ..Device::default() }
    }

    fn mig_device(&self, number: u32, gpu: &Gpu, mig: &Mig, left_out: &mut Vec<LeftOut>) -> Device {
        let name = mig_name(number, mig);
        let mut attributes = Attributes { device: name.clone(), values: BTreeMap::new(), left_out };
        attributes.text(TYPE, Some(TYPE_MIG));
        attributes.text("uuid", Some(mig.uuid.as_str()));
        attributes.text("parentUUID", Some(gpu.uuid.as_str()));
        attributes.text("profile", Some(&mig.profile));
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
        Device { name, attributes: Some(values), capacity: Some(counts.chain([memory]).collect()), ..Device::default() }
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
    fn leave_out(&mut self, attribute: &'static str, value: &str, reason: &'static str) {
        self.left_out.push(LeftOut { device: self.device.clone(), attribute, value: value.to_owned(), reason });
    }

    fn put_text(&mut self, key: String, attribute: &'static str, value: Option<&str>) {
        let Some(value) = value else { return };
        if value.len() > ATTRIBUTE_MAX {
            self.leave_out(attribute, value, "is longer than 64 characters");
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

    fn version(&mut self, attribute: &'static str, value: Option<String>) {
        let Some(value) = value else { return };
        match semantic_version(&value) {
            Some(version) if version.len() <= ATTRIBUTE_MAX => {
                let version = DeviceAttribute { version: Some(version), ..DeviceAttribute::default() };
                self.values.insert(attribute.to_owned(), version);
            }
            Some(_) => self.leave_out(attribute, &value, "is longer than 64 characters"),
            None => self.leave_out(attribute, &value, "is no version"),
        }
    }
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
    use super::*;
    use crate::observation::Engines;

    pub(crate) fn gpu(bus: &str, uuid: &str) -> Gpu {
        Gpu {
            uuid: uuid.parse().unwrap(),
            pci: format!("0000:{bus}:00.0").parse().unwrap(),
            minor: 0,
            product_name: Some("NVIDIA H100 80GB HBM3".to_owned()),
            brand: Some("Nvidia".to_owned()),
            architecture: Some("Hopper".to_owned()),
            compute_capability: Some((9, 0)),
            memory: Some(81559 << 20),
            numa_node: Some(0),
            pcie_root: Some("pci0000:17".to_owned()),
            mig: None,
        }
    }

    pub(crate) fn inventory(gpus: Vec<Gpu>) -> Inventory {
        let mut numbering = Numbering::default();
        numbering.add(gpus.iter().map(|gpu| gpu.pci));
        let driver = Driver { version: "570.124.06".to_owned(), cuda: Some((12, 8)) };
        Inventory::new(Observation { driver: Some(driver), gpus, problems: vec![] }, &numbering)
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
        let attributes = [("type", "mig"), ("uuid", "MIG-a"), ("parentUUID", "GPU-a"), ("profile", "1g.10gb")];
        for (attribute, value) in attributes {
            assert_eq!(device["attributes"][attribute]["string"], value);
        }
        let capacity = serde_json::json!({
            "memory": {"value": "9984Mi"}, "multiprocessors": {"value": "16"}, "copyEngines": {"value": "1"},
            "decoders": {"value": "1"}, "encoders": {"value": "0"}, "jpegEngines": {"value": "1"}, "ofaEngines": {"value": "0"},
        });
        assert_eq!(device["capacity"], capacity);
        assert_eq!(inventory.find(&names[2].parse().unwrap()).unwrap().mig.unwrap().uuid.as_str(), "MIG-c");
        assert_eq!(inventory.find(&"gpu-0".parse().unwrap()), None);
    }

    #[test]
    fn what_a_gpu_cannot_tell_is_absent() {
        let silent = Gpu {
            product_name: None,
            brand: None,
            architecture: None,
            compute_capability: None,
            memory: None,
            numa_node: None,
            pcie_root: None,
            ..gpu("1b", "GPU-a")
        };
        let (devices, _) = inventory(vec![silent]).devices();
        assert_eq!(devices[0][0].capacity, None);
        let keys: Vec<&str> = devices[0][0].attributes.as_ref().unwrap().keys().map(String::as_str).collect();
        let expected =
            ["cudaDriverVersion", "driverVersion", "index", "minor", "resource.kubernetes.io/pciBusID", "type", "uuid"];
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

//! The devices of a node: what each is called, what it says of itself, what preparing it takes.

use std::collections::BTreeMap;

use aliquot_api::ids::DeviceName;
use aliquot_api::names::{STANDARD_DOMAIN, TYPE, TYPE_GPU};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::numbering::Numbering;
use crate::observation::{Driver, Gpu, Observation};

/// The longest text that the API takes as an attribute.
const ATTRIBUTE_MAX: usize = 64;

/// The devices that a node offers, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    driver: Option<Driver>,
    gpus: BTreeMap<u32, Gpu>,
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
        let gpus = observation.gpus.into_iter().filter_map(|gpu| Some((numbering.get(gpu.pci)?, gpu))).collect();
        Self { driver: observation.driver, gpus }
    }

    /// The GPU behind a device, and the device's number.
    pub fn gpu(&self, device: &DeviceName) -> Option<(u32, &Gpu)> {
        let number: u32 = device.as_str().strip_prefix("gpu-")?.parse().ok()?;
        let gpu = self.gpus.get(&number)?;
        (name(number) == device.as_str()).then_some((number, gpu))
    }

    /// How many GPUs there are.
    pub fn len(&self) -> usize {
        self.gpus.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// The GPUs with their devices' names, by number.
    pub fn gpus(&self) -> impl Iterator<Item = (String, &Gpu)> {
        self.gpus.iter().map(|(number, gpu)| (name(*number), gpu))
    }

    /// The devices as they are published, by number, and what had to be left out.
    pub fn devices(&self) -> (Vec<Device>, Vec<LeftOut>) {
        let mut left_out = Vec::new();
        let devices = self.gpus.iter().map(|(number, gpu)| self.device(*number, gpu, &mut left_out)).collect();
        (devices, left_out)
    }

    fn device(&self, number: u32, gpu: &Gpu, left_out: &mut Vec<LeftOut>) -> Device {
        let mut attributes = Attributes { device: name(number), values: BTreeMap::new(), left_out };
        attributes.text(TYPE, Some(TYPE_GPU));
        attributes.text("uuid", Some(gpu.uuid.as_str()));
        attributes.int("index", Some(number));
        attributes.int("minor", Some(gpu.minor));
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

        let capacity = gpu.memory.map(|bytes| {
            let value = Quantity(binary_quantity(bytes));
            BTreeMap::from([("memory".to_owned(), DeviceCapacity { request_policy: None, value })])
        });
        Device { name: name(number), attributes: Some(attributes.values), capacity, ..Device::default() }
    }
}

fn name(number: u32) -> String {
    format!("gpu-{number}")
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
        assert_eq!(serde_json::to_value(devices).unwrap(), expected);
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
        assert_eq!(devices[0].capacity, None);
        let keys: Vec<&str> = devices[0].attributes.as_ref().unwrap().keys().map(String::as_str).collect();
        let expected =
            ["cudaDriverVersion", "driverVersion", "index", "minor", "resource.kubernetes.io/pciBusID", "type", "uuid"];
        assert_eq!(keys, expected);
    }

    #[test]
    fn an_attribute_that_the_api_would_refuse_costs_only_itself() {
        let odd = Gpu { product_name: Some("x".repeat(65)), ..gpu("1b", "GPU-a") };
        let (devices, left_out) = inventory(vec![odd]).devices();
        assert!(!devices[0].attributes.as_ref().unwrap().contains_key("productName"));
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
        let found = |name: &str| inventory.gpu(&name.parse().unwrap()).map(|(_, gpu)| gpu.uuid.to_string());
        assert_eq!(found("gpu-1").as_deref(), Some("GPU-b"));
        for wrong in ["gpu-2", "gpu-01", "gpu", "1"] {
            assert_eq!(found(wrong), None, "{wrong}");
        }
    }
}

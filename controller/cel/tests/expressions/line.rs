//! What is asked of expressions and answered, here and by the Go program `oracle/cel`.

use std::collections::BTreeMap;

use aliquot_cel::{Device, Environment, Value};
use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceCapacity};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OnDisk {
    driver: String,
    #[serde(default)]
    allow_multiple_allocations: bool,
    attributes: BTreeMap<String, DeviceAttribute>,
    capacity: BTreeMap<String, DeviceCapacity>,
}

/// What is asked and answered in the table and by the Go program.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub(crate) struct Line {
    pub(crate) expression: String,
    #[serde(default = "usual")]
    pub(crate) device: String,
    #[serde(default)]
    pub(crate) attribute: bool,
    #[serde(default)]
    pub(crate) outcome: String,
    pub(crate) value: Option<DeviceAttribute>,
    pub(crate) cost: Option<u64>,
    #[serde(default)]
    pub(crate) error: String,
}

fn usual() -> String {
    "gpu".to_owned()
}

/// The devices that the expressions are about.
pub(crate) fn devices() -> serde_json::Result<BTreeMap<String, Device>> {
    let on_disk: BTreeMap<String, OnDisk> = serde_json::from_str(include_str!("devices.json"))?;
    let devices = on_disk
        .into_iter()
        .map(|(name, on_disk)| {
            let OnDisk { driver, allow_multiple_allocations, attributes, capacity } = on_disk;
            (name, Device::new(&driver, &attributes, &capacity, allow_multiple_allocations))
        })
        .collect();
    Ok(devices)
}

/// The outcome, the value of an attribute, and the cost.
pub(crate) fn answer(line: &Line, device: &Device) -> (String, Option<DeviceAttribute>, Option<u64>) {
    let compiled = if line.attribute {
        Environment.compile_attribute(&line.expression)
    } else {
        Environment.compile(&line.expression)
    };
    let Ok(program) = compiled else { return ("compileError".to_owned(), None, None) };
    match program.evaluate_with_cost(device) {
        (Ok(value), cost) if line.attribute => match DeviceAttribute::try_from(value) {
            Ok(attribute) => ("value".to_owned(), Some(without_empty(attribute)), Some(cost)),
            Err(_) => ("runtimeError".to_owned(), None, None),
        },
        (Ok(Value::Bool(matches)), cost) => (matches.to_string(), None, Some(cost)),
        _ => ("runtimeError".to_owned(), None, None),
    }
}

/// Go writes no empty lists.
fn without_empty(attribute: DeviceAttribute) -> DeviceAttribute {
    fn some<T>(list: Option<Vec<T>>) -> Option<Vec<T>> {
        list.filter(|list| !list.is_empty())
    }
    let DeviceAttribute { bools, ints, strings, versions, .. } = attribute;
    DeviceAttribute {
        bools: some(bools),
        ints: some(ints),
        strings: some(strings),
        versions: some(versions),
        ..attribute
    }
}

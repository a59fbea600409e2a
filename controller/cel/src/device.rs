//! A device, as expressions see it.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use aliquot_api::quantity::Quantity;
use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceCapacity};

use crate::error::EvaluationError;
use crate::semver::Version;
use crate::value::{Map, TypeValue, Value};

/// A device, made once and used with any number of programs.
#[derive(Debug, Clone)]
pub struct Device {
    value: Result<Value, EvaluationError>,
}

impl Device {
    /// An attribute or capacity without a domain is in that of the driver. Where it is there in both ways, the one with its
    /// domain counts; with Kubernetes that is left to chance. What can't be read makes every program fail.
    pub fn new(
        driver: &str,
        attributes: &BTreeMap<String, DeviceAttribute>,
        capacity: &BTreeMap<String, DeviceCapacity>,
        allow_multiple_allocations: bool,
    ) -> Self {
        let attributes = by_domain(driver, attributes, attribute);
        let capacity = by_domain(driver, capacity, |capacity| {
            let quantity = Quantity::from_str(&capacity.value.0).map_err(|error| error.to_string())?;
            Ok(Value::quantity(quantity, false))
        });
        let value = attributes.and_then(|attributes| {
            let entries = [
                ("driver", Value::text(driver)),
                ("allowMultipleAllocations", Value::Bool(allow_multiple_allocations)),
                ("attributes", attributes),
                ("capacity", capacity?),
            ];
            Ok(Value::map(Map::of_texts(entries.map(|(name, value)| (name.into(), value)), None)))
        });
        Self { value }
    }

    pub(crate) fn value(&self) -> Result<&Value, EvaluationError> {
        self.value.as_ref().map_err(Clone::clone)
    }
}

fn by_domain<T>(
    driver: &str,
    all: &BTreeMap<String, T>,
    read: impl Fn(&T) -> Result<Value, String>,
) -> Result<Value, EvaluationError> {
    let mut domains: BTreeMap<&str, BTreeMap<&str, Value>> = BTreeMap::new();
    let mut put = |name: &str, domain, id, value: &T, over: bool| {
        let value = read(value).map_err(|what| EvaluationError::Attribute { name: name.to_owned(), what })?;
        let ids: &mut BTreeMap<&str, Value> = domains.entry(domain).or_default();
        if over || !ids.contains_key(id) {
            ids.insert(id, value);
        }
        Ok(())
    };
    for (name, value) in all {
        match name.split_once('/') {
            Some((domain, id)) => put(name, domain, id, value, true)?,
            None => put(name, driver, name, value, false)?,
        }
    }
    let map = |ids: BTreeMap<&str, Value>| {
        Value::map(Map::of_texts(ids.into_iter().map(|(id, value)| (id.into(), value)), None))
    };
    let domains = domains.into_iter().map(|(domain, ids)| (domain.into(), map(ids)));
    Ok(Value::map(Map::of_texts(domains, Some(Value::map(Map::default())))))
}

fn version(text: &str) -> Result<Value, String> {
    let version = Version::parse(text).ok_or_else(|| format!("{text:?} is no semantic version"))?;
    Ok(Value::Semver(Arc::new(version)))
}

/// The one value that there should be.
fn attribute(attribute: &DeviceAttribute) -> Result<Value, String> {
    fn list<T>(values: &[T], value: impl Fn(&T) -> Result<Value, String>) -> Result<Value, String> {
        values.iter().map(value).collect::<Result<Vec<Value>, String>>().map(Value::list)
    }
    let all = attribute;
    if let Some(values) = &all.ints {
        return list(values, |value| Ok(Value::Int(*value)));
    }
    if let Some(values) = &all.bools {
        return list(values, |value| Ok(Value::Bool(*value)));
    }
    if let Some(values) = &all.strings {
        return list(values, |value| Ok(Value::text(value)));
    }
    if let Some(values) = &all.versions {
        return list(values, |value| version(value));
    }
    if let Some(value) = all.int {
        return Ok(Value::Int(value));
    }
    if let Some(value) = all.bool {
        return Ok(Value::Bool(value));
    }
    if let Some(value) = &all.string {
        return Ok(Value::text(value));
    }
    match &all.version {
        Some(value) => version(value),
        None => Err("has no value that is known".to_owned()),
    }
}

/// What Kubernetes makes a derived attribute of; a type becomes its name.
enum Scalar {
    Bool(bool),
    Int(i64),
    String(String),
    Version(String),
}

fn scalar(value: &Value) -> Result<Scalar, EvaluationError> {
    match value {
        Value::Bool(value) => Ok(Scalar::Bool(*value)),
        Value::Int(value) => Ok(Scalar::Int(*value)),
        Value::Semver(version) => Ok(Scalar::Version(version.to_string())),
        Value::Type(TypeValue(name)) => Ok(Scalar::String(name.to_string())),
        Value::Optional(Some(value)) => scalar(value),
        other => match other.as_text() {
            Some(text) => Ok(Scalar::String(text.to_string())),
            None => Err(EvaluationError::NotAttribute(other.type_name().to_owned())),
        },
    }
}

/// A derived attribute.
impl TryFrom<Value> for DeviceAttribute {
    type Error = EvaluationError;

    fn try_from(value: Value) -> Result<Self, EvaluationError> {
        let Value::List(values) = &value else {
            return Ok(match scalar(&value)? {
                Scalar::Bool(value) => Self { bool: Some(value), ..Self::default() },
                Scalar::Int(value) => Self { int: Some(value), ..Self::default() },
                Scalar::String(value) => Self { string: Some(value), ..Self::default() },
                Scalar::Version(value) => Self { version: Some(value), ..Self::default() },
            });
        };
        let (mut bools, mut ints, mut strings, mut versions) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for value in values.iter() {
            match scalar(value)? {
                Scalar::Bool(value) => bools.push(value),
                Scalar::Int(value) => ints.push(value),
                Scalar::String(value) => strings.push(value),
                Scalar::Version(value) => versions.push(value),
            }
        }
        let all = |count: usize| count == values.len();
        // An empty list counts as one of texts.
        if all(strings.len()) {
            Ok(Self { strings: Some(strings), ..Self::default() })
        } else if all(bools.len()) {
            Ok(Self { bools: Some(bools), ..Self::default() })
        } else if all(ints.len()) {
            Ok(Self { ints: Some(ints), ..Self::default() })
        } else if all(versions.len()) {
            Ok(Self { versions: Some(versions), ..Self::default() })
        } else {
            Err(EvaluationError::NotAttribute("a list of different types".to_owned()))
        }
    }
}

//! Attributes as constraints see them: sets of values, which are numbers here.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::DeviceAttribute;

/// The values of an attribute, sorted. Of an attribute whose type isn't known there are none.
pub(crate) type Values = Arc<[u32]>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Value {
    Int(i64),
    Bool(bool),
    String(String),
    Version(String),
}

/// Gives equal values equal numbers.
#[derive(Debug, Default)]
pub(crate) struct Interner(HashMap<Value, u32>);

impl Interner {
    /// Lists count only where the feature is on.
    pub(crate) fn values(&mut self, attribute: &DeviceAttribute, lists: bool) -> Values {
        let all: Vec<Value> = match attribute {
            DeviceAttribute { ints: Some(all), .. } if lists && !all.is_empty() => {
                all.iter().copied().map(Value::Int).collect()
            }
            DeviceAttribute { bools: Some(all), .. } if lists && !all.is_empty() => {
                all.iter().copied().map(Value::Bool).collect()
            }
            DeviceAttribute { strings: Some(all), .. } if lists && !all.is_empty() => {
                all.iter().cloned().map(Value::String).collect()
            }
            DeviceAttribute { versions: Some(all), .. } if lists && !all.is_empty() => {
                all.iter().cloned().map(Value::Version).collect()
            }
            DeviceAttribute { int: Some(one), .. } => vec![Value::Int(*one)],
            DeviceAttribute { bool: Some(one), .. } => vec![Value::Bool(*one)],
            DeviceAttribute { string: Some(one), .. } => vec![Value::String(one.clone())],
            // As text: there is only one way to write a version.
            DeviceAttribute { version: Some(one), .. } => vec![Value::Version(one.clone())],
            _ => Vec::new(),
        };
        let mut numbers: Vec<u32> = all
            .into_iter()
            .map(|value| {
                let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
                *self.0.entry(value).or_insert(next)
            })
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into()
    }
}

/// The attribute of a device under a full name. The driver's own ones may go without its name.
pub(crate) fn published<'a>(
    attributes: Option<&'a std::collections::BTreeMap<String, DeviceAttribute>>,
    driver: &str,
    name: &str,
) -> Option<&'a DeviceAttribute> {
    let attributes = attributes?;
    attributes.get(name).or_else(|| {
        let (domain, id) = name.split_once('/')?;
        if domain == driver { attributes.get(id) } else { None }
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All devices have a value in common.
    Match,
    /// No two devices have one in common.
    Distinct,
}

/// What the devices under a constraint have: all that is still in common, or each one's own, the latest last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen(Vec<Values>);

impl Seen {
    /// What there would be with one more device, or none if it may not join.
    pub(crate) fn with(&self, kind: Kind, values: &Values, lists: bool) -> Option<Values> {
        match (kind, self.0.last()) {
            // One value is compared with the next only, so the first may be of any type; a list has to be known.
            (_, None) => (!lists || !values.is_empty()).then(|| Arc::clone(values)),
            (Kind::Match, Some(last)) => {
                let common: Vec<u32> = last.iter().filter(|value| values.contains(value)).copied().collect();
                (!common.is_empty()).then(|| common.into())
            }
            (Kind::Distinct, Some(_)) => {
                let is_new = |seen: &Values| !seen.iter().any(|value| values.contains(value));
                (!values.is_empty() && self.0.iter().all(is_new)).then(|| Arc::clone(values))
            }
        }
    }

    pub(crate) fn push(&mut self, values: Values) {
        self.0.push(values);
    }

    pub(crate) fn pop(&mut self) {
        self.0.pop();
    }

    /// All that decides who may join.
    pub(crate) fn write_key(&self, kind: Kind, key: &mut Vec<u32>) {
        match kind {
            Kind::Match => match self.0.last() {
                None => key.push(u32::MAX),
                Some(last) => key.extend(last.iter()),
            },
            Kind::Distinct => {
                let start = key.len();
                key.push(u32::try_from(self.0.len().min(1)).unwrap_or(0));
                key.extend(self.0.iter().flat_map(|values| values.iter().copied()));
                if let Some(part) = key.get_mut(start + 1..) {
                    part.sort_unstable();
                }
            }
        }
        key.push(u32::MAX - 1);
    }

    /// Whether a value is taken by a device under a constraint for distinct ones.
    pub(crate) fn has(&self, value: u32) -> bool {
        self.0.iter().any(|values| values.contains(&value))
    }
}

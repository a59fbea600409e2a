//! The opaque configs that a claim or a class may carry for our driver: strict, since a misspelt limit that is ignored is a limit
//! that isn't there.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::names::CONFIG_API_VERSION;

/// A config of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Config {
    /// How a whole GPU is prepared.
    Gpu(GpuConfig),
}

impl Config {
    /// The kinds that [`parse`] knows.
    pub const KINDS: [&str; 1] = ["GpuConfig"];

    /// The kind, as written in a claim.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Gpu(_) => "GpuConfig",
        }
    }
}

/// How a whole GPU is prepared. It has no settings yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuConfig {}

impl GpuConfig {
    const FIELDS: [&str; 0] = [];
}

/// One thing that is wrong with opaque parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not an object.
    #[error("parameters must be an object with apiVersion and kind, not {found}")]
    NotAnObject {
        /// What stands there.
        found: &'static str,
    },
    /// Without apiVersion or kind.
    #[error("parameters lack {field:?}; expected apiVersion: {CONFIG_API_VERSION} and a kind")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// Of another group or version.
    #[error("apiVersion {found:?} is not known; expected {CONFIG_API_VERSION}")]
    ApiVersion {
        /// What stands there.
        found: String,
    },
    /// Of another kind.
    #[error("kind {found:?} is not known; {CONFIG_API_VERSION} has {}", Config::KINDS.join(", "))]
    Kind {
        /// What stands there.
        found: String,
    },
    /// A field that the kind doesn't have.
    #[error("field {field:?}: {kind} has no such field; it has {}", listed(.known))]
    UnknownField {
        /// The kind.
        kind: String,
        /// The field.
        field: String,
        /// The fields that it has.
        known: &'static [&'static str],
    },
    /// A wrong value.
    #[error("{kind}: {reason}")]
    Content {
        /// The kind.
        kind: String,
        /// What is wrong.
        reason: String,
    },
}

impl ConfigError {
    /// The field of the parameters that is wrong, where it is one.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::NotAnObject { .. } | Self::Content { .. } => None,
            Self::Missing { field } => Some(field),
            Self::ApiVersion { .. } => Some("apiVersion"),
            Self::Kind { .. } => Some("kind"),
            Self::UnknownField { field, .. } => Some(field),
        }
    }
}

/// Why opaque parameters are no config of ours: everything that is wrong, at least one thing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

fn listed(known: &[&str]) -> String {
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}

/// Reads the opaque parameters of a config that is addressed to our driver.
pub fn parse(parameters: &Value) -> Result<Config, ConfigErrors> {
    let Value::Object(object) = parameters else {
        return Err(ConfigError::NotAnObject { found: json_type(parameters) }.into());
    };
    let mut object = object.clone();
    let mut errors = Vec::new();
    let mut take = |field: &'static str| match object.remove(field) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(ConfigError::Missing { field }),
    };
    match take("apiVersion") {
        Ok(version) if version == CONFIG_API_VERSION => {}
        Ok(found) => errors.push(ConfigError::ApiVersion { found }),
        Err(error) => errors.push(error),
    }
    let kind = take("kind").map_err(|error| errors.push(error)).ok();
    let config = match kind.as_deref() {
        Some(kind @ "GpuConfig") => read(kind, object, &GpuConfig::FIELDS, &mut errors).map(Config::Gpu),
        Some(found) => {
            errors.push(ConfigError::Kind { found: found.to_owned() });
            None
        }
        None => None,
    };
    match config {
        Some(config) if errors.is_empty() => Ok(config),
        Some(_) | None => Err(ConfigErrors(errors)),
    }
}

/// Reads a kind's own fields. What is wrong is added to `errors`.
fn read<T: DeserializeOwned>(
    kind: &str,
    mut object: Map<String, Value>,
    known: &'static [&'static str],
    errors: &mut Vec<ConfigError>,
) -> Option<T> {
    let unknown: Vec<String> = object.keys().filter(|field| !known.contains(&field.as_str())).cloned().collect();
    for field in unknown {
        object.remove(&field);
        errors.push(ConfigError::UnknownField { kind: kind.to_owned(), field, known });
    }
    let content = |error: serde_json::Error| ConfigError::Content { kind: kind.to_owned(), reason: error.to_string() };
    serde_json::from_value(Value::Object(object)).map_err(|error| errors.push(content(error))).ok()
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_config_of_ours_is_read() {
        let parameters = json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuConfig"});
        assert_eq!(parse(&parameters), Ok(Config::Gpu(GpuConfig {})));
    }

    #[test]
    fn every_kind_is_parsed_and_names_itself() {
        for kind in Config::KINDS {
            let parameters = json!({"apiVersion": CONFIG_API_VERSION, "kind": kind});
            assert_eq!(parse(&parameters).unwrap().kind(), kind);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            (json!([]), "parameters must be an object with apiVersion and kind, not a list"),
            (
                json!({"kind": "GpuConfig"}),
                "parameters lack \"apiVersion\"; expected apiVersion: aliquot.dev/v1alpha1 and a kind",
            ),
            (
                json!({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}),
                "apiVersion \"resource.nvidia.com/v1beta1\" is not known; expected aliquot.dev/v1alpha1",
            ),
            (
                json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuConfg"}),
                "kind \"GpuConfg\" is not known; aliquot.dev/v1alpha1 has GpuConfig",
            ),
        ];
        for (parameters, message) in cases {
            assert_eq!(parse(&parameters).unwrap_err().to_string(), message);
        }
        let unknown = json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuConfig", "sharin": {}});
        let message = "field \"sharin\": GpuConfig has no such field; it has none";
        assert_eq!(parse(&unknown).unwrap_err().to_string(), message);
    }

    #[test]
    fn all_that_is_wrong_is_named_at_once() {
        let parameters = json!({"apiVersion": "aliquot.dev/v2", "kind": "GpuConfig", "a": 1, "b": 2});
        let errors = parse(&parameters).unwrap_err();
        assert_eq!(errors.0.iter().map(ConfigError::field).collect::<Vec<_>>(), ["apiVersion", "a", "b"].map(Some));
    }
}

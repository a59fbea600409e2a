//! The opaque configs that a claim or a class may carry for our driver: strict, since a misspelt limit that is ignored is a limit
//! that isn't there.

use serde::Deserialize;
use serde_json::Value;

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

/// Why opaque parameters are no config of ours.
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
    /// A field that the kind doesn't have, or a wrong value.
    #[error("{kind}: {reason}")]
    Content {
        /// The kind.
        kind: String,
        /// What is wrong.
        reason: String,
    },
}

/// Reads the opaque parameters of a config that is addressed to our driver.
pub fn parse(parameters: &Value) -> Result<Config, ConfigError> {
    let Value::Object(object) = parameters else {
        return Err(ConfigError::NotAnObject { found: json_type(parameters) });
    };
    let mut object = object.clone();
    let mut take = |field: &'static str| match object.remove(field) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(ConfigError::Missing { field }),
    };
    let (api_version, kind) = (take("apiVersion")?, take("kind")?);
    if api_version != CONFIG_API_VERSION {
        return Err(ConfigError::ApiVersion { found: api_version });
    }
    let body = Value::Object(object);
    let content = |error: serde_json::Error| ConfigError::Content { kind: kind.clone(), reason: error.to_string() };
    match kind.as_str() {
        "GpuConfig" => serde_json::from_value(body).map(Config::Gpu).map_err(content),
        _ => Err(ConfigError::Kind { found: kind }),
    }
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
        assert!(parse(&unknown).unwrap_err().to_string().starts_with("GpuConfig: unknown field `sharin`"));
    }
}

//! Configs of ours in claims, templates and classes: refused before they are stored, with everything that is wrong.

use aliquot_api::config;
use aliquot_api::ids::DriverName;
use serde_json::Value;

use crate::review::{Answer, Request};

const GROUP: &str = "resource.k8s.io";

/// The kinds that carry configs, and where.
const PLACES: [(&str, &str, &str); 3] = [
    ("ResourceClaim", "/spec/devices/config", "spec.devices.config"),
    ("ResourceClaimTemplate", "/spec/spec/devices/config", "spec.spec.devices.config"),
    ("DeviceClass", "/spec/config", "spec.config"),
];

/// Answers a review of an object that may have configs for `driver`. A bad config that is there already may stay: otherwise the object
/// couldn't be changed any more, and not even its finalizers taken off.
pub fn configs(body: &[u8], driver: &DriverName) -> Answer {
    let request = match Request::read(body) {
        Ok(request) => request,
        Err(answer) => return answer,
    };
    let place = PLACES.iter().find(|(kind, ..)| request.is_of(GROUP, kind));
    let Some((_, pointer, path)) = place.filter(|_| matches!(request.operation.as_str(), "CREATE" | "UPDATE")) else {
        return Answer::allowed(&request);
    };
    let old: Vec<&Value> = opaque(&request.old_object, pointer).map(|(_, opaque)| opaque).collect();
    let mut problems = Vec::new();
    for (index, opaque) in opaque(&request.object, pointer) {
        if opaque.get("driver").and_then(Value::as_str) != Some(driver.as_str()) || old.contains(&opaque) {
            continue;
        }
        let errors = config::parse(opaque.get("parameters").unwrap_or(&Value::Null)).err();
        for error in errors.iter().flat_map(|errors| &errors.0) {
            let field = error.field().map(|field| format!(".{field}")).unwrap_or_default();
            problems.push(format!("{path}[{index}].opaque.parameters{field}: {error}"));
        }
    }
    if problems.is_empty() { Answer::allowed(&request) } else { Answer::refused(&request, problems.join("; ")) }
}

/// The opaque configs of an object, for whatever driver, each with its place in the list.
fn opaque<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    let list = object.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    list.enumerate().filter_map(|(index, config)| Some((index, config.get("opaque")?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::review::tests::{any_json, read, review};

    fn driver() -> DriverName {
        "gpu.aliquot.dev".parse().unwrap()
    }

    fn config(driver: &str, parameters: Value) -> Value {
        json!({"opaque": {"driver": driver, "parameters": parameters}})
    }

    fn object(kind: &str, configs: &[Value]) -> Value {
        match kind {
            "ResourceClaim" => json!({"spec": {"devices": {"config": configs}}}),
            "ResourceClaimTemplate" => json!({"spec": {"spec": {"devices": {"config": configs}}}}),
            _ => json!({"spec": {"config": configs}}),
        }
    }

    fn message(kind: &str, operation: &str, object: &Value, old: &Value) -> String {
        let (allowed, patch, message) = read(&configs(&review(GROUP, kind, operation, object, old), &driver()));
        assert_eq!((allowed, patch), (message.is_empty(), None), "{message}");
        message
    }

    fn good() -> Value {
        json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuConfig"})
    }

    #[test]
    fn every_problem_is_named_with_its_place() {
        let list = [
            config("gpu.aliquot.dev", good()),
            config("gpu.aliquot.dev", json!({"apiVersion": "aliquot.dev/v2", "kind": "GpuConfg"})),
            config("other.example", json!({"kind": 1})),
            config("gpu.aliquot.dev", {
                let mut config = good();
                (config["sharin"], config["limit"]) = (json!({}), json!(1));
                config
            }),
        ];
        for (kind, path) in
            [("ResourceClaim", "spec.devices"), ("ResourceClaimTemplate", "spec.spec.devices"), ("DeviceClass", "spec")]
        {
            let expected = [
                ("1].opaque.parameters.apiVersion", "\"aliquot.dev/v2\" is not known; expected aliquot.dev/v1alpha1"),
                ("1].opaque.parameters.kind", "\"GpuConfg\" is not known; aliquot.dev/v1alpha1 has GpuConfig"),
                ("3].opaque.parameters.limit", "GpuConfig has no such field; it has none"),
                ("3].opaque.parameters.sharin", "GpuConfig has no such field; it has none"),
            ];
            let told = message(kind, "CREATE", &object(kind, &list), &Value::Null);
            let told: Vec<&str> = told.split(&format!("{path}.config[")).skip(1).collect();
            assert_eq!(told.len(), expected.len(), "{told:?}");
            for (told, (place, says)) in told.iter().zip(expected) {
                assert!(told.starts_with(place) && told.contains(says), "{told}");
            }
        }
    }

    #[test]
    fn a_bad_config_that_is_there_already_may_stay_and_no_other_comes() {
        let bad = config("gpu.aliquot.dev", json!({"kind": "Old"}));
        let old = object("DeviceClass", std::slice::from_ref(&bad));
        let moved = object("DeviceClass", &[config("gpu.aliquot.dev", good()), bad]);
        assert_eq!(message("DeviceClass", "UPDATE", &moved, &old), "");
        let worse = object("DeviceClass", &[config("gpu.aliquot.dev", json!({"kind": "Older"}))]);
        assert!(message("DeviceClass", "UPDATE", &worse, &old).starts_with("spec.config[0].opaque.parameters"));
    }

    #[test]
    fn what_is_not_asked_for_passes() {
        let bad = object("ResourceClaim", &[config("gpu.aliquot.dev", json!(1))]);
        assert_eq!(message("ResourceClaim", "DELETE", &bad, &bad), "");
        assert_eq!(message("ResourceSlice", "CREATE", &bad, &Value::Null), "");
        assert_ne!(message("ResourceClaim", "CREATE", &bad, &Value::Null), "");
    }

    proptest! {
        #[test]
        fn any_object_is_answered(objects in prop::collection::vec(any_json(), 2), parameters in any_json()) {
            let config = object("ResourceClaim", &[config("gpu.aliquot.dev", parameters)]);
            for (object, old) in [(&objects[0], &objects[1]), (&config, &objects[0])] {
                for (kind, ..) in PLACES {
                    message(kind, "UPDATE", object, old);
                }
            }
        }
    }
}

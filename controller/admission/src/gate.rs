//! The scheduling gate of pods whose claims the controller allocates.

use std::collections::BTreeSet;

use aliquot_api::names::ALLOCATION_GATE;
use serde_json::{Value, json};

use crate::review::{Answer, Request};

/// What is known of the cluster.
pub trait Lookup {
    /// The classes that a claim asks for; nothing if there is no such claim, as far as is known.
    fn claim_classes(&self, namespace: &str, name: &str) -> Option<BTreeSet<String>>;

    /// The same of a claim template.
    fn template_classes(&self, namespace: &str, name: &str) -> Option<BTreeSet<String>>;

    /// Whether a class selects devices of our driver.
    fn is_ours(&self, class: &str) -> bool;
}

/// Answers a review of a pod that is being created: one that asks for our devices waits until they are allocated.
///
/// What isn't known yet is not gated: the fence keeps its devices from kube-scheduler all the same.
pub fn gate(body: &[u8], lookup: &impl Lookup) -> Answer {
    let request = match Request::read(body) {
        Ok(request) => request,
        Err(answer) => return answer,
    };
    if !request.is_of("", "Pod") || request.operation != "CREATE" {
        return Answer::allowed(&request);
    }
    match patch(&request, lookup) {
        Some(patch) => Answer::patched(&request, &patch),
        None => Answer::allowed(&request),
    }
}

fn patch(request: &Request, lookup: &impl Lookup) -> Option<Value> {
    let spec = request.object.get("spec")?.as_object()?;
    // The API refuses a gate on a pod that has its node.
    if spec.get("nodeName").and_then(Value::as_str).is_some_and(|node| !node.is_empty()) {
        return None;
    }
    let namespace = request.namespace.as_deref()?;
    let classes = |claim: &Value| {
        let name = |field| claim.get(field).and_then(Value::as_str);
        match (name("resourceClaimName"), name("resourceClaimTemplateName")) {
            (Some(claim), _) => lookup.claim_classes(namespace, claim),
            (None, Some(template)) => lookup.template_classes(namespace, template),
            (None, None) => None,
        }
    };
    let claims = spec.get("resourceClaims")?.as_array()?;
    if !claims.iter().filter_map(classes).flatten().any(|class| lookup.is_ours(&class)) {
        return None;
    }
    let gate = json!({"name": ALLOCATION_GATE});
    match spec.get("schedulingGates") {
        None | Some(Value::Null) => Some(json!([{"op": "add", "path": "/spec/schedulingGates", "value": [gate]}])),
        Some(Value::Array(gates)) if gates.iter().any(|other| other.get("name") == gate.get("name")) => None,
        Some(Value::Array(_)) => Some(json!([{"op": "add", "path": "/spec/schedulingGates/-", "value": gate}])),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::review::tests::{any_json, read, review};

    struct Known;

    impl Lookup for Known {
        fn claim_classes(&self, namespace: &str, name: &str) -> Option<BTreeSet<String>> {
            let classes: &[&str] = match (namespace, name) {
                ("team", "ours") => &["nic.example", "gpu.aliquot.dev"],
                ("team", "theirs") => &["nic.example"],
                _ => return None,
            };
            Some(classes.iter().map(|class| (*class).to_owned()).collect())
        }

        fn template_classes(&self, namespace: &str, name: &str) -> Option<BTreeSet<String>> {
            self.claim_classes(namespace, name.strip_prefix("template-of-")?)
        }

        fn is_ours(&self, class: &str) -> bool {
            class == "gpu.aliquot.dev"
        }
    }

    fn patch_of(spec: &Value) -> Option<Value> {
        let (allowed, patch, message) =
            read(&gate(&review("", "Pod", "CREATE", &json!({"spec": spec}), &Value::Null), &Known));
        assert!(allowed, "{message}");
        patch
    }

    fn ours() -> Value {
        json!([{"name": "a", "resourceClaimName": "theirs"}, {"name": "b", "resourceClaimTemplateName": "template-of-ours"}])
    }

    #[test]
    fn pods_that_ask_for_our_devices_are_gated() {
        let whole = json!([
            {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "aliquot.dev/allocation"}]},
        ]);
        let claim = json!([{"name": "a", "resourceClaimName": "ours"}]);
        assert_eq!(patch_of(&json!({"resourceClaims": claim})), Some(whole.clone()));
        assert_eq!(patch_of(&json!({"resourceClaims": ours(), "schedulerName": "other"})), Some(whole));
    }

    #[test]
    fn other_gates_stay_and_ours_is_put_on_once() {
        let one = json!([
            {"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": "aliquot.dev/allocation"}},
        ]);
        let with = |gates: Value| patch_of(&json!({"resourceClaims": ours(), "schedulingGates": gates}));
        assert_eq!(with(json!([{"name": "example.com/a"}])), Some(one));
        assert_eq!(with(json!([{"name": "example.com/a"}, {"name": "aliquot.dev/allocation"}])), None);
    }

    #[test]
    fn what_needs_no_gate_or_can_have_none_is_left_alone() {
        for spec in [
            json!({}),
            json!({"resourceClaims": [{"name": "a", "resourceClaimName": "theirs"}]}),
            json!({"resourceClaims": [{"name": "a", "resourceClaimName": "not-there-yet"}]}),
            json!({"resourceClaims": ours(), "nodeName": "node-0"}),
        ] {
            assert_eq!(patch_of(&spec), None, "{spec}");
        }
        let pod = json!({"spec": {"resourceClaims": ours()}});
        for (group, kind, operation) in
            [("", "Pod", "UPDATE"), ("apps", "Deployment", "CREATE"), ("x", "Pod", "CREATE")]
        {
            let answer = gate(&review(group, kind, operation, &pod, &Value::Null), &Known);
            assert_eq!(read(&answer), (true, None, String::new()), "{group}/{kind} {operation}");
        }
    }

    proptest! {
        #[test]
        fn any_pod_is_allowed(object in any_json(), spec in any_json(), gates in any_json()) {
            for object in [object, json!({"spec": spec}), json!({"spec": {"resourceClaims": ours(), "schedulingGates": gates}})] {
                prop_assert!(read(&gate(&review("", "Pod", "CREATE", &object, &Value::Null), &Known)).0);
            }
        }
    }
}

//! What the planner does about pods, in a world that carries out what it says.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aliquot_allocator::{Features, Limits};
use aliquot_api::ids::ObjectName;
use aliquot_api::names::{ALLOCATION_GATE, DEVICES_ALLOCATED, FENCE_TAINT, FENCE_VALUE};
use aliquot_api::reason::Reason;
use aliquot_planner::{Action, Planner};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice};
use proptest::prelude::*;
use serde_json::{Value, json};

const DRIVER: &str = "gpu.example.com";

fn to<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn features() -> Features {
    let value = json!({
        "AdminAccess": true, "ConsumableCapacity": true, "DeviceBindingAndStatus": true, "DeviceTaints": true,
        "FractionalCapacityRange": true, "PartitionableDevices": true, "PrioritizedList": true,
    });
    to(value)
}

fn name(name: &str) -> ObjectName {
    ObjectName { namespace: "ns".into(), name: name.into() }
}

/// The API, as far as the planner has to do with it.
struct World {
    planner: Planner,
    objects: BTreeMap<(&'static str, String), Value>,
    version: u64,
    now: Duration,
    /// What was decided, in words.
    log: Vec<String>,
}

impl World {
    fn new() -> Self {
        let (planner, objects) = (Planner::new(DRIVER.into(), features()), BTreeMap::new());
        let mut world = Self { planner, objects, version: 0, now: Duration::ZERO, log: Vec::new() };
        world.class("gpu", &format!("device.driver == '{DRIVER}'"));
        world
    }

    /// Nodes, each with that many GPUs and CPUs.
    fn with(nodes: &[(&str, usize, usize)]) -> Self {
        let mut world = Self::new();
        for (name, gpus, cpus) in nodes {
            world.node(name, *gpus, *cpus);
        }
        world
    }

    /// The same, and the pod p, which waits for the claim c of one GPU.
    fn with_waiting(nodes: &[(&str, usize, usize)]) -> Self {
        let mut world = Self::with(nodes);
        world.claim("c", 1);
        world.pod("p", &["c"]);
        world
    }

    /// Somebody takes a field out of a claim's status, if it is there.
    fn take_out(&mut self, claim: &str, field: &str) {
        self.change("claim", claim, |claim| {
            if let Some(status) = claim["status"].as_object_mut() {
                status.remove(field);
            }
        });
    }

    fn class(&mut self, name: &str, expression: &str) {
        self.put(
            "class",
            json!({
                "metadata": { "name": name },
                "spec": { "selectors": [{ "cel": { "expression": expression } }] },
            }),
        );
    }

    /// A node with that many fenced GPUs and CPUs.
    fn node(&mut self, name: &str, gpus: usize, cpus: usize) {
        self.put(
            "node",
            json!({
                "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
                "status": { "allocatable": { "cpu": cpus.to_string(), "memory": "64Gi", "pods": "110" } },
            }),
        );
        self.slice(name, gpus, json!({ "key": FENCE_TAINT, "value": FENCE_VALUE, "effect": "NoSchedule" }));
    }

    fn slice(&mut self, node: &str, gpus: usize, taint: Value) {
        let devices: Vec<Value> = (0..gpus)
            .map(|index| {
                json!({
                    "name": format!("gpu-{index}"),
                    "attributes": { "kind": { "string": if index == 0 { "first" } else { "other" } } },
                    "taints": [taint],
                })
            })
            .collect();
        self.put(
            "slice",
            json!({
                "metadata": { "name": node },
                "spec": {
                    "driver": DRIVER, "nodeName": node, "devices": devices,
                    "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
                },
            }),
        );
    }

    /// A claim of GPUs.
    fn claim(&mut self, name: &str, count: usize) {
        self.claim_of(name, json!([{ "name": "gpu", "exactly": { "deviceClassName": "gpu", "count": count, "allocationMode": "ExactCount" } }]));
    }

    fn claim_of(&mut self, name: &str, requests: Value) {
        self.put(
            "claim",
            json!({
                "metadata": { "name": name, "namespace": "ns", "uid": format!("uid of {name}") },
                "spec": { "devices": { "requests": requests } },
            }),
        );
    }

    /// A gated pod with a CPU.
    fn pod(&mut self, name: &str, claims: &[&str]) {
        self.pod_with(name, claims, |_| {});
    }

    fn pod_with(&mut self, name: &str, claims: &[&str], change: impl FnOnce(&mut Value)) {
        let created =
            format!("2026-01-01T00:00:{:02}Z", self.objects.keys().filter(|(kind, _)| *kind == "pod").count());
        let claims: Vec<Value> =
            claims.iter().map(|claim| json!({ "name": claim, "resourceClaimName": claim })).collect();
        let mut pod = json!({
            "metadata": { "name": name, "namespace": "ns", "uid": format!("uid of {name}"), "creationTimestamp": created },
            "spec": {
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }],
                "resourceClaims": claims,
                "schedulingGates": [{ "name": ALLOCATION_GATE }],
            },
            "status": { "phase": "Pending" },
        });
        change(&mut pod);
        self.put("pod", pod);
    }

    fn put(&mut self, kind: &'static str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let key = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.objects.insert((kind, key), object.clone());
        Self::show(&mut self.planner, kind, object);
    }

    fn show(planner: &mut Planner, kind: &str, object: Value) {
        match kind {
            "class" => planner.apply_class(to::<DeviceClass>(object)),
            "node" => planner.apply_node(&to::<Node>(object)),
            "slice" => planner.apply_slice(to::<ResourceSlice>(object)),
            "claim" => planner.apply_claim(to::<ResourceClaim>(object)),
            "pod" => planner.apply_pod(&to::<Pod>(object)),
            _ => panic!("{kind}"),
        }
    }

    fn change(&mut self, kind: &'static str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(kind, name).clone();
        change(&mut object);
        self.put(kind, object);
    }

    fn get(&self, kind: &'static str, name: &str) -> &Value {
        &self.objects[&(kind, name.to_owned())]
    }

    fn delete(&mut self, kind: &'static str, object: &str) {
        self.objects.remove(&(kind, object.to_owned()));
        match kind {
            "pod" => self.planner.delete_pod(&name(object)),
            "claim" => self.planner.delete_claim(&name(object)),
            _ => panic!("{kind}"),
        }
    }

    /// Another process takes over.
    fn restart(&mut self) {
        self.planner = Planner::new(DRIVER.into(), features());
        for ((kind, _), object) in &self.objects {
            Self::show(&mut self.planner, kind, object.clone());
        }
    }

    fn decide(&mut self) -> Option<Action> {
        let mut id = 0;
        let limits = Limits { steps: 100_000, is_over: &|| false };
        self.planner.decide(self.now, limits, &mut || {
            id += 1;
            id.to_string()
        })
    }

    /// Carries out an action.
    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Allocate { pod, node, grants } => {
                let claims: Vec<&str> = grants.iter().map(|grant| grant.claim.name.as_str()).collect();
                self.log.push(format!("{} for {} on {node}", claims.join(" and "), pod.name));
                for grant in grants {
                    let allocation = json!(*grant.allocation);
                    self.change("claim", &grant.claim.name, |claim| claim["status"]["allocation"] = allocation);
                }
            }
            Action::LetGo { pod, was_told, .. } => {
                self.log.push(format!("go {}", pod.name));
                self.change("pod", &pod.name, |pod| {
                    pod["spec"].as_object_mut().unwrap().remove("schedulingGates");
                    if was_told {
                        pod["status"].as_object_mut().unwrap().remove("conditions");
                    }
                });
            }
            Action::Free { claim, .. } => {
                self.log.push(format!("free {}", claim.name));
                self.take_out(&claim.name, "allocation");
            }
            Action::Evict { pod, message, .. } => self.log.push(format!("evict {}: {message}", pod.name)),
            Action::Tell { pod, verdict, .. } => {
                self.log.push(format!("{} waits: {}: {}", pod.name, verdict.reason, verdict.message));
                self.change("pod", &pod.name, |pod| {
                    let condition =
                        json!({ "type": DEVICES_ALLOCATED, "status": "False", "reason": verdict.reason.as_str() });
                    pod["status"]["conditions"] = json!([condition]);
                });
            }
        }
    }

    /// All that is to do. What was decided.
    fn run(&mut self) -> Vec<String> {
        while let Some(action) = self.decide() {
            self.carry_out(action);
        }
        std::mem::take(&mut self.log)
    }

    /// kube-scheduler and kubelet do their part.
    fn start(&mut self, pod: &str, node: &str) {
        self.change("pod", pod, |pod| {
            pod["spec"]["nodeName"] = node.into();
            pod["status"] = json!({ "phase": "Running", "startTime": "2026-01-01T00:01:00Z" });
        });
        for claim in self.claims_of(pod) {
            self.change("claim", &claim, |claim| claim["status"]["reservedFor"] = json!([{ "name": pod }]));
        }
    }

    fn claims_of(&self, pod: &str) -> Vec<String> {
        let claims = self.get("pod", pod)["spec"]["resourceClaims"].as_array().unwrap();
        claims.iter().map(|claim| claim["resourceClaimName"].as_str().unwrap().to_owned()).collect()
    }

    /// The devices of each claim.
    fn held(&self) -> BTreeMap<String, Vec<String>> {
        let claims = self.objects.iter().filter(|((kind, _), _)| *kind == "claim");
        let held = claims.map(|((_, name), claim)| {
            let results = claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default();
            let device =
                |result: &Value| [&result["pool"], &result["device"]].map(|part| part.as_str().unwrap()).join("/");
            (name.clone(), results.iter().map(device).collect())
        });
        held.collect()
    }
}

#[test]
fn a_pod_gets_its_devices_and_then_goes() {
    let mut world = World::with_waiting(&[("a", 1, 8)]);
    assert_eq!(world.run(), ["c for p on a", "go p"]);
    assert_eq!(world.held()["c"], ["a/gpu-0"]);
    assert_eq!(world.run(), [""; 0]);
}

#[test]
fn nobody_gets_a_claim_that_no_pod_uses() {
    let mut world = World::with(&[("a", 1, 8)]);
    world.claim("c", 1);
    assert_eq!(world.run(), [""; 0]);
}

#[test]
fn a_taint_of_a_rule_counts_even_if_it_looks_like_the_fence() {
    let mut world = World::with(&[("a", 2, 8)]);
    let rule = json!({
        "metadata": { "name": "r" },
        "spec": {
            "deviceSelector": { "driver": DRIVER, "device": "gpu-0" },
            "taint": { "key": FENCE_TAINT, "value": FENCE_VALUE, "effect": "NoSchedule" },
        },
    });
    assert!(world.planner.apply_rule(to::<DeviceTaintRule>(rule.clone())));
    assert!(!world.planner.apply_rule(to::<DeviceTaintRule>(rule)), "the same rule needs no slices");
    world.node("a", 2, 8);
    world.claim("c", 1);
    world.pod("p", &["c"]);
    assert_eq!(world.run(), ["c for p on a", "go p"]);
    assert_eq!(world.held()["c"], ["a/gpu-1"]);
}

#[test]
fn only_the_exact_fence_is_passed_over() {
    for (key, value, effect) in [
        (FENCE_TAINT, "other", "NoSchedule"),
        (FENCE_TAINT, FENCE_VALUE, "NoExecute"),
        ("example.com/other", FENCE_VALUE, "NoSchedule"),
    ] {
        let mut world = World::with(&[("a", 1, 8)]);
        world.slice("a", 1, json!({ "key": key, "value": value, "effect": effect }));
        world.claim("c", 1);
        world.pod("p", &["c"]);
        assert_eq!(world.run(), ["p waits: NoDevicesFit: 0 of 1 nodes with devices fit: 1 tainted"]);
    }
}

#[test]
fn a_pod_goes_where_the_rest_of_it_fits() {
    let mut world = World::with_waiting(&[("a", 1, 0), ("b", 8, 8)]);
    // a would be the better place for a single GPU.
    assert_eq!(world.run(), ["c for p on b", "go p"]);
}

#[test]
fn no_node_is_taken_where_others_would_have_to_leave_while_another_has_room() {
    let mut world = World::with(&[("a", 1, 1), ("b", 1, 1)]);
    world.pod_with("low", &[], |pod| {
        pod["spec"]["nodeName"] = "a".into();
        pod["spec"].as_object_mut().unwrap().remove("resourceClaims");
    });
    let high = |pod: &mut Value| pod["spec"]["priority"] = 10.into();
    world.claim("c", 1);
    world.claim("d", 1);
    world.claim("e", 1);
    world.pod_with("p", &["c"], high);
    world.pod_with("q", &["d"], high);
    assert_eq!(world.run(), ["c for p on b", "go p", "d for q on a", "go q"]);
    // Whoever has the same priority stays.
    world.pod_with("r", &["e"], high);
    assert_eq!(world.run(), ["r waits: NoDevicesFit: 0 of 2 nodes with devices fit: 2 without room (cpu)"]);
}

#[test]
fn who_waits_is_told_why_once_and_that_it_is_over() {
    let mut world = World::with(&[("a", 1, 8)]);
    for (claim, pod) in [("c", "p"), ("d", "q")] {
        world.claim(claim, 1);
        world.pod(pod, &[claim]);
    }
    let waits = "q waits: NoDevicesFit: 0 of 1 nodes with devices fit: 1 busy";
    assert_eq!(world.run(), ["c for p on a", "go p", waits]);
    world.node("b", 0, 8);
    assert_eq!(world.run(), [""; 0], "the same reason again");
    world.start("p", "a");
    world.delete("pod", "p");
    world.take_out("c", "reservedFor");
    assert_eq!(world.run(), ["free c", "d for q on a", "go q"]);
    assert_eq!(world.get("pod", "q")["status"], json!({ "phase": "Pending" }));
}

#[test]
fn reasons_name_what_is_wrong() {
    let request = |class: &str, count: usize, selector: &str| {
        json!([{ "name": "r", "exactly": {
            "deviceClassName": class, "count": count, "allocationMode": "ExactCount",
            "selectors": [{ "cel": { "expression": selector } }],
        } }])
    };
    let ours = |selector: &str| format!("device.driver == '{DRIVER}' && {selector}");
    for (requests, reason, message) in [
        (
            request("gpu", 9, "true"),
            Reason::NeverFits,
            "claim ns/c, request r needs 9 devices on one node; no node has more than 3",
        ),
        (
            request("gpu", 1, &ours(&format!("device.attributes['{DRIVER}'].kind == 'none'"))),
            Reason::SelectorMatchesNothing,
            "claim ns/c, request r matches none of 5 devices",
        ),
        (
            request("gone", 1, &ours("true")),
            Reason::InvalidRequest,
            "claim ns/c, request r: there is no device class \"gone\"",
        ),
        (
            request("gpu", 1, "device.nonsense"),
            Reason::InvalidRequest,
            "claim ns/c: \"device.nonsense\" is no valid expression",
        ),
    ] {
        let mut world = World::with(&[("a", 2, 8), ("b", 3, 8)]);
        world.claim_of("c", requests);
        world.pod("p", &["c"]);
        let log = world.run();
        assert_eq!(log.len(), 1, "{log:?}");
        assert!(log[0].starts_with(&format!("p waits: {reason}: {message}")), "{log:?}");
    }
}

#[test]
fn others_claims_are_left_alone_and_mixed_ones_are_refused() {
    let mut world = World::with(&[("a", 1, 8)]);
    world.class("nic", "device.driver == 'nic.example.com'");
    let ask = |class: &str| json!({ "name": class, "exactly": { "deviceClassName": class, "count": 1, "allocationMode": "ExactCount" } });
    world.claim_of("theirs", json!([ask("nic")]));
    world.pod("p", &["theirs"]);
    // Somebody put our gate there for nothing.
    assert_eq!(world.run(), ["go p"]);
    world.claim_of("mixed", json!([ask("gpu"), ask("nic")]));
    world.pod("q", &["mixed"]);
    let log = world.run();
    assert!(log[0].starts_with("q waits: ForeignDevices: claim ns/mixed"), "{log:?}");
    // Beside a claim of others, ours is allocated.
    world.claim("c", 1);
    world.pod("r", &["theirs", "c"]);
    assert_eq!(world.run(), ["c for r on a", "go r"]);
}

#[test]
fn pods_that_others_hold_back_hold_nothing() {
    let mut world = World::with(&[("a", 1, 8)]);
    world.claim("c", 1);
    let gates = |pod: &mut Value| {
        pod["spec"]["schedulingGates"] = json!([{ "name": ALLOCATION_GATE }, { "name": "example.com/x" }]);
    };
    world.pod_with("p", &["c"], gates);
    assert_eq!(world.run(), ["p waits: ForeignGate: another scheduling gate than ours holds the pod back"]);
    world.change("pod", "p", |pod| pod["spec"]["schedulingGates"] = json!([{ "name": ALLOCATION_GATE }]));
    assert_eq!(world.run(), ["c for p on a", "go p"]);
}

#[test]
fn a_pod_waits_for_the_claim_of_its_template() {
    let mut world = World::with(&[("a", 1, 8)]);
    world.pod_with("p", &[], |pod| {
        pod["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimTemplateName": "t" }]);
    });
    assert_eq!(world.run(), ["p waits: NotEvaluated: the claim of template t isn't made yet"]);
    world.claim("p-gpu-x", 1);
    world.change("pod", "p", |pod| {
        pod["status"]["resourceClaimStatuses"] = json!([{ "name": "gpu", "resourceClaimName": "p-gpu-x" }]);
    });
    assert_eq!(world.run(), ["p-gpu-x for p on a", "go p"]);
}

#[test]
fn all_that_share_a_claim_have_to_fit() {
    let mut world = World::with(&[("a", 1, 2), ("b", 1, 3)]);
    world.claim("shared", 1);
    for pod in ["p", "q", "r"] {
        world.pod(pod, &["shared"]);
    }
    assert_eq!(world.run(), ["shared for p on b", "go p", "go q", "go r"]);
}

#[test]
fn a_pod_that_is_bound_already_gets_devices_there() {
    let mut world = World::with(&[("a", 1, 8), ("b", 1, 0)]);
    world.claim("c", 1);
    world.pod_with("p", &["c"], |pod| {
        pod["spec"]["nodeName"] = "b".into();
        pod["spec"].as_object_mut().unwrap().remove("schedulingGates");
    });
    assert_eq!(world.run(), ["c for p on b"]);
}

#[test]
fn a_pod_on_another_node_than_its_devices_is_evicted_once() {
    let mut world = World::with_waiting(&[("a", 1, 8), ("b", 0, 8)]);
    world.run();
    world.change("pod", "p", |pod| pod["spec"]["nodeName"] = "b".into());
    assert_eq!(world.run(), ["evict p: bound to node b, but its devices are on a"]);
}

#[test]
fn a_running_pod_is_never_evicted() {
    let mut world = World::with_waiting(&[("a", 1, 8), ("b", 0, 8)]);
    world.run();
    world.start("p", "b");
    assert_eq!(world.run(), [""; 0]);
}

#[test]
fn what_the_scheduler_cleared_is_allocated_anew_when_it_has_tried_again() {
    let cleared = || {
        let mut world = World::with_waiting(&[("a", 1, 8)]);
        world.run();
        world.take_out("c", "allocation");
        assert_eq!(world.run(), [""; 0], "the scheduler may still bind to the node of before");
        world
    };
    let mut world = cleared();
    world.change("pod", "p", |pod| {
        pod["status"]["conditions"] = json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }]);
    });
    assert_eq!(world.run(), ["c for p on a"]);

    // Where it can't be seen, time has to pass.
    let mut world = cleared();
    world.now = world.planner.next_look().unwrap();
    assert_eq!(world.run(), ["c for p on a"]);
}

#[test]
fn a_half_written_pod_is_completed_or_taken_back_by_the_next_leader() {
    let mut world = World::with(&[("a", 2, 8), ("b", 3, 8)]);
    world.claim("c", 1);
    world.claim("d", 1);
    world.pod("p", &["c", "d"]);
    let Some(Action::Allocate { mut grants, pod, node }) = world.decide() else { panic!("nothing is decided") };
    assert_eq!((grants.len(), node.as_str()), (2, "a"));
    grants.pop();
    world.carry_out(Action::Allocate { pod, node, grants });
    world.restart();
    let half = world.objects.clone();
    world.log.clear();
    assert_eq!(world.run(), ["d for p on a", "go p"]);

    // Somebody is on the second device meanwhile.
    let allocation = half[&("claim", "c".to_owned())]["status"]["allocation"].clone();
    let other = if allocation.to_string().contains("gpu-0") { "gpu-1" } else { "gpu-0" };
    world.objects = half;
    world.claim("e", 1);
    let taken = json!(allocation.to_string().replace("gpu-0", other).replace("gpu-1", other));
    let taken: Value = serde_json::from_str(taken.as_str().unwrap()).unwrap();
    world.change("claim", "e", |claim| {
        claim["status"] = json!({ "allocation": taken, "reservedFor": [{ "name": "somebody" }] });
    });
    world.restart();
    assert_eq!(world.run(), ["free c", "c and d for p on b", "go p"]);
}

#[test]
fn a_write_that_failed_is_decided_again() {
    let mut world = World::with_waiting(&[("a", 1, 8)]);
    assert!(matches!(world.decide(), Some(Action::Allocate { .. })));
    assert_eq!(world.decide(), None, "it is under way");
    world.planner.not_written(&name("c"), "uid of c");
    assert_eq!(world.run(), ["c for p on a", "go p"]);
}

#[test]
fn late_news_change_nothing() {
    let mut world = World::with(&[("a", 1, 8)]);
    world.claim("c", 1);
    let before = world.get("claim", "c").clone();
    world.pod("p", &["c"]);
    world.claim("d", 1);
    world.pod("q", &["d"]);
    let log = world.run();
    assert!(log[2].starts_with("q waits"), "{log:?}");
    world.planner.apply_claim(to(before));
    assert_eq!(world.run(), [""; 0], "the device of an old version of the claim looked free");
}

#[test]
fn priority_and_age_say_who_is_first() {
    let mut world = World::new();
    for claim in ["c", "d", "e"] {
        world.claim(claim, 1);
    }
    world.pod("old", &["c"]);
    world.pod("young", &["d"]);
    world.pod_with("high", &["e"], |pod| pod["spec"]["priority"] = 10.into());
    assert_eq!(world.run().len(), 3);
    world.node("a", 2, 8);
    assert_eq!(world.run()[..4], ["e for high on a", "go high", "c for old on a", "go old"]);
}

/// What may happen to a cluster.
#[derive(Debug, Clone)]
enum Step {
    Create {
        gpus: usize,
    },
    Delete(usize),
    Start(usize),
    Run,
    /// Only some of what is decided is carried out; the rest fails.
    Stumble(Vec<bool>),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1usize..4).prop_map(|gpus| Step::Create { gpus }),
        2 => (0usize..12).prop_map(Step::Delete),
        2 => (0usize..12).prop_map(Step::Start),
        2 => Just(Step::Run),
        2 => prop::collection::vec(any::<bool>(), 1..6).prop_map(Step::Stumble),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_device_is_held_twice_and_nothing_is_left(steps in steps()) {
        let mut world = World::new();
        for node in ["a", "b"] {
            world.node(node, 3, 4);
        }
        let mut pods: Vec<String> = Vec::new();
        let mut count = 0;
        for step in steps {
            match step {
                Step::Create { gpus } => {
                    count += 1;
                    let pod = format!("p{count}");
                    world.claim(&pod, gpus);
                    world.pod(&pod, &[&pod]);
                    pods.push(pod);
                }
                Step::Delete(index) if index < pods.len() => {
                    let pod = pods.remove(index);
                    world.delete("pod", &pod);
                    world.take_out(&pod, "reservedFor");
                }
                Step::Start(index) if index < pods.len() => {
                    let held = world.held();
                    let node = held[&pods[index]].first().map(|device| device[..1].to_owned());
                    let is_gated = world.get("pod", &pods[index])["spec"]["schedulingGates"].is_array();
                    if let Some(node) = node.filter(|_| !is_gated) {
                        world.start(&pods[index].clone(), &node);
                    }
                }
                Step::Delete(_) | Step::Start(_) => {}
                Step::Run => {
                    world.run();
                }
                Step::Stumble(fates) => {
                    for is_done in fates {
                        let Some(action) = world.decide() else { break };
                        match action {
                            action if is_done => world.carry_out(action),
                            Action::Allocate { grants, .. } => {
                                for grant in grants {
                                    world.planner.not_written(&grant.claim, &grant.uid);
                                }
                            }
                            Action::Free { claim, uid, .. } => world.planner.not_written(&claim, &uid),
                            Action::LetGo { pod, uid, .. } => world.planner.not_let_go(&pod, &uid),
                            // It is only said.
                            Action::Tell { .. } | Action::Evict { .. } => {}
                        }
                    }
                }
                Step::Restart => world.restart(),
            }
            let held = world.held();
            let all: Vec<&String> = held.values().flatten().collect();
            let different: BTreeSet<&&String> = all.iter().collect();
            prop_assert_eq!(all.len(), different.len(), "held twice: {:?}", held);
        }
        for pod in pods {
            world.delete("pod", &pod);
            world.take_out(&pod, "reservedFor");
        }
        world.run();
        prop_assert!(world.held().values().all(Vec::is_empty), "left: {:?}", world.held());
    }
}

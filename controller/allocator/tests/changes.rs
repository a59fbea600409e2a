//! An allocator that follows a cluster answers as a new one would that sees the cluster as it is.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::thread;

use aliquot_allocator::{AllocatedState, Allocator, Features, Limits, Mode, Outcome, Programs, Variant};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const CLUSTERS: u64 = 60;
const CHANGES: usize = 80;

/// Numbers that look random, the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % u64::try_from(end).unwrap()).unwrap()
    }

    fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn one<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all[self.below(all.len())]
    }
}

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// What is in a cluster, and everything an allocator has been told of it.
struct Cluster {
    random: Random,
    mode: Mode,
    features: Features,
    variant: Variant,
    slices: Vec<ResourceSlice>,
    classes: BTreeMap<String, DeviceClass>,
    nodes: Vec<Node>,
    held: Vec<AllocationResult>,
    allocator: Allocator,
}

impl Cluster {
    fn new(mode: Mode, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut features: Features = read(json!({
            "AdminAccess": true, "ConsumableCapacity": true, "DeviceBindingAndStatus": true, "DeviceTaints": true,
            "PartitionableDevices": true, "PrioritizedList": true,
        }));
        features.consumable_capacity = random.percent(80);
        features.list_type_attributes = random.percent(30);
        features.compatibility_groups = random.percent(30);
        features.derived_attributes = random.percent(30);
        let variant = features.variant();
        let (state, programs) = (AllocatedState::default(), Programs::default());
        let allocator = Allocator::new(mode, features, variant, programs, state, Vec::new(), Vec::new());
        let (slices, classes, nodes, held) = (Vec::new(), BTreeMap::new(), Vec::new(), Vec::new());
        let mut cluster = Self { random, mode, features, variant, slices, classes, nodes, held, allocator };
        for name in ["n0", "n1", "n2"] {
            cluster.nodes.push(read(json!({ "metadata": { "name": name, "labels": { "zone": "east" } } })));
        }
        for name in ["any", "x"] {
            cluster.class(name);
        }
        for _ in 0..6 {
            cluster.slice();
        }
        cluster
    }

    fn change(&mut self) {
        match self.random.below(20) {
            0..4 => self.slice(),
            4 => {
                if !self.slices.is_empty() {
                    let slice = self.slices.remove(self.random.below(self.slices.len()));
                    self.allocator.delete_slice(slice.metadata.name.as_deref().unwrap());
                }
            }
            5..9 => {
                if !self.held.is_empty() {
                    let allocation = self.held.swap_remove(self.random.below(self.held.len()));
                    self.allocator.release(&allocation).unwrap();
                }
            }
            9 => {
                let labels = BTreeMap::from([("zone".to_owned(), self.random.one(&["east", "west"]).to_owned())]);
                let index = self.random.below(self.nodes.len());
                self.nodes[index].metadata.labels = Some(labels).filter(|_| self.random.percent(80));
            }
            10 => {
                let name = self.random.one(&["any", "x"]);
                self.class(name);
            }
            11 => {
                self.classes.remove("x");
                self.allocator.delete_class("x");
            }
            12 => {
                let index = self.random.below(self.nodes.len());
                self.allocator.delete_node(self.nodes[index].metadata.name.as_deref().unwrap());
            }
            _ => self.hold_something(),
        }
    }

    fn class(&mut self, name: &str) {
        let expression = match self.random.below(8) {
            0 => "device.attributes[device.driver].fast",
            1 => "device.attributes[device.driver].kind == \"x\"",
            _ => "device.driver != \"\"",
        };
        let class: DeviceClass = read(json!({
            "metadata": { "name": name }, "spec": { "selectors": [{ "cel": { "expression": expression } }] },
        }));
        self.classes.insert(name.to_owned(), class.clone());
        self.allocator.apply_class(class);
    }

    /// One slice of one of four pools, perhaps instead of another version of it.
    fn slice(&mut self) {
        let random = &mut self.random;
        let (pool, part) = (random.one(&["n0", "n1", "net", "mixed"]), random.below(3));
        let generation = if random.percent(95) { 1 } else { 2 };
        let count = random.one(&["1", "2", "3", "3"]).parse::<i64>().unwrap();
        let mut spec = json!({
            "driver": "a.example.com", "pool": { "name": pool, "generation": generation, "resourceSliceCount": count },
        });
        let mut selects_nodes = false;
        match (pool, random.below(4)) {
            ("n0" | "n1", _) | ("mixed", 0) => {
                spec["nodeName"] = if pool == "mixed" { random.one(&["n0", "n2"]) } else { pool }.into();
            }
            ("net", 0) => spec["allNodes"] = true.into(),
            (_, 1) => {
                spec["perDeviceNodeSelection"] = true.into();
                selects_nodes = true;
            }
            _ => {
                let expression = json!({ "key": "zone", "operator": "In", "values": ["east"] });
                spec["nodeSelector"] = json!({ "nodeSelectorTerms": [{ "matchExpressions": [expression] }] });
            }
        }
        if part == 0 {
            let counters = json!({ "memory": { "value": "4" }, "cores": { "value": "6" } });
            spec["sharedCounters"] = json!([{ "name": "set", "counters": counters }]);
        } else {
            let names = if random.percent(3) { ["b", "b", "c"] } else { ["b", "a", "c"] };
            let devices = (0..=random.below(3)).map(|index| {
                let name = format!("{part}{}", names[index.min(2)]);
                device(random, &name, selects_nodes)
            });
            spec["devices"] = devices.collect();
        }
        let name = format!("{pool}-{part}");
        let slice: ResourceSlice = read(json!({ "metadata": { "name": name }, "spec": spec }));
        self.slices.retain(|other| other.metadata.name.as_deref() != Some(name.as_str()));
        self.slices.push(slice.clone());
        self.allocator.apply_slice(slice);
    }

    /// What the next claim gets, or something on a device that may not even be there.
    fn hold_something(&mut self) {
        let allocations = if self.random.percent(50) {
            let (node, claims) = self.question();
            match allocate(&self.allocator, &node, &claims) {
                Outcome::Allocated(allocations, _) => allocations,
                _ => return,
            }
        } else {
            let pool = self.random.one(&["n0", "net", "mixed"]);
            let device = self.random.one(&["1a", "1b", "2a", "2c"]);
            let mut result = json!({ "request": "r", "driver": "a.example.com", "pool": pool, "device": device });
            if self.random.percent(75) {
                result["shareID"] = "other".into();
                if self.random.percent(75) {
                    result["consumedCapacity"] = json!({ "memory": "2" });
                }
            }
            vec![read(json!({ "devices": { "results": [result] } }))]
        };
        for allocation in allocations {
            self.allocator.hold(&allocation).unwrap();
            self.held.push(allocation);
        }
    }

    fn question(&mut self) -> (Node, Vec<ResourceClaim>) {
        let random = &mut self.random;
        let mut requests = Vec::new();
        for index in 0..=random.below(3) {
            let all = random.percent(15);
            let mut exactly = json!({ "deviceClassName": random.one(&["any", "any", "any", "x"]) });
            exactly["allocationMode"] = if all { "All" } else { "ExactCount" }.into();
            if !all {
                exactly["count"] = (1 + random.below(2)).into();
            }
            if random.percent(30) {
                let expression = match random.below(6) {
                    0 => "device.attributes[device.driver].missing == 1",
                    1 => "device.attributes[device.driver].fast",
                    2 => "device.attributes[device.driver].kind != \"x\"",
                    _ => "device.attributes[device.driver].kind == \"x\"",
                };
                exactly["selectors"] = json!([{ "cel": { "expression": expression } }]);
            }
            if self.features.consumable_capacity && random.percent(30) {
                exactly["capacity"] = json!({ "requests": { "memory": random.one(&["1", "3", "5"]) } });
            }
            if self.features.derived_attributes && random.percent(30) {
                let expression = random.one(&["device.driver", "device.attributes[device.driver].fast"]);
                exactly["derivedAttributes"] = json!([{ "name": "a.example.com/kind", "expression": expression }]);
            }
            if random.percent(10) {
                exactly["adminAccess"] = true.into();
            }
            requests.push(json!({ "name": format!("r{index}"), "exactly": exactly }));
        }
        let mut devices = json!({ "requests": requests });
        if random.percent(40) {
            let kind = random.one(&["matchAttribute", "distinctAttribute"]);
            devices["constraints"] = json!([{ kind: random.one(&["a.example.com/kind", "std.example.com/numa"]) }]);
        }
        let claim = read(json!({ "metadata": { "name": "claim" }, "spec": { "devices": devices } }));
        (self.nodes[random.below(self.nodes.len())].clone(), vec![claim])
    }

    /// An allocator that has never known anything else.
    fn fresh(&self) -> Allocator {
        let claims: Vec<ResourceClaim> = self
            .held
            .iter()
            .map(|allocation| read(json!({ "metadata": {}, "spec": {}, "status": { "allocation": allocation } })))
            .collect();
        let state = AllocatedState::of(&claims, self.features.consumable_capacity).unwrap();
        let (classes, slices) = (self.classes.values().cloned(), self.slices.iter().cloned());
        Allocator::new(self.mode, self.features, self.variant, Programs::default(), state, classes, slices)
    }
}

fn device(random: &mut Random, name: &str, selects_nodes: bool) -> Value {
    let mut device = json!({ "name": name, "attributes": { "kind": { "string": random.one(&["x", "y"]) } } });
    if random.percent(70) {
        device["attributes"]["std.example.com/numa"] = json!({ "int": random.below(2) });
    }
    if random.percent(80) {
        device["attributes"]["fast"] = json!({ "bool": random.percent(60) });
    }
    if random.percent(75) {
        device["capacity"] = json!({ "memory": { "value": random.one(&["4", "8"]) } });
        device["allowMultipleAllocations"] = random.percent(75).into();
    }
    if random.percent(50) {
        let counter = if random.percent(3) { "nope" } else { random.one(&["memory", "cores"]) };
        let mut uses = json!({ "counterSet": "set", "counters": { counter: { "value": "2" } } });
        if random.percent(40) {
            uses["compatibilityGroups"] = json!([random.one(&["g", "h"])]);
        }
        device["consumesCounters"] = json!([uses]);
    }
    if random.percent(10) {
        device["taints"] = json!([{ "key": "bad", "effect": "NoSchedule" }]);
    }
    if selects_nodes {
        if random.percent(50) {
            device["nodeName"] = random.one(&["n0", "n1", "n2"]).into();
        } else {
            let expression = json!({ "key": "zone", "operator": "In", "values": ["west"] });
            device["nodeSelector"] = json!({ "nodeSelectorTerms": [{ "matchExpressions": [expression] }] });
        }
    }
    device
}

fn allocate(allocator: &Allocator, node: &Node, claims: &[ResourceClaim]) -> Outcome {
    let mut shares = 0;
    let share_id = &mut || {
        shares += 1;
        shares.to_string()
    };
    allocator.allocate(node, claims, Limits { steps: 100_000, is_over: &|| false }, share_id)
}

/// After each change, and with all that was remembered before it.
#[test]
fn what_is_remembered_changes_nothing() {
    let mut outcomes = BTreeMap::new();
    for (seed, mode) in (0..CLUSTERS).flat_map(|seed| [(seed, Mode::Parity), (seed, Mode::Placement)]) {
        let mut cluster = Cluster::new(mode, seed);
        for change in 0..CHANGES {
            cluster.change();
            for _ in 0..4 {
                let (node, claims) = cluster.question();
                let expected = allocate(&cluster.fresh(), &node, &claims);
                assert_eq!(
                    allocate(&cluster.allocator, &node, &claims),
                    expected,
                    "cluster {seed}, {mode:?}, change {change}: {}",
                    serde_json::to_string(&(&node, &claims, &cluster.slices, &cluster.held)).unwrap()
                );
                let kind = match expected {
                    Outcome::Allocated(..) => "allocated",
                    Outcome::None(_) => "none",
                    Outcome::NodeError(_) => "nodeError",
                    Outcome::Fatal(_) => "fatal",
                    Outcome::Timeout | Outcome::OutOfSteps => "unknown",
                };
                *outcomes.entry(kind).or_insert(0) += 1;
            }
        }
    }
    // Each was compared more than now and then.
    for kind in ["allocated", "none", "nodeError", "fatal"] {
        assert!(outcomes.get(kind).is_some_and(|count| *count > 100), "{outcomes:?}");
    }
}

/// Several threads may ask one allocator, also for the same node.
#[test]
fn threads_get_the_same_answers() {
    let mut cluster = Cluster::new(Mode::Parity, 7);
    for _ in 0..CHANGES {
        cluster.slice();
    }
    let questions: Vec<_> = (0..200).map(|_| cluster.question()).collect();
    let fresh = cluster.fresh();
    let expected: Vec<Outcome> = questions.iter().map(|(node, claims)| allocate(&fresh, node, claims)).collect();
    let all = || questions.iter().map(|(node, claims)| allocate(&cluster.allocator, node, claims)).collect();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(all)).collect();
        for thread in threads {
            let answers: Vec<Outcome> = thread.join().unwrap();
            assert_eq!(answers, expected);
        }
    });
}

/// More questions than are remembered.
#[test]
fn what_is_forgotten_changes_nothing() {
    let mut cluster = Cluster::new(Mode::Parity, 9);
    let mut found = 0;
    for index in 0..3000 {
        if index % 100 == 0 {
            cluster.slice();
        }
        let (node, mut claims) = cluster.question();
        let requests = claims[0].spec.as_mut().unwrap().devices.as_mut().unwrap().requests.as_mut().unwrap();
        let kind = if index % 3 == 0 { "x".to_owned() } else { format!("x{index}") };
        let expression = format!("device.attributes[device.driver].kind != \"{kind}\" && {index} >= 0");
        requests[0].exactly.as_mut().unwrap().selectors = read(json!([{ "cel": { "expression": expression } }]));
        let expected = allocate(&cluster.fresh(), &node, &claims);
        found += usize::from(matches!(expected, Outcome::Allocated(..)));
        assert_eq!(allocate(&cluster.allocator, &node, &claims), expected, "question {index}");
    }
    assert!(found > 100, "only {found} had an answer");
}

/// What one claim gives back is there again, and what another still has isn't.
#[test]
fn shares_come_back_one_by_one() {
    let features: Features = read(json!({ "ConsumableCapacity": true }));
    let capacity = json!({ "memory": { "value": "4" } });
    let device = json!({ "name": "d", "capacity": capacity, "allowMultipleAllocations": true });
    let slice = json!({
        "metadata": { "name": "s" },
        "spec": {
            "driver": "b.example.com", "nodeName": "n", "devices": [device],
            "pool": { "name": "n", "generation": 1, "resourceSliceCount": 1 },
        },
    });
    let class = json!({ "metadata": { "name": "b" }, "spec": {} });
    let (state, programs) = (AllocatedState::default(), Programs::default());
    let mut allocator =
        Allocator::new(Mode::Parity, features, features.variant(), programs, state, [read(class)], [read(slice)]);
    let node: Node = read(json!({ "metadata": { "name": "n" } }));
    let get = |allocator: &Allocator, amount: &str| {
        let exactly = json!({
            "deviceClassName": "b", "allocationMode": "ExactCount", "count": 1,
            "capacity": { "requests": { "memory": amount } },
        });
        let devices = json!({ "requests": [{ "name": "r", "exactly": exactly }] });
        let claim = read(json!({ "metadata": { "name": "claim" }, "spec": { "devices": devices } }));
        match allocate(allocator, &node, &[claim]) {
            Outcome::Allocated(mut allocations, _) => allocations.pop(),
            _ => None,
        }
    };
    let first = get(&allocator, "1").unwrap();
    allocator.hold(&first).unwrap();
    let second = get(&allocator, "3").unwrap();
    allocator.hold(&second).unwrap();
    assert_eq!(get(&allocator, "1"), None);
    allocator.release(&first).unwrap();
    assert!(get(&allocator, "1").is_some());
    assert_eq!(get(&allocator, "2"), None);
    allocator.release(&second).unwrap();
    assert!(get(&allocator, "4").is_some());
}

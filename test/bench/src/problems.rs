//! Allocation problems of usual and of unusual kinds, as aliquot-solve and Kubernetes' own allocator read them.

use serde_json::{Map, Value, json};

const DRIVER: &str = "gpu.example.com";
/// As many as a slice may have, if they take counters.
const DEVICES_PER_SLICE: usize = 64;
const SETS_PER_SLICE: usize = 8;
/// How long the scheduler waits for one node.
pub(crate) const TIMEOUT: u64 = 10;

/// Profiles with their slices of compute and memory, and where they can begin.
const PROFILES: [(&str, usize, usize, &[usize]); 5] = [
    ("7g.80gb", 7, 8, &[0]),
    ("4g.40gb", 4, 4, &[0]),
    ("3g.40gb", 3, 4, &[0, 4]),
    ("2g.20gb", 2, 2, &[0, 2, 4]),
    ("1g.10gb", 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
];

/// What a node has.
pub(crate) struct Machine {
    devices: Vec<Value>,
    sets: Vec<Value>,
}

/// Whole GPUs of two NUMA nodes.
pub(crate) fn gpus(count: usize) -> Machine {
    Machine { devices: (0..count).map(|index| gpu(index, count)).collect(), sets: Vec::new() }
}

fn gpu(index: usize, count: usize) -> Value {
    json!({
        "name": format!("gpu-{index}"),
        "attributes": {
            "type": { "string": "gpu" },
            "architecture": { "string": "Hopper" },
            "brand": { "string": "Nvidia" },
            "cudaComputeCapability": { "version": "9.0.0" },
            "cudaDriverVersion": { "version": "13.0.0" },
            "driverVersion": { "version": "580.95.5" },
            "index": { "int": index },
            "numa": { "int": index * 2 / count },
            "productName": { "string": "NVIDIA H100 80GB HBM3" },
            "uuid": { "string": format!("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c{index:03}") },
            "resource.kubernetes.io/pciBusID": { "string": format!("0000:{index:02x}:00.0") },
            "resource.kubernetes.io/pcieRoot": { "string": format!("pci0000:{:02x}", index / 2) },
        },
        "capacity": { "memory": { "value": "81559Mi" } },
    })
}

/// All places for partitions of GPUs, each in as many kinds.
pub(crate) fn partitions(gpus: usize, kinds: &[&str]) -> Machine {
    let mut machine = Machine { devices: Vec::new(), sets: Vec::new() };
    for gpu in 0..gpus {
        let memory = |places: std::ops::Range<usize>| {
            places.map(|place| (format!("memory-slice-{place}"), json!({ "value": "1" }))).collect::<Map<_, _>>()
        };
        let mut all = memory(0..8);
        all.insert("multiprocessors".into(), json!({ "value": "132" }));
        all.insert("copy-engines".into(), json!({ "value": "7" }));
        all.insert("decoders".into(), json!({ "value": "7" }));
        machine.sets.push(json!({ "name": format!("gpu-{gpu}"), "counters": all }));
        for (profile, compute, size, starts) in PROFILES {
            for (start, kind) in starts.iter().flat_map(|start| kinds.iter().map(move |kind| (start, kind))) {
                let mut taken = memory(*start..start + size);
                taken.insert("multiprocessors".into(), json!({ "value": (compute * 16).to_string() }));
                taken.insert("copy-engines".into(), json!({ "value": compute.to_string() }));
                machine.devices.push(json!({
                    "name": format!("gpu-{gpu}-mig-{}{kind}-{start}", profile.replace('.', "-")),
                    "attributes": {
                        "type": { "string": "mig" },
                        "profile": { "string": format!("{profile}{kind}") },
                        "architecture": { "string": "Hopper" },
                        "cudaComputeCapability": { "version": "9.0.0" },
                        "driverVersion": { "version": "580.95.5" },
                        "parentIndex": { "int": gpu },
                        "parentUUID": { "string": format!("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c{gpu:03}") },
                        "productName": { "string": "NVIDIA H100 80GB HBM3" },
                    },
                    "capacity": { "memory": { "value": format!("{}Gi", size * 10) } },
                    "consumesCounters": [{ "counterSet": format!("gpu-{gpu}"), "counters": taken }],
                }));
            }
        }
    }
    machine
}

impl Machine {
    /// As slices of a node.
    fn slices(&self, node: &str) -> Vec<Value> {
        let devices = self.devices.chunks(DEVICES_PER_SLICE).map(|devices| json!({ "devices": devices }));
        let sets = self.sets.chunks(SETS_PER_SLICE).map(|sets| json!({ "sharedCounters": sets }));
        let specs: Vec<Value> = sets.chain(devices).collect();
        let count = specs.len();
        let slice = |(index, mut spec): (usize, Value)| {
            spec["driver"] = DRIVER.into();
            spec["nodeName"] = node.into();
            spec["pool"] = json!({ "name": node, "generation": 1, "resourceSliceCount": count });
            json!({ "metadata": { "name": format!("{index:05}-{DRIVER}-{node}") }, "spec": spec })
        };
        specs.into_iter().enumerate().map(slice).collect()
    }
}

fn node(index: usize) -> Value {
    json!({ "metadata": { "name": format!("node-{index}"), "labels": { "kubernetes.io/hostname": format!("node-{index}") } } })
}

/// A problem on one of equal nodes, and with `repeat` on all of them.
pub(crate) fn problem(machine: &Machine, nodes: usize, devices: &Value) -> Value {
    let slices: Vec<Value> = (0..nodes).flat_map(|index| machine.slices(&format!("node-{index}"))).collect();
    let class = |name: &str| {
        let expression = format!("device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{name}'");
        json!({ "metadata": { "name": name }, "spec": { "selectors": [{ "cel": { "expression": expression } }] } })
    };
    json!({
        "features": {
            "AdminAccess": true, "ConsumableCapacity": true, "DeviceBindingAndStatus": true, "DeviceTaints": true,
            "FractionalCapacityRange": true, "PartitionableDevices": true, "PrioritizedList": true,
        },
        "channel": "incubating",
        "timeoutMs": TIMEOUT * 1000,
        "node": node(0),
        "nodes": (1..nodes).map(node).collect::<Vec<_>>(),
        "classes": [class("gpu"), class("mig")],
        "slices": slices,
        "claims": [{ "metadata": { "name": "claim", "namespace": "default" }, "spec": { "devices": devices } }],
    })
}

/// A request for so many devices of a class.
pub(crate) fn request(name: &str, class: &str, count: usize) -> Value {
    json!({ "name": name, "exactly": { "deviceClassName": class, "allocationMode": "ExactCount", "count": count } })
}

/// A request that says more than its class.
pub(crate) fn selecting(mut request: Value, expression: &str) -> Value {
    request["exactly"]["selectors"] = json!([{ "cel": { "expression": expression } }]);
    request
}

/// A request for partitions of a profile.
pub(crate) fn profile(name: &str, profile: &str, count: usize) -> Value {
    selecting(request(name, "mig", count), &format!("device.attributes['{DRIVER}'].profile == '{profile}'"))
}

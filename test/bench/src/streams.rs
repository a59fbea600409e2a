//! A day of a cluster: requests of all sizes come and go, and each is served at once or not at all. Placement mode beside the first
//! fit, which is what the scheduler's allocator does on the first node that has room, on the same stream.

use std::collections::BTreeMap;
use std::fmt::Write;

use aliquot_allocator::{AllocatedState, Allocator, Cost, Features, Limits, Mode, Outcome, Programs, Variant};
use aliquot_machine::{Mig, Model};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

const DRIVER: &str = "gpu.example.com";
const MODEL: &str = include_str!("../../machines/models/h100-sxm-80gb.yaml");
const NODES: usize = 100;
const GPUS: usize = 8;
const REQUESTS: usize = 10_000;
const SEEDS: [u64; 3] = [1, 2, 3];
/// The GPUs that would be in use, were all requests served, by those that there are.
const LOADS: [f64; 2] = [0.9, 1.2];
/// Enough for all requests here.
const STEPS: u64 = 1_000_000;

/// What is asked for.
struct Kind {
    name: &'static str,
    /// In so many of a hundred cases.
    percent: usize,
    /// Its part of a GPU.
    size: f64,
    devices: Value,
}

/// A request, and when it is over.
struct Arrival {
    kind: usize,
    end: f64,
}

fn kinds() -> Vec<Kind> {
    let request = |selector: String, count: usize, capacity: Value| {
        let mut exactly = json!({
            "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count,
            "selectors": [{ "cel": { "expression": selector } }],
        });
        if !capacity.is_null() {
            exactly["capacity"] = json!({ "requests": capacity });
        }
        json!({ "requests": [{ "name": "gpu", "exactly": exactly }] })
    };
    let part = |name: &'static str, percent: usize, size: f64| {
        let selector = format!("device.attributes['{DRIVER}'].?profile.orValue('') == '{name}'");
        Kind { name, percent, size, devices: request(selector, 1, Value::Null) }
    };
    let whole = |name: &'static str, percent: usize, count: usize, size: f64| {
        let selector = format!("device.attributes['{DRIVER}'].type == 'gpu'");
        Kind { name, percent, size, devices: request(selector, count, Value::Null) }
    };
    let share = |name: &'static str, percent: usize, size: f64, memory: &str| {
        let selector = format!("device.attributes['{DRIVER}'].type == 'mps'");
        Kind { name, percent, size, devices: request(selector, 1, json!({ "memory": memory })) }
    };
    vec![
        part("1g.10gb", 24, 1.0 / 7.0),
        part("1g.20gb", 8, 2.0 / 8.0),
        part("2g.20gb", 14, 2.0 / 7.0),
        part("3g.40gb", 12, 4.0 / 8.0),
        part("4g.40gb", 6, 4.0 / 7.0),
        part("7g.80gb", 4, 1.0),
        share("share of 8 GiB", 8, 0.1, "8Gi"),
        share("share of 16 GiB", 6, 0.2, "16Gi"),
        share("share of 40 GiB", 4, 0.5, "40Gi"),
        whole("a GPU", 8, 1, 1.0),
        whole("two GPUs", 4, 2, 2.0),
        whole("four GPUs", 2, 4, 4.0),
    ]
}

fn mig() -> Mig {
    let model: Model = serde_yaml::from_str(MODEL).unwrap();
    model.mig.unwrap()
}

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// All forms of a GPU: whole, in each possible part, and shared.
fn node(name: &str, mig: &Mig) -> Vec<ResourceSlice> {
    let whole = mig.profile("7g.80gb").unwrap();
    let mut specs = Vec::new();
    let mut sets = Vec::new();
    for gpu in 0..GPUS {
        let places = |start: u32, size: u32| {
            (start..start + size).map(|place| (format!("memory-slice-{place}"), json!({ "value": "1" })))
        };
        let figures = |profile: &aliquot_machine::Profile| {
            let all = [
                ("multiprocessors", profile.sms),
                ("copy-engines", profile.copy),
                ("decoders", profile.decode),
                ("jpeg-engines", profile.jpeg),
                ("ofa-engines", profile.ofa),
            ];
            all.into_iter().map(|(name, value)| (name.to_owned(), json!({ "value": value.to_string() })))
        };
        let all: Map<String, Value> = figures(whole).chain(places(0, mig.memory_units)).collect();
        let attributes = |more: Value| {
            let mut all = json!({
                "resource.kubernetes.io/numaNode": { "int": gpu * 2 / GPUS },
                "resource.kubernetes.io/pcieRoot": { "string": format!("pci0000:{gpu:02x}") },
                "nvlinkDomain": { "string": format!("GPU-{name}") },
            });
            for (name, value) in more.as_object().unwrap() {
                all[name] = json!({ "string": value });
            }
            all
        };
        let device = |form: String, counters: &Map<String, Value>, own: Value| {
            let taken = json!([{ "counterSet": format!("gpu-{gpu}"), "counters": counters }]);
            json!({ "name": format!("gpu-{gpu}{form}"), "attributes": attributes(own), "consumesCounters": taken })
        };
        let mut shared = device("-mps".to_owned(), &all, json!({ "type": "mps" }));
        shared["allowMultipleAllocations"] = true.into();
        let policy = json!({ "default": "1Gi", "validRange": { "min": "1Gi", "step": "1Gi" } });
        shared["capacity"] = json!({ "memory": { "value": "80Gi", "requestPolicy": policy } });
        let mut devices = vec![device(String::new(), &all, json!({ "type": "gpu" })), shared];
        for profile in &mig.profiles {
            for start in &profile.starts {
                let taken: Map<String, Value> = figures(profile).chain(places(*start, profile.size)).collect();
                let form = format!("-mig-{}-{start}", profile.name.replace('.', "").replace('+', "-"));
                devices.push(device(form, &taken, json!({ "type": "mig", "profile": profile.name })));
            }
        }
        sets.push(json!({ "name": format!("gpu-{gpu}"), "counters": all }));
        specs.push(json!({ "devices": devices }));
    }
    specs.push(json!({ "sharedCounters": sets }));
    let count = specs.len();
    let slice = |(index, mut spec): (usize, Value)| {
        spec["driver"] = DRIVER.into();
        spec["nodeName"] = name.into();
        spec["pool"] = json!({ "name": name, "generation": 1, "resourceSliceCount": count });
        read(json!({ "metadata": { "name": format!("{index:05}-{name}") }, "spec": spec }))
    };
    specs.into_iter().enumerate().map(slice).collect()
}

/// Poisson arrivals, one a unit of time on average, each with an exponential length.
fn stream(seed: u64, load: f64, nodes: usize, requests: usize, kinds: &[Kind]) -> Vec<Arrival> {
    let mut random = fastrand::Rng::with_seed(seed);
    #[allow(clippy::cast_precision_loss)]
    let gpus = (nodes * GPUS) as f64;
    #[allow(clippy::cast_precision_loss)]
    let mean_size = kinds.iter().map(|kind| kind.size * kind.percent as f64 / 100.0).sum::<f64>();
    let mean_length = gpus * load / mean_size;
    let mut draw = |mean: f64| -(1.0 - random.f64()).ln() * mean;
    let mut now = 0.0;
    let mut arrivals = Vec::new();
    for _ in 0..requests {
        now += draw(1.0);
        arrivals.push((now, now + draw(mean_length)));
    }
    let mut choose = fastrand::Rng::with_seed(seed ^ u64::MAX);
    let kind = |place: usize| {
        let mut left = place;
        kinds.iter().position(|kind| {
            let is_it = left < kind.percent;
            left = left.saturating_sub(kind.percent);
            is_it
        })
    };
    arrivals.into_iter().map(|(_, end)| Arrival { kind: kind(choose.usize(..100)).unwrap(), end }).collect()
}

/// What a node has for a kind of request.
type Offer = Option<(Cost, Vec<AllocationResult>)>;

struct Cluster {
    mode: Mode,
    allocator: Allocator,
    nodes: Vec<Node>,
    /// By kind.
    claims: Vec<Vec<ResourceClaim>>,
    /// By node and kind, as far as they are known since the node has changed.
    offers: Vec<Vec<Option<Offer>>>,
}

impl Cluster {
    fn new(mode: Mode, nodes: usize, mig: &Mig, kinds: &[Kind]) -> Self {
        let name = |index: usize| format!("node-{index:02}");
        let slices = (0..nodes).flat_map(|index| node(&name(index), mig));
        let expression = format!("device.driver == '{DRIVER}'");
        let class: DeviceClass = read(json!({
            "metadata": { "name": "gpu" }, "spec": { "selectors": [{ "cel": { "expression": expression } }] },
        }));
        let features = Features {
            consumable_capacity: true,
            partitionable_devices: true,
            prioritized_list: true,
            ..Features::default()
        };
        let (programs, state) = (Programs::default(), AllocatedState::default());
        Self {
            mode,
            allocator: Allocator::new(mode, features, Variant::Incubating, programs, state, [class], slices),
            nodes: (0..nodes).map(|index| read(json!({ "metadata": { "name": name(index) } }))).collect(),
            claims: kinds
                .iter()
                .map(|kind| vec![read(json!({ "metadata": { "name": "claim" }, "spec": { "devices": kind.devices } }))])
                .collect(),
            offers: vec![vec![None; kinds.len()]; nodes],
        }
    }

    fn offer(&mut self, node: usize, kind: usize) -> &Offer {
        let Self { allocator, nodes, claims, offers, .. } = self;
        offers[node][kind].get_or_insert_with(|| {
            let limits = Limits { steps: STEPS, is_over: &|| false };
            let mut shares = 0;
            let mut share_id = || {
                shares += 1;
                format!("share-{shares}")
            };
            match allocator.allocate(&nodes[node], &claims[kind], limits, &mut share_id) {
                Outcome::Allocated(results, score) => {
                    Some((score.map(|score| score.cost).unwrap_or_default(), results))
                }
                Outcome::None(_) => None,
                other => panic!("node {node}: {other:?}"),
            }
        })
    }

    /// Serves a request, if any node can: the first one, or the one that it costs the least.
    fn serve(&mut self, kind: usize) -> Option<(usize, Vec<AllocationResult>)> {
        let mut best: Option<(Cost, usize)> = None;
        for node in 0..self.nodes.len() {
            let Some((cost, _)) = self.offer(node, kind) else { continue };
            if best.is_none_or(|(least, _)| *cost < least) {
                best = Some((*cost, node));
            }
            if self.mode == Mode::Parity {
                break;
            }
        }
        let (_, node) = best?;
        let (_, results) = self.offer(node, kind).clone()?;
        self.change(node, &results, Allocator::hold);
        Some((node, results))
    }

    fn change<E: std::fmt::Debug>(
        &mut self,
        node: usize,
        results: &[AllocationResult],
        how: impl Fn(&mut Allocator, &AllocationResult) -> Result<(), E>,
    ) {
        for result in results {
            how(&mut self.allocator, result).unwrap();
        }
        self.offers[node].fill(None);
    }
}

/// How many requests of each kind were served.
fn served(mode: Mode, nodes: usize, mig: &Mig, kinds: &[Kind], arrivals: &[Arrival]) -> Vec<usize> {
    let mut cluster = Cluster::new(mode, nodes, mig, kinds);
    let mut served = vec![0; kinds.len()];
    let mut held: Vec<(f64, usize, Vec<AllocationResult>)> = Vec::new();
    for (index, arrival) in arrivals.iter().enumerate() {
        #[allow(clippy::cast_precision_loss)]
        let now = index as f64;
        for (_, node, results) in held.extract_if(.., |(end, ..)| *end <= now) {
            cluster.change(node, &results, Allocator::release);
        }
        if let Some((node, results)) = cluster.serve(arrival.kind) {
            served[arrival.kind] += 1;
            held.push((arrival.end, node, results));
        }
    }
    served
}

/// Serves the streams in both ways.
pub(crate) fn measure(json: bool) -> String {
    let (mig, kinds) = (mig(), kinds());
    let mut rows: BTreeMap<(usize, usize), [usize; 3]> = BTreeMap::new();
    for (load_index, load) in LOADS.into_iter().enumerate() {
        for seed in SEEDS {
            let arrivals = stream(seed, load, NODES, REQUESTS, &kinds);
            let [first, placed] =
                [Mode::Parity, Mode::Placement].map(|mode| served(mode, NODES, &mig, &kinds, &arrivals));
            for kind in 0..kinds.len() {
                let row = rows.entry((load_index, kind)).or_default();
                row[0] += arrivals.iter().filter(|arrival| arrival.kind == kind).count();
                row[1] += first[kind];
                row[2] += placed[kind];
            }
        }
    }
    if json { to_json(&rows, &kinds) } else { table(&rows, &kinds) }
}

fn to_json(rows: &BTreeMap<(usize, usize), [usize; 3]>, kinds: &[Kind]) -> String {
    let rows = rows.iter().map(|((load, kind), [asked, first, placed])| {
        json!({ "load": LOADS[*load], "kind": kinds[*kind].name, "asked": asked, "firstFit": first, "placement": placed })
    });
    Value::Array(rows.collect()).to_string()
}

#[allow(clippy::cast_precision_loss)]
fn table(rows: &BTreeMap<(usize, usize), [usize; 3]>, kinds: &[Kind]) -> String {
    let mut table = String::new();
    for (load_index, load) in LOADS.into_iter().enumerate() {
        let of_load = || rows.iter().filter(|((own, _), _)| *own == load_index);
        // Writing to a String can't fail.
        let _ = writeln!(
            table,
            "{REQUESTS} requests onto {NODES} nodes of {GPUS} H100, {} times, for {:.0} % of what there is",
            SEEDS.len(),
            load * 100.0
        );
        let _ = writeln!(table, "{:<20} {:>8} {:>14} {:>14}", "", "ASKED", "FIRST FIT", "PLACEMENT");
        let mut line = |name: &str, [asked, first, placed]: [f64; 3]| {
            let share = |served: f64| format!("{served:.0} {:>5.1} %", served / asked * 100.0);
            let _ = writeln!(table, "{name:<20} {asked:>8.0} {:>14} {:>14}", share(first), share(placed));
        };
        for ((_, kind), row) in of_load() {
            line(kinds[*kind].name, row.map(|count| count as f64));
        }
        let sum = |weight: &dyn Fn(usize) -> f64| {
            let mut sums = [0.0; 3];
            for ((_, kind), row) in of_load() {
                for (sum, count) in sums.iter_mut().zip(row) {
                    *sum += *count as f64 * weight(*kind);
                }
            }
            sums
        };
        line("all requests", sum(&|_| 1.0));
        line("all, in GPUs", sum(&|kind| kinds[kind].size));
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Placement leaves room for what first fit turns away: over several streams it serves more GPUs, and never much less.
    #[test]
    fn placement_serves_more_than_first_fit() {
        let (mig, kinds) = (mig(), kinds());
        let mut sums = [0.0; 2];
        for seed in 1..=4 {
            let arrivals = stream(seed, 1.2, 10, 1_000, &kinds);
            let gpus = [Mode::Parity, Mode::Placement].map(|mode| {
                let served = served(mode, 10, &mig, &kinds, &arrivals);
                served
                    .iter()
                    .zip(&kinds)
                    .map(|(count, kind)| f64::from(u32::try_from(*count).unwrap()) * kind.size)
                    .sum::<f64>()
            });
            println!("seed {seed}: first fit {:.1} GPUs, placement {:.1}", gpus[0], gpus[1]);
            assert!(gpus[1] > 0.97 * gpus[0], "seed {seed}: {gpus:?}");
            sums[0] += gpus[0];
            sums[1] += gpus[1];
        }
        assert!(sums[1] > sums[0], "{sums:?}");
    }
}

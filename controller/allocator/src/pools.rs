//! The pools that a node sees: the newest slices of each, in the order in which they are searched.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourceSlice};

use crate::error::Error;
use crate::features::Features;
use crate::mode::Mode;
use crate::node;
use crate::state::PoolId;

/// A slice, and its devices one by one.
#[derive(Debug)]
pub(crate) struct Slice {
    /// Without its devices.
    pub(crate) api: Arc<ResourceSlice>,
    pub(crate) devices: Vec<Arc<Device>>,
}

/// Slices that have something in common, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// When one of them came or went last.
    pub(crate) changed: u64,
    slices: Vec<Arc<Slice>>,
}

/// All slices of a cluster, found by node and by pool.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    /// The number of changes.
    pub(crate) clock: u64,
    by_node: HashMap<String, Group>,
    pub(crate) without_node: Group,
    by_pool: HashMap<PoolId, Group>,
    by_name: HashMap<String, Vec<Arc<Slice>>>,
}

impl Slices {
    pub(crate) fn add(&mut self, mut api: ResourceSlice) {
        self.clock += 1;
        let devices = api.spec.devices.take().unwrap_or_default().into_iter().map(Arc::new).collect();
        let slice = Arc::new(Slice { api: Arc::new(api), devices });
        let name = slice.api.metadata.name.clone().unwrap_or_default();
        self.by_name.entry(name).or_default().push(Arc::clone(&slice));
        let changed = self.clock;
        let of_node = match node_of(&slice.api) {
            None => &mut self.without_node,
            Some(node) => self.by_node.entry(node.to_owned()).or_default(),
        };
        for group in [of_node, self.by_pool.entry(id(&slice.api)).or_default()] {
            group.changed = changed;
            group.slices.push(Arc::clone(&slice));
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        for slice in self.by_name.remove(name).into_iter().flatten() {
            self.clock += 1;
            let changed = self.clock;
            let mut leave = |group: &mut Group| {
                group.changed = changed;
                group.slices.retain(|other| !Arc::ptr_eq(other, &slice));
                group.slices.is_empty()
            };
            match node_of(&slice.api) {
                None => drop(leave(&mut self.without_node)),
                Some(node) => {
                    if self.by_node.get_mut(node).is_some_and(&mut leave) {
                        self.by_node.remove(node);
                    }
                }
            }
            let id = id(&slice.api);
            if self.by_pool.get_mut(&id).is_some_and(&mut leave) {
                self.by_pool.remove(&id);
            }
        }
    }

    /// When a slice of only this node came or went last, if there are some.
    pub(crate) fn node_changed(&self, node: &str) -> Option<u64> {
        self.by_node.get(node).map(|group| group.changed)
    }

    /// When a slice of the pool came or went last, if there are some.
    pub(crate) fn pool_changed(&self, id: &PoolId) -> Option<u64> {
        self.by_pool.get(id).map(|group| group.changed)
    }

    /// Whether some slices may be for nodes with certain labels.
    pub(crate) fn has_any_without_node(&self) -> bool {
        !self.without_node.slices.is_empty()
    }
}

/// The only node that can use the slice.
fn node_of(slice: &ResourceSlice) -> Option<&str> {
    slice.spec.node_name.as_deref().filter(|name| !name.is_empty())
}

/// A pool as a node sees it.
#[derive(Debug)]
pub(crate) enum Gathered<'s> {
    /// There are newer slices of it, for other nodes.
    Obsolete,
    /// Not all slices are there (yet).
    Incomplete,
    /// The slices contradict each other.
    Invalid(String),
    Usable {
        /// Slices with devices for the node, by name.
        targeting: Vec<&'s Slice>,
        /// The others: their devices count where they are allocated.
        elsewhere: Vec<&'s Slice>,
        counter_sets: BTreeMap<&'s str, &'s CounterSet>,
    },
}

/// Upstream's order: drivers and pools by name, those with devices that have to be bound last.
pub(crate) fn gather<'s>(
    slices: &'s Slices,
    node: &Node,
    features: Features,
    mode: Mode,
) -> Result<Vec<(PoolId, Gathered<'s>)>, Error> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let of_node = slices.by_node.get(name).into_iter().flat_map(|group| &group.slices);
    let mut found: BTreeMap<PoolId, Vec<&'s Slice>> = BTreeMap::new();
    for slice in of_node.chain(&slices.without_node.slices).map(Arc::as_ref) {
        let uses_counters = slice.api.spec.per_device_node_selection.is_some() || has_counters(slice);
        if uses_counters && !features.partitionable_devices || !is_seen(slice, features) || !is_relevant(slice, node)? {
            continue;
        }
        let pool = found.entry(id(&slice.api)).or_default();
        match pool.first().map(|first| generation_of(first)) {
            Some(generation) if generation_of(slice) < generation => {}
            Some(generation) if generation_of(slice) > generation => *pool = vec![slice],
            _ => pool.push(slice),
        }
    }
    let mut pools = Vec::new();
    let mut pools_to_bind = Vec::new();
    for (id, targeting) in found {
        let Some(first) = targeting.first() else { continue };
        let (count, generation) = (first.api.spec.pool.resource_slice_count, generation_of(first));
        let agrees = |slice: &&Slice| match mode {
            Mode::Parity => true,
            Mode::Placement => slice.api.spec.pool.resource_slice_count == count,
        };
        let is_complete = |slices: &[&Slice]| i64::try_from(slices.len()) == Ok(count) && slices.iter().all(agrees);
        let mut everywhere = Vec::new();
        if !is_complete(&targeting) {
            let of_pool = slices.by_pool.get(&id).map_or(&[][..], |group| &group.slices);
            if of_pool.iter().any(|slice| generation_of(slice) > generation) {
                pools.push((id, Gathered::Obsolete));
                continue;
            }
            let is_current = |slice: &&Slice| generation_of(slice) == generation && is_seen(slice, features);
            everywhere = of_pool.iter().map(Arc::as_ref).filter(is_current).collect();
            if !is_complete(&everywhere) {
                pools.push((id, Gathered::Incomplete));
                continue;
            }
        }
        let content = build(targeting, &everywhere, features);
        let has_to_bind = |device: &Arc<Device>| device.binding_conditions.is_some();
        match &content {
            Gathered::Usable { targeting, .. } if targeting.iter().any(|s| s.devices.iter().any(has_to_bind)) => {
                pools_to_bind.push((id, content));
            }
            _ => pools.push((id, content)),
        }
    }
    pools.append(&mut pools_to_bind);
    Ok(pools)
}

fn id(slice: &ResourceSlice) -> PoolId {
    PoolId::new(&slice.spec.driver, &slice.spec.pool.name)
}

fn generation_of(slice: &Slice) -> i64 {
    slice.api.spec.pool.generation
}

fn has_counters(slice: &Slice) -> bool {
    slice.api.spec.shared_counters.as_ref().is_some_and(|sets| !sets.is_empty())
}

/// Slices with compatibility groups aren't there for whom doesn't know what those are, which leaves their pool incomplete.
fn is_seen(slice: &Slice, features: Features) -> bool {
    features.compatibility_groups
        || !slice
            .devices
            .iter()
            .flat_map(|device| device.consumes_counters.iter().flatten())
            .any(|consumption| consumption.compatibility_groups.as_ref().is_some_and(|groups| !groups.is_empty()))
}

fn is_relevant(slice: &Slice, node: &Node) -> Result<bool, Error> {
    let spec = &slice.api.spec;
    let error = |message| Error::NodeSelector { slice: slice.api.metadata.name.clone().unwrap_or_default(), message };
    let has_name = spec.node_name.as_ref().is_some_and(|name| !name.is_empty());
    if has_name || spec.all_nodes == Some(true) || spec.node_selector.is_some() {
        return node::matches(node, spec.node_name.as_deref(), spec.all_nodes, spec.node_selector.as_ref())
            .map_err(error);
    }
    if spec.per_device_node_selection == Some(true) {
        for device in &slice.devices {
            if device_matches(device, node).map_err(error)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// For slices where each device says which nodes it is for.
pub(crate) fn device_matches(device: &Device, node: &Node) -> Result<bool, String> {
    node::matches(node, device.node_name.as_deref(), device.all_nodes, device.node_selector.as_ref())
}

fn build<'s>(mut targeting: Vec<&'s Slice>, everywhere: &[&'s Slice], features: Features) -> Gathered<'s> {
    targeting.sort_by_key(|slice| &slice.api.metadata.name);
    let mut elsewhere = Vec::new();
    if targeting.len() < everywhere.len() {
        let names: BTreeSet<_> = targeting.iter().map(|slice| &slice.api.metadata.name).collect();
        elsewhere = everywhere.iter().filter(|slice| !names.contains(&slice.api.metadata.name)).copied().collect();
    }
    let mut sets = Vec::new();
    if features.partitionable_devices {
        for slices in [&mut targeting, &mut elsewhere] {
            sets.extend(slices.extract_if(.., |slice| has_counters(slice)));
        }
    }
    let mut names = BTreeSet::new();
    if let Some(device) = targeting.iter().flat_map(|slice| &slice.devices).find(|device| !names.insert(&device.name)) {
        return Gathered::Invalid(format!("device {} is there twice", device.name));
    }
    let mut counter_sets = BTreeMap::new();
    if features.partitionable_devices {
        for set in sets.iter().flat_map(|slice| slice.api.spec.shared_counters.iter().flatten()) {
            if counter_sets.insert(set.name.as_str(), set).is_some() {
                return Gathered::Invalid(format!("counter set {} is there twice", set.name));
            }
        }
        let consumptions =
            targeting.iter().chain(&elsewhere).flat_map(|slice| &slice.devices).flat_map(|device| {
                device.consumes_counters.iter().flatten().map(move |consumption| (device, consumption))
            });
        for (device, consumption) in consumptions {
            let Some(set) = counter_sets.get(consumption.counter_set.as_str()) else {
                return Gathered::Invalid(format!(
                    "counter set {} of device {} isn't there",
                    consumption.counter_set, device.name
                ));
            };
            if let Some(counter) = consumption.counters.keys().find(|counter| !set.counters.contains_key(*counter)) {
                return Gathered::Invalid(format!(
                    "counter {counter} of device {} isn't in set {}",
                    device.name, set.name
                ));
            }
        }
    }
    Gathered::Usable { targeting, elsewhere, counter_sets }
}

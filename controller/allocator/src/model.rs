//! The devices of a node in numbers: everything that a search asks again and again.
//!
//! Most of it stays as it is as long as the slices do; what claims have of the devices is written over it, pool by pool.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use aliquot_api::quantity::{Quantity, QuantityError};
use k8s_openapi::api::resource::v1 as api;

use crate::error::Error;
use crate::features::Features;
use crate::mode::Mode;
use crate::pools::{Gathered, Slice};
use crate::state::{Held, PoolId, PoolState, device_id};

/// A device that may be allocated for the node, from a pool that can be trusted.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are facts that have nothing to do with each other")]
pub(crate) struct Device {
    pub(crate) api: Arc<api::Device>,
    /// Without its devices.
    pub(crate) slice: Arc<api::ResourceSlice>,
    pub(crate) id: String,
    pub(crate) pool: usize,
    /// Several requests can have it, each a share.
    pub(crate) is_shareable: bool,
    /// Something has to happen before it can be used.
    pub(crate) has_to_bind: bool,
    /// It says itself which nodes it is for.
    pub(crate) selects_nodes: bool,
    /// Somebody has it alone.
    pub(crate) is_allocated: bool,
    /// Somebody has a share.
    pub(crate) has_share: bool,
    /// What the shares have together.
    pub(crate) allocated_capacity: Option<BTreeMap<String, Quantity>>,
    /// What it takes of which counter of [`Model::available`].
    pub(crate) counters: Vec<(usize, i128)>,
    /// Its groups in the counter sets of [`Model::groups`].
    pub(crate) groups: Vec<(usize, Vec<u32>)>,
}

impl Device {
    /// Somebody has it or a share of it.
    pub(crate) fn is_held(&self) -> bool {
        self.is_allocated || self.has_share
    }

    pub(crate) fn consumes_counters(&self) -> bool {
        self.api.consumes_counters.as_ref().is_some_and(|all| !all.is_empty())
    }

    pub(crate) fn skips_node_operations(&self) -> bool {
        self.slice.spec.skip_node_operations.as_ref().is_some_and(|all| !all.is_empty())
    }

    pub(crate) fn driver(&self) -> &str {
        &self.slice.spec.driver
    }

    fn give_to(&mut self, held: &Held, mode: Mode) {
        // What was shareable once may have shares still.
        let is_kept = match mode {
            Mode::Parity => false,
            Mode::Placement => held.has_share() && !self.is_shareable,
        };
        self.is_allocated = held.is_allocated() || is_kept;
        self.has_share = held.has_share();
        self.allocated_capacity = held.capacity().cloned();
    }
}

/// A device of the pool that is for other nodes.
#[derive(Debug)]
struct Elsewhere {
    api: Arc<api::Device>,
    counters: Vec<(usize, i128)>,
    groups: Vec<(usize, Vec<u32>)>,
}

/// The groups that all devices of a counter set have in common. A device without any goes only with others of its kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) enum Groups {
    /// There is no device yet.
    #[default]
    Nobody,
    Without,
    Common(Vec<u32>),
}

impl Groups {
    pub(crate) fn admits(&self, groups: &[u32]) -> bool {
        match self {
            Self::Nobody => true,
            Self::Without => groups.is_empty(),
            Self::Common(common) => groups.iter().any(|group| common.contains(group)),
        }
    }

    pub(crate) fn with(&self, groups: &[u32]) -> Self {
        match self {
            Self::Nobody if groups.is_empty() => Self::Without,
            Self::Nobody => Self::Common(groups.to_vec()),
            Self::Common(common) if !groups.is_empty() => {
                Self::Common(common.iter().filter(|group| groups.contains(group)).copied().collect())
            }
            unchanged => unchanged.clone(),
        }
    }
}

/// What is known of a pool.
#[derive(Debug)]
pub(crate) enum Content {
    /// Not all slices are there (yet).
    Incomplete,
    /// The slices contradict each other.
    Invalid(String),
    Usable,
}

/// A pool, and which part of everything is its.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) id: PoolId,
    pub(crate) content: Content,
    pub(crate) devices: Range<usize>,
    elsewhere: Range<usize>,
    counters: Range<usize>,
    sets: Range<usize>,
    /// The devices by name, first the node's and then those for others. A name can be there several times.
    by_name: Vec<usize>,
    /// The version of the state that is written over it.
    state: Option<u64>,
    /// The devices of which claims have something.
    held: Vec<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) pools: Vec<Pool>,
    /// In upstream's order; for placement those of a pool by name.
    pub(crate) devices: Vec<Device>,
    elsewhere: Vec<Elsewhere>,
    /// What there is of each counter of each pool.
    pub(crate) totals: Vec<i128>,
    /// The counters of each counter set.
    pub(crate) sets: Vec<Range<usize>>,
    /// What is left of each counter. Less than nothing, if devices are allocated that shouldn't be.
    pub(crate) available: Vec<i128>,
    /// The counters of a pool that are below zero: nothing that takes counters fits in such a pool.
    pub(crate) overdrawn: Vec<Vec<usize>>,
    /// What kind of a counter each is, for sums of several: all slices of memory are one kind.
    pub(crate) kinds: Vec<usize>,
    /// For each counter set of each pool, what the allocated devices have in common.
    pub(crate) groups: Vec<Groups>,
    /// Some device gives a counter back. Nobody should; but then more allocations may be possible after one than before.
    pub(crate) has_negative_counters: bool,
    /// Several requests can have some device.
    pub(crate) has_shareable: bool,
}

/// What nobody has as much of. Far enough below the largest number for sums of all devices.
const PLENTY: i128 = 1 << 100;

impl Model {
    /// With all devices free.
    pub(crate) fn new(pools: Vec<(PoolId, Gathered<'_>)>, (features, mode): (Features, Mode)) -> Result<Self, Error> {
        let mut model = Self::default();
        let mut builder = Builder {
            features,
            mode,
            kinds: HashMap::new(),
            group_numbers: HashMap::new(),
            numbers: Numbers::of(&pools),
            model: &mut model,
        };
        for (id, gathered) in pools {
            if let Err(error) = builder.add_pool(&id, gathered) {
                return Err(Error::Counter { pool: id.to_string(), error });
            }
        }
        Ok(model)
    }

    /// The set of a counter.
    pub(crate) fn set_of(&self, counter: usize) -> usize {
        self.sets.partition_point(|counters| counters.end <= counter)
    }

    /// Writes what claims have of a pool over what they had, unless that is the same. Whether it isn't.
    pub(crate) fn give(&mut self, index: usize, state: Option<&PoolState>, mode: Mode) -> bool {
        let Self { pools, devices, elsewhere, totals, available, overdrawn, groups, .. } = self;
        let pool = &mut pools[index];
        let version = state.map(|state| state.changed);
        if pool.state == version {
            return false;
        }
        pool.state = version;
        for device in pool.held.drain(..) {
            if let Some(own) = devices[pool.devices.clone()].get_mut(device) {
                own.give_to(&Held::default(), mode);
            }
        }
        available[pool.counters.clone()].copy_from_slice(&totals[pool.counters.clone()]);
        groups[pool.sets.clone()].fill(Groups::Nobody);
        let (own, others) = (&mut devices[pool.devices.clone()], &elsewhere[pool.elsewhere.clone()]);
        for (name, held) in state.into_iter().flat_map(|state| &state.devices) {
            let first = pool.by_name.partition_point(|device| name_of(own, others, *device) < name.as_str());
            for device in pool.by_name[first..].iter().copied() {
                if name_of(own, others, device) != name {
                    break;
                }
                pool.held.push(device);
                if let Some(own) = own.get_mut(device) {
                    own.give_to(held, mode);
                }
            }
        }
        // Which groups are left depends on who is first.
        pool.held.sort_unstable();
        for device in &pool.held {
            let (counters, own_groups) = match device.checked_sub(own.len()) {
                None => (&own[*device].counters, &own[*device].groups),
                Some(device) => (&others[device].counters, &others[device].groups),
            };
            for (counter, amount) in counters {
                available[*counter] = available[*counter].saturating_sub(*amount);
            }
            for (set, own) in own_groups {
                groups[*set] = groups[*set].with(own);
            }
        }
        overdrawn[index] = blocking(pool.counters.clone(), available, mode);
        true
    }
}

/// The counters that block all of a pool.
fn blocking(counters: Range<usize>, available: &[i128], mode: Mode) -> Vec<usize> {
    match mode {
        Mode::Parity => counters.filter(|counter| available[*counter] < 0).collect(),
        Mode::Placement => Vec::new(),
    }
}

/// As people count: 2 comes before 10.
fn by_name(a: &str, b: &str) -> Ordering {
    let is_digit = |c: char| c.is_ascii_digit();
    let (mut a_rest, mut b_rest) = (a, b);
    loop {
        let (Some(a_start), Some(b_start)) = (a_rest.find(is_digit), b_rest.find(is_digit)) else { return a.cmp(b) };
        if a_rest[..a_start] != b_rest[..b_start] {
            return a.cmp(b);
        }
        (a_rest, b_rest) = (&a_rest[a_start..], &b_rest[b_start..]);
        let end = |text: &str| text.find(|c: char| !is_digit(c)).unwrap_or(text.len());
        let (a_number, b_number) = (&a_rest[..end(a_rest)], &b_rest[..end(b_rest)]);
        let digits = |text: &str| text.trim_start_matches('0').len();
        let order = digits(a_number).cmp(&digits(b_number)).then_with(|| a_number.cmp(b_number));
        if order != Ordering::Equal {
            return order;
        }
        (a_rest, b_rest) = (&a_rest[a_number.len()..], &b_rest[b_number.len()..]);
    }
}

/// Of a device of a pool.
fn name_of<'d>(own: &'d [Device], elsewhere: &'d [Elsewhere], device: usize) -> &'d str {
    match device.checked_sub(own.len()) {
        None => &own[device].api.name,
        Some(device) => &elsewhere[device].api.name,
    }
}

/// Adds pool after pool.
struct Builder<'m, 's> {
    features: Features,
    mode: Mode,
    kinds: HashMap<&'s str, usize>,
    group_numbers: HashMap<&'s str, u32>,
    numbers: Numbers<'s>,
    model: &'m mut Model,
}

impl<'s> Builder<'_, 's> {
    fn add_pool(&mut self, id: &PoolId, gathered: Gathered<'s>) -> Result<(), QuantityError> {
        let model = &*self.model;
        let (device, elsewhere) = (model.devices.len(), model.elsewhere.len());
        let (counter, set) = (model.totals.len(), model.groups.len());
        let content = match gathered {
            Gathered::Obsolete => return Ok(()),
            Gathered::Incomplete => Content::Incomplete,
            Gathered::Invalid(reason) => Content::Invalid(reason),
            Gathered::Usable { targeting, elsewhere, counter_sets } => {
                self.add_devices(&targeting, &elsewhere, &counter_sets)?;
                Content::Usable
            }
        };
        let model = &mut *self.model;
        match self.mode {
            Mode::Parity => {}
            // In no list's order.
            Mode::Placement => model.devices[device..].sort_by(|a, b| by_name(&a.api.name, &b.api.name)),
        }
        let (own, others) = (&model.devices[device..], &model.elsewhere[elsewhere..]);
        let mut by_name: Vec<usize> = (0..own.len() + others.len()).collect();
        by_name.sort_by_key(|device| name_of(own, others, *device));
        let counters = counter..model.totals.len();
        model.overdrawn.push(blocking(counters.clone(), &model.totals, self.mode));
        model.pools.push(Pool {
            id: id.clone(),
            content,
            devices: device..model.devices.len(),
            elsewhere: elsewhere..model.elsewhere.len(),
            counters,
            sets: set..model.groups.len(),
            by_name,
            state: None,
            held: Vec::new(),
        });
        Ok(())
    }

    fn add_devices(
        &mut self,
        targeting: &[&'s Slice],
        elsewhere: &[&'s Slice],
        counter_sets: &BTreeMap<&'s str, &'s api::CounterSet>,
    ) -> Result<(), QuantityError> {
        let Self { features, kinds, group_numbers, numbers, model, .. } = self;
        let pool = model.pools.len();
        let mut sets: HashMap<&'s str, usize> = HashMap::new();
        let mut counters: HashMap<(&'s str, &'s str), usize> = HashMap::new();
        for (name, set) in counter_sets {
            sets.insert(name, model.groups.len());
            model.groups.push(Groups::Nobody);
            let first = model.totals.len();
            for (counter, total) in &set.counters {
                counters.insert((name, counter), model.totals.len());
                let total = numbers.read(&total.value.0, PLENTY)?;
                model.totals.push(total);
                model.available.push(total);
                let next = kinds.len();
                let kind = counter.trim_end_matches(|c: char| c.is_ascii_digit());
                model.kinds.push(*kinds.entry(kind).or_insert(next));
            }
            model.sets.push(first..model.totals.len());
        }
        let all = targeting.iter().map(|slice| (slice, true)).chain(elsewhere.iter().map(|slice| (slice, false)));
        for (slice, is_targeting) in all {
            for device in &slice.devices {
                let mut own_counters: Vec<(usize, i128)> = Vec::new();
                let mut own_groups = Vec::new();
                for consumption in device.consumes_counters.iter().flatten() {
                    let set = consumption.counter_set.as_str();
                    for (counter, amount) in &consumption.counters {
                        let Some(counter) = counters.get(&(set, counter.as_str())).copied() else { continue };
                        let amount = numbers.read(&amount.value.0, 4 * PLENTY)?;
                        model.has_negative_counters |= amount < 0;
                        match own_counters.iter_mut().find(|(other, _)| *other == counter) {
                            Some((_, sum)) => *sum = sum.saturating_add(amount),
                            None => own_counters.push((counter, amount)),
                        }
                    }
                    let Some(set) = sets.get(set).copied().filter(|_| features.compatibility_groups) else { continue };
                    let mut groups: Vec<u32> = Vec::new();
                    for group in consumption.compatibility_groups.iter().flatten() {
                        let next = u32::try_from(group_numbers.len()).unwrap_or(u32::MAX);
                        groups.push(*group_numbers.entry(group).or_insert(next));
                    }
                    groups.sort_unstable();
                    groups.dedup();
                    own_groups.push((set, groups));
                }
                if !is_targeting {
                    let api = Arc::clone(device);
                    model.elsewhere.push(Elsewhere { api, counters: own_counters, groups: own_groups });
                    continue;
                }
                let spec = &slice.api.spec;
                let is_shareable = features.consumable_capacity && device.allow_multiple_allocations == Some(true);
                model.has_shareable |= is_shareable;
                model.devices.push(Device {
                    api: Arc::clone(device),
                    slice: Arc::clone(&slice.api),
                    id: device_id(&spec.driver, &spec.pool.name, &device.name),
                    pool,
                    is_shareable,
                    has_to_bind: device.binding_conditions.as_ref().is_some_and(|conditions| !conditions.is_empty()),
                    selects_nodes: spec.per_device_node_selection == Some(true),
                    is_allocated: false,
                    has_share: false,
                    allocated_capacity: None,
                    counters: own_counters,
                    groups: own_groups,
                });
            }
        }
        Ok(())
    }
}

/// Counters in billionths, or in more of them at once if some are large. There are many, and few different ones.
struct Numbers<'s> {
    known: HashMap<&'s str, i128>,
    unit: i128,
}

impl<'s> Numbers<'s> {
    fn of(pools: &[(PoolId, Gathered<'s>)]) -> Self {
        let mut known = HashMap::new();
        for (_, gathered) in pools {
            let Gathered::Usable { targeting, elsewhere, counter_sets } = gathered else { continue };
            let totals = counter_sets.values().flat_map(|set| set.counters.values());
            let devices = targeting.iter().chain(elsewhere).flat_map(|slice| &slice.devices);
            let consumptions = devices.flat_map(|device| device.consumes_counters.iter().flatten());
            let amounts = consumptions.flat_map(|consumption| consumption.counters.values());
            for counter in totals.chain(amounts) {
                let text = counter.value.0.as_str();
                // What is no quantity is an error where it's read, and what is too large even for this is plenty.
                if !known.contains_key(text)
                    && let Some(nanos) = text.parse().ok().and_then(|quantity: Quantity| quantity.nanos())
                {
                    known.insert(text, nanos);
                }
            }
        }
        let mut unit = 1;
        while known.values().any(|nanos| (nanos / unit).abs() >= PLENTY)
            && known.values().all(|nanos| nanos % (unit * 10) == 0)
        {
            unit *= 10;
        }
        Self { known, unit }
    }

    /// What is too much for a number is plenty, and more than plenty where it is taken.
    fn read(&self, text: &'s str, plenty: i128) -> Result<i128, QuantityError> {
        let nanos = match self.known.get(text) {
            Some(nanos) => Some(*nanos),
            None => text.parse::<Quantity>()?.nanos(),
        };
        Ok(nanos.map(|nanos| nanos / self.unit).filter(|number| number.abs() < PLENTY).unwrap_or(plenty))
    }
}

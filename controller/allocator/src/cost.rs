//! What an allocation costs those who come after it, so that of all possible ones the best can be chosen.
//!
//! Every part is the loss of a potential: what was possible before less what is possible after. So the cost of several devices is
//! the sum of the costs of each, in whatever order they are taken, and costs of different nodes can be compared.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Range};
use std::sync::Arc;

use aliquot_api::names::STANDARD_DOMAIN;
use aliquot_api::quantity::Quantity;

use crate::attribute;
use crate::capacity::Use;
use crate::model::{Groups, Model};
use crate::requests::{Requests, blocking_taints};
use crate::search::Search;

/// One whole GPU, in the unit of costs.
const WHOLE: u64 = 1000;
/// What it costs to take a GPU out of a group of two free ones, and so on with the square of how many are free.
const GROUP: u64 = 100;

/// How far devices can be apart. Crossing an earlier one is worse than all later ones together.
const LEVELS: [(&str, Option<&str>); 4] = [
    ("nvlinkDomain", None),
    ("nvlinkClique", None),
    ("numaNode", Some(STANDARD_DOMAIN)),
    ("pcieRoot", Some(STANDARD_DOMAIN)),
];

/// What devices cost. Smaller is better; earlier fields count more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Devices with a taint that the request tolerates.
    pub tainted: u32,
    /// Devices that have to be made ready first.
    pub to_bind: u32,
    /// Borders between the devices of a claim: of NVLink domains, NVLink cliques, NUMA nodes, PCIe roots.
    pub spread: [u32; 4],
    /// What others can't have any more.
    pub lost: Lost,
}

/// What others can't have any more, in thousandths of a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lost {
    /// Devices: these, and those that overlap them.
    pub devices: u64,
    /// Free capacity of shared devices in one piece.
    pub shares: u64,
    /// Whole groups of free GPUs: in an NVLink domain, at a NUMA node, at a PCIe root.
    pub groups: u64,
}

impl Lost {
    /// All together.
    pub fn total(self) -> u64 {
        self.devices + self.shares + self.groups
    }
}

impl PartialOrd for Lost {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Lost {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |lost: &Self| (lost.total(), lost.groups, lost.shares);
        key(self).cmp(&key(other))
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let mut spread = self.spread;
        for (sum, more) in spread.iter_mut().zip(other.spread) {
            *sum += more;
        }
        Self {
            tainted: self.tainted + other.tainted,
            to_bind: self.to_bind + other.to_bind,
            spread,
            lost: Lost {
                devices: self.lost.devices + other.lost.devices,
                shares: self.lost.shares + other.lost.shares,
                groups: self.lost.groups + other.lost.groups,
            },
        }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut counted = |count: u32, what: &str| {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        };
        counted(self.tainted, "tainted");
        counted(self.to_bind, "to be made ready");
        for (count, what) in self.spread.into_iter().zip(["NVLink domain", "NVLink clique", "NUMA node", "PCIe root"]) {
            counted(count, &format!("more {what}{}", if count == 1 { "" } else { "s" }));
        }
        let mut lost = |thousandths: u64, what: &str| {
            if thousandths > 0 {
                let (whole, rest) = (thousandths / WHOLE, thousandths % WHOLE / 10);
                parts.push(format!("{whole}.{rest:02} GPUs {what}"));
            }
        };
        lost(self.lost.devices, "in devices that others can't have");
        lost(self.lost.shares, "in room for shares");
        lost(self.lost.groups, "in free groups");
        if parts.is_empty() { f.write_str("nothing lost") } else { f.write_str(&parts.join(", ")) }
    }
}

/// What several devices are parts of: a counter set, or a device by itself.
#[derive(Debug)]
struct Unit {
    kind: Kind,
    devices: Vec<usize>,
    /// Its group at each level.
    groups: [Option<usize>; LEVELS.len()],
}

#[derive(Debug)]
enum Kind {
    /// A device by itself, of this size.
    Alone(u64),
    /// A counter set.
    Set(Set),
}

#[derive(Debug, Clone)]
struct Set {
    layout: usize,
    counters: Range<usize>,
    /// Its place among those of the model.
    index: usize,
}

/// How the devices of a counter set overlap. Equal GPUs have equal layouts.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Layout {
    takes: Vec<Vec<(usize, i128)>>,
    groups: Vec<Vec<u32>>,
    /// In thousandths.
    sizes: Vec<u64>,
}

/// All that decides what a device of a unit costs.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Signature {
    layout: usize,
    left: Vec<i128>,
    groups: Groups,
    /// Whose counters nobody can take any more: it is somebody's.
    closed: Vec<bool>,
}

/// What each device of a unit costs, or none if it can't be had.
type Losses = Arc<[Option<u64>]>;

/// So many are remembered.
const MAX_LOSSES: usize = 10_000;

/// The GPUs of a node, and who has what of them.
#[derive(Debug, Default)]
pub(crate) struct Board {
    units: Vec<Unit>,
    layouts: Vec<Layout>,
    /// By device: its units, and its place in each.
    places: Vec<Vec<(usize, usize)>>,
    is_tainted: Vec<bool>,
    losses: HashMap<Signature, Losses>,
    state: State,
    /// A state that nobody needs any more.
    used: State,
}

/// Who has what.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// By unit: devices that somebody has.
    holders: Vec<usize>,
    /// By level and group: the units that nobody has anything of.
    free: [Vec<u64>; LEVELS.len()],
    /// By unit, as far as they are known.
    losses: Vec<Option<Losses>>,
    /// By claim and level: the groups of the devices that were chosen for it, the latest last.
    seen: Vec<[Vec<Option<usize>>; LEVELS.len()]>,
}

impl Board {
    /// Of devices of which nobody has anything.
    pub(crate) fn new(model: &Model) -> Self {
        let mut board = Self { places: vec![Vec::new(); model.devices.len()], ..Self::default() };
        let mut of_set: Vec<Vec<usize>> = vec![Vec::new(); model.sets.len()];
        let mut alone = Vec::new();
        for (index, device) in model.devices.iter().enumerate() {
            let mut sets: Vec<usize> = device.counters.iter().map(|(counter, _)| model.set_of(*counter)).collect();
            sets.dedup();
            for set in &sets {
                of_set[*set].push(index);
            }
            if sets.is_empty() {
                alone.push(index);
            }
            board.is_tainted.push(blocking_taints(&device.api).next().is_some());
        }
        let mut names = Default::default();
        for (set, devices) in of_set.into_iter().enumerate().filter(|(_, devices)| !devices.is_empty()) {
            let layout = board.layout(Layout::of_set(model, set, &devices));
            let kind = Kind::Set(Set { layout, counters: model.sets[set].clone(), index: set });
            board.add(model, kind, devices, &mut names);
        }
        let sizes = sizes(model, &alone);
        for (device, size) in alone.into_iter().zip(sizes) {
            board.add(model, Kind::Alone(size), vec![device], &mut names);
        }
        board.update(model);
        board
    }

    fn layout(&mut self, layout: Layout) -> usize {
        self.layouts.iter().position(|other| *other == layout).unwrap_or_else(|| {
            self.layouts.push(layout);
            self.layouts.len() - 1
        })
    }

    fn add(
        &mut self,
        model: &Model,
        kind: Kind,
        devices: Vec<usize>,
        names: &mut [HashMap<String, usize>; LEVELS.len()],
    ) {
        let mut groups = [None; LEVELS.len()];
        for (level, group) in groups.iter_mut().enumerate() {
            let name = devices.iter().find_map(|device| group_name(model, *device, level));
            let next = names[level].len();
            *group = name.map(|name| *names[level].entry(name).or_insert(next));
        }
        for (place, device) in devices.iter().enumerate() {
            self.places[*device].push((self.units.len(), place));
        }
        self.units.push(Unit { kind, devices, groups });
    }

    /// Looks again at who has what.
    pub(crate) fn update(&mut self, model: &Model) {
        let mut state = State { losses: vec![None; self.units.len()], ..State::default() };
        for unit in &self.units {
            let holders = unit.devices.iter().filter(|device| model.devices[**device].is_held()).count();
            state.holders.push(holders);
            for (free, group) in state.free.iter_mut().zip(unit.groups) {
                let Some(group) = group else { continue };
                free.resize(free.len().max(group + 1), 0);
                free[group] += u64::from(holders == 0);
            }
        }
        self.state = state;
    }

    /// The state in which nothing is chosen.
    pub(crate) fn state(&mut self, requests: &Requests<'_>) -> State {
        let mut state = std::mem::take(&mut self.used);
        self.reset(&mut state);
        state.seen.resize_with(requests.claims, Default::default);
        state
    }

    /// Keeps the memory of a state for the next one.
    pub(crate) fn keep(&mut self, state: State) {
        self.used = state;
    }

    /// Back to the state in which nothing is chosen.
    pub(crate) fn reset(&self, state: &mut State) {
        state.holders.clone_from(&self.state.holders);
        for (free, own) in state.free.iter_mut().zip(&self.state.free) {
            free.clone_from(own);
        }
        state.losses.clone_from(&self.state.losses);
        state.seen.iter_mut().flatten().for_each(Vec::clear);
    }

    /// What it would cost a claim to have something of each unit, whatever it is.
    pub(crate) fn unit_costs(&self, state: &State, claim: usize) -> Vec<Cost> {
        let seen = &state.seen[claim];
        let of_unit = |(unit, holders): (&Unit, &usize)| {
            let mut cost = Cost::default();
            for (level, group) in unit.groups.into_iter().enumerate() {
                cost.spread[level] = u32::from(!seen[level].is_empty() && !seen[level].contains(&group));
                let free = group.filter(|_| *holders == 0).map_or(0, |group| state.free[level][group]);
                // The square of what is free, less that of what is left; nothing is broken where there is one alone.
                cost.lost.groups += if free > 1 { GROUP * (2 * free - 1) } else { 0 };
            }
            cost
        };
        self.units.iter().zip(&state.holders).map(of_unit).collect()
    }

    /// What it would cost to give the device to a request; none if nobody can have it now. `uses` is what the request uses of it,
    /// `unit_costs` is of the request's claim.
    pub(crate) fn cost(
        &mut self,
        search: &Search<'_, '_, '_>,
        state: &mut State,
        unit_costs: &[Cost],
        index: usize,
        device: usize,
        uses: Option<&[Use]>,
    ) -> Option<Cost> {
        let (alternative, own) = (&search.requests.alternatives[index], &search.model.devices[device]);
        if alternative.is_admin {
            return Some(Cost::default());
        }
        let mut cost = Cost::default();
        let is_charged = search.taken.is_charged(search.model, device) || !search.features.partitionable_devices;
        for position in 0..self.places[device].len() {
            let (unit, place) = self.places[device][position];
            if position == 0 {
                cost = unit_costs[unit];
            } else {
                cost.lost.groups += unit_costs[unit].lost.groups;
            }
            cost.lost.devices += match &self.units[unit].kind {
                _ if is_charged => 0,
                Kind::Alone(size) => *size,
                Kind::Set(set) => {
                    if state.losses[unit].is_none() {
                        let losses = self.losses(search, unit, set.clone());
                        if search.taken.chosen.is_empty() {
                            self.state.losses[unit] = Some(Arc::clone(&losses));
                        }
                        state.losses[unit] = Some(losses);
                    }
                    state.losses[unit].as_ref().and_then(|losses| losses[place])?
                }
            };
        }
        if own.is_shareable {
            let uses = uses.unwrap_or_default();
            cost.lost.shares = lost_room(own.allocated_capacity.as_ref(), search.taken.used_of(device), uses);
            // A share of it leaves the rest for others, which the room counts.
            if own.counters.is_empty() {
                cost.lost.devices = 0;
            }
        }
        cost.tainted = u32::from(self.is_tainted[device]);
        cost.to_bind = u32::from(own.has_to_bind);
        Some(cost)
    }

    /// Notes that a request has got the device, after the search has.
    pub(crate) fn take(&self, search: &Search<'_, '_, '_>, state: &mut State, index: usize, device: usize) {
        let alternative = &search.requests.alternatives[index];
        if alternative.is_admin {
            return;
        }
        for (position, (unit, _)) in self.places[device].iter().enumerate() {
            state.losses[*unit] = None;
            for (level, group) in self.units[*unit].groups.into_iter().enumerate() {
                if let Some(group) = group.filter(|_| state.holders[*unit] == 0) {
                    state.free[level][group] -= 1;
                }
                if position == 0 {
                    state.seen[alternative.claim][level].push(group);
                }
            }
            state.holders[*unit] += 1;
        }
    }

    /// What is free around the device, at each level: what it is for those who look for several.
    pub(crate) fn surroundings(&self, state: &State, device: usize) -> [Option<u64>; LEVELS.len()] {
        let Some((unit, _)) = self.places[device].first() else { return [None; LEVELS.len()] };
        let groups = self.units[*unit].groups;
        std::array::from_fn(|level| groups[level].map(|group| state.free[level][group]))
    }

    fn losses(&mut self, search: &Search<'_, '_, '_>, unit: usize, set: Set) -> Losses {
        let (model, taken) = (search.model, &search.taken);
        let Set { layout, counters, index } = set;
        let is_closed = |device: &usize| {
            model.devices[*device].is_allocated || search.is_kept(*device) || taken.is_charged(model, *device)
        };
        let signature = Signature {
            layout,
            left: counters.map(|counter| model.available[counter] - taken.consumed[counter]).collect(),
            groups: taken.groups[index].clone(),
            closed: self.units[unit].devices.iter().map(is_closed).collect(),
        };
        if let Some(known) = self.losses.get(&signature) {
            return Arc::clone(known);
        }
        let losses = self.layouts[signature.layout].losses(&signature);
        if self.losses.len() >= MAX_LOSSES {
            self.losses.clear();
        }
        self.losses.insert(signature, Arc::clone(&losses));
        losses
    }
}

impl Layout {
    fn of_set(model: &Model, set: usize, devices: &[usize]) -> Self {
        let counters = &model.sets[set];
        let takes: Vec<Vec<(usize, i128)>> = devices
            .iter()
            .map(|device| {
                let own = model.devices[*device].counters.iter().filter(|(counter, _)| counters.contains(counter));
                own.map(|(counter, amount)| (counter - counters.start, *amount)).collect()
            })
            .collect();
        let groups = devices.iter().map(|device| {
            let own = model.devices[*device].groups.iter().find(|(own, _)| *own == set);
            own.map(|(_, groups)| groups.clone()).unwrap_or_default()
        });
        // A device's size is its mean part of the counters.
        let count = u64::try_from(counters.len()).unwrap_or(1).max(1);
        let sizes = takes.iter().map(|takes| {
            let part = |(counter, amount): &(usize, i128)| thousandths(*amount, model.totals[counters.start + counter]);
            takes.iter().map(part).sum::<u64>() / count
        });
        Self { groups: groups.collect(), sizes: sizes.collect(), takes }
    }

    fn losses(&self, signature: &Signature) -> Losses {
        let fits = |place: usize, left: &[i128], groups: &Groups| {
            groups.admits(&self.groups[place])
                && self.takes[place].iter().all(|(counter, amount)| left[*counter] >= *amount)
        };
        let open: Vec<usize> = (0..self.takes.len())
            .filter(|place| !signature.closed[*place] && fits(*place, &signature.left, &signature.groups))
            .collect();
        let mut losses = vec![None; self.takes.len()];
        let mut left = signature.left.clone();
        for place in &open {
            for (counter, amount) in &self.takes[*place] {
                left[*counter] -= amount;
            }
            let groups = signature.groups.with(&self.groups[*place]);
            let is_lost = |other: &&usize| *other == place || !fits(**other, &left, &groups);
            losses[*place] = Some(open.iter().filter(is_lost).map(|other| self.sizes[*other]).sum());
            left.clone_from(&signature.left);
        }
        losses.into()
    }
}

fn group_name(model: &Model, device: usize, level: usize) -> Option<String> {
    let own = &model.devices[device];
    let (name, domain) = LEVELS[level];
    let name = [domain.unwrap_or(own.driver()), name].join("/");
    let value = attribute::published(own.api.attributes.as_ref(), own.driver(), &name)?;
    value.string.clone().or_else(|| value.int.map(|number| number.to_string()))
}

fn thousandths(part: i128, of: i128) -> u64 {
    if part <= 0 {
        return 0;
    }
    if part >= of { WHOLE } else { u64::try_from(part.saturating_mul(i128::from(WHOLE)) / of).unwrap_or(WHOLE) }
}

/// How big devices are beside the biggest on the node, by the mean of their capacities.
fn sizes(model: &Model, devices: &[usize]) -> Vec<u64> {
    let capacities = |device: usize| {
        let all = model.devices[device].api.capacity.iter().flatten();
        all.filter_map(|(name, capacity)| {
            let value: Quantity = capacity.value.0.parse().ok()?;
            Some((name.as_str(), value.nanos()?))
        })
    };
    let mut most: HashMap<&str, i128> = HashMap::new();
    for (name, value) in devices.iter().flat_map(|device| capacities(*device)) {
        let most = most.entry(name).or_default();
        *most = value.max(*most);
    }
    let size = |device: &usize| {
        let parts: Vec<u64> = capacities(*device).map(|(name, value)| thousandths(value, most[name])).collect();
        let count = u64::try_from(parts.len()).unwrap_or(1);
        if parts.is_empty() { WHOLE } else { parts.iter().sum::<u64>() / count }
    };
    devices.iter().map(size).collect()
}

/// The square of the free part before, less that of the free part after, of the capacity that is scarcest then.
fn lost_room(allocated: Option<&BTreeMap<String, Quantity>>, allocating: &[Quantity], uses: &[Use]) -> u64 {
    let nanos = |quantity: Option<&Quantity>| quantity.and_then(Quantity::nanos).unwrap_or(0);
    let parts = uses.iter().enumerate().filter_map(|(index, used)| {
        let total = nanos(Some(&used.total));
        let held = nanos(allocated.and_then(|all| all.get(&used.name))) + nanos(allocating.get(index));
        let free = |held: i128| WHOLE - thousandths(held, total);
        (total > 0).then(|| (free(held + nanos(Some(&used.amount))), free(held)))
    });
    parts.min().map_or(0, |(after, before)| (before * before).saturating_sub(after * after) / WHOLE)
}

//! What makes a search short without changing what it finds.
//!
//! A part of the search (a [`Position`]) depends only on what is taken of the devices that it can reach. So a dead end is
//! remembered under exactly that, and devices that nobody can tell apart count as one kind. And before a part is searched, the
//! requests that are left are counted against the devices and counters that are left.
//!
//! All of it says "there is no solution here", and none says where there is one, so the first solution stays the first. Two
//! other ends of upstream's search have to stay, too:
//!
//! - An error (an expression without a value for some device, say) ends the whole search as soon as it is met. A remembered
//!   part was searched without meeting one, and would meet none in the same state. Everything else here is used only for
//!   requests that can't fail so for any device ([`Bounds::is_sound`]): for them, nothing is skipped but checks that say no.
//! - More than 32 devices for a claim ([`Step::TooMany`]) make upstream give up more than one device at once. That never gives
//!   up a solution: how many devices a claim has depends only on the alternatives that are chosen, so what is too many for one
//!   choice of devices is for all. But whoever takes it for an ordinary dead end looks at devices that upstream doesn't look
//!   at. So in claims that can need so many all requests up to the one in question have to be free of errors.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::rc::Rc;

use crate::attribute::Kind;
use crate::requests::MAX_DEVICES;
use crate::search::{Search, Step, Stop};

/// More dead ends are not remembered.
const MAX_MEMORY: usize = 500_000;
/// Ends a list in a key.
const END: u32 = u32::MAX;

/// A part of the search: the rest of a request and all requests after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Position {
    pub(crate) request: usize,
    /// None where the alternatives of a request begin.
    pub(crate) alternative: Option<usize>,
    /// The devices that the request has already.
    pub(crate) done: usize,
    /// The first device that is tried for the next one.
    pub(crate) start: usize,
}

/// What some requests can reach.
#[derive(Debug, Default)]
struct Scope {
    devices: HashSet<usize>,
    counters: HashSet<usize>,
    sets: HashSet<usize>,
}

#[derive(Debug)]
pub(crate) struct Bounds {
    /// By alternative: the devices that could do, sorted, and those that end the search with an error.
    candidates: Vec<Vec<usize>>,
    /// By alternative and device.
    is_candidate: Vec<Vec<bool>>,
    /// An alternative of which the candidates are the same and are free at the same time.
    twin: Vec<usize>,
    /// By alternative: for each counter and counter set the last candidate that takes of it.
    last_counters: Vec<HashMap<usize, usize>>,
    last_sets: Vec<HashMap<usize, usize>>,
    /// The last request up to which no error can be met, from each.
    sound_until: Vec<Option<usize>>,
    /// By claim: it can't need more than its 32 devices.
    is_roomy: Vec<bool>,
    has_admin: bool,
    /// By device: those of one class are the same for all requests.
    classes: Vec<u32>,
    /// By device: what it takes of which kinds of counters.
    kinds: Vec<Vec<(usize, i128)>>,
    kind_count: usize,
    scopes: HashMap<(usize, usize), Rc<Scope>>,
    amounts: HashMap<String, u32>,
    memory: HashMap<Box<[u32]>, Step>,
    /// How far the remembered dead ends of a position looked.
    reaches: HashMap<Position, Vec<usize>>,
}

impl Bounds {
    /// Matches all devices against all requests.
    pub(crate) fn new(search: &mut Search<'_, '_, '_>) -> Self {
        let (model, requests) = (search.model, search.requests);
        let mut candidates = Vec::new();
        let mut is_clean = Vec::new();
        for alternative in 0..requests.alternatives.len() {
            let (own, clean) = candidates_of(search, alternative);
            candidates.push(own);
            is_clean.push(clean && !model.has_negative_counters);
        }
        let is_candidate: Vec<Vec<bool>> = candidates
            .iter()
            .map(|own| {
                let mut row = vec![false; model.devices.len()];
                for device in own {
                    row[*device] = true;
                }
                row
            })
            .collect();
        let twin = (0..candidates.len())
            .map(|alternative| {
                let own = &requests.alternatives[alternative];
                let is_twin = |other: &usize| {
                    let other_own = &requests.alternatives[*other];
                    candidates[*other] == candidates[alternative]
                        && other_own.is_admin == own.is_admin
                        && other_own.requirement == own.requirement
                        && other_own.constraints == own.constraints
                        && other_own.claim == own.claim
                };
                (0..alternative).find(is_twin).unwrap_or(alternative)
            })
            .collect();
        let mut is_roomy = vec![true; requests.claims];
        let mut most = vec![0_i64; requests.claims];
        for request in &requests.all {
            let needed = requests.alternatives[request.alternatives.clone()].iter().map(|own| own.needed).max();
            let sum = &mut most[request.claim];
            *sum = sum.saturating_add(needed.unwrap_or(0).max(0));
            is_roomy[request.claim] = usize::try_from(*sum).is_ok_and(|sum| sum <= MAX_DEVICES);
        }
        let mut is_sound: Vec<bool> = Vec::new();
        for (index, request) in requests.all.iter().enumerate() {
            let before = index.checked_sub(1).filter(|before| requests.all[*before].claim == request.claim);
            let is_clean = request.alternatives.clone().all(|own| is_clean[own]);
            is_sound.push(is_clean && (is_roomy[request.claim] || before.is_none_or(|before| is_sound[before])));
        }
        let mut sound_until = vec![None; requests.all.len()];
        let mut last = None;
        for (index, is_sound) in is_sound.into_iter().enumerate().rev() {
            last = if is_sound { last.or(Some(index)) } else { None };
            sound_until[index] = last;
        }
        let last_of = |entries: &dyn Fn(usize) -> Vec<usize>| -> Vec<HashMap<usize, usize>> {
            let row = |own: &Vec<usize>| {
                own.iter().flat_map(|device| entries(*device).into_iter().map(|entry| (entry, *device))).collect()
            };
            candidates.iter().map(row).collect()
        };
        let last_counters =
            last_of(&|device| model.devices[device].counters.iter().map(|(counter, _)| *counter).collect());
        let last_sets = last_of(&|device| model.devices[device].groups.iter().map(|(set, _)| *set).collect());
        let kinds = model.devices.iter().map(|device| {
            let mut sums: BTreeMap<usize, i128> = BTreeMap::new();
            for (counter, amount) in &device.counters {
                *sums.entry(model.kinds[*counter]).or_default() += amount;
            }
            sums.into_iter().collect()
        });
        let classes = classes(search, &is_candidate);
        Self {
            kinds: kinds.collect(),
            kind_count: model.kinds.iter().max().map_or(0, |last| last + 1),
            has_admin: requests.alternatives.iter().any(|own| own.is_admin),
            candidates,
            is_candidate,
            twin,
            last_counters,
            last_sets,
            sound_until,
            is_roomy,
            classes,
            scopes: HashMap::new(),
            amounts: HashMap::new(),
            memory: HashMap::new(),
            reaches: HashMap::new(),
        }
    }

    /// Whether no error can be met from one request to another.
    fn is_sound(&self, from: usize, to: usize) -> bool {
        self.sound_until[from].is_some_and(|last| last >= to)
    }
}

/// The devices that an alternative could get in some state or other, and whether none ends the search with an error.
fn candidates_of(search: &mut Search<'_, '_, '_>, index: usize) -> (Vec<usize>, bool) {
    let (model, requests) = (search.model, search.requests);
    let alternative = &requests.alternatives[index];
    if let Some(all) = &alternative.all {
        // What a constraint excludes is an error for these.
        return (all.clone(), alternative.constraints.is_empty());
    }
    let mut is_clean = true;
    let mut candidates = Vec::new();
    for (device, own) in model.devices.iter().enumerate() {
        if !alternative.is_admin && own.is_allocated {
            continue;
        }
        match could_do(search, index, device) {
            Ok(false) => {}
            Ok(true) => candidates.push(device),
            Err(_) => {
                candidates.push(device);
                is_clean = false;
            }
        }
    }
    (candidates, is_clean)
}

/// Whether the device is a match and would be free if no other were chosen.
fn could_do(search: &mut Search<'_, '_, '_>, index: usize, device: usize) -> Result<bool, Stop> {
    let (model, requests) = (search.model, search.requests);
    let (alternative, own) = (&requests.alternatives[index], &model.devices[device]);
    if !search.matcher.selects(alternative, device)? {
        return Ok(false);
    }
    if !search.matcher.fits(alternative, device, &[])? {
        return Ok(false);
    }
    if !search.is_usable(device) || search.features.device_taints && !alternative.tolerates(&own.api) {
        return Ok(false);
    }
    for (_, source) in &alternative.constraints {
        let values = search.matcher.values(alternative, *source, device)?;
        if values.is_none_or(|values| search.features.list_type_attributes && values.is_empty()) {
            return Ok(false);
        }
    }
    Ok(model.has_negative_counters
        || own.is_shareable && own.has_share
        || !search.takes_counters(alternative, device)
        || own.counters.iter().all(|(counter, amount)| model.available[*counter] >= *amount)
            && model.overdrawn[own.pool].is_empty())
}

impl Search<'_, '_, '_> {
    /// Whether the first requests together need more devices than there are for them, and can't meet an error while that is
    /// found out. The little that can be said without preparing anything.
    pub(crate) fn has_too_few(&mut self) -> bool {
        let (model, requests) = (self.model, self.requests);
        let mut is_known = vec![false; model.devices.len()];
        let (mut needed, mut all, mut own) = (0_i64, 0_i64, 0_i64);
        let mut before: Option<usize> = None;
        for request in &requests.all {
            let index = request.alternatives.start;
            let alternative = &requests.alternatives[index];
            if request.is_prioritized || alternative.is_admin || alternative.all.is_some() {
                return false;
            }
            if !before.is_some_and(|before| requests.alternatives[before].has_same_devices(alternative)) {
                own = 0;
                for (device, is_known) in is_known.iter_mut().enumerate() {
                    if model.devices[device].is_allocated {
                        continue;
                    }
                    match could_do(self, index, device) {
                        Ok(false) => continue,
                        Ok(true) => own += 1,
                        Err(_) => return false,
                    }
                    if !std::mem::replace(is_known, true) {
                        // Any number of requests can have a share.
                        all = if model.devices[device].is_shareable { i64::MAX } else { all.saturating_add(1) };
                    }
                }
            }
            before = Some(index);
            needed = needed.saturating_add(alternative.needed.max(0));
            if alternative.needed > own || needed > all {
                return true;
            }
        }
        false
    }
}

/// Numbers devices so that those with the same number are the same for all requests.
fn classes(search: &mut Search<'_, '_, '_>, is_candidate: &[Vec<bool>]) -> Vec<u32> {
    let (model, requests) = (search.model, search.requests);
    let mut numbers: HashMap<String, u32> = HashMap::new();
    let mut classes = Vec::new();
    for (device, own) in model.devices.iter().enumerate() {
        let mut key = format!("{} {:?} {:?} {}", own.pool, own.counters, own.groups, own.has_share);
        if own.is_shareable {
            let _ = write!(key, " {:?} {:?}", own.api.capacity, own.allocated_capacity);
        }
        for (index, alternative) in requests.alternatives.iter().enumerate() {
            key.push(if is_candidate[index][device] { '+' } else { '-' });
            for (_, source) in &alternative.constraints {
                // Of a device that is no candidate the attribute might be an error, which nobody meets.
                if is_candidate[index][device] {
                    let values = search.matcher.values(alternative, *source, device);
                    let _ = write!(key, "{:?}", values.ok().flatten());
                }
            }
        }
        let next = u32::try_from(numbers.len()).unwrap_or(END);
        classes.push(*numbers.entry(key).or_insert(next));
    }
    classes
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(END)
}

impl Search<'_, '_, '_> {
    /// How a part of the search ends, if that can be known without searching.
    pub(crate) fn known(&mut self, position: Position) -> Result<Option<Step>, Stop> {
        let Some(bounds) = &self.bounds else { return Ok(None) };
        for reach in bounds.reaches.get(&position).cloned().unwrap_or_default() {
            let key = self.key(position, reach);
            let step = self.bounds.as_ref().and_then(|bounds| bounds.memory.get(&key).copied());
            if step.is_some() {
                self.reach = self.reach.max(reach);
                return Ok(step);
            }
        }
        Ok(self.first_too_much(position)?.map(|reach| {
            self.reach = self.reach.max(reach);
            Step::Failed
        }))
    }

    /// Remembers a dead end, which looked as far as the search reached.
    pub(crate) fn remember(&mut self, position: Position, step: Step) {
        let reach = self.reach;
        let is_full = self.bounds.as_ref().is_none_or(|bounds| bounds.memory.len() >= MAX_MEMORY);
        if is_full || self.model.has_negative_counters {
            return;
        }
        let key = self.key(position, reach);
        let Some(bounds) = &mut self.bounds else { return };
        bounds.memory.insert(key, step);
        let reaches = bounds.reaches.entry(position).or_default();
        if !reaches.contains(&reach) {
            reaches.push(reach);
        }
    }

    /// The class of a device without which there was no solution either, if that holds for all of its class.
    pub(crate) fn class_without_hope(&self, request: usize, device: usize) -> Option<u32> {
        let bounds = self.bounds.as_ref()?;
        (bounds.is_sound(request, self.reach) && self.is_untouched(device)).then(|| bounds.classes[device])
    }

    pub(crate) fn is_hopeless_class(&self, device: usize, classes: &[u32]) -> bool {
        self.bounds.as_ref().is_some_and(|bounds| classes.contains(&bounds.classes[device]))
            && self.is_untouched(device)
    }

    fn is_untouched(&self, device: usize) -> bool {
        self.taken.owners[device].is_empty() && self.taken.shares[device] == 0
    }

    /// All of what is taken that matters from a position up to a request.
    fn key(&mut self, position: Position, reach: usize) -> Box<[u32]> {
        let Some(mut bounds) = self.bounds.take() else { return Box::default() };
        let key = self.key_with(&mut bounds, position, reach);
        self.bounds = Some(bounds);
        key
    }

    fn key_with(&self, bounds: &mut Bounds, position: Position, reach: usize) -> Box<[u32]> {
        let by_class = bounds.is_sound(position.request, reach);
        let claim = self.requests.all[position.request].claim;
        let first = if position.alternative.is_some() { position.request + 1 } else { position.request };
        let scope = self.scope(bounds, first, reach);
        let Position { request, alternative, done, start } = position;
        let mut key =
            vec![number(request), alternative.map_or(END, number), number(done), number(start), number(reach)];

        let is_relevant = |device: usize| {
            let is_own = |alternative: usize| device >= start && bounds.is_candidate[alternative][device];
            scope.devices.contains(&device) || alternative.is_some_and(is_own)
        };
        let mut devices: Vec<usize> = self.taken.chosen.iter().map(|chosen| chosen.device).collect();
        devices.sort_unstable();
        devices.dedup();
        let mut states = Vec::new();
        for device in devices.iter().copied().filter(|device| is_relevant(*device)) {
            let own = if by_class { bounds.classes[device] } else { number(device) };
            let mut state = u32::from(self.is_kept(device));
            if bounds.has_admin {
                state |= u32::from(self.is_owned(device, claim)) << 1;
            }
            let mut used = END;
            if self.taken.shares[device] > 0 {
                let text: Vec<String> = self.taken.used_of(device).iter().map(ToString::to_string).collect();
                let next = number(bounds.amounts.len());
                used = *bounds.amounts.entry(text.join(" ")).or_insert(next);
            }
            states.push([own, u32::from(device >= start), state, used]);
        }
        states.sort_unstable();
        key.extend(states.into_iter().flatten());
        key.push(END);

        let is_reached = |last: &Vec<HashMap<usize, usize>>, entry: usize| {
            alternative.is_some_and(|own| last[own].get(&entry).is_some_and(|last| *last >= start))
        };
        let taken_counters = devices.iter().flat_map(|device| &self.model.devices[*device].counters);
        let mut counters: Vec<usize> = taken_counters
            .map(|(counter, _)| *counter)
            .filter(|counter| scope.counters.contains(counter) || is_reached(&bounds.last_counters, *counter))
            .filter(|counter| self.taken.consumed[*counter] != 0)
            .collect();
        counters.sort_unstable();
        counters.dedup();
        for counter in counters {
            key.push(number(counter));
            let bytes = self.taken.consumed[counter].to_le_bytes();
            let (words, _) = bytes.as_chunks::<4>();
            key.extend(words.iter().map(|word| u32::from_le_bytes(*word)));
        }
        key.push(END);

        let taken_sets = devices.iter().flat_map(|device| &self.model.devices[*device].groups);
        let mut sets: Vec<usize> = taken_sets
            .map(|(set, _)| *set)
            .filter(|set| scope.sets.contains(set) || is_reached(&bounds.last_sets, *set))
            .collect();
        sets.sort_unstable();
        sets.dedup();
        for set in sets {
            key.push(number(set));
            match &self.taken.groups[set] {
                crate::model::Groups::Nobody => key.push(END - 1),
                crate::model::Groups::Without => key.push(END - 2),
                crate::model::Groups::Common(groups) => key.extend(groups),
            }
            key.push(END);
        }
        key.push(END);

        for constraint in self.constraints_of(position, reach) {
            key.push(number(constraint));
            self.taken.seen[constraint].write_key(self.requests.constraints[constraint], &mut key);
        }
        if !bounds.is_roomy[claim] {
            key.push(number(self.taken.per_claim[claim]));
        }
        key.into()
    }

    /// The constraints of the position's claim that matter up to a request.
    fn constraints_of(&self, position: Position, reach: usize) -> Vec<usize> {
        let all = &self.requests.all;
        let claim = all[position.request].claim;
        let mut constraints = Vec::new();
        for (index, request) in all.iter().enumerate().take(reach + 1).skip(position.request) {
            if request.claim != claim {
                break;
            }
            let alternatives = match position.alternative.filter(|_| index == position.request) {
                Some(alternative) => alternative..alternative + 1,
                None => request.alternatives.clone(),
            };
            let own = self.requests.alternatives[alternatives].iter().flat_map(|own| &own.constraints);
            constraints.extend(own.map(|(constraint, _)| *constraint));
        }
        constraints.sort_unstable();
        constraints.dedup();
        constraints
    }

    fn scope(&self, bounds: &mut Bounds, first: usize, last: usize) -> Rc<Scope> {
        if let Some(scope) = bounds.scopes.get(&(first, last)) {
            return Rc::clone(scope);
        }
        let mut scope = Scope::default();
        for request in self.requests.all.iter().take(last + 1).skip(first) {
            for device in bounds.candidates[request.alternatives.clone()].iter().flatten() {
                if scope.devices.insert(*device) {
                    let own = &self.model.devices[*device];
                    scope.counters.extend(own.counters.iter().map(|(counter, _)| *counter));
                    scope.sets.extend(own.groups.iter().map(|(set, _)| *set));
                }
            }
        }
        let scope = Rc::new(scope);
        bounds.scopes.insert((first, last), Rc::clone(&scope));
        scope
    }

    /// The first request for which there can't be enough left, if there is one and no error comes before it.
    fn first_too_much(&mut self, position: Position) -> Result<Option<usize>, Stop> {
        let Some(bounds) = self.bounds.take() else { return Ok(None) };
        let result = bounds.sound_until[position.request].map(|last| self.count(&bounds, position, last));
        self.bounds = Some(bounds);
        result.unwrap_or(Ok(None))
    }

    fn count(&mut self, bounds: &Bounds, position: Position, last: usize) -> Result<Option<usize>, Stop> {
        let requests = self.requests;
        let mut left = vec![0_i128; bounds.kind_count];
        for (counter, available) in self.model.available.iter().enumerate() {
            left[self.model.kinds[counter]] += (available - self.taken.consumed[counter]).max(0);
        }
        let mut free: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut matching = Matching::default();
        let mut distinct: BTreeMap<usize, (usize, HashSet<u32>)> = BTreeMap::new();
        for index in position.request..=last {
            let request = &requests.all[index];
            let own = position.alternative.filter(|_| index == position.request);
            let alternatives = own.map_or_else(|| request.alternatives.clone(), |own| own..own + 1);
            let mut possible: Vec<(usize, usize, Vec<usize>)> = Vec::new();
            for alternative in alternatives {
                let done = if own.is_some() { position.done } else { 0 };
                let start = if own.is_some() { position.start } else { 0 };
                let needed =
                    usize::try_from(requests.alternatives[alternative].needed).unwrap_or(0).saturating_sub(done);
                let all = requests.alternatives[alternative].all.as_ref();
                if all.is_some_and(Vec::is_empty) {
                    continue;
                }
                let devices = if let Some(all) = all {
                    self.free_of(alternative, all.get(done..).unwrap_or_default(), position)?
                } else {
                    let twin = bounds.twin[alternative];
                    let devices = match free.entry(twin) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(new) => new.insert(self.free_of(twin, &bounds.candidates[twin], position)?),
                    };
                    devices.iter().copied().filter(|device| *device >= start).collect()
                };
                if devices.len() >= needed {
                    possible.push((alternative, needed, devices));
                }
            }
            if possible.is_empty() {
                return Ok(Some(index));
            }
            if !self.has_counters_left(bounds, &possible, &mut left)
                || !self.has_devices_left(&possible, index, &mut matching)
                || !self.has_values_left(&possible, position, &mut distinct)?
            {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    fn free_of(&mut self, alternative: usize, devices: &[usize], position: Position) -> Result<Vec<usize>, Stop> {
        let mut free = Vec::new();
        for device in devices {
            if self.is_free(alternative, *device, position)? {
                free.push(*device);
            }
        }
        Ok(free)
    }

    /// Whether the device could be given to the alternative now. What is no now is never yes with more devices chosen.
    fn is_free(&mut self, alternative: usize, device: usize, position: Position) -> Result<bool, Stop> {
        let claim = self.requests.all[position.request].claim;
        let own = &self.requests.alternatives[alternative];
        if self.is_taken(own, device) {
            return Ok(false);
        }
        let model = self.model;
        let device_model = &model.devices[device];
        if self.takes_counters(own, device) {
            let admits = device_model.groups.iter().all(|(set, groups)| self.taken.groups[*set].admits(groups));
            if !admits || !self.taken.has_counters(model, device) {
                return Ok(false);
            }
        }
        if device_model.is_shareable && !self.matcher.fits(own, device, self.taken.used_of(device))? {
            return Ok(false);
        }
        if own.claim == claim {
            for (constraint, source) in &own.constraints {
                let Some(values) = self.matcher.values(own, *source, device)? else { return Ok(false) };
                let kind = self.requests.constraints[*constraint];
                if self.taken.seen[*constraint].with(kind, &values, self.features.list_type_attributes).is_none() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Takes the least that a request needs of each kind of counter.
    fn has_counters_left(&self, bounds: &Bounds, possible: &[(usize, usize, Vec<usize>)], left: &mut [i128]) -> bool {
        for (kind, left) in left.iter_mut().enumerate() {
            let least = possible.iter().map(|(alternative, needed, devices)| {
                if self.is_free_of_charge(&self.requests.alternatives[*alternative]) {
                    return 0;
                }
                let mut amounts: Vec<i128> = devices
                    .iter()
                    .map(|device| {
                        // The counters of a shared device are taken once, whoever is first.
                        let is_shareable = self.model.devices[*device].is_shareable;
                        let own = bounds.kinds[*device].iter().find(|(own, _)| *own == kind && !is_shareable);
                        own.map_or(0, |(_, amount)| *amount)
                    })
                    .collect();
                amounts.sort_unstable();
                amounts.iter().take(*needed).sum::<i128>()
            });
            *left -= least.min().unwrap_or(0);
            if *left < 0 {
                return false;
            }
        }
        true
    }

    /// Gives a request devices that no other request needs, moving others to other devices if need be.
    fn has_devices_left(
        &self,
        possible: &[(usize, usize, Vec<usize>)],
        request: usize,
        matching: &mut Matching,
    ) -> bool {
        if possible.iter().any(|(alternative, ..)| self.requests.alternatives[*alternative].is_admin) {
            return true;
        }
        let is_shareable = |device: &usize| self.model.devices[*device].is_shareable;
        let mut needed = usize::MAX;
        let mut devices = Vec::new();
        for (_, count, own) in possible {
            let shareable = own.iter().filter(|device| is_shareable(device)).count();
            needed = needed.min(count.saturating_sub(shareable));
            devices.extend(own.iter().filter(|device| !is_shareable(device)).copied());
        }
        matching.devices.insert(request, devices);
        (0..needed).all(|_| matching.give(request, &mut HashSet::new()))
    }

    /// Whether there are as many values as devices that have to be distinct.
    fn has_values_left(
        &mut self,
        possible: &[(usize, usize, Vec<usize>)],
        position: Position,
        distinct: &mut BTreeMap<usize, (usize, HashSet<u32>)>,
    ) -> Result<bool, Stop> {
        let claim = self.requests.all[position.request].claim;
        let first =
            |(alternative, ..): &(usize, usize, Vec<usize>)| &self.requests.alternatives[*alternative].constraints;
        let Some(constraints) = possible.first().map(first) else { return Ok(true) };
        for (constraint, _) in constraints.clone() {
            let is_under = |(alternative, ..): &(usize, usize, Vec<usize>)| {
                self.requests.alternatives[*alternative].constraints.iter().any(|(other, _)| *other == constraint)
            };
            if self.requests.constraints[constraint] != Kind::Distinct || !possible.iter().all(is_under) {
                continue;
            }
            let (sum, values) = distinct.entry(constraint).or_default();
            *sum += possible.iter().map(|(_, needed, _)| *needed).min().unwrap_or(0);
            for (alternative, _, devices) in possible {
                let own = &self.requests.alternatives[*alternative];
                let Some((_, source)) = own.constraints.iter().find(|(other, _)| *other == constraint) else {
                    continue;
                };
                for device in devices {
                    let of_device = self.matcher.values(own, *source, *device)?;
                    let is_seen = |value: u32| own.claim == claim && self.taken.seen[constraint].has(value);
                    // A single device may have a value of an unknown type.
                    if of_device.as_ref().is_some_and(|all| all.is_empty()) {
                        values.insert(END);
                    }
                    values
                        .extend(of_device.iter().flat_map(|all| all.iter().copied()).filter(|value| !is_seen(*value)));
                }
            }
            if *sum > values.len() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Who would get which device.
#[derive(Debug, Default)]
struct Matching {
    devices: HashMap<usize, Vec<usize>>,
    owners: HashMap<usize, usize>,
}

impl Matching {
    /// One more device for a request.
    fn give(&mut self, request: usize, seen: &mut HashSet<usize>) -> bool {
        let devices = self.devices.get(&request).cloned().unwrap_or_default();
        for device in devices {
            if !seen.insert(device) {
                continue;
            }
            let is_free = match self.owners.get(&device).copied() {
                None => true,
                // It has the device for itself already.
                Some(owner) if owner == request => false,
                Some(owner) => self.give(owner, seen),
            };
            if is_free {
                self.owners.insert(device, request);
                return true;
            }
        }
        false
    }
}

//! The best of all solutions, where upstream takes the first.
//!
//! The search says whether there is a solution, and which alternatives of requests it takes: the first ones that are possible,
//! as the API wants it. For these, devices are then chosen by their [`Cost`]: one after the other the cheapest, from several
//! beginnings, and at last each again with all others as they are. What comes out depends on no list's order.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::cost::{Board, Cost, State};
use crate::matcher::Uses;
use crate::requests::{MAX_DEVICES, claim_name};
use crate::search::{Search, Stop};

/// So many devices are looked at, at most, before the best so far is taken.
const MAX_LOOKS: usize = 50_000;

/// Why these devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Score {
    /// All together.
    pub cost: Cost,
    /// Each of them.
    pub choices: Vec<Choice>,
}

/// Why this device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Namespace and name.
    pub claim: String,
    /// As allocations name it.
    pub request: String,
    /// Driver, pool and device.
    pub device: String,
    /// How many devices could be had in its place, itself included.
    pub possible: usize,
    /// What it costs.
    pub cost: Cost,
    /// The next cheapest that costs more.
    pub instead: Option<(String, Cost)>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { claim, request, device, possible, cost, instead } = self;
        write!(f, "claim {claim}, request {request}: {device}, one of {possible}: {cost}")?;
        match instead {
            Some((device, cost)) => write!(f, "; next is {device}: {cost}"),
            None => Ok(()),
        }
    }
}

/// A device that is wanted.
#[derive(Debug, Clone, Copy)]
struct Slot {
    alternative: usize,
    /// The device, where all are asked for.
    fixed: Option<usize>,
}

/// A solution.
#[derive(Debug, Clone)]
struct Solution {
    cost: Cost,
    picks: Vec<Pick>,
}

/// What a slot got, and what else there was.
#[derive(Debug, Clone, Copy)]
struct Pick {
    slot: Slot,
    device: usize,
    cost: Cost,
    possible: usize,
    instead: Option<Candidate>,
}

/// A device that could be had, and what it would cost.
type Candidate = (Cost, usize);

/// Devices that match, and what is used of each.
type Matching = Arc<[(usize, Uses)]>;

/// The work on a node.
struct Placer<'p, 's, 'm, 'a> {
    search: &'p mut Search<'s, 'm, 'a>,
    board: &'p mut Board,
    state: State,
    slots: Vec<Slot>,
    /// By alternative.
    matching: Vec<(usize, Matching)>,
    /// So many devices were looked at.
    looks: usize,
    /// Nothing is taken, and the state says so.
    is_fresh: bool,
}

impl Search<'_, '_, '_> {
    /// Finds the best solution, which is in `taken` and `selected` then.
    pub(crate) fn place(&mut self, board: &mut Board) -> Result<Option<Score>, Stop> {
        if self.is_obviously_hopeless() {
            return Ok(None);
        }
        // Where there is nothing to prefer, whatever is found is a solution.
        if let Some(slots) = self.slots()
            && let Some(score) = Placer::new(self, board, slots).place(None)?
        {
            return Ok(Some(score));
        }
        while self.take_back() {}
        if !self.run()? {
            return Ok(None);
        }
        let slots = self.taken.chosen.iter().map(|chosen| {
            let is_fixed = self.requests.alternatives[chosen.alternative].all.is_some();
            Slot { alternative: chosen.alternative, fixed: is_fixed.then_some(chosen.device) }
        });
        let slots = slots.collect();
        let first: Vec<usize> = self.taken.chosen.iter().map(|chosen| chosen.device).collect();
        Placer::new(self, board, slots).place(Some(&first))
    }

    /// All that is wanted, if no request has alternatives and no claim wants too much.
    fn slots(&self) -> Option<Vec<Slot>> {
        let mut slots = Vec::new();
        let mut per_claim = vec![0; self.requests.claims];
        for request in &self.requests.all {
            let alternative = request.alternatives.start;
            let own = &self.requests.alternatives[alternative];
            let needed = usize::try_from(own.needed).ok()?;
            per_claim[own.claim] += needed;
            if request.is_prioritized
                || per_claim[own.claim] > MAX_DEVICES
                || own.all.as_ref().is_some_and(Vec::is_empty)
            {
                return None;
            }
            match &own.all {
                Some(all) => slots.extend(all.iter().map(|device| Slot { alternative, fixed: Some(*device) })),
                None => slots.extend((0..needed).map(|_| Slot { alternative, fixed: None })),
            }
        }
        Some(slots)
    }
}

impl<'p, 's, 'm, 'a> Placer<'p, 's, 'm, 'a> {
    fn new(search: &'p mut Search<'s, 'm, 'a>, board: &'p mut Board, slots: Vec<Slot>) -> Self {
        let state = board.state(search.requests);
        let is_fresh = search.taken.chosen.is_empty();
        Self { search, board, state, slots, matching: Vec::new(), looks: 0, is_fresh }
    }

    /// `first` is some solution, if there has to be one.
    fn place(mut self, first: Option<&[usize]>) -> Result<Option<Score>, Stop> {
        let result = self.try_place(first);
        self.board.keep(self.state);
        result
    }

    fn try_place(&mut self, first: Option<&[usize]>) -> Result<Option<Score>, Stop> {
        if self.slots.len() == 1 {
            let solution = self.dive(&[])?;
            return Ok(solution.map(|solution| self.score(&solution)));
        }
        let mut best: Option<Solution> = None;
        let mut known = BTreeSet::new();
        let beginnings = self.beginnings()?;
        if first.is_none() && self.is_too_much(&beginnings) {
            return Ok(None);
        }
        let like = |(cost, device): &Candidate| (*cost, self.board.surroundings(&self.state, *device));
        let likes: Vec<_> = beginnings.iter().map(like).collect();
        let mut is_best_taken = false;
        for ((_, beginning), like) in beginnings.into_iter().zip(likes) {
            if self.looks > MAX_LOOKS || known.contains(&like) {
                continue;
            }
            is_best_taken = false;
            let solution = self.dive(&[beginning])?;
            if solution.is_none() && best.is_none() && first.is_none() {
                // Perhaps there is none, which the search sees sooner.
                return Ok(None);
            }
            known.extend(solution.is_some().then_some(like));
            if let Some(solution) = solution.filter(|new| best.as_ref().is_none_or(|best| new.cost < best.cost)) {
                best = Some(solution);
                is_best_taken = true;
            }
        }
        let mut devices: Vec<usize> = match (&best, first) {
            (Some(best), _) => best.picks.iter().map(|pick| pick.device).collect(),
            (None, Some(first)) => first.to_vec(),
            (None, None) => return Ok(None),
        };
        // Where all slots want the same, the dives were thorough enough.
        let is_mixed = self.slots.windows(2).any(|slots| slots[0].alternative != slots[1].alternative);
        let mut is_better = false;
        if is_mixed || best.is_none() {
            is_better = self.replace_each(&mut devices)?;
            is_best_taken = false;
        }
        let best = match best {
            Some(best) if is_best_taken || !is_better && self.take_all_but(None, &devices)? => best,
            _ => self.dive(&devices)?.ok_or(Stop::OutOfSteps)?,
        };
        Ok(Some(self.score(&best)))
    }

    /// Devices to begin with, the cheapest first.
    fn beginnings(&mut self) -> Result<Vec<Candidate>, Stop> {
        self.start_again();
        let Some(slot) = self.slots.first().copied() else { return Ok(Vec::new()) };
        if let Some(fixed) = slot.fixed {
            return Ok(vec![(Cost::default(), fixed)]);
        }
        let mut candidates = self.candidates(slot)?;
        candidates.sort_unstable();
        Ok(candidates)
    }

    /// Whether there are fewer devices than the first request wants.
    fn is_too_much(&self, beginnings: &[Candidate]) -> bool {
        let Some(first) = self.slots.first() else { return false };
        let wanted = self.slots.iter().take_while(|slot| slot.alternative == first.alternative).count();
        let is_shareable = |(_, device): &Candidate| self.search.model.devices[*device].is_shareable;
        first.fixed.is_none() && beginnings.len() < wanted && !beginnings.iter().any(is_shareable)
    }

    /// What could be had now.
    fn candidates(&mut self, slot: Slot) -> Result<Vec<Candidate>, Stop> {
        let matching = self.matching(slot.alternative)?;
        let alternative = &self.search.requests.alternatives[slot.alternative];
        let unit_costs = self.board.unit_costs(&self.state, alternative.claim);
        self.looks += matching.len();
        let mut candidates = Vec::with_capacity(matching.len());
        for (device, uses) in matching.iter() {
            if !self.search.is_taken(alternative, *device) && !self.has_share(slot, *device) {
                let uses = uses.as_deref().map(Vec::as_slice);
                let cost = self.board.cost(self.search, &mut self.state, &unit_costs, slot.alternative, *device, uses);
                candidates.extend(cost.map(|cost| (cost, *device)));
            }
        }
        Ok(candidates)
    }

    /// Whether the request has a share of the device: two wouldn't be two devices.
    fn has_share(&self, slot: Slot, device: usize) -> bool {
        self.search.model.devices[device].is_shareable
            && self.search.taken.chosen.iter().any(|own| own.device == device && own.alternative == slot.alternative)
    }

    fn matching(&mut self, index: usize) -> Result<Matching, Stop> {
        if let Some((_, matching)) = self.matching.iter().find(|(own, _)| *own == index) {
            return Ok(Arc::clone(matching));
        }
        let alternative = &self.search.requests.alternatives[index];
        let mut matching = Vec::new();
        for device in 0..self.search.model.devices.len() {
            if !self.search.matcher.selects(alternative, device)? {
                continue;
            }
            let uses = if self.search.features.consumable_capacity {
                let Some(uses) = self.search.matcher.uses(alternative, device)? else { continue };
                Some(uses)
            } else {
                None
            };
            matching.push((device, uses));
        }
        let matching: Matching = matching.into();
        self.matching.push((index, Arc::clone(&matching)));
        Ok(matching)
    }

    /// The cost of a device that is given.
    fn cost_of(&mut self, slot: Slot, device: usize) -> Result<Cost, Stop> {
        let alternative = &self.search.requests.alternatives[slot.alternative];
        let has_uses = self.search.features.consumable_capacity;
        let uses = if has_uses { self.search.matcher.uses(alternative, device)? } else { None };
        let uses = uses.as_deref().map(Vec::as_slice);
        let unit_costs = self.board.unit_costs(&self.state, alternative.claim);
        let cost = self.board.cost(self.search, &mut self.state, &unit_costs, slot.alternative, device, uses);
        Ok(cost.unwrap_or_default())
    }

    fn take(&mut self, slot: Slot, device: usize) -> Result<bool, Stop> {
        let is_taken = self.search.allocate(slot.alternative, device)?;
        if is_taken {
            self.is_fresh = false;
            self.board.take(self.search, &mut self.state, slot.alternative, device);
        }
        Ok(is_taken)
    }

    /// Takes these devices, and for the rest always the cheapest.
    fn dive(&mut self, given: &[usize]) -> Result<Option<Solution>, Stop> {
        self.start_again();
        let mut solution = Solution { cost: Cost::default(), picks: Vec::with_capacity(self.slots.len()) };
        for index in 0..self.slots.len() {
            let slot = self.slots[index];
            let mut candidates = match slot.fixed {
                Some(device) => vec![(self.cost_of(slot, device)?, device)],
                None => self.candidates(slot)?,
            };
            let possible = candidates.len();
            let given = match given.get(index) {
                Some(device) => Some((self.cost_of(slot, *device)?, *device)),
                None => None,
            };
            let (cost, device) = loop {
                let Some((cost, device)) = given.or_else(|| take_cheapest(&mut candidates)) else { return Ok(None) };
                if self.take(slot, device)? {
                    break (cost, device);
                }
                if given.is_some() {
                    return Ok(None);
                }
            };
            let instead = candidates.into_iter().filter(|(other, _)| *other > cost).min();
            solution.cost = solution.cost + cost;
            solution.picks.push(Pick { slot, device, cost, possible, instead });
        }
        Ok(Some(solution))
    }

    /// Tries others in the place of each device, until nothing is better. Whether anything was.
    fn replace_each(&mut self, devices: &mut [usize]) -> Result<bool, Stop> {
        let mut is_better = false;
        let mut unchanged = 0;
        for index in (0..devices.len()).cycle() {
            if unchanged == devices.len() || self.looks > MAX_LOOKS {
                break;
            }
            unchanged += 1;
            let slot = self.slots[index];
            if slot.fixed.is_some() || !self.take_all_but(Some(index), devices)? {
                continue;
            }
            let own = self.cost_of(slot, devices[index])?;
            let mut candidates = self.candidates(slot)?;
            candidates.retain(|(cost, _)| *cost < own);
            while let Some((_, device)) = take_cheapest(&mut candidates) {
                if self.take(slot, device)? {
                    devices[index] = device;
                    (is_better, unchanged) = (true, 0);
                    break;
                }
            }
        }
        Ok(is_better)
    }

    /// Costs are differences of a potential, so what one costs beside all others is what all would cost less without it.
    fn take_all_but(&mut self, left_out: Option<usize>, devices: &[usize]) -> Result<bool, Stop> {
        self.start_again();
        for (other, device) in devices.iter().enumerate().filter(|(other, _)| Some(*other) != left_out) {
            let slot = self.slots[other];
            if !self.take(slot, *device)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn score(&self, solution: &Solution) -> Score {
        let Search { requests, claims, model, .. } = &*self.search;
        let id = |device: usize| model.devices[device].id.clone();
        let choices = solution.picks.iter().map(|pick| {
            let alternative = &requests.alternatives[pick.slot.alternative];
            Choice {
                claim: claim_name(&claims[alternative.claim]),
                request: alternative.full_name(),
                device: id(pick.device),
                possible: pick.possible,
                cost: pick.cost,
                instead: pick.instead.map(|(cost, device)| (id(device), cost)),
            }
        });
        Score { cost: solution.cost, choices: choices.collect() }
    }

    fn start_again(&mut self) {
        if !self.is_fresh {
            while self.search.take_back() {}
            self.board.reset(&mut self.state);
            self.is_fresh = true;
        }
    }
}

fn take_cheapest(candidates: &mut Vec<Candidate>) -> Option<Candidate> {
    let (index, _) = candidates.iter().enumerate().min_by_key(|(_, candidate)| **candidate)?;
    Some(candidates.swap_remove(index))
}

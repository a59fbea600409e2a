//! The search for the first solution in upstream's order; what makes it short is in [`crate::bounds`].

use std::sync::Arc;

use aliquot_api::quantity::{Format, Quantity};
use k8s_openapi::api::core::v1::Node;

use crate::attribute::Seen;
use crate::bounds::{Bounds, Position};
use crate::capacity::Use;
use crate::error::Error;
use crate::features::{Features, Variant};
use crate::matcher::Matcher;
use crate::mode::Mode;
use crate::model::{Groups, Model};
use crate::requests::{Alternative, MAX_DEVICES, Requests, claim_name};

/// After so many dead ends a search is worth being prepared.
const EASY_FAILURES: u32 = 16;
/// Looking at a clock takes longer than a step.
const STEPS_PER_LOOK: u64 = 256;

/// How long a search may take.
#[derive(Clone, Copy)]
pub struct Limits<'l> {
    /// The most devices that are tried.
    pub steps: u64,
    /// Whether there is no more time.
    pub is_over: &'l dyn Fn() -> bool,
}

/// How a part of a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Found,
    Failed,
    /// Not possible with less than 33 devices for the claim, so upstream gives up more than it would otherwise.
    TooMany,
}

/// Why a search ended before it knew.
#[derive(Debug)]
pub(crate) enum Stop {
    Fatal(Error),
    OutOfTime,
    OutOfSteps,
    /// Time to prepare.
    Hard,
    /// There is no solution.
    Hopeless,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

/// A device that a request gets.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) alternative: usize,
    pub(crate) device: usize,
    /// What it uses of a device that is shared.
    pub(crate) uses: Option<Arc<Vec<Use>>>,
    /// Whether it is the one that the device's counters are taken for.
    is_charged: bool,
    /// The groups of counter sets as they were before.
    groups_before: Vec<(usize, Groups)>,
}

/// A claim that has a device which can't be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) claim: usize,
    pub(crate) is_admin: bool,
}

/// What the devices that are chosen so far have taken.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) chosen: Vec<Chosen>,
    /// How many each claim has.
    pub(crate) per_claim: Vec<usize>,
    /// The claims that have a device that can't be shared, by device; the latest last.
    pub(crate) owners: Vec<Vec<Owner>>,
    /// How many shares there are, by device.
    pub(crate) shares: Vec<usize>,
    /// What the shares use, by device and capacity. Empty if no device can be shared.
    used: Vec<Vec<Quantity>>,
    /// By counter.
    pub(crate) consumed: Vec<i128>,
    /// By counter set.
    pub(crate) groups: Vec<Groups>,
    /// By constraint.
    pub(crate) seen: Vec<Seen>,
}

impl Taken {
    fn new(model: &Model, requests: &Requests<'_>) -> Self {
        let devices = model.devices.len();
        Self {
            chosen: Vec::new(),
            per_claim: vec![0; requests.claims],
            owners: vec![Vec::new(); devices],
            shares: vec![0; devices],
            used: vec![Vec::new(); if model.has_shareable { devices } else { 0 }],
            consumed: vec![0; model.available.len()],
            groups: model.groups.clone(),
            seen: vec![Seen::default(); requests.constraints.len()],
        }
    }

    /// What the shares of a device use, by capacity.
    pub(crate) fn used_of(&self, device: usize) -> &[Quantity] {
        self.used.get(device).map_or(&[], Vec::as_slice)
    }

    /// Whether the counters of a shared device are taken already, by the first share.
    pub(crate) fn is_charged(&self, model: &Model, device: usize) -> bool {
        let own = &model.devices[device];
        own.is_shareable && (own.has_share || self.shares[device] > 0)
    }

    /// Whether there is enough left of the device's counters.
    pub(crate) fn has_counters(&self, model: &Model, device: usize) -> bool {
        let own = &model.devices[device];
        let is_left = |counter: usize, amount: i128| model.available[counter] - self.consumed[counter] >= amount;
        let after =
            |counter: usize| own.counters.iter().find(|(own, _)| *own == counter).map_or(0, |(_, amount)| *amount);
        own.counters.iter().all(|(counter, amount)| is_left(*counter, *amount))
            && model.overdrawn[own.pool].iter().all(|counter| is_left(*counter, after(*counter)))
    }
}

/// How much of a device a request gets.
enum Share {
    None,
    All,
    Part(Arc<Vec<Use>>),
}

/// One search for all claims.
pub(crate) struct Search<'s, 'm, 'a> {
    pub(crate) model: &'m Model,
    pub(crate) requests: &'s Requests<'a>,
    pub(crate) matcher: &'s mut Matcher<'m, 'a>,
    pub(crate) claims: &'a [k8s_openapi::api::resource::v1::ResourceClaim],
    pub(crate) features: Features,
    pub(crate) variant: Variant,
    pub(crate) mode: Mode,
    pub(crate) node_skips_operations: bool,
    pub(crate) taken: Taken,
    /// The alternative that each request got.
    pub(crate) selected: Vec<usize>,
    /// The last request that was looked at since somebody reset this.
    pub(crate) reach: usize,
    pub(crate) bounds: Option<Bounds>,
    limits: Limits<'s>,
    steps: u64,
    failures: u32,
}

/// What a node says if kubelet can leave out calls.
fn skips_operations(node: &Node) -> bool {
    let features = node.status.as_ref().and_then(|status| status.declared_features.as_ref());
    features.is_some_and(|features| features.iter().any(|feature| feature == "DRAOptionalNodeOperations"))
}

impl<'s, 'm, 'a> Search<'s, 'm, 'a> {
    pub(crate) fn new(
        model: &'m Model,
        requests: &'s Requests<'a>,
        matcher: &'s mut Matcher<'m, 'a>,
        claims: &'a [k8s_openapi::api::resource::v1::ResourceClaim],
        (features, variant, mode): (Features, Variant, Mode),
        node: &Node,
        limits: Limits<'s>,
    ) -> Self {
        Self {
            model,
            requests,
            matcher,
            claims,
            features,
            variant,
            mode,
            node_skips_operations: skips_operations(node),
            taken: Taken::new(model, requests),
            selected: requests.all.iter().map(|request| request.alternatives.start).collect(),
            reach: 0,
            bounds: None,
            limits,
            steps: 0,
            failures: 0,
        }
    }

    /// Whether there is a solution, which is in `taken` and `selected` then.
    pub(crate) fn run(&mut self) -> Result<bool, Stop> {
        if self.is_obviously_hopeless() {
            return Ok(false);
        }
        let result = match self.request(0) {
            Err(Stop::Hopeless) => {
                self.taken = Taken::new(self.model, self.requests);
                Ok(Step::Failed)
            }
            Err(Stop::Hard) => {
                self.taken = Taken::new(self.model, self.requests);
                self.bounds = Some(Bounds::new(self));
                self.reach = 0;
                self.request(0)
            }
            result => result,
        };
        // The sums of what requests need at least were checked, so that there are too many can't be all that is wrong.
        Ok(result? == Step::Found)
    }

    /// Whether more is asked for than there are devices, and a look at them tells that it can't be had.
    pub(crate) fn is_obviously_hopeless(&mut self) -> bool {
        let needed = self.requests.alternatives.iter().fold(0, |sum: i64, own| sum.saturating_add(own.needed));
        let has_enough = i64::try_from(self.model.devices.len()).is_ok_and(|devices| devices >= needed);
        !has_enough && self.has_too_few()
    }

    fn tick(&mut self) -> Result<(), Stop> {
        if self.steps.is_multiple_of(STEPS_PER_LOOK) && (self.limits.is_over)() {
            return Err(Stop::OutOfTime);
        }
        self.steps += 1;
        if self.steps > self.limits.steps { Err(Stop::OutOfSteps) } else { Ok(()) }
    }

    fn request(&mut self, index: usize) -> Result<Step, Stop> {
        let requests = self.requests;
        let Some(request) = requests.all.get(index) else { return Ok(Step::Found) };
        if !request.is_prioritized {
            return self.devices(Position {
                request: index,
                alternative: Some(request.alternatives.start),
                done: 0,
                start: 0,
            });
        }
        let position = Position { request: index, alternative: None, done: 0, start: 0 };
        self.within(position, |search| {
            search.tick()?;
            let mut all_too_many = true;
            for alternative in request.alternatives.clone() {
                match search.devices(Position { alternative: Some(alternative), ..position })? {
                    Step::TooMany => {}
                    Step::Failed => all_too_many = false,
                    Step::Found => {
                        search.selected[index] = alternative;
                        return Ok(Step::Found);
                    }
                }
            }
            Ok(if all_too_many { Step::TooMany } else { Step::Failed })
        })
    }

    /// A part of the search, unless it is known how that one ends.
    fn within(&mut self, position: Position, part: impl FnOnce(&mut Self) -> Result<Step, Stop>) -> Result<Step, Stop> {
        let reach = std::mem::replace(&mut self.reach, position.request);
        let known = self.known(position)?;
        let step = match known {
            Some(step) => step,
            None => part(self)?,
        };
        if known.is_none() && step != Step::Found {
            self.remember(position, step);
        }
        self.reach = self.reach.max(reach);
        Ok(step)
    }

    /// The next request. The limit of devices is one of each claim.
    fn next(&mut self, index: usize) -> Result<Step, Stop> {
        let claim = |index: usize| self.requests.all.get(index).map(|request| request.claim);
        let is_other_claim = claim(index) != claim(index + 1);
        let step = self.request(index + 1)?;
        Ok(if is_other_claim && step == Step::TooMany { Step::Failed } else { step })
    }

    /// The remaining devices of a request.
    fn devices(&mut self, position: Position) -> Result<Step, Stop> {
        let Some(index) = position.alternative else { return Ok(Step::Failed) };
        self.within(position, |search| {
            search.tick()?;
            let requests = search.requests;
            let alternative = &requests.alternatives[index];
            if alternative.all.as_ref().is_some_and(Vec::is_empty) {
                return Ok(Step::Failed);
            }
            let needed = usize::try_from(alternative.needed).unwrap_or(0);
            if position.done >= needed {
                return search.next(position.request);
            }
            if needed - position.done > MAX_DEVICES - search.taken.per_claim[alternative.claim].min(MAX_DEVICES) {
                return Ok(Step::TooMany);
            }
            if let Some(all) = &alternative.all {
                if !search.allocate(index, all[position.done])? {
                    return Ok(Step::Failed);
                }
                let step = search.devices(Position { done: position.done + 1, ..position })?;
                if step != Step::Found {
                    search.undo()?;
                }
                return Ok(step);
            }
            search.any_device(position, index)
        })
    }

    /// The next device of a request, and those after it.
    fn any_device(&mut self, position: Position, index: usize) -> Result<Step, Stop> {
        let alternative = &self.requests.alternatives[index];
        let mut failed_classes = Vec::new();
        for device in position.start..self.model.devices.len() {
            if self.is_taken(alternative, device) || self.is_hopeless_class(device, &failed_classes) {
                continue;
            }
            if !self.matcher.selects(alternative, device)? {
                continue;
            }
            if !self.matcher.fits(alternative, device, self.taken.used_of(device))? {
                continue;
            }
            self.tick()?;
            if !self.allocate(index, device)? {
                continue;
            }
            let reach = std::mem::replace(&mut self.reach, position.request);
            let next = Position { done: position.done + 1, start: device + 1, ..position };
            let step = self.devices(next)?;
            if step != Step::Failed {
                if step == Step::TooMany {
                    self.undo()?;
                }
                self.reach = self.reach.max(reach);
                return Ok(step);
            }
            self.undo()?;
            failed_classes.extend(self.class_without_hope(position.request, device));
            self.reach = self.reach.max(reach);
        }
        Ok(Step::Failed)
    }

    /// Tries to give the device to a request. Nothing has changed if that isn't possible.
    pub(crate) fn allocate(&mut self, index: usize, device: usize) -> Result<bool, Stop> {
        let alternative = &self.requests.alternatives[index];
        let own = &self.model.devices[device];
        if self.is_taken(alternative, device) || !self.is_usable(device) {
            return Ok(false);
        }
        let is_charged = self.takes_counters(alternative, device);
        let mut groups_before = Vec::new();
        if is_charged {
            for (set, groups) in &own.groups {
                if !self.taken.groups[*set].admits(groups) {
                    self.restore_groups(groups_before);
                    return Ok(false);
                }
                let with = self.taken.groups[*set].with(groups);
                groups_before.push((*set, std::mem::replace(&mut self.taken.groups[*set], with)));
            }
            if !self.taken.has_counters(self.model, device) {
                self.restore_groups(groups_before);
                return Ok(false);
            }
        }
        let is_tolerated = !self.features.device_taints || alternative.tolerates(&own.api);
        let share =
            if is_tolerated && self.constrain(index, device)? { self.share(index, device)? } else { Share::None };
        let uses = match share {
            Share::None => {
                self.restore_groups(groups_before);
                return Ok(false);
            }
            Share::All => None,
            Share::Part(uses) => Some(uses),
        };
        if is_charged {
            for (counter, amount) in &own.counters {
                self.taken.consumed[*counter] += amount;
            }
        }
        if !own.is_shareable {
            self.taken.owners[device].push(Owner { claim: alternative.claim, is_admin: alternative.is_admin });
        }
        self.taken.per_claim[alternative.claim] += 1;
        self.taken.chosen.push(Chosen { alternative: index, device, uses, is_charged, groups_before });
        Ok(true)
    }

    /// Whether somebody has the device who lets nobody else have it.
    pub(crate) fn is_taken(&self, alternative: &Alternative<'_>, device: usize) -> bool {
        if alternative.is_admin {
            return self.is_owned(device, alternative.claim);
        }
        let is_owned = || match self.mode {
            Mode::Parity => false,
            Mode::Placement => self.is_owned(device, alternative.claim),
        };
        self.model.devices[device].is_allocated || self.is_kept(device) || is_owned()
    }

    /// Whether the device is chosen, and kept from other claims by that.
    pub(crate) fn is_kept(&self, device: usize) -> bool {
        let owners = &self.taken.owners[device];
        match self.mode {
            Mode::Parity => !owners.is_empty(),
            Mode::Placement => owners.iter().any(|owner| !owner.is_admin),
        }
    }

    /// Whether a claim has the device, so that it can't have it again.
    pub(crate) fn is_owned(&self, device: usize, claim: usize) -> bool {
        let owners = &self.taken.owners[device];
        match self.mode {
            Mode::Parity => owners.last().is_some_and(|owner| owner.claim == claim),
            Mode::Placement => owners.iter().any(|owner| owner.claim == claim),
        }
    }

    /// Whether the request takes nothing of counters and capacities.
    pub(crate) fn is_free_of_charge(&self, alternative: &Alternative<'_>) -> bool {
        match self.mode {
            Mode::Parity => false,
            Mode::Placement => alternative.is_admin,
        }
    }

    /// Whether counters are taken if the request gets the device now.
    pub(crate) fn takes_counters(&self, alternative: &Alternative<'_>, device: usize) -> bool {
        self.model.devices[device].consumes_counters()
            && !self.is_free_of_charge(alternative)
            && !self.taken.is_charged(self.model, device)
    }

    /// Whether the features and the node allow the device at all.
    pub(crate) fn is_usable(&self, device: usize) -> bool {
        let own = &self.model.devices[device];
        let skips = self.variant == Variant::Experimental && own.skips_node_operations();
        (!skips || self.features.optional_node_operations && self.node_skips_operations)
            && (self.features.partitionable_devices || !own.consumes_counters())
    }

    fn restore_groups(&mut self, groups_before: Vec<(usize, Groups)>) {
        for (set, groups) in groups_before.into_iter().rev() {
            self.taken.groups[set] = groups;
        }
    }

    /// Adds the device to what the constraints have seen, if all of them let it.
    fn constrain(&mut self, index: usize, device: usize) -> Result<bool, Stop> {
        let alternative = &self.requests.alternatives[index];
        let lists = self.features.list_type_attributes;
        for (position, (constraint, source)) in alternative.constraints.iter().enumerate() {
            let kind = self.requests.constraints[*constraint];
            let values = self.matcher.values(alternative, *source, device);
            let with = match &values {
                Ok(Some(values)) => self.taken.seen[*constraint].with(kind, values, lists),
                _ => None,
            };
            if let Some(with) = with {
                self.taken.seen[*constraint].push(with);
                continue;
            }
            for (constraint, _) in &alternative.constraints[..position] {
                self.taken.seen[*constraint].pop();
            }
            values?;
            if alternative.all.is_some() {
                let error = Error::AllExcluded {
                    claim: claim_name(&self.claims[alternative.claim]),
                    request: alternative.name.to_owned(),
                    device: self.model.devices[device].id.clone(),
                };
                return Ok(self.matcher.or_forgive(Err(error))?);
            }
            return Ok(false);
        }
        Ok(true)
    }

    /// What is used of a device that all constraints let. Takes it back from them if there isn't enough of it.
    fn share(&mut self, index: usize, device: usize) -> Result<Share, Stop> {
        if !self.features.consumable_capacity {
            return Ok(Share::All);
        }
        let alternative = &self.requests.alternatives[index];
        let own = &self.model.devices[device];
        let fits = self.matcher.fits(alternative, device, self.taken.used_of(device))?;
        if fits && !own.is_shareable {
            return Ok(Share::All);
        }
        let Some(uses) = (if fits { self.matcher.uses(alternative, device)? } else { None }) else {
            for (constraint, _) in &alternative.constraints {
                self.taken.seen[*constraint].pop();
            }
            return Ok(Share::None);
        };
        if self.is_free_of_charge(alternative) {
            return Ok(Share::Part(uses));
        }
        self.taken.shares[device] += 1;
        let used = &mut self.taken.used[device];
        used.resize(uses.len(), Quantity::new(0, Format::DecimalSi));
        for (sum, new) in used.iter_mut().zip(uses.iter()) {
            sum.add(&new.amount);
        }
        Ok(Share::Part(uses))
    }

    /// Takes the latest device back from a part of the search that has failed.
    fn undo(&mut self) -> Result<(), Stop> {
        self.take_back();
        self.failures += 1;
        if self.failures == 1 && self.has_too_few() {
            return Err(Stop::Hopeless);
        }
        if self.bounds.is_none() && self.failures > EASY_FAILURES { Err(Stop::Hard) } else { Ok(()) }
    }

    /// Takes the latest device back, if there is one.
    pub(crate) fn take_back(&mut self) -> bool {
        let Some(chosen) = self.taken.chosen.pop() else { return false };
        let alternative = &self.requests.alternatives[chosen.alternative];
        let own = &self.model.devices[chosen.device];
        self.taken.per_claim[alternative.claim] -= 1;
        if let Some(uses) = chosen.uses.as_ref().filter(|_| !self.is_free_of_charge(alternative)) {
            self.taken.shares[chosen.device] -= 1;
            for (sum, old) in self.taken.used[chosen.device].iter_mut().zip(uses.iter()) {
                sum.sub(&old.amount);
            }
        }
        if !own.is_shareable {
            self.taken.owners[chosen.device].pop();
        }
        for (constraint, _) in &alternative.constraints {
            self.taken.seen[*constraint].pop();
        }
        if chosen.is_charged {
            for (counter, amount) in &own.counters {
                self.taken.consumed[*counter] -= amount;
            }
        }
        self.restore_groups(chosen.groups_before);
        true
    }
}

//! Why there is no solution: for each request, what speaks against each device on its own.

use std::collections::BTreeMap;

use crate::requests::claim_name;
use crate::search::{Search, Stop};

/// What speaks against a device; of several things the first one here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Somebody has it.
    InUse,
    /// It isn't what is asked for.
    Selector,
    /// It is too small, or too little is left.
    Capacity,
    /// The cluster's features or the node don't allow it.
    Feature,
    /// Devices that are in use exclude it.
    CompatibilityGroups,
    /// Too little is left of what it shares with other devices.
    Counters,
    /// It has a taint that isn't tolerated.
    Taint,
    /// It lacks an attribute that a constraint is about.
    Constraint,
}

/// What a request (or an alternative of one) met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// Namespace and name.
    pub claim: String,
    /// As allocations name it.
    pub request: String,
    /// How many devices it needs.
    pub needed: i64,
    /// How many could be had, were there no other request: if these are enough, it is the combination that isn't possible.
    pub usable: usize,
    /// How many could not, and why.
    pub reasons: BTreeMap<Reason, usize>,
}

/// Why there is no solution.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reasons {
    /// For each request and alternative.
    pub shortages: Vec<Shortage>,
    /// Pools of which not all slices are there (yet).
    pub incomplete_pools: Vec<String>,
}

impl Search<'_, '_, '_> {
    /// Looks at each device for each request, as if nothing had been chosen.
    pub(crate) fn reasons(&mut self) -> Reasons {
        let mut reasons = Reasons::default();
        let (model, requests) = (self.model, self.requests);
        for pool in &model.pools {
            if matches!(pool.content, crate::model::Content::Incomplete) {
                reasons.incomplete_pools.push(pool.id.to_string());
            }
        }
        for (index, alternative) in requests.alternatives.iter().enumerate() {
            let mut shortage = Shortage {
                claim: claim_name(&self.claims[alternative.claim]),
                request: alternative.full_name(),
                needed: alternative.needed,
                usable: 0,
                reasons: BTreeMap::new(),
            };
            for device in 0..model.devices.len() {
                // An error here is one that the search didn't meet.
                match self.reason(index, device).unwrap_or(Some(Reason::Selector)) {
                    None => shortage.usable += 1,
                    Some(reason) => *shortage.reasons.entry(reason).or_default() += 1,
                }
            }
            reasons.shortages.push(shortage);
        }
        reasons
    }

    fn reason(&mut self, index: usize, device: usize) -> Result<Option<Reason>, Stop> {
        let (model, requests) = (self.model, self.requests);
        let (alternative, own) = (&requests.alternatives[index], &model.devices[device]);
        // What isn't asked for is no news, whoever has it.
        if !self.matcher.selects(alternative, device)? {
            return Ok(Some(Reason::Selector));
        }
        if !alternative.is_admin && own.is_allocated {
            return Ok(Some(Reason::InUse));
        }
        if !self.matcher.fits(alternative, device, &[])? {
            return Ok(Some(Reason::Capacity));
        }
        if !self.is_usable(device) {
            return Ok(Some(Reason::Feature));
        }
        if self.takes_counters(alternative, device) {
            if !own.groups.iter().all(|(set, groups)| model.groups[*set].admits(groups)) {
                return Ok(Some(Reason::CompatibilityGroups));
            }
            let is_left = |(counter, amount): &(usize, i128)| model.available[*counter] >= *amount;
            if !model.overdrawn[own.pool].is_empty() || !own.counters.iter().all(is_left) {
                return Ok(Some(Reason::Counters));
            }
        }
        if self.features.device_taints && !alternative.tolerates(&own.api) {
            return Ok(Some(Reason::Taint));
        }
        for (_, source) in &alternative.constraints {
            if self.matcher.values(alternative, *source, device)?.is_none() {
                return Ok(Some(Reason::Constraint));
            }
        }
        Ok(None)
    }
}

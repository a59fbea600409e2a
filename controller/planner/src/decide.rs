//! One decision after the other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aliquot_allocator::{Limits, Outcome, Reasons};
use aliquot_api::ids::ObjectName;
use aliquot_api::reason::Reason;
use aliquot_fit::{Misfit, Needs};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

use crate::Planner;
use crate::claims::{Claim, Held, Whose, node_of};
use crate::pods::{Gate, Pod, Retry, Use};
use crate::verdict::{self, No, Verdict};

/// A scheduler that says the same again can't be seen. After this time it has tried, as far as one can know; if it hasn't, and binds
/// the pod to the node of before, the pod is evicted.
const UNSEEN: Duration = Duration::from_secs(10);

/// A claim and what it gets.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    /// The claim.
    pub claim: ObjectName,
    /// It and no other of its name.
    pub uid: String,
    /// The version that was looked at.
    pub version: String,
    /// What it gets.
    pub allocation: Arc<AllocationResult>,
}

/// What shall be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Write these, which are for one pod, in this order. What is written is told by [`Planner::apply_claim`], what isn't by
    /// [`Planner::not_written`].
    Allocate {
        /// The pod.
        pod: ObjectName,
        /// Where all of it is.
        node: String,
        /// Its claims.
        grants: Vec<Grant>,
    },
    /// Take our gate off, and say that the devices are there if it was said that they aren't.
    LetGo {
        /// The pod.
        pod: ObjectName,
        /// It and no other of its name.
        uid: String,
        /// Its condition says why it waits.
        was_told: bool,
    },
    /// Take the allocation away: nobody uses it.
    Free {
        /// The claim.
        claim: ObjectName,
        /// It and no other of its name.
        uid: String,
        /// The version that was looked at.
        version: String,
    },
    /// Evict a pod that can't start: it is bound to another node than its claims.
    Evict {
        /// The pod.
        pod: ObjectName,
        /// It and no other of its name.
        uid: String,
        /// Why, in a sentence.
        message: String,
    },
    /// Say why a pod waits.
    Tell {
        /// The pod.
        pod: ObjectName,
        /// It and no other of its name.
        uid: String,
        /// Why.
        verdict: Verdict,
    },
}

/// What a look at a pod came to.
enum Look {
    /// There is nothing to do.
    Nothing,
    Do(Action),
    Waits(Verdict),
}

impl Planner {
    /// Decides the next thing, if there is one. `now` is the time since some fixed moment; `limits` are for each node; `share_id`
    /// makes the ids of shares.
    pub fn decide(
        &mut self,
        now: Duration,
        limits: Limits<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Option<Action> {
        while self.next_look().is_some_and(|until| until <= now)
            && let Some((_, name)) = self.retries.pop_first()
        {
            if let Some(pod) = self.pods.get(&name) {
                self.pods_to_do.insert(pod.rank(&name));
            }
        }
        while let Some((_, _, name)) = self.pods_to_do.pop_first() {
            match self.look_at_pod(&name, now, limits, share_id) {
                Look::Nothing => {}
                Look::Do(action) => return Some(action),
                Look::Waits(verdict) => {
                    if let Some(action) = self.tell(&name, verdict) {
                        return Some(action);
                    }
                }
            }
        }
        while let Some(name) = self.claims_to_do.pop_first() {
            if let Some(action) = self.look_at_claim(&name) {
                return Some(action);
            }
        }
        None
    }

    fn look_at_pod(
        &mut self,
        name: &ObjectName,
        now: Duration,
        limits: Limits<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Look {
        let Some(pod) = self.pods.get(name).filter(|pod| !pod.is_deleted) else { return Look::Nothing };
        let (mut ours, mut open, mut missing, mut pinned) = (0, Vec::new(), None, None);
        for one in &pod.claims {
            let known = match one {
                Use::Claim(claim) => {
                    self.claims.get_key_value(claim).ok_or_else(|| format!("claim {claim} isn't there yet"))
                }
                Use::Template(template) => Err(format!("the claim of template {template} isn't made yet")),
            };
            let (claim_name, claim) = match known {
                Ok(known) => known,
                Err(text) => {
                    missing.get_or_insert(text);
                    continue;
                }
            };
            match self.classes.whose(&claim.spec) {
                Whose::Others => continue,
                Whose::Ours => ours += 1,
                Whose::Mixed => {
                    let text =
                        format!("claim {claim_name} asks for devices of other drivers, too, which are not fenced");
                    return Look::Waits(Verdict::new(Reason::ForeignDevices, text));
                }
            }
            match &claim.held {
                Held::Nothing if claim.is_deleted => {
                    missing.get_or_insert(format!("claim {claim_name} is being deleted"));
                }
                Held::Nothing => open.push((claim_name.clone(), claim.clone())),
                // The pod is looked at again when it is written.
                Held::Decided(_) | Held::Freeing(_) => return Look::Nothing,
                Held::Allocated(allocation) => pinned = pinned.or(node_of(allocation)),
            }
        }
        if let Some(text) = missing {
            return if ours > 0 || pod.gate != Gate::None {
                Look::Waits(Verdict::new(Reason::NotEvaluated, text))
            } else {
                Look::Nothing
            };
        }
        let pinned = pinned.map(str::to_owned);
        if open.is_empty() {
            return self.look_at_allocated(name, pinned, ours > 0);
        }
        if matches!(pod.gate, Gate::Others { .. }) {
            return Look::Waits(Verdict::new(
                Reason::ForeignGate,
                "another scheduling gate than ours holds the pod back",
            ));
        }
        if self.is_too_early(name, now) {
            return Look::Nothing;
        }
        match self.place(name, &open, pinned.as_deref(), limits, share_id) {
            Ok((node, allocations)) => Look::Do(self.grant(name, node, open, allocations)),
            Err(verdict) => match self.half_allocated(name, pinned.as_deref()) {
                Some(action) => Look::Do(action),
                None => Look::Waits(verdict),
            },
        }
    }

    /// When [`Planner::decide`] has to be asked again even if nothing is told to it.
    pub fn next_look(&self) -> Option<Duration> {
        self.retries.first().map(|(until, _)| *until)
    }

    /// Whether the scheduler has to try a pod first, and how long that is waited for.
    fn is_too_early(&mut self, name: &ObjectName, now: Duration) -> bool {
        let Some(pod) = self.pods.get_mut(name) else { return false };
        let until = match pod.retry {
            Retry::None => return false,
            Retry::NotSeen => now + UNSEEN,
            Retry::Until(until) => until,
        };
        if until <= now {
            pod.retry = Retry::None;
            return false;
        }
        pod.retry = Retry::Until(until);
        self.retries.insert((until, name.clone()));
        true
    }

    /// A pod whose claims are all there.
    fn look_at_allocated(&mut self, name: &ObjectName, pinned: Option<String>, has_ours: bool) -> Look {
        let Some(pod) = self.pods.get_mut(name) else { return Look::Nothing };
        if let (Some(node), Some(pinned)) = (&pod.node, &pinned)
            && node != pinned
            && !pod.is_started
            && !pod.is_leaving
        {
            pod.is_leaving = true;
            let message = format!("bound to node {node}, but its devices are on {pinned}");
            return Look::Do(Action::Evict { pod: name.clone(), uid: pod.uid.clone(), message });
        }
        let is_told = has_ours && pod.told.is_some();
        if pod.is_leaving || !(pod.gate.has_ours() || is_told) {
            return Look::Nothing;
        }
        pod.is_leaving = true;
        Look::Do(Action::LetGo { pod: name.clone(), uid: pod.uid.clone(), was_told: pod.told.is_some() })
    }

    /// The node for a pod and all others that wait for the same claims, and what they get there.
    fn place(
        &mut self,
        name: &ObjectName,
        open: &[(ObjectName, Claim)],
        pinned: Option<&str>,
        limits: Limits<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<(String, Vec<AllocationResult>), Verdict> {
        let Some(pod) = self.pods.get(name) else { return Err(Verdict::new(Reason::NotEvaluated, "the pod is gone")) };
        let sharers = self.sharers(name, open);
        let fixed = pod.node.as_deref().or(pinned);
        let key = (pod.shape, open.iter().map(|(_, claim)| Arc::as_ptr(&claim.spec) as usize).collect::<Vec<_>>());
        // Sharers and earlier claims make it another question.
        let is_plain = sharers.len() == 1 && fixed.is_none();
        if is_plain && let Some(verdict) = self.failed.get(&key) {
            return Err(verdict.clone());
        }
        let publishers: BTreeSet<&str> = self.publishers.values().map(String::as_str).collect();
        let candidates = publishers.into_iter().filter(|node| fixed.is_none_or(|fixed| fixed == *node));
        let claims: Vec<ResourceClaim> = open.iter().map(|(name, claim)| claim.to_api(name)).collect();
        let (mut fitting, mut crowded) = (Vec::new(), Vec::new());
        for node in candidates {
            // A bound pod has its room already.
            match if pod.node.is_some() { Ok(()) } else { self.nodes.check(&sharers, node) } {
                Ok(()) => fitting.push(node),
                Err(misfit) => crowded.push((node, misfit)),
            }
        }
        // Where there is a node that fits, kube-scheduler would rather clear the allocation than make room elsewhere.
        if fitting.is_empty() {
            let can_be_made = |(node, _): &(&str, Misfit)| self.nodes.check_with_preemption(&sharers, node).is_ok();
            let (roomy, full): (Vec<_>, Vec<_>) = crowded.into_iter().partition(can_be_made);
            fitting.extend(roomy.into_iter().map(|(node, _)| node));
            crowded = full;
        }
        let mut nos: Vec<No> = crowded.into_iter().map(|(_, misfit)| No::Fit(misfit)).collect();
        let mut best = None;
        for node in fitting {
            let Some(api) = self.nodes.node(node) else { continue };
            match self.allocator.allocate(api, &claims, limits, share_id) {
                Outcome::Allocated(allocations, score) => {
                    let cost = score.map(|score| score.cost).unwrap_or_default();
                    if best.as_ref().is_none_or(|(least, _, _)| cost < *least) {
                        best = Some((cost, node.to_owned(), allocations));
                    }
                }
                Outcome::None(reasons) | Outcome::NodeError(reasons) => nos.push(No::Devices(reasons)),
                // Too hard a question for this node; others may be easier.
                Outcome::Timeout | Outcome::OutOfSteps => nos.push(No::Devices(Reasons::default())),
                Outcome::Fatal(error) => return Err(Verdict::new(Reason::InvalidRequest, error.to_string())),
            }
        }
        let Some((_, node, allocations)) = best else {
            let verdict = verdict::of(&nos);
            if is_plain {
                self.failed.insert(key, verdict.clone());
            }
            return Err(verdict);
        };
        Ok((node, allocations))
    }

    /// What a pod needs, and all that wait for the same claims.
    fn sharers(&self, name: &ObjectName, open: &[(ObjectName, Claim)]) -> Vec<&Needs> {
        let mut names = BTreeSet::from([name]);
        names.extend(open.iter().filter_map(|(claim, _)| self.users.get(claim)).flatten());
        let pods = names.into_iter().filter_map(|name| self.pods.get(name));
        pods.filter(|pod| pod.node.is_none() && !pod.is_deleted).map(|pod| &*pod.needs).collect()
    }

    fn grant(
        &mut self,
        pod: &ObjectName,
        node: String,
        open: Vec<(ObjectName, Claim)>,
        allocations: Vec<AllocationResult>,
    ) -> Action {
        let mut grants = Vec::new();
        for ((name, before), allocation) in open.into_iter().zip(allocations) {
            let allocation = Arc::new(allocation);
            let held = Held::Decided(Arc::clone(&allocation));
            self.exchange(&Held::Nothing, &held);
            if let Some(claim) = self.claims.get_mut(&name) {
                claim.held = held;
            }
            self.settle_users(&name);
            grants.push(Grant { claim: name, uid: before.uid, version: before.version, allocation });
        }
        Action::Allocate { pod: pod.clone(), node, grants }
    }

    /// A pod has claims on a node where the rest of them can't be had. If nobody else has them, they are given back.
    fn half_allocated(&mut self, name: &ObjectName, pinned: Option<&str>) -> Option<Action> {
        pinned?;
        let pod = self.pods.get(name).filter(|pod| pod.node.is_none() && pod.gate == Gate::Ours)?;
        let is_free = |claim: &&ObjectName| {
            self.claims.get(*claim).is_some_and(|known| {
                let is_allocated = matches!(known.held, Held::Allocated(_)) && !known.is_reserved;
                is_allocated && self.users.get(*claim).is_some_and(|users| users.len() == 1)
            })
        };
        let claim = pod.known_claims().find(is_free)?.clone();
        self.free(&claim)
    }

    /// A claim that is allocated and that nobody uses is freed, unless its owner takes care of it.
    fn look_at_claim(&mut self, name: &ObjectName) -> Option<Action> {
        let claim = self.claims.get(name)?;
        let is_unused = matches!(claim.held, Held::Allocated(_))
            && !claim.is_reserved
            && !claim.is_owned
            && !self.users.contains_key(name)
            && self.classes.whose(&claim.spec) == Whose::Ours;
        if is_unused { self.free(name) } else { None }
    }

    fn free(&mut self, name: &ObjectName) -> Option<Action> {
        let claim = self.claims.get_mut(name)?;
        let Held::Allocated(allocation) = &claim.held else { return None };
        claim.held = Held::Freeing(Arc::clone(allocation));
        Some(Action::Free { claim: name.clone(), uid: claim.uid.clone(), version: claim.version.clone() })
    }

    /// Says why a pod waits, unless that is known.
    fn tell(&mut self, name: &ObjectName, verdict: Verdict) -> Option<Action> {
        let pod: &mut Pod = self.pods.get_mut(name)?;
        if pod.told == Some(verdict.reason) {
            return None;
        }
        pod.told = Some(verdict.reason);
        Some(Action::Tell { pod: name.clone(), uid: pod.uid.clone(), verdict })
    }
}

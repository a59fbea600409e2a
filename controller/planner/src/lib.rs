//! Which claims get which devices, and what else is done for pods that wait. No IO: what happens in the cluster is told to the
//! [`Planner`], what shall happen comes out as [`Action`]s, and how these ended is told to it again.
//!
//! ```text
//! slices, classes, rules ──> allocator ─┐
//! nodes, pods ────────────> fit ────────┼─> decide ──> Action ──> whoever writes
//! claims, pods ───────────> what waits ─┘                             │
//!        ^────────────── what became of it ───────────────────────────┘
//! ```
//!
//! All that a decision depends on stands in the API; what is only here are decisions on their way to it. So a planner that is
//! made anew decides the same.

mod claims;
mod decide;
mod pods;
mod slices;
mod verdict;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use aliquot_allocator::{AllocatedState, Allocator, Features, Mode, Programs};
use aliquot_api::ids::ObjectName;
use aliquot_fit::{Needs, Nodes};
use k8s_openapi::api::core::v1::{Node, Pod as ApiPod};
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice};

pub use decide::{Action, Grant};
pub use verdict::Verdict;

use claims::{Claim, Classes, Held, Specs, node_of};
use pods::{Pod, Rank, Retry, Shapes};
use slices::Rules;

/// What is known of the cluster, and what is decided. One owner tells and asks.
pub struct Planner {
    driver: String,
    allocator: Allocator,
    nodes: Nodes,
    classes: Classes,
    rules: Rules,
    /// The nodes of our slices, by slice.
    publishers: BTreeMap<String, String>,
    specs: Specs,
    claims: BTreeMap<ObjectName, Claim>,
    shapes: Shapes,
    pods: BTreeMap<ObjectName, Pod>,
    /// By claim.
    users: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
    /// Pods to look at.
    pods_to_do: BTreeSet<Rank>,
    /// Claims to look at.
    claims_to_do: BTreeSet<ObjectName>,
    /// Pods that the scheduler has to try first, by when we go on without having seen it.
    retries: BTreeSet<(Duration, ObjectName)>,
    /// Why pods of a shape with claims of a shape got nothing. Forgotten as soon as anything becomes free.
    failed: HashMap<(u64, Vec<usize>), Verdict>,
}

impl Planner {
    /// For the devices of a driver, in a cluster that knows nothing yet.
    pub fn new(driver: String, features: Features) -> Self {
        let (state, programs) = (AllocatedState::default(), Programs::default());
        let allocator = Allocator::new(Mode::Placement, features, features.variant(), programs, state, [], []);
        Self {
            classes: Classes::new(driver.clone()),
            driver,
            allocator,
            nodes: Nodes::default(),
            rules: Rules::default(),
            publishers: BTreeMap::new(),
            specs: Specs::default(),
            claims: BTreeMap::new(),
            shapes: Shapes::default(),
            pods: BTreeMap::new(),
            users: BTreeMap::new(),
            pods_to_do: BTreeSet::new(),
            claims_to_do: BTreeSet::new(),
            retries: BTreeSet::new(),
            failed: HashMap::new(),
        }
    }

    /// A slice is there, or has changed. Other drivers' slices are passed over.
    pub fn apply_slice(&mut self, slice: ResourceSlice) {
        if slice.spec.driver != self.driver {
            return;
        }
        let name = slice.metadata.name.clone().unwrap_or_default();
        if let Some(node) = slice.spec.node_name.clone() {
            self.publishers.insert(name, node);
        }
        self.allocator.apply_slice(self.rules.seen(slice));
        self.more_is_possible();
    }

    /// A slice is gone.
    pub fn delete_slice(&mut self, name: &str) {
        self.publishers.remove(name);
        self.allocator.delete_slice(name);
    }

    /// A rule for taints is there or has changed. True: all slices have to be told again.
    #[must_use]
    pub fn apply_rule(&mut self, rule: DeviceTaintRule) -> bool {
        self.rules.apply(rule)
    }

    /// A rule is gone. True: all slices have to be told again.
    #[must_use]
    pub fn delete_rule(&mut self, name: &str) -> bool {
        self.rules.delete(name)
    }

    /// A class is there, or has changed.
    pub fn apply_class(&mut self, mut class: DeviceClass) {
        class.metadata.managed_fields = None;
        self.classes.apply(&class);
        self.allocator.apply_class(class);
        self.more_is_possible();
    }

    /// A class is gone.
    pub fn delete_class(&mut self, name: &str) {
        self.classes.delete(name);
        self.allocator.delete_class(name);
        self.more_is_possible();
    }

    /// A node is there, or has changed.
    pub fn apply_node(&mut self, node: &Node) {
        if self.nodes.apply_node(node) {
            self.more_is_possible();
        }
    }

    /// A node is gone.
    pub fn delete_node(&mut self, name: &str) {
        self.nodes.delete_node(name);
        self.allocator.delete_node(name);
    }

    /// A claim is there, or has changed; also what a write of ours gave back.
    pub fn apply_claim(&mut self, claim: ResourceClaim) {
        let name = object_name(&claim.metadata);
        let version = claim.metadata.resource_version.clone().unwrap_or_default();
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let known = self.claims.get(&name).filter(|known| known.uid == uid);
        if known.is_some_and(|known| is_older(&version, &known.version)) {
            return;
        }
        if known.is_none() {
            self.delete_claim(&name);
        }
        let status = claim.status.unwrap_or_default();
        let before = self.claims.get(&name).map_or(Held::Nothing, |known| known.held.clone());
        let held = match (status.allocation, &before) {
            (Some(allocation), Held::Freeing(_)) => Held::Freeing(Arc::new(allocation)),
            (Some(allocation), _) => Held::Allocated(Arc::new(allocation)),
            // Our write may still be on its way.
            (None, Held::Decided(allocation)) => Held::Decided(Arc::clone(allocation)),
            (None, _) => Held::Nothing,
        };
        self.exchange(&before, &held);
        if matches!((&before, &held), (Held::Allocated(_), Held::Nothing)) {
            self.was_cleared(&name);
        }
        let new = Claim {
            uid,
            version,
            spec: self.specs.intern(claim.spec.unwrap_or_default()),
            held,
            is_reserved: status.reserved_for.is_some_and(|users| !users.is_empty()),
            is_deleted: claim.metadata.deletion_timestamp.is_some(),
            is_owned: claim.metadata.owner_references.is_some_and(|owners| !owners.is_empty()),
        };
        self.claims.insert(name.clone(), new);
        self.claim_changed(name);
    }

    /// A claim is gone.
    pub fn delete_claim(&mut self, name: &ObjectName) {
        if let Some(claim) = self.claims.remove(name) {
            self.exchange(&claim.held, &Held::Nothing);
            self.claim_changed(name.clone());
        }
    }

    /// A pod is there, or has changed.
    pub fn apply_pod(&mut self, pod: &ApiPod) {
        let name = object_name(&pod.metadata);
        let mut new = pods::read(pod, &mut self.shapes);
        if let Some(new) = &mut new {
            let before = self.pods.get(&name).filter(|before| before.uid == new.uid);
            new.is_leaving = new.gate.has_ours() && before.is_some_and(|before| before.is_leaving);
            // A condition that changed is the scheduler's answer.
            new.retry =
                before.filter(|before| before.attempt == new.attempt).map_or(Retry::None, |before| before.retry);
        }
        self.forget_pod(&name);
        let Some(new) = new else {
            self.settle_other(pod, &name);
            return;
        };
        for claim in new.known_claims() {
            self.users.entry(claim.clone()).or_default().insert(name.clone());
        }
        self.pods_to_do.insert(new.rank(&name));
        self.pods.insert(name.clone(), new);
        self.settle(&name);
    }

    /// A pod is gone.
    pub fn delete_pod(&mut self, name: &ObjectName) {
        self.forget_pod(name);
        self.leave_node(name);
    }

    /// What was decided for a claim couldn't be written.
    pub fn not_written(&mut self, name: &ObjectName, uid: &str) {
        let Some(claim) = self.claims.get_mut(name).filter(|claim| claim.uid == uid) else { return };
        let before = claim.held.clone();
        claim.held = match &before {
            Held::Decided(_) | Held::Nothing => Held::Nothing,
            Held::Allocated(allocation) | Held::Freeing(allocation) => Held::Allocated(Arc::clone(allocation)),
        };
        let after = claim.held.clone();
        self.exchange(&before, &after);
        self.claim_changed(name.clone());
    }

    /// A pod couldn't be let go.
    pub fn not_let_go(&mut self, name: &ObjectName, uid: &str) {
        if let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.uid == uid) {
            pod.is_leaving = false;
            self.pods_to_do.insert(pod.rank(name));
        }
    }

    /// A pod without claims takes room, as long as it runs.
    fn settle_other(&mut self, pod: &ApiPod, name: &ObjectName) {
        match pods::bound_to(pod) {
            Some(node) if !pods::is_over(pod) => self.nodes.place(name, &Needs::of(pod), node),
            Some(_) | None => self.leave_node(name),
        }
    }

    /// Says where a pod takes room: where it is bound to, or where its claims are allocated.
    fn settle(&mut self, name: &ObjectName) {
        let Some(pod) = self.pods.get(name) else { return };
        let pinned = || {
            let mut held = pod.known_claims().filter_map(|claim| self.claims.get(claim)?.held.allocation());
            held.find_map(|allocation| node_of(allocation))
        };
        match pod.node.as_deref().or_else(pinned) {
            Some(node) => self.nodes.place(name, &pod.needs, node),
            None => self.leave_node(name),
        }
    }

    fn leave_node(&mut self, name: &ObjectName) {
        if self.nodes.remove(name) {
            self.more_is_possible();
        }
    }

    fn forget_pod(&mut self, name: &ObjectName) {
        let Some(pod) = self.pods.remove(name) else { return };
        self.pods_to_do.remove(&pod.rank(name));
        for claim in pod.known_claims() {
            if let Some(users) = self.users.get_mut(claim) {
                users.remove(name);
                if users.is_empty() {
                    self.users.remove(claim);
                }
            }
            self.claims_to_do.insert(claim.clone());
        }
    }

    /// A claim has other devices than before.
    fn exchange(&mut self, before: &Held, after: &Held) {
        let (before, after) = (before.allocation(), after.allocation());
        if before == after {
            return;
        }
        // What can't be read holds its devices all the same: whole.
        if let Some(before) = before
            && self.allocator.release(before).is_err()
        {
            let _ = self.allocator.release(&without_capacity(before));
        }
        if let Some(after) = after
            && self.allocator.hold(after).is_err()
        {
            let _ = self.allocator.hold(&without_capacity(after));
        }
        if before.is_some() {
            self.more_is_possible();
        }
    }

    fn claim_changed(&mut self, name: ObjectName) {
        self.settle_users(&name);
        for user in self.users.get(&name).into_iter().flatten() {
            if let Some(pod) = self.pods.get(user) {
                self.pods_to_do.insert(pod.rank(user));
            }
        }
        self.claims_to_do.insert(name);
    }

    fn settle_users(&mut self, claim: &ObjectName) {
        for user in self.users.get(claim).cloned().unwrap_or_default() {
            self.settle(&user);
        }
    }

    /// Somebody took an allocation away, as the scheduler does where no node fits. Were the claim moved before the scheduler has
    /// seen that, it could bind the pod to the node of before.
    fn was_cleared(&mut self, claim: &ObjectName) {
        for user in self.users.get(claim).into_iter().flatten() {
            if let Some(pod) = self.pods.get_mut(user).filter(|pod| pod.gate == pods::Gate::None && pod.node.is_none())
            {
                pod.retry = Retry::NotSeen;
            }
        }
    }

    /// What failed may work now.
    fn more_is_possible(&mut self) {
        self.failed.clear();
        let waiting = self.pods.iter().filter(|(_, pod)| pod.node.is_none());
        self.pods_to_do.extend(waiting.map(|(name, pod)| pod.rank(name)));
    }
}

fn object_name(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> ObjectName {
    ObjectName {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

/// Versions of an object can be compared as numbers (Kubernetes 1.35 and later); what is no number is new.
fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}

/// The devices of an allocation, as if each were allocated alone.
fn without_capacity(allocation: &AllocationResult) -> AllocationResult {
    let mut allocation = allocation.clone();
    for result in allocation.devices.iter_mut().flat_map(|devices| devices.results.iter_mut().flatten()) {
        (result.consumed_capacity, result.share_id) = (None, None);
    }
    allocation
}

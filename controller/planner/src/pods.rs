//! Pods that have claims and aren't over.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api::ids::ObjectName;
use aliquot_api::names::{ALLOCATION_GATE, DEVICES_ALLOCATED};
use aliquot_api::reason::Reason;
use aliquot_fit::Needs;
use k8s_openapi::api::core::v1::{Pod as ApiPod, PodCondition};

/// The order in which pods are looked at: priority, then age.
pub(crate) type Rank = (Reverse<i32>, i64, ObjectName);

/// What holds a pod back from being scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Nothing.
    None,
    /// Our gate alone.
    Ours,
    /// Gates of others, with ours or without.
    Others { ours: bool },
}

impl Gate {
    /// Whether ours is among them.
    pub(crate) fn has_ours(self) -> bool {
        match self {
            Self::None => false,
            Self::Ours => true,
            Self::Others { ours } => ours,
        }
    }
}

/// Whether the scheduler has to try a pod before its claims are allocated anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// No.
    None,
    /// It has to, and hasn't yet as far as is known.
    NotSeen,
    /// The same, until then.
    Until(Duration),
}

/// A claim of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Use {
    /// The claim.
    Claim(ObjectName),
    /// It will be made of this template.
    Template(String),
}

/// A pod.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) needs: Arc<Needs>,
    /// Pods of the same shape fit the same nodes.
    pub(crate) shape: u64,
    pub(crate) claims: Vec<Use>,
    pub(crate) gate: Gate,
    /// Where it is bound to.
    pub(crate) node: Option<String>,
    /// kubelet has begun to run it.
    pub(crate) is_started: bool,
    pub(crate) is_deleted: bool,
    /// In seconds since 1970.
    pub(crate) created: i64,
    /// Why it waits, as its condition says.
    pub(crate) told: Option<Reason>,
    /// A write of ours is under way that lets it go.
    pub(crate) is_leaving: bool,
    /// What the scheduler said last.
    pub(crate) attempt: Option<PodCondition>,
    pub(crate) retry: Retry,
}

impl Pod {
    pub(crate) fn rank(&self, name: &ObjectName) -> Rank {
        (Reverse(self.needs.priority()), self.created, name.clone())
    }

    /// Its claims that exist.
    pub(crate) fn known_claims(&self) -> impl Iterator<Item = &ObjectName> {
        self.claims.iter().filter_map(|one| match one {
            Use::Claim(name) => Some(name),
            Use::Template(_) => None,
        })
    }
}

/// Numbers for shapes.
#[derive(Default)]
pub(crate) struct Shapes(HashMap<String, u64>);

impl Shapes {
    /// Numbers the shape of a pod: all that nodes are chosen by.
    fn number(&mut self, pod: &ApiPod) -> u64 {
        let mut shape = pod.spec.clone().unwrap_or_default();
        // What a container runs says nothing about where it can run.
        for container in shape.containers.iter_mut().chain(shape.init_containers.iter_mut().flatten()) {
            (container.args, container.command, container.env) = (None, None, None);
            (container.name, container.image) = (String::new(), None);
        }
        (shape.resource_claims, shape.hostname, shape.scheduling_gates) = (None, None, None);
        let shape = serde_json::to_string(&(&pod.metadata.namespace, &pod.metadata.labels, shape)).unwrap_or_default();
        let next = self.0.len() as u64;
        *self.0.entry(shape).or_insert(next)
    }
}

/// What decisions need of a pod; none if it is over, or has no claims.
pub(crate) fn read(pod: &ApiPod, shapes: &mut Shapes) -> Option<Pod> {
    let spec = pod.spec.as_ref()?;
    let status = pod.status.as_ref();
    if is_over(pod) {
        return None;
    }
    let claims = spec.resource_claims.as_deref().filter(|claims| !claims.is_empty())?;
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let made = status.and_then(|status| status.resource_claim_statuses.as_deref()).unwrap_or_default();
    let claims = claims.iter().filter_map(|claim| {
        let of = |name: &str| Use::Claim(ObjectName { namespace: namespace.clone(), name: name.to_owned() });
        if let Some(name) = &claim.resource_claim_name {
            return Some(of(name));
        }
        match made.iter().find(|made| made.name == claim.name) {
            // Without a name it was decided that none is needed.
            Some(made) => made.resource_claim_name.as_deref().map(of),
            None => Some(Use::Template(claim.resource_claim_template_name.clone().unwrap_or_default())),
        }
    });
    let gates = spec.scheduling_gates.as_deref().unwrap_or_default();
    let ours = gates.iter().any(|gate| gate.name == ALLOCATION_GATE);
    let gate = match (gates.len(), ours) {
        (0, _) => Gate::None,
        (1, true) => Gate::Ours,
        _ => Gate::Others { ours },
    };
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let condition = conditions.iter().find(|one| one.type_ == DEVICES_ALLOCATED && one.status == "False");
    let told =
        condition.and_then(|one| Reason::ALL.into_iter().find(|reason| one.reason.as_deref() == Some(reason.as_str())));
    Some(Pod {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        needs: Arc::new(Needs::of(pod)),
        shape: shapes.number(pod),
        claims: claims.collect(),
        gate,
        node: bound_to(pod).map(str::to_owned),
        is_started: status.is_some_and(|status| status.start_time.is_some()),
        is_deleted: pod.metadata.deletion_timestamp.is_some(),
        created: pod.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        told,
        is_leaving: false,
        attempt: conditions.iter().find(|one| one.type_ == "PodScheduled").cloned(),
        retry: Retry::None,
    })
}

/// The node that a pod is bound to.
pub(crate) fn bound_to(pod: &ApiPod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

/// Whether a pod needs nothing any more.
pub(crate) fn is_over(pod: &ApiPod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

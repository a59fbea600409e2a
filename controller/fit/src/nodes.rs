//! Nodes, and what is taken of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_api::ids::ObjectName;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::needs::{ANY, Amounts, PODS, add, amounts};
use crate::selector::{matches, tolerates};
use crate::{Misfit, Needs};

/// What a pod takes of its node.
#[derive(Debug, Clone, PartialEq)]
struct Taken {
    priority: i32,
    resources: Amounts,
    ports: BTreeSet<(String, String, u16)>,
}

#[derive(Debug, Default)]
struct Room {
    /// What is known of the node itself; none if only pods are known that name it.
    node: Option<Arc<Node>>,
    allocatable: Amounts,
    pods: BTreeMap<ObjectName, Taken>,
    taken: Amounts,
}

/// The nodes, with the pods that run there or are about to.
#[derive(Debug, Default)]
pub struct Nodes {
    nodes: BTreeMap<String, Room>,
    places: BTreeMap<ObjectName, String>,
}

impl Nodes {
    /// A node is there or has changed; whether that may make a difference to a pod.
    pub fn apply_node(&mut self, node: &Node) -> bool {
        let slim = Node {
            metadata: ObjectMeta {
                name: node.metadata.name.clone(),
                labels: node.metadata.labels.clone(),
                ..ObjectMeta::default()
            },
            spec: node.spec.as_ref().map(|spec| NodeSpec {
                taints: spec.taints.clone(),
                unschedulable: spec.unschedulable,
                ..NodeSpec::default()
            }),
            status: node.status.as_ref().map(|status| NodeStatus {
                declared_features: status.declared_features.clone(),
                ..NodeStatus::default()
            }),
        };
        let allocatable = amounts(node.status.as_ref().and_then(|status| status.allocatable.as_ref()));
        let room = self.nodes.entry(node.metadata.name.clone().unwrap_or_default()).or_default();
        if room.node.as_deref() == Some(&slim) && room.allocatable == allocatable {
            return false;
        }
        (room.node, room.allocatable) = (Some(Arc::new(slim)), allocatable);
        true
    }

    /// A node is gone. Its pods stay until they are removed.
    pub fn delete_node(&mut self, name: &str) {
        if let Some(room) = self.nodes.get_mut(name) {
            (room.node, room.allocatable) = (None, Amounts::new());
            self.drop_if_empty(name);
        }
    }

    /// A pod runs on a node or is about to: what it needs is taken there, and nowhere else.
    pub fn place(&mut self, pod: &ObjectName, needs: &Needs, node: &str) {
        let taken = Taken { priority: needs.priority, resources: needs.resources.clone(), ports: needs.ports.clone() };
        let is_known = |room: &Room| room.pods.get(pod) == Some(&taken);
        if self.nodes.get(node).is_some_and(is_known) {
            return;
        }
        self.remove(pod);
        let room = self.nodes.entry(node.to_owned()).or_default();
        add(&mut room.taken, taken.resources.clone());
        room.pods.insert(pod.clone(), taken);
        self.places.insert(pod.clone(), node.to_owned());
    }

    /// A pod takes nothing any more; whether it did.
    pub fn remove(&mut self, pod: &ObjectName) -> bool {
        let Some(node) = self.places.remove(pod) else { return false };
        if let Some(room) = self.nodes.get_mut(&node)
            && let Some(taken) = room.pods.remove(pod)
        {
            subtract(&mut room.taken, &taken.resources);
        }
        self.drop_if_empty(&node);
        true
    }

    /// A node as far as claims can ask about it.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)?.node.as_deref()
    }

    /// Whether pods fit a node together.
    pub fn check(&self, pods: &[&Needs], node: &str) -> Result<(), Misfit> {
        self.check_beside(pods, node, |_| true)
    }

    /// The same, were all pods gone that have a lower priority than each of these.
    pub fn check_with_preemption(&self, pods: &[&Needs], node: &str) -> Result<(), Misfit> {
        let least = pods.iter().map(|needs| needs.priority).min().unwrap_or(i32::MIN);
        self.check_beside(pods, node, |taken| taken.priority >= least)
    }

    fn check_beside(&self, pods: &[&Needs], name: &str, stays: impl Fn(&Taken) -> bool) -> Result<(), Misfit> {
        let room = self.nodes.get(name).ok_or(Misfit::UnknownNode)?;
        let node = room.node.as_deref().ok_or(Misfit::UnknownNode)?;
        let none = BTreeMap::new();
        let labels = node.metadata.labels.as_ref().unwrap_or(&none);
        let spec = node.spec.as_ref();
        let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let is_cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
        for needs in pods {
            let is_tolerated = |taint: &Taint| needs.tolerations.iter().any(|one| tolerates(one, taint));
            if is_cordoned && !is_tolerated(&cordoned()) {
                return Err(Misfit::Cordoned);
            }
            let matters = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
            if let Some(taint) = taints.iter().filter(matters).find(|taint| !is_tolerated(taint)) {
                return Err(Misfit::Taint(taint.key.clone()));
            }
            let is_selected = needs.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
                && needs.affinity.as_ref().is_none_or(|affinity| matches(affinity, node));
            if !is_selected {
                return Err(Misfit::Affinity);
            }
        }
        let staying = || room.pods.values().filter(|taken| stays(taken));
        for port in pods.iter().flat_map(|needs| &needs.ports) {
            if staying().flat_map(|taken| &taken.ports).any(|other| is_same_port(port, other)) {
                return Err(Misfit::Port(port.2));
            }
        }
        let mut gone = Amounts::new();
        for taken in room.pods.values().filter(|taken| !stays(taken)) {
            add(&mut gone, taken.resources.clone());
        }
        let mut asked = Amounts::new();
        for needs in pods {
            add(&mut asked, needs.resources.clone());
        }
        // The count of pods is the scheduler's first thought.
        let first = asked.remove_entry(PODS);
        for (name, asked) in first.into_iter().chain(asked) {
            let of = |amounts: &Amounts| amounts.get(&name).copied().unwrap_or_default();
            let free = of(&room.allocatable).saturating_sub(of(&room.taken)).saturating_add(of(&gone));
            if asked > free {
                return Err(Misfit::Resource { name, asked, free });
            }
        }
        Ok(())
    }

    fn drop_if_empty(&mut self, name: &str) {
        if self.nodes.get(name).is_some_and(|room| room.node.is_none() && room.pods.is_empty()) {
            self.nodes.remove(name);
        }
    }
}

/// What a cordoned node counts as.
fn cordoned() -> Taint {
    let key = "node.kubernetes.io/unschedulable".to_owned();
    Taint { key, effect: "NoSchedule".to_owned(), ..Taint::default() }
}

fn is_same_port(one: &(String, String, u16), other: &(String, String, u16)) -> bool {
    one.2 == other.2 && one.0 == other.0 && (one.1 == other.1 || one.1 == ANY || other.1 == ANY)
}

fn subtract(sum: &mut Amounts, less: &Amounts) {
    for (name, amount) in less {
        if let Some(all) = sum.get_mut(name) {
            *all -= amount;
            if *all == 0 {
                sum.remove(name);
            }
        }
    }
}

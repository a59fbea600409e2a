//! What a pod asks of a node.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, NodeSelector, Pod, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

/// The resource that counts pods.
pub(crate) const PODS: &str = "pods";
const CPU: &str = "cpu";

/// Amounts by resource: cpu in thousandths, everything else as it is counted.
pub(crate) type Amounts = BTreeMap<String, i64>;

/// What a pod asks of a node, apart from devices.
#[derive(Debug, Clone, Default)]
pub struct Needs {
    pub(crate) priority: i32,
    pub(crate) resources: Amounts,
    /// Protocol, address and number.
    pub(crate) ports: BTreeSet<(String, String, u16)>,
    pub(crate) selector: BTreeMap<String, String>,
    pub(crate) affinity: Option<NodeSelector>,
    pub(crate) tolerations: Vec<Toleration>,
}

impl Needs {
    /// What a pod asks for.
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let mut resources = requests(pod);
        resources.retain(|_, amount| *amount > 0);
        resources.insert(PODS.to_owned(), 1);
        let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        Self {
            priority: spec.priority.unwrap_or(0),
            resources,
            ports: spec.containers.iter().flat_map(ports).collect(),
            selector: spec.node_selector.clone().unwrap_or_default(),
            affinity: affinity
                .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.clone()),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
        }
    }

    /// The pod's priority.
    pub fn priority(&self) -> i32 {
        self.priority
    }
}

fn ports(container: &Container) -> impl Iterator<Item = (String, String, u16)> {
    container.ports.iter().flatten().filter_map(|port| {
        let number = u16::try_from(port.host_port?).ok().filter(|number| *number > 0)?;
        let address = port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| ANY.to_owned());
        Some((port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), address, number))
    })
}

/// Every address of the host.
pub(crate) const ANY: &str = "0.0.0.0";

/// What the scheduler counts for a pod. Init containers run one after the other, and those that restart keep running beside all
/// that come later.
fn requests(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let of = |container: &Container| amounts(container.resources.as_ref().and_then(|one| one.requests.as_ref()));
    let mut sum = Amounts::new();
    spec.containers.iter().for_each(|container| add(&mut sum, of(container)));
    let (mut most, mut beside) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut now = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sum, now.clone());
            add(&mut beside, now);
            now = beside.clone();
        } else {
            add(&mut now, beside.clone());
        }
        raise(&mut most, now);
    }
    raise(&mut sum, most);
    // What is asked for the pod as a whole counts instead.
    sum.extend(amounts(spec.resources.as_ref().and_then(|one| one.requests.as_ref())));
    add(&mut sum, amounts(spec.overhead.as_ref()));
    sum
}

/// Reads a list of resources. The API takes no text that is no quantity.
pub(crate) fn amounts(list: Option<&BTreeMap<String, ApiQuantity>>) -> Amounts {
    let read = |(name, quantity): (&String, &ApiQuantity)| {
        let quantity: Quantity = quantity.0.parse().ok()?;
        Some((name.clone(), if name == CPU { quantity.milli_value() } else { quantity.value() }))
    };
    list.into_iter().flatten().filter_map(read).collect()
}

pub(crate) fn add(sum: &mut Amounts, more: Amounts) {
    for (name, amount) in more {
        let all = sum.entry(name).or_default();
        *all = all.saturating_add(amount);
    }
}

fn raise(most: &mut Amounts, other: Amounts) {
    for (name, amount) in other {
        let all = most.entry(name).or_default();
        *all = amount.max(*all);
    }
}

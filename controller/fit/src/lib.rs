//! Whether kube-scheduler would bind a pod to a node, apart from its devices, so that devices are only allocated where the pod can
//! run. No IO.
//!
//! Looked at are, in the scheduler's order: cordoned nodes, taints, node selector and node affinity, host ports, resources. Not
//! known here: spread over topologies, affinity between pods, and volumes.

mod needs;
mod nodes;
mod selector;

use std::fmt;

pub use needs::Needs;
pub use nodes::Nodes;
pub use selector::term_matches;

/// Why a pod doesn't fit a node: the first thing that speaks against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misfit {
    /// There is no such node (any more).
    UnknownNode,
    /// It takes no pods at all.
    Cordoned,
    /// It has a taint that the pod doesn't tolerate; its key.
    Taint(String),
    /// The pod wants other nodes.
    Affinity,
    /// Another pod has a port of the host that the pod wants.
    Port(u16),
    /// There is too little of a resource: cpu in thousandths, everything else as it is counted.
    Resource {
        /// Its name.
        name: String,
        /// What is asked for.
        asked: i64,
        /// What is left.
        free: i64,
    },
}

impl Misfit {
    /// In one word, to count nodes by.
    pub fn cause(&self) -> &str {
        match self {
            Self::UnknownNode => "unknown",
            Self::Cordoned => "cordoned",
            Self::Taint(_) => "taint",
            Self::Affinity => "affinity",
            Self::Port(_) => "port",
            Self::Resource { name, .. } => name,
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownNode => write!(formatter, "there is no such node"),
            Self::Cordoned => write!(formatter, "cordoned"),
            Self::Taint(key) => write!(formatter, "taint {key} isn't tolerated"),
            Self::Affinity => write!(formatter, "the pod's node selector or affinity excludes it"),
            Self::Port(port) => write!(formatter, "port {port} is in use"),
            Self::Resource { name, asked, free } => write!(formatter, "{name}: {asked} asked, {free} free"),
        }
    }
}

//! Problems and answers as lines of JSON, in the form that comparisons with upstream's module use.

use std::collections::BTreeMap;

use aliquot_api::quantity::QuantityError;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

use crate::{AllocatedState, Allocator, Features, Limits, Mode, Outcome, Programs, Variant};

/// All share ids in answers: upstream's are random.
const SHARE_ID: &str = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa";

/// What is to be allocated where, and what is allocated.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Comes back in the answer.
    #[serde(alias = "name", default)]
    pub id: String,
    #[serde(default)]
    channel: String,
    features: Option<Switches>,
    node: Node,
    /// Others to ask when it is solved again.
    nodes: Option<Vec<Node>>,
    claims: Option<Vec<ResourceClaim>>,
    /// Claims that have their devices.
    existing: Option<Vec<ResourceClaim>>,
    classes: Option<Vec<DeviceClass>>,
    slices: Option<Vec<ResourceSlice>>,
    allocated_devices: Option<Vec<String>>,
    #[serde(rename = "allocatedSharedDeviceIDs")]
    allocated_shared_device_ids: Option<Vec<String>>,
    aggregated_capacity: Option<BTreeMap<String, BTreeMap<String, Quantity>>>,
    /// None if it is 0.
    #[serde(default)]
    pub timeout_ms: u64,
    /// How often it is solved again to see how long that takes.
    #[serde(default)]
    pub repeat: u32,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Switches {
    Fields(Features),
    Gates(Vec<String>),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProblemError {
    /// Not a problem.
    #[error("not a problem: {0}")]
    Json(#[from] serde_json::Error),
    /// Not an amount.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    /// A gate without effect here.
    #[error("unknown feature gate {0:?}")]
    Gate(String),
    /// A variant that isn't there.
    #[error("unknown channel {0:?}; incubating, experimental and none are known")]
    Channel(String),
    /// Upstream has no allocator for it, either.
    #[error("the channel incubating knows none of the alpha features that are on")]
    Features,
}

/// What came out, under upstream's names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The problem's.
    #[serde(default)]
    pub id: String,
    /// `allocated`, `none`, `nodeError`, `timeout`, `fatal`; also `outOfSteps` and `badInput`.
    pub outcome: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub err: String,
    /// Of each claim.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<AllocationResult>,
    /// Why these devices, of each; in placement mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// How long it took.
    #[serde(default)]
    pub micros: u64,
    /// How long it took on average, if it was repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_micros: Option<f64>,
}

impl Answer {
    /// For what isn't a problem.
    pub fn bad_input(id: String, error: &ProblemError) -> Self {
        let outcome = if matches!(error, ProblemError::Features) { "fatal" } else { "badInput" };
        Self { id, outcome: outcome.into(), err: error.to_string(), ..Self::default() }
    }

    /// For an outcome.
    pub fn new(id: String, outcome: Outcome) -> Self {
        let answer = Self { id, ..Self::default() };
        let with = |outcome: &str, err: String| Self { outcome: outcome.into(), err, ..answer.clone() };
        match outcome {
            // Upstream's tools call it none if there was nothing to do.
            Outcome::Allocated(results, _) if results.is_empty() => with("none", String::new()),
            Outcome::Allocated(results, score) => {
                let why = score.iter().flat_map(|score| &score.choices).map(ToString::to_string).collect();
                Self { results, why, ..with("allocated", String::new()) }
            }
            Outcome::None(_) => with("none", String::new()),
            Outcome::NodeError(_) => with("nodeError", "there are invalid pools".into()),
            Outcome::Timeout => with("timeout", "there was no more time".into()),
            Outcome::OutOfSteps => with("outOfSteps", "there were no more steps".into()),
            Outcome::Fatal(error) => with("fatal", error.to_string()),
        }
    }
}

impl Problem {
    /// Reads one line.
    pub fn parse(line: &str) -> Result<Self, ProblemError> {
        Ok(serde_json::from_str(line)?)
    }

    /// Solves it.
    pub fn solve(&self, mode: Mode, programs: &Programs, limits: Limits<'_>) -> Result<Outcome, ProblemError> {
        Ok(self.solve_with(&self.allocator(mode, programs)?, limits))
    }

    /// Solves it with its allocator.
    pub fn solve_with(&self, allocator: &Allocator, limits: Limits<'_>) -> Outcome {
        self.solve_on(&self.node, allocator, limits)
    }

    /// Solves it on all other nodes.
    pub fn solve_elsewhere(&self, allocator: &Allocator, limits: Limits<'_>) {
        for node in self.nodes.iter().flatten() {
            let _ = self.solve_on(node, allocator, limits);
        }
    }

    fn solve_on(&self, node: &Node, allocator: &Allocator, limits: Limits<'_>) -> Outcome {
        let claims = self.claims.as_deref().unwrap_or_default();
        allocator.allocate(node, claims, limits, &mut || SHARE_ID.to_owned())
    }

    /// What knows the cluster that it is about.
    pub fn allocator(&self, mode: Mode, programs: &Programs) -> Result<Allocator, ProblemError> {
        let features = self.features()?;
        let variant = match (self.channel.as_str(), features.variant()) {
            ("", variant) => variant,
            ("experimental", _) => Variant::Experimental,
            ("incubating", Variant::Incubating) => Variant::Incubating,
            ("incubating", Variant::Experimental) => return Err(ProblemError::Features),
            (channel, _) => return Err(ProblemError::Channel(channel.to_owned())),
        };
        let state = self.state(features)?;
        let (classes, slices) = (self.classes.iter().flatten().cloned(), self.slices.iter().flatten().cloned());
        Ok(Allocator::new(mode, features, variant, programs.clone(), state, classes, slices))
    }

    fn features(&self) -> Result<Features, ProblemError> {
        match &self.features {
            None => Ok(Features::default()),
            Some(Switches::Fields(features)) => Ok(*features),
            Some(Switches::Gates(gates)) => {
                let mut features = Features::default();
                match gates.iter().find(|gate| !features.enable(gate)) {
                    Some(unknown) => Err(ProblemError::Gate(unknown.clone())),
                    None => Ok(features),
                }
            }
        }
    }

    fn state(&self, features: Features) -> Result<AllocatedState, ProblemError> {
        let mut state = AllocatedState::of(self.existing.iter().flatten(), features.consumable_capacity)?;
        self.allocated_devices.iter().flatten().for_each(|id| state.hold_alone(id));
        for id in self.allocated_shared_device_ids.iter().flatten() {
            state.hold_share(id.rsplit_once('/').map_or(id, |(device, _)| device));
        }
        for (id, capacity) in self.aggregated_capacity.iter().flatten() {
            let uses = capacity.iter().map(|(name, quantity)| Ok((name.clone(), quantity.0.parse()?)));
            state.hold_capacity(id, uses.collect::<Result<_, QuantityError>>()?);
        }
        Ok(state)
    }
}

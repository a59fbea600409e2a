//! The allocator of structured parameters (Kubernetes 1.37), in two modes ([`Mode`]). No IO.
//!
//! ```text
//! slices ── pools ──> model ──┐
//! claims, classes ── requests ┼─> search (matcher: what never changes, bounds: what can't be) ──> the first solution
//! allocated state ────────────┘                                                                        │ placement mode
//!                                                       Outcome <── placement (cost: what others lose) ┘
//! ```
//!
//! What depends on slices, node and features only is kept for each node (the view), with all that was found out about its
//! devices; what claims hold is written over it.
//!
//! # Parity
//!
//! The scheduler allocates with upstream's allocator, so whoever wants to know what it will do has to find the same devices,
//! what it does wrong included:
//!
//! - Admin access takes counters, and keeps the device from later requests of the same call.
//! - One counter below zero blocks all devices of its pool that take counters.
//! - Capacity is found by the name that is written, with or without the driver's domain.
//! - A request for all devices ends in an error if any pool of any driver is incomplete or invalid, or if a constraint excludes
//!   one of the devices.
//! - More than 32 devices, and expressions without a value for a device that is looked at, end it for all nodes.
//! - With slices that don't agree how many they are, the first one of the list counts.
//!
//! Upstream tries all combinations. This one finds the same first solution, or the same error, and sees where there is none
//! without trying them; the module of the bounds says why that is the same. What is still too long ends with
//! [`Outcome::OutOfSteps`], never with a wrong no.
//!
//! # Placement
//!
//! Of all solutions the one that costs others the least, by the API's rules; [`Score`] says why.

mod attribute;
mod bounds;
mod capacity;
mod cost;
mod error;
mod features;
mod matcher;
mod mode;
mod model;
mod node;
mod placement;
mod pools;
pub mod problem;
mod programs;
mod reasons;
mod requests;
mod result;
mod search;
mod state;
mod view;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use aliquot_api::quantity::QuantityError;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};

pub use cost::{Cost, Lost};
pub use error::{CapacityError, Error};
pub use features::{Features, Variant};
pub use mode::Mode;
pub use placement::{Choice, Score};
pub use programs::Programs;
pub use reasons::{Reason, Reasons, Shortage};
pub use search::Limits;
pub use state::AllocatedState;

use matcher::Matcher;
use model::Content;
use pools::Slices;
use requests::Reader;
use search::{Search, Stop};
use view::View;

/// What came out for a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// One allocation for each claim. In placement mode with why it is these devices.
    Allocated(Vec<AllocationResult>, Option<Score>),
    /// Not on this node.
    None(Reasons),
    /// Not on this node, and some of its pools contradict themselves, so perhaps that is why.
    NodeError(Reasons),
    /// The time was over before it was known.
    Timeout,
    /// The steps were used up before it was known.
    OutOfSteps,
    /// Not on any node.
    Fatal(Error),
}

/// Allocates devices of a cluster, which it follows: changes of slices, classes and claims cost what they touch, and what was
/// found out about a device is known until its pool's slices change.
///
/// Changes are made by one owner. In between any number of threads may allocate; those that mean the same node take turns.
pub struct Allocator {
    mode: Mode,
    features: Features,
    variant: Variant,
    programs: Programs,
    state: AllocatedState,
    classes: HashMap<String, DeviceClass>,
    slices: Slices,
    /// By node.
    views: RwLock<HashMap<String, Arc<Mutex<View>>>>,
}

impl Allocator {
    /// The slices have the taints of rules already.
    pub fn new(
        mode: Mode,
        features: Features,
        variant: Variant,
        programs: Programs,
        state: AllocatedState,
        classes: impl IntoIterator<Item = DeviceClass>,
        slices: impl IntoIterator<Item = ResourceSlice>,
    ) -> Self {
        let mut by_name = HashMap::new();
        for class in classes {
            by_name.entry(class.metadata.name.clone().unwrap_or_default()).or_insert(class);
        }
        let mut all = Slices::default();
        slices.into_iter().for_each(|slice| all.add(slice));
        Self { mode, features, variant, programs, state, classes: by_name, slices: all, views: RwLock::default() }
    }

    /// Adds a slice, or replaces the one of its name.
    pub fn apply_slice(&mut self, slice: ResourceSlice) {
        self.slices.remove(slice.metadata.name.as_deref().unwrap_or_default());
        self.slices.add(slice);
    }

    /// A slice is gone.
    pub fn delete_slice(&mut self, name: &str) {
        self.slices.remove(name);
    }

    /// Adds a class, or replaces the one of its name.
    pub fn apply_class(&mut self, class: DeviceClass) {
        self.classes.insert(class.metadata.name.clone().unwrap_or_default(), class);
    }

    /// A class is gone.
    pub fn delete_class(&mut self, name: &str) {
        self.classes.remove(name);
    }

    /// A node is gone.
    pub fn delete_node(&mut self, name: &str) {
        self.views.get_mut().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// A claim has got this. In case of an error nothing has changed.
    pub fn hold(&mut self, allocation: &AllocationResult) -> Result<(), QuantityError> {
        self.state.hold(allocation, self.features.consumable_capacity)
    }

    /// A claim has given back what it held. In case of an error nothing has changed.
    pub fn release(&mut self, allocation: &AllocationResult) -> Result<(), QuantityError> {
        self.state.release(allocation, self.features.consumable_capacity)
    }

    /// Finds devices for all claims on one node. `share_id` makes the ids of shares.
    pub fn allocate(
        &self,
        node: &Node,
        claims: &[ResourceClaim],
        limits: Limits<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Outcome {
        match self.try_allocate(node, claims, limits, share_id) {
            Ok(outcome) => outcome,
            Err(Stop::Fatal(error)) => Outcome::Fatal(error),
            Err(Stop::OutOfTime) => Outcome::Timeout,
            Err(Stop::OutOfSteps | Stop::Hard | Stop::Hopeless) => Outcome::OutOfSteps,
        }
    }

    fn try_allocate<'a>(
        &'a self,
        node: &'a Node,
        claims: &'a [ResourceClaim],
        limits: Limits<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Outcome, Stop> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let view = self.view(name);
        let mut view = view.lock().unwrap_or_else(|poisoned| {
            // Whoever crashed may have left it half changed.
            view.clear_poison();
            let mut view = poisoned.into_inner();
            *view = View::default();
            view
        });
        view.update(&self.slices, &self.state, node, (self.features, self.mode))?;
        let View { model, memo, board, .. } = &mut *view;
        let mut matcher = Matcher::new(model, memo, node, claims, &self.programs, self.features);
        let reader = Reader { model, classes: &self.classes, features: self.features };
        let requests = reader.read(claims, &mut matcher)?;
        let how = (self.features, self.variant, self.mode);
        if self.mode == Mode::Placement {
            matcher.forgive();
        }
        let mut search = Search::new(model, &requests, &mut matcher, claims, how, node, limits);
        let (is_found, score) = match self.mode {
            Mode::Parity => (search.run()?, None),
            Mode::Placement => {
                let score = search.place(board)?;
                (score.is_some(), score)
            }
        };
        if is_found {
            return Ok(Outcome::Allocated(search.results(name, share_id)?, score));
        }
        if let Some(error) = search.matcher.forgiven() {
            return Err(Stop::Fatal(error));
        }
        let reasons = search.reasons();
        let is_invalid = model.pools.iter().any(|pool| matches!(pool.content, Content::Invalid(_)));
        Ok(if is_invalid { Outcome::NodeError(reasons) } else { Outcome::None(reasons) })
    }

    fn view(&self, node: &str) -> Arc<Mutex<View>> {
        if let Some(view) = self.views.read().unwrap_or_else(PoisonError::into_inner).get(node) {
            return Arc::clone(view);
        }
        let mut views = self.views.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(views.entry(node.to_owned()).or_default())
    }
}

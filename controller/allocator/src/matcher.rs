//! What never changes as long as the slices don't: whether a device matches a request, and what it would use. Asked once for
//! each, and remembered for later searches.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use aliquot_api::quantity::Quantity;
use aliquot_cel::{CompileError, EvaluationError};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::attribute::{self, Interner, Values};
use crate::capacity::{self, Use};
use crate::error::Error;
use crate::features::Features;
use crate::model::{Device, Model};
use crate::pools;
use crate::programs::Programs;
use crate::requests::{Alternative, claim_name};

/// More different questions are not remembered from one search to another.
const MAX_ROWS: usize = 256;

/// Where a constraint gets the attribute of a device from.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    attribute: String,
    /// The expression, where the request defines the attribute.
    derived: Option<String>,
}

/// An attribute, as far as the device has it.
type Attribute = Result<Values, Missing>;

#[derive(Debug, Clone, Copy)]
struct Missing;

/// What a device's capacities are for a request: used as said, or none if the device is no match.
pub(crate) type Uses = Option<Arc<Vec<Use>>>;

/// The same, and whether they would do, had nobody anything of the device.
#[derive(Debug, Clone)]
struct Room {
    uses: Uses,
    is_enough: bool,
}

/// Questions, with the answers for each device as far as they are known. Errors are none: they end a search anyway.
#[derive(Debug)]
struct Rows<Q, A> {
    questions: Vec<Q>,
    answers: Vec<Vec<Option<A>>>,
}

impl<Q, A: Clone> Rows<Q, A> {
    /// The number of a question, which is added if need be.
    fn number(&mut self, is_it: impl Fn(&Q) -> bool, new: impl FnOnce() -> Q, devices: usize) -> usize {
        self.questions.iter().position(is_it).unwrap_or_else(|| {
            self.questions.push(new());
            self.answers.push(vec![None; devices]);
            self.questions.len() - 1
        })
    }

    fn is_full(&self) -> bool {
        self.questions.len() > MAX_ROWS
    }

    fn rearrange(&mut self, devices: usize, kept: &[(Range<usize>, usize)]) {
        for row in &mut self.answers {
            *row = rearranged(row, None, devices, kept);
        }
    }
}

impl<Q, A> Default for Rows<Q, A> {
    fn default() -> Self {
        Self { questions: Vec::new(), answers: Vec::new() }
    }
}

/// The entries that are kept, where they belong now.
fn rearranged<T: Clone>(row: &[T], unknown: T, devices: usize, kept: &[(Range<usize>, usize)]) -> Vec<T> {
    let mut new = vec![unknown; devices];
    for (old, start) in kept {
        new[*start..*start + old.len()].clone_from_slice(&row[old.clone()]);
    }
    new
}

/// All that is known of the devices of a model.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    /// By device, as expressions see it.
    seen: Vec<OnceCell<aliquot_cel::Device>>,
    selected: Rows<String, bool>,
    /// By device.
    for_node: Vec<Option<bool>>,
    /// In the end no value is no such attribute.
    values: Rows<Source, Attribute>,
    interner: Interner,
    uses: Rows<Option<BTreeMap<String, Text>>, Room>,
}

impl Memo {
    pub(crate) fn new(devices: usize) -> Self {
        Self { seen: vec![OnceCell::new(); devices], for_node: vec![None; devices], ..Self::default() }
    }

    /// For a new model: keeps what is known of some ranges of devices, each with its new start.
    pub(crate) fn rearrange(&mut self, devices: usize, kept: &[(Range<usize>, usize)]) {
        self.seen = rearranged(&self.seen, OnceCell::new(), devices, kept);
        self.selected.rearrange(devices, kept);
        self.for_node = rearranged(&self.for_node, None, devices, kept);
        self.values.rearrange(devices, kept);
        self.uses.rearrange(devices, kept);
    }

    /// Whether it is time to begin anew.
    pub(crate) fn is_full(&self) -> bool {
        self.selected.is_full() || self.values.is_full() || self.uses.is_full()
    }
}

pub(crate) struct Matcher<'m, 'a> {
    model: &'m Model,
    memo: &'m mut Memo,
    node: &'a Node,
    claims: &'a [api::ResourceClaim],
    programs: &'m Programs,
    features: Features,
    /// Errors only keep devices from being found.
    forgives: bool,
    /// The first of them.
    forgiven: Option<Error>,
}

impl<'m, 'a> Matcher<'m, 'a> {
    pub(crate) fn new(
        model: &'m Model,
        memo: &'m mut Memo,
        node: &'a Node,
        claims: &'a [api::ResourceClaim],
        programs: &'m Programs,
        features: Features,
    ) -> Self {
        Self { model, memo, node, claims, programs, features, forgives: false, forgiven: None }
    }

    /// From now on a device with which something is wrong is one that can't be had.
    pub(crate) fn forgive(&mut self) {
        self.forgives = true;
    }

    /// What was wrong with the first device that was looked at since.
    pub(crate) fn forgiven(&mut self) -> Option<Error> {
        self.forgiven.take()
    }

    pub(crate) fn or_forgive<T: Default>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        match result {
            Err(error) if self.forgives => {
                self.forgiven.get_or_insert(error);
                Ok(T::default())
            }
            result => result,
        }
    }

    pub(crate) fn expression(&mut self, expression: &str) -> usize {
        let devices = self.model.devices.len();
        self.memo.selected.number(|other| other == expression, || expression.to_owned(), devices)
    }

    pub(crate) fn attribute(&mut self, attribute: &str, derived: Option<&str>) -> usize {
        let is_it = |other: &Source| other.attribute == attribute && other.derived.as_deref() == derived;
        let new = || Source { attribute: attribute.to_owned(), derived: derived.map(ToOwned::to_owned) };
        self.memo.values.number(is_it, new, self.model.devices.len())
    }

    pub(crate) fn requirement(&mut self, requests: Option<&BTreeMap<String, Text>>) -> usize {
        let devices = self.model.devices.len();
        self.memo.uses.number(|other| other.as_ref() == requests, || requests.cloned(), devices)
    }

    /// Whether the device is one of those that are asked for.
    pub(crate) fn selects(&mut self, alternative: &Alternative<'a>, device: usize) -> Result<bool, Error> {
        if let Some(selected) = self.known(alternative, device) {
            return Ok(selected);
        }
        let result = self.try_selects(alternative, device);
        self.or_forgive(result)
    }

    /// Whether the device is asked for, if nothing has to be evaluated to know it.
    fn known(&self, alternative: &Alternative<'a>, device: usize) -> Option<bool> {
        let own = &self.model.devices[device];
        if own.has_to_bind && !self.features.device_binding_and_status {
            return Some(false);
        }
        for selector in &alternative.selectors {
            if !self.memo.selected.answers[*selector][device]? {
                return Some(false);
            }
        }
        if own.selects_nodes { self.memo.for_node[device] } else { Some(true) }
    }

    fn try_selects(&mut self, alternative: &Alternative<'a>, device: usize) -> Result<bool, Error> {
        let own = &self.model.devices[device];
        for (index, selector) in alternative.selectors.iter().enumerate() {
            let selected = if let Some(selected) = self.memo.selected.answers[*selector][device] {
                selected
            } else {
                let expression = self.memo.selected.questions[*selector].as_str();
                let owner = || {
                    if index < alternative.class_selectors {
                        format!("class {}", alternative.class.metadata.name.as_deref().unwrap_or_default())
                    } else {
                        format!("claim {}", claim_name(&self.claims[alternative.claim]))
                    }
                };
                let selected = match &*self.programs.selector(expression) {
                    Ok(program) => program
                        .matches(self.seen(device))
                        .map_err(|error| evaluation(owner(), expression, own, &error))?,
                    Err(error) => return Err(compilation(owner(), expression, error)),
                };
                self.memo.selected.answers[*selector][device] = Some(selected);
                selected
            };
            if !selected {
                return Ok(false);
            }
        }
        if !own.selects_nodes {
            return Ok(true);
        }
        let slice = || own.slice.metadata.name.clone().unwrap_or_default();
        let matches = pools::device_matches(&own.api, self.node)
            .map_err(|message| Error::NodeSelector { slice: slice(), message })?;
        self.memo.for_node[device] = Some(matches);
        Ok(matches)
    }

    fn seen(&self, device: usize) -> &aliquot_cel::Device {
        self.memo.seen[device].get_or_init(|| {
            let own = &self.model.devices[device];
            let (none, nothing) = (BTreeMap::new(), BTreeMap::new());
            aliquot_cel::Device::new(
                own.driver(),
                own.api.attributes.as_ref().unwrap_or(&none),
                own.api.capacity.as_ref().unwrap_or(&nothing),
                own.api.allow_multiple_allocations == Some(true),
            )
        })
    }

    /// What the device's capacities would be used for, or none if they can't be as is asked for.
    pub(crate) fn uses(&mut self, alternative: &Alternative<'a>, device: usize) -> Result<Uses, Error> {
        if let Some(room) = &self.memo.uses.answers[alternative.requirement][device] {
            return Ok(room.uses.clone());
        }
        let uses = self.room(alternative, device).map(|room| room.uses);
        self.or_forgive(uses)
    }

    /// Whether the device would do, had nobody anything of it.
    pub(crate) fn could_fit(&mut self, alternative: &Alternative<'a>, device: usize) -> Result<bool, Error> {
        if !self.features.consumable_capacity {
            return Ok(true);
        }
        if let Some(room) = &self.memo.uses.answers[alternative.requirement][device] {
            return Ok(room.is_enough);
        }
        let is_enough = self.room(alternative, device).map(|room| room.is_enough);
        self.or_forgive(is_enough)
    }

    /// Whether there is as much left of the device as is asked for, beside what is about to be used (in the order of the uses).
    pub(crate) fn fits(
        &mut self,
        alternative: &Alternative<'a>,
        device: usize,
        allocating: &[Quantity],
    ) -> Result<bool, Error> {
        let allocated = self.model.devices[device].allocated_capacity.as_ref();
        // Whoever forgives has the API's rules, by which admin access takes nothing.
        if self.forgives && alternative.is_admin {
            return self.could_fit(alternative, device);
        }
        if !self.features.consumable_capacity || allocated.is_none() && allocating.is_empty() {
            return self.could_fit(alternative, device);
        }
        Ok(self.uses(alternative, device)?.is_some_and(|uses| capacity::fits(&uses, allocated, allocating)))
    }

    fn room(&mut self, alternative: &Alternative<'a>, device: usize) -> Result<Room, Error> {
        let own = &self.model.devices[device];
        let requests = self.memo.uses.questions[alternative.requirement].as_ref();
        let uses = capacity::uses(own.api.capacity.as_ref(), requests, self.features.fractional_capacity_range)
            .map_err(|(capacity, reason)| Error::Capacity {
                claim: claim_name(&self.claims[alternative.claim]),
                request: alternative.name.to_owned(),
                device: own.id.clone(),
                capacity,
                reason: Box::new(reason),
            })?;
        let is_enough = uses.as_ref().is_some_and(|uses| capacity::fits(uses, None, &[]));
        let room = Room { uses: uses.map(Arc::new), is_enough };
        self.memo.uses.answers[alternative.requirement][device] = Some(room.clone());
        Ok(room)
    }

    /// The values of an attribute; none if the device doesn't have it.
    pub(crate) fn values(
        &mut self,
        alternative: &Alternative<'a>,
        source: usize,
        device: usize,
    ) -> Result<Option<Values>, Error> {
        let result = self.try_values(alternative, source, device);
        self.or_forgive(result)
    }

    fn try_values(
        &mut self,
        alternative: &Alternative<'a>,
        source: usize,
        device: usize,
    ) -> Result<Option<Values>, Error> {
        if let Some(values) = &self.memo.values.answers[source][device] {
            return Ok(values.clone().ok());
        }
        let own = &self.model.devices[device];
        let Source { attribute, derived } = &self.memo.values.questions[source];
        let lists = self.features.list_type_attributes;
        let values = if let Some(expression) = derived {
            let owner = || {
                let claim = claim_name(&self.claims[alternative.claim]);
                format!("claim {claim}, request {}, attribute {attribute}", alternative.name)
            };
            let value = match &*self.programs.attribute(expression) {
                Ok(program) => program
                    .evaluate(self.seen(device))
                    .and_then(api::DeviceAttribute::try_from)
                    .map_err(|error| evaluation(owner(), expression, own, &error))?,
                Err(error) => return Err(compilation(owner(), expression, error)),
            };
            Some(self.memo.interner.values(&value, lists))
        } else {
            attribute::published(own.api.attributes.as_ref(), own.driver(), attribute)
                .map(|value| self.memo.interner.values(value, lists))
        };
        self.memo.values.answers[source][device] = Some(values.clone().ok_or(Missing));
        Ok(values)
    }
}

fn compilation(owner: String, expression: &str, error: &CompileError) -> Error {
    Error::Expression { owner, expression: expression.to_owned(), message: error.to_string() }
}

fn evaluation(owner: String, expression: &str, device: &Device, error: &EvaluationError) -> Error {
    let (expression, device) = (expression.to_owned(), device.id.clone());
    Error::Evaluation { owner, expression, device, message: error.to_string() }
}

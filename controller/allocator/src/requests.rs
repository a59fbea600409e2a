//! What the claims ask for, checked before anything is searched.

use std::collections::HashMap;
use std::ops::Range;

use k8s_openapi::api::resource::v1 as api;

use crate::attribute::Kind;
use crate::error::Error;
use crate::features::Features;
use crate::matcher::Matcher;
use crate::model::{Content, Model};

/// The most devices of a claim.
pub(crate) const MAX_DEVICES: usize = 32;

/// One way to satisfy a request. Most requests have only one.
#[derive(Debug)]
pub(crate) struct Alternative<'a> {
    pub(crate) claim: usize,
    pub(crate) name: &'a str,
    /// The request, of an alternative in a list.
    pub(crate) parent: Option<&'a str>,
    pub(crate) class: &'a api::DeviceClass,
    /// The expressions to match.
    pub(crate) selectors: Vec<usize>,
    /// How many of the first of them are the class's.
    pub(crate) class_selectors: usize,
    pub(crate) needed: i64,
    /// The devices, if it is for all.
    pub(crate) all: Option<Vec<usize>>,
    pub(crate) is_admin: bool,
    pub(crate) tolerations: Option<&'a Vec<api::DeviceToleration>>,
    /// The capacity that it asks for.
    pub(crate) requirement: usize,
    /// The constraints that it is under, and where each gets a device's attribute from.
    pub(crate) constraints: Vec<(usize, usize)>,
}

impl Alternative<'_> {
    /// As allocations name it.
    pub(crate) fn full_name(&self) -> String {
        self.parent.map_or_else(|| self.name.to_owned(), |parent| format!("{parent}/{}", self.name))
    }

    /// Whether what it asks of a device is obviously the same.
    pub(crate) fn has_same_devices(&self, other: &Self) -> bool {
        self.selectors == other.selectors
            && self.requirement == other.requirement
            && self.constraints == other.constraints
            && self.tolerations == other.tolerations
    }

    pub(crate) fn tolerates(&self, device: &api::Device) -> bool {
        let tolerations = self.tolerations.map_or(&[][..], Vec::as_slice);
        blocking_taints(device).all(|taint| tolerations.iter().any(|own| tolerates(own, taint)))
    }
}

/// Those that requests have to tolerate.
pub(crate) fn blocking_taints(device: &api::Device) -> impl Iterator<Item = &api::DeviceTaint> {
    let taints = device.taints.iter().flatten();
    taints.filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
}

fn tolerates(toleration: &api::DeviceToleration, taint: &api::DeviceTaint) -> bool {
    let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if set(&toleration.effect).is_some_and(|effect| effect != taint.effect)
        || set(&toleration.key).is_some_and(|key| key != taint.key)
    {
        return false;
    }
    match toleration.operator.as_deref() {
        None | Some("" | "Equal") => set(&toleration.value) == set(&taint.value),
        Some("Exists") => true,
        Some(_) => false,
    }
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) claim: usize,
    /// In the order of preference.
    pub(crate) alternatives: Range<usize>,
    pub(crate) is_prioritized: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Requests<'a> {
    /// Of all claims, in the order in which they are satisfied.
    pub(crate) all: Vec<Request>,
    pub(crate) alternatives: Vec<Alternative<'a>>,
    pub(crate) constraints: Vec<Kind>,
    pub(crate) claims: usize,
}

/// Namespace and name.
pub(crate) fn claim_name(claim: &api::ResourceClaim) -> String {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    match claim.metadata.namespace.as_deref() {
        None | Some("") => name.to_owned(),
        Some(namespace) => [namespace, name].join("/"),
    }
}

pub(crate) fn requests_of(claim: &api::ResourceClaim) -> &[api::DeviceRequest] {
    devices_of(claim).and_then(|devices| devices.requests.as_deref()).unwrap_or_default()
}

pub(crate) fn devices_of(claim: &api::ResourceClaim) -> Option<&api::DeviceClaim> {
    claim.spec.as_ref()?.devices.as_ref()
}

/// What requests of both kinds have.
struct Asked<'a> {
    name: &'a str,
    parent: Option<&'a str>,
    class: &'a str,
    mode: Option<&'a str>,
    count: Option<i64>,
    admin: Option<bool>,
    selectors: &'a [api::DeviceSelector],
    tolerations: Option<&'a Vec<api::DeviceToleration>>,
    capacity: Option<&'a api::CapacityRequirements>,
    derived: &'a [api::DeviceDerivedAttribute],
}

impl<'a> Asked<'a> {
    fn exactly(name: &'a str, asked: &'a api::ExactDeviceRequest) -> Self {
        Self {
            name,
            parent: None,
            class: &asked.device_class_name,
            mode: asked.allocation_mode.as_deref(),
            count: asked.count,
            admin: asked.admin_access,
            selectors: asked.selectors.as_deref().unwrap_or_default(),
            tolerations: asked.tolerations.as_ref(),
            capacity: asked.capacity.as_ref(),
            derived: asked.derived_attributes.as_deref().unwrap_or_default(),
        }
    }

    fn sub(parent: &'a str, asked: &'a api::DeviceSubRequest) -> Self {
        Self {
            name: &asked.name,
            parent: Some(parent),
            class: &asked.device_class_name,
            mode: asked.allocation_mode.as_deref(),
            count: asked.count,
            admin: None,
            selectors: asked.selectors.as_deref().unwrap_or_default(),
            tolerations: asked.tolerations.as_ref(),
            capacity: asked.capacity.as_ref(),
            derived: asked.derived_attributes.as_deref().unwrap_or_default(),
        }
    }
}

/// Reads the claims in upstream's order, so that of several errors the same one is reported.
pub(crate) struct Reader<'r, 'a> {
    pub(crate) model: &'r Model,
    pub(crate) classes: &'a HashMap<String, api::DeviceClass>,
    pub(crate) features: Features,
}

impl<'a> Reader<'_, 'a> {
    pub(crate) fn read(
        &self,
        claims: &'a [api::ResourceClaim],
        matcher: &mut Matcher<'_, 'a>,
    ) -> Result<Requests<'a>, Error> {
        let mut all = Requests { claims: claims.len(), ..Requests::default() };
        for (index, claim) in claims.iter().enumerate() {
            self.read_claim(index, claim, matcher, &mut all)?;
        }
        Ok(all)
    }

    fn read_claim(
        &self,
        index: usize,
        claim: &'a api::ResourceClaim,
        matcher: &mut Matcher<'_, 'a>,
        all: &mut Requests<'a>,
    ) -> Result<(), Error> {
        let (first_alternative, first_constraint) = (all.alternatives.len(), all.constraints.len());
        let mut derived = Vec::new();
        let mut minimum = 0_i64;
        for request in requests_of(claim) {
            let error = || (claim_name(claim), request.name.clone());
            let alternatives = request.first_available.as_deref().unwrap_or_default();
            if !self.features.prioritized_list && !alternatives.is_empty() {
                let (claim, request) = error();
                return Err(Error::PrioritizedListOff { claim, request });
            }
            let is_prioritized = !alternatives.is_empty();
            let exact = request.exactly.as_ref();
            let asks_for_capacity = exact.is_some_and(|exact| exact.capacity.is_some())
                || alternatives.iter().any(|alternative| alternative.capacity.is_some());
            if !self.features.consumable_capacity && asks_for_capacity {
                let (claim, request) = error();
                return Err(Error::ConsumableCapacityOff { claim, request });
            }
            let asked: Vec<Asked<'a>> = match (alternatives, exact) {
                ([], Some(exact)) => vec![Asked::exactly(&request.name, exact)],
                ([], None) => {
                    let (claim, request) = error();
                    return Err(Error::UnknownRequest { claim, request });
                }
                (alternatives, _) => alternatives.iter().map(|asked| Asked::sub(&request.name, asked)).collect(),
            };
            let start = all.alternatives.len();
            for asked in asked {
                derived.push(asked.derived);
                let alternative = self.read_alternative(index, claim, asked, matcher)?;
                all.alternatives.push(alternative);
            }
            let needed = all.alternatives[start..].iter().map(|alternative| alternative.needed).min().unwrap_or(0);
            if needed > i64::try_from(MAX_DEVICES).unwrap_or(0) - minimum {
                let (claim, request) = error();
                return Err(Error::TooManyDevices { claim, request, count: needed });
            }
            minimum += needed;
            let alternatives = start..all.alternatives.len();
            all.all.push(Request { claim: index, alternatives, is_prioritized });
        }
        let constraints = devices_of(claim).and_then(|devices| devices.constraints.as_deref());
        for (position, constraint) in constraints.unwrap_or_default().iter().enumerate() {
            let (kind, attribute) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
                (Some(attribute), _) => (Kind::Match, attribute.as_str()),
                (None, Some(attribute)) => (Kind::Distinct, attribute.as_str()),
                (None, None) => return Err(Error::UnknownConstraint { claim: claim_name(claim), index: position }),
            };
            all.constraints.push(kind);
            let names = constraint.requests.as_deref().unwrap_or_default();
            for (alternative, derived) in all.alternatives[first_alternative..].iter_mut().zip(&derived) {
                let is_named = |name: &str| names.iter().any(|own| own == name);
                let applies =
                    names.is_empty() || is_named(&alternative.full_name()) || alternative.parent.is_some_and(is_named);
                if applies {
                    let own = derived.iter().rev().find(|derived| derived.name == attribute);
                    let source = matcher.attribute(attribute, own.map(|own| own.expression.as_str()));
                    alternative.constraints.push((first_constraint + position, source));
                }
            }
        }
        Ok(())
    }

    fn read_alternative(
        &self,
        claim_index: usize,
        claim: &'a api::ResourceClaim,
        asked: Asked<'a>,
        matcher: &mut Matcher<'_, 'a>,
    ) -> Result<Alternative<'a>, Error> {
        let error = || (claim_name(claim), asked.name.to_owned());
        if !self.features.derived_attributes && !asked.derived.is_empty() {
            let (claim, request) = error();
            return Err(Error::DerivedAttributesOff { claim, request });
        }
        let mut own = Vec::new();
        for (index, selector) in asked.selectors.iter().enumerate() {
            let Some(cel) = &selector.cel else {
                let (claim, request) = error();
                return Err(Error::UnknownSelector { claim, request, index });
            };
            own.push(cel.expression.as_str());
        }
        if !self.features.admin_access && asked.admin.is_some() {
            let (claim, request) = error();
            return Err(Error::AdminAccessOff { claim, request });
        }
        let Some(class) = self.classes.get(asked.class).filter(|_| !asked.class.is_empty()) else {
            let ((claim, request), class) = (error(), asked.class.to_owned());
            return Err(Error::NoClass { claim, request, class });
        };
        // A class that isn't CEL makes upstream crash.
        let of_class = class
            .spec
            .iter()
            .flat_map(|spec| spec.selectors.iter().flatten())
            .filter_map(|selector| selector.cel.as_ref());
        let mut selectors: Vec<usize> = of_class.map(|cel| matcher.expression(&cel.expression)).collect();
        let class_selectors = selectors.len();
        selectors.extend(own.into_iter().map(|expression| matcher.expression(expression)));
        let mut alternative = Alternative {
            claim: claim_index,
            name: asked.name,
            parent: asked.parent,
            class,
            selectors,
            class_selectors,
            needed: asked.count.unwrap_or(0),
            all: None,
            is_admin: asked.admin == Some(true),
            tolerations: asked.tolerations,
            requirement: matcher.requirement(asked.capacity.and_then(|capacity| capacity.requests.as_ref())),
            constraints: Vec::new(),
        };
        match asked.mode {
            Some("ExactCount") => {}
            Some("All") => {
                let all = self.all(claim, &alternative, matcher)?;
                alternative.needed = i64::try_from(all.len()).unwrap_or(i64::MAX);
                alternative.all = Some(all);
            }
            mode => {
                let ((claim, request), mode) = (error(), mode.unwrap_or_default().to_owned());
                return Err(Error::UnknownMode { claim, request, mode });
            }
        }
        Ok(alternative)
    }

    /// All devices for a request that wants all. Whether they are free isn't asked yet.
    fn all(
        &self,
        claim: &api::ResourceClaim,
        alternative: &Alternative<'a>,
        matcher: &mut Matcher<'_, 'a>,
    ) -> Result<Vec<usize>, Error> {
        let mut all = Vec::new();
        for pool in &self.model.pools {
            let error = || (claim_name(claim), alternative.name.to_owned(), pool.id.to_string());
            match &pool.content {
                Content::Incomplete => {
                    let (claim, request, pool) = error();
                    return Err(Error::AllOfIncomplete { claim, request, pool });
                }
                Content::Invalid(reason) => {
                    let ((claim, request, pool), reason) = (error(), reason.clone());
                    return Err(Error::AllOfInvalid { claim, request, pool, reason });
                }
                Content::Usable => {}
            }
            for device in pool.devices.clone() {
                if matcher.selects(alternative, device)? && matcher.could_fit(alternative, device)? {
                    all.push(device);
                }
            }
        }
        Ok(all)
    }
}

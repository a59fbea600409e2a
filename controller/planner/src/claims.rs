//! Claims, each as little as decisions need: a claim of a template has its spec in common with its siblings.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use aliquot_api::ids::ObjectName;
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceClass, DeviceRequest, DeviceSelector, ResourceClaim, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Whose devices a claim asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Only ours.
    Ours,
    /// Ours and others'.
    Mixed,
    /// None of ours.
    Others,
}

/// What a claim has.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Held {
    /// Nothing.
    Nothing,
    /// What we decided and the API doesn't say yet.
    Decided(Arc<AllocationResult>),
    /// What the API says.
    Allocated(Arc<AllocationResult>),
    /// What the API says, and we are taking away.
    Freeing(Arc<AllocationResult>),
}

impl Held {
    pub(crate) fn allocation(&self) -> Option<&Arc<AllocationResult>> {
        match self {
            Self::Nothing => None,
            Self::Decided(allocation) | Self::Allocated(allocation) | Self::Freeing(allocation) => Some(allocation),
        }
    }
}

/// A claim.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) spec: Arc<ResourceClaimSpec>,
    pub(crate) held: Held,
    pub(crate) is_reserved: bool,
    pub(crate) is_deleted: bool,
    /// An object owns it that takes care of it.
    pub(crate) is_owned: bool,
}

impl Claim {
    /// As the allocator wants it.
    pub(crate) fn to_api(&self, name: &ObjectName) -> ResourceClaim {
        ResourceClaim {
            metadata: ObjectMeta {
                name: Some(name.name.clone()),
                namespace: Some(name.namespace.clone()),
                uid: Some(self.uid.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(ResourceClaimSpec::clone(&self.spec)),
            status: None,
        }
    }
}

/// Equal specs, each held once. What nobody has any more is dropped from time to time.
#[derive(Default)]
pub(crate) struct Specs {
    known: HashMap<String, Arc<ResourceClaimSpec>>,
    /// When so many are known, it is time to look for those that nobody has.
    limit: usize,
}

impl Specs {
    pub(crate) fn intern(&mut self, spec: ResourceClaimSpec) -> Arc<ResourceClaimSpec> {
        // A spec that can't be written down doesn't exist; it would only not be shared.
        let Ok(text) = serde_json::to_string(&spec) else { return Arc::new(spec) };
        if let Some(known) = self.known.get(&text) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.limit {
            self.known.retain(|_, spec| Arc::strong_count(spec) > 1);
            self.limit = (self.known.len() * 2).max(64);
        }
        let spec = Arc::new(spec);
        self.known.insert(text, Arc::clone(&spec));
        spec
    }
}

/// Classes, and whether they are for our devices.
pub(crate) struct Classes {
    driver: String,
    is_ours: BTreeMap<String, bool>,
}

impl Classes {
    pub(crate) fn new(driver: String) -> Self {
        Self { driver, is_ours: BTreeMap::new() }
    }

    pub(crate) fn apply(&mut self, class: &DeviceClass) {
        let selectors = class.spec.as_ref().and_then(|spec| spec.selectors.as_deref());
        let is_ours = self.names_us(selectors);
        self.is_ours.insert(class.metadata.name.clone().unwrap_or_default(), is_ours);
    }

    pub(crate) fn delete(&mut self, name: &str) {
        self.is_ours.remove(name);
    }

    /// Whose devices a claim asks for. A request is for ours if its class or itself names our driver.
    pub(crate) fn whose(&self, spec: &ResourceClaimSpec) -> Whose {
        let requests = spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
        let (mut ours, mut others) = (false, false);
        for request in requests {
            for (class, selectors) in asked(request) {
                if self.is_ours.get(class).copied().unwrap_or(false) || self.names_us(selectors) {
                    ours = true;
                } else {
                    others = true;
                }
            }
        }
        match (ours, others) {
            (true, false) => Whose::Ours,
            (true, true) => Whose::Mixed,
            (false, _) => Whose::Others,
        }
    }

    fn names_us(&self, selectors: Option<&[DeviceSelector]>) -> bool {
        let names = |text: &str, quote: char| text.contains(&format!("{quote}{}{quote}", self.driver));
        let expressions = selectors.into_iter().flatten().filter_map(|selector| selector.cel.as_ref());
        expressions.map(|cel| &cel.expression).any(|text| names(text, '"') || names(text, '\''))
    }
}

/// The classes of a request and its alternatives, each with the selectors beside it.
fn asked(request: &DeviceRequest) -> impl Iterator<Item = (&str, Option<&[DeviceSelector]>)> {
    let exactly =
        request.exactly.iter().map(|exactly| (exactly.device_class_name.as_str(), exactly.selectors.as_deref()));
    let alternatives = request.first_available.iter().flatten();
    exactly.chain(alternatives.map(|one| (one.device_class_name.as_str(), one.selectors.as_deref())))
}

/// The node that an allocation is bound to. Devices of nodes have no other selector.
pub(crate) fn node_of(allocation: &AllocationResult) -> Option<&str> {
    let terms = &allocation.node_selector.as_ref()?.node_selector_terms;
    let fields = terms.first()?.match_fields.as_ref()?;
    let name = fields.iter().find(|field| field.key == "metadata.name" && field.operator == "In")?;
    name.values.as_ref()?.first().map(String::as_str)
}

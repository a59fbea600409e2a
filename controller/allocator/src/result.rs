//! What was found, as the API has it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::error::Error;
use crate::mode::Mode;
use crate::model::Device;
use crate::requests::{Alternative, claim_name, devices_of, requests_of};
use crate::search::{Chosen, Search};

impl<'a> Search<'_, '_, 'a> {
    /// The allocation of each claim.
    pub(crate) fn results(
        &self,
        node: &str,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Vec<api::AllocationResult>, Error> {
        let mut results = Vec::new();
        for (index, claim) in self.claims.iter().enumerate() {
            let chosen: Vec<&Chosen> =
                self.taken.chosen.iter().filter(|chosen| self.alternative(chosen).claim == index).collect();
            let devices = chosen.iter().map(|chosen| self.device(chosen, share_id)).collect();
            let devices =
                api::DeviceAllocationResult { config: some(self.configs(index, claim)), results: some(devices) };
            let node_selector = self.node_selector(claim, &chosen, node)?;
            results.push(api::AllocationResult { devices: Some(devices), node_selector, allocation_timestamp: None });
        }
        Ok(results)
    }

    fn alternative(&self, chosen: &Chosen) -> &Alternative<'a> {
        &self.requests.alternatives[chosen.alternative]
    }

    fn device(&self, chosen: &Chosen, share_id: &mut dyn FnMut() -> String) -> api::DeviceRequestAllocationResult {
        let alternative = self.alternative(chosen);
        let Device { api: device, slice, .. } = &self.model.devices[chosen.device];
        let uses = chosen.uses.as_ref().filter(|uses| !uses.is_empty());
        let consumed: Option<BTreeMap<String, Quantity>> =
            uses.map(|uses| uses.iter().map(|used| (used.name.clone(), Quantity(used.amount.to_string()))).collect());
        let binds = self.features.device_binding_and_status;
        let has_skips = self.variant == crate::features::Variant::Experimental;
        api::DeviceRequestAllocationResult {
            admin_access: alternative.is_admin.then_some(true),
            binding_conditions: device.binding_conditions.clone().filter(|_| binds),
            binding_failure_conditions: device.binding_failure_conditions.clone().filter(|_| binds),
            consumed_capacity: consumed,
            device: device.name.clone(),
            driver: slice.spec.driver.clone(),
            pool: slice.spec.pool.name.clone(),
            request: alternative.full_name(),
            share_id: chosen.uses.as_ref().map(|_| share_id()),
            skip_node_operations: slice.spec.skip_node_operations.clone().filter(|_| has_skips),
            tolerations: alternative.tolerations.cloned(),
        }
    }

    /// The configs of the classes, each once, then those of the claim, as far as they are for what was found.
    fn configs(&self, index: usize, claim: &api::ResourceClaim) -> Vec<api::DeviceAllocationConfiguration> {
        let requests = self.requests.all.iter().zip(&self.selected).filter(|(request, _)| request.claim == index);
        let selected: Vec<&Alternative<'a>> = requests.map(|(_, own)| &self.requests.alternatives[*own]).collect();
        let mut configs: Vec<api::DeviceAllocationConfiguration> = Vec::new();
        let mut of_class = BTreeMap::new();
        for alternative in &selected {
            let name = alternative.full_name();
            if let Some(range) = of_class.get(&alternative.class.metadata.name) {
                let range: &std::ops::Range<usize> = range;
                for config in &mut configs[range.clone()] {
                    config.requests.get_or_insert_default().push(name.clone());
                }
                continue;
            }
            let start = configs.len();
            configs.extend(alternative.class.spec.iter().flat_map(|spec| spec.config.iter().flatten()).map(|config| {
                api::DeviceAllocationConfiguration {
                    opaque: config.opaque.clone(),
                    requests: Some(vec![name.clone()]),
                    source: "FromClass".into(),
                }
            }));
            of_class.insert(alternative.class.metadata.name.clone(), start..configs.len());
        }
        let is_for = |names: &[String], alternative: &Alternative<'_>| {
            let request = alternative.parent.unwrap_or(alternative.name);
            names.iter().any(|name| name == request) || names.contains(&alternative.full_name())
        };
        let of_claim = devices_of(claim).into_iter().flat_map(|devices| devices.config.iter().flatten());
        for config in of_claim {
            let names = config.requests.as_deref().unwrap_or_default();
            if names.is_empty() || selected.iter().any(|alternative| is_for(names, alternative)) {
                configs.push(api::DeviceAllocationConfiguration {
                    opaque: config.opaque.clone(),
                    requests: config.requests.clone(),
                    source: "FromClaim".into(),
                });
            }
        }
        // A config for all requests needs no list of them.
        debug_assert_eq!(selected.len(), requests_of(claim).len());
        for config in &mut configs {
            let is_for_all = |names: &Vec<String>| selected.iter().all(|alternative| is_for(names, alternative));
            if config.requests.as_ref().is_some_and(is_for_all) {
                config.requests = None;
            }
        }
        configs
    }

    /// Where the allocation can be used: on the node if a device is there, otherwise where all devices can be reached.
    fn node_selector(
        &self,
        claim: &api::ResourceClaim,
        chosen: &[&Chosen],
        node: &str,
    ) -> Result<Option<NodeSelector>, Error> {
        let mut term = NodeSelectorTerm::default();
        for chosen in chosen {
            let Device { api: device, slice, id, .. } = &self.model.devices[chosen.device];
            let (name, selector) = if slice.spec.per_device_node_selection == Some(true) {
                (&device.node_name, &device.node_selector)
            } else {
                (&slice.spec.node_name, &slice.spec.node_selector)
            };
            if name.is_some() || device.binds_to_node == Some(true) {
                return Ok(Some(only(node)));
            }
            match selector.as_ref().map_or(&[][..], |selector| &selector.node_selector_terms) {
                [] => {}
                [own] => {
                    add(&mut term.match_fields, own.match_fields.as_deref());
                    add(&mut term.match_expressions, own.match_expressions.as_deref());
                }
                // The node is among the nodes.
                _ if self.mode == Mode::Placement => return Ok(Some(only(node))),
                terms => {
                    let (claim, device, terms) = (claim_name(claim), id.clone(), terms.len());
                    return Err(Error::NodeSelectorTerms { claim, device, terms });
                }
            }
        }
        let has_any = term.match_fields.is_some() || term.match_expressions.is_some();
        Ok(has_any.then(|| NodeSelector { node_selector_terms: vec![term] }))
    }
}

fn only(node: &str) -> NodeSelector {
    let requirement = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![requirement]), match_expressions: None };
    NodeSelector { node_selector_terms: vec![term] }
}

fn some<T>(all: Vec<T>) -> Option<Vec<T>> {
    Some(all).filter(|all| !all.is_empty())
}

/// Adds what isn't there yet; values have no order.
fn add(all: &mut Option<Vec<NodeSelectorRequirement>>, new: Option<&[NodeSelectorRequirement]>) {
    let sorted = |requirement: &NodeSelectorRequirement| {
        let mut values = requirement.values.clone().unwrap_or_default();
        values.sort_unstable();
        values.dedup();
        values
    };
    for requirement in new.unwrap_or_default() {
        let is_same = |other: &NodeSelectorRequirement| {
            (&other.key, &other.operator) == (&requirement.key, &requirement.operator)
                && sorted(other) == sorted(requirement)
        };
        if !all.iter().flatten().any(is_same) {
            all.get_or_insert_default().push(requirement.clone());
        }
    }
}

//! Slices as the allocator shall see them: without our own fence, with the taints that rules add.

use std::collections::BTreeMap;

use aliquot_api::names::{FENCE_TAINT, FENCE_VALUE};
use k8s_openapi::api::resource::v1::{DeviceTaint, DeviceTaintRule, ResourceSlice};

const NO_SCHEDULE: &str = "NoSchedule";

/// The rules that taint devices, by name.
#[derive(Default)]
pub(crate) struct Rules(BTreeMap<String, DeviceTaintRule>);

impl Rules {
    /// Adds a rule or replaces the one of its name; whether that taints anything else than before.
    pub(crate) fn apply(&mut self, rule: DeviceTaintRule) -> bool {
        let name = rule.metadata.name.clone().unwrap_or_default();
        let spec = rule.spec.clone();
        self.0.insert(name, rule).is_none_or(|before| before.spec != spec)
    }

    /// A rule is gone; whether it was known.
    pub(crate) fn delete(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// What the allocator shall see of a slice. Its driver is ours, so a fence in it is ours; the same taint from a rule counts.
    pub(crate) fn seen(&self, mut slice: ResourceSlice) -> ResourceSlice {
        let (driver, pool) = (slice.spec.driver.clone(), slice.spec.pool.name.clone());
        for device in slice.spec.devices.iter_mut().flatten() {
            let mut taints = device.taints.take().unwrap_or_default();
            taints.retain(|taint| !is_fence(taint));
            for rule in self.0.values() {
                let Some(selector) = &rule.spec.device_selector else { continue };
                let is_meant = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
                if is_meant(&selector.driver, &driver)
                    && is_meant(&selector.pool, &pool)
                    && is_meant(&selector.device, &device.name)
                {
                    taints.push(rule.spec.taint.clone());
                }
            }
            device.taints = (!taints.is_empty()).then_some(taints);
        }
        slice.metadata.managed_fields = None;
        slice
    }
}

fn is_fence(taint: &DeviceTaint) -> bool {
    taint.key == FENCE_TAINT && taint.value.as_deref() == Some(FENCE_VALUE) && taint.effect == NO_SCHEDULE
}

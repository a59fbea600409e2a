//! What is allocated already, pool by pool.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use aliquot_api::quantity::{Quantity, QuantityError};
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequestAllocationResult, ResourceClaim};

/// A pool of a driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolId {
    pub(crate) driver: String,
    pub(crate) name: String,
}

impl PoolId {
    pub(crate) fn new(driver: &str, name: &str) -> Self {
        Self { driver: driver.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.driver, self.name)
    }
}

/// `driver/pool/device`; only the pool's part can have slashes.
pub(crate) fn device_id(driver: &str, pool: &str, device: &str) -> String {
    [driver, pool, device].join("/")
}

/// What claims have of a device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    /// How many have it alone. More than one shouldn't.
    alone: u32,
    shares: u32,
    /// How many of the shares say what they use.
    counted: u32,
    capacity: BTreeMap<String, Quantity>,
}

impl Held {
    /// Somebody has it alone.
    pub(crate) fn is_allocated(&self) -> bool {
        self.alone > 0
    }

    /// Somebody has a share.
    pub(crate) fn has_share(&self) -> bool {
        self.shares > 0 || self.counted > 0
    }

    /// What the shares have together.
    pub(crate) fn capacity(&self) -> Option<&BTreeMap<String, Quantity>> {
        (self.counted > 0).then_some(&self.capacity)
    }

    fn is_free(&self) -> bool {
        !self.is_allocated() && !self.has_share()
    }
}

/// What claims have of the devices of a pool.
#[derive(Debug, Clone, Default)]
pub(crate) struct PoolState {
    /// When it changed last.
    pub(crate) changed: u64,
    /// By name; none of them is free.
    pub(crate) devices: BTreeMap<String, Held>,
}

/// One device of an allocation, in the scheduler's terms.
enum Part {
    Alone,
    Share(Option<BTreeMap<String, Quantity>>),
}

/// The allocated devices of a cluster. Changes cost what they touch, not what there is.
#[derive(Debug, Clone, Default)]
pub struct AllocatedState {
    /// The number of changes.
    pub(crate) clock: u64,
    pools: HashMap<PoolId, PoolState>,
}

impl AllocatedState {
    /// What these claims have, as the scheduler counts it: admin access has nothing, and without consumable capacity every
    /// device has one owner.
    pub fn of<'a>(
        claims: impl IntoIterator<Item = &'a ResourceClaim>,
        consumable_capacity: bool,
    ) -> Result<Self, QuantityError> {
        let mut state = Self::default();
        for allocation in claims.into_iter().filter_map(|claim| claim.status.as_ref()?.allocation.as_ref()) {
            state.hold(allocation, consumable_capacity)?;
        }
        Ok(state)
    }

    /// A claim has its devices. In case of an error nothing is different.
    pub(crate) fn hold(
        &mut self,
        allocation: &AllocationResult,
        consumable_capacity: bool,
    ) -> Result<(), QuantityError> {
        for (result, part) in parts(allocation, consumable_capacity)? {
            self.hold_part(&result.driver, &result.pool, &result.device, part);
        }
        Ok(())
    }

    /// A claim that was counted gives its devices back. In case of an error nothing is different.
    pub(crate) fn release(
        &mut self,
        allocation: &AllocationResult,
        consumable_capacity: bool,
    ) -> Result<(), QuantityError> {
        for (result, part) in parts(allocation, consumable_capacity)? {
            self.change(&result.driver, &result.pool, &result.device, |held| match part {
                Part::Alone => held.alone = held.alone.saturating_sub(1),
                Part::Share(uses) => {
                    held.shares = held.shares.saturating_sub(1);
                    let Some(uses) = uses else { return };
                    held.counted = held.counted.saturating_sub(1);
                    for (name, quantity) in uses {
                        if let Some(sum) = held.capacity.get_mut(&name) {
                            sum.sub(&quantity);
                        }
                    }
                    if held.counted == 0 {
                        held.capacity.clear();
                    }
                }
            });
        }
        Ok(())
    }

    /// Counts a device under its id as one that a claim has alone.
    pub(crate) fn hold_alone(&mut self, id: &str) {
        let (driver, pool, device) = split(id);
        self.hold_part(driver, pool, device, Part::Alone);
    }

    /// Counts a share of a device under its id.
    pub(crate) fn hold_share(&mut self, id: &str) {
        let (driver, pool, device) = split(id);
        self.hold_part(driver, pool, device, Part::Share(None));
    }

    /// Counts what shares of a device under its id use.
    pub(crate) fn hold_capacity(&mut self, id: &str, uses: BTreeMap<String, Quantity>) {
        let (driver, pool, device) = split(id);
        self.hold_part(driver, pool, device, Part::Share(Some(uses)));
    }

    pub(crate) fn pool(&self, id: &PoolId) -> Option<&PoolState> {
        self.pools.get(id)
    }

    fn hold_part(&mut self, driver: &str, pool: &str, device: &str, part: Part) {
        self.change(driver, pool, device, |held| match part {
            Part::Alone => held.alone += 1,
            Part::Share(uses) => {
                held.shares += 1;
                held.counted += u32::from(uses.is_some());
                for (name, quantity) in uses.into_iter().flatten() {
                    held.capacity.entry(name).and_modify(|sum| sum.add(&quantity)).or_insert(quantity);
                }
            }
        });
    }

    fn change(&mut self, driver: &str, pool: &str, device: &str, change: impl FnOnce(&mut Held)) {
        self.clock += 1;
        let id = PoolId::new(driver, pool);
        let state = self.pools.entry(id.clone()).or_default();
        state.changed = self.clock;
        let held = state.devices.entry(device.to_owned()).or_default();
        change(held);
        if held.is_free() {
            state.devices.remove(device);
        }
        if state.devices.is_empty() {
            self.pools.remove(&id);
        }
    }
}

/// What the scheduler counts of an allocation.
fn parts(
    allocation: &AllocationResult,
    consumable_capacity: bool,
) -> Result<Vec<(&DeviceRequestAllocationResult, Part)>, QuantityError> {
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    let counted = results.filter(|result| result.admin_access != Some(true));
    let part = |result: &DeviceRequestAllocationResult| {
        if !consumable_capacity || result.share_id.is_none() {
            return Ok(Part::Alone);
        }
        let uses = result
            .consumed_capacity
            .as_ref()
            .map(|consumed| consumed.iter().map(|(name, quantity)| Ok((name.clone(), quantity.0.parse()?))).collect());
        Ok(Part::Share(uses.transpose()?))
    };
    counted.map(|result| Ok((result, part(result)?))).collect()
}

fn split(id: &str) -> (&str, &str, &str) {
    let (driver, rest) = id.split_once('/').unwrap_or(("", id));
    let (pool, device) = rest.rsplit_once('/').unwrap_or(("", rest));
    (driver, pool, device)
}

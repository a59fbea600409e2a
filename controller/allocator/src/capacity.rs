//! How much of a device a request uses.
//!
//! What the request says is rounded up to what the device's policy allows; what the policy forbids makes the device unusable
//! for the request, and what can't be calculated ends the allocation.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use aliquot_api::quantity::{Format, Quantity};
use k8s_openapi::api::resource::v1::{CapacityRequestPolicyRange, DeviceCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::error::CapacityError;

/// What a request uses of one capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) name: String,
    pub(crate) amount: Quantity,
    /// All that there is.
    pub(crate) total: Quantity,
}

/// What a request uses of each of a device's capacities; none if the device is no match. The error has the capacity's name.
pub(crate) fn uses(
    capacities: Option<&BTreeMap<String, DeviceCapacity>>,
    requests: Option<&BTreeMap<String, Text>>,
    fractional: bool,
) -> Result<Option<Vec<Use>>, (String, CapacityError)> {
    let has = |name: &String| capacities.is_some_and(|capacities| capacities.contains_key(name));
    if requests.is_some_and(|requests| !requests.keys().all(has)) {
        return Ok(None);
    }
    let mut all = Vec::new();
    let mut allowed = true;
    // An error of any capacity comes before a policy that forbids another.
    for (name, capacity) in capacities.into_iter().flatten() {
        let request = requests.and_then(|requests| requests.get(name));
        let (amount, is_allowed) = amount(capacity, request, fractional).map_err(|error| (name.clone(), error))?;
        allowed &= is_allowed;
        let total = parse(&capacity.value).map_err(|error| (name.clone(), error))?;
        all.push(Use { name: name.clone(), amount, total });
    }
    Ok(allowed.then_some(all))
}

fn parse(text: &Text) -> Result<Quantity, CapacityError> {
    Ok(text.0.parse()?)
}

/// A range as numbers. A missing minimum is an empty text here.
struct Range {
    min: Option<Quantity>,
    max: Option<Quantity>,
    step: Option<Quantity>,
}

impl Range {
    fn new(range: &CapacityRequestPolicyRange) -> Result<Self, CapacityError> {
        let min = Some(&range.min).filter(|min| !min.0.is_empty());
        Ok(Self {
            min: min.map(parse).transpose()?,
            max: range.max.as_ref().map(parse).transpose()?,
            step: range.step.as_ref().map(parse).transpose()?,
        })
    }

    /// Whether all of it is exact in thousandths, and the steps are at least one of them.
    fn is_milli(&self, fractional: bool) -> bool {
        let all = [&self.min, &self.max, &self.step];
        fractional
            && all.into_iter().flatten().all(|quantity| milli(quantity).is_some())
            && self.step.as_ref().and_then(milli).is_none_or(|step| step >= 1)
    }

    /// The next amount that is a number of steps above the minimum, for a request that isn't below that.
    fn round_up(
        &self,
        request: &Quantity,
        min: &Quantity,
        step: &Quantity,
        fractional: bool,
    ) -> Result<Quantity, CapacityError> {
        let is_milli = self.is_milli(fractional);
        let (asked, smallest, size) = if is_milli {
            (milli(request).ok_or(CapacityError::Unrepresentable)?, min.milli_value(), step.milli_value())
        } else {
            if *request > Quantity::new(i64::MAX, Format::DecimalSi) {
                return Err(CapacityError::Unrepresentable);
            }
            (request.value(), min.value(), step.value())
        };
        if size == 0 {
            return Err(CapacityError::Range);
        }
        // As wide as upstream's numbers, which wrap around where its checks let them.
        let above = asked.wrapping_sub(smallest);
        let mut steps = above.wrapping_div(size);
        if above.wrapping_rem(size) != 0 {
            steps = steps.wrapping_add(1);
        }
        if (is_milli || smallest >= 0) && steps > i64::MAX.wrapping_sub(smallest).wrapping_div(size) {
            return Err(CapacityError::Unrepresentable);
        }
        let rounded = smallest.wrapping_add(size.wrapping_mul(steps));
        Ok(match (is_milli, rounded % 1000) {
            (false, _) => Quantity::new(rounded, step.format()),
            (true, 0) => Quantity::new(rounded / 1000, step.format()),
            (true, _) => Quantity::from_milli(rounded, step.format()),
        })
    }

    fn allows(&self, amount: &Quantity, fractional: bool) -> Result<bool, CapacityError> {
        if self.max.as_ref().is_some_and(|max| amount > max) {
            return Ok(false);
        }
        let Some(step) = &self.step else { return Ok(true) };
        let Some(min) = &self.min else { return Err(CapacityError::Range) };
        let (amount, min, step) = if self.is_milli(fractional) {
            let Some(amount) = milli(amount) else { return Ok(false) };
            (amount, min.milli_value(), step.milli_value())
        } else {
            (amount.value(), min.value(), step.value())
        };
        if step == 0 {
            return Err(CapacityError::Range);
        }
        Ok(amount.wrapping_sub(min).wrapping_rem(step) == 0)
    }
}

/// In thousandths, where that is exact.
fn milli(quantity: &Quantity) -> Option<i64> {
    let milli = quantity.milli_value();
    (Quantity::from_milli(milli, quantity.format()) == *quantity).then_some(milli)
}

/// What is used, and whether the policy allows it.
fn amount(
    capacity: &DeviceCapacity,
    request: Option<&Text>,
    fractional: bool,
) -> Result<(Quantity, bool), CapacityError> {
    let policy = capacity.request_policy.as_ref();
    let default = policy.and_then(|policy| policy.default.as_ref());
    let range = policy.and_then(|policy| policy.valid_range.as_ref()).map(Range::new).transpose()?;
    let values = policy.and_then(|policy| policy.valid_values.as_ref());
    let with_text = |text| Ok::<_, CapacityError>((text, parse(text)?));
    let values: Option<Vec<_>> = values.map(|values| values.iter().map(with_text).collect()).transpose()?;
    // The text that it was taken from as it is, if any.
    let mut text = Some(request.or(default).unwrap_or(&capacity.value));
    let mut amount = parse(request.or(default).unwrap_or(&capacity.value))?;
    if request.is_some() {
        if let Some((range, min)) = range.as_ref().and_then(|range| Some((range, range.min.as_ref()?))) {
            if amount < *min {
                text = policy.and_then(|policy| policy.valid_range.as_ref()).map(|range| &range.min);
                amount = min.clone();
            } else if let Some(step) = &range.step {
                text = None;
                amount = range.round_up(&amount, min, step, fractional)?;
            }
        } else if let Some((value_text, value)) = values.iter().flatten().find(|(_, value)| amount <= *value) {
            text = Some(value_text);
            amount = value.clone();
        }
    }
    if amount.sign() == Ordering::Less {
        return Err(CapacityError::Negative);
    }
    // Upstream compares how the two are kept, which is the same for the same text.
    let is_default = default.is_some() && default == text;
    let allowed = is_default
        || match (&range, &values) {
            (Some(range), _) => range.allows(&amount, fractional)?,
            (None, Some(values)) if !values.is_empty() => values.iter().any(|(_, value)| *value == amount),
            _ => true,
        };
    Ok((amount, allowed))
}

/// Whether there is as much left, beside what is allocated and what is about to be (in the order of the uses).
pub(crate) fn fits(uses: &[Use], allocated: Option<&BTreeMap<String, Quantity>>, allocating: &[Quantity]) -> bool {
    uses.iter().enumerate().all(|(index, used)| {
        let mut sum = used.amount.clone();
        if let Some(allocated) = allocated.and_then(|allocated| allocated.get(&used.name)) {
            sum.add(allocated);
        }
        if let Some(allocating) = allocating.get(index) {
            sum.add(allocating);
        }
        sum <= used.total
    })
}

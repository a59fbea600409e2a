//! Makes a problem small: part after part is left out as long as the rest stays what it is.
//!
//! Only such parts are left out as the API can do without, so that what remains is a problem that somebody can have.

use serde_json::{Value, json};

use crate::run::RunError;

/// An upper limit, should each step be slow.
const MOST_TRIES: usize = 3000;

/// Entries of objects that may be missing.
const OPTIONAL: [&str; 24] = [
    "adminAccess",
    "allowMultipleAllocations",
    "attributes",
    "bindingConditions",
    "bindingFailureConditions",
    "bindsToNode",
    "capacity",
    "compatibilityGroups",
    "config",
    "constraints",
    "consumedCapacity",
    "consumesCounters",
    "derivedAttributes",
    "labels",
    "max",
    "requestPolicy",
    "selectors",
    "skipNodeOperations",
    "step",
    "taints",
    "tolerations",
    "validRange",
    "declaredFeatures",
    "shareID",
];
/// Lists that can't be empty, by the ends of their places.
const NEVER_EMPTY: [&str; 4] = ["/devices/requests", "/firstAvailable", "/nodeSelectorTerms", "/values"];
/// Objects of which any entry may be missing.
const OPEN: [&str; 6] = ["attributes", "capacity", "counters", "consumedCapacity", "features", "labels"];

/// What can be made smaller, as a JSON pointer of the object or list.
#[derive(Debug, Clone)]
enum Step {
    /// So many elements of a list, from this one on.
    Elements { list: String, first: usize, count: usize },
    /// A slice that its pool then doesn't count any more.
    Slice(usize),
    /// An entry of an object.
    Entry { object: String, name: String },
    /// Another value.
    Set { at: String, value: Value },
}

/// Leaves out what it can while the problem stays `the_same`.
pub(super) fn shrink(
    problem: &mut Value,
    the_same: &mut dyn FnMut(&Value) -> Result<bool, RunError>,
) -> Result<(), RunError> {
    let mut tries = 0;
    loop {
        let mut smaller = false;
        let mut steps = steps(problem);
        while let Some(step) = steps.pop() {
            let Some(candidate) = without(problem, &step) else { continue };
            if candidate == *problem {
                continue;
            }
            tries += 1;
            if tries > MOST_TRIES {
                return Ok(());
            }
            if the_same(&candidate)? {
                *problem = candidate;
                smaller = true;
            }
        }
        if !smaller {
            return Ok(());
        }
    }
}

/// The largest parts last, since they are tried first. What has gone meanwhile is no step any more.
fn steps(problem: &Value) -> Vec<Step> {
    let mut steps = Vec::new();
    collect(problem, String::new(), "", &mut steps);
    let weight = |step: &Step| match step {
        Step::Slice(index) => (1000, *index),
        Step::Elements { first, count, list } => (500 + count * 10, 100_usize.saturating_sub(list.len()) + first),
        Step::Entry { object, .. } => (100, 100_usize.saturating_sub(object.len())),
        Step::Set { .. } => (0, 0),
    };
    steps.sort_by_key(weight);
    steps
}

fn collect(value: &Value, at: String, name: &str, steps: &mut Vec<Step>) {
    match value {
        Value::Array(all) => {
            let mut count = all.len();
            while count > 0 {
                for first in (0..all.len()).step_by(count) {
                    steps.push(Step::Elements { list: at.clone(), first, count });
                }
                count /= 2;
            }
            if at == "/slices" {
                steps.extend((0..all.len()).map(Step::Slice));
            }
            for (index, value) in all.iter().enumerate() {
                collect(value, format!("{at}/{index}"), "", steps);
            }
        }
        Value::Object(all) => {
            for (key, value) in all {
                let below = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
                if OPTIONAL.contains(&key.as_str()) || OPEN.contains(&name) {
                    steps.push(Step::Entry { object: at.clone(), name: key.clone() });
                }
                if key == "count" && value.as_u64().is_some_and(|count| count > 1) {
                    let less = value.as_u64().unwrap_or(1) - 1;
                    steps.push(Step::Set { at: below.clone(), value: json!(less) });
                    steps.push(Step::Set { at: below.clone(), value: json!(1) });
                }
                if key == "firstAvailable"
                    && let Some([only]) = value.as_array().map(Vec::as_slice)
                {
                    let mut exactly = only.clone();
                    if let Some(exactly) = exactly.as_object_mut() {
                        exactly.remove("name");
                    }
                    let request = json!({ "name": all.get("name"), "exactly": exactly });
                    steps.push(Step::Set { at: at.clone(), value: request });
                }
                collect(value, below, key, steps);
            }
        }
        _ => {}
    }
}

fn without(problem: &Value, step: &Step) -> Option<Value> {
    let mut smaller = problem.clone();
    match step {
        Step::Elements { list, first, count } => {
            let must_have_some = NEVER_EMPTY.iter().any(|end| list.ends_with(end));
            let list = smaller.pointer_mut(list)?.as_array_mut()?;
            let end = (first + count).min(list.len());
            list.drain(*first.min(&end)..end);
            if must_have_some && list.is_empty() {
                return None;
            }
        }
        Step::Slice(index) => {
            let slices = smaller.pointer_mut("/slices")?.as_array_mut()?;
            if *index >= slices.len() {
                return None;
            }
            let gone = slices.remove(*index);
            for slice in slices {
                let is_beside = |field: &str| slice.pointer(field) == gone.pointer(field);
                if is_beside("/spec/driver") && is_beside("/spec/pool/name") {
                    let count = slice.pointer_mut("/spec/pool/resourceSliceCount")?;
                    *count = json!(count.as_u64()?.saturating_sub(1));
                }
            }
        }
        Step::Entry { object, name } => {
            smaller.pointer_mut(object)?.as_object_mut()?.remove(name)?;
        }
        Step::Set { at, value } => *smaller.pointer_mut(at)? = value.clone(),
    }
    Some(smaller)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_is_left() {
        let device = |name: &str| json!({ "name": name, "attributes": { "a": { "int": 1 }, "b": { "int": 2 } } });
        let slice = |name: &str, devices: &[Value]| {
            let pool = json!({ "name": "p", "generation": 1, "resourceSliceCount": 2 });
            json!({ "metadata": { "name": name }, "spec": { "driver": "d", "pool": pool, "devices": devices } })
        };
        let mut problem = json!({
            "features": { "AdminAccess": true, "PrioritizedList": true },
            "slices": [slice("a", &[device("1"), device("2"), device("3")]), slice("b", &[device("4")])],
            "claims": [{ "metadata": { "name": "c" }, "spec": { "devices": { "requests": [
                { "name": "r", "firstAvailable": [{ "name": "s", "count": 1 }, { "name": "t", "count": 5 }] },
            ] } } }],
        });
        shrink(&mut problem, &mut |smaller| {
            let slices = smaller["slices"].as_array().unwrap();
            let is_complete = slices.iter().all(|slice| slice["spec"]["pool"]["resourceSliceCount"] == slices.len());
            let request = &smaller["claims"][0]["spec"]["devices"]["requests"][0];
            let asks = [&request["exactly"]["count"], &request["firstAvailable"][0]["count"]];
            let has_device = slices.iter().any(|slice| slice.to_string().contains("\"3\""));
            Ok(is_complete && has_device && asks.iter().any(|count| count.is_u64()))
        })
        .unwrap();
        assert_eq!(problem["features"], json!({}));
        let slices = problem["slices"].as_array().unwrap();
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0]["spec"]["devices"], json!([{ "name": "3" }]));
        assert_eq!(slices[0]["spec"]["pool"]["resourceSliceCount"], 1);
        let request = &problem["claims"][0]["spec"]["devices"]["requests"][0];
        assert_eq!(*request, json!({ "name": "r", "exactly": { "count": 1 } }));
    }

    #[test]
    fn what_can_not_be_smaller_stays() {
        let mut problem = json!({ "slices": [{ "spec": { "devices": [] } }], "claims": [] });
        let before = problem.clone();
        shrink(&mut problem, &mut |_| Ok(false)).unwrap();
        assert_eq!(problem, before);
    }
}

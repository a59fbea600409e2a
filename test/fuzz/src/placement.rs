//! Placement mode, which has nobody to be compared with: what has to hold of whatever it grants.
//!
//! Kubernetes is asked to go on from there: the same claims once more, in the state that placement has made.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_allocator::problem::{Answer, Problem};
use aliquot_allocator::{Limits, Mode, Programs};
use aliquot_api::quantity::Quantity;
use serde_json::{Value, json};

use crate::allocator::{Allocator, Said};
use crate::oracle::Oracle;
use crate::random::Random;
use crate::run::{RunError, Subject, Verdict};

/// Our limit for one problem.
const STEPS: u64 = 2_000_000;

/// Asks what holds of placements.
pub struct Placement {
    allocator: Allocator,
    programs: Programs,
}

impl Placement {
    /// With nothing known yet.
    pub fn new() -> Self {
        Self { allocator: Allocator::new(None), programs: Programs::default() }
    }

    fn solve(&self, mode: Mode, problem: &Value) -> Answer {
        let limits = Limits { steps: STEPS, is_over: &|| false };
        let outcome =
            Problem::parse(&problem.to_string()).and_then(|problem| problem.solve(mode, &self.programs, limits));
        match outcome {
            Ok(outcome) => Answer::new(String::new(), outcome),
            Err(error) => Answer::bad_input(String::new(), &error),
        }
    }

    /// What doesn't hold of the placement of a problem.
    pub fn violation(&self, seed: u64) -> Option<String> {
        let problem = problem(seed);
        let (parity, placed) = (self.solve(Mode::Parity, &problem), self.solve(Mode::Placement, &problem));
        if placed.outcome == "outOfSteps" {
            return None;
        }
        let cluster = Cluster::new(&problem);
        if parity.outcome == "allocated" && placed.outcome != "allocated" && !cluster.is_exception() {
            return Some(format!("{} where the scheduler allocates", placed.outcome));
        }
        let shuffled = self.solve(Mode::Placement, &shuffled(&problem, seed));
        if (&shuffled.outcome, &shuffled.results) != (&placed.outcome, &placed.results) {
            return Some("it depends on the order of lists".to_owned());
        }
        if placed.outcome != "allocated" {
            return None;
        }
        let results = json!(placed.results);
        if let Some(wrong) = cluster.wrong_with(&results) {
            return Some(wrong);
        }
        // With nothing else free, the scheduler has to take the same. Where it counts otherwise, it may not.
        let is_counted_otherwise =
            cluster.has_admin() || cluster.has_terms() || cluster.is_overdrawn() || cluster.is_exception();
        if parity.outcome == "allocated" && !is_counted_otherwise {
            let only = self.solve(Mode::Parity, &cluster.without_others(&results));
            // What isn't an error for us may be one for it.
            if !matches!(only.outcome.as_str(), "allocated" | "fatal") {
                return Some(format!("the scheduler says {} of the same devices", only.outcome));
            }
        }
        None
    }
}

impl Default for Placement {
    fn default() -> Self {
        Self::new()
    }
}

impl Subject for Placement {
    fn question(&self, seed: u64) -> String {
        let mut problem = problem(seed);
        let placed = self.solve(Mode::Placement, &problem);
        let placed_claims = placed.results.iter().enumerate().map(|(index, result)| {
            let mut claim = problem["claims"][index].clone();
            claim["metadata"]["name"] = format!("placed-{index}").into();
            claim["status"] = json!({ "allocation": result });
            claim
        });
        let placed_claims: Vec<Value> = placed_claims.collect();
        if let Some(existing) = problem["existing"].as_array_mut() {
            existing.extend(placed_claims);
        }
        problem.to_string()
    }

    fn judge(&self, question: &str, theirs: &str) -> Result<Verdict, RunError> {
        let verdict = self.allocator.judge(question, theirs)?;
        if matches!(verdict, Verdict::Different(_)) {
            return Ok(verdict);
        }
        let problem: Value =
            serde_json::from_str(question).map_err(|source| RunError::Answer { line: question.to_owned(), source })?;
        let seed = problem["id"].as_str().and_then(|id| id.parse().ok());
        let seed = seed.ok_or_else(|| RunError::Broken(format!("no seed in {question}")))?;
        Ok(self.violation(seed).map_or(verdict, Verdict::Different))
    }

    fn explain(&self, _: &mut Oracle, seed: u64, question: &str, theirs: &str) -> Result<String, RunError> {
        let problem = problem(seed);
        let placed = self.solve(Mode::Placement, &problem);
        let parity = Said::of(&json!(self.solve(Mode::Parity, &problem)));
        Ok(format!(
            "{problem}\nplaced: {}\nparity: {} {}\nafter it: {question}\nKubernetes: {theirs}",
            json!(placed),
            parity.outcome,
            parity.results
        ))
    }
}

fn problem(seed: u64) -> Value {
    crate::allocator::problem(seed)
}

fn array<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    value[name].as_array().into_iter().flatten()
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn quantity(value: &Value) -> Option<Quantity> {
    value.as_str()?.parse().ok()
}

/// The same with its slices, and the devices of each, in another order.
fn shuffled(problem: &Value, seed: u64) -> Value {
    let mut random = Random(seed ^ 0xa5a5);
    let mut shuffle = |all: &mut Vec<Value>| {
        for last in (1..all.len()).rev() {
            all.swap(last, random.below(last + 1));
        }
    };
    let mut problem = problem.clone();
    if let Some(slices) = problem["slices"].as_array_mut() {
        shuffle(slices);
        for slice in slices {
            if let Some(devices) = slice["spec"]["devices"].as_array_mut() {
                shuffle(devices);
            }
        }
    }
    problem
}

/// Driver, pool and device.
type Id<'v> = (&'v str, &'v str, &'v str);

/// Driver, pool, counter set and counter.
type Counter<'v> = (&'v str, &'v str, &'v str, &'v str);

fn id(result: &Value) -> Id<'_> {
    (text(result, "driver"), text(result, "pool"), text(result, "device"))
}

/// A problem, read again by somebody else.
struct Cluster<'v> {
    problem: &'v Value,
    devices: BTreeMap<Id<'v>, &'v Value>,
    /// Pools whose slices are of several generations, don't agree how many they are, or have a device twice: of these nothing is
    /// known here.
    odd_pools: BTreeSet<(&'v str, &'v str)>,
    /// All that claims have, but for admin access.
    held: Vec<&'v Value>,
}

impl<'v> Cluster<'v> {
    fn new(problem: &'v Value) -> Self {
        let mut devices = BTreeMap::new();
        let mut odd_pools = BTreeSet::new();
        let mut pools: BTreeMap<(&str, &str), &Value> = BTreeMap::new();
        for slice in array(problem, "slices") {
            let spec = &slice["spec"];
            let pool = (text(spec, "driver"), text(&spec["pool"], "name"));
            if **pools.entry(pool).or_insert(&spec["pool"]) != spec["pool"] {
                odd_pools.insert(pool);
            }
            for device in array(spec, "devices") {
                if devices.insert((pool.0, pool.1, text(device, "name")), device).is_some() {
                    odd_pools.insert(pool);
                }
            }
        }
        let existing = array(problem, "existing").flat_map(|claim| {
            let devices = &claim["status"]["allocation"]["devices"];
            array(devices, "results")
        });
        let held = existing.filter(|result| result["adminAccess"] != true).collect();
        Self { problem, devices, odd_pools, held }
    }

    fn has(&self, feature: &str) -> bool {
        self.problem["features"][feature] == true
    }

    fn is_shareable(&self, id: &Id<'_>) -> bool {
        self.has("ConsumableCapacity")
            && self.devices.get(id).is_some_and(|device| device["allowMultipleAllocations"] == true)
    }

    /// One of the exceptions that the mode's documentation has, or a state that shouldn't be.
    fn is_exception(&self) -> bool {
        let is_flipped = |result: &&Value| !result["shareID"].is_null() && !self.is_shareable(&id(result));
        !self.odd_pools.is_empty() || self.held.iter().any(is_flipped) || self.is_incompatible()
    }

    /// Devices are held together that exclude each other: what goes with both depends on who is asked first.
    fn is_incompatible(&self) -> bool {
        let mut groups: BTreeMap<(&str, &str, &str), BTreeSet<&str>> = BTreeMap::new();
        for result in &self.held {
            let own = id(result);
            for consumption in self.devices.get(&own).into_iter().flat_map(|device| array(device, "consumesCounters")) {
                let all: BTreeSet<&str> = array(consumption, "compatibilityGroups").filter_map(Value::as_str).collect();
                let common =
                    groups.entry((own.0, own.1, text(consumption, "counterSet"))).or_insert_with(|| all.clone());
                let both: BTreeSet<&str> = common.intersection(&all).copied().collect();
                if *common != all && both.is_empty() {
                    return true;
                }
                *common = both;
            }
        }
        false
    }

    /// Some device is for nodes of several kinds.
    fn has_terms(&self) -> bool {
        let terms = |device: &Value| array(&device["nodeSelector"], "nodeSelectorTerms").count();
        self.devices.values().any(|device| terms(device) > 1)
    }

    fn has_admin(&self) -> bool {
        self.problem["claims"].to_string().contains("adminAccess\":true")
    }

    /// Only what is held and what was chosen.
    fn without_others(&self, results: &Value) -> Value {
        let chosen = results.as_array().into_iter().flatten().flat_map(|result| array(&result["devices"], "results"));
        let wanted: BTreeSet<Id<'_>> = chosen.map(id).chain(self.held.iter().map(|result| id(result))).collect();
        let mut problem = self.problem.clone();
        for slice in problem["slices"].as_array_mut().into_iter().flatten() {
            let spec = &mut slice["spec"];
            let pool = (text(spec, "driver").to_owned(), text(&spec["pool"], "name").to_owned());
            if let Some(devices) = spec["devices"].as_array_mut() {
                devices.retain(|device| wanted.contains(&(pool.0.as_str(), pool.1.as_str(), text(device, "name"))));
            }
        }
        problem
    }

    /// What is wrong with allocations, by the API's rules.
    fn wrong_with(&self, results: &'v Value) -> Option<String> {
        let per_claim: Vec<Vec<&'v Value>> = results
            .as_array()
            .into_iter()
            .flatten()
            .map(|result| array(&result["devices"], "results").collect())
            .collect();
        let new: Vec<&'v Value> = per_claim.iter().flatten().copied().collect();
        new.iter()
            .find(|result| !self.devices.contains_key(&id(result)))
            .map(|result| format!("{:?} isn't there", id(result)))
            .or_else(|| self.exclusive(&per_claim))
            .or_else(|| self.counters(&new))
            .or_else(|| self.capacity(&new))
            .or_else(|| per_claim.iter().enumerate().find_map(|(claim, results)| self.requests(claim, results)))
    }

    fn exclusive(&self, per_claim: &[Vec<&Value>]) -> Option<String> {
        let held: BTreeSet<Id<'_>> = self.held.iter().map(|result| id(result)).collect();
        let mut taken = BTreeSet::new();
        for results in per_claim {
            let mut requests = BTreeSet::new();
            if let Some(result) = results.iter().find(|result| !requests.insert((text(result, "request"), id(result))))
            {
                return Some(format!("a request has {:?} twice", id(result)));
            }
            let mut own = BTreeSet::new();
            for result in results.iter().filter(|result| !self.is_shareable(&id(result))) {
                let id = id(result);
                if !own.insert(id) {
                    return Some(format!("a claim has {id:?} twice"));
                }
                if result["adminAccess"] != true && (held.contains(&id) || !taken.insert(id)) {
                    return Some(format!("two have {id:?}"));
                }
            }
        }
        None
    }

    /// Some counter is below zero already, which blocks all of its pool for the scheduler.
    fn is_overdrawn(&self) -> bool {
        self.left_of_counters(&[]).1.values().any(|left| left.sign().is_lt())
    }

    fn counters(&self, new: &[&'v Value]) -> Option<String> {
        if self.has("PartitionableDevices") { self.left_of_counters(new).0 } else { None }
    }

    /// All counters less those of all devices that are held or new, each once; and the first new one for which there is too little.
    fn left_of_counters(&self, new: &[&'v Value]) -> (Option<String>, BTreeMap<Counter<'v>, Quantity>) {
        let mut left: BTreeMap<Counter<'v>, Quantity> = BTreeMap::new();
        for slice in array(self.problem, "slices") {
            let spec = &slice["spec"];
            for set in array(spec, "sharedCounters") {
                for (name, counter) in set["counters"].as_object().into_iter().flatten() {
                    let key = (text(spec, "driver"), text(&spec["pool"], "name"), text(set, "name"), name.as_str());
                    left.extend(quantity(&counter["value"]).map(|total| (key, total)));
                }
            }
        }
        let mut seen = BTreeSet::new();
        let mut too_little = None;
        let is_counted = |result: &&&Value| {
            let own = id(result);
            result["adminAccess"] != true && !self.odd_pools.contains(&(own.0, own.1))
        };
        let held = self.held.iter().map(|result| (*result, false));
        for (result, is_new) in held.chain(new.iter().filter(is_counted).map(|result| (*result, true))) {
            let own = id(result);
            if !seen.insert(own) {
                continue;
            }
            for consumption in self.devices.get(&own).into_iter().flat_map(|device| array(device, "consumesCounters")) {
                for (name, counter) in consumption["counters"].as_object().into_iter().flatten() {
                    let key = (own.0, own.1, text(consumption, "counterSet"), name.as_str());
                    let (Some(left), Some(amount)) = (left.get_mut(&key), quantity(&counter["value"])) else {
                        continue;
                    };
                    left.sub(&amount);
                    if is_new && left.sign().is_lt() && !amount.is_zero() {
                        too_little.get_or_insert_with(|| format!("too little of {name} for {own:?}"));
                    }
                }
            }
        }
        (too_little, left)
    }

    /// Sums of all shares.
    fn capacity(&self, new: &[&Value]) -> Option<String> {
        let mut sums: BTreeMap<(Id<'_>, &str), Quantity> = BTreeMap::new();
        let counted = new.iter().filter(|result| result["adminAccess"] != true);
        let held = self.held.iter().map(|result| (result, false));
        for (result, is_new) in held.chain(counted.map(|result| (result, true))) {
            let own = id(result);
            for (name, amount) in result["consumedCapacity"].as_object().into_iter().flatten() {
                let Some(amount) = quantity(amount) else { continue };
                let key = (own, name.as_str());
                if let Some(sum) = sums.get_mut(&key) {
                    sum.add(&amount);
                } else {
                    sums.insert(key, amount);
                }
                let total = self.devices.get(&own).and_then(|device| quantity(&device["capacity"][name]["value"]));
                if is_new && total.is_some_and(|total| sums[&key] > total) {
                    return Some(format!("too little {name} of {own:?}"));
                }
            }
        }
        None
    }

    /// How many devices there are for each request, their taints, and what the constraints say.
    fn requests(&self, claim: usize, results: &[&Value]) -> Option<String> {
        let spec = &self.problem["claims"][claim]["spec"]["devices"];
        for request in array(spec, "requests") {
            let name = text(request, "name");
            let own: Vec<&&Value> =
                results.iter().filter(|result| text(result, "request").split('/').next() == Some(name)).collect();
            let asked = match request["firstAvailable"].as_array() {
                None => &request["exactly"],
                Some(alternatives) => {
                    let chosen: BTreeSet<&str> = own.iter().map(|result| text(result, "request")).collect();
                    if chosen.len() != 1 {
                        return Some(format!("request {name} has {chosen:?}"));
                    }
                    let is_it = |own: &&Value| chosen.contains(format!("{name}/{}", text(own, "name")).as_str());
                    alternatives.iter().find(is_it)?
                }
            };
            if asked["allocationMode"] == "ExactCount" && asked["count"] != own.len() {
                return Some(format!("request {name} has {} devices", own.len()));
            }
            let tolerates = |taint: &Value| {
                array(asked, "tolerations").any(|toleration| {
                    let is = |field: &str| toleration[field].is_null() || toleration[field] == taint[field];
                    is("effect")
                        && is("key")
                        && (toleration["operator"] == "Exists" || toleration["value"] == taint["value"])
                })
            };
            let blocks = |taint: &&Value| taint["effect"] != "None";
            for result in own.iter().filter(|_| self.has("DeviceTaints")) {
                let device = self.devices.get(&id(result))?;
                if array(device, "taints").filter(blocks).any(|taint| !tolerates(taint)) {
                    return Some(format!("request {name} doesn't tolerate {:?}", id(result)));
                }
            }
        }
        // Attributes that requests define, and lists, are the allocator's own tests' business.
        if self.has("DerivedAttributes") || self.has("ListTypeAttributes") {
            return None;
        }
        for constraint in array(spec, "constraints") {
            let names: Vec<&str> = array(constraint, "requests").filter_map(Value::as_str).collect();
            let is_under = |result: &&&Value| {
                let full = text(result, "request");
                names.is_empty()
                    || names.contains(&full)
                    || full.split('/').next().is_some_and(|own| names.contains(&own))
            };
            let (attribute, is_match) = match constraint["matchAttribute"].as_str() {
                Some(attribute) => (attribute, true),
                None => (text(constraint, "distinctAttribute"), false),
            };
            let own: Vec<&&Value> = results.iter().filter(is_under).collect();
            let values: Vec<&Value> = own
                .iter()
                .filter_map(|result| {
                    let attributes = &self.devices.get(&id(result))?["attributes"];
                    let (domain, short) = attribute.split_once('/')?;
                    let is_own = domain == text(result, "driver");
                    attributes.get(attribute).or_else(|| attributes.get(short).filter(|_| is_own))
                })
                .collect();
            if values.len() != own.len() {
                return Some(format!("a device under the constraint for {attribute} lacks it"));
            }
            let different: BTreeSet<String> = values.iter().map(ToString::to_string).collect();
            if is_match && different.len() > 1 || !is_match && different.len() != values.len() {
                return Some(format!("the constraint for {attribute} doesn't hold: {different:?}"));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_wrong_with_placements() {
        let placement = Placement::new();
        for seed in 0..1_000 {
            assert_eq!(placement.violation(seed), None, "{}", problem(seed));
        }
    }

    /// The checks see what is wrong: of each kind one.
    #[test]
    fn what_is_wrong_is_seen() {
        let problem = json!({
            "features": { "ConsumableCapacity": true, "PartitionableDevices": true, "DeviceTaints": true },
            "slices": [
                { "spec": { "driver": "d", "pool": { "name": "p" }, "sharedCounters": [
                    { "name": "s", "counters": { "c": { "value": "1" } } },
                ] } },
                { "spec": { "driver": "d", "pool": { "name": "p" }, "devices": [
                    { "name": "held" },
                    { "name": "x", "attributes": { "n": { "int": 0 } },
                      "consumesCounters": [{ "counterSet": "s", "counters": { "c": { "value": "1" } } }] },
                    { "name": "y", "attributes": { "n": { "int": 1 } },
                      "consumesCounters": [{ "counterSet": "s", "counters": { "c": { "value": "1" } } }] },
                    { "name": "shared", "allowMultipleAllocations": true, "capacity": { "m": { "value": "2" } } },
                    { "name": "sick", "taints": [{ "key": "k", "effect": "NoSchedule" }] },
                    { "name": "z", "attributes": { "n": { "int": 1 } } },
                ] } },
            ],
            "existing": [{ "status": { "allocation": { "devices": { "results": [
                { "driver": "d", "pool": "p", "device": "held" },
                { "driver": "d", "pool": "p", "device": "shared", "shareID": "0", "consumedCapacity": { "m": "1" } },
            ] } } } }],
            "claims": [{ "spec": { "devices": {
                "requests": [{ "name": "r", "exactly": { "allocationMode": "ExactCount", "count": 2 } }],
                "constraints": [{ "matchAttribute": "d/n" }],
            } } }],
        });
        let wrong = |devices: [Value; 2]| {
            let results = devices.map(|mut result| {
                for (name, value) in [("request", "r"), ("driver", "d"), ("pool", "p")] {
                    result[name] = value.into();
                }
                result
            });
            let results = json!([{ "devices": { "results": results } }]);
            Cluster::new(&problem).wrong_with(&results).unwrap_or_default()
        };
        let device = |name: &str| json!({ "device": name });
        let share = |amount: &str| json!({ "device": "shared", "consumedCapacity": { "m": amount } });
        assert_eq!(wrong([device("y"), device("z")]), "");
        assert!(wrong([device("nope"), device("z")]).contains("isn't there"));
        assert!(wrong([device("held"), device("z")]).contains("two have"));
        assert!(wrong([device("z"), device("z")]).contains("twice"));
        assert!(wrong([device("x"), device("y")]).contains("too little of c"));
        assert!(wrong([share("500m"), share("500m")]).contains("twice"));
        assert!(wrong([share("2"), device("z")]).contains("too little m"));
        assert!(wrong([device("sick"), device("z")]).contains("tolerate"));
        assert!(wrong([device("x"), device("z")]).contains("doesn't hold"));
        assert!(wrong([share("1"), device("z")]).contains("lacks it"));
    }
}

//! What the scheduler does in the corners, and that what is hopeless is seen at once.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use aliquot_allocator::problem::{Answer, Problem};
use aliquot_allocator::{Limits, Mode, Outcome, Programs, Reason};
use serde_json::{Value, json};

mod placement;

/// Enough for all problems here, and far from enough for a walk through all combinations.
const FEW_STEPS: u64 = 20_000;

fn outcome_in(mode: Mode, problem: &Value) -> Outcome {
    let problem = Problem::parse(&problem.to_string()).unwrap();
    problem.solve(mode, &Programs::default(), Limits { steps: FEW_STEPS, is_over: &|| false }).unwrap()
}

fn outcome_of(problem: &Value) -> Outcome {
    outcome_in(Mode::Parity, problem)
}

/// The outcome, and the devices of each claim as `request=device`.
fn solve(problem: &Value) -> (String, Vec<String>) {
    solve_in(Mode::Parity, problem)
}

fn solve_in(mode: Mode, problem: &Value) -> (String, Vec<String>) {
    let answer = Answer::new(String::new(), outcome_in(mode, problem));
    let devices = answer.results.iter().map(|result| {
        let results = result.devices.iter().flat_map(|devices| devices.results.iter().flatten());
        results.map(|result| format!("{}={}", result.request, result.device)).collect::<Vec<_>>().join(" ")
    });
    (answer.outcome, devices.collect())
}

fn none() -> (String, Vec<String>) {
    ("none".into(), Vec::new())
}

fn allocated(devices: &[&str]) -> (String, Vec<String>) {
    ("allocated".into(), devices.iter().map(|devices| (*devices).to_owned()).collect())
}

fn fatal() -> (String, Vec<String>) {
    ("fatal".into(), Vec::new())
}

/// A problem of a cluster with the features of 1.37; one class for all devices.
fn problem(slices: Value, claims: Value) -> Value {
    json!({
        "features": {
            "AdminAccess": true, "ConsumableCapacity": true, "DeviceBindingAndStatus": true, "DeviceTaints": true,
            "FractionalCapacityRange": true, "PartitionableDevices": true, "PrioritizedList": true,
        },
        "node": { "metadata": { "name": "node" } },
        "classes": [{ "metadata": { "name": "any" }, "spec": {} }],
        "slices": slices,
        "claims": claims,
    })
}

fn slice(name: &str, count: i64, devices: Value) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "driver": "gpu.example.com", "nodeName": "node", "devices": devices,
            "pool": { "name": "node", "generation": 1, "resourceSliceCount": count },
        },
    })
}

fn counters(name: &str, count: i64, sets: Value) -> Value {
    let mut slice = slice(name, count, Value::Null);
    slice["spec"]["sharedCounters"] = sets;
    slice
}

fn with_driver(mut slice: Value, driver: &str) -> Value {
    slice["spec"]["driver"] = driver.into();
    slice
}

fn devices(count: usize) -> Value {
    (0..count).map(|index| json!({ "name": format!("d{index}") })).collect()
}

/// A device for nodes of two kinds.
fn two_terms() -> Value {
    let term = |operator: &str| json!({ "matchExpressions": [{ "key": "zone", "operator": operator }] });
    let mut slice = slice("s", 1, devices(1));
    slice["spec"].as_object_mut().unwrap().remove("nodeName");
    slice["spec"]["perDeviceNodeSelection"] = true.into();
    slice["spec"]["devices"][0]["nodeSelector"] =
        json!({ "nodeSelectorTerms": [term("DoesNotExist"), term("Exists")] });
    json!([slice])
}

fn claim(requests: Value) -> Value {
    json!({ "metadata": { "name": "claim", "namespace": "ns" }, "spec": { "devices": { "requests": requests } } })
}

fn exactly(name: &str, count: i64) -> Value {
    json!({ "name": name, "exactly": { "deviceClassName": "any", "allocationMode": "ExactCount", "count": count } })
}

fn all(name: &str) -> Value {
    json!({ "name": name, "exactly": { "deviceClassName": "any", "allocationMode": "All" } })
}

fn selecting(mut request: Value, expression: &str) -> Value {
    request["exactly"]["selectors"] = json!([{ "cel": { "expression": expression } }]);
    request
}

fn admin(mut request: Value) -> Value {
    request["exactly"]["adminAccess"] = true.into();
    request
}

fn in_use(device: &str) -> Value {
    let result = json!({ "request": "r", "driver": "gpu.example.com", "pool": "node", "device": device });
    json!({ "metadata": { "name": "other" }, "status": { "allocation": { "devices": { "results": [result] } } } })
}

/// GPUs with places for slices of memory, some of which overlap.
fn mig(gpus: usize) -> Value {
    let mut partitions = Vec::new();
    let mut sets = Vec::new();
    for gpu in 0..gpus {
        let memory: serde_json::Map<String, Value> =
            (0..8).map(|index| (format!("memory-slice-{index}"), json!({ "value": "1" }))).collect();
        sets.push(json!({ "name": format!("gpu-{gpu}"), "counters": memory }));
        for (profile, size, starts) in
            [("7g", 8, &[0][..]), ("4g", 4, &[0][..]), ("3g", 4, &[0, 4][..]), ("1g", 1, &[0, 1, 2, 3, 4, 5, 6][..])]
        {
            for start in starts {
                let taken: serde_json::Map<String, Value> = (*start..start + size)
                    .map(|index| (format!("memory-slice-{index}"), json!({ "value": "1" })))
                    .collect();
                partitions.push(json!({
                    "name": format!("gpu-{gpu}-{profile}-{start}"),
                    "attributes": { "profile": { "string": profile } },
                    "consumesCounters": [{ "counterSet": format!("gpu-{gpu}"), "counters": taken }],
                }));
            }
        }
    }
    json!([slice("devices", 2, partitions.into()), counters("counters", 2, sets.into())])
}

fn profile(name: &str, profile: &str, count: i64) -> Value {
    selecting(exactly(name, count), &format!("device.attributes[device.driver].profile == \"{profile}\""))
}

/// The first device in the order of the slices' names that fits.
#[test]
fn first_device_wins() {
    let slices =
        json!([slice("b", 2, json!([{ "name": "x" }])), slice("a", 2, json!([{ "name": "y" }, { "name": "z" }]))]);
    let mut problem = problem(slices, json!([claim(json!([exactly("r", 2)]))]));
    assert_eq!(solve(&problem), allocated(&["r=y r=z"]));
    problem["existing"] = json!([in_use("y")]);
    assert_eq!(solve(&problem), allocated(&["r=z r=x"]));
}

mod hopeless {
    use super::*;

    #[test]
    fn one_device_too_few() {
        for count in [2, 16, 24, 31] {
            let slices = json!([slice("s", 1, devices(count))]);
            let one_more = i64::try_from(count).unwrap() + 1;
            assert_eq!(solve(&problem(slices, json!([claim(json!([exactly("r", one_more)]))]))), none());
        }
    }

    #[test]
    fn one_request_too_many() {
        for count in [2, 16, 31] {
            let slices = json!([slice("s", 1, devices(count))]);
            let requests: Value = (0..=count).map(|index| exactly(&format!("r{index}"), 1)).collect();
            assert_eq!(solve(&problem(slices, json!([claim(requests)]))), none());
        }
    }

    /// Each request can have other devices, but together they lack one.
    #[test]
    fn no_matching() {
        let devices: Value = (0..14)
            .map(|index| json!({ "name": format!("d{index}"), "attributes": { "n": { "int": index } } }))
            .collect();
        let requests: Value = (0..15)
            .map(|index| {
                let expression = format!("device.attributes[device.driver].n != {index}");
                selecting(exactly(&format!("r{index}"), 1), &expression)
            })
            .collect();
        assert_eq!(solve(&problem(json!([slice("s", 1, devices)]), json!([claim(requests)]))), none());
    }

    /// A request for a device that isn't there, after one with many combinations.
    #[test]
    fn nothing_for_a_later_request() {
        let slices = json!([slice("s", 1, devices(24))]);
        let missing = selecting(exactly("missing", 1), "device.driver == \"other.example.com\"");
        assert_eq!(solve(&problem(slices.clone(), json!([claim(json!([exactly("r", 12), missing.clone()]))]))), none());
        let claims = json!([claim(json!([exactly("r", 12)])), claim(json!([missing]))]);
        assert_eq!(solve(&problem(slices, claims)), none());
    }

    #[test]
    fn constraints() {
        let devices: Value = (0..24)
            .map(|index| json!({ "name": format!("d{index}"), "attributes": { "x.example.com/numa": { "int": index % 4 } } }))
            .collect();
        for (kind, possible) in [("matchAttribute", 6), ("distinctAttribute", 4)] {
            let mut claim = claim(json!([exactly("r", possible)]));
            claim["spec"]["devices"]["constraints"] = json!([{ kind: "x.example.com/numa" }]);
            let mut problem = problem(json!([slice("s", 1, devices.clone())]), json!([claim]));
            assert_eq!(solve(&problem).0, "allocated");
            problem["claims"][0]["spec"]["devices"]["requests"] = json!([exactly("r", possible + 1)]);
            assert_eq!(solve(&problem), none(), "{kind}");
        }
    }

    /// The last alternatives are hopeless as well, and with the first one the claim would be too large.
    #[test]
    fn alternatives_of_a_large_claim() {
        let sub = |name: &str, count: i64| json!({ "name": name, "deviceClassName": "any", "allocationMode": "ExactCount", "count": count });
        let requests = json!([
            { "name": "a", "firstAvailable": [sub("x", 8), sub("y", 1)] },
            { "name": "b", "firstAvailable": [sub("x", 28), sub("y", 22)] },
        ]);
        let mut problem = problem(json!([slice("s", 1, devices(22))]), json!([claim(requests)]));
        assert_eq!(solve(&problem), none());
        problem["slices"] = json!([slice("s", 1, devices(23))]);
        let (outcome, devices) = solve(&problem);
        assert_eq!(outcome, "allocated");
        assert!(devices[0].starts_with("a/y=d0 b/y=d1 "), "{devices:?}");
    }

    #[test]
    fn partitions() {
        let solve = |requests: Value| solve(&problem(mig(8), json!([claim(requests)])));
        assert_eq!(solve(json!([profile("r", "3g", 16)])).0, "allocated");
        assert_eq!(solve(json!([profile("r", "3g", 17)])), none());
        assert_eq!(solve(json!([profile("a", "7g", 8), profile("b", "1g", 1)])), none());
        let single: Value = (0..9).map(|index| profile(&format!("r{index}"), "7g", 1)).collect();
        assert_eq!(solve(single), none());
        assert_eq!(solve(json!([profile("a", "7g", 7), profile("b", "3g", 3)])), none());
        assert_eq!(solve(json!([profile("a", "4g", 8), profile("b", "3g", 8), profile("c", "1g", 1)])), none());
    }

    /// Any twenty partitions: large ones first, until only small ones leave enough.
    #[test]
    fn any_partitions() {
        let (outcome, devices) = solve(&problem(mig(8), json!([claim(json!([exactly("r", 20)]))])));
        assert_eq!(outcome, "allocated");
        let of = |profile: &str| devices[0].matches(profile).count();
        assert_eq!(devices[0].split(' ').count(), 20);
        assert_eq!((of("-7g-"), of("-1g-") + of("-3g-") + of("-4g-")), (6, 14));
    }

    /// An error that upstream meets before it knows that there is no solution is still the answer.
    #[test]
    fn errors_stay() {
        let mut all = devices(20);
        all[19]["attributes"] = json!({ "other": { "int": 1 } });
        for device in all.as_array_mut().unwrap().iter_mut().take(19) {
            device["attributes"] = json!({ "n": { "int": 1 } });
        }
        let request = selecting(exactly("r", 21), "device.attributes[device.driver].n == 1");
        let mut problem = problem(json!([slice("s", 1, all)]), json!([claim(json!([request.clone()]))]));
        assert_eq!(solve(&problem), fatal());
        // Nobody looks at a device that is in use.
        problem["existing"] = json!([in_use("d19")]);
        assert_eq!(solve(&problem), none());
        // Nor at one for a request that is never reached.
        problem["existing"] = json!([]);
        problem["claims"] = json!([claim(json!([exactly("first", 21)])), claim(json!([request]))]);
        assert_eq!(solve(&problem), none());
    }
}

mod quirks {
    use super::*;

    /// Partitions of one counter set; the other set has too much taken already.
    fn partitions(taken: &str) -> Value {
        let uses =
            |set: &str, value: &str| json!([{ "counterSet": set, "counters": { "memory": { "value": value } } }]);
        json!([
            counters(
                "c",
                2,
                json!([
                    { "name": "a", "counters": { "memory": { "value": "4Gi" } } },
                    { "name": "b", "counters": { "memory": { "value": "4Gi" } } },
                ])
            ),
            slice(
                "d",
                2,
                json!([
                    { "name": "a0", "consumesCounters": uses("a", taken) },
                    { "name": "b0", "consumesCounters": uses("b", "1Gi") },
                    { "name": "plain" },
                ])
            ),
        ])
    }

    /// E2: what looks only takes counters, too.
    #[test]
    fn admin_access_takes_counters() {
        let request = admin(selecting(exactly("r", 1), "device.driver == \"gpu.example.com\""));
        let mut problem = problem(partitions("4Gi"), json!([claim(json!([request]))]));
        assert_eq!(solve(&problem), allocated(&["r=a0"]));
        problem["existing"] = json!([in_use("a0")]);
        assert_eq!(solve(&problem), allocated(&["r=b0"]));
    }

    /// E3: a counter below zero blocks the whole pool.
    #[test]
    fn overdrawn_counters_block_the_pool() {
        let mut problem = problem(partitions("5Gi"), json!([claim(json!([exactly("r", 1)]))]));
        problem["existing"] = json!([in_use("a0")]);
        assert_eq!(solve(&problem), allocated(&["r=plain"]));
        let Outcome::None(reasons) = ({
            problem["claims"] = json!([claim(json!([exactly("r", 2)]))]);
            outcome_of(&problem)
        }) else {
            panic!("two devices")
        };
        let expected = BTreeMap::from([(Reason::InUse, 1), (Reason::Counters, 1)]);
        assert_eq!((reasons.shortages[0].usable, &reasons.shortages[0].reasons), (1, &expected));
    }

    /// E4: admin access keeps a device from those that come later in the same pod.
    #[test]
    fn admin_access_first_blocks_the_device() {
        let slices = json!([slice("s", 1, devices(1))]);
        let (looks, uses) = (claim(json!([admin(exactly("r", 1))])), claim(json!([exactly("r", 1)])));
        assert_eq!(solve(&problem(slices.clone(), json!([looks, uses]))), none());
        assert_eq!(solve(&problem(slices, json!([uses, looks]))), allocated(&["r=d0", "r=d0"]));
    }

    /// E5: a device for nodes of two kinds ends it for all.
    #[test]
    fn two_terms_of_a_device_are_fatal() {
        assert_eq!(solve(&problem(two_terms(), json!([claim(json!([exactly("r", 1)]))]))), fatal());
    }

    fn shared(policy: Value) -> Value {
        let capacity = json!({ "memory": { "value": "10Gi", "requestPolicy": policy } });
        json!([slice("s", 1, json!([{ "name": "d0", "allowMultipleAllocations": true, "capacity": capacity }]))])
    }

    fn asking(name: &str, capacity: &str, amount: &str) -> Value {
        let mut request = exactly(name, 1);
        request["exactly"]["capacity"] = json!({ "requests": { capacity: amount } });
        request
    }

    fn consumed(policy: Value, amount: Option<&str>) -> Result<String, String> {
        let request = amount.map_or_else(|| exactly("r", 1), |amount| asking("r", "memory", amount));
        match outcome_of(&problem(shared(policy), json!([claim(json!([request]))]))) {
            Outcome::Allocated(results, _) => {
                let result = &results[0].devices.as_ref().unwrap().results.as_ref().unwrap()[0];
                assert!(result.share_id.is_some());
                Ok(result.consumed_capacity.as_ref().unwrap()["memory"].0.clone())
            }
            other => Err(Answer::new(String::new(), other).outcome),
        }
    }

    #[test]
    fn capacity_is_rounded_as_the_policy_says() {
        let steps = json!({ "default": "1Gi", "validRange": { "min": "1Gi", "step": "2Gi", "max": "5Gi" } });
        let values = json!({ "default": "1Gi", "validValues": ["1Gi", "2Gi", "8Gi"] });
        let fine = json!({ "default": "250m", "validRange": { "min": "0", "step": "250m" } });
        let whole = json!({ "default": "1", "validRange": { "min": "0", "step": "1" } });
        let ok = |amount: &str| Ok(amount.to_owned());
        let no = |outcome: &str| Err(outcome.to_owned());
        assert_eq!(consumed(Value::Null, None), ok("10Gi"));
        assert_eq!(consumed(Value::Null, Some("1500m")), ok("1500m"));
        assert_eq!(consumed(steps.clone(), None), ok("1Gi"));
        assert_eq!(consumed(steps.clone(), Some("512Mi")), ok("1Gi"));
        assert_eq!(consumed(steps.clone(), Some("4Gi")), ok("5Gi"));
        assert_eq!(consumed(steps, Some("5.5Gi")), no("none"));
        assert_eq!(consumed(values.clone(), Some("3Gi")), ok("8Gi"));
        assert_eq!(consumed(values, Some("9Gi")), no("none"));
        assert_eq!(consumed(fine, Some("300m")), ok("500m"));
        assert_eq!(consumed(whole, Some("1500m")), ok("2"));
        assert_eq!(consumed(Value::Null, Some("-1")), no("fatal"));
        let wide = json!({ "default": "1E", "validRange": { "min": "0", "step": "1E" } });
        assert_eq!(consumed(wide, Some("20E")), no("fatal"));
    }

    /// E6: a name with the driver's domain is another name.
    #[test]
    fn capacity_names_are_literal() {
        let requests = json!([asking("r", "gpu.example.com/memory", "1Gi")]);
        assert_eq!(solve(&problem(shared(Value::Null), json!([claim(requests)]))), none());
    }

    /// E7: several requests share a device as long as there is enough, one request doesn't have it twice.
    #[test]
    fn shares() {
        let requests = json!([asking("a", "memory", "6Gi"), asking("b", "memory", "4Gi")]);
        assert_eq!(solve(&problem(shared(Value::Null), json!([claim(requests)]))), allocated(&["a=d0 b=d0"]));
        let requests = json!([asking("a", "memory", "6Gi"), asking("b", "memory", "5Gi")]);
        assert_eq!(solve(&problem(shared(Value::Null), json!([claim(requests)]))), none());
        let mut twice = asking("a", "memory", "1Gi");
        twice["exactly"]["count"] = 2.into();
        assert_eq!(solve(&problem(shared(Value::Null), json!([claim(json!([twice]))]))), none());
    }

    /// E8: a share without capacity doesn't count once its device can't be shared any more.
    #[test]
    fn a_share_is_lost_when_its_device_becomes_exclusive() {
        let mut share = in_use("d0");
        share["status"]["allocation"]["devices"]["results"][0]["shareID"] = "0".into();
        let mut problem = problem(json!([slice("s", 1, devices(1))]), json!([claim(json!([exactly("r", 1)]))]));
        problem["existing"] = json!([share]);
        assert_eq!(solve(&problem), allocated(&["r=d0"]));
        problem["existing"] = json!([in_use("d0")]);
        assert_eq!(solve(&problem), none());
    }

    /// E9: the first slice says how many there are.
    #[test]
    fn slices_that_disagree_about_their_number() {
        let (one, two) = (slice("a", 1, json!([{ "name": "x" }])), slice("b", 2, json!([{ "name": "y" }])));
        let claims = json!([claim(json!([exactly("r", 1)]))]);
        assert_eq!(solve(&problem(json!([two.clone(), one.clone()]), claims.clone())), allocated(&["r=x"]));
        assert_eq!(solve(&problem(json!([one, two]), claims)), none());
    }

    /// E16 to E18: what a request for all devices can't bear.
    #[test]
    fn all_devices() {
        let claims = json!([claim(json!([all("r")]))]);
        let (outcome, found) = solve(&problem(json!([slice("s", 1, devices(32))]), claims.clone()));
        assert_eq!((outcome.as_str(), found[0].split(' ').count()), ("allocated", 32));
        assert_eq!(solve(&problem(json!([slice("s", 1, devices(33))]), claims.clone())), fatal());
        assert_eq!(solve(&problem(json!([slice("s", 1, devices(0))]), claims.clone())), none());

        let mut constrained = claims.clone();
        constrained[0]["spec"]["devices"]["constraints"] = json!([{ "matchAttribute": "x.example.com/numa" }]);
        assert_eq!(solve(&problem(json!([slice("s", 1, devices(2))]), constrained)), fatal());

        let slices = json!([slice("s", 1, devices(1)), with_driver(slice("t", 2, devices(1)), "other.example.com")]);
        assert_eq!(solve(&problem(slices.clone(), claims)), fatal());
        assert_eq!(solve(&problem(slices, json!([claim(json!([exactly("r", 1)]))]))), allocated(&["r=d0"]));
    }

    /// E19: a pool that contradicts itself is named only where nothing else was found.
    #[test]
    fn invalid_pools() {
        let twice = with_driver(slice("t", 1, json!([{ "name": "x" }, { "name": "x" }])), "other.example.com");
        let slices = json!([slice("s", 1, devices(1)), twice]);
        assert_eq!(solve(&problem(slices.clone(), json!([claim(json!([exactly("r", 1)]))]))), allocated(&["r=d0"]));
        let (outcome, _) = solve(&problem(slices, json!([claim(json!([exactly("r", 2)]))])));
        assert_eq!(outcome, "nodeError");
    }

    /// Slices with what isn't known are left out, and the rest of their pool with them.
    #[test]
    fn unknown_compatibility_groups_leave_the_pool_incomplete() {
        let uses = json!([{ "counterSet": "a", "counters": {}, "compatibilityGroups": ["g"] }]);
        let grouped = slice("s", 2, json!([{ "name": "x", "consumesCounters": uses }]));
        let slices = json!([grouped, slice("t", 2, devices(1))]);
        let Outcome::None(reasons) = outcome_of(&problem(slices, json!([claim(json!([exactly("r", 1)]))]))) else {
            panic!("a device of an incomplete pool")
        };
        assert_eq!(reasons.incomplete_pools, ["gpu.example.com/node"]);
    }
}

/// A line that is no problem is answered, too, and isn't the last one.
#[test]
fn solve_answers_every_line() {
    let good = problem(json!([slice("s", 1, devices(1))]), json!([claim(json!([exactly("r", 1)]))]));
    let mut unknown = good.clone();
    unknown["features"] = json!(["DRANothing"]);
    let mut stale = good.clone();
    stale["channel"] = "stable".into();
    let mut solve =
        Command::new(env!("CARGO_BIN_EXE_aliquot-solve")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = solve.stdin.take().unwrap();
    stdin.write_all(b"{\n\xff\n{\"id\":\"no problem\"}\n").unwrap();
    stdin.write_all(format!("{unknown}\n{stale}\n{good}\n").as_bytes()).unwrap();
    drop(stdin);
    let output = solve.wait_with_output().unwrap();
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<Answer> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers[2].id, "no problem");
    let outcomes: Vec<&str> = answers.iter().map(|answer| answer.outcome.as_str()).collect();
    assert_eq!(outcomes, ["badInput", "badInput", "badInput", "badInput", "badInput", "allocated"]);
}

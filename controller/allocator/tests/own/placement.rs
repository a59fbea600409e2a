//! Which of several solutions is taken, and where the API's rules are others than the scheduler's habits.

use aliquot_allocator::{Mode, Outcome, Score};
use serde_json::{Value, json};

use super::*;

fn place(problem: &Value) -> (String, Vec<String>) {
    solve_in(Mode::Placement, problem)
}

fn score(problem: &Value) -> Score {
    match outcome_in(Mode::Placement, problem) {
        Outcome::Allocated(_, Some(score)) => score,
        other => panic!("{other:?}"),
    }
}

fn with_existing(mut problem: Value, devices: &[&str]) -> Value {
    problem["existing"] = devices.iter().map(|device| in_use(device)).collect();
    problem
}

fn one_claim(slices: Value, requests: Value) -> Value {
    problem(slices, json!([claim(requests)]))
}

/// Eight GPUs, four at each processor, all linked; two behind each PCIe switch.
fn eight_gpus() -> Value {
    let gpus = (0..8).map(|index| {
        json!({
            "name": format!("gpu-{index}"),
            "attributes": {
                "nvlinkDomain": { "string": "GPU-0" },
                "resource.kubernetes.io/numaNode": { "int": index / 4 },
                "resource.kubernetes.io/pcieRoot": { "string": format!("pci0000:{}", index / 2) },
            },
        })
    });
    json!([slice("s", 1, gpus.collect())])
}

mod parts {
    use super::*;

    #[test]
    fn a_gpu_in_use_is_filled_first() {
        let problem = with_existing(one_claim(mig(2), json!([profile("r", "1g", 1)])), &["gpu-1-1g-6"]);
        assert_eq!(solve(&problem), allocated(&["r=gpu-0-1g-0"]));
        // Beside it, and so that half of the GPU stays whole.
        assert_eq!(place(&problem), allocated(&["r=gpu-1-1g-4"]));
    }

    /// What comes is 1g, 4g, 3g and 7g, one after the other: two GPUs do.
    #[test]
    fn what_comes_later_still_fits() {
        let served = |mode: Mode| {
            let mut held: Vec<String> = Vec::new();
            let mut served = Vec::new();
            for wanted in ["1g", "1g", "4g", "1g", "7g"] {
                let held_now: Vec<&str> = held.iter().map(String::as_str).collect();
                let problem = with_existing(one_claim(mig(2), json!([profile("r", wanted, 1)])), &held_now);
                let (outcome, devices) = solve_in(mode, &problem);
                if outcome == "allocated" {
                    held.push(devices[0].strip_prefix("r=").unwrap().to_owned());
                    served.push(wanted);
                }
            }
            served
        };
        assert_eq!(served(Mode::Parity), ["1g", "1g", "4g", "1g"]);
        assert_eq!(served(Mode::Placement), ["1g", "1g", "4g", "1g", "7g"]);
    }

    /// A smaller alternative costs less, but the author wants the larger one.
    #[test]
    fn the_first_alternative_counts_more_than_any_cost() {
        let sub = |name: &str| {
            let expression = format!("device.attributes[device.driver].profile == \"{name}\"");
            json!({
                "name": name, "deviceClassName": "any", "allocationMode": "ExactCount", "count": 1,
                "selectors": [{ "cel": { "expression": expression } }],
            })
        };
        let request = json!({ "name": "r", "firstAvailable": [sub("7g"), sub("1g")] });
        assert_eq!(place(&one_claim(mig(2), json!([request]))), allocated(&["r/7g=gpu-0-7g-0"]));
        let problem = with_existing(one_claim(mig(2), json!([request])), &["gpu-0-1g-0", "gpu-1-3g-4"]);
        assert_eq!(place(&problem).1[0].split('=').next(), Some("r/1g"));
    }

    #[test]
    fn several_at_once_fit_as_tightly_as_one_by_one() {
        let requests = json!([profile("small", "1g", 3), profile("large", "4g", 1)]);
        let (outcome, devices) = place(&one_claim(mig(4), requests));
        assert_eq!(outcome, "allocated");
        let gpus: std::collections::BTreeSet<&str> =
            devices[0].split(' ').map(|device| device.split(['=', '-']).nth(2).unwrap()).collect();
        assert_eq!(gpus.len(), 1, "{devices:?}");
    }

    #[test]
    fn what_is_hopeless_is_seen_at_once() {
        assert_eq!(place(&one_claim(mig(8), json!([profile("r", "3g", 16)]))).0, "allocated");
        assert_eq!(place(&one_claim(mig(8), json!([profile("r", "3g", 17)]))), none());
        let requests: Value = (0..9).map(|index| profile(&format!("r{index}"), "7g", 1)).collect();
        assert_eq!(place(&one_claim(mig(8), requests)), none());
    }
}

mod whole {
    use super::*;

    #[test]
    fn several_are_close_to_each_other() {
        let problem =
            |count: i64, held: &[&str]| with_existing(one_claim(eight_gpus(), json!([exactly("r", count)])), held);
        assert_eq!(solve(&problem(4, &["gpu-0"])), allocated(&["r=gpu-1 r=gpu-2 r=gpu-3 r=gpu-4"]));
        assert_eq!(place(&problem(4, &["gpu-0"])), allocated(&["r=gpu-4 r=gpu-5 r=gpu-6 r=gpu-7"]));
        assert_eq!(place(&problem(2, &["gpu-0"])), allocated(&["r=gpu-2 r=gpu-3"]));
        assert_eq!(place(&problem(2, &["gpu-1", "gpu-3", "gpu-4"])), allocated(&["r=gpu-6 r=gpu-7"]));
    }

    #[test]
    fn one_breaks_no_group_that_is_whole() {
        let problem = |held: &[&str]| with_existing(one_claim(eight_gpus(), json!([exactly("r", 1)])), held);
        assert_eq!(solve(&problem(&["gpu-6"])), allocated(&["r=gpu-0"]));
        assert_eq!(place(&problem(&["gpu-6"])), allocated(&["r=gpu-7"]));
        assert_eq!(place(&problem(&["gpu-6", "gpu-7"])), allocated(&["r=gpu-4"]));
    }

    /// A GPU of another domain, however free that is, is farther than any of the same.
    #[test]
    fn an_nvlink_domain_isn_t_left_for_a_free_one() {
        let mut slices = eight_gpus();
        for gpu in slices[0]["spec"]["devices"].as_array_mut().unwrap().iter_mut().skip(5) {
            gpu["attributes"]["nvlinkDomain"]["string"] = "GPU-5".into();
        }
        let problem = with_existing(one_claim(slices, json!([exactly("r", 3)])), &["gpu-0", "gpu-6"]);
        assert_eq!(place(&problem), allocated(&["r=gpu-1 r=gpu-2 r=gpu-3"]));
    }

    #[test]
    fn a_gpu_is_where_the_claim_s_other_device_is() {
        let nic = json!({ "name": "nic-0", "attributes": {
            "resource.kubernetes.io/numaNode": { "int": 1 }, "resource.kubernetes.io/pcieRoot": { "string": "pci0000:3" },
        } });
        let mut slices = eight_gpus();
        let nics = with_driver(slice("n", 1, json!([nic])), "nic.example.com");
        slices.as_array_mut().unwrap().push(nics);
        let of = |name: &str, driver: &str| selecting(exactly(name, 1), &format!("device.driver == \"{driver}\""));
        let requests = json!([of("gpu", "gpu.example.com"), of("nic", "nic.example.com")]);
        let problem = one_claim(slices, requests);
        assert_eq!(solve(&problem), allocated(&["gpu=gpu-0 nic=nic-0"]));
        assert_eq!(place(&problem), allocated(&["gpu=gpu-6 nic=nic-0"]));
    }

    #[test]
    fn who_asks_for_any_gets_the_smallest() {
        let gpu = |name: &str, memory: &str| json!({ "name": name, "capacity": { "memory": { "value": memory } } });
        let slices = json!([slice("s", 1, json!([gpu("h100", "80Gi"), gpu("t4", "16Gi"), gpu("l4", "24Gi")]))]);
        assert_eq!(place(&one_claim(slices, json!([exactly("r", 1)]))), allocated(&["r=t4"]));
    }

    #[test]
    fn a_tolerated_taint_is_avoided_all_the_same() {
        let taint = json!({ "key": "aliquot.dev/unhealthy", "effect": "NoSchedule" });
        let slices = json!([slice("s", 1, json!([{ "name": "sick", "taints": [taint] }, { "name": "well" }]))]);
        let mut request = exactly("r", 1);
        request["exactly"]["tolerations"] = json!([{ "operator": "Exists" }]);
        let problem = one_claim(slices, json!([request]));
        assert_eq!(solve(&problem), allocated(&["r=sick"]));
        assert_eq!(place(&problem), allocated(&["r=well"]));
        assert_eq!(place(&with_existing(problem, &["well"])), allocated(&["r=sick"]));
    }
}

mod shares {
    use super::*;

    fn share_of(device: &str, amount: &str) -> Value {
        let mut share = in_use(device);
        let result = &mut share["status"]["allocation"]["devices"]["results"][0];
        result["shareID"] = "0".into();
        result["consumedCapacity"] = json!({ "memory": amount });
        share
    }

    /// The fullest in which there is room.
    #[test]
    fn shares_are_packed() {
        let gpu = |name: &str| {
            let capacity = json!({ "memory": { "value": "80Gi", "requestPolicy": { "default": "1Gi", "validRange": { "min": "1Gi", "step": "1Gi" } } } });
            json!({ "name": name, "allowMultipleAllocations": true, "capacity": capacity })
        };
        let slices = json!([slice("s", 1, json!([gpu("a"), gpu("b"), gpu("c")]))]);
        let asking = |amount: &str| {
            let mut request = exactly("r", 1);
            request["exactly"]["capacity"] = json!({ "requests": { "memory": amount } });
            let mut problem = one_claim(slices.clone(), json!([request]));
            problem["existing"] = json!([share_of("b", "40Gi"), share_of("c", "70Gi")]);
            problem
        };
        assert_eq!(solve(&asking("10Gi")), allocated(&["r=a"]));
        assert_eq!(place(&asking("10Gi")), allocated(&["r=c"]));
        assert_eq!(place(&asking("20Gi")), allocated(&["r=b"]));
        assert_eq!(place(&asking("60Gi")), allocated(&["r=a"]));
    }
}

/// Of each exception that is documented at the mode.
mod rules {
    use super::*;

    /// <https://github.com/kubernetes/kubernetes/issues/140797>
    #[test]
    fn a_device_with_shares_is_nobody_s_alone() {
        let mut share = in_use("d0");
        share["status"]["allocation"]["devices"]["results"][0]["shareID"] = "0".into();
        let mut problem = one_claim(json!([slice("s", 1, devices(1))]), json!([exactly("r", 1)]));
        problem["existing"] = json!([share]);
        assert_eq!(solve(&problem), allocated(&["r=d0"]));
        assert_eq!(place(&problem), none());
    }

    /// <https://github.com/kubernetes/kubernetes/issues/141117>
    #[test]
    fn slices_that_disagree_are_incomplete() {
        let (one, two) = (slice("a", 1, json!([{ "name": "x" }])), slice("b", 2, json!([{ "name": "y" }])));
        let problem = |slices: Value| one_claim(slices, json!([exactly("r", 1)]));
        assert_eq!(solve(&problem(json!([two.clone(), one.clone()]))), allocated(&["r=x"]));
        assert_eq!(place(&problem(json!([two.clone(), one.clone()]))), none());
        assert_eq!(place(&problem(json!([one, two]))), none());
    }

    /// <https://github.com/kubernetes/kubernetes/issues/140729>
    #[test]
    fn admin_access_takes_nothing() {
        let mut problem = problem(mig(1), json!([claim(json!([admin(profile("look", "7g", 1))]))]));
        problem = with_existing(problem, &["gpu-0-1g-0"]);
        assert_eq!(solve(&problem), none());
        assert_eq!(place(&problem), allocated(&["look=gpu-0-7g-0"]));

        let slices = json!([slice("s", 1, devices(1))]);
        let (looks, uses) = (claim(json!([admin(exactly("r", 1))])), claim(json!([exactly("r", 1)])));
        for claims in [json!([looks, uses]), json!([uses, looks])] {
            assert_eq!(place(&super::problem(slices.clone(), claims)), allocated(&["r=d0", "r=d0"]));
        }
        let both = json!([admin(exactly("a", 1)), exactly("b", 1)]);
        assert_eq!(place(&one_claim(slices, both)), none(), "one claim has a device once");
    }

    /// Nor of a device that is shared: who comes after it has to pay.
    #[test]
    fn admin_access_takes_no_share() {
        let mut slices = mig(1);
        for device in slices[0]["spec"]["devices"].as_array_mut().unwrap() {
            device["allowMultipleAllocations"] = true.into();
            device["capacity"] = json!({ "memory": { "value": "1" } });
        }
        let requests = json!([admin(profile("look", "7g", 1)), profile("a", "7g", 1), profile("b", "1g", 1)]);
        assert_eq!(place(&one_claim(slices.clone(), requests)), none(), "7g leaves nothing for 1g");
        let requests = json!([admin(profile("look", "7g", 1)), profile("a", "7g", 1)]);
        let (outcome, devices) = place(&one_claim(slices, requests));
        assert_eq!((outcome.as_str(), devices), ("allocated", vec!["look=gpu-0-7g-0 a=gpu-0-7g-0".to_owned()]));
    }

    #[test]
    fn a_counter_below_zero_blocks_only_who_takes_of_it() {
        let mut slices = mig(2);
        slices[1]["spec"]["sharedCounters"][0]["counters"]["memory-slice-0"]["value"] = "0".into();
        let problem = with_existing(one_claim(slices, json!([profile("r", "7g", 1)])), &["gpu-0-1g-0"]);
        assert_eq!(solve(&problem), none());
        assert_eq!(place(&problem), allocated(&["r=gpu-1-7g-0"]));
    }

    #[test]
    fn an_expression_without_a_value_selects_nothing() {
        let slices =
            json!([slice("s", 1, json!([{ "name": "a" }, { "name": "b", "attributes": { "n": { "int": 1 } } }]))]);
        let has = |number: i64| selecting(exactly("r", 1), &format!("device.attributes[device.driver].n == {number}"));
        assert_eq!(solve(&one_claim(slices.clone(), json!([has(1)]))), fatal());
        assert_eq!(place(&one_claim(slices.clone(), json!([has(1)]))), allocated(&["r=b"]));
        // Who finds nothing is told.
        assert_eq!(place(&one_claim(slices, json!([has(2)]))), fatal());
    }

    /// <https://github.com/kubernetes/kubernetes/issues/141214>
    #[test]
    fn a_device_for_nodes_of_two_kinds_can_be_had() {
        let problem = one_claim(two_terms(), json!([exactly("r", 1)]));
        assert_eq!(solve(&problem), fatal());
        assert_eq!(place(&problem), allocated(&["r=d0"]));
        let Outcome::Allocated(results, _) = outcome_in(Mode::Placement, &problem) else { panic!("a device") };
        let selector = serde_json::to_value(&results[0].node_selector).unwrap();
        assert_eq!(selector["nodeSelectorTerms"][0]["matchFields"][0]["values"], json!(["node"]));
    }
}

/// Whatever order slices and devices are listed in.
#[test]
fn no_list_s_order_matters() {
    let requests = || json!([profile("a", "3g", 3), profile("b", "1g", 5)]);
    let mut problem = with_existing(one_claim(mig(4), requests()), &["gpu-2-1g-3", "gpu-3-4g-0"]);
    let expected = place(&problem);
    assert_eq!(expected.0, "allocated");
    for rotation in [1, 5, 17, 23] {
        problem["slices"].as_array_mut().unwrap().reverse();
        for slice in problem["slices"].as_array_mut().unwrap() {
            if let Some(devices) = slice["spec"]["devices"].as_array_mut() {
                devices.rotate_left(rotation);
            }
        }
        assert_eq!(place(&problem), expected);
    }
}

#[test]
fn it_can_be_told_why() {
    let problem = with_existing(one_claim(mig(2), json!([profile("r", "1g", 1)])), &["gpu-1-1g-6"]);
    let score = score(&problem);
    let [choice] = score.choices.as_slice() else { panic!("{score:?}") };
    assert_eq!(
        choice.to_string(),
        "claim ns/claim, request r: gpu.example.com/node/gpu-1-1g-4, one of 13: 0.12 GPUs in devices that others \
         can't have; next is gpu.example.com/node/gpu-1-1g-0: 1.12 GPUs in devices that others can't have"
    );
    assert_eq!(score.cost, choice.cost);
}

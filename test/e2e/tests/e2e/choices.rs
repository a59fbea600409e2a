//! Claims that leave a choice, or that are about more than one GPU at once.

use k8s_openapi::api::core::v1::{Namespace as KubeNamespace, Pod};
use k8s_openapi::api::resource::v1::DeviceAttribute;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::harness::{DRIVER, Namespace, attribute, pod, seen, template, test};
use crate::mistakes::with_config;

const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";
const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";

/// The template, and a constraint on all that it asks for.
fn matching(name: &str, count: u32, attribute: &str) -> String {
    let template = template(name, &format!("count: {count}"));
    format!("{template}      constraints:\n      - matchAttribute: {attribute}\n")
}

/// What all of this many devices of a pod say.
async fn in_common(ns: &Namespace, pod: &str, count: usize, attribute: &str) -> DeviceAttribute {
    let mut values = Vec::new();
    for result in ns.allocated(pod, "gpus").await {
        let attributes = ns.device(&result.pool, &result.device).await.attributes.unwrap();
        values.push(attributes[attribute].clone());
    }
    assert_eq!(values.len(), count);
    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
    values.remove(0)
}

/// A template with a request that has a list to choose from: more memory than any GPU has, or anything. The config is for this one and
/// not for the other one.
fn first_available(name: &str, config: &str) -> String {
    let huge = format!("device.capacity['{DRIVER}'].?memory.orValue(quantity('0')).compareTo(quantity('1Ti')) > 0");
    let (one, list) = (
        template(name, ""),
        format!(
            "        firstAvailable:
        - name: huge
          deviceClassName: {DRIVER}
          selectors:
          - cel: {{expression: {huge:?}}}
        - name: any
          deviceClassName: {DRIVER}
      - name: other
        exactly:"
        ),
    );
    with_config(&one.replacen("        exactly:", &list, 1), DRIVER, config)
}

#[test]
fn all_gpus_of_a_node_are_given_at_once() {
    test(async |ns| {
        ns.apply(&(template("all", "allocationMode: All") + &pod("big", Some("node-0"), &["main"], &["gpus=all"])));
        ns.running("big").await;
        assert_eq!(ns.allocated("big", "gpus").await.len(), 8);
        assert_eq!(seen(ns, "big", "main").len(), 8);

        // All, or none: one of the two is taken here.
        ns.apply(&(template("one", "") + &pod("small", Some("node-1"), &["main"], &["gpu=one"])));
        ns.running("small").await;
        ns.apply(&pod("waits", Some("node-1"), &["main"], &["gpus=all"]));
        ns.unschedulable("waits").await;
        ns.delete_pod("small").await;
        ns.running("waits").await;
        assert_eq!(seen(ns, "waits", "main").len(), 2);
    });
}

#[test]
fn gpus_of_a_claim_can_be_near_each_other() {
    test(async |ns| {
        // Four of eight are at each of the two processors.
        ns.apply(&(template("one", "") + &pod("small", Some("node-0"), &["main"], &["gpu=one"])));
        ns.running("small").await;
        ns.apply(&(matching("near", 4, NUMA_NODE) + &pod("near", Some("node-0"), &["main"], &["gpus=near"])));
        ns.running("near").await;
        assert!(in_common(ns, "near", 4, NUMA_NODE).await.int.is_some());
        assert_eq!(seen(ns, "near", "main").len(), 4);

        ns.apply(&(matching("nearer", 4, NUMA_NODE) + &pod("nearer", None, &["main"], &["gpus=nearer"])));
        ns.unschedulable("nearer").await;
        // No two GPUs that are whole are below the same root.
        ns.apply(&(matching("nearest", 2, PCIE_ROOT) + &pod("nearest", None, &["main"], &["gpus=nearest"])));
        ns.unschedulable("nearest").await;
        ns.apply(&(matching("alone", 1, PCIE_ROOT) + &pod("alone", None, &["main"], &["gpus=alone"])));
        ns.running("alone").await;
    });
}

#[test]
fn devices_of_a_claim_can_be_below_one_root() {
    test(async |ns| {
        // node-3 has two GPUs in parts, each of three and below a root of its own.
        let two_parts = |name: &str| {
            let template = matching(name, 2, PCIE_ROOT);
            let template = template.replace(&format!("deviceClassName: {DRIVER}"), "deviceClassName: mig.aliquot.dev");
            template + &pod(name, Some("node-3"), &["main"], &[&format!("gpus={name}")])
        };
        for name in ["first", "second"] {
            ns.apply(&two_parts(name));
            ns.running(name).await;
        }
        let mut roots = Vec::new();
        for name in ["first", "second"] {
            roots.extend(in_common(ns, name, 2, PCIE_ROOT).await.string);
            // The GPU and two parts of it.
            assert_eq!(seen(ns, name, "main").len(), 3);
        }
        roots.sort();
        assert_eq!(roots, ["pci0000:15", "pci0000:b7"]);

        // Two parts are left, one below each.
        ns.apply(&two_parts("third"));
        ns.unschedulable("third").await;
        ns.delete_pod("first").await;
        ns.running("third").await;
        in_common(ns, "third", 2, PCIE_ROOT).await;
    });
}

#[test]
fn gpus_of_a_claim_can_reach_each_other_over_nvlink() {
    test(async |ns| {
        let domain = format!("{DRIVER}/nvlinkDomain");
        ns.apply(&(matching("linked", 4, &domain) + &pod("linked", None, &["main"], &["gpus=linked"])));
        ns.running("linked").await;
        let found = in_common(ns, "linked", 4, "nvlinkDomain").await.string.unwrap();
        assert_eq!(found, attribute(&ns.device("node-0", "gpu-0").await, "uuid"));
        assert_eq!(seen(ns, "linked", "main").len(), 4);

        // node-1 has two GPUs, and no links between them.
        ns.apply(&(matching("apart", 2, &domain) + &pod("apart", Some("node-1"), &["main"], &["gpus=apart"])));
        ns.unschedulable("apart").await;
    });
}

#[test]
fn the_first_choice_that_can_be_met_is_taken() {
    test(async |ns| {
        let config = "{apiVersion: aliquot.dev/v1alpha1, kind: GpuConfig}";
        ns.apply(&(first_available("choice", config) + &pod("chooses", None, &["main"], &["gpu=choice"])));
        ns.running("chooses").await;
        let requests: Vec<String> = ns.allocated("chooses", "gpu").await.into_iter().map(|one| one.request).collect();
        assert_eq!(requests, ["gpu/any", "other"]);
        assert_eq!(seen(ns, "chooses", "main").len(), 2);

        // A config for the request is for whatever is chosen.
        let config = "{apiVersion: aliquot.dev/v1alpha1, kind: GpuConfg}";
        ns.apply(&(first_available("typo", config) + &pod("wrong", None, &["main"], &["gpu=typo"])));
        let says = "config of the claim for request gpu: kind \"GpuConfg\" is not known";
        ns.event("wrong", "FailedPrepareDynamicResources", says).await;
    });
}

async fn allow_admin_access(namespace: &Namespace, pod: &Pod) {
    let name = pod.metadata.namespace.as_deref().unwrap();
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    let namespaces = namespace.cluster_api::<KubeNamespace>();
    namespaces.patch(name, &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
}

#[test]
fn a_monitor_sees_all_gpus_and_takes_none() {
    test(async |ns| {
        ns.apply(&(template("one", "") + &pod("before", Some("node-0"), &["main"], &["gpu=one"])));
        let before = ns.running("before").await;
        let uuids = seen(ns, "before", "main");

        let watch = template("watch", "adminAccess: true\nallocationMode: All");
        let refused = ns.try_apply(&watch).unwrap_err();
        assert!(refused.contains("resource.kubernetes.io/admin-access: true"), "{refused}");
        allow_admin_access(ns, &before).await;
        ns.apply(&(watch + &pod("monitor", Some("node-0"), &["main"], &["gpus=watch"])));
        ns.running("monitor").await;
        let all = seen(ns, "monitor", "main");
        assert_eq!(all.len(), 8);
        assert!(all.contains(&uuids[0]), "{all:?} lacks {uuids:?}");

        // Beside it there is room for seven more, and when it goes it takes nothing along.
        ns.apply(&(template("seven", "count: 7") + &pod("after", Some("node-0"), &["main"], &["gpus=seven"])));
        ns.running("after").await;
        ns.delete_pod("monitor").await;
        assert_eq!(seen(ns, "before", "main"), uuids);
        assert_eq!([seen(ns, "after", "main"), uuids].concat().len(), 8);
        for pod in ["before", "monitor", "after"] {
            assert_eq!(ns.warnings(pod).await, Vec::<String>::new(), "{pod}");
        }
    });
}

//! Pods get the GPUs of their claims, all of them and no others.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use crate::harness::{COMMAND, Namespace, attribute, pod, seen, template, test};

/// The UUIDs that the API says a pod's claim was given.
async fn given(namespace: &Namespace, pod: &str, claim: &str) -> Vec<String> {
    let mut uuids = Vec::new();
    for result in namespace.allocated(pod, claim).await {
        uuids.push(attribute(&namespace.device(&result.pool, &result.device).await, "uuid"));
    }
    uuids.sort();
    uuids
}

#[test]
fn a_pod_sees_its_gpu_and_no_other() {
    test(async |ns| {
        ns.apply(&(template("one", "") + &pod("train", Some("node-0"), &["main"], &["gpu=one"])));
        ns.running("train").await;

        let uuids = given(ns, "train", "gpu").await;
        assert_eq!(uuids.len(), 1);
        assert_eq!(seen(ns, "train", "main"), uuids);

        let nodes = ns.exec("train", "ls /dev | grep -E '^nvidia' | sort | tr '\\n' ' '");
        let minor = ns.device("node-0", &ns.allocated("train", "gpu").await[0].device).await;
        let minor = minor.attributes.unwrap()["minor"].int.unwrap();
        let expected = format!("nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidia{minor} nvidiactl ");
        assert_eq!(nodes, expected);

        // A node that the container makes itself is of no use: the device cgroup refuses it.
        let other = (minor + 1) % 8;
        let refused =
            ns.exec("train", &format!("mknod /dev/nvidia{other} c 195 {other} && cat /dev/nvidia{other} 2>&1 || true"));
        assert!(refused.contains("not permitted"), "{refused}");
        assert_eq!(seen(ns, "train", "main"), uuids);

        // The loader's cache knows the driver's libraries, by the names that programs ask for.
        let libraries = ns.exec("train", "grep -c libcuda.so.1 /etc/ld.so.cache");
        assert_eq!(libraries.trim(), "1");
        assert_eq!(ns.warnings("train").await, Vec::<String>::new());
    });
}

#[test]
fn two_containers_of_a_pod_share_its_claim() {
    test(async |ns| {
        ns.apply(&(template("one", "") + &pod("pair", None, &["left", "right"], &["gpu=one"])));
        ns.running("pair").await;
        let uuids = given(ns, "pair", "gpu").await;
        assert_eq!(uuids.len(), 1);
        for container in ["left", "right"] {
            assert_eq!(seen(ns, "pair", container), uuids, "{container}");
        }
    });
}

#[test]
fn two_pods_share_a_claim() {
    test(async |ns| {
        let claim = template("unused", "").replace("ResourceClaimTemplate", "ResourceClaim");
        let claim = claim.replace("unused", "shared").replacen("spec:\n  spec:\n    ", "spec:\n  ", 1);
        ns.apply(
            &(claim + &pod("one", None, &["main"], &["gpu:shared"]) + &pod("two", None, &["main"], &["gpu:shared"])),
        );
        for pod in ["one", "two"] {
            ns.running(pod).await;
        }
        let uuids = given(ns, "one", "gpu").await;
        assert_eq!(seen(ns, "one", "main"), uuids);
        assert_eq!(seen(ns, "two", "main"), uuids);

        // The claim stays prepared until the last of them has gone.
        ns.delete_pod("one").await;
        assert_eq!(seen(ns, "two", "main"), uuids);
        ns.apply(&pod("three", None, &["main"], &["gpu:shared"]));
        ns.running("three").await;
        assert_eq!(seen(ns, "three", "main"), uuids);
    });
}

#[test]
fn two_claims_of_a_pod_are_two_gpus() {
    test(async |ns| {
        ns.apply(&(template("one", "") + &pod("both", Some("node-0"), &["main"], &["left=one", "right=one"])));
        ns.running("both").await;
        let (left, right) = (given(ns, "both", "left").await, given(ns, "both", "right").await);
        assert_ne!(left, right);
        let mut both = [left, right].concat();
        both.sort();
        assert_eq!(seen(ns, "both", "main"), both);
    });
}

#[test]
fn a_claim_for_three_gpus_is_three_gpus() {
    test(async |ns| {
        ns.apply(&(template("three", "count: 3") + &pod("wide", Some("node-0"), &["main"], &["gpus=three"])));
        ns.running("wide").await;
        let uuids = given(ns, "wide", "gpus").await;
        assert_eq!(uuids.len(), 3);
        assert_eq!(seen(ns, "wide", "main"), uuids);
    });
}

#[test]
fn a_ninth_pod_waits_for_one_of_eight_gpus() {
    test(async |ns| {
        let names: Vec<String> = (0..8).map(|n| format!("pod-{n}")).collect();
        let pods: String = names.iter().map(|name| pod(name, Some("node-0"), &["main"], &["gpu=one"])).collect();
        ns.apply(&(template("one", "") + &pods));
        let mut all = BTreeSet::new();
        for name in &names {
            ns.running(name).await;
            all.extend(seen(ns, name, "main"));
        }
        assert_eq!(all.len(), 8);

        ns.apply(&pod("ninth", Some("node-0"), &["main"], &["gpu=one"]));
        ns.unschedulable("ninth").await;
        let freed = seen(ns, "pod-3", "main");
        ns.delete_pod("pod-3").await;
        ns.running("ninth").await;
        assert_eq!(seen(ns, "ninth", "main"), freed);
    });
}

#[test]
fn a_pod_that_completes_hands_its_gpu_on() {
    test(async |ns| {
        // All GPUs of the node, so that the successor needs the very same ones.
        let short = pod("short", Some("node-0"), &["main"], &["gpus=all"]);
        let short = short
            .replace(
                "spec:
  termination",
                "spec:
  restartPolicy: Never
  termination",
            )
            .replace(COMMAND, "nvidia-smi -L");
        assert!(short.contains("nvidia-smi") && short.contains("Never"));
        ns.apply(&(template("all", "count: 8") + &short + &pod("next", Some("node-0"), &["main"], &["gpus=all"])));
        ns.pod("short", "succeeded", |pod: Option<&Pod>| {
            pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some("Succeeded")
        })
        .await;
        ns.running("next").await;
        assert_eq!(seen(ns, "next", "main").len(), 8);
        let failures: Vec<String> =
            ns.warnings("next").await.into_iter().filter(|warning| !warning.starts_with("FailedScheduling")).collect();
        assert_eq!(failures, Vec::<String>::new());
    });
}

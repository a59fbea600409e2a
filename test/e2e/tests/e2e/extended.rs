//! Pods that ask for a number of GPUs among a container's limits, as for a device plugin. The test cluster's class has the name
//! `nvidia.com/gpu`.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};

use crate::harness::{Namespace, attribute, pod, seen, test};

fn asking(name: &str, node: &str, containers: &[(&str, &str, u32)]) -> String {
    let names: Vec<&str> = containers.iter().map(|(name, _, _)| *name).collect();
    let mut pod = pod(name, Some(node), &names, &[]);
    for (_, resource, count) in containers {
        // Each container's comes after those that have theirs.
        pod = pod.replacen("{claims: []}", &format!("{{limits: {{{resource}: {count}}}}}"), 1);
    }
    pod
}

async fn allocated(namespace: &Namespace, pod: &str) -> Vec<DeviceRequestAllocationResult> {
    let status = namespace.api::<Pod>().get(pod).await.unwrap().status.unwrap();
    let claim = status.extended_resource_claim_status.expect("kube-scheduler made a claim").resource_claim_name;
    let claim = namespace.api::<ResourceClaim>().get(&claim).await.unwrap();
    claim.status.unwrap().allocation.unwrap().devices.unwrap().results.unwrap()
}

#[test]
fn a_pod_without_a_claim_gets_its_gpu() {
    test(async |ns| {
        for (name, resource) in
            [("named", "nvidia.com/gpu"), ("unnamed", "deviceclass.resource.kubernetes.io/gpu.aliquot.dev")]
        {
            ns.apply(&asking(name, "node-0", &[("main", resource, 1)]));
            ns.running(name).await;
            let devices = allocated(ns, name).await;
            assert_eq!(devices.len(), 1);
            let device = ns.device(&devices[0].pool, &devices[0].device).await;
            assert_eq!(seen(ns, name, "main"), [attribute(&device, "uuid")], "{name}");
            assert_eq!(ns.warnings(name).await, Vec::<String>::new());
        }
    });
}

#[test]
fn each_container_gets_its_own_gpus() {
    test(async |ns| {
        let containers = [("left", "nvidia.com/gpu", 1), ("right", "nvidia.com/gpu", 2)];
        ns.apply(&asking("both", "node-0", &containers));
        ns.running("both").await;
        let (left, right) = (seen(ns, "both", "left"), seen(ns, "both", "right"));
        assert_eq!((left.len(), right.len()), (1, 2));
        assert!(!right.contains(&left[0]), "{left:?} {right:?}");

        // They are gone from the rest, and come back.
        ns.apply(&asking("six", "node-0", &[("main", "nvidia.com/gpu", 6)]));
        ns.unschedulable("six").await;
        ns.delete_pod("both").await;
        ns.running("six").await;
        assert_eq!(seen(ns, "six", "main").len(), 6);
    });
}

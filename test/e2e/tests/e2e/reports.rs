//! What Aliquot says of claims: in their status, in events and in metrics.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use serde_json::{Value, json};

use crate::harness::{DRIVER, Namespace, attribute, eventually, mock, pod, seen, template, test};
use crate::mig::{self, mig};
use crate::mistakes::with_config;

/// The name of the claim that was made for a pod.
async fn claim_of(namespace: &Namespace, pod: &str) -> String {
    let status = namespace.api::<Pod>().get(pod).await.unwrap().status.unwrap();
    status.resource_claim_statuses.unwrap().remove(0).resource_claim_name.unwrap()
}

/// What the claim's status says of its only device. It comes soon after the pod runs.
async fn told(namespace: &Namespace, claim: &str) -> AllocatedDeviceStatus {
    eventually(&format!("claim {claim} tells of its device"), async || {
        let status = namespace.api::<ResourceClaim>().get(claim).await.unwrap().status?;
        let mut devices = status.devices?;
        assert_eq!(devices.len(), 1);
        devices.pop()
    })
    .await
}

/// The lines of a metric about a claim.
async fn allocations(namespace: &Namespace, node: &str, claim: &str) -> Vec<String> {
    let plugin = namespace.plugin_on(node).await.metadata;
    let (name, place) = (plugin.name.unwrap(), plugin.namespace.unwrap());
    let path = format!("/api/v1/namespaces/{place}/pods/{name}:8080/proxy/metrics");
    let text = namespace.kubectl(&["get", "--raw", &path]);
    assert!(text.contains("aliquot_build_info"), "{text}");
    let lines = text.lines().filter(|line| line.starts_with("aliquot_allocation_info{") && line.contains(claim));
    lines.map(str::to_owned).collect()
}

/// The number of the GPU instance that a MIG device is in.
fn gpu_instance(node: &str, uuid: &str) -> String {
    let state: Value = serde_json::from_str(&mock(node, "show", "--json")).unwrap();
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let instances = list(&state, "gpus").into_iter().flat_map(|gpu| list(&gpu, "gpuInstances"));
    let mut instances =
        instances.filter(|instance| list(instance, "computeInstances").iter().any(|part| part["uuid"] == uuid));
    instances.next().expect("the MIG device's GPU instance")["id"].to_string()
}

#[test]
fn a_claim_tells_which_gpu_its_pod_has() {
    test(async |ns| {
        ns.apply(&(template("one", "") + &pod("whole", Some("node-0"), &["main"], &["gpu=one"])));
        ns.apply(&(mig("part", "true") + &pod("part", Some(mig::NODE), &["main"], &["gpu=part"])));
        for pod in ["whole", "part"] {
            ns.running(pod).await;
            let claim = claim_of(ns, pod).await;
            let status = told(ns, &claim).await;
            let given = ns.allocated(pod, "gpu").await.remove(0);
            assert_eq!((&status.driver, &status.pool, &status.device), (&given.driver, &given.pool, &given.device));
            let condition = &status.conditions.as_ref().unwrap()[0];
            assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("Ready", "True"));
            let device = ns.device(&given.pool, &given.device).await;
            let address = attribute(&device, "resource.kubernetes.io/pciBusID");
            let data = json!({"uuid": attribute(&device, "uuid"), "pciBusID": address});
            assert_eq!(status.data.unwrap().0, data, "{pod}");
            assert!(seen(ns, pod, "main").contains(&attribute(&device, "uuid")));
        }
    });
}

#[test]
fn an_event_tells_why_a_claim_is_refused() {
    test(async |ns| {
        let config = "{apiVersion: aliquot.dev/v1alpha1, kind: GpuConfg}";
        ns.apply(&with_config(&template("typo", ""), DRIVER, config));
        ns.apply(&pod("wrong", None, &["main"], &["gpu=typo"]));
        let says = "kind \"GpuConfg\" is not known";
        ns.event("wrong", "FailedPrepareDynamicResources", says).await;
        let claim = claim_of(ns, "wrong").await;
        let note = ns.event(&claim, "InvalidConfig", says).await;
        assert!(note.contains(&format!("/{claim}")), "{note}");
        let list = ns.kubectl(&["get", "events", "--field-selector=reason=InvalidConfig"]);
        let about = format!("resourceclaim/{claim}");
        let lines: Vec<&str> = list.lines().filter(|line| line.contains(&about)).collect();
        assert!(lines.len() == 1 && lines[0].contains("Warning") && lines[0].contains(says), "{list}");
    });
}

#[test]
fn a_metric_tells_whose_a_gpu_is_in_dcgms_words() {
    test(async |ns| {
        ns.apply(&(template("one", "") + &pod("whole", Some("node-0"), &["main"], &["gpu=one"])));
        ns.apply(&(mig("part", "true") + &pod("part", Some(mig::NODE), &["main"], &["gpu=part"])));
        for (pod, node) in [("whole", "node-0"), ("part", mig::NODE)] {
            let namespace = ns.running(pod).await.metadata.namespace.unwrap();
            let claim = claim_of(ns, pod).await;
            let given = ns.allocated(pod, "gpu").await.remove(0);
            let device = ns.device(node, &given.device).await;
            // DCGM knows a MIG device by its GPU's UUID and its GPU instance.
            let (uuid, instance, form) = if pod == "whole" {
                (attribute(&device, "uuid"), String::new(), "whole")
            } else {
                (attribute(&device, "parentUUID"), gpu_instance(node, &attribute(&device, "uuid")), "mig")
            };
            let expected = format!(
                "aliquot_allocation_info{{node=\"{node}\",UUID=\"{uuid}\",GPU_I_ID=\"{instance}\",form=\"{form}\",\
                 namespace=\"{namespace}\",claim=\"{claim}\",request=\"gpu\",device=\"{}\",admin_access=\"false\"}} 1",
                given.device
            );
            assert_eq!(allocations(ns, node, &claim).await, [expected]);
            ns.delete_pod(pod).await;
            assert_eq!(allocations(ns, node, &claim).await, Vec::<String>::new());
        }
    });
}

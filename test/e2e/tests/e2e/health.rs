//! A GPU gets sick under a pod: the pod's status shows it, and nobody new gets the GPU.

use k8s_openapi::api::core::v1::{Pod, ResourceHealth};

use crate::harness::{Namespace, attribute, eventually, on_node, pod, seen, template, test};

/// It has two GPUs.
const NODE: &str = "node-1";

/// Makes something happen to a GPU of the node, or to its driver.
fn make(command: &str, args: &str) {
    on_node(NODE, &format!("/run/test-cluster/mock/mock-nvml {command} --root /run/nvidia/driver {args}"));
}

/// Waits until a pod's status shows this health of its claim's device, and why.
async fn shown(ns: &Namespace, name: &str, health: &str) -> String {
    eventually(&format!("{health} in the status of pod {name}"), async || {
        let container = ns.api::<Pod>().get(name).await.unwrap().status?.container_statuses?.pop()?;
        let claim = container.allocated_resources_status?.into_iter().find(|status| status.name == "claim:gpu")?;
        let [device]: [ResourceHealth; 1] = claim.resources?.try_into().expect("the claim has one device");
        (device.health.as_deref() == Some(health)).then(|| device.message.unwrap_or_default())
    })
    .await
}

/// Starts a pod with a GPU, and gives back the GPU's name and UUID.
async fn start(ns: &Namespace, name: &str) -> (String, String) {
    ns.apply(&pod(name, Some(NODE), &["main"], &["gpu=one"]));
    ns.running(name).await;
    let device = ns.allocated(name, "gpu").await.remove(0).device;
    let uuid = attribute(&ns.device(NODE, &device).await, "uuid");
    (device, uuid)
}

#[test]
fn a_critical_error_is_shown_and_keeps_others_away() {
    test(async |ns| {
        ns.apply(&template("one", ""));
        let (sick, uuid) = start(ns, "sick").await;
        shown(ns, "sick", "Healthy").await;

        make("xid", &format!("--gpu {uuid} 79"));
        assert_eq!(shown(ns, "sick", "Unhealthy").await, "XID 79: GPU has fallen off the bus");
        let taint = eventually("the GPU's taint", async || ns.device(NODE, &sick).await.taints?.pop()).await;
        let taint = (taint.key.as_str(), taint.value.as_deref(), taint.effect.as_str());
        assert_eq!(taint, ("aliquot.dev/unhealthy", Some("79"), "NoSchedule"));
        // Who has it keeps it; whether it is good for anything only its program knows.
        assert_eq!(seen(ns, "sick", "main"), [uuid]);

        ns.delete_pod("sick").await;
        let (other, _) = start(ns, "well").await;
        assert_ne!(other, sick);
        shown(ns, "well", "Healthy").await;
        ns.apply(&pod("waits", Some(NODE), &["main"], &["gpu=one"]));
        ns.unschedulable("waits").await;
        ns.delete_pod("waits").await;

        // As after a repair: a plugin that starts anew trusts the GPU again.
        let plugin = ns.plugin_on(NODE).await.metadata;
        ns.kubectl(&["delete", "pod", &plugin.name.unwrap(), "--namespace", &plugin.namespace.unwrap()]);
        ns.plugin_on(NODE).await;
        eventually("the GPU's taint goes", async || ns.device(NODE, &sick).await.taints.is_none().then_some(())).await;
        assert_eq!(start(ns, "next").await.0, sick);
        shown(ns, "next", "Healthy").await;
    });
}

#[test]
fn a_lost_gpu_is_shown_until_it_is_back() {
    test(async |ns| {
        ns.apply(&template("one", ""));
        let (lost, uuid) = start(ns, "loses").await;
        shown(ns, "loses", "Healthy").await;
        make("set", &format!("--gpu {uuid} --fault gpu-is-lost"));
        let message = shown(ns, "loses", "Unhealthy").await;
        assert!(message.starts_with("GPU 0000:"), "{message}");
        eventually("the GPU isn't published", async || {
            ns.devices(NODE).await.iter().all(|device| device.name != lost).then_some(())
        })
        .await;
        make("set", &format!("--gpu {uuid} --fault none"));
        shown(ns, "loses", "Healthy").await;
        ns.device(NODE, &lost).await;
    });
}

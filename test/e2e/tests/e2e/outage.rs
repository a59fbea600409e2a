//! The API server is away while claims are prepared.

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::harness::{Namespace, eventually, pod, restart, seen, template, test};

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// Waits until all pods run. kubelet tries again what failed after a minute, or when the pod changes.
async fn all_running(namespace: &Namespace, count: usize) {
    let pods = namespace.api::<Pod>();
    eventually("all pods run", async || {
        let waiting: Vec<Pod> =
            pods.list(&ListParams::default()).await.ok()?.items.into_iter().filter(|pod| !is_ready(pod)).collect();
        for pod in &waiting {
            let name = pod.metadata.name.as_deref().unwrap();
            let tick = json!({"metadata": {"annotations": {"tick": pod.metadata.resource_version}}});
            pods.patch(name, &PatchParams::default(), &Patch::Merge(tick)).await.ok()?;
        }
        waiting.is_empty().then_some(())
    })
    .await;
    assert_eq!(pods.list(&ListParams::default()).await.unwrap().items.len(), count);
}

#[test]
fn the_api_server_restarts_while_claims_are_prepared() {
    test(async |ns| {
        let names: Vec<String> = (0..8).map(|number| format!("pod-{number}")).collect();
        let pods: String = names.iter().map(|name| pod(name, Some("node-0"), &["main"], &["gpu=one"])).collect();
        ns.apply(&(template("one", "") + &pods));
        eventually("kubelet has heard of the first pod", async || {
            let pods = ns.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
            pods.iter().any(|pod| pod.status.as_ref().is_some_and(|status| status.start_time.is_some())).then_some(())
        })
        .await;
        restart("control", "kube-apiserver");
        all_running(ns, 8).await;
        let mut all: Vec<String> = names.iter().flat_map(|name| seen(ns, name, "main")).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 8);

        // What was prepared before is unprepared after.
        join_all(names.iter().map(|name| ns.delete_pod(name))).await;
        ns.device("node-0", "gpu-7").await;
    });
}

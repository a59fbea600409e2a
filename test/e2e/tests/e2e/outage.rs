//! The API server is away while claims are prepared. kubelet asks it, too, before it calls us, and tries again only after a minute: what
//! fails by that is no failure of ours.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::handover::failures;
use crate::harness::{Namespace, eventually, on_node, pod, restart, seen, template, test};
use crate::restarts::restarts;
use crate::waves::no_claim_files;

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// A pod that runs already and seven that start: comes back when kubelet has heard of the first of these.
async fn start_eight(namespace: &Namespace) -> Vec<String> {
    let names: Vec<String> = (0..8).map(|number| format!("pod-{number}")).collect();
    let mut pods = names.iter().map(|name| pod(name, Some("node-0"), &["main"], &["gpu=one"]));
    namespace.apply(&(template("one", "") + &pods.next().unwrap()));
    namespace.running("pod-0").await;
    namespace.apply(&pods.collect::<String>());
    eventually("kubelet has heard of the next pod", async || {
        let pods = namespace.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
        let started = pods.iter().filter(|pod| pod.status.as_ref().is_some_and(|status| status.start_time.is_some()));
        (started.count() > 1).then_some(())
    })
    .await;
    names
}

/// All pods get a GPU each, and when they go nothing is left.
async fn all_is_well(namespace: &Namespace, names: &[String]) {
    let pods = namespace.api::<Pod>();
    eventually("all pods run", async || {
        let waiting: Vec<Pod> =
            pods.list(&ListParams::default()).await.ok()?.items.into_iter().filter(|pod| !is_ready(pod)).collect();
        for pod in &waiting {
            // kubelet tries again what failed after a minute, or when the pod changes.
            let name = pod.metadata.name.as_deref().unwrap();
            let tick = json!({"metadata": {"annotations": {"tick": pod.metadata.resource_version}}});
            pods.patch(name, &PatchParams::default(), &Patch::Merge(tick)).await.ok()?;
        }
        waiting.is_empty().then_some(())
    })
    .await;
    let mut all = Vec::new();
    for name in names {
        assert_eq!(restarts(&pods.get(name).await.unwrap()), 0, "{name}");
        all.extend(seen(namespace, name, "main"));
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), names.len());

    join_all(names.iter().map(|name| namespace.delete_pod(name))).await;
    no_claim_files("node-0").await;
    namespace.device("node-0", "gpu-7").await;
}

#[test]
fn the_api_server_restarts_while_claims_are_prepared() {
    test(async |ns| {
        let names = start_eight(ns).await;
        restart("control", "kube-apiserver");
        all_is_well(ns, &names).await;
        let ours: Vec<String> =
            failures(ns).await.into_iter().filter(|failure| failure.contains("NodePrepareResources")).collect();
        assert_eq!(ours, Vec::<String>::new());
    });
}

/// Longer than we may wait for it: whoever has called us is told so.
#[test]
fn the_api_server_is_silent_for_a_minute() {
    test(async |ns| {
        let names = start_eight(ns).await;
        on_node("control", "kill -STOP $(pgrep -f '^[^ ]*/kube kube-apiserver ')");
        tokio::time::sleep(Duration::from_mins(1)).await;
        restart("control", "kube-apiserver");
        all_is_well(ns, &names).await;
    });
}

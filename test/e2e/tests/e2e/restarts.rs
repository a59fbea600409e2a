//! Programs end and come back while pods run.

use k8s_openapi::api::core::v1::{Node, Pod};

use crate::harness::{Namespace, eventually, on_node, pod, reboot, restart, seen, template, test};

/// How often containers of a pod were started again.
pub(crate) fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|status| status.restart_count).sum()
}

/// A pod that runs already has what it had, undisturbed, and a new one gets a GPU.
async fn still_works(ns: &Namespace, uuids: &[String], next: &str) {
    let before = ns.running("before").await;
    assert_eq!(restarts(&before), 0);
    assert_eq!(seen(ns, "before", "main"), uuids);
    ns.apply(&pod(next, Some("node-0"), &["main"], &["gpu=one"]));
    ns.running(next).await;
    let new = seen(ns, next, "main");
    assert_eq!(new.len(), 1);
    assert_ne!(new, uuids);
    assert_eq!(ns.warnings(next).await, Vec::<String>::new());
    ns.delete_pod(next).await;
}

#[test]
fn the_plugins_pod_is_replaced() {
    test(async |ns| {
        ns.apply(&(template("one", "") + &pod("before", Some("node-0"), &["main"], &["gpu=one"])));
        ns.running("before").await;
        let uuids = seen(ns, "before", "main");

        let old = ns.plugin_on("node-0").await;
        let (name, namespace) = (old.metadata.name.unwrap(), old.metadata.namespace.unwrap());
        ns.kubectl(&["delete", "pod", &name, "--namespace", &namespace]);
        let new = ns.plugin_on("node-0").await;
        assert_ne!(new.metadata.name.unwrap(), name);
        still_works(ns, &uuids, "after").await;

        // A claim that the old one prepared is unprepared by the new one.
        ns.delete_pod("before").await;
    });
}

#[test]
fn the_plugin_is_killed() {
    test(async |ns| {
        ns.apply(&(template("one", "") + &pod("before", Some("node-0"), &["main"], &["gpu=one"])));
        ns.running("before").await;
        let uuids = seen(ns, "before", "main");

        let old = ns.plugin_on("node-0").await;
        on_node("node-0", "kill -9 $(pidof aliquot-kubelet-plugin)");
        eventually("the plugin's container is started again", async || {
            let now = ns.plugin_on("node-0").await;
            (restarts(&now) > restarts(&old)).then_some(())
        })
        .await;
        still_works(ns, &uuids, "after").await;
        ns.delete_pod("before").await;

        // Nothing is left of the claims that are gone.
        let left = on_node(
            "node-0",
            "ls /var/lib/kubelet/plugins/gpu.aliquot.dev/claims /var/run/cdi | grep -v driver || true",
        );
        let left: Vec<&str> = left.lines().filter(|line| line.contains("json")).collect();
        assert_eq!(left, Vec::<&str>::new());
    });
}

#[test]
fn kubelet_is_restarted() {
    test(async |ns| {
        ns.apply(&(template("one", "") + &pod("before", Some("node-0"), &["main"], &["gpu=one"])));
        ns.running("before").await;
        let uuids = seen(ns, "before", "main");
        restart("node-0", "kubelet");
        ns.node_ready("node-0").await;
        // kubelet removes all slices of its node when it starts: the plugin brings them back.
        ns.device("node-0", "gpu-7").await;
        eventually("kubelet knows its pods again", async || {
            ns.kubectl(&["exec", "before", "--", "echo", "here"]).contains("here").then_some(())
        })
        .await;
        still_works(ns, &uuids, "after").await;
    });
}

/// Who owns a node's slices.
async fn owners(ns: &Namespace, node: &str) -> Vec<String> {
    let slices = ns.slices(node).await;
    let owners = slices.into_iter().flat_map(|slice| slice.metadata.owner_references.unwrap_or_default());
    owners.map(|owner| owner.uid).collect()
}

#[test]
fn a_node_is_made_again() {
    test(async |ns| {
        let uid = async || ns.cluster_api::<Node>().get("node-2").await.ok()?.metadata.uid;
        let before = uid().await.unwrap();
        assert_eq!(owners(ns, "node-2").await, [before.as_str()]);
        ns.kubectl(&["delete", "node", "node-2"]);
        // kubelet makes it when it starts.
        restart("node-2", "kubelet");
        ns.node_ready("node-2").await;
        let now = eventually("the node is another one", async || uid().await.filter(|uid| *uid != before)).await;
        eventually("its slices are its own", async || (owners(ns, "node-2").await == [now.as_str()]).then_some(()))
            .await;
    });
}

#[test]
fn a_node_is_rebooted() {
    test(async |ns| {
        ns.apply(&(template("one", "") + &pod("before", Some("node-1"), &["main"], &["gpu=one"])));
        ns.running("before").await;
        let uuids = seen(ns, "before", "main");
        let boot = || on_node("node-1", "cat /proc/sys/kernel/random/boot_id").trim().to_owned();
        let recorded = || on_node("node-1", "cat /var/lib/kubelet/plugins/gpu.aliquot.dev/claims/*.json");
        let before = boot();
        assert!(recorded().contains(&before), "{before} isn't in {}", recorded());

        reboot("node-1");
        assert_ne!(boot(), before);
        eventually("the pod's container is started again", async || {
            let now = ns.api::<Pod>().get("before").await.unwrap();
            // kubelet tried before the plugin was there, and would try again in a minute or when the pod changes.
            let tick = format!("tick={}", now.metadata.resource_version.as_deref().unwrap_or_default());
            ns.kubectl(&["annotate", "--overwrite", "pod", "before", &tick]);
            (restarts(&now) > 0).then_some(())
        })
        .await;
        ns.running("before").await;
        // It was prepared anew: what the old boot had is gone with /run.
        assert_eq!(seen(ns, "before", "main"), uuids);
        assert!(recorded().contains(&boot()), "{} isn't in {}", boot(), recorded());
        assert!(!recorded().contains(&before), "{before} is still in {}", recorded());
        ns.delete_pod("before").await;
    });
}

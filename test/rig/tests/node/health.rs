//! What kubelet hears of sick GPUs.

use aliquot_kubelet_api::health_v1::HealthStatus::{self, Healthy, Unhealthy, Unknown};
use aliquot_rig::{Healths, Machine, Node, eventually};
use k8s_openapi::api::resource::v1::Device;

use crate::{start, test, test_on};

const GPUS: [&str; 8] = ["gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-7"];

fn is(healths: &Healths, device: &str, health: HealthStatus) -> bool {
    healths.get(device).is_some_and(|(found, _)| *found == health)
}

fn are_all(healths: &Healths, health: HealthStatus) -> bool {
    healths.keys().eq(GPUS) && healths.values().all(|(found, _)| *found == health)
}

fn taints(device: &Device) -> Vec<(&str, Option<&str>)> {
    device.taints.iter().flatten().map(|taint| (taint.key.as_str(), taint.value.as_deref())).collect()
}

/// The GPUs that nobody new gets, and what is said of them.
async fn tainted(node: &Node) -> Vec<(String, String)> {
    let devices = node.devices().await;
    let tainted = devices.iter().flat_map(|device| {
        taints(device)
            .into_iter()
            .map(|(key, value)| (device.name.clone(), format!("{key}={}", value.unwrap_or_default())))
    });
    tainted.collect()
}

#[test]
fn a_lost_gpu_and_its_parts_are_unhealthy_until_they_are_back() {
    test_on(Machine { file: "mixed".to_owned(), ..Machine::default() }, async |node| {
        let (_plugin, dra) = start(node, "a").await;
        let mut reports = dra.watch_health(&node.machine.node).await;
        let all_well = |healths: &Healths| healths.len() == 8 && healths.values().all(|(health, _)| *health == Healthy);
        let well = reports.until("all devices are healthy", all_well).await;

        node.mock(&["set", "--gpu", "0", "--fault", "gpu-is-lost"]);
        let sick = reports.until("the GPU is missed", |healths| is(healths, "gpu-0-mig-3g40gb-4", Unhealthy)).await;
        assert!(sick.keys().eq(well.keys()), "{sick:?}");
        for (name, (health, message)) in &sick {
            let is_part = name.starts_with("gpu-0-");
            assert_eq!(*health, if is_part { Unhealthy } else { Healthy }, "{name}");
            assert_eq!(
                message.contains("0000:1b:00.0") && message.contains("fell off the bus"),
                is_part,
                "{name}: {message}"
            );
        }
        assert_eq!(dra.health_v1alpha1().await.devices.len(), sick.len());

        node.mock(&["set", "--gpu", "0", "--fault", "none"]);
        reports.until("all devices are healthy again", all_well).await;
    });
}

#[test]
fn a_critical_error_is_told_of_and_keeps_new_pods_away() {
    test(async |node| {
        let (plugin, dra) = start(node, "a").await;
        let mut reports = dra.watch_health(&node.machine.node).await;
        reports.until("all devices are healthy", |healths| are_all(healths, Healthy)).await;

        // A program's own fault, and a GPU's.
        node.mock(&["xid", "--gpu", "1", "31"]);
        node.mock(&["xid", "--gpu", "2", "79"]);
        node.mock(&["xid", "--gpu", "2", "48"]);
        let message = "XID 79: GPU has fallen off the bus; XID 48: double bit ECC error";
        let sick = reports.until("the GPU's errors are told", |healths| healths["gpu-2"].1 == message).await;
        assert!(is(&sick, "gpu-2", Unhealthy), "{sick:?}");
        assert!(GPUS.iter().filter(|gpu| **gpu != "gpu-2").all(|gpu| is(&sick, gpu, Healthy)), "{sick:?}");
        let taint =
            eventually("the GPU is tainted", async || Some(tainted(node).await).filter(|taints| !taints.is_empty()));
        assert_eq!(taint.await, [("gpu-2".to_owned(), "aliquot.dev/unhealthy=79".to_owned())]);
        for xid in ["31", "48", "79"] {
            let line = format!("xid=\"{xid}\"}} 1\n");
            let is_counted = async || plugin.get("/metrics")?.1.contains(&line).then_some(());
            eventually(&format!("XID {xid} is counted"), is_counted).await;
        }

        // What was before a plugin started isn't told to it.
        plugin.stop();
        let (_plugin, dra) = start(node, "b").await;
        let mut reports = dra.watch_health(&node.machine.node).await;
        reports.until("all devices are healthy again", |healths| are_all(healths, Healthy)).await;
        eventually("no GPU is tainted", async || tainted(node).await.is_empty().then_some(())).await;
    });
}

#[test]
fn a_claims_device_is_missed_by_a_plugin_that_never_saw_it() {
    test(async |node| {
        let (plugin, dra) = start(node, "a").await;
        let claim = node.allocate("claim", &["gpu-5"]).await;
        dra.prepare_one(&claim).await.unwrap();
        plugin.stop();
        node.mock(&["set", "--gpu", "5", "--fault", "gpu-is-lost"]);

        let (_plugin, dra) = start(node, "b").await;
        let mut reports = dra.watch_health(&node.machine.node).await;
        let sick = reports.until("the claim's GPU is missed", |healths| is(healths, "gpu-5", Unhealthy)).await;
        assert!(sick.keys().eq(GPUS), "{sick:?}");
        dra.unprepare_one(&claim).await.unwrap();
        node.mock(&["set", "--gpu", "5", "--fault", "none"]);
        reports.until("all devices are healthy", |healths| are_all(healths, Healthy)).await;
    });
}

#[test]
fn nothing_is_known_while_the_driver_is_away() {
    test(async |node| {
        let (_plugin, dra) = start(node, "a").await;
        let mut reports = dra.watch_health(&node.machine.node).await;
        reports.until("all devices are healthy", |healths| are_all(healths, Healthy)).await;
        node.remove_driver();
        reports.until("no device's health is known", |healths| are_all(healths, Unknown)).await;
    });
}

#[test]
fn a_watched_plugin_ends_when_told_to() {
    test(async |node| {
        let (mut plugin, dra) = start(node, "a").await;
        // kubelet's connection, and those of others.
        let mut reports = Vec::new();
        for _ in 0..3 {
            let mut report = dra.watch_health(&node.machine.node).await;
            report.next().await.unwrap();
            reports.push(report);
        }
        plugin.terminate();
        for mut report in reports {
            while report.next().await.is_some() {}
        }
        assert!(plugin.wait().success());
        assert!(!node.log().contains("calls are still running"), "a stream held up the end");
    });
}

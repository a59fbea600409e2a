//! GPUs that hang, a driver that goes and comes back, and an API server that doesn't keep what is said of it.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use aliquot_rig::{ControlPlane, Machine, Node, eventually};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::slices::{IDLE, versions};
use crate::{run, start, test, traces};

async fn names(node: &Node) -> BTreeSet<String> {
    node.devices().await.into_iter().map(|device| device.name).collect()
}

#[test]
fn a_gpu_that_hangs_holds_up_neither_a_start_nor_an_end() {
    test(async |node| {
        node.mock(&["fault", "--gpu", "2", "nvmlDeviceGetUUID", "--block"]);
        let (plugin, dra) = start(node, "a").await;
        node.published(7).await;
        assert!(!names(node).await.contains("gpu-2"));
        assert!((plugin.metric("aliquot_gpus_failed", "") - 1.0).abs() < f64::EPSILON);
        let claim = node.allocate("claim", &["gpu-3"]).await;
        dra.prepare_one(&claim).await.unwrap();
        plugin.stop();

        let (plugin, dra) = start(node, "b").await;
        dra.unprepare_one(&claim).await.unwrap();
        node.mock(&["fault", "--gpu", "2", "nvmlDeviceGetUUID", "--clear"]);
        node.published(8).await;
        let all: BTreeSet<String> = (0..8).map(|number| format!("gpu-{number}")).collect();
        assert_eq!(names(node).await, all);
        let is_well = async || (plugin.metric("aliquot_gpus_failed", "") < 0.5).then_some(());
        eventually("no GPU fails", is_well).await;
    });
}

/// NVML looks for GPUs when it is loaded, and isn't loaded anew while somebody is in it still.
#[test]
fn a_gpu_is_found_that_comes_while_the_library_is_let_go() {
    test(async |node| {
        let (plugin, _dra) = start(node, "a").await;
        node.published(8).await;
        let all = names(node).await;
        for hangs in [false, true] {
            node.lay_out_with("- {model: h100-sxm-80gb, minor: 2,", "#");
            node.published(7).await;
            assert!(!names(node).await.contains("gpu-2"));
            node.lay_out_with("", "");
            let how = if hangs { ["--block"].as_slice() } else { &["--slow", "400"] };
            node.mock(&[&["fault", "nvmlEventSetFree"], how].concat());
            if hangs {
                let is_told = async || plugin.output().contains("a thread hangs in the driver").then_some(());
                eventually("the plugin has noticed", is_told).await;
                node.mock(&["fault", "nvmlEventSetFree", "--clear"]);
            }
            node.published(8).await;
            assert_eq!(names(node).await, all);
        }
        plugin.stop();
    });
}

#[test]
fn who_comes_while_the_driver_is_exchanged_waits_for_the_new_one() {
    test(async |node| {
        let (plugin, dra) = start(node, "a").await;
        node.published(8).await;
        let (held, new) = (node.allocate("held", &["gpu-0"]).await, node.allocate("new", &["gpu-1"]).await);
        dra.prepare_one(&held).await.unwrap();
        let driver_spec = || fs::read_to_string(node.path("cdi/gpu.aliquot.dev-driver.json")).unwrap();
        assert!(driver_spec().contains(".so.580.95.05"));

        node.remove_driver();
        eventually("the devices are out of service", async || {
            node.devices().await.iter().all(|device| device.taints.is_some()).then_some(())
        })
        .await;
        let mut prepare = Box::pin(dra.prepare_one(&new));
        assert!(tokio::time::timeout(Duration::from_millis(500), &mut prepare).await.is_err());
        dra.unprepare_one(&held).await.unwrap();
        assert_eq!(traces(node, &held), Vec::<String>::new());

        node.lay_out_with("580.95.05", "590.44.01");
        prepare.await.unwrap();
        assert!(driver_spec().contains(".so.590.44.01") && !driver_spec().contains("580.95.05"), "{}", driver_spec());
        eventually("the devices are back", async || {
            node.devices().await.iter().all(|device| device.taints.is_none()).then_some(())
        })
        .await;
        plugin.stop();
    });
}

/// So many parts of GPUs that they need two slices: what changes both of them changes their generation, too, as often as one tries.
#[test]
fn taints_that_the_api_server_drops_are_written_once() {
    run(async {
        let control = ControlPlane::start_with(&["DRADeviceTaintRules=false", "DRADeviceTaints=false"]).await;
        let machine = Machine { file: "h100-16gpu".to_owned(), ..Machine::default() };
        let node = &Node::new(Arc::new(control), machine).await;
        for gpu in 0..16 {
            let gpu = gpu.to_string();
            node.mock(&["set", "--gpu", &gpu, "--mig", "on"]);
            for _ in 0..7 {
                node.mock(&["mig", "create", "--gpu", &gpu, "1g.10gb"]);
            }
        }
        let (plugin, _dra) = start(node, "a").await;
        let before = node.published(16 * 7).await;
        assert_eq!(before.len(), 2);
        let told = "the API server has dropped fields of a slice";
        assert!(!node.log().contains(told));

        node.remove_driver();
        eventually("the log says so", async || (node.log().matches(told).count() == 2).then_some(())).await;
        let slices = node.slices().await;
        assert!(node.devices().await.iter().all(|device| device.taints.is_none()));
        assert!(slices[0].spec.pool.generation > before[0].spec.pool.generation);
        // Others may write what isn't ours, and hear of it again.
        for slice in &slices {
            let note = Patch::Merge(json!({"metadata": {"annotations": {"from": "a test"}}}));
            let name = slice.metadata.name.as_ref().unwrap();
            node.api::<ResourceSlice>().patch(name, &PatchParams::default(), &note).await.unwrap();
        }
        let written = plugin.metric("aliquot_slice_writes_total", "");
        let versions_now = versions(&node.slices().await);
        tokio::time::sleep(IDLE).await;
        assert_eq!(versions(&node.slices().await), versions_now);
        assert!((plugin.metric("aliquot_slice_writes_total", "") - written).abs() < f64::EPSILON);
        assert_eq!(node.log().matches(told).count(), 2);
    });
}

//! What the API shows of a node, whatever others do to it.

use std::time::Duration;

use aliquot_rig::{Machine, Node, eventually};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::{start, test, test_on};

/// A plugin that writes for no reason does it in this time.
pub(crate) const IDLE: Duration = Duration::from_secs(5);

/// What all devices of a node say about NVLink: domain, clique, and whether there are switches.
async fn nvlink(node: &Node, devices: usize) -> (String, Option<String>, Option<bool>) {
    node.published(devices).await;
    let said = node.devices().await.into_iter().map(|device| {
        let mut attributes = device.attributes.unwrap();
        let mut text = |name: &str| attributes.remove(name)?.string;
        (
            text("nvlinkDomain").unwrap(),
            text("nvlinkClique"),
            attributes.remove("nvSwitch").and_then(|value| value.bool),
        )
    });
    let mut said: Vec<_> = said.collect();
    said.dedup();
    assert_eq!(said.len(), 1, "{said:?}");
    said.remove(0)
}

#[test]
fn gpus_at_switches_share_a_domain() {
    test(async |node| {
        let (plugin, _dra) = start(node, "a").await;
        let (domain, clique, has_switch) = nvlink(node, 8).await;
        let first = node.devices().await.remove(0);
        assert_eq!(first.attributes.unwrap()["uuid"].string, Some(domain.clone()));
        assert_eq!((clique, has_switch), (None, Some(true)));
        let labels = format!("nvlink_domain=\"{domain}\",clique=\"\"}}");
        assert!((plugin.metric("aliquot_gpu_info", &labels) - 8.0).abs() < f64::EPSILON);
    });
}

#[test]
fn a_tray_of_a_rack_says_which_fabric_it_is_in() {
    let tray = Machine { file: "gb200-tray".to_owned(), ..Machine::default() };
    test_on(tray, async |node| {
        let (plugin, _dra) = start(node, "a").await;
        let (domain, clique, has_switch) = nvlink(node, 4).await;
        assert_eq!(domain, "6d3b1f0a-52c8-4e67-9b0d-1f2e3d4c5b6a");
        assert_eq!((clique, has_switch), (Some(format!("{domain}.2")), Some(true)));
        let labels = format!("nvlink_domain=\"{domain}\",clique=\"{domain}.2\"}}");
        assert!((plugin.metric("aliquot_gpu_info", &labels) - 4.0).abs() < f64::EPSILON);
    });
}

#[test]
fn a_bridge_makes_a_domain_of_its_two_gpus() {
    let pair = Machine { file: "a30".to_owned(), ..Machine::default() };
    test_on(pair, async |node| {
        let (_plugin, _dra) = start(node, "a").await;
        let (_, clique, has_switch) = nvlink(node, 2).await;
        assert_eq!((clique, has_switch), (None, Some(false)));
    });
}

/// Names and versions: whoever writes a slice changes its version.
pub(crate) fn versions(slices: &[ResourceSlice]) -> Vec<(String, String)> {
    let version = |slice: &ResourceSlice| {
        let metadata = slice.metadata.clone();
        (metadata.name.unwrap(), metadata.resource_version.unwrap())
    };
    slices.iter().map(version).collect()
}

/// Waits until the slices show what these did, whoever wrote them.
async fn restored(node: &Node, wanted: &[ResourceSlice]) -> Vec<ResourceSlice> {
    eventually("the slices are as they were", async || {
        let slices = node.slices().await;
        let devices = |slices: &[ResourceSlice]| {
            slices.iter().flat_map(|slice| slice.spec.devices.clone().unwrap_or_default()).collect::<Vec<_>>()
        };
        let generations = |slices: &[ResourceSlice]| {
            slices.iter().map(|slice| slice.spec.pool.generation).collect::<std::collections::BTreeSet<_>>().len()
        };
        let counts =
            slices.iter().all(|slice| usize::try_from(slice.spec.pool.resource_slice_count) == Ok(slices.len()));
        (devices(&slices) == devices(wanted) && generations(&slices) == 1 && counts).then_some(slices)
    })
    .await
}

#[test]
fn slices_are_written_once() {
    test(async |node| {
        let (mut plugin, dra) = start(node, "a").await;
        let first = versions(&node.published(8).await);
        let claim = node.allocate("claim", &["gpu-0"]).await;
        dra.prepare_one(&claim).await.unwrap();
        tokio::time::sleep(IDLE).await;
        assert_eq!(versions(&node.slices().await), first);

        // Neither a crash nor an upgrade is a reason.
        plugin.kill();
        let (plugin, _) = start(node, "b").await;
        eventually("the plugin is ready", async || (plugin.get("/readyz")?.0 == 200).then_some(())).await;
        plugin.stop();
        let (plugin, _) = start(node, "c").await;
        eventually("the plugin is ready", async || (plugin.get("/readyz")?.0 == 200).then_some(())).await;
        tokio::time::sleep(IDLE).await;
        assert_eq!(versions(&node.slices().await), first);
    });
}

#[test]
fn slices_that_others_change_or_delete_come_back() {
    test(async |node| {
        let (_plugin, _dra) = start(node, "a").await;
        let wanted = node.published(8).await;
        let api = node.api::<ResourceSlice>();
        let mut slices = wanted.clone();
        for round in 0..3 {
            let name = slices[0].metadata.name.clone().unwrap();
            let edit = Patch::Merge(json!({"spec": {"devices": [{"name": "nothing"}]}}));
            api.patch(&name, &PatchParams::default(), &edit).await.unwrap();
            slices = restored(node, &wanted).await;
            assert!(slices[0].spec.pool.generation >= wanted[0].spec.pool.generation, "{round}");

            for slice in &slices {
                api.delete(slice.metadata.name.as_ref().unwrap(), &DeleteParams::default()).await.unwrap();
            }
            slices = restored(node, &wanted).await;
        }
    });
}

/// What somebody leaves under our driver's and our node's name would make the pool look incomplete.
#[test]
fn foreign_slices_of_our_pool_go() {
    test(async |node| {
        let (_plugin, _dra) = start(node, "a").await;
        let wanted = node.published(8).await;
        let mut foreign = wanted[0].clone();
        foreign.metadata = ObjectMeta { name: Some(format!("zz-{}", node.machine.node)), ..ObjectMeta::default() };
        foreign.spec.pool.generation += 7;
        node.api::<ResourceSlice>().create(&PostParams::default(), &foreign).await.unwrap();
        eventually("the foreign slice goes", async || (node.slices().await.len() == wanted.len()).then_some(())).await;
        let slices = restored(node, &wanted).await;
        assert_eq!(slices[0].metadata.name, wanted[0].metadata.name);
    });
}

/// A slice of somebody else's that has the name of one of ours stays theirs, and the plugin says what is in its way.
#[test]
fn a_name_that_is_taken_is_told() {
    test(async |node| {
        let name = format!("00000-gpu.aliquot.dev-{}", node.machine.node);
        let foreign: ResourceSlice = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "driver": "other.example.com",
                "allNodes": true,
                "pool": {"name": "other", "generation": 1, "resourceSliceCount": 1},
            },
        }))
        .unwrap();
        let api = node.api::<ResourceSlice>();
        api.create(&PostParams::default(), &foreign).await.unwrap();
        let (plugin, _dra) = start(node, "a").await;
        let said = format!("create slice {name}: ");
        eventually("the plugin says so", async || node.log().contains(&said).then_some(())).await;
        assert_eq!(plugin.get("/readyz").unwrap().0, 503);
        assert_eq!(api.get(&name).await.unwrap().spec.driver, "other.example.com");

        api.delete(&name, &DeleteParams::default()).await.unwrap();
        node.published(8).await;
    });
}

/// The garbage collector takes slices whose Node is gone, however soon another of its name is there.
#[test]
fn slices_belong_to_the_node_that_is_there_now() {
    test(async |node| {
        let (_plugin, _dra) = start(node, "a").await;
        let wanted = node.published(8).await;
        node.delete_node().await;
        let uid = node.create_node().await;
        for slice in &wanted {
            let name = slice.metadata.name.as_ref().unwrap();
            node.api::<ResourceSlice>().delete(name, &DeleteParams::default()).await.unwrap();
        }
        let slices = restored(node, &wanted).await;
        for slice in slices {
            assert_eq!(slice.metadata.owner_references.unwrap()[0].uid, uid);
        }
    });
}

//! What the API shows of a node, whatever others do to it.

use std::time::Duration;

use aliquot_rig::{Node, eventually};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::{start, test};

/// A plugin that writes for no reason does it in this time.
const IDLE: Duration = Duration::from_secs(5);

/// Names and versions: whoever writes a slice changes its version.
fn versions(slices: &[ResourceSlice]) -> Vec<(String, String)> {
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

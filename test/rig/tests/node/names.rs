//! The longest names that Kubernetes allows.

use aliquot_rig::{ControlPlane, Folder, Machine, Node};

use crate::{start, test_on, traces};

/// A name of this many bytes, in parts that DNS takes.
fn long(start: &str, length: usize) -> String {
    let mut name = start.to_owned();
    while name.len() < length {
        let is_end_of_part = name.len() % 50 == 49 && name.len() + 1 < length;
        name.push(if is_end_of_part { '.' } else { 'x' });
    }
    name
}

fn label(start: &str) -> String {
    format!("{start:x<63}")
}

async fn whole_way(node: &Node, claim_name: &str) {
    let (plugin, dra) = start(node, "7d1c6f0e-6f0a-4c39-9a3e-0f2c5a5f9d11").await;
    let slices = node.published(8).await;
    assert_eq!(slices[0].spec.pool.name, node.machine.node);
    for path in node.kubelet.sockets().iter().map(AsRef::as_ref).chain([dra.endpoint()]) {
        assert!(path.as_os_str().len() <= 107, "{}", path.display());
    }
    let claim = node.allocate(claim_name, &["gpu-0"]).await;
    dra.prepare_one(&claim).await.unwrap();
    assert_eq!(traces(node, &claim).len(), 2);
    drop(plugin);
    let (plugin, dra) = start(node, "other").await;
    assert_eq!(dra.prepare_one(&claim).await.unwrap().len(), 1);
    dra.unprepare_one(&claim).await.unwrap();
    assert_eq!(traces(node, &claim), Vec::<String>::new());
    plugin.stop();
}

#[test]
fn the_longest_claim_and_namespace() {
    let machine = Machine { namespace: label("longest-namespace-"), ..Machine::default() };
    test_on(machine, async |node| whole_way(node, &long("claim-", 253)).await);
}

#[test]
fn the_longest_driver_name() {
    let root = Folder::of_length("/var/lib/kubelet".len());
    let kubelet_root = root.path().to_str().unwrap().to_owned();
    let machine = Machine { driver: long("gpu.", 63), kubelet_root, ..Machine::default() };
    assert_eq!(machine.driver.len(), 63);
    test_on(machine, async |node| whole_way(node, "claim").await);
}

/// Two, since what names a slice after its node must not cut off where they differ.
#[test]
fn the_longest_node_names() {
    let name = long("node-", 253);
    let other = format!("{}y", &name[..252]);
    let machine = |node: &str, namespace: &str| Machine {
        node: node.to_owned(),
        namespace: namespace.to_owned(),
        ..Machine::default()
    };
    test_on(machine(&name, "longest-node"), async |node| {
        let (_plugin, _dra) = start(node, "first").await;
        node.published(8).await;
        let other = Node::new(ControlPlane::shared(), machine(&other, "longest-node-too")).await;
        whole_way(&other, "claim").await;
        assert_eq!(node.devices().await.len(), 8);
    });
}

#[test]
fn a_long_kubelet_root() {
    let root = Folder::of_length(60);
    let machine = Machine { kubelet_root: root.path().to_str().unwrap().to_owned(), ..Machine::default() };
    test_on(machine, async |node| whole_way(node, "claim").await);
}

#[test]
fn a_kubelet_root_that_leaves_no_room_is_refused() {
    let root = Folder::of_length(90);
    let machine = Machine { kubelet_root: root.path().to_str().unwrap().to_owned(), ..Machine::default() };
    test_on(machine, async |node| {
        assert!(!node.start_plugin("a").wait().success());
        let log = node.log();
        assert!(log.contains(&node.machine.kubelet_root) && log.contains("use a shorter kubelet root"), "{log}");
    });
}

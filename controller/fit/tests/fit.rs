//! Which nodes a pod fits, as kube-scheduler sees it.

#![allow(clippy::panic, clippy::unwrap_used)]

use aliquot_api::ids::ObjectName;
use aliquot_fit::{Misfit, Needs, Nodes};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

fn node(name: &str, change: impl FnOnce(&mut Value)) -> Node {
    let mut node = json!({
        "metadata": { "name": name, "labels": { "zone": "z1", "size": "8" } },
        "spec": {},
        "status": { "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "3", "example.com/fpga": "1" } },
    });
    change(&mut node);
    serde_json::from_value(node).unwrap()
}

fn needs(spec: Value) -> Needs {
    Needs::of(&serde_json::from_value::<Pod>(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap())
}

fn requests(requests: Value) -> Value {
    json!({ "containers": [{ "name": "c", "resources": { "requests": requests } }] })
}

fn id(name: &str) -> ObjectName {
    ObjectName { namespace: "ns".into(), name: name.into() }
}

fn nodes(change: impl FnOnce(&mut Value)) -> Nodes {
    let mut nodes = Nodes::default();
    nodes.apply_node(&node("a", change));
    nodes
}

fn short(name: &str, asked: i64, free: i64) -> Result<(), Misfit> {
    Err(Misfit::Resource { name: name.into(), asked, free })
}

#[test]
fn an_empty_pod_fits() {
    assert_eq!(nodes(|_| {}).check(&[&needs(requests(json!({})))], "a"), Ok(()));
}

#[test]
fn a_node_that_is_not_there_takes_nothing() {
    let mut nodes = nodes(|_| {});
    nodes.place(&id("x"), &needs(requests(json!({}))), "a");
    nodes.delete_node("a");
    for name in ["a", "b"] {
        assert_eq!(nodes.check(&[&needs(requests(json!({})))], name), Err(Misfit::UnknownNode));
    }
}

#[test]
fn what_is_asked_has_to_be_left() {
    let mut nodes = nodes(|_| {});
    nodes.place(&id("x"), &needs(requests(json!({ "cpu": "1500m", "memory": "1Gi" }))), "a");
    let check = |nodes: &Nodes, cpu: &str| nodes.check(&[&needs(requests(json!({ "cpu": cpu })))], "a");
    assert_eq!(check(&nodes, "2500m"), Ok(()));
    assert_eq!(check(&nodes, "2501m"), short("cpu", 2501, 2500));
    assert_eq!(
        nodes.check(&[&needs(requests(json!({ "example.com/fpga": "2" })))], "a"),
        short("example.com/fpga", 2, 1)
    );
    assert_eq!(
        nodes.check(&[&needs(requests(json!({ "example.com/none": "1" })))], "a"),
        short("example.com/none", 1, 0)
    );
    assert!(nodes.remove(&id("x")));
    assert!(!nodes.remove(&id("x")));
    assert_eq!(check(&nodes, "4"), Ok(()));
}

#[test]
fn a_pod_counts_once_wherever_it_is_placed() {
    let mut nodes = nodes(|_| {});
    nodes.apply_node(&node("b", |_| {}));
    let whole = needs(requests(json!({ "cpu": "4" })));
    for name in ["a", "a", "b"] {
        nodes.place(&id("x"), &whole, name);
    }
    assert_eq!(nodes.check(&[&whole], "a"), Ok(()));
    assert_eq!(nodes.check(&[&whole], "b"), short("cpu", 4000, 0));
    // Its size may change in place.
    nodes.place(&id("x"), &needs(requests(json!({ "cpu": "1" }))), "b");
    assert_eq!(nodes.check(&[&whole], "b"), short("cpu", 4000, 3000));
}

#[test]
fn pods_are_known_before_their_node() {
    let mut nodes = Nodes::default();
    nodes.place(&id("x"), &needs(requests(json!({ "cpu": "4" }))), "a");
    assert!(nodes.apply_node(&node("a", |_| {})));
    assert_eq!(nodes.check(&[&needs(requests(json!({ "cpu": "1" })))], "a"), short("cpu", 1000, 0));
}

#[test]
fn pods_fit_together_or_not() {
    let nodes = nodes(|_| {});
    let half = needs(requests(json!({ "cpu": "2" })));
    assert_eq!(nodes.check(&[&half, &half], "a"), Ok(()));
    assert_eq!(nodes.check(&[&half, &half, &half], "a"), short("cpu", 6000, 4000));
    let none = needs(requests(json!({})));
    assert_eq!(nodes.check(&[&none, &none, &none, &none], "a"), short("pods", 4, 3));
}

#[test]
fn init_containers_count_as_they_run() {
    let container = |cpu: &str| json!({ "name": "c", "resources": { "requests": { "cpu": cpu } } });
    let side =
        |cpu: &str| json!({ "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": cpu } } });
    let empty = nodes(|value| value["status"]["allocatable"]["cpu"] = "0".into());
    for (spec, asked) in [
        (
            json!({ "containers": [container("1"), container("1")], "initContainers": [container("3"), container("2")] }),
            3000,
        ),
        (json!({ "containers": [container("1")], "initContainers": [side("1"), container("3")] }), 4000),
        (json!({ "containers": [container("3")], "initContainers": [container("3"), side("1")] }), 4000),
        (json!({ "containers": [container("1")], "overhead": { "cpu": "250m" } }), 1250),
        (json!({ "containers": [container("1")], "resources": { "requests": { "cpu": "2" } } }), 2000),
    ] {
        assert_eq!(empty.check(&[&needs(spec.clone())], "a"), short("cpu", asked, 0), "{spec}");
    }
}

#[test]
fn who_has_less_priority_could_leave() {
    let mut nodes = nodes(|_| {});
    let with = |priority: i32, cpu: &str| {
        let mut spec = requests(json!({ "cpu": cpu }));
        spec["priority"] = priority.into();
        needs(spec)
    };
    nodes.place(&id("low"), &with(1, "2"), "a");
    nodes.place(&id("high"), &with(5, "1"), "a");
    assert_eq!(nodes.check(&[&with(5, "3")], "a"), short("cpu", 3000, 1000));
    assert_eq!(nodes.check_with_preemption(&[&with(5, "3")], "a"), Ok(()));
    assert_eq!(nodes.check_with_preemption(&[&with(5, "4")], "a"), short("cpu", 4000, 3000));
    assert_eq!(nodes.check_with_preemption(&[&with(1, "2")], "a"), short("cpu", 2000, 1000));
}

#[test]
fn taints_have_to_be_tolerated() {
    let taint = |effect: &str| json!([{ "key": "k", "value": "v", "effect": effect }]);
    let tolerating = |tolerations: Value| {
        let mut spec = requests(json!({}));
        spec["tolerations"] = tolerations;
        needs(spec)
    };
    for effect in ["NoSchedule", "NoExecute"] {
        let nodes = nodes(|node| node["spec"]["taints"] = taint(effect));
        for (tolerations, fits) in [
            (json!([]), false),
            (json!([{ "key": "k", "value": "v" }]), true),
            (json!([{ "key": "k", "operator": "Equal", "value": "v", "effect": effect }]), true),
            (json!([{ "key": "k", "value": "other" }]), false),
            (json!([{ "key": "k", "operator": "Exists" }]), true),
            (json!([{ "operator": "Exists" }]), true),
            (json!([{ "operator": "Exists", "effect": "PreferNoSchedule" }]), false),
        ] {
            let wanted = if fits { Ok(()) } else { Err(Misfit::Taint("k".into())) };
            assert_eq!(nodes.check(&[&tolerating(tolerations.clone())], "a"), wanted, "{tolerations}");
        }
    }
    let soft = nodes(|node| node["spec"]["taints"] = taint("PreferNoSchedule"));
    assert_eq!(soft.check(&[&tolerating(json!([]))], "a"), Ok(()));
    let cordoned = nodes(|node| node["spec"]["unschedulable"] = true.into());
    assert_eq!(cordoned.check(&[&tolerating(json!([]))], "a"), Err(Misfit::Cordoned));
    let key = "node.kubernetes.io/unschedulable";
    assert_eq!(cordoned.check(&[&tolerating(json!([{ "key": key, "operator": "Exists" }]))], "a"), Ok(()));
}

#[test]
fn the_pod_says_which_nodes_it_wants() {
    let nodes = nodes(|_| {});
    let selecting = |labels: Value| {
        let mut spec = requests(json!({}));
        spec["nodeSelector"] = labels;
        needs(spec)
    };
    assert_eq!(nodes.check(&[&selecting(json!({ "zone": "z1" }))], "a"), Ok(()));
    assert_eq!(nodes.check(&[&selecting(json!({ "zone": "z1", "other": "" }))], "a"), Err(Misfit::Affinity));
    let expression = |key: &str, operator: &str, values: Value| json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
    let name = |operator: &str, value: &str| json!({ "matchFields": [{ "key": "metadata.name", "operator": operator, "values": [value] }] });
    for (terms, fits) in [
        (json!([expression("zone", "In", json!(["z0", "z1"]))]), true),
        (json!([expression("zone", "NotIn", json!(["z1"]))]), false),
        (json!([expression("none", "NotIn", json!(["z1"]))]), true),
        (json!([expression("zone", "Exists", json!([]))]), true),
        (json!([expression("zone", "DoesNotExist", json!([]))]), false),
        (json!([expression("size", "Gt", json!(["7"]))]), true),
        (json!([expression("size", "Gt", json!(["8"]))]), false),
        (json!([expression("size", "Lt", json!(["9"]))]), true),
        (json!([expression("zone", "Lt", json!(["9"]))]), false),
        (json!([expression("zone", "In", json!(["no"])), name("In", "a")]), true),
        (json!([name("NotIn", "a")]), false),
        (json!([{}]), false),
    ] {
        let mut spec = requests(json!({}));
        let selector = json!({ "nodeSelectorTerms": terms });
        spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = selector;
        let wanted = if fits { Ok(()) } else { Err(Misfit::Affinity) };
        assert_eq!(nodes.check(&[&needs(spec)], "a"), wanted, "{terms}");
    }
}

#[test]
fn a_port_of_the_host_is_had_once() {
    let with = |ip: &str, protocol: &str| {
        let port = json!({ "containerPort": 80, "hostPort": 80, "hostIP": ip, "protocol": protocol });
        needs(json!({ "containers": [{ "name": "c", "ports": [port] }] }))
    };
    let mut nodes = nodes(|_| {});
    nodes.place(&id("x"), &with("10.0.0.1", "TCP"), "a");
    for (ip, protocol, fits) in
        [("10.0.0.1", "TCP", false), ("", "TCP", false), ("10.0.0.2", "TCP", true), ("10.0.0.1", "UDP", true)]
    {
        let wanted = if fits { Ok(()) } else { Err(Misfit::Port(80)) };
        assert_eq!(nodes.check(&[&with(ip, protocol)], "a"), wanted, "{ip} {protocol}");
    }
}

#[test]
fn only_what_matters_is_a_change() {
    let mut nodes = nodes(|_| {});
    let beat = |node: &mut Value| node["status"]["conditions"] = json!([{ "type": "Ready", "status": "True" }]);
    assert!(!nodes.apply_node(&node("a", beat)));
    assert!(nodes.apply_node(&node("a", |node| node["spec"]["unschedulable"] = true.into())));
    assert!(nodes.apply_node(&node("a", |node| node["status"]["allocatable"]["cpu"] = "5".into())));
}

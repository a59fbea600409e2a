//! Claims choose among different GPUs by what these say of themselves.

use crate::harness::{DRIVER, attribute, pod, template, test};

fn selector(expression: &str) -> String {
    let expression = expression.replace("{a}", &format!("device.attributes['{DRIVER}']"));
    let expression = expression.replace("{c}", &format!("device.capacity['{DRIVER}']"));
    format!("selectors:\n- cel: {{expression: {expression:?}}}")
}

#[test]
fn the_nodes_publish_what_they_have() {
    test(async |ns| {
        let count = async |pool: &str| ns.devices(pool).await.len();
        assert_eq!((count("node-0").await, count("node-1").await, count("node-2").await), (8, 2, 1));
        let h100 = ns.device("node-0", "gpu-0").await;
        assert_eq!(attribute(&h100, "productName"), "NVIDIA H100 80GB HBM3");
        assert_eq!(attribute(&h100, "architecture"), "Hopper");
        assert_eq!(h100.capacity.unwrap()["memory"].value.0, "81559Mi");
        // It has no memory of its own, which is not the same as none.
        assert_eq!(ns.device("node-2", "gpu-0").await.capacity, None);
    });
}

#[test]
fn a_selector_finds_the_gpus_that_it_means() {
    test(async |ns| {
        let cases = [
            ("much", "{c}.?memory.orValue(quantity('0')).compareTo(quantity('70Gi')) >= 0", "node-0"),
            ("little", "{c}.?memory.orValue(quantity('1Ti')).compareTo(quantity('30Gi')) < 0", "node-1"),
            ("hopper", "{a}.architecture == 'Hopper'", "node-0"),
            (
                "between",
                "{a}.cudaComputeCapability.compareTo(semver('8.9.0')) >= 0 && {a}.cudaComputeCapability.isLessThan(semver('9.0.0'))",
                "node-1",
            ),
            ("newest", "{a}.cudaComputeCapability.compareTo(semver('12.0.0')) >= 0", "node-2"),
            ("product", "{a}.productName.matches('^NVIDIA L4$')", "node-1"),
        ];
        for (name, expression, node) in cases {
            ns.apply(&(template(name, &selector(expression)) + &pod(name, None, &["main"], &[&format!("gpu={name}")])));
            let pod = ns.running(name).await;
            assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some(node), "{name}");
            assert_eq!(ns.allocated(name, "gpu").await[0].pool, node, "{name}");
            // Others may need the same GPU.
            ns.delete_pod(name).await;
        }
    });
}

#[test]
fn a_selector_that_matches_nothing_only_waits() {
    test(async |ns| {
        let none = selector("{a}.productName == 'NVIDIA H999'");
        ns.apply(&(template("none", &none) + &pod("waits", None, &["main"], &["gpu=none"])));
        ns.unschedulable("waits").await;
        ns.apply(&(template("any", "") + &pod("works", None, &["main"], &["gpu=any"])));
        ns.running("works").await;
        ns.unschedulable("waits").await;
    });
}

#[test]
fn a_selector_that_is_no_expression_is_refused_by_name() {
    test(async |ns| {
        let refused = ns.try_apply(&template("broken", &selector("{a}.productName ="))).unwrap_err();
        assert!(refused.contains("broken") && refused.contains("selectors[0].cel.expression"), "{refused}");
    });
}

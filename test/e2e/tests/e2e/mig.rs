//! Parts of GPUs that an admin has made: each pod sees the one that it was given, and nothing of the rest.

use std::collections::BTreeSet;

use crate::harness::{DRIVER, Namespace, attribute, pod, seen, template, test};

/// node-3 has GPUs in all states, by its machine file.
pub(crate) const NODE: &str = "node-3";

/// A template for a MIG device.
pub(crate) fn mig(name: &str, selector: &str) -> String {
    let selector = format!("selectors:\n- cel: {{expression: {selector:?}}}");
    template(name, &selector).replace(&format!("deviceClassName: {DRIVER}"), "deviceClassName: mig.aliquot.dev")
}

/// What a pod sees must be the MIG device that it was given, and the GPU that this is a part of.
async fn sees_only_its_own(ns: &Namespace, pod: &str) -> String {
    let result = ns.allocated(pod, "gpu").await.remove(0);
    let device = ns.device(&result.pool, &result.device).await;
    let mut given = vec![attribute(&device, "uuid"), attribute(&device, "parentUUID")];
    given.sort();
    assert_eq!(seen(ns, pod, "main"), given, "{}", result.device);
    result.device
}

#[test]
fn a_node_offers_what_its_gpus_are() {
    test(async |ns| {
        // The first GPU is in parts, the second in MIG mode and empty, the last one is broken.
        ns.device(NODE, "gpu-4").await;
        let names: BTreeSet<String> = ns.devices(NODE).await.into_iter().map(|device| device.name).collect();
        let expected = [
            "gpu-0-mig-1g10gb-0",
            "gpu-0-mig-1g10gb-me-1",
            "gpu-0-mig-3g40gb-4",
            "gpu-2",
            "gpu-3-mig-1g6gb-2",
            "gpu-3-mig-1g6gb-3",
            "gpu-3-mig-2g12gb-0",
            "gpu-4",
        ];
        assert_eq!(names, expected.map(str::to_owned).into());
    });
}

#[test]
fn a_part_is_found_by_profile_and_by_memory() {
    test(async |ns| {
        let attributes = format!("device.attributes['{DRIVER}']");
        let memory = format!("device.capacity['{DRIVER}'].memory");
        let cases = [
            ("by-profile", format!("{attributes}.profile == '3g.40gb'"), "gpu-0-mig-3g40gb-4"),
            (
                "by-memory",
                format!("{memory}.compareTo(quantity('11Gi')) >= 0 && {memory}.compareTo(quantity('20Gi')) < 0"),
                "gpu-3-mig-2g12gb-0",
            ),
            ("media", format!("{attributes}.profile == '1g.10gb+me'"), "gpu-0-mig-1g10gb-me-1"),
        ];
        for (name, selector, _) in &cases {
            ns.apply(&(mig(name, selector) + &pod(name, Some(NODE), &["main"], &[&format!("gpu={name}")])));
        }
        for (name, _, device) in &cases {
            ns.running(name).await;
            assert_eq!(sees_only_its_own(ns, name).await, *device);
            assert_eq!(ns.warnings(name).await, Vec::<String>::new());
        }
        // Two pods have parts of one GPU now. Who is refused the other's part by the device cgroup can't make it visible either.
        let caps = ns.exec("by-profile", "ls /dev/nvidia-caps | wc -l");
        assert_eq!(caps.trim(), "2");
    });
}

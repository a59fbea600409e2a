//! GPUs that hang, come and go, and a driver that is exchanged, all while pods run and start.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::Device;

use crate::handover::failures;
use crate::harness::{DRIVER, Gpus, Namespace, attribute, pod, seen, template, test};
use crate::restarts::restarts;

/// A template for the one GPU with this value of an attribute.
fn the(name: &str, attribute: &str, value: &str) -> String {
    let expression = format!("device.attributes['{DRIVER}'].{attribute} == '{value}'");
    template(name, &format!("selectors:\n- cel: {{expression: {expression:?}}}"))
}

/// The devices without their taints.
fn untainted(mut devices: Vec<Device>) -> Vec<Device> {
    for device in &mut devices {
        device.taints = None;
    }
    devices
}

fn names(devices: &[Device]) -> BTreeSet<&str> {
    devices.iter().map(|device| device.name.as_str()).collect()
}

/// A pod that has run all the time, with what it had.
async fn undisturbed(ns: &Namespace, pod: &str, uuid: &str) {
    assert_eq!(restarts(&ns.running(pod).await), 0);
    assert_eq!(seen(ns, pod, "main"), [uuid]);
}

#[test]
fn a_gpu_that_hangs_delays_no_other() {
    test(async |ns| {
        let gpus = Gpus::of("node-0");
        let before = ns.devices_until("node-0", "there", |devices| devices.len() == 8).await;
        let uuid = |name: &str| attribute(before.iter().find(|device| device.name == name).unwrap(), "uuid");
        ns.apply(&(the("three", "uuid", &uuid("gpu-3")) + &the("four", "uuid", &uuid("gpu-4")) + &template("one", "")));
        ns.apply(&pod("before", Some("node-0"), &["main"], &["gpu=three"]));
        ns.running("before").await;

        gpus.mock("fault", "--gpu 2 nvmlDeviceGetUUID --block");
        // The plugin is about to find out, or is waiting already.
        ns.apply(&pod("at-once", Some("node-0"), &["main"], &["gpu=four"]));
        ns.running("at-once").await;
        let seven = ns.devices_until("node-0", "all but one", |devices| devices.len() == 7).await;
        assert_eq!(names(&seven).symmetric_difference(&names(&before)).collect::<Vec<_>>(), [&"gpu-2"]);
        let rest: Vec<String> = (0..5).map(|number| format!("rest-{number}")).collect();
        ns.apply(&rest.iter().map(|name| pod(name, Some("node-0"), &["main"], &["gpu=one"])).collect::<String>());
        for name in &rest {
            ns.running(name).await;
        }
        ns.apply(&pod("last", Some("node-0"), &["main"], &["gpu=one"]));
        ns.unschedulable("last").await;
        undisturbed(ns, "before", &uuid("gpu-3")).await;
        // Pods end, too.
        ns.delete_pod("at-once").await;
        ns.running("last").await;
        assert_eq!(seen(ns, "last", "main"), [uuid("gpu-4")]);

        gpus.mock("fault", "--gpu 2 nvmlDeviceGetUUID --clear");
        ns.devices_until("node-0", "as before", |devices| devices == before).await;
        ns.apply(&pod("healed", Some("node-0"), &["main"], &["gpu=one"]));
        ns.running("healed").await;
        assert_eq!(seen(ns, "healed", "main"), [uuid("gpu-2")]);
        assert_eq!(failures(ns).await, Vec::<String>::new());
    });
}

#[test]
fn a_gpu_goes_and_comes_back() {
    test(async |ns| {
        let gpus = Gpus::of("node-0");
        let before = ns.devices_until("node-0", "there", |devices| devices.len() == 8).await;
        let plugin = ns.plugin_on("node-0").await;
        let of = |name: &str| before.iter().find(|device| device.name == name).unwrap();
        let (two, three) = (attribute(of("gpu-2"), "uuid"), attribute(of("gpu-3"), "uuid"));
        ns.apply(&(the("two", "uuid", &two) + &the("three", "uuid", &three)));
        ns.apply(&pod("stays", Some("node-0"), &["main"], &["gpu=three"]));
        ns.running("stays").await;

        let gone = of("gpu-2").attributes.as_ref().unwrap()["minor"].int.unwrap();
        gpus.lay_out(&format!("/minor: {gone},/d"));
        let rest = ns.devices_until("node-0", "all but one", |devices| devices.len() == 7).await;
        let expected: Vec<Device> = before.iter().filter(|device| device.name != "gpu-2").cloned().collect();
        assert_eq!(names(&rest), names(&expected));
        assert!(rest == expected, "more than a name has changed");
        undisturbed(ns, "stays", &three).await;
        ns.apply(&pod("waits", Some("node-0"), &["main"], &["gpu=two"]));
        ns.unschedulable("waits").await;

        gpus.lay_out("");
        ns.devices_until("node-0", "as before", |devices| devices == before).await;
        ns.running("waits").await;
        assert_eq!(seen(ns, "waits", "main"), [two]);
        undisturbed(ns, "stays", &three).await;
        assert_eq!(failures(ns).await, Vec::<String>::new());
        let now = ns.plugin_on("node-0").await;
        assert_eq!((now.metadata.uid.as_ref(), restarts(&now)), (plugin.metadata.uid.as_ref(), restarts(&plugin)));
    });
}

#[test]
fn a_driver_is_exchanged() {
    test(async |ns| {
        let gpus = Gpus::of("node-1");
        let version = |device: &Device| device.attributes.as_ref().unwrap()["driverVersion"].version.clone().unwrap();
        let before = ns.devices_until("node-1", "there", |devices| devices.len() == 2).await;
        assert!(before.iter().all(|device| version(device) == "580.95.5"), "{before:?}");
        ns.apply(&template("one", ""));
        for name in ["stays", "leaves"] {
            ns.apply(&pod(name, Some("node-1"), &["main"], &["gpu=one"]));
            ns.running(name).await;
        }
        let freed = seen(ns, "leaves", "main");

        gpus.mock("remove", "");
        let is_out = |device: &Device| {
            let taints = device.taints.iter().flatten();
            taints.into_iter().any(|taint| taint.key == "aliquot.dev/driver-not-ready" && taint.effect == "NoSchedule")
        };
        let out = ns.devices_until("node-1", "tainted", |devices| devices.iter().all(is_out)).await;
        assert_eq!(untainted(out), before);
        // Who has a GPU keeps it or lets it go, who has none waits.
        ns.delete_pod("leaves").await;
        ns.apply(&pod("meanwhile", Some("node-1"), &["main"], &["gpu=one"]));
        ns.unschedulable("meanwhile").await;

        gpus.lay_out("s/580.95.05/590.44.01/");
        ns.running("meanwhile").await;
        assert_eq!(seen(ns, "meanwhile", "main"), freed);
        let files = ns.exec("meanwhile", "cat /proc/mounts");
        assert!(files.contains(".so.590.44.01") && !files.contains(".so.580.95.05"), "{files}");
        let after = ns.devices("node-1").await;
        assert!(after.iter().all(|device| version(device) == "590.44.1"), "{after:?}");
        assert_eq!(untainted(after.clone()), after);
        let stays = ns.running("stays").await;
        assert_eq!(restarts(&stays), 0);
        assert_eq!(ns.exec("stays", "echo here"), "here\n");
        assert_eq!(failures(ns).await, Vec::<String>::new());
        ns.delete_pod("stays").await;

        gpus.lay_out("");
        ns.devices_until("node-1", "as before", |devices| devices == before).await;
    });
}

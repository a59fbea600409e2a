//! What people get wrong is named, and harms nobody else.

use crate::harness::{DRIVER, pod, seen, template, test};

fn with_config(template: &str, driver: &str, parameters: &str) -> String {
    format!(
        "{template}      config:\n      - requests: [gpu]\n        opaque:\n          driver: {driver}\n          parameters: {parameters}\n"
    )
}

#[test]
fn a_config_of_an_unknown_kind_is_named_and_the_rest_works_on() {
    test(async |ns| {
        let config = "{apiVersion: aliquot.dev/v1alpha1, kind: GpuConfg}";
        ns.apply(&with_config(&template("typo", ""), DRIVER, config));
        ns.apply(&pod("wrong", None, &["main"], &["gpu=typo"]));
        let says = "kind \"GpuConfg\" is not known; aliquot.dev/v1alpha1 has GpuConfig";
        let message = ns.event("wrong", "FailedPrepareDynamicResources", says).await;
        assert!(message.contains("wrong-gpu-"), "it names the claim: {message}");

        ns.apply(&(template("one", "") + &pod("right", None, &["main"], &["gpu=one"])));
        ns.running("right").await;
        assert_eq!(seen(ns, "right", "main").len(), 1);
        // The pod that never started can be deleted like any other.
        ns.delete_pod("wrong").await;
    });
}

#[test]
fn a_config_of_ours_is_taken() {
    test(async |ns| {
        let config = "{apiVersion: aliquot.dev/v1alpha1, kind: GpuConfig}";
        ns.apply(&with_config(&template("fine", ""), DRIVER, config));
        ns.apply(&pod("fine", None, &["main"], &["gpu=fine"]));
        ns.running("fine").await;
    });
}

#[test]
fn a_config_of_another_driver_is_named() {
    test(async |ns| {
        let theirs = "{apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig}";
        // Addressed to the other driver, though the request is served by ours.
        ns.apply(&with_config(&template("theirs", ""), "gpu.nvidia.com", theirs));
        ns.apply(&pod("theirs", None, &["main"], &["gpu=theirs"]));
        ns.event("theirs", "FailedPrepareDynamicResources", "is for driver \"gpu.nvidia.com\"").await;
        // Addressed to ours, in the other one's words.
        ns.apply(&with_config(&template("mixed", ""), DRIVER, theirs));
        ns.apply(&pod("mixed", None, &["main"], &["gpu=mixed"]));
        let says = "apiVersion \"resource.nvidia.com/v1beta1\" is not known; expected aliquot.dev/v1alpha1";
        ns.event("mixed", "FailedPrepareDynamicResources", says).await;
    });
}

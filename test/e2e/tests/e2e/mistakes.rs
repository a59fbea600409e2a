//! What people get wrong is named, and harms nobody else.

use std::fs;
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;

use crate::harness::{DRIVER, pod, seen, template, test, text, variable};

/// The template, with a config for what it asks for.
pub(crate) fn with_config(template: &str, driver: &str, parameters: &str) -> String {
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

#[test]
fn a_misspelt_value_of_the_chart_is_named_and_nothing_changes() {
    test(async |ns| {
        let plugin = ns.plugin_on("node-0").await;
        let namespace = plugin.metadata.namespace.unwrap();
        let daemon_sets = Api::<DaemonSet>::namespaced(ns.client(), &namespace);
        let generation = async || daemon_sets.get("aliquot-kubelet-plugin").await.unwrap().metadata.generation;
        let before = generation().await;
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/aliquot");
        let output = Command::new(variable("ALIQUOT_KUBE"))
            .args(["helm", "upgrade", "--reuse-values", "--namespace", &namespace, "aliquot"])
            .arg(chart)
            .args(["--set", "kubeletPlugin.logLevle=debug"])
            .output()
            .unwrap();
        assert!(!output.status.success());
        assert!(text(&output).contains("additional properties 'logLevle' not allowed"), "{}", text(&output));
        assert_eq!(generation().await, before);
    });
}

#[test]
fn a_machine_file_with_a_typo_is_named_and_no_cluster_is_left() {
    test(async |_| {
        let folder = tempfile::tempdir().unwrap();
        let machine = folder.path().join("machine.yaml");
        let right = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines/l4.yaml");
        let wrong = fs::read_to_string(right).unwrap().replacen("numaNode:", "numaNod:", 1);
        assert!(wrong.contains("numaNod:"));
        fs::write(&machine, wrong).unwrap();
        let cluster = |args: &[&str]| Command::new(variable("ALIQUOT_CLUSTER")).args(args).output().unwrap();
        let kube = variable("ALIQUOT_KUBE");
        let programs = Path::new(&kube).parent().unwrap().to_str().unwrap();
        let (mock, machine) = (variable("ALIQUOT_MOCK"), machine.to_str().unwrap());
        let up = ["up", "--name", "typo", "--nodes", "1", "--bin", programs, "--mock", &mock, "--machine", machine];
        let output = cluster(&up);
        assert!(!output.status.success());
        let said = text(&output);
        assert!(said.contains("machine.yaml") && said.contains("unknown field `numaNod`"), "{said}");
        assert!(!cluster(&["status", "--name", "typo"]).status.success());
    });
}

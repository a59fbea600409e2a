//! The plugin is exchanged while pods start and stop: nothing fails, and the node's devices stay published.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher::{Config, Event, watcher};
use serde_json::Value;

use crate::handover::failures;
use crate::harness::{DRIVER, Namespace, pod, seen, template, test, text, variable};
use crate::waves::no_claim_files;

/// The names of slices that were deleted since it was asked for, and what else went wrong.
fn watch_slices(namespace: &Namespace) -> (Arc<Mutex<Vec<String>>>, tokio::task::JoinHandle<()>) {
    let deleted = Arc::<Mutex<Vec<String>>>::default();
    let ours = Config::default().fields(&format!("spec.driver={DRIVER}"));
    let mut events = watcher(namespace.cluster_api::<ResourceSlice>(), ours).boxed();
    let names = Arc::clone(&deleted);
    let task = tokio::spawn(async move {
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Delete(slice)) => names.lock().unwrap().push(slice.metadata.name.unwrap_or_default()),
                Ok(Event::Apply(_) | Event::Init | Event::InitApply(_) | Event::InitDone) => {}
                Err(error) => names.lock().unwrap().push(error.to_string()),
            }
        }
    });
    (deleted, task)
}

fn helm(arguments: &[impl AsRef<OsStr> + Debug]) -> String {
    let output = Command::new(variable("ALIQUOT_KUBE")).arg("helm").args(arguments).output().unwrap();
    assert!(output.status.success(), "helm {arguments:?}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Pods with GPUs start and stop, one after the other, until Helm is done. Gives back how many did.
async fn pods_during(namespace: &Namespace, name: &str, arguments: &[&str]) -> usize {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let helm = tokio::task::spawn_blocking(move || helm(&arguments));
    let pods = namespace.api::<Pod>();
    let mut count = 0;
    while !helm.is_finished() {
        let name = format!("{name}-{count}");
        let manifest = pod(&name, Some("node-0"), &["main"], &["gpu=one"]);
        pods.create(&PostParams::default(), &serde_yaml::from_str(&manifest).unwrap()).await.unwrap();
        namespace.running(&name).await;
        pods.delete(&name, &DeleteParams::default()).await.unwrap();
        count += 1;
    }
    helm.await.unwrap();
    count
}

/// The number of the release's last change.
fn revision(place: &str) -> String {
    let status = helm(&["status", "aliquot", "--namespace", place, "--output", "json"]);
    let status: Value = serde_json::from_str(&status).unwrap();
    status["version"].to_string()
}

#[test]
fn the_new_plugin_starts_beside_the_old_one() {
    test(async |ns| {
        let place = ns.plugin_on("node-0").await.metadata.namespace.unwrap();
        let plugin = async || ns.plugin_on("node-0").await.metadata.name.unwrap();
        let first = plugin().await;
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/aliquot");
        let place = place.as_str();
        let release = ["--namespace", place, "--wait", "--timeout", "3m", "aliquot"];
        let chart = chart.to_str().unwrap();
        let upgrade = |values| [["upgrade", "--reuse-values", "--set", values].as_slice(), &release, &[chart]].concat();
        let rollback = [["rollback"].as_slice(), &release].concat();
        let before = revision(place);
        ns.apply(&(template("one", "") + &pod("stays", Some("node-0"), &["main"], &["gpu=one"])));
        ns.running("stays").await;
        let uuids = seen(ns, "stays", "main");
        let (deleted, watch) = watch_slices(ns);
        let up = pods_during(ns, "up", &upgrade("kubeletPlugin.podAnnotations.test=upgrade")).await;
        let second = plugin().await;
        assert_ne!(second, first);
        let down = pods_during(ns, "down", &rollback).await;
        assert_ne!(plugin().await, second);
        println!("{up} pods started during the upgrade, {down} during the downgrade");

        assert_eq!(failures(ns).await, Vec::<String>::new());
        assert_eq!(*deleted.lock().unwrap(), Vec::<String>::new());
        watch.abort();
        assert_eq!(seen(ns, "stays", "main"), uuids);
        // What one plugin prepared another one unprepares.
        ns.delete_pod("stays").await;
        no_claim_files("node-0").await;
        helm(&[rollback.as_slice(), &[before.as_str()]].concat());
    });
}

//! The Helm chart, as Helm renders it. No cluster is needed.

// Clippy's exception for tests doesn't reach what they share.
#![allow(clippy::panic, clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Output},
};

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::DaemonSet,
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
    resource::v1::DeviceClass,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The plugin's flags, with the variables that set them.
const ARGUMENTS: &str = include_str!("../../../kubelet-plugin/src/args.rs");

/// Maps whose keys are the user's.
const FREE: [&str; 7] = [
    "deviceClasses.extendedResourceNames",
    "kubeletPlugin.nodeSelector",
    "kubeletPlugin.affinity",
    "kubeletPlugin.podAnnotations",
    "kubeletPlugin.resources.requests",
    "kubeletPlugin.resources.limits",
    "serviceAccount.annotations",
];

/// Every value, other than its default.
const OTHER: &str = r#"
driverName: gpu.nvidia.com
driverRoot: /run/nvidia/driver
kubeletRoot: /data/kubelet
cdiRoot: /run/other-cdi
sysRoot: /run/nvidia/driver/sys
procRoot: /run/nvidia/driver/proc
nameOverride: other
fullnameOverride: another
image:
  repository: registry.example:5000/gpus/plugin
  tag: "1.0"
  digest: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
  pullPolicy: Never
imagePullSecrets: [{name: registry}]
serviceAccount:
  create: false
  name: somebody
  annotations: {example.com/a: "1"}
rbac: {create: false}
deviceClasses:
  create: false
  extendedResourceNames: {gpu: nvidia.com/gpu}
kubeletPlugin:
  logLevel: info,kube=debug
  logFormat: text
  listenAddress: "[::]"
  port: 9090
  maxSurge: 0
  maxUnavailable: 10%
  terminationGracePeriodSeconds: 60
  priorityClassName: ""
  nodeSelector: {example.com/gpu: "true"}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: example.com/gpu, operator: Exists}]}]
  tolerations: [{key: example.com/x, operator: Equal, value: y, effect: NoExecute, tolerationSeconds: 5}]
  podAnnotations: {prometheus.io/scrape: "true"}
  resources:
    requests: {cpu: 20m, memory: 64Mi}
    limits: {memory: 1Gi}
"#;

fn chart() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../charts/aliquot").canonicalize().unwrap()
}

fn read(file: &str) -> String {
    fs::read_to_string(chart().join(file)).unwrap()
}

fn yaml(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap()
}

fn helm(arguments: &[&str], values: &Value) -> Output {
    let Ok(kube) = std::env::var("ALIQUOT_KUBE") else {
        panic!("ALIQUOT_KUBE has to name the program that has Helm in it; `cargo xtask test chart` sets it");
    };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(values.to_string().as_bytes()).unwrap();
    let mut helm = Command::new(kube);
    helm.arg("helm").args(arguments).arg(chart()).arg("--values").arg(file.path());
    helm.output().unwrap()
}

/// The documents that a release named `release` in the namespace `gpus` consists of.
fn render(values: &Value) -> Vec<Value> {
    let output = helm(&["template", "release", "--namespace", "gpus"], values);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let documents = serde_yaml::Deserializer::from_str(&text);
    let documents = documents.map(|document| serde::Deserialize::deserialize(document).unwrap());
    documents.filter(|document: &Value| !document.is_null()).collect()
}

fn refusal(values: &Value) -> String {
    let output = helm(&["template", "release"], values);
    assert!(!output.status.success(), "{values} is accepted");
    String::from_utf8(output.stderr).unwrap()
}

fn kinds(documents: &[Value]) -> Vec<&str> {
    documents.iter().map(|document| document["kind"].as_str().unwrap()).collect()
}

fn the<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    documents.iter().find(|document| document["kind"] == kind).unwrap()
}

/// The paths of all values, where a map whose keys are the user's counts as one.
fn paths(values: &Value) -> BTreeMap<String, Value> {
    fn walk(values: &Value, path: &str, paths: &mut BTreeMap<String, Value>) {
        match values.as_object() {
            Some(map) if !FREE.contains(&path) => {
                for (name, value) in map {
                    walk(value, &if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, paths);
                }
            }
            _ => {
                paths.insert(path.to_owned(), values.clone());
            }
        }
    }
    let mut paths = BTreeMap::new();
    walk(values, "", &mut paths);
    paths
}

/// `{"a": {"b": value}}` of `a.b`.
fn nested(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |value, name| json!({ name: value }))
}

fn roundtrip<T: DeserializeOwned + Serialize>(document: &Value) -> Value {
    let object: T = serde_json::from_value(document.clone()).unwrap_or_else(|error| panic!("{document:#}: {error}"));
    serde_json::to_value(object).unwrap()
}

/// A misspelt field would be dropped on the way through Kubernetes' types.
#[test]
fn every_document_has_only_fields_that_kubernetes_knows() {
    for values in [json!({}), yaml(OTHER)] {
        for document in render(&values) {
            let known = match document["kind"].as_str().unwrap() {
                "ClusterRole" => roundtrip::<ClusterRole>(&document),
                "ClusterRoleBinding" => roundtrip::<ClusterRoleBinding>(&document),
                "DaemonSet" => roundtrip::<DaemonSet>(&document),
                "DeviceClass" => roundtrip::<DeviceClass>(&document),
                "ServiceAccount" => roundtrip::<ServiceAccount>(&document),
                "ValidatingAdmissionPolicy" => roundtrip::<ValidatingAdmissionPolicy>(&document),
                "ValidatingAdmissionPolicyBinding" => roundtrip::<ValidatingAdmissionPolicyBinding>(&document),
                other => panic!("{other} is not expected"),
            };
            assert_eq!(known, document);
        }
    }
}

#[test]
fn what_is_made_by_someone_else_is_left_out() {
    let counted = |values: &Value| {
        kinds(&render(values)).into_iter().fold(BTreeMap::<String, u32>::new(), |mut counts, kind| {
            *counts.entry(kind.to_owned()).or_default() += 1;
            counts
        })
    };
    let all = [
        ("ClusterRole", 1),
        ("ClusterRoleBinding", 1),
        ("DaemonSet", 1),
        ("DeviceClass", 2),
        ("ServiceAccount", 1),
        ("ValidatingAdmissionPolicy", 1),
        ("ValidatingAdmissionPolicyBinding", 1),
    ];
    let all = all.map(|(kind, count)| (kind.to_owned(), count));
    assert_eq!(counted(&json!({})), all.clone().into());
    // Whoever made the account, it is fenced.
    let rest = all.into_iter().filter(|(kind, _)| kind == "DaemonSet" || kind.starts_with("ValidatingAdmission"));
    assert_eq!(counted(&yaml(OTHER)), rest.collect());
}

#[test]
fn lint_finds_nothing() {
    for values in [json!({}), yaml(OTHER)] {
        let output = helm(&["lint", "--strict", "--quiet"], &values);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        assert!(!text.contains("[WARNING]") && !text.contains("[ERROR]"), "{text}");
    }
}

#[test]
fn every_value_has_an_effect() {
    let defaults = paths(&yaml(&read("values.yaml")));
    let other = paths(&yaml(OTHER));
    assert_eq!(defaults.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    let rendered = render(&json!({}));
    for (path, value) in other {
        let mut values = nested(&path, value);
        // An account that isn't made needs a name.
        if path == "serviceAccount.create" {
            values["serviceAccount"]["name"] = json!("release-aliquot-kubelet-plugin");
        }
        // One of the two is 0.
        if path == "kubeletPlugin.maxSurge" {
            values["kubeletPlugin"]["maxUnavailable"] = json!(1);
        } else if path == "kubeletPlugin.maxUnavailable" {
            values["kubeletPlugin"]["maxSurge"] = json!(0);
        }
        assert_ne!(render(&values), rendered, "{path}");
    }
}

#[test]
fn a_misspelt_value_is_refused_by_name_everywhere() {
    let values = yaml(&read("values.yaml"));
    let mut folders: BTreeSet<String> = paths(&values)
        .into_keys()
        .filter_map(|path| path.rsplit_once('.').map(|(folder, _)| folder.to_owned()))
        .collect();
    assert!(folders.contains("kubeletPlugin.resources"));
    for place in [
        "deviceClasses.extendedResourceNames",
        "imagePullSecrets",
        "kubeletPlugin.affinity",
        "kubeletPlugin.tolerations",
    ] {
        folders.insert(place.to_owned());
    }
    let refused = refusal(&json!({"drivername": "a.b"}));
    assert!(refused.contains("additional properties 'drivername' not allowed"), "{refused}");
    for folder in folders {
        let typo = json!({"typo": "1"});
        let is_list = matches!(folder.as_str(), "imagePullSecrets" | "kubeletPlugin.tolerations");
        let refused = refusal(&nested(&folder, if is_list { json!([typo]) } else { typo }));
        assert!(refused.contains("additional properties 'typo' not allowed"), "{folder}: {refused}");
        assert!(refused.contains(&format!("at '/{}", folder.replace('.', "/"))), "{folder}: {refused}");
    }
}

#[test]
fn a_wrong_value_is_refused_by_name() {
    for (path, value) in [
        ("driverName", json!("gpu")),
        ("driverName", json!("GPU.example.com")),
        ("driverRoot", json!("run/nvidia")),
        ("kubeletRoot", json!("/")),
        ("cdiRoot", json!("/a b")),
        ("image/tag", json!(1.0)),
        ("image/digest", json!("0123")),
        ("image/pullPolicy", json!("Sometimes")),
        ("serviceAccount/name", json!("A")),
        ("rbac/create", json!("yes")),
        ("kubeletPlugin/port", json!(70000)),
        ("deviceClasses/extendedResourceNames/gpu", json!("gpu")),
        ("kubeletPlugin/maxSurge", json!("0%")),
        ("kubeletPlugin/maxUnavailable", json!("10")),
        ("kubeletPlugin/logLevel", json!("loud")),
        ("kubeletPlugin/logLevel", json!("info,kube=loud")),
        ("kubeletPlugin/listenAddress", json!("0.0.0.0:80")),
        ("kubeletPlugin/nodeSelector/a", json!(true)),
    ] {
        let refused = refusal(&nested(&path.replace('/', "."), value));
        assert!(refused.contains(&format!("at '/{path}'")), "{refused}");
    }
    let refused = refusal(&json!({"serviceAccount": {"create": false}}));
    assert!(refused.contains("at '/serviceAccount/name'"), "{refused}");
}

#[test]
fn an_update_either_stops_the_old_plugin_first_or_starts_the_new_one_first() {
    for (unavailable, surge) in [(json!(1), json!(0)), (json!("10%"), json!(0)), (json!(0), json!("10%"))] {
        let documents = render(&json!({"kubeletPlugin": {"maxUnavailable": unavailable, "maxSurge": surge}}));
        let strategy = &the(&documents, "DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"];
        assert_eq!(*strategy, json!({"maxUnavailable": unavailable, "maxSurge": surge}));
    }
    // Kubernetes refuses both.
    for (unavailable, surge) in [(json!(0), json!(0)), (json!(1), json!(1))] {
        let refused = refusal(&json!({"kubeletPlugin": {"maxUnavailable": unavailable, "maxSurge": surge}}));
        assert!(refused.contains("at '/kubeletPlugin/maxSurge'"), "{refused}");
    }
}

#[test]
fn an_older_kubernetes_is_refused() {
    let output = helm(&["template", "--kube-version", "1.33.9"], &json!({}));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("requires kubeVersion: >=1.34.0-0"), "{error}");
}

#[test]
fn the_classes_select_devices_of_the_driver_by_type() {
    for (driver, domain) in
        [("gpu.aliquot.dev", "aliquot.dev"), ("gpu.nvidia.com", "nvidia.com"), ("gpus.example", "gpus.example")]
    {
        let documents = render(&json!({"driverName": driver}));
        let classes = documents.iter().filter(|document| document["kind"] == "DeviceClass");
        let found: BTreeMap<&str, &Value> =
            classes.map(|class| (class["metadata"]["name"].as_str().unwrap(), &class["spec"])).collect();
        assert_eq!(found.len(), 2);
        for class in ["gpu", "mig"] {
            let expression =
                format!(r#"device.driver == "{driver}" && device.attributes["{driver}"].type == "{class}""#);
            let spec = found[format!("{class}.{domain}").as_str()];
            assert_eq!(*spec, json!({"selectors": [{"cel": {"expression": expression}}]}));
        }
    }
}

#[test]
fn a_class_has_the_extended_resource_name_that_it_is_given() {
    let documents = render(&json!({"deviceClasses": {"extendedResourceNames": {"mig": "nvidia.com/mig"}}}));
    let name = |class: &str| {
        let named = |document: &&Value| document["kind"] == "DeviceClass" && document["metadata"]["name"] == class;
        documents.iter().find(named).unwrap()["spec"]["extendedResourceName"].clone()
    };
    assert_eq!((name("gpu.aliquot.dev"), name("mig.aliquot.dev")), (Value::Null, json!("nvidia.com/mig")));
}

/// The text of a table of the chart's README, row by row, without the quotes of code.
fn table(heading: &str) -> Vec<Vec<String>> {
    table_of(&read("README.md"), heading)
}

fn table_of(page: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.replace('`', "").trim().to_owned()).collect())
        .collect()
}

#[test]
fn every_value_is_documented() {
    let documented: BTreeMap<String, String> =
        table("Values").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    let values = paths(&yaml(&read("values.yaml")));
    // Requests and limits share a row.
    let names: BTreeSet<&str> = values
        .keys()
        .map(|path| if path.starts_with("kubeletPlugin.resources.") { "kubeletPlugin.resources" } else { path })
        .collect();
    assert_eq!(documented.keys().map(String::as_str).collect::<BTreeSet<_>>(), names);
    for (path, value) in values {
        let text = match &value {
            Value::String(text) if !text.is_empty() => text.clone(),
            Value::Array(list) if !list.is_empty() => continue,
            Value::Object(map) if !map.is_empty() => continue,
            other => other.to_string(),
        };
        assert_eq!(documented[&path], text, "{path}");
    }
}

#[test]
fn rights_are_those_that_are_documented_and_each_has_a_reason() {
    let documents = render(&json!({}));
    let rules: Vec<[String; 3]> = the(&documents, "ClusterRole")["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| {
            let join = |field: &str| {
                let list: Vec<_> = rule[field].as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect();
                list.join(", ")
            };
            assert!(rule["nonResourceURLs"].is_null());
            let group = join("apiGroups");
            let named = if rule["resourceNames"].is_null() { String::new() } else { ", only ".to_owned() };
            let names = if named.is_empty() { String::new() } else { join("resourceNames") };
            [
                if group.is_empty() { "core".to_owned() } else { group },
                join("resources") + &named + &names,
                join("verbs"),
            ]
        })
        .collect();
    for table in [table("Rights"), table_of(&privileges(), "Rights in the API")] {
        assert!(table.iter().all(|row| row.len() == 4 && !row[3].is_empty()), "a rule has no reason");
        let documented: Vec<_> = table.iter().map(|row| [row[0].clone(), row[1].clone(), row[2].clone()]).collect();
        assert_eq!(rules, documented);
    }
}

fn privileges() -> String {
    fs::read_to_string(chart().join("../../docs/reference/privileges.md")).unwrap()
}

#[test]
fn what_the_pod_may_do_on_its_node_is_documented_and_each_has_a_reason() {
    let documents = render(&json!({}));
    let pod = &the(&documents, "DaemonSet")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let mut used = BTreeSet::new();
    for (field, value) in container["securityContext"].as_object().unwrap() {
        used.insert(format!("securityContext.{field}: {value}"));
    }
    for field in ["hostIPC", "hostNetwork", "hostPID", "hostUsers", "securityContext", "shareProcessNamespace"] {
        used.extend(pod.get(field).map(|value| format!("{field}: {value}")));
    }
    let documented = table_of(&privileges(), "The container");
    assert!(documented.iter().all(|row| row.len() == 2 && !row[1].is_empty()), "a privilege has no reason");
    assert_eq!(documented.into_iter().map(|row| row[0].clone()).collect::<BTreeSet<_>>(), used);

    let mounts = container["volumeMounts"].as_array().unwrap();
    let folders: BTreeSet<(String, String)> = pod["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| {
            let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]).unwrap();
            let access = if mount["readOnly"] == true { "read" } else { "write" };
            (volume["hostPath"]["path"].as_str().unwrap().to_owned(), access.to_owned())
        })
        .collect();
    let documented = table_of(&privileges(), "Folders of the node");
    assert!(documented.iter().all(|row| row.len() == 3 && !row[2].is_empty()), "a folder has no reason");
    assert_eq!(documented.into_iter().map(|row| (row[0].clone(), row[1].clone())).collect::<BTreeSet<_>>(), folders);
}

/// A policy for an account that nobody runs under would match nothing, and nobody would notice.
#[test]
fn the_policy_is_for_the_account_that_the_pods_run_under() {
    for values in [json!({}), yaml(OTHER)] {
        let documents = render(&values);
        let policy = the(&documents, "ValidatingAdmissionPolicy");
        let account = &the(&documents, "DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"];
        let account = account.as_str().unwrap();
        let condition = format!(r#"request.userInfo.username == "system:serviceaccount:gpus:{account}""#);
        let conditions = policy["spec"]["matchConditions"].as_array().unwrap();
        assert_eq!(conditions.iter().map(|one| one["expression"].as_str().unwrap()).collect::<Vec<_>>(), [condition]);
        let binding = &the(&documents, "ValidatingAdmissionPolicyBinding")["spec"];
        assert_eq!(*binding, json!({"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}));
    }
}

#[test]
fn the_role_is_bound_to_the_account_that_the_pods_run_under() {
    for (values, account) in [
        (json!({}), "release-aliquot-kubelet-plugin"),
        (json!({"serviceAccount": {"create": false, "name": "somebody"}}), "somebody"),
    ] {
        let documents = render(&values);
        let binding = the(&documents, "ClusterRoleBinding");
        assert_eq!(binding["subjects"], json!([{"kind": "ServiceAccount", "name": account, "namespace": "gpus"}]));
        assert_eq!(binding["roleRef"]["name"], the(&documents, "ClusterRole")["metadata"]["name"]);
        assert_eq!(the(&documents, "DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"], account);
    }
}

#[test]
fn the_pod_selector_matches_the_pods() {
    for values in [json!({}), yaml(OTHER)] {
        let documents = render(&values);
        let spec = &the(&documents, "DaemonSet")["spec"];
        assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]);
    }
}

/// A path that the plugin is told must be a mount of the folder that is meant.
#[test]
fn the_plugin_finds_the_hosts_folders_where_it_is_told() {
    for values in [json!({}), yaml(OTHER)] {
        let documents = render(&values);
        let pod = &the(&documents, "DaemonSet")["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let variables: BTreeMap<&str, &str> = container["env"]
            .as_array()
            .unwrap()
            .iter()
            .map(|variable| {
                let value = variable["value"].as_str();
                let value = value.or_else(|| variable["valueFrom"]["fieldRef"]["fieldPath"].as_str());
                (variable["name"].as_str().unwrap(), value.unwrap())
            })
            .collect();
        for name in variables.keys() {
            assert!(ARGUMENTS.contains(&format!("env = \"{name}\"")), "the plugin has no variable {name}");
        }
        assert_eq!(variables["ALIQUOT_NODE_NAME"], "spec.nodeName");
        assert_eq!(variables["ALIQUOT_POD_UID"], "metadata.uid");

        let hosts: BTreeMap<&str, &str> = pod["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|volume| (volume["name"].as_str().unwrap(), volume["hostPath"]["path"].as_str().unwrap()))
            .collect();
        // Path in the container to path on the host, and whether it may be written.
        let mounts: BTreeMap<&str, (&str, bool)> = container["volumeMounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mount| {
                let host = hosts[mount["name"].as_str().unwrap()];
                (mount["mountPath"].as_str().unwrap(), (host, mount["readOnly"] != true))
            })
            .collect();
        assert_eq!(hosts.len(), mounts.len());

        let merged = |path: &str| -> String {
            let pointer = format!("/{path}");
            let value = values.pointer(&pointer).cloned();
            value.unwrap_or_else(|| yaml(&read("values.yaml"))[path].clone()).as_str().unwrap().to_owned()
        };
        assert_eq!(mounts[variables["ALIQUOT_DRIVER_ROOT"]], (variables["ALIQUOT_HOST_DRIVER_ROOT"], false));
        assert_eq!(variables["ALIQUOT_HOST_DRIVER_ROOT"], merged("driverRoot"));
        assert_eq!(mounts[variables["ALIQUOT_SYS_ROOT"]], (merged("sysRoot").as_str(), false));
        assert_eq!(mounts[variables["ALIQUOT_PROC_ROOT"]], (merged("procRoot").as_str(), false));
        // What others find by the path that the plugin gives has the same path on both sides.
        let kubelet = variables["ALIQUOT_KUBELET_ROOT"];
        assert_eq!(kubelet, merged("kubeletRoot"));
        let plugin = format!("{kubelet}/plugins/{}", variables["ALIQUOT_DRIVER_NAME"]);
        let registry = format!("{kubelet}/plugins_registry");
        for path in [plugin.as_str(), registry.as_str(), variables["ALIQUOT_CDI_ROOT"], "/dev"] {
            assert_eq!(mounts[path], (path, true));
        }
    }
}

#[test]
fn probes_ask_at_the_port_that_the_plugin_listens_at() {
    for (values, listen, port) in [(json!({}), "0.0.0.0:8080", 8080), (yaml(OTHER), "[::]:9090", 9090)] {
        let documents = render(&values);
        let container = &the(&documents, "DaemonSet")["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["ports"], json!([{"name": "http", "containerPort": port}]));
        for (probe, path) in [("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
            assert_eq!(container[probe]["httpGet"], json!({"path": path, "port": "http"}));
        }
        let variables = container["env"].as_array().unwrap();
        assert!(variables.contains(&json!({"name": "ALIQUOT_LISTEN", "value": listen})));
    }
}

#[test]
fn the_image_is_that_of_the_version_unless_told_otherwise() {
    for (image, expected) in [
        (json!({}), format!("aliquot.local/kubelet-plugin:{}", env!("CARGO_PKG_VERSION"))),
        (json!({"tag": "x"}), "aliquot.local/kubelet-plugin:x".to_owned()),
        (
            json!({"tag": "x", "digest": format!("sha256:{:064}", 0)}),
            format!("aliquot.local/kubelet-plugin@sha256:{:064}", 0),
        ),
    ] {
        let documents = render(&json!({"image": image}));
        assert_eq!(the(&documents, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["image"], expected);
    }
    assert_eq!(yaml(&read("Chart.yaml"))["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn notes_name_what_was_installed() {
    let output = helm(&["install", "release", "--namespace", "gpus", "--dry-run=client"], &json!({}));
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, notes) = text.split_once("NOTES:\n").unwrap();
    for part in ["--namespace gpus", "daemonset/release-aliquot-kubelet-plugin", "spec.driver=gpu.aliquot.dev"] {
        assert!(notes.contains(part), "{notes}");
    }
    assert!(notes.lines().count() <= 25, "{notes}");
}

//! A machine in a folder, its Node, its claims and its slices.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::api::core::v1::{Namespace, Node as KubeNode};
use k8s_openapi::api::resource::v1::{Device, ResourceClaim, ResourceSlice};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::control::{ControlPlane, free_ports};
use crate::folder::{self, Folder};
use crate::kubelet::Kubelet;
use crate::plugin::Plugin;
use crate::process::{GUARD, Process};
use crate::{eventually, variable};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// What a node is like.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The name of a file in `test/machines`.
    pub file: String,
    /// The Node's name, which is the pool's too.
    pub node: String,
    /// The driver's name.
    pub driver: String,
    /// Where claims are.
    pub namespace: String,
    /// Kubelet's folder: anywhere, or below the machine's.
    pub kubelet_root: String,
}

impl Default for Machine {
    /// A DGX H100 under a name of its own.
    fn default() -> Self {
        let name = format!("rig-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        Self {
            file: "dgx-h100".to_owned(),
            node: name.clone(),
            driver: "gpu.aliquot.dev".to_owned(),
            namespace: name,
            kubelet_root: "kubelet".to_owned(),
        }
    }
}

/// A claim as kubelet names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// A node with GPUs and without kubelet.
pub struct Node {
    /// What it is like.
    pub machine: Machine,
    /// Who is called in kubelet's place.
    pub kubelet: Kubelet,
    control: Arc<ControlPlane>,
    client: Client,
    folder: Folder,
}

impl Node {
    /// Lays out a machine and creates its Node.
    pub async fn new(control: Arc<ControlPlane>, machine: Machine) -> Self {
        let (folder, client) = (Folder::new(), control.client().await);
        let kubelet = Kubelet::new(&folder.join(&machine.kubelet_root), &machine.driver);
        let this = Self { machine, kubelet, control, client, folder };
        this.lay_out_with("", "");
        this.boot("first");
        this.create_node().await;
        let namespace = json!({
            "metadata": {
                "name": this.machine.namespace,
                "labels": {"resource.kubernetes.io/admin-access": "true"},
            }
        });
        let namespace: Namespace = serde_json::from_value(namespace).unwrap();
        this.api::<Namespace>().create(&PostParams::default(), &namespace).await.unwrap();
        this
    }

    /// Puts a driver and its GPUs there: those of the machine file, after `from` has become `to` in it.
    pub fn lay_out_with(&self, from: &str, to: &str) {
        let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines");
        let text = fs::read_to_string(machines.join(&self.machine.file).with_extension("yaml")).unwrap();
        assert!(text.contains(from), "no {from:?} in {}", self.machine.file);
        let edited = self.path("machine.yaml");
        fs::write(&edited, text.replace(from, to)).unwrap();
        let library = PathBuf::from(variable("ALIQUOT_MOCK")).join("libnvidia_ml_mock.so");
        let [edited, dev, library] = [edited, self.path("dev"), library].map(|path| path.display().to_string());
        self.mock(&["layout", &edited, "--node", &self.machine.node, "--dev", &dev, "--library", &library]);
    }

    /// The driver goes, as when it is unloaded.
    pub fn remove_driver(&self) {
        self.mock(&["remove", "--dev", &self.path("dev").display().to_string()]);
    }

    /// Calls `mock-nvml` for this machine's driver.
    pub fn mock(&self, words: &[&str]) {
        let program = PathBuf::from(variable("ALIQUOT_MOCK")).join("mock-nvml");
        let output =
            Command::new(program).args(words).arg("--root").arg(self.path("driver")).output().expect("mock-nvml");
        assert!(output.status.success(), "mock-nvml {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The machine starts: it has another boot id, and what was in memory is gone. Plugins have to be dead by now.
    pub fn boot(&self, id: &str) {
        let random = self.path("proc/sys/kernel/random");
        fs::create_dir_all(&random).unwrap();
        fs::write(random.join("boot_id"), format!("{id}\n")).unwrap();
        if self.path("cdi").exists() {
            fs::remove_dir_all(self.path("cdi")).unwrap();
        }
    }

    /// Creates the Node; the API server gives it a new UID.
    pub async fn create_node(&self) -> String {
        let node: KubeNode = serde_json::from_value(json!({"metadata": {"name": self.machine.node}})).unwrap();
        self.api::<KubeNode>().create(&PostParams::default(), &node).await.unwrap().metadata.uid.unwrap()
    }

    /// Deletes the Node.
    pub async fn delete_node(&self) {
        self.api::<KubeNode>().delete(&self.machine.node, &DeleteParams::default()).await.unwrap();
    }

    /// The machine's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A path in the machine's folder.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.join(name)
    }

    /// Where kubelet's files are.
    pub fn kubelet_root(&self) -> PathBuf {
        self.path(&self.machine.kubelet_root)
    }

    /// The plugin's own folder.
    pub fn plugin_folder(&self) -> PathBuf {
        self.kubelet_root().join("plugins").join(&self.machine.driver)
    }

    /// The API server.
    pub fn control(&self) -> &ControlPlane {
        &self.control
    }

    /// An API of the whole cluster.
    pub fn api<K: kube::Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Claims of a namespace.
    pub fn claims(&self, namespace: &str) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Starts the plugin. `instance` is what tells it from others that run.
    pub fn start_plugin(&self, instance: &str) -> Plugin {
        self.start_plugin_under::<&str>(&[], instance)
    }

    /// Starts the plugin under another program, whose words come first.
    pub fn start_plugin_under<A: AsRef<OsStr>>(&self, words: &[A], instance: &str) -> Plugin {
        let [port] = free_ports();
        let mut command: Vec<_> = words.iter().map(|word| word.as_ref().to_owned()).collect();
        if !words.is_empty() {
            command.extend(GUARD.map(Into::into));
        }
        command.push(variable("ALIQUOT_PLUGIN").into());
        let (driver, host) = (self.path("driver"), self.kubelet_root());
        for (flag, value) in [
            ("--node-name", self.machine.node.clone()),
            ("--pod-uid", instance.to_owned()),
            ("--driver-name", self.machine.driver.clone()),
            ("--driver-root", driver.display().to_string()),
            ("--dev-root", self.path("dev").display().to_string()),
            ("--sys-root", driver.join("sys").display().to_string()),
            ("--proc-root", self.path("proc").display().to_string()),
            ("--kubelet-root", host.display().to_string()),
            ("--cdi-root", self.path("cdi").display().to_string()),
            ("--cdi-hook", variable("ALIQUOT_HOOK")),
            ("--listen", format!("127.0.0.1:{port}")),
        ] {
            command.extend([flag.into(), value.into()]);
        }
        let environment = [("KUBECONFIG", self.control.kubeconfig().as_os_str())];
        Plugin { process: Process::start(command, &environment, &self.path("plugin.log")), port }
    }

    /// What all plugins of this node have said.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("plugin.log")).unwrap_or_default()).into_owned()
    }

    /// Creates a claim and allocates devices to it, as a scheduler does.
    pub async fn allocate(&self, name: &str, devices: &[&str]) -> Claim {
        self.allocate_as(name, devices, false).await
    }

    /// The same for a claim that only watches.
    pub async fn allocate_admin(&self, name: &str, devices: &[&str]) -> Claim {
        self.allocate_as(name, devices, true).await
    }

    async fn allocate_as(&self, name: &str, devices: &[&str], admin: bool) -> Claim {
        let api = self.claims(&self.machine.namespace);
        let mut exactly =
            json!({"deviceClassName": "gpu.aliquot.dev", "allocationMode": "ExactCount", "count": devices.len()});
        let mut results: Vec<Value> = devices
            .iter()
            .map(|device| {
                let (driver, pool) = (&self.machine.driver, &self.machine.node);
                json!({"request": "gpu", "driver": driver, "pool": pool, "device": device})
            })
            .collect();
        if admin {
            exactly["adminAccess"] = true.into();
            for result in &mut results {
                result["adminAccess"] = true.into();
            }
        }
        let claim = json!({
            "metadata": {"name": name, "finalizers": ["resource.kubernetes.io/delete-protection"]},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        });
        let claim: ResourceClaim = serde_json::from_value(claim).unwrap();
        let mut claim = api.create(&PostParams::default(), &claim).await.unwrap();
        let pod = json!({"resource": "pods", "name": "pod", "uid": "pod"});
        let status = json!({"allocation": {"devices": {"results": results}}, "reservedFor": [pod]});
        claim.status = Some(serde_json::from_value(status).unwrap());
        api.replace_status(name, &PostParams::default(), &claim).await.unwrap();
        let uid = claim.metadata.uid.unwrap();
        Claim { namespace: self.machine.namespace.clone(), name: name.to_owned(), uid }
    }

    /// No pod needs the claim any more.
    pub async fn unreserve(&self, claim: &Claim) {
        let nobody = Patch::Merge(json!({"status": {"reservedFor": null}}));
        let api = self.claims(&claim.namespace);
        api.patch_status(&claim.name, &PatchParams::default(), &nobody).await.unwrap();
    }

    /// Deletes a claim for good.
    pub async fn delete(&self, claim: &Claim) {
        let api = self.claims(&claim.namespace);
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        api.patch(&claim.name, &PatchParams::default(), &free).await.unwrap();
        api.delete(&claim.name, &DeleteParams::default()).await.unwrap();
    }

    /// This node's slices, in the order of their names.
    pub async fn slices(&self) -> Vec<ResourceSlice> {
        let ours = ListParams::default()
            .fields(&format!("spec.nodeName={},spec.driver={}", self.machine.node, self.machine.driver));
        self.api::<ResourceSlice>().list(&ours).await.unwrap().items
    }

    /// The published devices.
    pub async fn devices(&self) -> Vec<Device> {
        self.slices().await.into_iter().flat_map(|slice| slice.spec.devices.unwrap_or_default()).collect()
    }

    /// Waits until this many devices are published.
    pub async fn published(&self, devices: usize) -> Vec<ResourceSlice> {
        eventually(&format!("{devices} devices are published"), async || {
            let slices = self.slices().await;
            let found: usize = slices.iter().map(|slice| slice.spec.devices.as_ref().map_or(0, Vec::len)).sum();
            (found == devices).then_some(slices)
        })
        .await
    }

    /// All files below kubelet's root and in the folder of CDI files, sorted, with what is in them.
    pub fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        collect(&self.kubelet_root(), &mut files);
        collect(&self.path("cdi"), &mut files);
        files
    }

    /// The CDI file of a claim.
    pub fn cdi_file(&self, claim: &Claim) -> Option<Value> {
        let named = |name: &String| name.ends_with(&format!("{}.json", claim.uid));
        let name = folder::names(&self.path("cdi")).into_iter().find(named)?;
        let content = fs::read(self.path("cdi").join(&name)).ok()?;
        Some(serde_json::from_slice(&content).unwrap_or_else(|error| panic!("{name}: {error}: {content:?}")))
    }
}

fn collect(folder: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for name in folder::names(folder) {
        let path = folder.join(name);
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            collect(&path, files);
        } else {
            let content = if kind.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            files.push((path, content));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("the end of the plugin's log:\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

//! A namespace on the test cluster for each test, one test at a time: tests fill whole nodes.

use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::{Event, Namespace as KubeNamespace, Node, Pod};
use k8s_openapi::api::resource::v1::{Device, DeviceRequestAllocationResult, ResourceClaim, ResourceSlice};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::wait::{Condition, await_condition, conditions};
use kube::{Api, Client};

/// Our driver.
pub(crate) const DRIVER: &str = "gpu.aliquot.dev";

/// What a pod of [`pod`] does: it runs, and ends when told to.
pub(crate) const COMMAND: &str = "trap exit TERM; while true; do sleep 3600 & wait $!; done";

/// How long anything may take on a busy machine. What fails takes this long; what works takes a second or two.
const PATIENCE: Duration = Duration::from_mins(2);

static TURN: Mutex<()> = Mutex::new(());
static COUNT: AtomicU32 = AtomicU32::new(0);

/// What `cargo xtask test e2e` says about the cluster.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} isn't set: run this through `cargo xtask test e2e`"))
}

/// Runs a test in a namespace of its own. Whatever happens, its pods are gone at the end.
pub(crate) fn test(body: impl AsyncFnOnce(&Namespace)) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let namespace = Namespace::create().await;
        let result = AssertUnwindSafe(body(&namespace)).catch_unwind().await;
        if result.is_err() {
            eprintln!("{}", namespace.describe().await);
        }
        namespace.delete().await;
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A namespace, and the cluster around it.
pub(crate) struct Namespace {
    name: String,
    client: Client,
}

impl Namespace {
    async fn create() -> Self {
        variable("KUBECONFIG");
        let client = Client::try_default().await.expect("the test cluster's kubeconfig");
        let name = format!("e2e-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut namespace = KubeNamespace::default();
        namespace.metadata.name = Some(name.clone());
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace");
        let this = Self { name, client };
        // Pods are refused before it is there.
        eventually("the namespace's service account", async || {
            let accounts = this.api::<k8s_openapi::api::core::v1::ServiceAccount>();
            accounts.get_opt("default").await.unwrap()
        })
        .await;
        this
    }

    async fn delete(&self) {
        let namespaces = Api::<KubeNamespace>::all(self.client.clone());
        let uid = namespaces.get(&self.name).await.unwrap().metadata.uid.unwrap();
        self.kubectl(&["delete", "pods", "--all", "--grace-period=1", "--wait=false"]);
        namespaces.delete(&self.name, &DeleteParams::default()).await.unwrap();
        let gone = await_condition(namespaces, &self.name, conditions::is_deleted(&uid));
        tokio::time::timeout(PATIENCE, gone).await.expect("the namespace goes").unwrap();
    }

    /// A client for the cluster.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// An API in this namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope> + k8s_openapi::Resource,
        <K as kube::Resource>::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// An API of the whole cluster.
    pub(crate) fn cluster_api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = ()>,
    {
        Api::all(self.client.clone())
    }

    /// Applies a manifest and expects it to be taken.
    pub(crate) fn apply(&self, manifest: &str) {
        if let Err(error) = self.try_apply(manifest) {
            panic!("kubectl apply: {error}");
        }
    }

    /// Applies a manifest; says what the API server says against it.
    pub(crate) fn try_apply(&self, manifest: &str) -> Result<(), String> {
        let mut child = self
            .kubectl_command(&["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl");
        child.stdin.take().unwrap().write_all(manifest.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        if output.status.success() { Ok(()) } else { Err(text(&output)) }
    }

    fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(variable("ALIQUOT_KUBE"));
        command.args(["kubectl", "--namespace", &self.name]).args(args);
        command
    }

    /// What kubectl prints.
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        text(&self.kubectl_command(args).output().expect("kubectl"))
    }

    /// A command in a pod's container, which must succeed.
    pub(crate) fn exec(&self, pod: &str, command: &str) -> String {
        let output = self.kubectl_command(&["exec", pod, "--", "sh", "-c", command]).output().expect("kubectl");
        assert!(output.status.success(), "in {pod}: {command}: {}", text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits for a pod to be as wanted.
    pub(crate) async fn pod(&self, name: &str, wanted: &str, is: impl Condition<Pod>) -> Pod {
        let waited = tokio::time::timeout(PATIENCE, await_condition(self.api::<Pod>(), name, is)).await;
        let found = waited.unwrap_or_else(|_| panic!("pod {name} isn't {wanted} after {PATIENCE:?}"));
        found.unwrap().unwrap_or_else(|| panic!("pod {name} is gone, not {wanted}"))
    }

    /// Waits until a pod's containers run.
    pub(crate) async fn running(&self, name: &str) -> Pod {
        self.pod(name, "ready", |pod: Option<&Pod>| {
            let conditions = pod.and_then(|pod| pod.status.as_ref()?.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
        })
        .await
    }

    /// Waits until the scheduler has said that a pod fits nowhere.
    pub(crate) async fn unschedulable(&self, name: &str) -> Pod {
        self.pod(name, "unschedulable", |pod: Option<&Pod>| {
            let conditions = pod.and_then(|pod| pod.status.as_ref()?.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|c| c.reason.as_deref() == Some("Unschedulable")))
        })
        .await
    }

    /// Deletes a pod and waits until it is gone.
    pub(crate) async fn delete_pod(&self, name: &str) {
        let uid = self.api::<Pod>().get(name).await.unwrap().metadata.uid.unwrap();
        self.api::<Pod>().delete(name, &DeleteParams::default()).await.unwrap();
        let gone = await_condition(self.api::<Pod>(), name, conditions::is_deleted(&uid));
        tokio::time::timeout(PATIENCE, gone).await.expect("the pod goes").unwrap();
    }

    /// Waits for an event about an object that says something.
    pub(crate) async fn event(&self, object: &str, reason: &str, says: &str) -> String {
        eventually(&format!("event {reason} on {object} that says {says:?}"), async || {
            let events = self.api::<Event>().list(&ListParams::default()).await.unwrap();
            let about = |event: &Event| event.involved_object.name.as_deref() == Some(object);
            let found = events.items.into_iter().filter(about).filter(|event| event.reason.as_deref() == Some(reason));
            found.filter_map(|event| event.message).find(|message| message.contains(says))
        })
        .await
    }

    /// The reasons of the warnings about a pod so far.
    pub(crate) async fn warnings(&self, pod: &str) -> Vec<String> {
        let events = self.api::<Event>().list(&ListParams::default()).await.unwrap();
        let about = |event: &Event| event.involved_object.name.as_deref() == Some(pod) && is_warning(event);
        let warning =
            |event: Event| Some(format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default()));
        events.items.into_iter().filter(about).filter_map(warning).collect()
    }

    /// What a claim of a pod was allocated. Names of claims are those in the pod's spec.
    pub(crate) async fn allocated(&self, pod: &str, claim: &str) -> Vec<DeviceRequestAllocationResult> {
        let pod = self.api::<Pod>().get(pod).await.unwrap();
        let statuses = pod.status.and_then(|status| status.resource_claim_statuses).unwrap_or_default();
        let from_template =
            statuses.into_iter().find(|status| status.name == claim).and_then(|status| status.resource_claim_name);
        let direct = || {
            let claims = pod.spec.as_ref()?.resource_claims.as_ref()?;
            claims.iter().find(|c| c.name == claim)?.resource_claim_name.clone()
        };
        let name = from_template.or_else(direct).expect("the pod has the claim");
        let claim = self.api::<ResourceClaim>().get(&name).await.unwrap();
        let allocation = claim.status.and_then(|status| status.allocation).expect("the claim is allocated");
        allocation.devices.and_then(|devices| devices.results).unwrap_or_default()
    }

    /// Waits for a device to be published.
    pub(crate) async fn device(&self, pool: &str, name: &str) -> Device {
        eventually(&format!("device {name} of pool {pool}"), async || {
            self.devices(pool).await.into_iter().find(|device| device.name == name)
        })
        .await
    }

    /// The devices that are published in a pool.
    pub(crate) async fn devices(&self, pool: &str) -> Vec<Device> {
        self.slices(pool).await.into_iter().flat_map(|slice| slice.spec.devices.unwrap_or_default()).collect()
    }

    /// The slices of a pool.
    pub(crate) async fn slices(&self, pool: &str) -> Vec<ResourceSlice> {
        let slices = self.cluster_api::<ResourceSlice>().list(&ListParams::default()).await.unwrap();
        let is_ours = |slice: &ResourceSlice| slice.spec.driver == DRIVER && slice.spec.pool.name == pool;
        slices.items.into_iter().filter(is_ours).collect()
    }

    /// Waits until a node's published devices are as wanted.
    pub(crate) async fn devices_until(&self, pool: &str, wanted: &str, is: impl Fn(&[Device]) -> bool) -> Vec<Device> {
        eventually(&format!("the devices of pool {pool} are {wanted}"), async || {
            let devices = self.devices(pool).await;
            is(&devices).then_some(devices)
        })
        .await
    }

    /// The plugin's pod on a node, when it is ready.
    pub(crate) async fn plugin_on(&self, node: &str) -> Pod {
        let plugins = ListParams::default()
            .labels("app.kubernetes.io/name=aliquot,app.kubernetes.io/component=kubelet-plugin")
            .fields(&format!("spec.nodeName={node}"));
        eventually(&format!("a ready plugin on {node}"), async || {
            let pods = self.cluster_api::<Pod>().list(&plugins).await.unwrap();
            pods.items.into_iter().find(|pod| {
                let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
                pod.metadata.deletion_timestamp.is_none()
                    && conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
            })
        })
        .await
    }

    /// Waits until a node is ready.
    pub(crate) async fn node_ready(&self, node: &str) {
        eventually(&format!("{node} is ready"), async || {
            let node = self.cluster_api::<Node>().get_opt(node).await.unwrap()?;
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            conditions.into_iter().find(|c| c.type_ == "Ready" && c.status == "True")
        })
        .await;
    }

    async fn describe(&self) -> String {
        let mut all = self.kubectl(&["get", "pods,resourceclaims", "-o", "wide"]);
        all += &self.kubectl(&["get", "events", "--sort-by=.lastTimestamp"]);
        for pod in self.api::<Pod>().list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            let name = pod.metadata.name.unwrap_or_default();
            all += &["--- logs of ", &name, "\n"].concat();
            all += &self.kubectl(&["logs", &name, "--all-containers", "--tail=20"]);
        }
        all
    }
}

fn cluster(command: &str, args: &[&str]) -> String {
    let name = variable("ALIQUOT_CLUSTER_NAME");
    let mut program = Command::new(variable("ALIQUOT_CLUSTER"));
    let output = program.args([command, "--name", &name]).args(args).output().expect("the cluster's harness");
    assert!(output.status.success(), "cluster {command} {args:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A command in a node's namespaces, as an admin on that node.
pub(crate) fn on_node(node: &str, command: &str) -> String {
    cluster("exec", &[node, "--", "sh", "-c", command])
}

/// Restarts a program of a node.
pub(crate) fn restart(node: &str, component: &str) {
    cluster("restart", &[node, component]);
}

/// Kills all that runs on a node and starts it again.
pub(crate) fn reboot(node: &str) {
    cluster("reboot", &[node]);
}

/// `mock-nvml` for a node's driver. Gives what it prints.
pub(crate) fn mock(node: &str, command: &str, args: &str) -> String {
    on_node(node, &format!("/run/test-cluster/mock/mock-nvml {command} --root /run/nvidia/driver {args}"))
}

/// The GPUs of a node, as a test may change them. However it ends, they are as in the machine file again.
pub(crate) struct Gpus {
    node: &'static str,
}

impl Gpus {
    /// Those of a node.
    pub(crate) fn of(node: &'static str) -> Self {
        Self { node }
    }

    /// Changes them by `mock-nvml`.
    pub(crate) fn mock(&self, command: &str, args: &str) {
        mock(self.node, command, args);
    }

    /// Puts a driver and its GPUs there: those of the machine file, edited by sed.
    pub(crate) fn lay_out(&self, edit: &str) {
        let (node, edited) = (self.node, "/run/edited.yaml");
        on_node(node, &format!("sed -e '{edit}' /run/test-cluster/machine/*.yaml > {edited}"));
        let library = "/run/test-cluster/mock/libnvidia_ml_mock.so";
        self.mock("layout", &format!("{edited} --node {node} --dev /dev --library {library}"));
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        self.lay_out("");
    }
}

/// All that a program printed.
pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// Whether an event warns of something. kubelet also warns when its view of a new namespace's certificates is late, and tries again at
/// once: that is between it and the API server.
pub(crate) fn is_warning(event: &Event) -> bool {
    let late = "failed to sync configmap cache: timed out waiting for the condition";
    event.type_.as_deref() == Some("Warning")
        && !event.message.as_deref().is_some_and(|message| message.ends_with(late))
}

/// Waits until something is there.
pub(crate) async fn eventually<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "not after {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A template for one device of our class. `body` is more of the request, indented by nothing.
pub(crate) fn template(name: &str, body: &str) -> String {
    let body = body.replace('\n', "\n          ");
    format!(
        "---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: {name}}}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: {DRIVER}
          {body}
"
    )
}

/// A pod that runs until it is told to end, whose containers each use all of its claims. A claim is `name=template` or `name:claim`.
pub(crate) fn pod(name: &str, node: Option<&str>, containers: &[&str], claims: &[&str]) -> String {
    let image = variable("ALIQUOT_WORKLOAD_IMAGE");
    // node-3 has a bit of everything: who goes there wants it.
    let elsewhere = "{key: kubernetes.io/hostname, operator: NotIn, values: [node-3]}";
    let elsewhere = format!(
        "requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{{matchExpressions: [{elsewhere}]}}]}}"
    );
    let on = node.map_or_else(
        || format!("\n  affinity: {{nodeAffinity: {{{elsewhere}}}}}"),
        |node| format!("\n  nodeSelector: {{kubernetes.io/hostname: {node}}}"),
    );
    let used: Vec<String> = claims.iter().map(|claim| format!("{{name: {}}}", parts(claim).0)).collect();
    let container = |name: &&str| {
        format!(
            "
  - name: {name}
    image: {image}
    imagePullPolicy: Never
    command: [sh, -c, {COMMAND:?}]
    resources: {{claims: [{}]}}",
            used.join(", ")
        )
    };
    let claim = |claim: &&str| {
        let (name, field, object) = parts(claim);
        format!("\n  - {{name: {name}, {field}: {object}}}")
    };
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 5{on}
  containers:{}
  resourceClaims:{}
",
        containers.iter().map(container).collect::<Vec<_>>().concat(),
        claims.iter().map(claim).collect::<Vec<_>>().concat(),
    )
}

fn parts(claim: &str) -> (&str, &'static str, &str) {
    if let Some((name, template)) = claim.split_once('=') {
        return (name, "resourceClaimTemplateName", template);
    }
    let (name, object) = claim.split_once(':').expect("name=template or name:claim");
    (name, "resourceClaimName", object)
}

/// The UUIDs that a program in a pod's container gets from the GPU's library.
pub(crate) fn seen(namespace: &Namespace, pod: &str, container: &str) -> Vec<String> {
    let list = namespace.kubectl(&["exec", pod, "-c", container, "--", "nvidia-smi", "-L"]);
    let uuid = |line: &str| Some(line.split_once("(UUID: ")?.1.strip_suffix(')')?.to_owned());
    let mut uuids: Vec<String> = list.lines().filter_map(uuid).collect();
    assert!(!uuids.is_empty(), "nvidia-smi in {pod}/{container} says: {list}");
    uuids.sort();
    uuids
}

/// A text attribute of a device.
pub(crate) fn attribute(device: &Device, name: &str) -> String {
    let attributes = device.attributes.as_ref().expect("the device has attributes");
    attributes.get(name).and_then(|value| value.string.clone()).unwrap_or_else(|| panic!("no {name}: {attributes:?}"))
}

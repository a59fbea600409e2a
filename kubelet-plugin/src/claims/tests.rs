use std::convert::Infallible;
use std::fs;
use std::path::Path;

use aliquot_device::inventory::Inventory;
use aliquot_device::numbering::Numbering;
use aliquot_device::observation::{Gpu, Observation};
use aliquot_device::prepare::MigInstance;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::client::Body;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::{Value, json};

use super::*;

const BOOT: &str = "boot-1";

/// A node with two GPUs, and an API server with claims that are allocated as a test says.
struct Node {
    folder: tempfile::TempDir,
    claims: Arc<Mutex<BTreeMap<String, ResourceClaim>>>,
    api_is_away: Arc<Mutex<bool>>,
}

fn claim_ref(name: &str) -> ClaimRef {
    ClaimRef::parse(&format!("uid-of-{name}"), "default".to_owned(), name.to_owned()).unwrap()
}

impl Node {
    fn new() -> Self {
        let node = Self { folder: tempfile::tempdir().unwrap(), claims: Arc::default(), api_is_away: Arc::default() };
        for folder in ["dev", "cdi", "claims"] {
            fs::create_dir(node.path(folder)).unwrap();
        }
        for minor in 0..2 {
            let path = node.path("dev").join(format!("nvidia{minor}"));
            mknodat(CWD, &path, FileType::CharacterDevice, Mode::from(0o666), makedev(195, minor)).unwrap();
        }
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn allocate(&self, claim: &str, devices: &[&str]) {
        let result =
            |device: &&str| json!({"request": "gpu", "driver": "gpu.aliquot.dev", "pool": "node-0", "device": device});
        self.allocate_as(claim, devices.iter().map(result).collect());
    }

    fn allocate_as(&self, claim: &str, results: Vec<Value>) {
        let object = json!({
            "metadata": {"name": claim, "namespace": "default", "uid": format!("uid-of-{claim}")},
            "spec": {},
            "status": {"allocation": {"devices": {"results": results}}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]},
        });
        lock(&self.claims).insert(claim.to_owned(), serde_json::from_value(object).unwrap());
    }

    fn cluster(&self) -> Cluster {
        let (claims, away) = (Arc::clone(&self.claims), Arc::clone(&self.api_is_away));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            let found = lock(&claims).get(&name).cloned();
            let (status, body) = match found {
                _ if *lock(&away) => (503, json!({"kind": "Status", "code": 503, "reason": "ServiceUnavailable"})),
                Some(claim) => (200, serde_json::to_value(claim).unwrap()),
                None => (404, json!({"kind": "Status", "code": 404, "reason": "NotFound"})),
            };
            let response =
                http::Response::builder().status(status).body(Body::from(serde_json::to_vec(&body).unwrap())).unwrap();
            async move { Ok::<_, Infallible>(response) }
        });
        Cluster::new(kube::Client::new(service, "default"))
    }

    /// A plugin process on this node.
    fn start(&self) -> Arc<Claims> {
        self.start_in_boot(BOOT)
    }

    fn start_in_boot(&self, boot_id: &str) -> Arc<Claims> {
        self.start_process(boot_id).1
    }

    fn start_with_driver(&self) -> (watch::Sender<Option<Arc<Snapshot>>>, Arc<Claims>) {
        self.start_process(BOOT)
    }

    fn start_process(&self, boot_id: &str) -> (watch::Sender<Option<Arc<Snapshot>>>, Arc<Claims>) {
        let gpu = |minor: u32| {
            let (uuid, pci) = (format!("GPU-{minor}"), format!("0000:{minor:02x}:00.0"));
            Gpu::new(uuid.parse().unwrap(), pci.parse().unwrap(), minor)
        };
        // One GPU more than there are device nodes.
        let observation = Observation { gpus: (0..3).map(gpu).collect(), ..Observation::default() };
        let mut numbering = Numbering::default();
        numbering.add(observation.gpus.iter().map(|gpu| gpu.pci));
        let snapshot = Snapshot {
            inventory: Inventory::new(observation, &numbering),
            files: cdi::DriverFiles::default(),
            problems: Vec::new(),
            is_ready: true,
        };
        let setting = Setting {
            driver: "gpu.aliquot.dev".parse().unwrap(),
            pool: "node-0".parse().unwrap(),
            boot_id: boot_id.to_owned(),
            cdi_root: self.path("cdi"),
            dev_root: self.path("dev"),
            procs: vec![self.path("proc")],
            hook: "/hook".into(),
        };
        let (snapshots, snapshot) = watch::channel(Some(Arc::new(snapshot)));
        let store = ClaimStore::open(self.path("claims")).unwrap();
        let metrics = Arc::new(Metrics::new("node-0"));
        (snapshots, Arc::new(Claims::recover(setting, self.cluster(), store, snapshot, metrics).unwrap()))
    }

    fn files(&self) -> Vec<String> {
        [files::list(&self.path("cdi")).unwrap(), files::list(&self.path("claims")).unwrap()].concat()
    }
}

async fn prepare(claims: &Arc<Claims>, name: &str) -> Result<Vec<String>, String> {
    let prepared = Arc::clone(claims).prepare(claim_ref(name)).await;
    prepared
        .map(|devices| devices.into_iter().map(|device| device.device.to_string()).collect())
        .map_err(|error| error.to_string())
}

async fn unprepare(claims: &Arc<Claims>, name: &str) {
    Arc::clone(claims).unprepare(claim_ref(name)).await.unwrap();
}

fn of(name: &str) -> [String; 2] {
    [format!("gpu.aliquot.dev-claim_uid-of-{name}.json"), format!("uid-of-{name}.json")]
}

const DRIVER_FILE: &str = "gpu.aliquot.dev-driver.json";

#[tokio::test]
async fn a_claim_is_prepared_as_often_as_kubelet_asks_and_leaves_nothing() {
    let node = Node::new();
    let claims = node.start();
    node.allocate("one", &["gpu-0", "gpu-1"]);
    for _ in 0..2 {
        assert_eq!(prepare(&claims, "one").await, Ok(vec!["gpu-0".to_owned(), "gpu-1".to_owned()]));
        let [cdi, claim] = of("one");
        assert_eq!(node.files(), [cdi, DRIVER_FILE.to_owned(), claim]);
    }
    for _ in 0..2 {
        unprepare(&claims, "one").await;
        assert_eq!(node.files(), [DRIVER_FILE]);
    }
}

#[tokio::test]
async fn kubelet_is_told_what_it_needs() {
    let node = Node::new();
    let claims = node.start();
    let result = json!({"request": "gpu/first", "driver": "gpu.aliquot.dev", "pool": "node-0", "device": "gpu-0", "shareID": "s"});
    node.allocate_as("one", vec![result]);
    let expected = PreparedDevice {
        request: "gpu".to_owned(),
        pool: "node-0".parse().unwrap(),
        device: "gpu-0".parse().unwrap(),
        cdi_ids: vec!["gpu.aliquot.dev/driver=nvidia".to_owned(), "gpu.aliquot.dev/claim=uid-of-one-gpu-0".to_owned()],
        share_id: Some("s".to_owned()),
    };
    let devices = Arc::clone(&claims).prepare(claim_ref("one")).await.unwrap();
    let uid = claim_ref("one").uid;
    let told: Vec<PreparedDevice> = devices.into_iter().map(|device| claims.told(&uid, device)).collect();
    assert_eq!(told, [expected]);
}

#[tokio::test]
async fn a_claim_waits_for_its_device_until_the_holder_lets_go() {
    let node = Node::new();
    let claims = node.start();
    node.allocate("old", &["gpu-0"]);
    node.allocate("new", &["gpu-1", "gpu-0"]);
    prepare(&claims, "old").await.unwrap();
    let waiting = tokio::spawn({
        let claims = Arc::clone(&claims);
        async move { prepare(&claims, "new").await }
    });
    let told = async || {
        // It has looked once, found the device held, and goes on looking.
        while !claims.metrics.text().contains("phase=\"read\",result=\"success\"} 2") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    told().await;
    assert!(!waiting.is_finished());
    unprepare(&claims, "old").await;
    assert_eq!(waiting.await.unwrap(), Ok(vec!["gpu-1".to_owned(), "gpu-0".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_device_that_stays_held_is_named_with_its_holder() {
    let node = Node::new();
    let claims = node.start();
    node.allocate("old", &["gpu-0"]);
    node.allocate("new", &["gpu-0"]);
    prepare(&claims, "old").await.unwrap();
    let error = prepare(&claims, "new").await.unwrap_err();
    let expected = "claim default/new: device gpu-0 is still held by claim default/old, whose pod hasn't ended yet";
    assert_eq!(error, expected);
    assert_eq!(prepare(&claims, "old").await, Ok(vec!["gpu-0".to_owned()]));
}

#[tokio::test]
async fn who_only_watches_excludes_nobody() {
    let node = Node::new();
    let claims = node.start();
    let watching = json!({"request": "all", "driver": "gpu.aliquot.dev", "pool": "node-0", "device": "gpu-0", "adminAccess": true});
    node.allocate_as("monitor", vec![watching]);
    node.allocate("one", &["gpu-0"]);
    for name in ["monitor", "one", "monitor"] {
        assert_eq!(prepare(&claims, name).await, Ok(vec!["gpu-0".to_owned()]), "{name}");
    }
    unprepare(&claims, "monitor").await;
    assert_eq!(prepare(&claims, "one").await, Ok(vec!["gpu-0".to_owned()]));
}

#[tokio::test]
async fn a_prepare_that_fails_is_undone_and_holds_nothing() {
    let node = Node::new();
    let claims = node.start();
    node.allocate("bad", &["gpu-0", "gpu-2"]);
    let error = prepare(&claims, "bad").await.unwrap_err();
    assert!(error.starts_with("claim default/bad: device gpu-2 has no device node"), "{error}");
    assert_eq!(node.files(), [DRIVER_FILE]);
    node.allocate("good", &["gpu-0"]);
    assert_eq!(prepare(&claims, "good").await, Ok(vec!["gpu-0".to_owned()]));
}

#[tokio::test]
async fn a_claim_in_use_stays_prepared_though_its_gpu_went() {
    let node = Node::new();
    let claims = node.start();
    node.allocate("used", &["gpu-0"]);
    prepare(&claims, "used").await.unwrap();
    fs::remove_file(node.path("dev/nvidia0")).unwrap();
    assert!(prepare(&claims, "used").await.unwrap_err().contains("has no device node"));
    assert!(of("used").iter().all(|file| node.files().contains(file)), "{:?}", node.files());
    let turn = claims.store.turn().unwrap();
    let next = PreparedClaim { claim: claim_ref("next"), ..prepared(&turn).next().unwrap().clone() };
    assert_eq!(find_holder(&turn, &next).map(|(_, holder)| holder).as_deref(), Some("default/used"));
}

#[tokio::test]
async fn a_claim_that_is_not_the_one_meant_is_not_prepared() {
    let node = Node::new();
    let claims = node.start();
    let error = prepare(&claims, "none").await.unwrap_err();
    assert!(error.starts_with("get claim default/none:"), "{error}");
    node.allocate("one", &["gpu-0"]);
    let other = ClaimRef::parse("uid-of-an-earlier-one", "default".to_owned(), "one".to_owned()).unwrap();
    let error = Arc::clone(&claims).prepare(other).await.unwrap_err().to_string();
    assert_eq!(error, "claim default/one now has UID uid-of-one: it was deleted and made again");
    assert_eq!(node.files(), Vec::<String>::new());
}

#[tokio::test]
async fn a_new_process_takes_up_what_the_old_one_prepared() {
    let node = Node::new();
    node.allocate("kept", &["gpu-0"]);
    node.allocate("new", &["gpu-0"]);
    prepare(&node.start(), "kept").await.unwrap();
    // Whatever happened to these files, they are what the claim file says.
    let [cdi, _] = of("kept");
    let whole = fs::read(node.path("cdi").join(&cdi)).unwrap();
    for damage in [&b""[..], b"{\"cdiVersion\":"] {
        fs::write(node.path("cdi").join(&cdi), damage).unwrap();
        fs::write(node.path("cdi").join(&of("leaked")[0]), "{}").unwrap();
        fs::write(node.path("cdi").join("other-claim_x.json"), "{}").unwrap();
        fs::write(node.path("cdi").join(format!(".{DRIVER_FILE}.new")), "{").unwrap();
        let claims = node.start();
        assert_eq!(fs::read(node.path("cdi").join(&cdi)).unwrap(), whole);
        assert!(!node.files().contains(&of("leaked")[0]));
        assert!(node.files().contains(&"other-claim_x.json".to_owned()));
        assert!(!node.files().iter().any(|file| file.starts_with('.')), "{:?}", node.files());

        *lock(&node.api_is_away) = true;
        assert_eq!(prepare(&claims, "kept").await, Ok(vec!["gpu-0".to_owned()]));
        *lock(&node.api_is_away) = false;
    }
    unprepare(&node.start(), "kept").await;
    assert_eq!(prepare(&node.start(), "new").await, Ok(vec!["gpu-0".to_owned()]));
}

#[tokio::test]
async fn after_a_reboot_nothing_is_prepared() {
    let node = Node::new();
    node.allocate("old", &["gpu-0"]);
    node.allocate("new", &["gpu-0"]);
    prepare(&node.start(), "old").await.unwrap();
    let claims = node.start_in_boot("boot-2");
    assert!(!node.files().iter().any(|file| of("old").contains(file)), "{:?}", node.files());
    assert_eq!(prepare(&claims, "new").await, Ok(vec!["gpu-0".to_owned()]));
}

#[tokio::test]
async fn a_damaged_file_harms_only_its_own_claim() {
    let node = Node::new();
    node.allocate("good", &["gpu-0"]);
    node.allocate("bad", &["gpu-1"]);
    let claims = node.start();
    prepare(&claims, "good").await.unwrap();
    prepare(&claims, "bad").await.unwrap();
    fs::write(node.path("claims").join(&of("bad")[1]), "{}").unwrap();
    let claims = node.start();
    for (name, device) in [("good", "gpu-0"), ("bad", "gpu-1")] {
        assert_eq!(prepare(&claims, name).await, Ok(vec![device.to_owned()]), "{name}");
    }
}

#[tokio::test]
async fn a_claim_that_was_allocated_anew_waits_for_its_pods_to_end() {
    let node = Node::new();
    let claims = node.start();
    node.allocate("one", &["gpu-0"]);
    prepare(&claims, "one").await.unwrap();
    node.allocate("one", &["gpu-1"]);
    let error = prepare(&claims, "one").await.unwrap_err();
    assert!(error.contains("allocated anew while it is prepared with gpu-0"), "{error}");
    unprepare(&claims, "one").await;
    assert_eq!(prepare(&claims, "one").await, Ok(vec!["gpu-1".to_owned()]));
}

#[tokio::test]
async fn many_claims_at_once_share_two_gpus_one_after_the_other() {
    let node = Node::new();
    let claims = node.start();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..64 {
        let (name, device) = (format!("claim-{n}"), format!("gpu-{}", n % 2));
        node.allocate(&name, &[&device]);
        let claims = Arc::clone(&claims);
        tasks.spawn(async move {
            assert_eq!(prepare(&claims, &name).await, Ok(vec![device]));
            unprepare(&claims, &name).await;
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    assert_eq!(node.files(), [DRIVER_FILE]);
    assert!(Path::new(&node.path("cdi")).join(DRIVER_FILE).is_file());
}

#[tokio::test]
async fn a_call_that_was_overtaken_by_unprepare_prepares_nothing() {
    let node = Node::new();
    let claims = node.start();
    node.allocate("one", &["gpu-0"]);
    prepare(&claims, "one").await.unwrap();
    unprepare(&claims, "one").await;
    // Another pod has it reserved by now: it is wanted again.
    assert_eq!(prepare(&claims, "one").await, Ok(vec!["gpu-0".to_owned()]));
    unprepare(&claims, "one").await;
    lock(&node.claims).get_mut("one").unwrap().status.as_mut().unwrap().reserved_for = None;
    let error = prepare(&claims, "one").await.unwrap_err();
    assert_eq!(error, "claim default/one: it was unprepared, and no pod has it reserved any more");
    assert_eq!(node.files(), [DRIVER_FILE]);
}

#[tokio::test]
async fn two_processes_take_turns_with_the_same_claims() {
    let node = Node::new();
    let (old, new) = (node.start(), node.start());
    node.allocate("one", &["gpu-0"]);
    node.allocate("two", &["gpu-0"]);
    prepare(&old, "one").await.unwrap();
    // kubelet asks the new one about a claim of the old one's.
    assert_eq!(prepare(&new, "one").await, Ok(vec!["gpu-0".to_owned()]));
    let waiting = tokio::spawn({
        let old = Arc::clone(&old);
        async move { prepare(&old, "two").await }
    });
    unprepare(&new, "one").await;
    assert_eq!(waiting.await.unwrap(), Ok(vec!["gpu-0".to_owned()]));
    unprepare(&new, "two").await;
    assert_eq!(node.files(), [DRIVER_FILE]);

    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..64 {
        let name = format!("claim-{n}");
        node.allocate(&name, &["gpu-1"]);
        let claims = Arc::clone(if n % 2 == 0 { &old } else { &new });
        let other = Arc::clone(if n % 3 == 0 { &old } else { &new });
        tasks.spawn(async move {
            assert_eq!(prepare(&claims, &name).await, Ok(vec!["gpu-1".to_owned()]));
            unprepare(&other, &name).await;
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    assert_eq!(node.files(), [DRIVER_FILE]);
}

#[tokio::test(start_paused = true)]
async fn what_a_newer_version_prepared_stays_its_own() {
    let node = Node::new();
    node.allocate("newer", &["gpu-0"]);
    node.allocate("one", &["gpu-0"]);
    node.allocate("two", &["gpu-1"]);
    let claims = node.start();
    prepare(&claims, "newer").await.unwrap();
    let path = node.path("claims").join(&of("newer")[1]);
    let file = prepared(&claims.store.turn().unwrap()).next().unwrap().clone();
    fs::write(&path, crate::store::encode_as(2, &file)).unwrap();

    let claims = node.start();
    assert_eq!(prepare(&claims, "two").await, Ok(vec!["gpu-1".to_owned()]));
    let error = prepare(&claims, "one").await.unwrap_err();
    assert!(error.contains("is still held by claim with UID uid-of-newer (it is of version 2"), "{error}");
    let error = Arc::clone(&claims).unprepare(claim_ref("newer")).await.unwrap_err().to_string();
    assert!(error.contains("the newer version has to run again"), "{error}");
    assert_eq!(prepare(&claims, "newer").await, Err(error));
    assert_eq!(fs::read(&path).unwrap(), crate::store::encode_as(2, &file));
}

#[tokio::test]
async fn a_mig_device_is_its_gpu_and_two_capabilities() {
    let node = Node::new();
    let instance = node.path("proc").join("driver/nvidia/capabilities/gpu1/mig/gi7");
    fs::create_dir_all(instance.join("ci0")).unwrap();
    fs::write(node.path("proc").join("devices"), "237 nvidia-caps\n").unwrap();
    fs::write(instance.join("access"), "DeviceFileMinor: 201\nDeviceFileMode: 292\n").unwrap();
    fs::write(instance.join("ci0/access"), "DeviceFileMinor: 202\nDeviceFileMode: 292\n").unwrap();
    let claims = node.start();
    let device = |gpu_instance| PlannedDevice {
        request: "gpu".to_owned(),
        device: "gpu-1-mig-1g10gb-0".parse().unwrap(),
        uuid: "MIG-a".parse().unwrap(),
        pci: "0000:01:00.0".parse().unwrap(),
        minor: 1,
        mig: Some(MigInstance { gpu_instance, compute_instance: 0 }),
        admin_access: false,
        share_id: None,
    };
    let claim = |device| PreparedClaim { boot_id: BOOT.to_owned(), claim: claim_ref("one"), devices: vec![device] };
    claims.write_claim_spec(&claim(device(7))).unwrap();
    let spec = fs::read_to_string(node.path("cdi").join(&of("one")[0])).unwrap();
    let nodes: Vec<&str> = spec.split("\"path\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(nodes, ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap201", "/dev/nvidia-caps/nvidia-cap202"]);
    let error = claims.write_claim_spec(&claim(device(8))).unwrap_err().to_string();
    assert!(error.starts_with("claim default/one: device gpu-1-mig-1g10gb-0: no DeviceFileMinor in"), "{error}");
}

#[tokio::test]
async fn a_claim_waits_for_a_driver_that_is_away() {
    let node = Node::new();
    let (snapshots, claims) = node.start_with_driver();
    node.allocate("one", &["gpu-0"]);
    let ready = snapshots.borrow().clone().unwrap();
    snapshots.send_replace(Some(Arc::new(Snapshot { is_ready: false, ..(*ready).clone() })));
    let mut waiting = tokio::spawn({
        let claims = Arc::clone(&claims);
        async move { prepare(&claims, "one").await }
    });
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.is_err());
    snapshots.send_replace(Some(ready));
    assert_eq!(waiting.await.unwrap(), Ok(vec!["gpu-0".to_owned()]));
}

#[tokio::test]
async fn a_new_claim_waits_for_an_api_server_that_is_away() {
    let node = Node::new();
    let claims = node.start();
    node.allocate("one", &["gpu-0"]);
    *lock(&node.api_is_away) = true;
    let mut waiting = tokio::spawn({
        let claims = Arc::clone(&claims);
        async move { prepare(&claims, "one").await }
    });
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.is_err());
    *lock(&node.api_is_away) = false;
    assert_eq!(waiting.await.unwrap(), Ok(vec!["gpu-0".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_stays_away_is_named() {
    let node = Node::new();
    let claims = node.start();
    *lock(&node.api_is_away) = true;
    let error = prepare(&claims, "one").await.unwrap_err();
    assert!(error.starts_with("get claim default/one:"), "{error}");
}

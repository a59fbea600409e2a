//! etcd and kube-apiserver, without anything that would act by itself: tests are the scheduler and the garbage collector.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustix::process::Signal;
use serde_json::json;

use crate::folder::Folder;
use crate::process::Process;
use crate::{eventually, variable};

/// Lives as long as its cluster, which nobody else can reach.
const TOKEN: &str = "admin";

/// An API server of its own.
#[derive(Debug)]
pub struct ControlPlane {
    api_server: Process,
    _etcd: Process,
    kubeconfig: PathBuf,
    _folder: Folder,
}

impl ControlPlane {
    /// The one that all tests of this process share.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Option<Arc<ControlPlane>>> = Mutex::new(None);
        tokio::task::block_in_place(|| {
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            let start = || Arc::new(tokio::runtime::Handle::current().block_on(Self::start()));
            Arc::clone(shared.get_or_insert_with(start))
        })
    }

    /// Starts one, and waits until it answers.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one with these features of Kubernetes on or off, each as in `Name=false`.
    pub async fn start_with(features: &[&str]) -> Self {
        let folder = Folder::new();
        let kube = variable("ALIQUOT_KUBE");
        let [clients, peers, api] = free_ports();
        let etcd = Process::start(
            [
                kube.clone(),
                "etcd".to_owned(),
                format!("--data-dir={}", folder.join("etcd").display()),
                "--unsafe-no-fsync".to_owned(),
                format!("--listen-client-urls=http://127.0.0.1:{clients}"),
                format!("--advertise-client-urls=http://127.0.0.1:{clients}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peers}"),
            ],
            &[],
            &folder.join("etcd.log"),
        );
        let certificates = folder.join("certificates");
        let tokens = folder.join("tokens");
        fs::write(&tokens, format!("{TOKEN},admin,admin,system:masters\n")).unwrap();
        let file = |name: &str| certificates.join(name).display().to_string();
        let api_server = Process::start(
            [
                kube,
                "kube-apiserver".to_owned(),
                format!("--etcd-servers=http://127.0.0.1:{clients}"),
                "--bind-address=127.0.0.1".to_owned(),
                "--advertise-address=127.0.0.1".to_owned(),
                // The loopback is nothing that pods could be told of.
                "--endpoint-reconciler-type=none".to_owned(),
                format!("--secure-port={api}"),
                // It makes itself a key and a certificate, which serve for service accounts too: there are none.
                format!("--cert-dir={}", certificates.display()),
                format!("--service-account-key-file={}", file("apiserver.crt")),
                format!("--service-account-signing-key-file={}", file("apiserver.key")),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
                format!("--token-auth-file={}", tokens.display()),
                "--authorization-mode=RBAC".to_owned(),
                "--disable-admission-plugins=ServiceAccount".to_owned(),
                format!("--feature-gates={}", features.join(",")),
            ],
            &[],
            &folder.join("kube-apiserver.log"),
        );
        let kubeconfig = folder.join("kubeconfig");
        write_kubeconfig(&kubeconfig, api, &certificates.join("apiserver.crt"));
        let mut this = Self { api_server, _etcd: etcd, kubeconfig, _folder: folder };
        this.wait_until_ready().await;
        this
    }

    async fn wait_until_ready(&mut self) {
        let end = tokio::time::Instant::now() + crate::PATIENCE;
        loop {
            // Its certificate comes first, and then it answers some requests before others.
            if self.kubeconfig.with_file_name("certificates/apiserver.crt").exists()
                && self.get("/readyz").await.is_some()
            {
                return;
            }
            let ended = self.api_server.ended();
            let is_over = ended.is_some() || tokio::time::Instant::now() > end;
            assert!(!is_over, "no API server ({ended:?}); it says:\n{}", self.api_server.output());
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// What the API server says at this path, if it does.
    pub async fn get(&self, path: &str) -> Option<String> {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        self.client().await.request_text(request).await.ok()
    }

    /// A new client, for the runtime that this is called in.
    pub async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        config.default_retry = false;
        Client::try_from(config).unwrap()
    }

    /// The file with the way to it.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// From now on it takes connections and answers nothing.
    pub fn pause(&self) {
        self.api_server.signal(Signal::STOP);
    }

    /// It goes on.
    pub async fn resume(&self) {
        self.api_server.signal(Signal::CONT);
        eventually("the API server answers again", async || self.get("/readyz").await).await;
    }
}

fn write_kubeconfig(path: &Path, port: u16, certificate: &Path) {
    let name = "rig";
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": name,
            "cluster": {"server": format!("https://127.0.0.1:{port}"), "certificate-authority": certificate},
        }],
        "users": [{"name": name, "user": {"token": TOKEN}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    });
    fs::write(path, config.to_string()).unwrap();
}

/// Ports on which nobody listens.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    // All at once, or they were one.
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

//! Kubelet's part: it finds plugins, registers them and calls them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aliquot_kubelet_api::health_v1::dra_resource_health_client::DraResourceHealthClient;
use aliquot_kubelet_api::health_v1::{HealthStatus, NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use aliquot_kubelet_api::health_v1alpha1::dra_resource_health_client::DraResourceHealthClient as OldDraResourceHealthClient;
use aliquot_kubelet_api::registration::registration_client::RegistrationClient;
use aliquot_kubelet_api::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use aliquot_kubelet_api::v1::dra_plugin_client::DraPluginClient;
use aliquot_kubelet_api::v1beta1::dra_plugin_client::DraPluginClient as OldDraPluginClient;
use aliquot_kubelet_api::{DRA_V1, DRA_V1BETA1, HEALTH_V1, HEALTH_V1ALPHA1, PLUGIN_TYPE, health_v1alpha1, v1, v1beta1};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::node::Claim;
use crate::plugin::Plugin;
use crate::{PATIENCE, eventually, folder};

/// What a plugin answers for each claim, by UID.
pub type Answers<T> = BTreeMap<String, Result<T, String>>;

/// Kubelet, as far as plugins know it.
#[derive(Debug)]
pub struct Kubelet {
    registry: PathBuf,
    driver: String,
}

impl Kubelet {
    pub(crate) fn new(root: &Path, driver: &str) -> Self {
        Self { registry: root.join("plugins_registry"), driver: driver.to_owned() }
    }

    /// The sockets in the folder that kubelet watches.
    pub fn sockets(&self) -> Vec<PathBuf> {
        folder::names(&self.registry).into_iter().map(|name| self.registry.join(name)).collect()
    }

    /// The socket on which this process wants to be found, if there is one yet.
    pub async fn socket_of(&self, plugin: &Plugin) -> Option<PathBuf> {
        for socket in self.sockets() {
            if let Ok(stream) = UnixStream::connect(&socket).await
                && stream.peer_cred().is_ok_and(|peer| peer.pid() == i32::try_from(plugin.pid()).ok())
            {
                return Some(socket);
            }
        }
        None
    }

    /// Finds a plugin, registers it and connects to it, as kubelet does.
    pub async fn register(&self, plugin: &Plugin) -> Dra {
        let socket = eventually("the plugin's registration socket", async || {
            assert!(!plugin.has_ended(), "the plugin has ended; its log says why");
            self.socket_of(plugin).await
        })
        .await;
        let mut registration = RegistrationClient::new(connect(&socket).await);
        let info = registration.get_info(InfoRequest {}).await.unwrap().into_inner();
        let expected = PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: self.driver.clone(),
            endpoint: info.endpoint.clone(),
            supported_versions: [DRA_V1, DRA_V1BETA1, HEALTH_V1, HEALTH_V1ALPHA1].map(str::to_owned).to_vec(),
        };
        let versions = |info: &PluginInfo| info.supported_versions.clone();
        assert!(expected.supported_versions.iter().all(|version| versions(&info).contains(version)), "{info:?}");
        assert_eq!((&info.r#type, &info.name), (&expected.r#type, &expected.name));
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        registration.notify_registration_status(status).await.unwrap();
        Dra::connect(Path::new(&info.endpoint)).await
    }
}

/// A plugin's socket for claims.
#[derive(Debug, Clone)]
pub struct Dra {
    endpoint: PathBuf,
    new: DraPluginClient<Channel>,
    old: OldDraPluginClient<Channel>,
    health: DraResourceHealthClient<Channel>,
    old_health: OldDraResourceHealthClient<Channel>,
}

/// How each device is doing, by name, and why.
pub type Healths = BTreeMap<String, (HealthStatus, String)>;

/// What a plugin tells of its devices, for as long as this is there.
#[derive(Debug)]
pub struct HealthReports {
    pool: String,
    stream: Streaming<NodeWatchResourcesResponse>,
}

impl HealthReports {
    /// The next report; none if the plugin has ended them.
    pub async fn next(&mut self) -> Option<Healths> {
        let next = tokio::time::timeout(PATIENCE, self.stream.message()).await.expect("a report");
        let devices = next.unwrap()?.devices.into_iter().map(|device| {
            assert!(device.last_updated_time > 0 && device.health_check_timeout_seconds > 0, "{device:?}");
            let health = (device.health(), device.message.clone());
            let id = device.device.unwrap();
            assert_eq!(id.pool_name, self.pool);
            (id.device_name, health)
        });
        Some(devices.collect())
    }

    /// Waits until a report is as wanted.
    pub async fn until(&mut self, what: &str, is: impl Fn(&Healths) -> bool) -> Healths {
        let mut last = Healths::new();
        let wanted = async {
            while let Some(healths) = self.next().await {
                last.clone_from(&healths);
                if is(&healths) {
                    return healths;
                }
            }
            panic!("the reports end before {what}")
        };
        let waited = tokio::time::timeout(PATIENCE, wanted).await;
        waited.unwrap_or_else(|_| panic!("not after {PATIENCE:?}: {what}; the last report is {last:?}"))
    }
}

impl Dra {
    async fn connect(endpoint: &Path) -> Self {
        let channel = connect(endpoint).await;
        Self {
            endpoint: endpoint.to_owned(),
            new: DraPluginClient::new(channel.clone()),
            old: OldDraPluginClient::new(channel.clone()),
            health: DraResourceHealthClient::new(channel.clone()),
            old_health: OldDraResourceHealthClient::new(channel),
        }
    }

    /// The socket.
    pub fn endpoint(&self) -> &Path {
        &self.endpoint
    }

    /// One call for several claims.
    pub async fn prepare(&self, claims: &[&Claim]) -> Result<Answers<Vec<v1::Device>>, Status> {
        let request = v1::NodePrepareResourcesRequest { claims: claims.iter().map(Into::into).collect() };
        let answers = self.new.clone().node_prepare_resources(request).await?.into_inner().claims;
        Ok(answers.into_iter().map(|(uid, answer)| (uid, result(answer.devices, answer.error))).collect())
    }

    /// One call for one claim. A call that fails as a whole is an error too.
    pub async fn prepare_one(&self, claim: &Claim) -> Result<Vec<v1::Device>, String> {
        the_only(self.prepare(&[claim]).await, claim)
    }

    /// As kubelets before 1.34 ask.
    pub async fn prepare_v1beta1(&self, claim: &Claim) -> Result<Vec<v1beta1::Device>, String> {
        let request = v1beta1::NodePrepareResourcesRequest { claims: vec![claim.into()] };
        let answers = self.old.clone().node_prepare_resources(request).await.map(|answers| {
            let answers = answers.into_inner().claims.into_iter();
            answers.map(|(uid, answer)| (uid, result(answer.devices, answer.error))).collect()
        });
        the_only(answers, claim)
    }

    /// One call for several claims.
    pub async fn unprepare(&self, claims: &[&Claim]) -> Result<Answers<()>, Status> {
        let request = v1::NodeUnprepareResourcesRequest { claims: claims.iter().map(Into::into).collect() };
        let answers = self.new.clone().node_unprepare_resources(request).await?.into_inner().claims;
        Ok(answers.into_iter().map(|(uid, answer)| (uid, result((), answer.error))).collect())
    }

    /// One call for one claim. A call that fails as a whole is an error too.
    pub async fn unprepare_one(&self, claim: &Claim) -> Result<(), String> {
        the_only(self.unprepare(&[claim]).await, claim)
    }

    /// Begins to watch how the devices of a pool are doing.
    pub async fn watch_health(&self, pool: &str) -> HealthReports {
        let stream = self.health.clone().node_watch_resources(NodeWatchResourcesRequest {}).await.unwrap();
        HealthReports { pool: pool.to_owned(), stream: stream.into_inner() }
    }

    /// The first report, as kubelets before 1.37 ask for it.
    pub async fn health_v1alpha1(&self) -> health_v1alpha1::NodeWatchResourcesResponse {
        let request = health_v1alpha1::NodeWatchResourcesRequest {};
        let stream = self.old_health.clone().node_watch_resources(request).await.unwrap();
        stream.into_inner().message().await.unwrap().expect("a report")
    }

    /// As kubelets before 1.34 ask.
    pub async fn unprepare_v1beta1(&self, claim: &Claim) -> Result<(), String> {
        let request = v1beta1::NodeUnprepareResourcesRequest { claims: vec![claim.into()] };
        let answers = self.old.clone().node_unprepare_resources(request).await.map(|answers| {
            let answers = answers.into_inner().claims.into_iter();
            answers.map(|(uid, answer)| (uid, result((), answer.error))).collect()
        });
        the_only(answers, claim)
    }
}

fn result<T>(value: T, error: String) -> Result<T, String> {
    if error.is_empty() { Ok(value) } else { Err(error) }
}

/// kubelet refuses an answer that lacks a claim or has one too many.
fn the_only<T>(answers: Result<Answers<T>, Status>, claim: &Claim) -> Result<T, String> {
    let mut answers = answers.map_err(|status| status.to_string())?;
    let answer = answers.remove(&claim.uid).expect("an answer for the claim");
    assert!(answers.is_empty(), "answers for claims that were not asked for");
    answer
}

async fn connect(socket: &Path) -> Channel {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://plugin");
    endpoint.connect_with_connector(connector).await.unwrap_or_else(|error| panic!("{}: {error}", socket.display()))
}

impl From<&&Claim> for v1::Claim {
    fn from(claim: &&Claim) -> Self {
        Self { namespace: claim.namespace.clone(), uid: claim.uid.clone(), name: claim.name.clone() }
    }
}

impl From<&Claim> for v1beta1::Claim {
    fn from(claim: &Claim) -> Self {
        Self { namespace: claim.namespace.clone(), uid: claim.uid.clone(), name: claim.name.clone() }
    }
}

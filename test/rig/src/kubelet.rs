//! Kubelet's part: it finds plugins, registers them and calls them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aliquot_kubelet_api::registration::registration_client::RegistrationClient;
use aliquot_kubelet_api::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use aliquot_kubelet_api::v1::dra_plugin_client::DraPluginClient;
use aliquot_kubelet_api::v1beta1::dra_plugin_client::DraPluginClient as OldDraPluginClient;
use aliquot_kubelet_api::{DRA_V1, DRA_V1BETA1, PLUGIN_TYPE, v1, v1beta1};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::node::Claim;
use crate::plugin::Plugin;
use crate::{eventually, folder};

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
            supported_versions: vec![DRA_V1.to_owned(), DRA_V1BETA1.to_owned()],
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
}

impl Dra {
    async fn connect(endpoint: &Path) -> Self {
        let channel = connect(endpoint).await;
        Self {
            endpoint: endpoint.to_owned(),
            new: DraPluginClient::new(channel.clone()),
            old: OldDraPluginClient::new(channel),
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

//! The services that kubelet calls, and how it finds them.
//!
//! kubelet watches a folder for sockets, asks whoever listens there ([`Registration`]) and then calls the socket that it is
//! told. Each process has sockets of its own names, so that an old and a new one can overlap.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use aliquot_api::ids::{DriverName, IdError};
use aliquot_kubelet_api::registration::registration_server::{Registration, RegistrationServer};
use aliquot_kubelet_api::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use aliquot_kubelet_api::{
    DRA_V1, DRA_V1BETA1, HEALTH_V1, HEALTH_V1ALPHA1, PLUGIN_TYPE, health_v1, health_v1alpha1, v1, v1beta1,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::claims::{ClaimError, Claims, PreparedDevice};
use crate::cluster::ClaimRef;
use crate::files::{self, At, FileError};
use crate::health::HealthReports;
use crate::metrics::{Metrics, Operation};
use crate::reports::Reporter;
use aliquot_device::hash::sha256;

/// The longest path of a socket, with the zero that ends it: `sun_path` has 108 bytes.
const PATH_MAX: usize = 107;

/// A server ended though nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The socket can't be made.
    #[error(transparent)]
    File(#[from] FileError),
    /// No name for the socket is short enough.
    #[error("{}: no socket's path in this folder has {PATH_MAX} bytes or less; use a shorter kubelet root", .folder.display())]
    PathTooLong {
        /// The folder.
        folder: PathBuf,
    },
    /// Serving failed.
    #[error("{}: serve: {cause}", .socket.display())]
    Serve {
        /// The socket.
        socket: PathBuf,
        /// Why.
        #[source]
        cause: tonic::transport::Error,
    },
}

/// The two sockets of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sockets {
    /// Where claims are prepared.
    pub dra: PathBuf,
    /// Where kubelet asks who we are.
    pub registration: PathBuf,
}

impl Sockets {
    /// Names that differ from those of other processes, which have another `instance`.
    ///
    /// kubelet makes the registration socket's path the `:authority` of its calls, with `/` as `%2F`. Our HTTP library takes that only
    /// in front of an `@`.
    pub(crate) fn new(
        plugin_folder: &Path,
        registry: &Path,
        driver: &DriverName,
        instance: &str,
    ) -> Result<Self, ServeError> {
        let short = short_hash(instance);
        let dra = [format!("dra-{instance}.sock"), format!("dra-{short}.sock"), format!("{short}.sock")];
        let registration = Self::registration_prefixes(driver).map(|prefix| format!("{prefix}{short}.sock"));
        let registration = [format!("{driver}@{instance}.sock")].into_iter().chain(registration);
        let registration: Vec<String> = registration.collect();
        Ok(Self { dra: fitting(plugin_folder, &dra)?, registration: fitting(registry, &registration)? })
    }

    /// How the names of a driver's registration sockets begin.
    pub(crate) fn registration_prefixes(driver: &DriverName) -> [String; 2] {
        [format!("{driver}@"), format!("{}@", short_hash(driver.as_str()))]
    }
}

/// Eight digits: there are as many names as processes of one driver on one node at once, which is two.
fn short_hash(text: &str) -> String {
    sha256(text.as_bytes()).split_off(56)
}

fn fitting(folder: &Path, names: &[String]) -> Result<PathBuf, ServeError> {
    names
        .iter()
        .map(|name| folder.join(name))
        .find(|path| path.as_os_str().as_bytes().len() <= PATH_MAX)
        .ok_or_else(|| ServeError::PathTooLong { folder: folder.to_owned() })
}

/// Removes sockets on which nobody listens any more: a process that was killed can't do it itself.
pub(crate) async fn remove_dead_sockets(folder: &Path, prefix: &str) -> Result<(), FileError> {
    for name in files::list(folder)? {
        let path = folder.join(&name);
        let is_socket = name.starts_with(prefix) && path.extension().is_some_and(|extension| extension == "sock");
        if is_socket
            && UnixStream::connect(&path).await.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
        {
            tracing::info!(socket = %path.display(), "removing a dead socket");
            files::remove(&path)?;
        }
    }
    Ok(())
}

fn listen(socket: &Path) -> Result<UnixListener, FileError> {
    files::remove(socket)?;
    UnixListener::bind(socket).at("listen on", socket)
}

/// Serves claims and the health of devices until cancelled; then lets running calls end.
pub(crate) async fn serve_dra(
    socket: PathBuf,
    dra: Dra,
    health: HealthReports,
    cancel: CancellationToken,
) -> Result<(), ServeError> {
    let listener = listen(&socket)?;
    let served = Server::builder()
        .add_service(v1::dra_plugin_server::DraPluginServer::new(dra.clone()))
        .add_service(v1beta1::dra_plugin_server::DraPluginServer::new(dra))
        .add_service(health_v1::dra_resource_health_server::DraResourceHealthServer::new(health.clone()))
        .add_service(health_v1alpha1::dra_resource_health_server::DraResourceHealthServer::new(health))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), cancel.cancelled_owned())
        .await;
    files::remove(&socket)?;
    served.map_err(|cause| ServeError::Serve { socket, cause })
}

/// Tells kubelet of us until cancelled. The socket goes first, which is how kubelet learns of our end.
pub(crate) async fn serve_registration(
    socket: PathBuf,
    registrar: Registrar,
    cancel: CancellationToken,
) -> Result<(), ServeError> {
    let listener = listen(&socket)?;
    let path = socket.clone();
    let end = async move {
        cancel.cancelled_owned().await;
        if let Err(error) = files::remove(&path) {
            tracing::error!(%error, "kubelet will take us for alive until it restarts");
        }
    };
    Server::builder()
        .add_service(RegistrationServer::new(registrar))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), end)
        .await
        .map_err(|cause| ServeError::Serve { socket, cause })
}

/// Answers kubelet's question who we are.
pub(crate) struct Registrar {
    /// Our driver's name.
    pub driver: DriverName,
    /// Where claims are prepared.
    pub endpoint: PathBuf,
    /// Whether kubelet has taken us.
    pub registered: watch::Sender<bool>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: self.driver.to_string(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: [DRA_V1, DRA_V1BETA1, HEALTH_V1, HEALTH_V1ALPHA1].map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = status.into_inner();
        if status.plugin_registered {
            tracing::info!(driver = %self.driver, "kubelet has registered us");
        } else {
            tracing::error!(driver = %self.driver, error = status.error, "kubelet refuses us");
        }
        self.registered.send_replace(status.plugin_registered);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Prepares and unprepares what kubelet asks for.
#[derive(Clone)]
pub(crate) struct Dra {
    /// The claims.
    pub claims: Arc<Claims>,
    /// Where calls are counted.
    pub metrics: Arc<Metrics>,
    /// Tells people about claims.
    pub reporter: Reporter,
    /// Calls and reports run here to their end, also when kubelet doesn't wait for it.
    pub tasks: TaskTracker,
}

/// A claim in any version's words.
struct Asked {
    uid: String,
    namespace: String,
    name: String,
}

impl Dra {
    async fn prepare(&self, asked: Vec<Asked>) -> BTreeMap<String, Result<Vec<PreparedDevice>, String>> {
        let (reporter, tasks) = (self.reporter.clone(), self.tasks.clone());
        self.each(Operation::Prepare, asked, move |claims, claim| {
            let (reporter, tasks) = (reporter.clone(), tasks.clone());
            async move {
                let prepared = Arc::clone(&claims).prepare(claim.clone()).await;
                let report = prepared.as_ref().map(Clone::clone).map_err(ToString::to_string);
                let reason = prepared.as_ref().err().map(ClaimError::event_reason);
                let uid = claim.uid.clone();
                tasks.spawn(async move {
                    match (report, reason) {
                        (Ok(devices), _) => reporter.prepared(&claim, &devices).await,
                        (Err(error), reason) => reporter.refused(&claim, reason.unwrap_or_default(), error).await,
                    }
                });
                Ok(prepared?.into_iter().map(|device| claims.told(&uid, device)).collect())
            }
        })
        .await
    }

    async fn unprepare(&self, asked: Vec<Asked>) -> BTreeMap<String, Result<(), String>> {
        self.each(Operation::Unprepare, asked, |claims, claim| async move { claims.unprepare(claim).await }).await
    }

    /// All claims of a call at once. Each has its own answer.
    async fn each<T, F>(
        &self,
        operation: Operation,
        asked: Vec<Asked>,
        work: impl Fn(Arc<Claims>, ClaimRef) -> F,
    ) -> BTreeMap<String, Result<T, String>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ClaimError>> + Send + 'static,
    {
        let mut running = Vec::new();
        for Asked { uid, namespace, name } in asked {
            let claim = ClaimRef::parse(&uid, namespace, name);
            let task = claim.map(|claim| {
                let (work, metrics) = (work(Arc::clone(&self.claims), claim.clone()), Arc::clone(&self.metrics));
                self.tasks.spawn(async move {
                    let start = Instant::now();
                    let result = work.await;
                    let took = start.elapsed();
                    metrics.call(operation, took, result.as_ref().err().map(ClaimError::reason));
                    let (what, millis) = (format!("{operation:?}"), took.as_secs_f64() * 1000.0);
                    match &result {
                        Ok(_) => tracing::info!(operation = what, claim = %claim, claim.uid = %claim.uid, millis, "done"),
                        Err(error) => {
                            tracing::warn!(operation = what, claim = %claim, claim.uid = %claim.uid, millis, %error, "failed");
                        }
                    }
                    result
                })
            });
            running.push((uid, task));
        }
        let mut answers = BTreeMap::new();
        for (uid, task) in running {
            let answer = match task {
                Ok(task) => match task.await {
                    Ok(result) => result.map_err(|error| error.to_string()),
                    Err(error) => Err(format!("claim {uid}: the plugin failed: {error}")),
                },
                Err(error) => Err(IdError::to_string(&error)),
            };
            answers.insert(uid, answer);
        }
        answers
    }
}

/// The two versions differ in their types, and in that the older has no share IDs.
macro_rules! serve_version {
    ($version:ident, |$device:ident| { $($share:tt)* }) => {
        #[tonic::async_trait]
        impl $version::dra_plugin_server::DraPlugin for Dra {
            async fn node_prepare_resources(
                &self,
                request: Request<$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<$version::NodePrepareResourcesResponse>, Status> {
                let answers = self.prepare(request.into_inner().claims.into_iter().map(Asked::from).collect()).await;
                let claims = answers.into_iter().map(|(uid, answer)| {
                    let answer = match answer {
                        Ok(devices) => $version::NodePrepareResourceResponse {
                            devices: devices
                                .into_iter()
                                .map(|$device| $version::Device {
                                    request_names: vec![$device.request],
                                    pool_name: $device.pool.to_string(),
                                    device_name: $device.device.to_string(),
                                    cdi_device_ids: $device.cdi_ids,
                                    $($share)*
                                })
                                .collect(),
                            error: String::new(),
                        },
                        Err(error) => $version::NodePrepareResourceResponse { devices: Vec::new(), error },
                    };
                    (uid, answer)
                });
                Ok(Response::new($version::NodePrepareResourcesResponse { claims: claims.collect() }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let answers = self.unprepare(request.into_inner().claims.into_iter().map(Asked::from).collect()).await;
                let claims = answers.into_iter().map(|(uid, answer)| {
                    (uid, $version::NodeUnprepareResourceResponse { error: answer.err().unwrap_or_default() })
                });
                Ok(Response::new($version::NodeUnprepareResourcesResponse { claims: claims.collect() }))
            }
        }

        impl From<$version::Claim> for Asked {
            fn from(claim: $version::Claim) -> Self {
                Self { uid: claim.uid, namespace: claim.namespace, name: claim.name }
            }
        }
    };
}

serve_version!(v1, |device| { share_id: device.share_id, });
serve_version!(v1beta1, |device| {});

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(root: &str, driver: &str, instance: &str) -> Result<Sockets, ServeError> {
        let (plugin, registry) = (format!("{root}/plugins/{driver}"), format!("{root}/plugins_registry"));
        Sockets::new(Path::new(&plugin), Path::new(&registry), &driver.parse().unwrap(), instance)
    }

    #[test]
    fn sockets_have_readable_names_where_there_is_room() {
        let uid = "7d1c6f0e-6f0a-4c39-9a3e-0f2c5a5f9d11";
        let sockets = sockets("/var/lib/kubelet", "gpu.aliquot.dev", uid).unwrap();
        assert_eq!(sockets.dra, Path::new("/var/lib/kubelet/plugins/gpu.aliquot.dev").join(format!("dra-{uid}.sock")));
        let registration = Path::new("/var/lib/kubelet/plugins_registry").join(format!("gpu.aliquot.dev@{uid}.sock"));
        assert_eq!(sockets.registration, registration);
    }

    #[test]
    fn long_names_become_short_and_stay_apart() {
        let (root, driver) =
            ("/data/rke2/agent/var/lib/kubelet", "a.driver.name.of.the.greatest.length-that.the.api.allows.com");
        let one = sockets(root, driver, "7d1c6f0e-6f0a-4c39-9a3e-0f2c5a5f9d11");
        // A driver's folder of 63 characters leaves no room for anything below this root.
        let (one, two) = match (one, sockets("/k", driver, "other")) {
            (Err(ServeError::PathTooLong { .. }), Ok(two)) => (sockets("/k", driver, "x").unwrap(), two),
            (one, two) => (one.unwrap(), two.unwrap()),
        };
        assert_ne!(one, two);
        for path in [&one.dra, &one.registration, &two.dra, &two.registration] {
            assert!(path.as_os_str().len() <= PATH_MAX, "{}", path.display());
        }
        for path in [&one.registration, &two.registration] {
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(name.contains('@') && !name.starts_with('.') && !name.ends_with('@'), "{name}");
        }
    }

    #[tokio::test]
    async fn only_dead_sockets_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        drop(UnixListener::bind(path("driver@dead.sock")).unwrap());
        drop(UnixListener::bind(path("other@dead.sock")).unwrap());
        let _alive = UnixListener::bind(path("driver@alive.sock")).unwrap();
        remove_dead_sockets(folder.path(), "driver@").await.unwrap();
        assert_eq!(files::list(folder.path()).unwrap(), ["driver@alive.sock", "other@dead.sock"]);
    }
}

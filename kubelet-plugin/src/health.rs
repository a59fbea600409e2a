//! Tells kubelet how the devices are doing, which shows it in the status of the pods that have them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_api::ids::PoolName;
use aliquot_device::health::{Conditions, Health, Held, judge};
use aliquot_device::inventory::Inventory;
use aliquot_kubelet_api::{health_v1, health_v1alpha1};
use futures::{Stream, StreamExt};
use tokio::sync::watch;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::gpus::Snapshot;

/// For how many seconds kubelet may take what it was told for true.
const TRUE_FOR: i64 = 30;

/// After this time without news all is told again. When one plugin replaces another, kubelet forgets what both said as the old one's
/// stream ends.
const TELL_AGAIN: Duration = Duration::from_secs(10);

/// Judges the devices until cancelled: whenever something was seen, and whenever claims come or go.
pub(crate) async fn watch(
    mut snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    mut held: watch::Receiver<Held>,
    conditions: watch::Sender<Arc<Conditions>>,
    cancel: CancellationToken,
) -> Result<(), Infallible> {
    let nothing = Inventory::default();
    loop {
        let before = Arc::clone(&conditions.borrow());
        let now = {
            let (snapshot, held) = (snapshot.borrow_and_update(), held.borrow_and_update());
            match snapshot.as_deref() {
                Some(seen) => judge(&before, &held, &seen.inventory, &seen.problems, seen.is_ready),
                None => judge(&before, &held, &nothing, &[], false),
            }
        };
        if now != *before {
            conditions.send_replace(Arc::new(now));
        }
        let changed = tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            changed = snapshot.changed() => changed,
            changed = held.changed() => changed,
        };
        // Who looks has been cancelled too.
        if changed.is_err() {
            return Ok(());
        }
    }
}

/// What kubelet is told.
#[derive(Clone)]
pub(crate) struct HealthReports {
    /// This node's pool.
    pub pool: PoolName,
    /// How its devices are doing.
    pub conditions: watch::Receiver<Arc<Conditions>>,
}

impl HealthReports {
    /// All devices at once, and again whenever something changes. They end when nobody judges any more: kubelet would never end them,
    /// and a server that is to stop waits for that.
    fn reports<T>(&self, report: fn(&PoolName, &Conditions, i64) -> T) -> Reports<T>
    where
        T: Send + 'static,
    {
        let (pool, start) = (self.pool.clone(), (self.conditions.clone(), interval(TELL_AGAIN)));
        let conditions = futures::stream::unfold(start, async |(mut conditions, mut again)| {
            tokio::select! {
                _ = again.tick() => {}
                changed = conditions.changed() => {
                    changed.ok()?;
                    again.reset();
                }
            }
            let now = Arc::clone(&conditions.borrow_and_update());
            Some((now, (conditions, again)))
        });
        let reports = conditions.map(move |conditions| {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            Ok(report(&pool, &conditions, since_1970.try_into().unwrap_or(i64::MAX)))
        });
        Box::pin(reports)
    }
}

type Reports<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The two versions differ in nothing but their names.
macro_rules! serve_version {
    ($version:ident) => {
        #[tonic::async_trait]
        impl $version::dra_resource_health_server::DraResourceHealth for HealthReports {
            type NodeWatchResourcesStream = Reports<$version::NodeWatchResourcesResponse>;

            async fn node_watch_resources(
                &self,
                _: Request<$version::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                Ok(Response::new(self.reports(|pool, conditions, last_updated_time| {
                    let devices = conditions.iter().map(|(name, condition)| {
                        let (health, message) = match &condition.health {
                            Health::Unknown => ($version::HealthStatus::Unknown, String::new()),
                            Health::Healthy => ($version::HealthStatus::Healthy, String::new()),
                            Health::Unhealthy(why) => ($version::HealthStatus::Unhealthy, why.clone()),
                        };
                        $version::DeviceHealth {
                            device: Some($version::DeviceIdentifier {
                                pool_name: pool.to_string(),
                                device_name: name.to_string(),
                            }),
                            health: health.into(),
                            last_updated_time,
                            health_check_timeout_seconds: TRUE_FOR,
                            message,
                        }
                    });
                    $version::NodeWatchResourcesResponse { devices: devices.collect() }
                })))
            }
        }
    };
}

serve_version!(health_v1);
serve_version!(health_v1alpha1);

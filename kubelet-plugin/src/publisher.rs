//! Keeps the API's slices as the node's devices are: after a change here, and after a change there, since kubelet removes all slices of
//! its node when it starts, and people remove them too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api::ids::{DriverName, PoolName};
use aliquot_device::publish::{Action, Owner, Pool, plan};
use futures::StreamExt;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, ClusterError};
use crate::gpus::Snapshot;
use crate::metrics::Metrics;

/// After a write that failed.
const RETRY: Duration = Duration::from_secs(2);

/// What is published, and where.
pub(crate) struct Publisher {
    /// The API server.
    pub cluster: Cluster,
    /// Our driver's name.
    pub driver: DriverName,
    /// This node's pool.
    pub pool: PoolName,
    /// This node.
    pub node: String,
    /// The devices; none until the driver answers.
    pub snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    /// Whether the API shows them.
    pub published: watch::Sender<bool>,
    /// Where writes are counted.
    pub metrics: Arc<Metrics>,
}

/// Our slices in the API, as far as we have heard.
#[derive(Default)]
struct Index {
    slices: BTreeMap<String, ResourceSlice>,
    /// A new list, while it arrives.
    list: BTreeMap<String, ResourceSlice>,
    /// Whether a whole list has arrived.
    is_whole: bool,
}

impl Index {
    fn apply(&mut self, event: Event<ResourceSlice>) {
        let name = |slice: &ResourceSlice| slice.metadata.name.clone().unwrap_or_default();
        match event {
            Event::Init => self.list.clear(),
            Event::InitApply(slice) => {
                self.list.insert(name(&slice), slice);
            }
            Event::InitDone => {
                self.slices = std::mem::take(&mut self.list);
                self.is_whole = true;
            }
            Event::Apply(slice) => {
                self.slices.insert(name(&slice), slice);
            }
            Event::Delete(slice) => {
                self.slices.remove(&name(&slice));
            }
        }
    }

    /// The Node that owns what is published; empty if that is nothing.
    fn owner_uid(&self) -> String {
        let owners = self.slices.values().filter_map(|slice| slice.metadata.owner_references.as_ref()?.first());
        owners.map(|owner| owner.uid.clone()).next().unwrap_or_default()
    }
}

impl Publisher {
    /// Publishes until cancelled. The slices stay: kubelet removes them if we don't come back.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let api = Api::<ResourceSlice>::all(self.cluster.client());
        let ours =
            watcher::Config::default().fields(&format!("spec.driver={},spec.nodeName={}", self.driver, self.node));
        let mut events = watcher(api, ours).default_backoff().boxed();
        let mut index = Index::default();
        let mut told: Option<String> = None;
        let mut retry = false;
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                event = events.next() => match event {
                    Some(Ok(event)) => index.apply(event),
                    Some(Err(error)) => tracing::warn!(%error, "watching our slices failed; trying again"),
                    // The stream of a watcher has no end.
                    None => return,
                },
                changed = self.snapshot.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(RETRY), if retry => {}
            }
            retry = false;
            let Some(snapshot) = self.snapshot.borrow_and_update().clone() else { continue };
            if !index.is_whole {
                continue;
            }
            match self.reconcile(&snapshot, &mut index).await {
                Ok(()) => {
                    told = None;
                    self.published.send_replace(true);
                }
                Err(error) => {
                    retry = true;
                    // Somebody was faster: what they did is on its way to us.
                    let text = error.to_string();
                    if !error.is_conflict() && told.as_ref() != Some(&text) {
                        tracing::error!(%error, "can't publish the node's devices; trying again");
                        told = Some(text);
                    }
                }
            }
        }
    }

    async fn reconcile(&self, snapshot: &Snapshot, index: &mut Index) -> Result<(), ClusterError> {
        let (devices, _) = snapshot.inventory.devices();
        let owner = Owner { node: self.node.clone(), uid: index.owner_uid() };
        let mut pool = Pool { driver: self.driver.clone(), name: self.pool.clone(), owner, devices };
        let existing: Vec<ResourceSlice> = index.slices.values().cloned().collect();
        if plan(&pool, &existing).is_empty() {
            return Ok(());
        }
        // Slices of a Node that was made again go one after the other: ask who owns them before anything is written.
        pool.owner.uid = self.cluster.node_uid(&self.node).await?;
        for action in plan(&pool, &existing) {
            let done = self.carry_out(action, index).await;
            self.metrics.slice_write(done.is_ok());
            done?;
        }
        Ok(())
    }

    async fn carry_out(&self, action: Action, index: &mut Index) -> Result<(), ClusterError> {
        let written = match action {
            Action::Delete { name, uid } => {
                self.cluster.delete_slice(&name, &uid).await?;
                tracing::info!(slice = name, "deleted a slice");
                index.slices.remove(&name);
                return Ok(());
            }
            Action::Update(slice) => self.cluster.update_slice(&slice).await?,
            Action::Create(slice) => self.cluster.create_slice(&slice).await?,
        };
        tracing::info!(
            slice = written.metadata.name,
            devices = written.spec.devices.as_ref().map_or(0, Vec::len),
            generation = written.spec.pool.generation,
            "published a slice"
        );
        index.apply(Event::Apply(written));
        Ok(())
    }
}

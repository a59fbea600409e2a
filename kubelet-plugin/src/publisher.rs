//! Keeps the API's slices as the node's devices are: after a change here, and after a change there, since kubelet removes all slices of
//! its node when it starts, and people remove them too.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api::ids::{DriverName, PoolName};
use aliquot_device::publish::{Action, Owner, Pool, is_same, plan};
use futures::StreamExt;
use k8s_openapi::api::resource::v1::{ResourceSlice, ResourceSliceSpec};
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, ClusterError};
use crate::files::{self, At, FileError};
use crate::gpus::Snapshot;
use crate::metrics::Metrics;

/// How often a process that waits looks whether the one that publishes has ended.
const LOOK_FOR_TURN: Duration = Duration::from_millis(100);

/// After a write that failed.
const RETRY: Duration = Duration::from_secs(2);

/// So often in a row may somebody be faster: what they did is on its way to us. More often, a slice that isn't ours has our name.
const CONFLICTS: u32 = 3;

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
    /// Whether the controller allocates our devices, and kube-scheduler must not.
    pub is_fenced: bool,
    /// The devices; none until the driver answers.
    pub snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    /// Whether the API shows them.
    pub published: watch::Sender<Published>,
    /// The lock of who publishes: two versions would undo each other's slices while one replaces the other.
    pub lock: PathBuf,
    /// Where writes are counted.
    pub metrics: Arc<Metrics>,
}

/// Whether the API shows the node's devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Published {
    /// Not yet.
    No,
    /// Another process of this plugin takes care of it, until it ends.
    ByAnother,
    /// By us.
    Yes,
}

/// Our slices in the API, as far as we have heard.
#[derive(Default)]
struct Index {
    slices: BTreeMap<String, ResourceSlice>,
    /// A new list, while it arrives.
    list: BTreeMap<String, ResourceSlice>,
    /// Whether a whole list has arrived.
    is_whole: bool,
    /// What we wrote and what the server made of it, where it dropped something: by the slice's name.
    altered: BTreeMap<String, (ResourceSliceSpec, ResourceSliceSpec)>,
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

    /// The slices as we mean them: what a server drops, it drops again.
    fn as_meant(&self) -> Vec<ResourceSlice> {
        let mean = |(name, slice): (&String, &ResourceSlice)| match self.altered.get(name) {
            Some((wanted, stored)) if *stored == slice.spec => {
                ResourceSlice { spec: wanted.clone(), metadata: slice.metadata.clone() }
            }
            Some(_) | None => slice.clone(),
        };
        self.slices.iter().map(mean).collect()
    }

    /// The Node that owns what is published; empty if that is nothing.
    fn owner_uid(&self) -> String {
        let owners = self.slices.values().filter_map(|slice| slice.metadata.owner_references.as_ref()?.first());
        owners.map(|owner| owner.uid.clone()).next().unwrap_or_default()
    }
}

impl Publisher {
    /// Waits for its turn and publishes until cancelled. The slices stay: kubelet removes them if we don't come back.
    pub(crate) async fn run(mut self, cancel: CancellationToken) -> Result<(), FileError> {
        let lock = files::open_lock(&self.lock)?;
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK {
                return Err(error).at("lock", &self.lock);
            }
            self.published.send_replace(Published::ByAnother);
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                () = tokio::time::sleep(LOOK_FOR_TURN) => {}
            }
        }
        self.published.send_replace(Published::No);
        self.publish(cancel).await;
        drop(lock);
        Ok(())
    }

    async fn publish(&mut self, cancel: CancellationToken) {
        let api = Api::<ResourceSlice>::all(self.cluster.client());
        let ours =
            watcher::Config::default().fields(&format!("spec.driver={},spec.nodeName={}", self.driver, self.node));
        let mut events = watcher(api, ours).default_backoff().boxed();
        let mut index = Index::default();
        let mut told: Option<String> = None;
        let mut retry = false;
        let mut conflicts = 0;
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
                    (told, conflicts) = (None, 0);
                    self.published.send_replace(Published::Yes);
                }
                Err(error) => {
                    retry = true;
                    conflicts = if error.is_conflict() { conflicts + 1 } else { 0 };
                    let is_passing = (1..=CONFLICTS).contains(&conflicts);
                    let text = error.to_string();
                    if !is_passing && told.as_ref() != Some(&text) {
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
        let (is_ready, is_fenced) = (snapshot.is_ready, self.is_fenced);
        let mut pool =
            Pool { driver: self.driver.clone(), name: self.pool.clone(), owner, devices, is_ready, is_fenced };
        let existing = index.as_meant();
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
        let (wanted, written) = match action {
            Action::Delete { name, uid } => {
                self.cluster.delete_slice(&name, &uid).await?;
                tracing::info!(slice = name, "deleted a slice");
                index.slices.remove(&name);
                return Ok(());
            }
            Action::Update(slice) => (slice.spec.clone(), self.cluster.update_slice(&slice).await?),
            Action::Create(slice) => (slice.spec.clone(), self.cluster.create_slice(&slice).await?),
        };
        let name = written.metadata.name.clone().unwrap_or_default();
        if is_same(&wanted, &written.spec) {
            index.altered.remove(&name);
        } else {
            tracing::error!(
                slice = name,
                "the API server has dropped fields of a slice: a feature of Kubernetes that it needs is off"
            );
            index.altered.insert(name, (wanted, written.spec.clone()));
        }
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::Device;

    use super::*;

    #[test]
    fn what_a_server_drops_is_written_once() {
        let device = Device { name: "gpu-0".to_owned(), allow_multiple_allocations: Some(true), ..Device::default() };
        let pool = Pool {
            driver: "gpu.aliquot.dev".parse().unwrap(),
            name: "node-0".parse().unwrap(),
            owner: Owner { node: "node-0".to_owned(), uid: "uid".to_owned() },
            devices: vec![vec![device]],
            is_ready: true,
            is_fenced: false,
        };
        let Some(Action::Create(wanted)) = plan(&pool, &[]).pop() else { panic!() };
        let mut stored = (*wanted).clone();
        stored.spec.devices.as_mut().unwrap()[0].allow_multiple_allocations = None;
        let name = stored.metadata.name.clone().unwrap();

        let mut index = Index::default();
        index.apply(Event::Apply(stored.clone()));
        assert_eq!(plan(&pool, &index.as_meant()).len(), 1);
        index.altered.insert(name, (wanted.spec.clone(), stored.spec.clone()));
        assert_eq!(plan(&pool, &index.as_meant()), []);

        // Somebody edits it: that isn't what the server made of ours.
        stored.spec.devices.as_mut().unwrap()[0].name = "gpu-1".to_owned();
        index.apply(Event::Apply(stored));
        assert_eq!(plan(&pool, &index.as_meant()).len(), 1);
    }

    #[test]
    fn a_list_replaces_what_was_known_at_once() {
        let slice = |name: &str| {
            let mut slice = ResourceSlice::default();
            slice.metadata.name = Some(name.to_owned());
            slice
        };
        let mut index = Index::default();
        index.apply(Event::Apply(slice("old")));
        for event in [Event::Init, Event::InitApply(slice("new"))] {
            index.apply(event);
            assert!(index.slices.contains_key("old") && !index.is_whole);
        }
        index.apply(Event::InitDone);
        assert_eq!(index.slices.keys().collect::<Vec<_>>(), ["new"]);
        assert!(index.is_whole);
        index.apply(Event::Delete(slice("new")));
        assert_eq!(index.slices.len(), 0);
    }
}

//! Prepares and unprepares claims: what the plan says, in an order that a crash at any point leaves repairable.
//!
//! ```text
//! prepare:    read the claim → plan → (turn: nobody else has the devices → CDI files → claim file) → reply → status of the claim
//! unprepare:  (turn: CDI file → claim file) → reply; whoever waits for the devices goes on
//! ```
//!
//! What is here needs no change of hardware, so there is nothing to intend beforehand: a CDI file without a claim file is rubbish
//! of a crash, and goes at the next start. While one process replaces another, both take their turns with the same files.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aliquot_api::ids::{ClaimUid, DeviceName, DriverName, PoolName};
use aliquot_device::cdi::{self, DeviceNode, Spec};
use aliquot_device::health::Held;
use aliquot_device::prepare::{PlannedDevice, Refusal, plan};
use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::capabilities::{self, CapabilityError};
use crate::cluster::{ClaimRef, Cluster, ClusterError, Freshness};
use crate::driver_root::device_node;
use crate::files::{self, Durability, FileError, Unsynced};
use crate::gpus::Snapshot;
use crate::metrics::{Metrics, Phase};
use crate::store::{ClaimStore, Entry, PreparedClaim, StoreError, Turn};

/// How long a claim waits for its device to be let go by another. kubelet gives a call 45 seconds, and tries again only a minute
/// after it failed.
const WAIT_FOR_DEVICE: Duration = Duration::from_secs(40);

/// How often a waiting claim looks whether another process has let go.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How long after the API server didn't answer it is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// How many claims that were let go are remembered, so that a call which was overtaken doesn't prepare them again.
const REMEMBERED: usize = 4096;

/// Why a claim isn't prepared or unprepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// The claim can't be read.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// It asks for what can't be had here.
    #[error("claim {claim}: {refusal}")]
    Refused {
        /// Which claim.
        claim: ClaimRef,
        /// Why.
        #[source]
        refusal: Box<Refusal>,
    },
    /// The driver hasn't answered yet.
    #[error("claim {claim}: the GPU driver isn't ready on this node")]
    NoDriver {
        /// Which claim.
        claim: ClaimRef,
    },
    /// Somebody else has it.
    #[error("claim {claim}: device {device} is still held by claim {holder}, whose pod hasn't ended yet")]
    Held {
        /// Which claim.
        claim: ClaimRef,
        /// The device.
        device: DeviceName,
        /// Who has it.
        holder: String,
    },
    /// kubelet let it go while it asked for it.
    #[error("claim {claim}: it was unprepared, and no pod has it reserved any more")]
    LetGo {
        /// Which claim.
        claim: ClaimRef,
    },
    /// A newer version of this program prepared it, and knows how to undo that.
    #[error("claim {claim}: its file can't be used: {reason}; the newer version has to run again")]
    TooNew {
        /// Which claim.
        claim: ClaimRef,
        /// What is known of it.
        reason: String,
    },
    /// A MIG device's nodes aren't known.
    #[error("claim {claim}: device {device}: {cause}")]
    Capability {
        /// Which claim.
        claim: ClaimRef,
        /// The device.
        device: DeviceName,
        /// What is missing.
        #[source]
        cause: Box<CapabilityError>,
    },
    /// It is prepared with other devices than it has now.
    #[error("claim {claim}: it was allocated anew while it is prepared with {devices}; its pods have to end first")]
    AllocatedAnew {
        /// Which claim.
        claim: ClaimRef,
        /// What it is prepared with.
        devices: String,
    },
    /// A GPU without its device node.
    #[error("claim {claim}: device {device} has no device node {}", .node.display())]
    NoNode {
        /// Which claim.
        claim: ClaimRef,
        /// The device.
        device: DeviceName,
        /// The missing node.
        node: PathBuf,
    },
    /// A file can't be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The claim's file can't be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ClaimError {
    /// The kind, for metrics: a closed list.
    pub(crate) fn reason(&self) -> &'static str {
        self.reasons().0
    }

    /// The same, as Events spell it.
    pub(crate) fn event_reason(&self) -> &'static str {
        self.reasons().1
    }

    fn reasons(&self) -> (&'static str, &'static str) {
        match self {
            Self::Cluster(_) => ("api_server", "ApiServerFailed"),
            Self::Refused { refusal, .. } => match **refusal {
                Refusal::NotAllocated | Refusal::NothingOfOurs { .. } => ("not_allocated", "NotAllocated"),
                Refusal::ForeignPool { .. } => ("foreign_pool", "ForeignPool"),
                Refusal::UnknownDevice { .. } | Refusal::Id(_) => ("unknown_device", "UnknownDevice"),
                Refusal::Config { .. } | Refusal::OtherDriversConfig { .. } => ("config", "InvalidConfig"),
            },
            Self::NoDriver { .. } => ("driver_not_ready", "DriverNotReady"),
            Self::Held { .. } => ("device_held", "DeviceHeld"),
            Self::AllocatedAnew { .. } => ("allocated_anew", "AllocatedAnew"),
            Self::LetGo { .. } => ("let_go", "LetGo"),
            Self::TooNew { .. } => ("too_new", "TooNew"),
            Self::NoNode { .. } | Self::Capability { .. } => ("no_device_node", "NoDeviceNode"),
            Self::File(_) | Self::Store(_) => ("file_system", "FileSystemFailed"),
        }
    }
}

/// A device as kubelet is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PreparedDevice {
    /// The claim's request.
    pub request: String,
    /// The pool.
    pub pool: PoolName,
    /// The device.
    pub device: DeviceName,
    /// What the container runtime is asked for.
    pub cdi_ids: Vec<String>,
    /// Which share.
    pub share_id: Option<String>,
}

/// Who and where we are.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Our driver's name.
    pub driver: DriverName,
    /// This node's pool.
    pub pool: PoolName,
    /// This boot of the machine.
    pub boot_id: String,
    /// The folder of CDI files.
    pub cdi_root: PathBuf,
    /// The folder of device nodes.
    pub dev_root: PathBuf,
    /// Where the driver's procfs may be, best first.
    pub procs: Vec<PathBuf>,
    /// The installed hook program, as the host sees it.
    pub hook: PathBuf,
}

/// The claims of this node.
pub(crate) struct Claims {
    setting: Setting,
    cluster: Cluster,
    store: ClaimStore,
    snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    metrics: Arc<Metrics>,
    /// Rings when a claim lets go of its devices.
    released: Notify,
    /// Calls for one claim happen one after the other.
    turns: Mutex<BTreeMap<ClaimUid, Arc<tokio::sync::Mutex<()>>>>,
    /// Claims that were unprepared lately, oldest first.
    let_go: Mutex<VecDeque<ClaimUid>>,
    /// The devices that claims have.
    held: watch::Sender<Held>,
}

/// How a try to prepare ended.
enum Tried {
    Prepared,
    Held { device: DeviceName, holder: String },
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that happens under these locks can panic halfway through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Claims {
    /// Takes up what the last process left: claims of this boot are prepared still, all else is rubbish.
    pub(crate) fn recover(
        setting: Setting,
        cluster: Cluster,
        store: ClaimStore,
        snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, ClaimError> {
        files::create_folder(&setting.cdi_root)?;
        let claims = Self {
            setting,
            cluster,
            store,
            snapshot,
            metrics,
            released: Notify::new(),
            turns: Mutex::default(),
            let_go: Mutex::default(),
            held: watch::Sender::default(),
        };
        let mut turn = claims.store.turn()?;
        let forgotten = claims.forget_earlier_boots(&mut turn)?;
        claims.repair_cdi_files(&turn)?;
        claims.count(&turn);
        drop(turn);
        forgotten.into_iter().try_for_each(Unsynced::sync)?;
        Ok(claims)
    }

    fn forget_earlier_boots(&self, turn: &mut Turn<'_>) -> Result<Vec<Unsynced>, StoreError> {
        let mut old = Vec::new();
        for (uid, entry) in turn.entries() {
            match entry {
                Entry::Prepared(PreparedClaim { claim, boot_id, .. }) if *boot_id != self.setting.boot_id => {
                    tracing::info!(%claim, claim.uid = %uid, "forgetting a claim of an earlier boot");
                    old.push(uid.clone());
                }
                Entry::Prepared(_) => {}
                Entry::Unreadable(file) if file.is_too_new => {
                    tracing::error!(
                        claim.uid = %uid,
                        reason = file.reason,
                        "a newer version prepared a claim; its GPUs stay its own until that version runs again"
                    );
                }
                Entry::Unreadable(file) => {
                    tracing::error!(
                        claim.uid = %uid,
                        reason = file.reason,
                        "a claim's file can't be used; its claim is prepared afresh when kubelet asks for it"
                    );
                    self.metrics.damaged_file();
                }
            }
        }
        old.iter().map(|uid| turn.remove(uid)).collect()
    }

    fn repair_cdi_files(&self, turn: &Turn<'_>) -> Result<(), FileError> {
        // What a write left that was cut off begins so.
        let cut_off = format!(".{}-", self.setting.driver);
        for name in files::list(&self.setting.cdi_root)? {
            if name.starts_with(&cut_off) {
                files::remove(&self.setting.cdi_root.join(&name))?;
            }
            if let Some(uid) = cdi::claim_of_file(&self.setting.driver, &name)
                && !turn.entries().contains_key(&uid)
            {
                tracing::info!(claim.uid = %uid, file = name, "removing the CDI file of a claim that isn't prepared");
                files::remove(&self.setting.cdi_root.join(name))?;
            }
        }
        for prepared in prepared(turn) {
            // Its device nodes may be gone with its GPU. Then its containers can't start, and that is all.
            if let Err(error) = self.write_claim_spec(prepared) {
                let claim = &prepared.claim;
                tracing::error!(%claim, claim.uid = %claim.uid, %error, "can't write the claim's CDI file");
            }
        }
        Ok(())
    }

    /// Prepares a claim, or finds it prepared.
    pub(crate) async fn prepare(self: Arc<Self>, claim: ClaimRef) -> Result<Vec<PlannedDevice>, ClaimError> {
        let turn = self.calls(&claim.uid);
        let _turn = turn.lock().await;
        let deadline = Instant::now() + WAIT_FOR_DEVICE;

        let start = Instant::now();
        let found = self.read_or_find(&claim, deadline).await;
        self.metrics.phase(Phase::Read, start.elapsed(), found.is_ok());
        let found = found?;

        let start = Instant::now();
        let planned = self.plan(&claim, found.as_ref(), deadline).await;
        let (devices, snapshot) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                self.metrics.phase(Phase::Wait, start.elapsed(), false);
                return Err(error);
            }
        };
        let wanted = PreparedClaim { boot_id: self.setting.boot_id.clone(), claim, devices };
        self.try_until(wanted, snapshot, start, deadline).await
    }

    /// Reads the claim. None if the API server is away and the claim is prepared already: kubelet asks again for running pods when it
    /// was restarted. What isn't prepared waits for the API server, since kubelet tries again only much later.
    async fn read_or_find(
        self: &Arc<Self>,
        claim: &ClaimRef,
        deadline: Instant,
    ) -> Result<Option<ResourceClaim>, ClaimError> {
        loop {
            match self.read(claim).await {
                Ok(found) => return Ok(Some(found)),
                Err(ClaimError::Cluster(error)) if error.is_passing() => {
                    if self.find(claim).await?.is_some() {
                        return Ok(None);
                    }
                    if Instant::now() + ASK_AGAIN >= deadline {
                        return Err(error.into());
                    }
                    tracing::info!(claim = %claim, claim.uid = %claim.uid, %error, "waiting for the API server");
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the claim, and makes sure that kubelet still wants it.
    async fn read(&self, claim: &ClaimRef) -> Result<ResourceClaim, ClaimError> {
        if !lock(&self.let_go).contains(&claim.uid) {
            return Ok(self.cluster.claim(claim, Freshness::Cached).await?);
        }
        let found = self.cluster.claim(claim, Freshness::Latest).await?;
        let reserved = found.status.as_ref().and_then(|status| status.reserved_for.as_ref());
        if reserved.is_none_or(Vec::is_empty) {
            return Err(ClaimError::LetGo { claim: claim.clone() });
        }
        Ok(found)
    }

    /// What the claim needs: of its allocation, or as it is prepared where that can't be read. Waits for the driver.
    async fn plan(
        self: &Arc<Self>,
        claim: &ClaimRef,
        found: Option<&ResourceClaim>,
        deadline: Instant,
    ) -> Result<(Vec<PlannedDevice>, Option<Arc<Snapshot>>), ClaimError> {
        let Some(found) = found else {
            let before = self.find(claim).await?.map(|before| before.devices).unwrap_or_default();
            return Ok((before, self.snapshot.borrow().clone()));
        };
        let mut snapshots = self.snapshot.clone();
        let ready = snapshots.wait_for(|snapshot| snapshot.as_ref().is_some_and(|snapshot| snapshot.is_ready));
        let snapshot = match tokio::time::timeout_at(deadline, ready).await {
            Ok(Ok(snapshot)) => snapshot.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        let snapshot = snapshot.ok_or_else(|| ClaimError::NoDriver { claim: claim.clone() })?;
        let devices = plan(&self.setting.driver, &self.setting.pool, &snapshot.inventory, found)
            .map_err(|refusal| ClaimError::Refused { claim: claim.clone(), refusal: Box::new(refusal) })?;
        Ok((devices, Some(snapshot)))
    }

    async fn find(self: &Arc<Self>, claim: &ClaimRef) -> Result<Option<PreparedClaim>, ClaimError> {
        let (this, uid) = (Arc::clone(self), claim.uid.clone());
        let found = tokio::task::spawn_blocking(move || {
            let turn = this.store.turn()?;
            Ok(prepared(&turn).find(|prepared| prepared.claim.uid == uid).cloned())
        });
        found.await.unwrap_or_else(|error| Err(self.broken("read files beside", error)))
    }

    /// Tries until nobody else has the devices.
    async fn try_until(
        self: Arc<Self>,
        wanted: PreparedClaim,
        snapshot: Option<Arc<Snapshot>>,
        start: Instant,
        deadline: Instant,
    ) -> Result<Vec<PlannedDevice>, ClaimError> {
        let claim = &wanted.claim;
        let mut told = false;
        loop {
            let released = self.released.notified();
            let (this, wanted_now, snapshot) = (Arc::clone(&self), wanted.clone(), snapshot.clone());
            let waited = start.elapsed();
            let tried = tokio::task::spawn_blocking(move || this.try_now(&wanted_now, snapshot.as_deref())).await;
            let tried = tried.unwrap_or_else(|error| Err(self.broken("write files in", error)));
            match tried? {
                Tried::Prepared => {
                    self.metrics.phase(Phase::Wait, waited, true);
                    return Ok(wanted.devices);
                }
                Tried::Held { device, holder } => {
                    if Instant::now() >= deadline {
                        self.metrics.phase(Phase::Wait, start.elapsed(), false);
                        return Err(ClaimError::Held { claim: claim.clone(), device, holder });
                    }
                    if !told {
                        tracing::info!(claim = %claim, claim.uid = %claim.uid, %device, holder, "waiting for a device that is still held");
                        told = true;
                    }
                }
            }
            // Another process doesn't ring.
            let _ = tokio::time::timeout_at(deadline.min(Instant::now() + LOOK_AGAIN), released).await;
        }
    }

    /// Prepares the claim if nobody else has its devices. What fails is undone, but for a claim that containers use already.
    fn try_now(&self, wanted: &PreparedClaim, snapshot: Option<&Snapshot>) -> Result<Tried, ClaimError> {
        let start = Instant::now();
        let mut turn = self.store.turn()?;
        let before = match turn.entries().get(&wanted.claim.uid) {
            Some(Entry::Prepared(before)) => Some(before),
            Some(Entry::Unreadable(file)) if file.is_too_new => {
                return Err(ClaimError::TooNew { claim: wanted.claim.clone(), reason: file.reason.clone() });
            }
            Some(Entry::Unreadable(_)) | None => None,
        };
        if let Some(before) = before.filter(|before| before.devices != wanted.devices) {
            let devices: Vec<&str> = before.devices.iter().map(|device| device.device.as_str()).collect();
            return Err(ClaimError::AllocatedAnew { claim: wanted.claim.clone(), devices: devices.join(", ") });
        }
        let is_new = before.is_none();
        if is_new && let Some((device, holder)) = find_holder(&turn, wanted) {
            return Ok(Tried::Held { device, holder });
        }
        let written = (|| {
            if let Some(snapshot) = snapshot {
                let hook = self.setting.hook.to_string_lossy();
                let spec = cdi::driver_spec(&self.setting.driver, &snapshot.files, &hook);
                self.write_spec(&cdi::driver_file(&self.setting.driver), &spec)?;
            }
            self.write_claim_spec(wanted)?;
            if is_new { Ok(turn.save(wanted)?) } else { Ok(Unsynced::default()) }
        })();
        self.count(&turn);
        drop(turn);
        self.metrics.phase(Phase::Write, start.elapsed(), written.is_ok());
        // Here, claims wait for the disk together.
        let synced = written.and_then(|unsynced| {
            let start = Instant::now();
            let synced = unsynced.sync();
            self.metrics.phase(Phase::Sync, start.elapsed(), synced.is_ok());
            Ok(synced?)
        });
        if synced.is_err()
            && is_new
            && let Err(error) = self.forget(&wanted.claim)
        {
            tracing::error!(claim = %wanted.claim, claim.uid = %wanted.claim.uid, %error, "can't undo a prepare that failed");
        }
        synced.map(|()| Tried::Prepared)
    }

    fn write_claim_spec(&self, claim: &PreparedClaim) -> Result<(), ClaimError> {
        let mut nodes: BTreeMap<&DeviceName, Vec<DeviceNode>> = BTreeMap::new();
        for device in &claim.devices {
            nodes.insert(&device.device, self.nodes(claim, device)?);
        }
        let uid = &claim.claim.uid;
        let spec = cdi::claim_spec(&self.setting.driver, uid, nodes);
        Ok(self.write_spec(&cdi::claim_file(&self.setting.driver, uid), &spec)?)
    }

    fn nodes(&self, claim: &PreparedClaim, device: &PlannedDevice) -> Result<Vec<DeviceNode>, ClaimError> {
        let name = format!("nvidia{}", device.minor);
        let gpu = device_node(&self.setting.dev_root, &name)?.ok_or_else(|| ClaimError::NoNode {
            claim: claim.claim.clone(),
            device: device.device.clone(),
            node: self.setting.dev_root.join(&name),
        })?;
        let Some(mig) = device.mig else { return Ok(vec![gpu]) };
        let parts = capabilities::nodes(&self.setting.procs, device.minor, mig).map_err(|cause| {
            ClaimError::Capability { claim: claim.claim.clone(), device: device.device.clone(), cause: Box::new(cause) }
        })?;
        Ok([vec![gpu], parts].concat())
    }

    fn write_spec(&self, file: &str, spec: &Spec) -> Result<(), FileError> {
        let path = self.setting.cdi_root.join(file);
        let content = serde_json::to_vec(spec).unwrap_or_default();
        // Container runtimes read a file anew whenever it changes.
        if files::read(&path)?.is_some_and(|old| old == content) {
            return Ok(());
        }
        files::replace(&path, &content, 0o644, Durability::UntilReboot)
    }

    /// Lets a claim's devices go. A claim that isn't prepared is fine: kubelet may ask twice, or after a reboot.
    pub(crate) async fn unprepare(self: Arc<Self>, claim: ClaimRef) -> Result<(), ClaimError> {
        let turn = self.calls(&claim.uid);
        let _turn = turn.lock().await;
        {
            let mut let_go = lock(&self.let_go);
            let_go.retain(|uid| *uid != claim.uid);
            let_go.push_back(claim.uid.clone());
            let excess = let_go.len().saturating_sub(REMEMBERED);
            let_go.drain(..excess);
        }
        let this = Arc::clone(&self);
        let forgotten = tokio::task::spawn_blocking(move || this.forget(&claim));
        forgotten.await.unwrap_or_else(|error| Err(self.broken("remove files in", error)))
    }

    fn forget(&self, claim: &ClaimRef) -> Result<(), ClaimError> {
        let mut turn = self.store.turn()?;
        if let Some(Entry::Unreadable(file)) = turn.entries().get(&claim.uid)
            && file.is_too_new
        {
            return Err(ClaimError::TooNew { claim: claim.clone(), reason: file.reason.clone() });
        }
        files::remove(&self.setting.cdi_root.join(cdi::claim_file(&self.setting.driver, &claim.uid)))?;
        let unsynced = turn.remove(&claim.uid)?;
        self.count(&turn);
        drop(turn);
        self.released.notify_waiters();
        Ok(unsynced.sync()?)
    }

    /// A device as kubelet is told of it.
    pub(crate) fn told(&self, claim: &ClaimUid, device: PlannedDevice) -> PreparedDevice {
        PreparedDevice {
            request: device.request,
            pool: self.setting.pool.clone(),
            cdi_ids: cdi::device_ids(&self.setting.driver, claim, &device.device),
            device: device.device,
            share_id: device.share_id,
        }
    }

    fn broken(&self, doing: &'static str, error: tokio::task::JoinError) -> ClaimError {
        let path = self.setting.cdi_root.clone();
        FileError { path, doing, cause: std::io::Error::other(error) }.into()
    }

    fn calls(&self, uid: &ClaimUid) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = lock(&self.turns);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(uid.clone()).or_default())
    }

    /// The devices that claims have, now and whenever they change.
    pub(crate) fn held(&self) -> watch::Receiver<Held> {
        self.held.subscribe()
    }

    fn count(&self, turn: &Turn<'_>) {
        self.metrics.set_claims(prepared(turn));
        let devices = prepared(turn).flat_map(|claim| &claim.devices);
        let devices = devices.map(|device| (device.device.clone(), device.pci)).collect();
        self.held.send_if_modified(|held| {
            let is_new = *held != devices;
            *held = devices;
            is_new
        });
    }
}

fn prepared<'a>(turn: &'a Turn<'_>) -> impl Iterator<Item = &'a PreparedClaim> {
    turn.entries().values().filter_map(|entry| match entry {
        Entry::Prepared(claim) => Some(claim),
        Entry::Unreadable(_) => None,
    })
}

/// A device that the claim wants and another claim has, and who that is.
fn find_holder(turn: &Turn<'_>, wanted: &PreparedClaim) -> Option<(DeviceName, String)> {
    let others = || turn.entries().iter().filter(|(uid, _)| **uid != wanted.claim.uid);
    wanted.devices.iter().find_map(|device| {
        let (uid, entry) = others().find(|(_, entry)| entry.excludes(device))?;
        let holder = match entry {
            Entry::Prepared(holder) => holder.claim.to_string(),
            Entry::Unreadable(file) => format!("with UID {uid} ({})", file.reason),
        };
        Some((device.device.clone(), holder))
    })
}

#[cfg(test)]
mod tests;

//! Prepares and unprepares claims: what the plan says, in an order that a crash at any point leaves repairable.
//!
//! ```text
//! prepare:    reserve in memory → CDI files → claim file (from here on it is prepared) → reply
//! unprepare:  CDI file → claim file → forget → whoever waits for its devices
//! ```
//!
//! A whole GPU needs no change of hardware, so there is nothing to intend beforehand: a CDI file without a claim file is rubbish
//! of a crash, and goes at the next start.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aliquot_api::ids::{ClaimUid, DeviceName, DriverName, PoolName};
use aliquot_device::cdi::{self, DeviceNode, Spec};
use aliquot_device::prepare::{PlannedDevice, Refusal, plan};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::cluster::{ClaimRef, Cluster, ClusterError};
use crate::driver_root::device_node;
use crate::files::{self, Durability, FileError};
use crate::gpus::Snapshot;
use crate::metrics::Metrics;
use crate::store::{ClaimStore, PreparedClaim, StoreError};

/// How long a claim waits for its device to be let go by another. kubelet gives a call 45 seconds, and tries again only a minute
/// after it failed.
const WAIT_FOR_DEVICE: Duration = Duration::from_secs(40);

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
        match self {
            Self::Cluster(_) => "api_server",
            Self::Refused { refusal, .. } => match **refusal {
                Refusal::NotAllocated | Refusal::NothingOfOurs { .. } => "not_allocated",
                Refusal::ForeignPool { .. } => "foreign_pool",
                Refusal::UnknownDevice { .. } | Refusal::Id(_) => "unknown_device",
                Refusal::Config { .. } | Refusal::OtherDriversConfig { .. } => "config",
            },
            Self::NoDriver { .. } => "driver_not_ready",
            Self::Held { .. } => "device_held",
            Self::AllocatedAnew { .. } => "allocated_anew",
            Self::NoNode { .. } => "no_device_node",
            Self::File(_) | Self::Store(_) => "file_system",
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
    /// Prepared claims, and those that are being prepared and hold their devices already.
    held: Mutex<BTreeMap<ClaimUid, PreparedClaim>>,
    /// Rings when a claim lets go of its devices.
    released: Notify,
    /// Calls for one claim happen one after the other.
    turns: Mutex<BTreeMap<ClaimUid, Arc<tokio::sync::Mutex<()>>>>,
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
    ) -> Result<Self, FileError> {
        let (claims, damaged) = store.load()?;
        for error in &damaged {
            tracing::error!(%error, "a claim's file can't be used; its claim is prepared afresh when kubelet asks for it");
            metrics.damaged_file();
        }
        let mut held = BTreeMap::new();
        for claim in claims {
            if claim.boot_id == setting.boot_id {
                held.insert(claim.uid.clone(), claim);
            } else {
                tracing::info!(claim.uid = %claim.uid, claim.name, claim.namespace, "forgetting a claim of an earlier boot");
                store.remove(&claim.uid)?;
            }
        }
        files::create_folder(&setting.cdi_root)?;
        let claims = Self {
            setting,
            cluster,
            store,
            snapshot,
            metrics,
            held: Mutex::new(held),
            released: Notify::new(),
            turns: Mutex::new(BTreeMap::new()),
        };
        claims.repair_cdi_files()?;
        claims.count();
        Ok(claims)
    }

    fn repair_cdi_files(&self) -> Result<(), FileError> {
        let held = lock(&self.held);
        for name in files::list(&self.setting.cdi_root)? {
            if let Some(uid) = cdi::claim_of_file(&self.setting.driver, &name)
                && !held.contains_key(&uid)
            {
                tracing::info!(claim.uid = %uid, file = name, "removing the CDI file of a claim that isn't prepared");
                files::remove(&self.setting.cdi_root.join(name), Durability::UntilReboot)?;
            }
        }
        for claim in held.values() {
            // Its device nodes may be gone with its GPU. Then its containers can't start, and that is all.
            if let Err(error) = self.write_claim_spec(claim) {
                tracing::error!(claim.uid = %claim.uid, claim.name, claim.namespace, %error, "can't write the claim's CDI file");
            }
        }
        Ok(())
    }

    /// Prepares a claim, or finds it prepared.
    pub(crate) async fn prepare(self: Arc<Self>, claim: ClaimRef) -> Result<Vec<PreparedDevice>, ClaimError> {
        let turn = self.turn(&claim.uid);
        let _turn = turn.lock().await;
        let deadline = Instant::now() + WAIT_FOR_DEVICE;
        let snapshot = self.snapshot.borrow().clone();
        let before = lock(&self.held).get(&claim.uid).cloned();

        let devices = match (self.cluster.claim(&claim).await, &before) {
            (Ok(found), _) => {
                let snapshot = snapshot.as_ref().ok_or_else(|| ClaimError::NoDriver { claim: claim.clone() })?;
                plan(&self.setting.driver, &self.setting.pool, &snapshot.inventory, &found)
                    .map_err(|refusal| ClaimError::Refused { claim: claim.clone(), refusal: Box::new(refusal) })?
            }
            // kubelet asks again for running pods when it was restarted. The API server may be away just then.
            (Err(error), Some(before)) if !error.is_about_the_claim() => before.devices.clone(),
            (Err(error), _) => return Err(error.into()),
        };
        let prepared = PreparedClaim {
            boot_id: self.setting.boot_id.clone(),
            uid: claim.uid.clone(),
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            devices,
        };
        let is_new = before.is_none();
        match before {
            Some(before) if before.devices != prepared.devices => {
                let devices: Vec<&str> = before.devices.iter().map(|device| device.device.as_str()).collect();
                return Err(ClaimError::AllocatedAnew { claim, devices: devices.join(", ") });
            }
            Some(_) => {}
            None => self.reserve(&claim, &prepared, deadline).await?,
        }

        let this = Arc::clone(&self);
        let written = tokio::task::spawn_blocking(move || this.carry_out(&prepared, is_new, snapshot.as_deref())).await;
        let result = written.unwrap_or_else(|error| {
            let path = self.setting.cdi_root.clone();
            Err(FileError { path, doing: "write files in", cause: std::io::Error::other(error) }.into())
        });
        self.count();
        result
    }

    /// Takes the claim's devices in memory, when nobody else has them any more.
    async fn reserve(&self, claim: &ClaimRef, prepared: &PreparedClaim, deadline: Instant) -> Result<(), ClaimError> {
        let mut told = false;
        loop {
            let released = self.released.notified();
            let holder = {
                let mut held = lock(&self.held);
                let holder = find_holder(&held, prepared);
                if holder.is_none() {
                    held.insert(prepared.uid.clone(), prepared.clone());
                    return Ok(());
                }
                holder
            };
            let Some((device, holder)) = holder else { return Ok(()) };
            if !told {
                tracing::info!(claim = %claim, claim.uid = %claim.uid, %device, holder, "waiting for a device that is still held");
                told = true;
            }
            if tokio::time::timeout_at(deadline, released).await.is_err() {
                return Err(ClaimError::Held { claim: claim.clone(), device, holder });
            }
        }
    }

    /// Writes the files of a claim whose devices are reserved. What fails is undone, but for a claim that containers use already.
    fn carry_out(
        &self,
        prepared: &PreparedClaim,
        is_new: bool,
        snapshot: Option<&Snapshot>,
    ) -> Result<Vec<PreparedDevice>, ClaimError> {
        let written = (|| {
            if let Some(snapshot) = snapshot {
                let hook = self.setting.hook.to_string_lossy();
                let spec = cdi::driver_spec(&self.setting.driver, &snapshot.files, &hook);
                self.write_spec(&cdi::driver_file(&self.setting.driver), &spec)?;
            }
            self.write_claim_spec(prepared)?;
            if is_new {
                self.store.save(prepared)?;
            }
            Ok(())
        })();
        if let Err(error) = written {
            if is_new && let Err(error) = self.forget(&prepared.uid) {
                tracing::error!(claim.uid = %prepared.uid, %error, "can't undo a prepare that failed");
            }
            return Err(error);
        }
        let told = |device: &PlannedDevice| PreparedDevice {
            request: device.request.clone(),
            pool: self.setting.pool.clone(),
            device: device.device.clone(),
            cdi_ids: cdi::device_ids(&self.setting.driver, &prepared.uid, &device.device),
            share_id: device.share_id.clone(),
        };
        Ok(prepared.devices.iter().map(told).collect())
    }

    fn write_claim_spec(&self, claim: &PreparedClaim) -> Result<(), ClaimError> {
        let mut nodes: BTreeMap<&DeviceName, Vec<DeviceNode>> = BTreeMap::new();
        for device in &claim.devices {
            let name = format!("nvidia{}", device.minor);
            let node = device_node(&self.setting.dev_root, &name)?.ok_or_else(|| ClaimError::NoNode {
                claim: ClaimRef {
                    uid: claim.uid.clone(),
                    namespace: claim.namespace.clone(),
                    name: claim.name.clone(),
                },
                device: device.device.clone(),
                node: self.setting.dev_root.join(&name),
            })?;
            nodes.insert(&device.device, vec![node]);
        }
        let spec = cdi::claim_spec(&self.setting.driver, &claim.uid, nodes);
        Ok(self.write_spec(&cdi::claim_file(&self.setting.driver, &claim.uid), &spec)?)
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
        let turn = self.turn(&claim.uid);
        let _turn = turn.lock().await;
        let (this, uid) = (Arc::clone(&self), claim.uid.clone());
        let forgotten = tokio::task::spawn_blocking(move || this.forget(&uid)).await;
        forgotten.unwrap_or_else(|error| {
            let path = self.setting.cdi_root.clone();
            Err(FileError { path, doing: "remove files in", cause: std::io::Error::other(error) })
        })?;
        self.count();
        Ok(())
    }

    fn forget(&self, uid: &ClaimUid) -> Result<(), FileError> {
        let spec = self.setting.cdi_root.join(cdi::claim_file(&self.setting.driver, uid));
        files::remove(&spec, Durability::UntilReboot)?;
        self.store.remove(uid)?;
        lock(&self.held).remove(uid);
        self.released.notify_waiters();
        Ok(())
    }

    fn turn(&self, uid: &ClaimUid) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = lock(&self.turns);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(uid.clone()).or_default())
    }

    fn count(&self) {
        self.metrics.set_prepared_claims(lock(&self.held).len());
    }
}

/// A device that the claim wants and another has. Who only watches excludes nobody and is excluded by nobody.
fn find_holder(held: &BTreeMap<ClaimUid, PreparedClaim>, wanted: &PreparedClaim) -> Option<(DeviceName, String)> {
    let exclusive = |claim: &PreparedClaim, device: &DeviceName| {
        claim.devices.iter().any(|other| other.device == *device && !other.admin_access)
    };
    wanted.devices.iter().filter(|device| !device.admin_access).find_map(|device| {
        let holder = held.values().find(|claim| claim.uid != wanted.uid && exclusive(claim, &device.device))?;
        Some((device.device.clone(), format!("{}/{}", holder.namespace, holder.name)))
    })
}

#[cfg(test)]
mod tests;

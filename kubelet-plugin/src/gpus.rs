//! The GPUs of this node as they are now.
//!
//! The driver's library may block for seconds, on one GPU and not on another. So each GPU is asked by a thread of its own, and who
//! doesn't answer in time is left out until it does.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aliquot_api::ids::{GpuUuid, PciAddress};
use aliquot_device::cdi::DriverFiles;
use aliquot_device::health::{describe, is_critical};
use aliquot_device::inventory::Inventory;
use aliquot_device::numbering::Numbering;
use aliquot_device::observation::{Gpu, Observation, Problem};
use aliquot_nvml::{Library, NvmlError, Xids};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::driver_root::{DriverRoot, DriverRootError};
use crate::files::{self, Durability, FileError};
use crate::metrics::Metrics;
use crate::sysfs;

/// Between two looks: so long may a GPU or MIG device be there unnoticed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// How long a GPU may take to tell of itself. Then it is left out, so that the others can be had.
const ANSWER: Duration = Duration::from_secs(5);

/// How long all of them may take, loading the library included.
const LOOK: Duration = Duration::from_secs(30);

/// A look at the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Its devices.
    pub inventory: Inventory,
    /// What a container needs of the driver.
    pub files: DriverFiles,
    /// GPUs that didn't answer.
    pub problems: Vec<Problem>,
    /// Whether the driver answers. While it doesn't, this is what it last said.
    pub is_ready: bool,
}

/// There is nothing to see, or not yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GpusError {
    /// The driver's files aren't there.
    #[error(transparent)]
    Root(#[from] DriverRootError),
    /// The driver doesn't answer.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// The numbers can't be remembered.
    #[error(transparent)]
    File(#[from] FileError),
    /// The driver is silent.
    #[error("the driver hasn't answered within {} s", LOOK.as_secs())]
    Silent,
    /// The thread is gone.
    #[error("the thread that asks the driver has ended")]
    Gone,
}

/// Where to look.
#[derive(Debug)]
pub(crate) struct Places {
    /// The driver's files.
    pub driver_root: DriverRoot,
    /// The management library, if it isn't to be looked for.
    pub library: Option<PathBuf>,
    /// The folder of device nodes.
    pub dev_root: PathBuf,
    /// Where sysfs is.
    pub sys_root: PathBuf,
    /// The file that remembers which GPU has which number.
    pub numbers: PathBuf,
}

type Answer = Result<Snapshot, GpusError>;

/// Asks the thread that asks the driver.
#[derive(Debug)]
pub(crate) struct Gpus {
    questions: mpsc::Sender<oneshot::Sender<Answer>>,
}

impl Gpus {
    /// Starts the thread. It ends when this is dropped.
    pub(crate) fn start(places: Places, metrics: Arc<Metrics>) -> std::io::Result<(Self, JoinHandle<()>)> {
        // There is one asker, which waits for its answer.
        let (questions, mut asked) = mpsc::channel::<oneshot::Sender<Answer>>(1);
        let thread = std::thread::Builder::new().name("nvml".to_owned()).spawn(move || {
            let mut driver = Driver::default();
            while let Some(answer) = asked.blocking_recv() {
                let looked = driver.look(&places, &metrics);
                if looked.is_err() {
                    // A driver that was reloaded answers only to who loads its library again.
                    driver.disconnect();
                }
                // Nobody waits for it any more: fine.
                let _ = answer.send(looked);
            }
        })?;
        Ok((Self { questions }, thread))
    }

    async fn look(&self) -> Answer {
        let (answer, looked) = oneshot::channel();
        let answered = async {
            self.questions.send(answer).await.map_err(|_| GpusError::Gone)?;
            looked.await.map_err(|_| GpusError::Gone)?
        };
        tokio::time::timeout(LOOK, answered).await.unwrap_or(Err(GpusError::Silent))
    }

    /// Looks again and again until cancelled, and tells what has changed.
    pub(crate) async fn watch(
        self,
        snapshots: watch::Sender<Option<Arc<Snapshot>>>,
        metrics: Arc<Metrics>,
        cancel: CancellationToken,
    ) -> Result<(), std::convert::Infallible> {
        let mut told = None;
        loop {
            let looked = tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                looked = self.look() => looked,
            };
            match looked {
                Ok(snapshot) => {
                    told = None;
                    if snapshots.borrow().as_deref() != Some(&snapshot) {
                        tell(&snapshot);
                        metrics.set_gpus(&snapshot);
                        snapshots.send_replace(Some(Arc::new(snapshot)));
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    if told.as_ref() != Some(&text) {
                        tracing::warn!(%error, "the GPU driver isn't ready; waiting for it");
                        told = Some(text);
                    }
                    let last = snapshots.borrow().clone();
                    if let Some(last) = last.filter(|last| last.is_ready) {
                        snapshots.send_replace(Some(Arc::new(Snapshot { is_ready: false, ..(*last).clone() })));
                    }
                }
            }
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
        }
    }
}

fn tell(snapshot: &Snapshot) {
    tracing::info!(
        devices = snapshot.inventory.len(),
        libraries = snapshot.files.files.len(),
        "the GPU driver has answered"
    );
    for problem in &snapshot.problems {
        tracing::error!(%problem, "a GPU doesn't answer; it is left out");
    }
    for left_out in snapshot.inventory.devices().1 {
        tracing::warn!(%left_out, "a device lacks an attribute");
    }
}

/// The connection to the driver, and the threads that still hang in one before it.
#[derive(Default)]
struct Driver {
    connection: Option<Connection>,
    hanging: Vec<JoinHandle<()>>,
}

impl Driver {
    fn look(&mut self, places: &Places, metrics: &Metrics) -> Answer {
        let basis = Basis::now(places)?;
        let was_held = !self.hanging.is_empty();
        self.hanging.retain(|thread| !thread.is_finished());
        if self.connection.as_ref().is_some_and(|connection| connection.basis != basis) {
            tracing::info!(library = %basis.library.display(), "the driver or its GPUs have changed; connecting anew");
            self.disconnect();
        } else if was_held && self.hanging.is_empty() {
            tracing::info!(library = %basis.library.display(), "no call hangs any more; connecting anew");
            self.disconnect();
        }
        let connected = match &mut self.connection {
            Some(connected) => connected,
            empty => empty.insert(Connection::new(places, basis)?),
        };
        let mut observation = connected.ask(&mut self.hanging, metrics)?;
        for gpu in &mut observation.gpus {
            let place = sysfs::place(&places.sys_root, gpu.pci);
            (gpu.numa_node, gpu.pcie_root) = (place.numa_node, place.pcie_root);
        }
        // Also those that no driver has, or that don't answer: they keep their place among the others.
        let seen = observation.gpus.iter().map(|gpu| gpu.pci).chain(sysfs::gpus(&places.sys_root));
        let numbering = number(&places.numbers, seen)?;
        let problems = std::mem::take(&mut observation.problems);
        let inventory = Inventory::new(observation, &numbering);
        Ok(Snapshot { inventory, files: connected.files.clone(), problems, is_ready: true })
    }

    /// Lets the library go. It sees new GPUs only when it is loaded with nobody in it any more; while a thread hangs in it, it is
    /// loaded beside that.
    fn disconnect(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            end(connection.askers.drain(..), &mut self.hanging);
        }
    }
}

/// Waits for threads to end. Those that don't in time are hanging.
fn end(askers: impl Iterator<Item = Asker>, hanging: &mut Vec<JoinHandle<()>>) {
    let end = Instant::now() + ANSWER;
    hanging.extend(askers.filter_map(|asker| asker.end(end)));
}

/// The driver's library, loaded, and who asks it.
struct Connection {
    library: Arc<Library>,
    files: DriverFiles,
    version: aliquot_device::observation::Driver,
    /// What it was loaded from and for.
    basis: Basis,
    askers: Vec<Asker>,
}

/// What a loaded library doesn't notice: another driver, and GPUs that came or went.
#[derive(Debug, PartialEq, Eq)]
struct Basis {
    library: PathBuf,
    /// Device, inode and time of the last change.
    file: Option<(u64, u64, i64)>,
    nodes: Vec<String>,
}

impl Basis {
    fn now(places: &Places) -> Result<Self, GpusError> {
        let library = places.library.clone().map_or_else(|| places.driver_root.library(), Ok)?;
        let file = std::fs::metadata(&library).ok().map(|file| (file.dev(), file.ino(), file.mtime()));
        let is_gpu = |name: &String| {
            let number = name.strip_prefix("nvidia");
            number.is_some_and(|number| !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit()))
        };
        let mut nodes = files::list(&places.dev_root)?;
        nodes.retain(is_gpu);
        Ok(Self { library, file, nodes })
    }
}

impl Connection {
    fn new(places: &Places, basis: Basis) -> Result<Self, GpusError> {
        let library = Library::load(&basis.library)?;
        let version = library.driver()?;
        let files = places.driver_root.files(&version.version, &places.dev_root)?;
        Ok(Self { library: Arc::new(library), files, version, basis, askers: Vec::new() })
    }

    /// Asks all GPUs at once.
    fn ask(&mut self, hanging: &mut Vec<JoinHandle<()>>, metrics: &Metrics) -> Result<Observation, GpusError> {
        // Also finds out whether the driver answers at all.
        let count = self.library.count()?;
        for index in 0..count {
            let place = usize::try_from(index).unwrap_or(usize::MAX);
            if self.askers.len() <= place {
                self.askers.push(Asker::start(Arc::clone(&self.library), index));
            }
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.askers.len());
        end(self.askers.drain(count..), hanging);
        for asker in &mut self.askers {
            asker.ask();
        }
        let end = Instant::now() + ANSWER;
        let mut observation = Observation { driver: Some(self.version.clone()), ..Observation::default() };
        for asker in &mut self.askers {
            match asker.answer(end, metrics) {
                Ok(gpu) => observation.gpus.push(gpu),
                Err(problem) => observation.problems.push(problem),
            }
            if let Some((pci, _)) = &asker.gpu
                && !asker.critical.is_empty()
            {
                observation.xids.insert(*pci, asker.critical.clone());
            }
        }
        Ok(observation)
    }
}

/// A thread that asks one GPU. It ends after its last answer when this is dropped; one that hangs in the driver holds up no other.
struct Asker {
    index: u32,
    questions: SyncSender<()>,
    answers: Receiver<Told>,
    thread: Option<JoinHandle<()>>,
    is_asked: bool,
    /// Which GPU it is, once it has answered.
    gpu: Option<(PciAddress, GpuUuid)>,
    /// Its critical errors since the library was loaded: each number once, oldest first.
    critical: Vec<u64>,
}

/// What a GPU told: of itself, and the errors (XID) since it was asked before.
struct Told {
    gpu: Result<Gpu, Problem>,
    xids: Vec<u64>,
}

impl Asker {
    fn start(library: Arc<Library>, index: u32) -> Self {
        // One question at a time, each with its answer.
        let (questions, asked) = sync_channel::<()>(1);
        let (answer, answers) = sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("nvml-gpu-{index}")).spawn(move || {
            // Moved in first, so let go last: whoever sees it go knows that the rest is done.
            let answer = answer;
            let library = library;
            let mut xids: Option<Xids> = None;
            while asked.recv().is_ok() {
                // Not every GPU tells its errors, and one that fails may do so later.
                xids = xids.or_else(|| Xids::watch(Arc::clone(&library), index).ok());
                let xids = xids.as_mut().map(Xids::take).unwrap_or_default();
                if answer.send(Told { gpu: library.gpu(index), xids }).is_err() {
                    return;
                }
            }
        });
        let thread =
            thread.inspect_err(|error| tracing::error!(index, %error, "can't start a thread to ask a GPU")).ok();
        Self { index, questions, answers, thread, is_asked: false, gpu: None, critical: Vec::new() }
    }

    /// Asks no more and waits for the thread to end. One that hasn't by then comes back.
    fn end(self, end: Instant) -> Option<JoinHandle<()>> {
        let Self { questions, answers, thread, index, .. } = self;
        drop(questions);
        // A thread that ends lets go of this.
        loop {
            match answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    tracing::warn!(index, "a thread hangs in the driver; nobody waits for it any more");
                    return thread;
                }
            }
        }
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(index, "the thread that asked a GPU has panicked");
        }
        None
    }

    fn ask(&mut self) {
        if !self.is_asked {
            self.is_asked = self.questions.try_send(()).is_ok();
        }
    }

    fn answer(&mut self, end: Instant, metrics: &Metrics) -> Result<Gpu, Problem> {
        let pci = self.gpu.as_ref().map(|(pci, _)| *pci);
        let silent = |reason: String| Err(Problem { index: self.index, pci, reason });
        match self.answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(told) => {
                self.is_asked = false;
                if let Ok(gpu) = &told.gpu {
                    self.gpu = Some((gpu.pci, gpu.uuid.clone()));
                }
                for xid in told.xids {
                    self.error(xid, metrics);
                }
                // One that is lost doesn't even tell where it is.
                told.gpu.map_err(|problem| Problem { pci: problem.pci.or(pci), ..problem })
            }
            Err(RecvTimeoutError::Timeout) => silent(format!("hasn't answered within {} s", ANSWER.as_secs())),
            Err(RecvTimeoutError::Disconnected) => silent("nobody asks it".to_owned()),
        }
    }

    fn error(&mut self, xid: u64, metrics: &Metrics) {
        let (pci, uuid) = self.gpu.clone().unzip();
        let (pci, uuid) = (pci.map(|pci| pci.to_string()), uuid.map(|uuid| uuid.to_string()));
        let (index, error) = (self.index, describe(xid));
        metrics.xid(uuid.clone().unwrap_or_default(), xid);
        if is_critical(xid) {
            tracing::error!(index, pci, uuid, error, "a GPU can't be trusted any more; nobody new gets it");
            if !self.critical.contains(&xid) {
                self.critical.push(xid);
            }
        } else {
            tracing::warn!(index, pci, uuid, error, "a program had an error on a GPU");
        }
    }
}

fn number(path: &Path, seen: impl IntoIterator<Item = PciAddress>) -> Result<Numbering, FileError> {
    let mut numbering = match files::read(path)? {
        None => Numbering::default(),
        Some(content) => serde_json::from_slice(&content).unwrap_or_else(|error| {
            tracing::error!(path = %path.display(), %error, "the GPUs' numbers are damaged; they are numbered afresh");
            Numbering::default()
        }),
    };
    if numbering.add(seen) {
        let content = serde_json::to_vec(&numbering).unwrap_or_default();
        files::replace(path, &content, 0o600, Durability::OnDisk)?;
    }
    Ok(numbering)
}

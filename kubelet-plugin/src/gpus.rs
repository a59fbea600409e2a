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

use aliquot_api::ids::PciAddress;
use aliquot_device::cdi::DriverFiles;
use aliquot_device::inventory::Inventory;
use aliquot_device::numbering::Numbering;
use aliquot_device::observation::{Gpu, Observation, Problem};
use aliquot_nvml::{Library, NvmlError};
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
    pub(crate) fn start(places: Places) -> std::io::Result<(Self, JoinHandle<()>)> {
        // There is one asker, which waits for its answer.
        let (questions, mut asked) = mpsc::channel::<oneshot::Sender<Answer>>(1);
        let thread = std::thread::Builder::new().name("nvml".to_owned()).spawn(move || {
            let mut connection = None;
            while let Some(answer) = asked.blocking_recv() {
                let looked = look(&places, &mut connection);
                if looked.is_err() {
                    // A driver that was reloaded answers only to who loads its library again.
                    connection = None;
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
    fn ask(&mut self) -> Result<Vec<Result<Gpu, Problem>>, GpusError> {
        // Also finds out whether the driver answers at all.
        let count = self.library.count()?;
        for index in 0..count {
            let place = usize::try_from(index).unwrap_or(usize::MAX);
            if self.askers.len() <= place {
                self.askers.push(Asker::start(Arc::clone(&self.library), index));
            }
        }
        self.askers.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        for asker in &mut self.askers {
            asker.ask();
        }
        let end = Instant::now() + ANSWER;
        Ok(self.askers.iter_mut().map(|asker| asker.answer(end)).collect())
    }
}

/// A thread that asks one GPU. It ends after its last answer when this is dropped; one that hangs in the driver holds nothing else.
struct Asker {
    index: u32,
    questions: SyncSender<()>,
    answers: Receiver<Result<Gpu, Problem>>,
    is_asked: bool,
}

impl Asker {
    fn start(library: Arc<Library>, index: u32) -> Self {
        // One question at a time, each with its answer.
        let (questions, asked) = sync_channel::<()>(1);
        let (answer, answers) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(format!("nvml-gpu-{index}"))
            .spawn(move || while asked.recv().is_ok() && answer.send(library.gpu(index)).is_ok() {});
        if let Err(error) = thread {
            tracing::error!(index, %error, "can't start a thread to ask a GPU");
        }
        Self { index, questions, answers, is_asked: false }
    }

    fn ask(&mut self) {
        if !self.is_asked {
            self.is_asked = self.questions.try_send(()).is_ok();
        }
    }

    fn answer(&mut self, end: Instant) -> Result<Gpu, Problem> {
        let silent = |reason: String| Err(Problem { gpu: format!("at index {}", self.index), reason });
        match self.answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(answer) => {
                self.is_asked = false;
                answer
            }
            Err(RecvTimeoutError::Timeout) => silent(format!("hasn't answered within {} s", ANSWER.as_secs())),
            Err(RecvTimeoutError::Disconnected) => silent("nobody asks it".to_owned()),
        }
    }
}

fn look(places: &Places, connection: &mut Option<Connection>) -> Answer {
    let basis = Basis::now(places)?;
    if connection.as_ref().is_some_and(|connection| connection.basis != basis) {
        tracing::info!(library = %basis.library.display(), "the driver or its GPUs have changed; connecting anew");
        // The old library is let go before the new one is loaded.
        *connection = None;
    }
    let connected = match connection {
        Some(connected) => connected,
        empty => empty.insert(Connection::new(places, basis)?),
    };
    let mut observation = Observation { driver: Some(connected.version.clone()), ..Observation::default() };
    for answer in connected.ask()? {
        match answer {
            Ok(gpu) => observation.gpus.push(gpu),
            Err(problem) => observation.problems.push(problem),
        }
    }
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

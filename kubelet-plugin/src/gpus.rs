//! The GPUs of this node as they are now. The driver's library may block for seconds, so it is asked on a thread of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use aliquot_device::cdi::DriverFiles;
use aliquot_device::inventory::Inventory;
use aliquot_device::numbering::Numbering;
use aliquot_device::observation::Problem;
use aliquot_nvml::{Library, NvmlError};
use tokio::sync::{mpsc, oneshot};

use crate::driver_root::{DriverRoot, DriverRootError};
use crate::files::{self, Durability, FileError};
use crate::sysfs;

/// A look at the node.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Its devices.
    pub inventory: Inventory,
    /// What a container needs of the driver.
    pub files: DriverFiles,
    /// GPUs that didn't answer.
    pub problems: Vec<Problem>,
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

type Answer = Result<Arc<Snapshot>, GpusError>;

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
            let mut library = None;
            while let Some(answer) = asked.blocking_recv() {
                let looked = look(&places, &mut library);
                if looked.is_err() {
                    // A driver that was reloaded answers only to who loads its library again.
                    library = None;
                }
                // Nobody waits for it any more: fine.
                let _ = answer.send(looked);
            }
        })?;
        Ok((Self { questions }, thread))
    }

    /// Looks at the node.
    pub(crate) async fn look(&self) -> Answer {
        let (answer, looked) = oneshot::channel();
        self.questions.send(answer).await.map_err(|_| GpusError::Gone)?;
        looked.await.map_err(|_| GpusError::Gone)?
    }
}

fn look(places: &Places, library: &mut Option<Library>) -> Answer {
    let loaded = if let Some(loaded) = library {
        loaded
    } else {
        let path = places.library.clone().map_or_else(|| places.driver_root.library(), Ok)?;
        library.insert(Library::load(&path)?)
    };
    let mut observation = loaded.observe()?;
    for gpu in &mut observation.gpus {
        let place = sysfs::place(&places.sys_root, gpu.pci);
        (gpu.numa_node, gpu.pcie_root) = (place.numa_node, place.pcie_root);
    }
    let version = observation.driver.as_ref().map_or("", |driver| driver.version.as_str());
    let files = places.driver_root.files(version, &places.dev_root)?;
    let numbering = number(places, observation.gpus.iter().map(|gpu| gpu.pci))?;
    let problems = std::mem::take(&mut observation.problems);
    Ok(Arc::new(Snapshot { inventory: Inventory::new(observation, &numbering), files, problems }))
}

fn number(
    places: &Places,
    seen: impl IntoIterator<Item = aliquot_api::ids::PciAddress>,
) -> Result<Numbering, FileError> {
    let path = &places.numbers;
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

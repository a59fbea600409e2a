//! Makes things happen to GPUs.

use std::io;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand};
use nvidia_ml_mock::caps::Caps;
use nvidia_ml_mock::mig::NoRoom;
use nvidia_ml_mock::state::{
    self, BLOCKS, Error, Event, FAILS, Gpu, IS_SLOW, MigTable, NONE, Process, State, Text, Writer,
};

use crate::inspect::{InspectError, find, state_file};

/// Why something can't happen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InjectError {
    #[error(transparent)]
    Inspect(#[from] InspectError),
    #[error("state file {} {source}", path.display())]
    State { path: PathBuf, source: Error },
    #[error("--gpu {gpu}: {name} can't be partitioned")]
    NoMig { gpu: String, name: String },
    #[error("--gpu {0}: not in MIG mode; `mock-nvml set --mig on` puts it in")]
    MigIsOff(String),
    #[error("--gpu {gpu}: no profile is called {profile:?}; there are: {known}")]
    Profile { gpu: String, profile: String, known: String },
    #[error("--gpu {gpu}: there is no room for a {profile}{at}", at = start.map(|at| format!(" at {at}")).unwrap_or_default())]
    NoRoom { gpu: String, profile: String, start: Option<u32> },
    #[error("--gpu {gpu}: no GPU instance has the id {id}")]
    NoInstance { gpu: String, id: usize },
    #[error("--gpu {gpu}: in use by process {pid}")]
    InUse { gpu: String, pid: u32 },
    #[error("{0:?} is no name of a function")]
    Function(String),
    #[error("there are {0} {1} already, which is all there can be")]
    Full(usize, &'static str),
    #[error("{}: {source}", path.display())]
    Files { path: PathBuf, source: io::Error },
}

/// A GPU of a node.
#[derive(Args)]
pub(crate) struct Target {
    /// The folder with the driver's files
    #[arg(long)]
    root: PathBuf,
    /// The GPU: its place in the order of PCI addresses, its PCI address, or its UUID
    #[arg(long)]
    gpu: String,
}

#[derive(Args)]
struct Instances {
    /// The GPU instance that it is in
    #[arg(long)]
    gpu_instance: Option<u32>,
    /// The compute instance that it is in
    #[arg(long, requires = "gpu_instance")]
    compute_instance: Option<u32>,
}

/// A critical error.
#[derive(Args)]
pub(crate) struct Xid {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    instances: Instances,
    /// The number of the error
    number: u64,
}

/// NVML's type of a critical error.
const CRITICAL_ERROR: u32 = 8;

pub(crate) fn xid(xid: &Xid) -> Result<(), InjectError> {
    let target = &xid.target;
    change(&target.root, |state| {
        let gpu = number(find(state, &target.gpu)?);
        let Instances { gpu_instance, compute_instance } = xid.instances;
        let (gpu_instance, compute_instance) = (gpu_instance.unwrap_or(NONE), compute_instance.unwrap_or(NONE));
        state.happen(Event { data: xid.number, types: CRITICAL_ERROR, gpu, gpu_instance, compute_instance });
        Ok(())
    })
}

/// What can be done with processes that seem to use a GPU.
#[derive(Subcommand)]
pub(crate) enum Processes {
    /// A process begins to use a GPU
    Add(AddProcess),
    /// A process uses no GPU any more
    Remove {
        /// The folder with the driver's files
        #[arg(long)]
        root: PathBuf,
        /// The process
        #[arg(long)]
        pid: u32,
    },
}

#[derive(Args)]
pub(crate) struct AddProcess {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    instances: Instances,
    /// The process
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pid: u32,
    /// How much of the GPU's memory it has, in MiB
    #[arg(long, default_value_t = 0)]
    memory: u32,
}

pub(crate) fn processes(command: &Processes) -> Result<(), InjectError> {
    match command {
        Processes::Add(add) => change(&add.target.root, |state| {
            let gpu = number(find(state, &add.target.gpu)?);
            let count = state.processes.len();
            let free = state.processes.iter_mut().find(|process| process.pid == 0);
            *free.ok_or(InjectError::Full(count, "processes"))? = Process {
                memory: u64::from(add.memory) << 20,
                pid: add.pid,
                gpu,
                gpu_instance: add.instances.gpu_instance.unwrap_or(NONE),
                compute_instance: add.instances.compute_instance.unwrap_or(NONE),
            };
            Ok(())
        }),
        Processes::Remove { root, pid } => change(root, |state| {
            for process in state.processes.iter_mut().filter(|process| process.pid == *pid) {
                process.pid = 0;
            }
            Ok(())
        }),
    }
}

/// What is wrong with a function from now on.
#[derive(Args)]
#[command(group(ArgGroup::new("how").required(true).args(["fail", "block", "slow", "clear"])))]
pub(crate) struct FunctionFault {
    /// The folder with the driver's files
    #[arg(long)]
    root: PathBuf,
    /// Only calls about this GPU, or something in it; calls about any, and none, without it
    #[arg(long)]
    gpu: Option<String>,
    /// The function's name, such as nvmlDeviceGetUUID
    function: String,
    /// It answers with this result
    #[arg(long, value_name = "RESULT")]
    fail: Option<u32>,
    /// It doesn't return until the fault is cleared
    #[arg(long)]
    block: bool,
    /// It takes this many milliseconds more
    #[arg(long, value_name = "MILLISECONDS")]
    slow: Option<u32>,
    /// Nothing is wrong with it any more, for that GPU or for all
    #[arg(long)]
    clear: bool,
    /// How many calls it is so for; without it until the fault is cleared
    #[arg(long, conflicts_with_all = ["block", "clear"])]
    times: Option<u32>,
}

pub(crate) fn fault(fault: &FunctionFault) -> Result<(), InjectError> {
    let no_function = || InjectError::Function(fault.function.clone());
    let function = Text::new(&fault.function).filter(|_| fault.function.starts_with("nvml")).ok_or_else(no_function)?;
    change(&fault.root, |state| {
        let gpu = fault.gpu.as_deref().map(|asked| find(state, asked)).transpose()?.map(number);
        for old in &mut state.faults {
            if old.function == function && (gpu.is_none() || gpu == Some(old.gpu)) {
                old.kind = 0;
            }
        }
        let (kind, value) = match (fault.fail, fault.slow) {
            (Some(result), _) => (FAILS, result),
            (None, Some(milliseconds)) => (IS_SLOW, milliseconds),
            (None, None) if fault.block => (BLOCKS, 0),
            (None, None) => return Ok(()),
        };
        let count = state.faults.len();
        let free = state.faults.iter_mut().find(|old| old.kind == 0 || old.calls == 0);
        *free.ok_or(InjectError::Full(count, "faults"))? =
            state::Fault { function, gpu: gpu.unwrap_or(NONE), kind, value, calls: fault.times.unwrap_or(NONE) };
        Ok(())
    })
}

/// What can be done with partitions.
#[derive(Subcommand)]
pub(crate) enum Mig {
    /// Makes a GPU instance with one compute instance that has all of it
    Create {
        #[command(flatten)]
        target: Target,
        /// The profile's name, such as 1g.10gb
        profile: String,
        /// The memory unit at which it begins; the driver chooses without it
        #[arg(long)]
        start: Option<u32>,
    },
    /// Destroys a GPU instance with all that is in it
    Destroy {
        #[command(flatten)]
        target: Target,
        /// The GPU instance's id
        id: usize,
    },
}

pub(crate) fn mig(command: &Mig) -> Result<(), InjectError> {
    match command {
        Mig::Create { target, profile, start } => partition(target, |table, gpu, _| {
            if gpu.mig_mode == 0 {
                return Err(InjectError::MigIsOff(target.gpu.clone()));
            }
            let names = || table.profiles().iter().map(|profile| profile.name.as_str());
            let known = || names().collect::<Vec<_>>().join(", ");
            let place = names().position(|name| name == profile).ok_or_else(|| InjectError::Profile {
                gpu: target.gpu.clone(),
                profile: profile.clone(),
                known: known(),
            })?;
            let (name, start) = (profile.clone(), *start);
            let no_room = |NoRoom| InjectError::NoRoom { gpu: target.gpu.clone(), profile: name, start };
            let of = &table.profiles()[place];
            let made = gpu.create_instance(table, place, start);
            made.and_then(|id| gpu.gpu_instances[id].create_compute_instance(of, of.slices, None)).map_err(no_room)?;
            Ok(())
        }),
        Mig::Destroy { target, id } => partition(target, |_, gpu, processes| {
            let no_instance = || InjectError::NoInstance { gpu: target.gpu.clone(), id: *id };
            let instance = gpu.gpu_instances.get_mut(*id).filter(|instance| instance.is_there != 0);
            let instance = instance.ok_or_else(no_instance)?;
            if let Some(process) = processes.iter().find(|process| process.gpu_instance as usize == *id) {
                return Err(InjectError::InUse { gpu: target.gpu.clone(), pid: process.pid });
            }
            instance.is_there = 0;
            for compute in &mut instance.compute_instances {
                compute.is_there = 0;
            }
            Ok(())
        }),
    }
}

/// Resets a GPU: a MIG mode that was waiting for it takes effect, and all partitions and errors are gone.
pub(crate) fn reset(target: &Target) -> Result<(), InjectError> {
    let reset = |gpu: &mut Gpu, processes: &[Process]| {
        if let Some(process) = processes.first() {
            return Err(InjectError::InUse { gpu: target.gpu.clone(), pid: process.pid });
        }
        for instance in &mut gpu.gpu_instances {
            instance.is_there = 0;
            for compute in &mut instance.compute_instances {
                compute.is_there = 0;
            }
        }
        gpu.mig_mode = gpu.mig_mode_pending;
        (gpu.compute_mode, gpu.fault, gpu.recovery_action) = (0, 0, 0);
        gpu.remapped_rows[2] = 0;
        Ok(())
    };
    match partition(target, |_, gpu, processes| reset(gpu, processes)) {
        Err(InjectError::NoMig { .. }) => change(&target.root, |state| {
            let place = find(state, &target.gpu)?;
            let processes = state.processes(place).copied().collect::<Vec<_>>();
            reset(&mut state.gpus[place], &processes)
        }),
        result => result,
    }
}

fn number(place: usize) -> u32 {
    place.try_into().unwrap_or(NONE)
}

fn open(root: &Path) -> Result<(PathBuf, Writer, Box<State>), InjectError> {
    let path = state_file(root)?;
    let opened = Writer::open(&path).and_then(|writer| writer.read().map(|state| (writer, state)));
    match opened {
        Ok((writer, state)) => Ok((path, writer, state)),
        Err(source) => Err(InjectError::State { path, source }),
    }
}

fn change(root: &Path, change: impl FnOnce(&mut State) -> Result<(), InjectError>) -> Result<(), InjectError> {
    let (_, writer, mut state) = open(root)?;
    change(&mut state)?;
    writer.put(&state);
    Ok(())
}

/// Changes a GPU that can be partitioned, and the files of its partitions with it.
fn partition(
    target: &Target,
    change: impl FnOnce(&MigTable, &mut Gpu, &[Process]) -> Result<(), InjectError>,
) -> Result<(), InjectError> {
    let (_, writer, mut state) = open(&target.root)?;
    let place = find(&state, &target.gpu)?;
    let processes = state.processes(place).copied().collect::<Vec<_>>();
    let mut gpu = state.gpus[place];
    let Some(table) = state.mig_table(&gpu) else {
        return Err(InjectError::NoMig { gpu: target.gpu.clone(), name: gpu.name.as_str().to_owned() });
    };
    change(table, &mut gpu, &processes)?;
    state.gpus[place] = gpu;
    let of_files = |source| InjectError::Files { path: target.root.clone(), source };
    let caps = Caps::open(&target.root, Path::new(state.dev.as_str())).map_err(of_files)?;
    caps.add(&gpu).map_err(of_files)?;
    writer.put(&state);
    caps.prune(&gpu).map_err(of_files)
}

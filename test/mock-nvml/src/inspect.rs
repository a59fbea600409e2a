//! Looks at the state of a node's GPUs, and changes it.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, ValueEnum};
use nvidia_ml_mock::mig::uuid;
use nvidia_ml_mock::state::{Address, BLOCKS, Error, FAILS, FILE_PREFIX, Gpu, MigTable, NONE, Reader, State, Writer};
use serde::Serialize;

use crate::files::{FileError, names};

/// Why the state can't be looked at or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InspectError {
    #[error("--root {}: no state file {FILE_PREFIX}* below its usr/lib*; has `mock-nvml layout` been run?", .0.display())]
    None(PathBuf),
    #[error("--root {}: several state files: {}", root.display(), files.join(", "))]
    Several { root: PathBuf, files: Vec<String> },
    #[error("state file {} {source}", path.display())]
    State { path: PathBuf, source: Error },
    #[error("--gpu {asked}: no such GPU; there are: {known}")]
    Gpu { asked: String, known: String },
    #[error("--gpu {gpu}: {name} can't be partitioned")]
    NoMig { gpu: String, name: String },
    #[error("--gpu {0}: has partitions; `mock-nvml mig destroy` destroys them")]
    Partitioned(String),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("can't print the state: {0}")]
    Yaml(#[from] serde_yaml::Error),
    #[error("can't print the state: {0}")]
    Json(#[from] serde_json::Error),
}

/// What `set` can change.
#[derive(Args)]
#[command(group(
    ArgGroup::new("change").required(true).multiple(true).args([
        "compute_mode", "persistence", "mig", "fault", "recovery_action", "remapped_rows", "memory_errors",
    ])
))]
pub(crate) struct Changes {
    /// The folder with the driver's files
    #[arg(long)]
    root: PathBuf,
    /// The GPU: its place in the order of PCI addresses, its PCI address, or its UUID
    #[arg(long)]
    gpu: String,
    /// Which processes may compute
    #[arg(long)]
    compute_mode: Option<ComputeMode>,
    /// Whether the driver stays loaded
    #[arg(long)]
    persistence: Option<Switch>,
    /// Whether the GPU is in MIG mode
    #[arg(long)]
    mig: Option<Switch>,
    /// How all calls about the GPU fail
    #[arg(long)]
    fault: Option<Fault>,
    /// What the driver recommends to do about the GPU
    #[arg(long)]
    recovery_action: Option<RecoveryAction>,
    /// Memory rows that were remapped: for corrected errors, for uncorrected ones, whether one is pending, whether one failed
    #[arg(long, num_args = 4, value_names = ["CORRECTED", "UNCORRECTED", "PENDING", "FAILED"])]
    remapped_rows: Option<Vec<u32>>,
    /// How many memory errors there have been
    #[arg(long, num_args = 2, value_names = ["CORRECTED", "UNCORRECTED"])]
    memory_errors: Option<Vec<u64>>,
}

/// In the order of NVML's numbers.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RecoveryAction {
    None,
    GpuReset,
    NodeReboot,
    DrainP2p,
    DrainAndReset,
    RecoverImexDomain,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ComputeMode {
    Default,
    Prohibited,
    ExclusiveProcess,
}

impl ComputeMode {
    /// As NVML numbers them.
    fn number(self) -> u32 {
        match self {
            Self::Default => 0,
            Self::Prohibited => 2,
            Self::ExclusiveProcess => 3,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Switch {
    Off,
    On,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    None,
    GpuIsLost,
    Unknown,
}

impl Fault {
    /// The result of NVML's calls.
    fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::GpuIsLost => 15,
            Self::Unknown => 999,
        }
    }
}

/// The variant with that number.
fn variant<T: ValueEnum + Copy>(number: u32, of: impl Fn(T) -> u32) -> Option<T> {
    T::value_variants().iter().copied().find(|variant| of(*variant) == number)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    node: &'a str,
    dev: &'a str,
    driver_version: &'a str,
    nvml_version: &'a str,
    cuda_version: String,
    gpus: Vec<ShownGpu<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    processes: Vec<ShownProcess>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<ShownFault<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownProcess {
    pid: u32,
    gpu: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_instance: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_instance: Option<u32>,
    memory: String,
}

impl ShownProcess {
    fn all(state: &State) -> impl Iterator<Item = Self> {
        state.processes.iter().filter(|process| process.pid != 0).map(|process| Self {
            pid: process.pid,
            gpu: process.gpu,
            gpu_instance: some(process.gpu_instance),
            compute_instance: some(process.compute_instance),
            memory: format!("{}Mi", process.memory >> 20),
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownFault<'a> {
    function: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<u32>,
    how: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls_left: Option<u32>,
}

impl<'a> ShownFault<'a> {
    fn all(state: &'a State) -> impl Iterator<Item = Self> {
        let there = state.faults.iter().filter(|fault| fault.kind != 0 && fault.calls > 0);
        there.map(|fault| Self {
            function: fault.function.as_str(),
            gpu: some(fault.gpu),
            how: match fault.kind {
                FAILS => format!("answers {}", fault.value),
                BLOCKS => "blocks".to_owned(),
                _ => format!("takes {} ms more", fault.value),
            },
            calls_left: some(fault.calls),
        })
    }
}

/// A number that isn't none.
fn some(number: u32) -> Option<u32> {
    (number != NONE).then_some(number)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownGpu<'a> {
    address: String,
    minor: u32,
    uuid: &'a str,
    serial: &'a str,
    product_name: &'a str,
    memory: Option<String>,
    numa_node: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mig: Option<Switch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpu_instances: Vec<ShownInstance<'a>>,
    compute_mode: Option<ComputeMode>,
    persistence: Option<Switch>,
    fault: Option<Fault>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownInstance<'a> {
    id: usize,
    profile: &'a str,
    start: u8,
    compute_instances: Vec<ShownComputeInstance>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownComputeInstance {
    id: usize,
    slices: u8,
    start: u8,
    uuid: String,
}

impl<'a> ShownInstance<'a> {
    fn all(gpu: &'a Gpu, table: &'a MigTable) -> impl Iterator<Item = Self> {
        gpu.instances(table).map(|(of, instance, profile)| {
            let compute = instance.compute_instances().map(|(id, compute)| ShownComputeInstance {
                id,
                slices: compute.slices,
                start: compute.start,
                uuid: uuid(gpu.uuid.as_str(), of, id),
            });
            let (profile, start) = (profile.name.as_str(), instance.start);
            Self { id: of, profile, start, compute_instances: compute.collect() }
        })
    }
}

fn switch(number: u32) -> Switch {
    if number == 0 { Switch::Off } else { Switch::On }
}

impl<'a> Shown<'a> {
    fn new(state: &'a State) -> Self {
        Self {
            node: state.node.as_str(),
            dev: state.dev.as_str(),
            driver_version: state.driver_version.as_str(),
            nvml_version: state.nvml_version.as_str(),
            cuda_version: format!("{}.{}", state.cuda_version / 1000, state.cuda_version % 1000 / 10),
            gpus: state.gpus().iter().map(|gpu| ShownGpu::new(state, gpu)).collect(),
            processes: ShownProcess::all(state).collect(),
            faults: ShownFault::all(state).collect(),
        }
    }
}

impl<'a> ShownGpu<'a> {
    fn new(state: &'a State, gpu: &'a Gpu) -> Self {
        Self {
            address: address(gpu),
            minor: gpu.minor,
            uuid: gpu.uuid.as_str(),
            serial: gpu.serial.as_str(),
            product_name: gpu.name.as_str(),
            memory: (gpu.memory_total > 0).then(|| format!("{}Mi", gpu.memory_total >> 20)),
            numa_node: (gpu.numa_node >= 0).then_some(gpu.numa_node),
            mig: state.mig_table(gpu).map(|_| switch(gpu.mig_mode)),
            gpu_instances: state.mig_table(gpu).into_iter().flat_map(|table| ShownInstance::all(gpu, table)).collect(),
            compute_mode: variant(gpu.compute_mode, ComputeMode::number),
            persistence: Some(switch(gpu.persistence_mode)),
            fault: variant(gpu.fault, Fault::number),
        }
    }
}

fn address(gpu: &Gpu) -> String {
    let Address { domain, bus, device, function } = gpu.address;
    format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
}

/// The state of the GPUs, to be read by people or programs.
pub(crate) fn show(root: &Path, json: bool) -> Result<String, InspectError> {
    let path = state_file(root)?;
    let state = Reader::open(&path).and_then(|reader| reader.read());
    let (_, state) = state.map_err(|source| InspectError::State { path, source })?;
    let shown = Shown::new(&state);
    Ok(if json { serde_json::to_string_pretty(&shown)? + "\n" } else { serde_yaml::to_string(&shown)? })
}

/// Changes a GPU.
pub(crate) fn set(changes: &Changes) -> Result<(), InspectError> {
    let path = state_file(&changes.root)?;
    let of_state = |source| InspectError::State { path: path.clone(), source };
    let mut writer = Writer::open(&path).map_err(of_state)?;
    writer.update(|state| change(state, changes)).map_err(of_state)?
}

/// The place of the GPU that is asked for by its place, address, or UUID.
pub(crate) fn find(state: &State, asked: &str) -> Result<usize, InspectError> {
    let is_asked =
        |index: usize, gpu: &Gpu| asked == index.to_string() || asked == address(gpu) || asked == gpu.uuid.as_str();
    let found = state.gpus().iter().enumerate().position(|(index, gpu)| is_asked(index, gpu));
    let known = || state.gpus().iter().map(address).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| InspectError::Gpu { asked: asked.to_owned(), known: known() })
}

fn change(state: &mut State, changes: &Changes) -> Result<(), InspectError> {
    let asked = &changes.gpu;
    let place = find(state, asked)?;
    let gpu = &mut state.gpus[place];
    if changes.mig.is_some() && gpu.mig_table == 0 {
        return Err(InspectError::NoMig { gpu: asked.clone(), name: gpu.name.as_str().to_owned() });
    }
    if changes.mig == Some(Switch::Off) && gpu.gpu_instances.iter().any(|instance| instance.is_there != 0) {
        return Err(InspectError::Partitioned(asked.clone()));
    }
    if let Some(mode) = changes.compute_mode {
        gpu.compute_mode = mode.number();
    }
    if let Some(switch) = changes.persistence {
        gpu.persistence_mode = switch as u32;
    }
    if let Some(switch) = changes.mig {
        (gpu.mig_mode, gpu.mig_mode_pending) = (switch as u32, switch as u32);
    }
    if let Some(fault) = changes.fault {
        gpu.fault = fault.number();
    }
    if let Some(action) = changes.recovery_action {
        gpu.recovery_action = action as u32;
    }
    if let Some(rows) = &changes.remapped_rows {
        for (place, value) in gpu.remapped_rows.iter_mut().zip(rows) {
            *place = *value;
        }
    }
    if let Some(&[corrected, uncorrected]) = changes.memory_errors.as_deref() {
        (gpu.corrected_errors, gpu.uncorrected_errors) = (corrected, uncorrected);
    }
    Ok(())
}

/// The state file of a laid-out driver: in some folder for libraries.
pub(crate) fn state_file(root: &Path) -> Result<PathBuf, InspectError> {
    match &state_files(root)?[..] {
        [] => Err(InspectError::None(root.to_owned())),
        [file] => Ok(file.clone()),
        files => Err(InspectError::Several {
            root: root.to_owned(),
            files: files.iter().map(|file| file.display().to_string()).collect(),
        }),
    }
}

/// The state files of all drivers that have been laid out.
pub(crate) fn state_files(root: &Path) -> Result<Vec<PathBuf>, FileError> {
    let mut folders = vec![root.join("usr")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for name in names(&folder)? {
            let path = folder.join(&name);
            if name.starts_with(FILE_PREFIX) {
                found.push(path);
            } else if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            }
        }
    }
    Ok(found)
}

//! From a machine file to the state of its GPUs.

use std::path::{Path, PathBuf};

use aliquot_machine::{Architecture, Brand, Machine, MemorySize, Model, Problems};
use nvidia_ml_mock::state::{Gpu, MAX_GPUS, State, Text};

use crate::MachineArguments;

/// NVIDIA's vendor id.
pub(crate) const VENDOR: u16 = 0x10de;

/// Why a machine file can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompileError {
    #[error("machine file {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("machine file {}: {source}", path.display())]
    Syntax { path: PathBuf, source: serde_yaml::Error },
    #[error("machine file {}:\n{source}", path.display())]
    Invalid { path: PathBuf, source: Problems },
    #[error("machine file {}: gpus: there are {count}, and a state file holds {MAX_GPUS}", path.display())]
    TooMany { path: PathBuf, count: usize },
    #[error("machine file {}: {field}: {text:?} is longer than NVML allows", path.display())]
    TooLong { path: PathBuf, field: String, text: String },
    #[error("{option}: {text:?} is too long, or isn't text")]
    Option { option: &'static str, text: String },
}

/// Reads a machine file and makes the state of a node's GPUs from it.
pub(crate) fn load(arguments: &MachineArguments) -> Result<(Machine, State), CompileError> {
    let path = &arguments.machine;
    let text = std::fs::read_to_string(path).map_err(|source| CompileError::Read { path: path.clone(), source })?;
    let machine: Machine =
        serde_yaml::from_str(&text).map_err(|source| CompileError::Syntax { path: path.clone(), source })?;
    machine.validate().map_err(|source| CompileError::Invalid { path: path.clone(), source })?;
    let state = compile(&machine, arguments)?;
    Ok((machine, state))
}

fn compile(machine: &Machine, arguments: &MachineArguments) -> Result<State, CompileError> {
    let fields = Fields { path: &arguments.machine };
    if machine.gpus.len() > MAX_GPUS {
        return Err(CompileError::TooMany { path: fields.path.to_owned(), count: machine.gpus.len() });
    }
    let cuda = machine.driver.cuda;
    let mut state = State {
        cuda_version: u32::from(cuda.major) * 1000 + u32::from(cuda.minor) * 10,
        node: option("--node", Some(&arguments.node))?,
        dev: option("--dev", std::path::absolute(&arguments.dev).ok().as_deref().and_then(Path::to_str))?,
        driver_version: fields.text("driver.version", &machine.driver.version.to_string())?,
        nvml_version: fields.text("driver.nvml", &machine.driver.nvml_version())?,
        ..State::EMPTY
    };
    let mut gpus = machine.gpus.iter().enumerate().collect::<Vec<_>>();
    gpus.sort_by_key(|(_, gpu)| gpu.pci.address);
    for ((index, gpu), place) in gpus.into_iter().zip(&mut state.gpus) {
        let Some(model) = machine.model(gpu) else { continue };
        *place = compile_gpu(gpu, index, model, &arguments.node, &fields)?;
        state.gpu_count += 1;
    }
    Ok(state)
}

fn compile_gpu(
    gpu: &aliquot_machine::Gpu,
    index: usize,
    model: &Model,
    node: &str,
    fields: &Fields<'_>,
) -> Result<Gpu, CompileError> {
    let in_model = |field: &str| format!("models.{}.{field}", gpu.model);
    let id = |device: u16| u32::from(device) << 16 | u32::from(VENDOR);
    let address = gpu.pci.address;
    Ok(Gpu {
        memory_total: model.memory.map_or(0, |memory| memory.total.bytes()),
        memory_reserved: model.memory.map_or(0, |memory| memory.reserved.bytes()),
        bar1_total: model.bar1.map_or(0, MemorySize::bytes),
        domain: address.domain,
        bus: address.bus.into(),
        device: address.device.into(),
        function: address.function.into(),
        root_bus: gpu.pci.root.bus.into(),
        pci_id: id(model.pci.device),
        pci_subsystem_id: id(model.pci.subsystem),
        minor: gpu.minor,
        numa_node: gpu.numa_node.and_then(|node| node.try_into().ok()).unwrap_or(-1),
        brand: brand(model.brand),
        architecture: architecture(model.architecture),
        compute_major: model.compute_capability.major.into(),
        compute_minor: model.compute_capability.minor.into(),
        nv_links: model.nv_links,
        max_mig_devices: model.mig.map_or(0, |mig| mig.max_devices),
        mig_mode: 0,
        mig_mode_pending: 0,
        compute_mode: 0,
        persistence_mode: 0,
        fault: 0,
        name: fields.text(&in_model("productName"), &model.product_name)?,
        uuid: fields.text(&format!("gpus[{index}].uuid"), &gpu.uuid(node).to_string())?,
        serial: fields.text(&format!("gpus[{index}].serial"), &gpu.serial(node))?,
        board_part_number: fields
            .text(&in_model("boardPartNumber"), model.board_part_number.as_deref().unwrap_or_default())?,
    })
}

/// Texts of a machine file that must fit into the state.
struct Fields<'a> {
    path: &'a Path,
}

impl Fields<'_> {
    fn text<const N: usize>(&self, field: &str, text: &str) -> Result<Text<N>, CompileError> {
        Text::new(text).ok_or_else(|| CompileError::TooLong {
            path: self.path.to_owned(),
            field: field.to_owned(),
            text: text.to_owned(),
        })
    }
}

fn option<const N: usize>(option: &'static str, text: Option<&str>) -> Result<Text<N>, CompileError> {
    let text = text.unwrap_or_default();
    Text::new(text).filter(|_| !text.is_empty()).ok_or_else(|| CompileError::Option { option, text: text.to_owned() })
}

/// As NVML numbers them.
fn brand(brand: Brand) -> u32 {
    match brand {
        Brand::Tesla => 2,
        Brand::GeForce => 5,
        Brand::NvidiaRtx => 13,
        Brand::Nvidia => 14,
    }
}

/// As NVML numbers them.
fn architecture(architecture: Architecture) -> u32 {
    match architecture {
        Architecture::Turing => 6,
        Architecture::Ampere => 7,
        Architecture::Ada => 8,
        Architecture::Hopper => 9,
        Architecture::Blackwell => 10,
    }
}

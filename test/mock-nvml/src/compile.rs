//! From a machine file to the state of its GPUs.

use std::path::{Path, PathBuf};

use aliquot_api::ids::PciAddress;
use aliquot_machine::{Architecture, Brand, ClusterUuid, Fault, Machine, MemorySize, Mig, Model, Problems};
use nvidia_ml_mock::mig::NoRoom;
use nvidia_ml_mock::state::{
    Address, Gpu, MAX_GPUS, MAX_MIG_TABLES, MAX_PROFILES, MAX_SWITCHES, MigTable, Profile, State, Text,
};

use crate::{MachineArguments, models};

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
    #[error("the model {name}: {source}")]
    Model { name: String, source: serde_yaml::Error },
    #[error("machine file {}: {what}: there are {count}, and a state file holds {most}", path.display())]
    TooMany { path: PathBuf, what: String, count: usize, most: usize },
    #[error("machine file {}: {field}: there is no room for a {profile} beside those before it", path.display())]
    NoRoom { path: PathBuf, field: String, profile: String },
    #[error("machine file {}: {field}: {text:?} is longer than NVML allows", path.display())]
    TooLong { path: PathBuf, field: String, text: String },
    #[error("{option}: {text:?} is too long, or isn't text")]
    Option { option: &'static str, text: String },
}

/// Reads a machine file and makes the state of a node's GPUs from it.
pub(crate) fn load(arguments: &MachineArguments) -> Result<(Machine, Box<State>), CompileError> {
    let path = &arguments.machine;
    let text = std::fs::read_to_string(path).map_err(|source| CompileError::Read { path: path.clone(), source })?;
    let mut machine: Machine =
        serde_yaml::from_str(&text).map_err(|source| CompileError::Syntax { path: path.clone(), source })?;
    models::add(&mut machine).map_err(|(name, source)| CompileError::Model { name, source })?;
    machine.validate().map_err(|source| CompileError::Invalid { path: path.clone(), source })?;
    let state = compile(&machine, arguments)?;
    Ok((machine, state))
}

fn compile(machine: &Machine, arguments: &MachineArguments) -> Result<Box<State>, CompileError> {
    let fields = Fields { path: &arguments.machine };
    fields.count("gpus", machine.gpus.len(), MAX_GPUS)?;
    fields.count("nvSwitches", machine.nv_switches.len(), MAX_SWITCHES)?;
    let cuda = machine.driver.cuda;
    let mut state = State::empty();
    state.cuda_version = u32::from(cuda.major) * 1000 + u32::from(cuda.minor) * 10;
    state.node = option("--node", Some(&arguments.node))?;
    state.dev = option("--dev", std::path::absolute(&arguments.dev).ok().as_deref().and_then(Path::to_str))?;
    state.driver_version = fields.text("driver.version", &machine.driver.version.to_string())?;
    state.nvml_version = fields.text("driver.nvml", &machine.driver.nvml_version())?;
    state.library_dir = fields.text("driver.libraryDir", &machine.driver.library_dir.to_string())?;
    for (switch, place) in machine.nv_switches.iter().zip(&mut state.nv_switches) {
        *place = address(*switch);
        state.nv_switch_count += 1;
    }
    if let Some(fabric) = machine.fabric {
        state.fabric_state = FABRIC_COMPLETED;
        state.fabric_clique = fabric.clique;
        state.fabric_cluster = fabric.cluster.map(ClusterUuid::bytes).unwrap_or_default();
    }
    let tables = mig_tables(machine, &fields)?;
    for ((_, table), place) in tables.iter().zip(&mut state.mig_tables) {
        *place = *table;
    }
    let mut gpus = machine.gpus.iter().enumerate().collect::<Vec<_>>();
    gpus.sort_by_key(|(_, gpu)| gpu.pci.address);
    for ((index, gpu), place) in gpus.into_iter().zip(&mut state.gpus) {
        let Some(model) = machine.model(gpu) else { continue };
        *place = compile_gpu(gpu, index, model, &arguments.node, &fields)?;
        state.gpu_count += 1;
        if let Some(number) = tables.iter().position(|(model, _)| *model == gpu.model) {
            place.mig_table = u32::try_from(number + 1).unwrap_or_default();
            partition(gpu, index, &tables[number].1, place, &fields)?;
        }
    }
    Ok(state)
}

/// The models that can be partitioned, and how.
fn mig_tables<'a>(machine: &'a Machine, fields: &Fields<'_>) -> Result<Vec<(&'a str, MigTable)>, CompileError> {
    let used = |name: &str| machine.gpus.iter().any(|gpu| gpu.model == name);
    let models = machine.models.iter().filter(|(name, _)| used(name));
    let models = models.filter_map(|(name, model)| Some((name.as_str(), model.mig.as_ref()?)));
    let tables = models.map(|(name, mig)| Ok((name, mig_table(name, mig, fields)?))).collect::<Result<Vec<_>, _>>()?;
    fields.count("models with mig", tables.len(), MAX_MIG_TABLES)?;
    Ok(tables)
}

fn mig_table(model: &str, mig: &Mig, fields: &Fields<'_>) -> Result<MigTable, CompileError> {
    let field = format!("models.{model}.mig.profiles");
    fields.count(&field, mig.profiles.len(), MAX_PROFILES)?;
    let mut table = State::empty().mig_tables[0];
    table.mode_needs_reset = mig.mode_needs_reset.into();
    table.memory_units = mig.memory_units;
    for (profile, place) in mig.profiles.iter().zip(&mut table.profiles) {
        table.profile_count += 1;
        *place = Profile {
            kind: profile.kind.number(),
            id: profile.id,
            slices: profile.kind.slices(),
            instances: profile.instances,
            memory: u32::try_from(profile.memory.bytes() >> 20).unwrap_or(u32::MAX),
            sms: profile.sms,
            engines: [profile.copy, profile.decode, profile.encode, profile.jpeg, profile.ofa],
            size: profile.size,
            starts: profile.starts.iter().fold(0, |bits, start| bits | 1 << start),
            name: fields.text(&field, &profile.name)?,
        };
    }
    Ok(table)
}

/// Makes the partitions that are there at boot.
fn partition(
    gpu: &aliquot_machine::Gpu,
    index: usize,
    table: &MigTable,
    state: &mut Gpu,
    fields: &Fields<'_>,
) -> Result<(), CompileError> {
    let Some(partitions) = &gpu.mig else { return Ok(()) };
    (state.mig_mode, state.mig_mode_pending) = (1, 1);
    for (number, wanted) in partitions.devices.iter().enumerate() {
        let no_room = || CompileError::NoRoom {
            path: fields.path.to_owned(),
            field: format!("gpus[{index}].mig.devices[{number}]"),
            profile: wanted.profile.clone(),
        };
        let place = table.profiles().iter().position(|profile| profile.name.as_str() == wanted.profile);
        let place = place.ok_or_else(no_room)?;
        let id = state.create_instance(table, place, Some(wanted.start)).map_err(|NoRoom| no_room())?;
        let profile = &table.profiles[place];
        let made = state.gpu_instances[id].create_compute_instance(profile, profile.slices, None);
        made.map_err(|NoRoom| no_room())?;
    }
    Ok(())
}

/// As NVML numbers the states of a fabric.
const FABRIC_COMPLETED: u32 = 3;

fn address(address: PciAddress) -> Address {
    let PciAddress { domain, bus, device, function } = address;
    Address { domain, bus: bus.into(), device: device.into(), function: function.into() }
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
    Ok(Gpu {
        memory_total: model.memory.map_or(0, |memory| memory.total.bytes()),
        memory_reserved: model.memory.map_or(0, |memory| memory.reserved.bytes()),
        bar1_total: model.bar1.map_or(0, MemorySize::bytes),
        address: address(gpu.pci.address),
        root_bus: gpu.pci.root.bus.into(),
        pci_id: id(model.pci.device),
        pci_subsystem_id: id(model.pci.subsystem),
        minor: gpu.minor,
        numa_node: gpu.numa_node.and_then(|node| node.try_into().ok()).unwrap_or(-1),
        brand: brand(model.brand),
        architecture: architecture(model.architecture),
        compute_major: model.compute_capability.major.into(),
        compute_minor: model.compute_capability.minor.into(),
        bridge: gpu.bridge.map_or(Address::NOWHERE, |bridge| address(bridge.to)),
        nv_links: gpu.bridge.map_or(model.nv_links, |bridge| bridge.links),
        mig_table: 0,
        mig_mode: 0,
        mig_mode_pending: 0,
        compute_mode: 0,
        persistence_mode: 0,
        fault: gpu.fault.map_or(0, fault),
        recovery_action: 0,
        remapped_rows: [0; 4],
        corrected_errors: 0,
        uncorrected_errors: 0,
        name: fields.text(&in_model("productName"), &model.product_name)?,
        uuid: fields.text(&format!("gpus[{index}].uuid"), &gpu.uuid(node).to_string())?,
        serial: fields.text(&format!("gpus[{index}].serial"), &gpu.serial(node))?,
        board_part_number: fields
            .text(&in_model("boardPartNumber"), model.board_part_number.as_deref().unwrap_or_default())?,
        gpu_instances: State::empty().gpus[0].gpu_instances,
    })
}

/// Texts of a machine file that must fit into the state.
struct Fields<'a> {
    path: &'a Path,
}

impl Fields<'_> {
    fn count(&self, what: &str, count: usize, most: usize) -> Result<(), CompileError> {
        if count <= most {
            return Ok(());
        }
        Err(CompileError::TooMany { path: self.path.to_owned(), what: what.to_owned(), count, most })
    }

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

/// The result of NVML's calls.
fn fault(fault: Fault) -> u32 {
    match fault {
        Fault::GpuIsLost => 15,
        Fault::Unknown => 999,
    }
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

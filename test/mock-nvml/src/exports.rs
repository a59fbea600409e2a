//! The functions of NVML.
//!
//! Documented by NVIDIA. A function that isn't here is one that an older driver doesn't have either.

use std::ffi::{c_char, c_int, c_uint};

use crate::abi::{self, Answer, Failure, Memory, MemoryV2, Out, PciInfo, TextIn, TextOut, struct_version, text_field};
use crate::handle::Handle;
use crate::library::{Device, Partition, Session, change, device, gpu, init, session, shutdown};
use crate::state::{Address, Gpu};

/// Defines functions of the C interface by what they answer if nothing is wrong with them on purpose. A panic in one ends the process: nothing unwinds into C.
macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) = $answer:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> c_uint {
                match $crate::faults::meet(stringify!($name), &[$(&$argument),*]) {
                    0 => $crate::abi::code($answer),
                    code => code,
                }
            }
        )*
    };
}

mod health;
mod links;
mod mig;

export! {
    fn nvmlInit_v2() = init();
    fn nvmlInitWithFlags(_flags: c_uint) = init();
    fn nvmlShutdown() = shutdown();
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: c_uint) -> *const c_char {
    abi::text_of(result).as_ptr()
}

export! {
    fn nvmlSystemGetDriverVersion(version: TextOut, length: c_uint) =
        session(|session| version.put(length, session.state().driver_version.as_str()));

    fn nvmlSystemGetNVMLVersion(version: TextOut, length: c_uint) =
        session(|session| version.put(length, session.state().nvml_version.as_str()));

    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) = cuda_version(&version);

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) = cuda_version(&version);
}

fn cuda_version(version: &Out<c_int>) -> Answer {
    session(|session| version.put(session.state().cuda_version.cast_signed()))
}

export! {
    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) = session(|session| count.put(session.count()));

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Handle>) =
        session(|session| device.put(session.handle(index)?));

    fn nvmlDeviceGetHandleByUUID(uuid: TextIn, device: Out<Handle>) =
        session(|session| device.put(by_uuid(session, uuid.get()?)?));

    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: TextIn, device: Out<Handle>) =
        session(|session| device.put(by_bus_id(session, bus_id.get()?)?));

    fn nvmlDeviceGetHandleBySerial(serial: TextIn, device: Out<Handle>) =
        session(|session| device.put(by_serial(session, serial.get()?)?));

    fn nvmlDeviceGetIndex(device: Handle, index: Out<c_uint>) = session(|session| {
        if let Device::Mig(partition) = session.device(device)? {
            let all = session.mig_devices(partition.ids.index)?;
            let found = (0..).zip(all).find(|(_, other)| other.ids == partition.ids);
            return index.put(found.ok_or(Failure::NotFound)?.0);
        }
        let found = session.index(device)?;
        session.gpu(found)?;
        index.put(found)
    });
}

fn by_uuid(session: &Session, uuid: &str) -> Result<Handle, Failure> {
    if uuid.starts_with("MIG-") {
        return session.mig_device_by_uuid(uuid);
    }
    session.find(|gpu| gpu.uuid.as_str() == uuid)
}

fn by_bus_id(session: &Session, bus_id: &str) -> Result<Handle, Failure> {
    let address = parse_bus_id(bus_id).ok_or(Failure::InvalidArgument)?;
    session.find(|gpu| gpu.address == address)
}

fn by_serial(session: &Session, serial: &str) -> Result<Handle, Failure> {
    session.find(|gpu| gpu.serial.as_str() == serial)
}

/// The device of a UUID, an address, or a serial number.
pub(crate) fn handle_by_text(session: &Session, text: &str) -> Result<Handle, Failure> {
    by_uuid(session, text).or_else(|_| by_bus_id(session, text)).or_else(|_| by_serial(session, text))
}

/// Domain, bus, device and function of `0000:1b:00.0`, also with a domain of eight digits.
fn parse_bus_id(text: &str) -> Option<Address> {
    let mut parts = text.split([':', '.']).map(|digits| u32::from_str_radix(digits, 16).ok());
    let address =
        Address { domain: parts.next()??, bus: parts.next()??, device: parts.next()??, function: parts.next()?? };
    parts.next().is_none().then_some(address)
}

export! {
    fn nvmlDeviceGetName(handle: Handle, name: TextOut, length: c_uint) = device(handle, |device| match device {
        Device::Gpu(gpu) => name.put(length, gpu.name.as_str()),
        Device::Mig(Partition { gpu, profile, compute_instance, .. }) => {
            let profile = mig::name(profile, compute_instance.slices.into());
            name.put(length, &format!("{} MIG {profile}", gpu.name.as_str()))
        }
    });

    fn nvmlDeviceGetUUID(handle: Handle, uuid: TextOut, length: c_uint) = device(handle, |device| match device {
        Device::Gpu(gpu) => uuid.put(length, gpu.uuid.as_str()),
        Device::Mig(partition) => uuid.put(length, &partition.uuid()),
    });

    fn nvmlDeviceGetSerial(device: Handle, serial: TextOut, length: c_uint) =
        gpu(device, |gpu| serial.put(length, gpu.serial.as_str()));

    fn nvmlDeviceGetBoardPartNumber(device: Handle, number: TextOut, length: c_uint) =
        gpu(device, |gpu| number.put(length, supported(gpu.board_part_number.as_str(), |text| !text.is_empty())?));

    fn nvmlDeviceGetBrand(handle: Handle, brand: Out<c_uint>) = device(handle, |device| brand.put(device.gpu().brand));

    fn nvmlDeviceGetArchitecture(handle: Handle, architecture: Out<c_uint>) =
        device(handle, |device| architecture.put(device.gpu().architecture));

    fn nvmlDeviceGetCudaComputeCapability(handle: Handle, major: Out<c_int>, minor: Out<c_int>) =
        device(handle, |device| {
            minor.check()?;
            major.put(device.gpu().compute_major.cast_signed())?;
            minor.put(device.gpu().compute_minor.cast_signed())
        });

    fn nvmlDeviceGetMinorNumber(device: Handle, minor: Out<c_uint>) = gpu(device, |gpu| minor.put(gpu.minor));

    // Of the GPU's own memory, where that is a node of its own; not the node that a GPU is attached to.
    fn nvmlDeviceGetNumaNodeId(device: Handle, _node: Out<c_uint>) = gpu(device, |_| Err(Failure::NotSupported));

    fn nvmlDeviceGetPciInfo_v3(handle: Handle, info: Out<PciInfo>) =
        device(handle, |device| info.put(pci_info(device.gpu())));
}

/// All memory of a device, what of it is reserved, and what processes have.
fn memory_of(session: &Session, handle: Handle) -> Result<(u64, u64, u64), Failure> {
    let device = session.device(handle)?;
    let used = session.processes(handle, &device).map(|process| process.memory).sum();
    match device {
        Device::Gpu(gpu) => Ok((supported(gpu.memory_total, |total| *total > 0)?, gpu.memory_reserved, used)),
        Device::Mig(Partition { profile, .. }) => Ok((u64::from(profile.memory) << 20, 0, used)),
    }
}

/// The value, if the GPU has one.
fn supported<T>(value: T, has: impl FnOnce(&T) -> bool) -> Result<T, Failure> {
    if has(&value) { Ok(value) } else { Err(Failure::NotSupported) }
}

fn pci_info(gpu: &Gpu) -> PciInfo {
    pci_info_of(gpu.address, gpu.pci_id, gpu.pci_subsystem_id)
}

fn pci_info_of(address: Address, pci_device_id: c_uint, pci_subsystem_id: c_uint) -> PciInfo {
    let Address { domain, bus, device, function } = address;
    PciInfo {
        bus_id_legacy: text_field(&format!("{domain:04X}:{bus:02X}:{device:02X}.{function:X}")),
        domain,
        bus,
        device,
        pci_device_id,
        pci_subsystem_id,
        bus_id: text_field(&format!("{domain:08X}:{bus:02X}:{device:02X}.{function:X}")),
    }
}

export! {
    // The first version of the call counts what is reserved as used.
    fn nvmlDeviceGetMemoryInfo(device: Handle, memory: Out<Memory>) = session(|session| {
        let (total, reserved, used) = memory_of(session, device)?;
        memory.put(Memory { total, free: total.saturating_sub(reserved + used), used: reserved + used })
    });

    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: Out<MemoryV2>) = session(|session| {
        let version = memory.version()?;
        if version != struct_version::<MemoryV2>(2) {
            return Err(Failure::ArgumentVersionMismatch);
        }
        let (total, reserved, used) = memory_of(session, device)?;
        memory.put(MemoryV2 { version, total, reserved, free: total.saturating_sub(reserved + used), used })
    });

    fn nvmlDeviceGetBAR1MemoryInfo(device: Handle, memory: Out<Memory>) = gpu(device, |gpu| {
        let total = supported(gpu.bar1_total, |total| *total > 0)?;
        memory.put(Memory { total, free: total, used: 0 })
    });
}

/// A GPU for one process at a time, by threads: out of use, and no GPU of today takes it.
const EXCLUSIVE_THREAD: c_uint = 1;
const LAST_COMPUTE_MODE: c_uint = 3;

export! {
    fn nvmlDeviceGetComputeMode(device: Handle, mode: Out<c_uint>) = gpu(device, |gpu| mode.put(gpu.compute_mode));

    // In MIG mode it is the default, and stays that.
    fn nvmlDeviceSetComputeMode(device: Handle, mode: c_uint) = match mode {
        EXCLUSIVE_THREAD => gpu(device, |_| Err(Failure::NotSupported)),
        0..=LAST_COMPUTE_MODE => gpu(device, |gpu| supported((), |()| gpu.mig_mode == 0))
            .and_then(|()| change(device, |gpu| gpu.compute_mode = mode)),
        _ => session(|_| Err(Failure::InvalidArgument)),
    };

    fn nvmlDeviceGetPersistenceMode(device: Handle, mode: Out<c_uint>) =
        gpu(device, |gpu| mode.put(gpu.persistence_mode));

    fn nvmlDeviceSetPersistenceMode(device: Handle, mode: c_uint) = match mode {
        0 | 1 => change(device, |gpu| gpu.persistence_mode = mode),
        _ => session(|_| Err(Failure::InvalidArgument)),
    };
}

/// How far it is from one GPU to another, as NVML counts.
mod topology {
    use std::ffi::c_uint;

    pub(super) const INTERNAL: c_uint = 0;
    pub(super) const HOST_BRIDGE: c_uint = 30;
    pub(super) const NODE: c_uint = 40;
    pub(super) const SYSTEM: c_uint = 50;
}

export! {
    fn nvmlDeviceGetTopologyCommonAncestor(device: Handle, other: Handle, level: Out<c_uint>) = session(|session| {
        let (one, two) = (session.gpu(session.index(device)?)?, session.gpu(session.index(other)?)?);
        level.put(if device == other {
            topology::INTERNAL
        } else if (one.address.domain, one.root_bus) == (two.address.domain, two.root_bus) {
            topology::HOST_BRIDGE
        } else if one.numa_node == two.numa_node {
            topology::NODE
        } else {
            topology::SYSTEM
        })
    });
}

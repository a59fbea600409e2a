//! The functions of NVML.
//!
//! Documented by NVIDIA. A function that isn't here is one that an older driver doesn't have either.

use std::ffi::{c_char, c_int, c_uint};
use std::time::Duration;

use crate::abi::{
    self, Answer, EventData, Failure, Memory, MemoryV2, Out, PciInfo, ProcessInfo, TextIn, TextOut, code,
    struct_version, text_field,
};
use crate::handle::Handle;
use crate::library::{change, gpu, init, session, shutdown, wait};
use crate::state::Gpu;

/// Defines functions of the C interface by what they answer. A panic in one ends the process: nothing unwinds into C.
macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) = $answer:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> c_uint {
                code($answer)
            }
        )*
    };
}

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

    fn nvmlDeviceGetHandleByUUID(uuid: TextIn, device: Out<Handle>) = session(|session| {
        let uuid = uuid.get()?;
        device.put(session.find(|gpu| gpu.uuid.as_str() == uuid)?)
    });

    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: TextIn, device: Out<Handle>) = session(|session| {
        let address = parse_bus_id(bus_id.get()?).ok_or(Failure::InvalidArgument)?;
        device.put(session.find(|gpu| [gpu.domain, gpu.bus, gpu.device, gpu.function] == address)?)
    });

    fn nvmlDeviceGetHandleBySerial(serial: TextIn, device: Out<Handle>) = session(|session| {
        let serial = serial.get()?;
        device.put(session.find(|gpu| gpu.serial.as_str() == serial)?)
    });

    fn nvmlDeviceGetIndex(device: Handle, index: Out<c_uint>) = session(|session| {
        let found = session.index(device)?;
        session.gpu(found)?;
        index.put(found)
    });
}

/// Domain, bus, device and function of `0000:1b:00.0`, also with a domain of eight digits.
fn parse_bus_id(text: &str) -> Option<[u32; 4]> {
    let mut parts = text.split([':', '.']).map(|digits| u32::from_str_radix(digits, 16));
    let address = [parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?];
    parts.next().is_none().then_some(address)
}

export! {
    fn nvmlDeviceGetName(device: Handle, name: TextOut, length: c_uint) =
        gpu(device, |gpu| name.put(length, gpu.name.as_str()));

    fn nvmlDeviceGetUUID(device: Handle, uuid: TextOut, length: c_uint) =
        gpu(device, |gpu| uuid.put(length, gpu.uuid.as_str()));

    fn nvmlDeviceGetSerial(device: Handle, serial: TextOut, length: c_uint) =
        gpu(device, |gpu| serial.put(length, gpu.serial.as_str()));

    fn nvmlDeviceGetBoardPartNumber(device: Handle, number: TextOut, length: c_uint) =
        gpu(device, |gpu| number.put(length, supported(gpu.board_part_number.as_str(), |text| !text.is_empty())?));

    fn nvmlDeviceGetBrand(device: Handle, brand: Out<c_uint>) = gpu(device, |gpu| brand.put(gpu.brand));

    fn nvmlDeviceGetArchitecture(device: Handle, architecture: Out<c_uint>) =
        gpu(device, |gpu| architecture.put(gpu.architecture));

    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: Out<c_int>, minor: Out<c_int>) = gpu(device, |gpu| {
        minor.check()?;
        major.put(gpu.compute_major.cast_signed())?;
        minor.put(gpu.compute_minor.cast_signed())
    });

    fn nvmlDeviceGetMinorNumber(device: Handle, minor: Out<c_uint>) = gpu(device, |gpu| minor.put(gpu.minor));

    // Of the GPU's own memory, where that is a node of its own; not the node that a GPU is attached to.
    fn nvmlDeviceGetNumaNodeId(device: Handle, _node: Out<c_uint>) = gpu(device, |_| Err(Failure::NotSupported));

    fn nvmlDeviceGetPciInfo_v3(device: Handle, info: Out<PciInfo>) = gpu(device, |gpu| info.put(pci_info(gpu)));
}

/// The value, if the GPU has one.
fn supported<T>(value: T, has: impl FnOnce(&T) -> bool) -> Result<T, Failure> {
    if has(&value) { Ok(value) } else { Err(Failure::NotSupported) }
}

fn pci_info(gpu: &Gpu) -> PciInfo {
    let Gpu { domain, bus, device, function, .. } = *gpu;
    PciInfo {
        bus_id_legacy: text_field(&format!("{domain:04X}:{bus:02X}:{device:02X}.{function:X}")),
        domain,
        bus,
        device,
        pci_device_id: gpu.pci_id,
        pci_subsystem_id: gpu.pci_subsystem_id,
        bus_id: text_field(&format!("{domain:08X}:{bus:02X}:{device:02X}.{function:X}")),
    }
}

export! {
    // The first version of the call counts what is reserved as used.
    fn nvmlDeviceGetMemoryInfo(device: Handle, memory: Out<Memory>) = gpu(device, |gpu| {
        let total = supported(gpu.memory_total, |total| *total > 0)?;
        memory.put(Memory { total, free: total - gpu.memory_reserved, used: gpu.memory_reserved })
    });

    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: Out<MemoryV2>) = gpu(device, |gpu| {
        let version = memory.version()?;
        if version != struct_version::<MemoryV2>(2) {
            return Err(Failure::ArgumentVersionMismatch);
        }
        let total = supported(gpu.memory_total, |total| *total > 0)?;
        let reserved = gpu.memory_reserved;
        memory.put(MemoryV2 { version, total, reserved, free: total - reserved, used: 0 })
    });

    fn nvmlDeviceGetBAR1MemoryInfo(device: Handle, memory: Out<Memory>) = gpu(device, |gpu| {
        let total = supported(gpu.bar1_total, |total| *total > 0)?;
        memory.put(Memory { total, free: total, used: 0 })
    });

    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: Out<c_uint>, _infos: Out<ProcessInfo>) =
        gpu(device, |_| count.put(0));
}

export! {
    fn nvmlDeviceGetMigMode(device: Handle, current: Out<c_uint>, pending: Out<c_uint>) = gpu(device, |gpu| {
        supported(gpu.max_mig_devices, |max| *max > 0)?;
        pending.check()?;
        current.put(gpu.mig_mode)?;
        pending.put(gpu.mig_mode_pending)
    });

    fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Out<c_uint>) =
        gpu(device, |gpu| count.put(if gpu.mig_mode == 0 { 0 } else { gpu.max_mig_devices }));

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, _index: c_uint, mig_device: Out<Handle>) =
        gpu(device, |gpu| {
            mig_device.check()?;
            supported(gpu.max_mig_devices, |max| *max > 0)?;
            Err(Failure::NotFound)
        });

    fn nvmlDeviceIsMigDeviceHandle(device: Handle, is_mig_device: Out<c_uint>) =
        gpu(device, |_| is_mig_device.put(0));
}

/// A GPU for one process at a time, by threads: out of use, and no GPU of today takes it.
const EXCLUSIVE_THREAD: c_uint = 1;
const LAST_COMPUTE_MODE: c_uint = 3;

export! {
    fn nvmlDeviceGetComputeMode(device: Handle, mode: Out<c_uint>) = gpu(device, |gpu| mode.put(gpu.compute_mode));

    fn nvmlDeviceSetComputeMode(device: Handle, mode: c_uint) = match mode {
        EXCLUSIVE_THREAD => gpu(device, |_| Err(Failure::NotSupported)),
        0..=LAST_COMPUTE_MODE => change(device, |gpu| gpu.compute_mode = mode),
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
        } else if (one.domain, one.root_bus) == (two.domain, two.root_bus) {
            topology::HOST_BRIDGE
        } else if one.numa_node == two.numa_node {
            topology::NODE
        } else {
            topology::SYSTEM
        })
    });

    fn nvmlDeviceGetNvLinkState(device: Handle, link: c_uint, is_active: Out<c_uint>) = gpu(device, |gpu| {
        let links = supported(gpu.nv_links, |links| *links > 0)?;
        if link >= links {
            return Err(Failure::InvalidArgument);
        }
        is_active.put(1)
    });
}

/// Critical errors (XID), and memory errors of one and of two bits.
const EVENT_TYPES: u64 = 0x8 | 0x2 | 0x1;

export! {
    fn nvmlDeviceGetSupportedEventTypes(device: Handle, types: Out<u64>) = gpu(device, |_| types.put(EVENT_TYPES));

    fn nvmlEventSetCreate(set: Out<Handle>) = session(|session| {
        set.check()?;
        set.put(session.new_event_set())
    });

    fn nvmlDeviceRegisterEvents(device: Handle, types: u64, set: Handle) = session(|session| {
        let index = session.index(device)?;
        session.gpu(index)?;
        supported(types, |types| types & !EVENT_TYPES == 0)?;
        session.register(set, index)
    });

    fn nvmlEventSetWait_v2(set: Handle, data: Out<EventData>, timeout_ms: c_uint) =
        data.check().and_then(|()| wait(set, Duration::from_millis(timeout_ms.into())));

    fn nvmlEventSetFree(set: Handle) = session(|session| session.free_event_set(set));
}

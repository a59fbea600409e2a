//! What happens to a GPU: events, errors, processes.

use std::ffi::c_uint;
use std::time::Duration;

use crate::abi::{Answer, EventData, Failure, FieldValue, Out, ProcessInfo};
use crate::exports::supported;
use crate::handle::Handle;
use crate::library::{gpu, session, wait};
use crate::state::Gpu;

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
        session.register(set, index, types)
    });

    fn nvmlEventSetWait_v2(set: Handle, data: Out<EventData>, timeout_ms: c_uint) = data
        .check()
        .and_then(|()| wait(set, Duration::from_millis(timeout_ms.into())))
        .and_then(|event| data.put(event));

    fn nvmlEventSetFree(set: Handle) = session(|session| session.free_event_set(set));
}

export! {
    fn nvmlDeviceGetRemappedRows(
        device: Handle,
        corrected: Out<c_uint>,
        uncorrected: Out<c_uint>,
        is_pending: Out<c_uint>,
        has_failed: Out<c_uint>,
    ) = gpu(device, |gpu| {
        supported(gpu.architecture, |architecture| *architecture >= AMPERE)?;
        let places = [corrected, uncorrected, is_pending, has_failed];
        places.iter().try_for_each(Out::check)?;
        places.iter().zip(gpu.remapped_rows).try_for_each(|(place, value)| place.put(value))
    });

    fn nvmlDeviceGetEccMode(device: Handle, current: Out<c_uint>, pending: Out<c_uint>) = gpu(device, |gpu| {
        supported(gpu.memory_total, |total| *total > 0)?;
        pending.check()?;
        current.put(1)?;
        pending.put(1)
    });

    fn nvmlDeviceGetTotalEccErrors(device: Handle, kind: c_uint, _counter: c_uint, count: Out<u64>) =
        gpu(device, |gpu| {
            supported(gpu.memory_total, |total| *total > 0)?;
            count.put(match kind {
                0 => gpu.corrected_errors,
                1 => gpu.uncorrected_errors,
                _ => return Err(Failure::InvalidArgument),
            })
        });

    fn nvmlDeviceGetFieldValues(device: Handle, count: c_uint, values: Out<FieldValue>) = gpu(device, |gpu| {
        (0..count as usize).try_for_each(|index| {
            let place = values.at(index);
            let asked = place.get()?;
            place.put(FieldValue { timestamp: 0, latency_usec: 0, ..field(gpu, asked) })
        })
    });
}

/// NVML's number of the architecture that can remap rows.
const AMPERE: u32 = 7;

/// NVML's numbers of fields, and of the type that these have.
const NVLINK_COUNT: c_uint = 91;
const RECOVERY_ACTION: c_uint = 230;
const UNSIGNED_INT: c_uint = 1;

fn field(gpu: &Gpu, asked: FieldValue) -> FieldValue {
    let value = match asked.field_id {
        NVLINK_COUNT => gpu.nv_links,
        RECOVERY_ACTION => gpu.recovery_action,
        _ => return FieldValue { result: Failure::NotSupported as c_uint, ..asked },
    };
    FieldValue { value_type: UNSIGNED_INT, result: 0, value: value.into(), ..asked }
}

export! {
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: Out<c_uint>, infos: Out<ProcessInfo>) =
        processes(device, &count, &infos);
}

fn processes(device: Handle, count: &Out<c_uint>, infos: &Out<ProcessInfo>) -> Answer {
    session(|session| {
        let on_device = session.device(device)?;
        let found = session.processes(device, &on_device);
        let found = found.map(|process| ProcessInfo {
            pid: process.pid,
            used_gpu_memory: process.memory,
            gpu_instance_id: process.gpu_instance,
            compute_instance_id: process.compute_instance,
        });
        let found = found.collect::<Vec<_>>();
        let room = count.get()?;
        count.put(found.len().try_into().unwrap_or(c_uint::MAX))?;
        if (room as usize) < found.len() {
            return Err(Failure::InsufficientSize);
        }
        if found.is_empty() { Ok(()) } else { infos.put_all(found) }
    })
}

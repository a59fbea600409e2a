//! Partitions.

use std::ffi::c_uint;

use crate::abi::{
    Answer, ComputeInstanceInfo, ComputeInstanceProfileInfo, ComputeInstanceProfileInfoV2,
    ComputeInstanceProfileInfoV3, DeviceAttributes, Failure, GpuInstanceInfo, GpuInstanceProfileInfo,
    GpuInstanceProfileInfoV2, GpuInstanceProfileInfoV3, In, Out, Placement, struct_version, text_field,
};
use crate::exports::supported;
use crate::handle::{Handle, Ids, Kind};
use crate::library::{Device, Partition, Session, device, gpu, session};
use crate::mig::{COMPUTE_PROFILES, compute_starts};
use crate::state::{Gpu, GpuInstance, MigTable, Process, Profile};

export! {
    fn nvmlDeviceGetMigMode(device: Handle, current: Out<c_uint>, pending: Out<c_uint>) = gpu(device, |gpu| {
        supported(gpu.mig_table, |table| *table > 0)?;
        pending.check()?;
        current.put(gpu.mig_mode)?;
        pending.put(gpu.mig_mode_pending)
    });

    fn nvmlDeviceSetMigMode(device: Handle, mode: c_uint, activation: Out<c_uint>) = session(|session| {
        activation.check()?;
        let index = session.index(device)?;
        if mode > 1 {
            return Err(Failure::InvalidArgument);
        }
        activation.put(session.change_mig(index, |table, gpu, processes| set_mode(table, gpu, mode, processes))?)
    });

    fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Out<c_uint>) = session(|session| {
        let gpu = session.gpu(session.index(device)?)?;
        let max = session.state().mig_table(gpu).map_or(0, MigTable::max_devices);
        count.put(if gpu.mig_mode == 0 { 0 } else { max })
    });

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, index: c_uint, mig_device: Out<Handle>) =
        session(|session| {
            mig_device.check()?;
            let gpu_index = session.index(device)?;
            let (_, table) = session.mig_gpu(gpu_index)?;
            if index >= table.max_devices() {
                return Err(Failure::InvalidArgument);
            }
            let devices = session.mig_devices(gpu_index)?;
            let found = devices.get(index as usize).ok_or(Failure::NotFound)?;
            mig_device.put(session.instance_handle(Kind::MigDevice, found.ids))
        });

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig_device: Handle, device: Out<Handle>) =
        session(|session| device.put(session.parent_handle(mig(session, mig_device)?.ids)));

    fn nvmlDeviceIsMigDeviceHandle(handle: Handle, is_mig_device: Out<c_uint>) =
        device(handle, |device| is_mig_device.put(matches!(device, Device::Mig(_)).into()));

    fn nvmlDeviceGetGpuInstanceId(mig_device: Handle, id: Out<c_uint>) =
        session(|session| id.put(number(mig(session, mig_device)?.ids.gpu_instance)));

    fn nvmlDeviceGetComputeInstanceId(mig_device: Handle, id: Out<c_uint>) =
        session(|session| id.put(number(mig(session, mig_device)?.ids.compute_instance)));

    fn nvmlDeviceGetAttributes(handle: Handle, attributes: Out<DeviceAttributes>) = put_attributes(handle, &attributes);

    fn nvmlDeviceGetAttributes_v2(handle: Handle, attributes: Out<DeviceAttributes>) =
        put_attributes(handle, &attributes);
}

fn number(id: usize) -> c_uint {
    id.try_into().unwrap_or(c_uint::MAX)
}

fn mig(session: &Session, handle: Handle) -> Result<Partition<'_>, Failure> {
    match session.device(handle)? {
        Device::Mig(partition) => Ok(partition),
        Device::Gpu(_) => Err(Failure::InvalidArgument),
    }
}

/// Answers what keeps the mode from changing at once, or 0.
fn set_mode(table: &MigTable, gpu: &mut Gpu, mode: c_uint, processes: &[Process]) -> Result<c_uint, Failure> {
    if mode == 0 && gpu.instances(table).next().is_some() {
        return Err(Failure::InUse);
    }
    gpu.mig_mode_pending = mode;
    if gpu.mig_mode != mode && !processes.is_empty() {
        return Ok(Failure::InUse as c_uint);
    }
    if gpu.mig_mode != mode && table.mode_needs_reset != 0 {
        return Ok(Failure::ResetRequired as c_uint);
    }
    gpu.mig_mode = mode;
    gpu.compute_mode = 0;
    Ok(0)
}

fn put_attributes(handle: Handle, attributes: &Out<DeviceAttributes>) -> Answer {
    device(handle, |device| {
        let Device::Mig(Partition { profile, compute_instance, .. }) = device else {
            return Err(Failure::NotSupported);
        };
        let slices = compute_instance.slices.into();
        attributes.put(DeviceAttributes {
            multiprocessor_count: profile.compute_sms(slices),
            shared_engines: profile.engines,
            gpu_instance_slice_count: profile.slices,
            compute_instance_slice_count: slices,
            memory_size_mb: profile.memory.into(),
        })
    })
}

/// One more than the last of NVML's kinds of GPU instances, and of compute instances.
const PROFILE_KINDS: c_uint = 18;
const COMPUTE_PROFILE_KINDS: c_uint = 9;

export! {
    fn nvmlDeviceGetGpuInstanceProfileInfo(device: Handle, kind: c_uint, info: Out<GpuInstanceProfileInfo>) =
        by_kind(device, kind, |_, profile| info.put(GpuInstanceProfileInfo {
            id: profile.id,
            is_p2p_supported: 0,
            slice_count: profile.slices,
            instance_count: profile.instances,
            multiprocessor_count: profile.sms,
            engines: profile.engines,
            memory_size_mb: profile.memory.into(),
        }));

    fn nvmlDeviceGetGpuInstanceProfileInfoV(device: Handle, kind: c_uint, info: Out<GpuInstanceProfileInfoV2>) =
        by_kind(device, kind, |_, profile| put_profile(profile, &info));

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(device: Handle, id: c_uint, info: Out<GpuInstanceProfileInfoV2>) =
        by_id(device, id, |_, profile| put_profile(profile, &info));

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: Handle,
        id: c_uint,
        placements: Out<Placement>,
        count: Out<c_uint>,
    ) = by_id(device, id, |_, profile| {
        let all = profile.starts().map(|start| Placement { start, size: profile.size });
        put_list(all, &placements, &count)
    });

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: Handle, id: c_uint, count: Out<c_uint>) =
        session(|session| {
            let (gpu, table) = in_mig_mode(session, device)?;
            count.put(gpu.remaining(table, profile_by_id(table, id)?))
        });
}

/// Runs a call about a GPU's profiles. Where the MIG mode needs a reset, they can't be seen before.
fn profiles(device: Handle, call: impl FnOnce(&Gpu, &MigTable) -> Answer) -> Answer {
    session(|session| {
        let (gpu, table) = session.mig_gpu(session.index(device)?)?;
        if gpu.mig_mode == 0 && table.mode_needs_reset != 0 {
            return Err(Failure::NotSupported);
        }
        call(gpu, table)
    })
}

fn by_kind(device: Handle, kind: c_uint, call: impl FnOnce(&Gpu, &Profile) -> Answer) -> Answer {
    profiles(device, |gpu, table| {
        if kind >= PROFILE_KINDS {
            return Err(Failure::InvalidArgument);
        }
        let profile = table.profiles().iter().find(|profile| profile.kind == kind);
        call(gpu, profile.ok_or(Failure::NotSupported)?)
    })
}

fn by_id(device: Handle, id: c_uint, call: impl FnOnce(&Gpu, &Profile) -> Answer) -> Answer {
    profiles(device, |gpu, table| call(gpu, profile_by_id(table, id)?))
}

fn profile_by_id(table: &MigTable, id: c_uint) -> Result<&Profile, Failure> {
    table.profiles().iter().find(|profile| profile.id == id).ok_or(Failure::InvalidArgument)
}

fn in_mig_mode(session: &Session, device: Handle) -> Result<(&Gpu, &MigTable), Failure> {
    let (gpu, table) = session.mig_gpu(session.index(device)?)?;
    supported((gpu, table), |(gpu, _)| gpu.mig_mode != 0)
}

fn put_profile(profile: &Profile, info: &Out<GpuInstanceProfileInfoV2>) -> Answer {
    let version = info.version()?;
    let name = text_field(&format!("MIG {}", profile.name.as_str()));
    if version == struct_version::<GpuInstanceProfileInfoV2>(2) {
        info.put(GpuInstanceProfileInfoV2 {
            version,
            id: profile.id,
            is_p2p_supported: 0,
            slice_count: profile.slices,
            instance_count: profile.instances,
            multiprocessor_count: profile.sms,
            engines: profile.engines,
            memory_size_mb: profile.memory.into(),
            name,
        })
    } else if version == struct_version::<GpuInstanceProfileInfoV3>(3) {
        info.cast().put(GpuInstanceProfileInfoV3 {
            version,
            id: profile.id,
            slice_count: profile.slices,
            instance_count: profile.instances,
            multiprocessor_count: profile.sms,
            engines: profile.engines,
            memory_size_mb: profile.memory.into(),
            name,
            capabilities: 0,
        })
    } else {
        Err(Failure::ArgumentVersionMismatch)
    }
}

/// How many there are; and what they are, if there is a place for them.
fn put_list<T>(all: impl Iterator<Item = T>, list: &Out<T>, count: &Out<c_uint>) -> Answer {
    count.check()?;
    let all = all.collect::<Vec<_>>();
    count.put(number(all.len()))?;
    if list.is_null() { Ok(()) } else { list.put_all(all) }
}

export! {
    fn nvmlDeviceCreateGpuInstance(device: Handle, id: c_uint, instance: Out<Handle>) =
        create(device, id, None, &instance);

    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        device: Handle,
        id: c_uint,
        placement: In<Placement>,
        instance: Out<Handle>,
    ) = placement.get().and_then(|placement| create(device, id, Some(placement), &instance));

    fn nvmlGpuInstanceDestroy(instance: Handle) = session(|session| {
        let (ids, _, _) = session.gpu_instance(instance)?;
        session.change_mig(ids.index, |table, gpu, _| {
            let (gpu_instance, _) = same_instance(table, gpu, ids)?;
            if gpu_instance.compute_instances().next().is_some() {
                return Err(Failure::InUse);
            }
            gpu_instance.is_there = 0;
            Ok(())
        })
    });

    fn nvmlDeviceGetGpuInstances(device: Handle, id: c_uint, instances: Out<Handle>, count: Out<c_uint>) =
        session(|session| {
            instances.check()?;
            let index = session.index(device)?;
            let (gpu, table) = in_mig_mode(session, device)?;
            let profile = profile_by_id(table, id)?;
            let of_profile = gpu.instances(table).filter(|(_, _, of)| of.id == profile.id);
            let handles = of_profile.map(|(id, there, _)| instance_handle(session, index, id, there));
            put_list(handles, &instances, &count)
        });

    fn nvmlDeviceGetGpuInstanceById(device: Handle, id: c_uint, instance: Out<Handle>) = session(|session| {
        let index = session.index(device)?;
        let (gpu, table) = in_mig_mode(session, device)?;
        let (id, there, _) = gpu.instances(table).find(|(of, ..)| number(*of) == id).ok_or(Failure::NotFound)?;
        instance.put(instance_handle(session, index, id, there))
    });

    fn nvmlGpuInstanceGetInfo(instance: Handle, info: Out<GpuInstanceInfo>) = session(|session| {
        let (ids, there, profile) = session.gpu_instance(instance)?;
        info.put(GpuInstanceInfo {
            device: session.parent_handle(ids),
            id: number(ids.gpu_instance),
            profile_id: profile.id,
            placement: Placement { start: there.start.into(), size: profile.size },
        })
    });
}

fn instance_handle(session: &Session, index: u32, id: usize, there: &GpuInstance) -> Handle {
    let ids = Ids { index, gpu_instance: id, compute_instance: 0, generation: there.generation };
    session.instance_handle(Kind::GpuInstance, ids)
}

fn create(device: Handle, id: c_uint, placement: Option<Placement>, instance: &Out<Handle>) -> Answer {
    session(|session| {
        instance.check()?;
        let index = session.index(device)?;
        let (_, table) = in_mig_mode(session, device)?;
        let profile = profile_by_id(table, id)?;
        let is_possible = |placement: &Placement| {
            placement.size == profile.size && profile.starts().any(|start| start == placement.start)
        };
        if placement.as_ref().is_some_and(|placement| !is_possible(placement)) {
            return Err(Failure::InvalidArgument);
        }
        let made = session.change_mig(index, |table, gpu, _| {
            let place = table.profiles().iter().position(|profile| profile.id == id);
            let place = place.ok_or(Failure::InvalidArgument)?;
            Ok(gpu.create_instance(table, place, placement.map(|placement| placement.start))?)
        })?;
        let (gpu, table) = session.mig_gpu(index)?;
        let found = gpu.instances(table).find(|(of, ..)| *of == made);
        let (id, there, _) = found.ok_or(Failure::Unknown)?;
        instance.put(instance_handle(session, index, id, there))
    })
}

/// The GPU instance in a state that is newer than the one in which its handle was found to be good.
fn same_instance<'a>(
    table: &'a MigTable,
    gpu: &'a mut Gpu,
    ids: Ids,
) -> Result<(&'a mut GpuInstance, &'a Profile), Failure> {
    let (there, profile) = instance_of_id(table, gpu, ids)?;
    if there.generation == ids.generation { Ok((there, profile)) } else { Err(Failure::InvalidArgument) }
}

fn instance_of_id<'a>(
    table: &'a MigTable,
    gpu: &'a mut Gpu,
    ids: Ids,
) -> Result<(&'a mut GpuInstance, &'a Profile), Failure> {
    let there = gpu.gpu_instances.get_mut(ids.gpu_instance).filter(|there| there.is_there != 0);
    let there = there.ok_or(Failure::InvalidArgument)?;
    let profile = table.profiles().get(there.profile as usize).ok_or(Failure::Unknown)?;
    Ok((there, profile))
}

export! {
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: Handle,
        kind: c_uint,
        engines: c_uint,
        info: Out<ComputeInstanceProfileInfo>,
    ) = compute_profile(instance, kind, engines, |profile, slices, id| {
        info.put(compute_profile_info(profile, slices, id))
    });

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        instance: Handle,
        kind: c_uint,
        engines: c_uint,
        info: Out<ComputeInstanceProfileInfoV2>,
    ) = compute_profile(instance, kind, engines, |profile, slices, id| {
        let version = info.version()?;
        let name = text_field(&format!("MIG {}", name(profile, slices)));
        let facts = compute_profile_info(profile, slices, id);
        if version == struct_version::<ComputeInstanceProfileInfoV2>(2) {
            info.put(ComputeInstanceProfileInfoV2 { version, info: facts, name })
        } else if version == struct_version::<ComputeInstanceProfileInfoV3>(3) {
            info.cast().put(ComputeInstanceProfileInfoV3 { version, info: facts, name, capabilities: 0 })
        } else {
            Err(Failure::ArgumentVersionMismatch)
        }
    });

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance: Handle, id: c_uint, count: Out<c_uint>) =
        session(|session| {
            let (_, there, profile) = session.gpu_instance(instance)?;
            count.put(number(there.free_compute_starts(profile, slices_by_id(profile, id)?).len()))
        });

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        instance: Handle,
        id: c_uint,
        placements: Out<Placement>,
        count: Out<c_uint>,
    ) = session(|session| {
        let (_, _, profile) = session.gpu_instance(instance)?;
        let size = slices_by_id(profile, id)?;
        let starts = compute_starts(profile.slices, size);
        put_list(starts.into_iter().map(|start| Placement { start, size }), &placements, &count)
    });

    fn nvmlGpuInstanceCreateComputeInstance(instance: Handle, id: c_uint, compute: Out<Handle>) =
        create_compute(instance, id, None, &compute);

    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        instance: Handle,
        id: c_uint,
        placement: In<Placement>,
        compute: Out<Handle>,
    ) = placement.get().and_then(|placement| create_compute(instance, id, Some(placement), &compute));

    fn nvmlComputeInstanceDestroy(compute: Handle) = session(|session| {
        let ids = session.compute_instance(compute)?.ids;
        session.change_mig(ids.index, |table, gpu, processes| {
            let on_it = |process: &Process| {
                (process.gpu_instance, process.compute_instance)
                    == (number(ids.gpu_instance), number(ids.compute_instance))
            };
            if processes.iter().any(on_it) {
                return Err(Failure::InUse);
            }
            let (there, _) = instance_of_id(table, gpu, ids)?;
            let there = there.compute_instances.get_mut(ids.compute_instance);
            let there = there.filter(|there| there.is_there != 0 && there.generation == ids.generation);
            there.ok_or(Failure::InvalidArgument)?.is_there = 0;
            Ok(())
        })
    });

    fn nvmlGpuInstanceGetComputeInstances(instance: Handle, id: c_uint, computes: Out<Handle>, count: Out<c_uint>) =
        session(|session| {
            computes.check()?;
            let (ids, there, profile) = session.gpu_instance(instance)?;
            let slices = slices_by_id(profile, id)?;
            let of_profile = there.compute_instances().filter(|(_, there)| u32::from(there.slices) == slices);
            let handles = of_profile.map(|(id, there)| {
                let ids = Ids { compute_instance: id, generation: there.generation, ..ids };
                session.instance_handle(Kind::ComputeInstance, ids)
            });
            put_list(handles, &computes, &count)
        });

    fn nvmlGpuInstanceGetComputeInstanceById(instance: Handle, id: c_uint, compute: Out<Handle>) =
        session(|session| {
            let (ids, there, _) = session.gpu_instance(instance)?;
            let found = there.compute_instances().find(|(of, _)| number(*of) == id);
            let (id, there) = found.ok_or(Failure::NotFound)?;
            let ids = Ids { compute_instance: id, generation: there.generation, ..ids };
            compute.put(session.instance_handle(Kind::ComputeInstance, ids))
        });

    fn nvmlComputeInstanceGetInfo_v2(compute: Handle, info: Out<ComputeInstanceInfo>) = session(|session| {
        let partition = session.compute_instance(compute)?;
        let slices = partition.compute_instance.slices.into();
        let of = Ids {
            compute_instance: 0,
            generation: partition.gpu_instance.generation,
            ..partition.ids
        };
        info.put(ComputeInstanceInfo {
            // Of the MIG device, not of the GPU.
            device: session.instance_handle(Kind::MigDevice, partition.ids),
            gpu_instance: session.instance_handle(Kind::GpuInstance, of),
            id: number(partition.ids.compute_instance),
            profile_id: COMPUTE_PROFILES.iter().find(|(of, _)| *of == slices).ok_or(Failure::Unknown)?.1,
            placement: Placement { start: partition.compute_instance.start.into(), size: slices },
        })
    });
}

/// The name of a compute instance's profile.
pub(super) fn name(profile: &Profile, slices: u32) -> String {
    let of = profile.name.as_str();
    if slices == profile.slices { of.to_owned() } else { format!("{slices}c.{of}") }
}

fn compute_profile_info(profile: &Profile, slices: u32, id: c_uint) -> ComputeInstanceProfileInfo {
    ComputeInstanceProfileInfo {
        id,
        slice_count: slices,
        instance_count: number(compute_starts(profile.slices, slices).len()),
        multiprocessor_count: profile.compute_sms(slices),
        shared_engines: profile.engines,
    }
}

/// Runs a call about a kind of compute instances of a GPU instance: its profile, slices, and id.
fn compute_profile(
    instance: Handle,
    kind: c_uint,
    engines: c_uint,
    call: impl FnOnce(&Profile, u32, c_uint) -> Answer,
) -> Answer {
    session(|session| {
        let (_, _, profile) = session.gpu_instance(instance)?;
        // Engines can only be shared.
        if engines != 0 || kind >= COMPUTE_PROFILE_KINDS {
            return Err(Failure::InvalidArgument);
        }
        let (slices, id) = *COMPUTE_PROFILES.get(kind as usize).ok_or(Failure::NotSupported)?;
        supported(compute_starts(profile.slices, slices), |starts| !starts.is_empty())?;
        call(profile, slices, id)
    })
}

/// How many slices a compute instance of a profile's id has.
fn slices_by_id(profile: &Profile, id: c_uint) -> Result<u32, Failure> {
    let of_id = COMPUTE_PROFILES.iter().find(|(_, of)| *of == id);
    let of_id = of_id.filter(|(slices, _)| !compute_starts(profile.slices, *slices).is_empty());
    of_id.map(|(slices, _)| *slices).ok_or(Failure::InvalidArgument)
}

fn create_compute(instance: Handle, id: c_uint, placement: Option<Placement>, compute: &Out<Handle>) -> Answer {
    session(|session| {
        compute.check()?;
        let (ids, _, profile) = session.gpu_instance(instance)?;
        let slices = slices_by_id(profile, id)?;
        let starts = compute_starts(profile.slices, slices);
        let is_possible = |placement: &Placement| placement.size == slices && starts.contains(&placement.start);
        if placement.as_ref().is_some_and(|placement| !is_possible(placement)) {
            return Err(Failure::InvalidArgument);
        }
        let (id, generation) = session.change_mig(ids.index, |table, gpu, _| {
            let (there, profile) = same_instance(table, gpu, ids)?;
            let id = there.create_compute_instance(profile, slices, placement.map(|placement| placement.start))?;
            Ok((id, there.compute_instances[id].generation))
        })?;
        let ids = Ids { compute_instance: id, generation, ..ids };
        compute.put(session.instance_handle(Kind::ComputeInstance, ids))
    })
}

//! Partitions that come and go, by NVML's own calls.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t, nvmlDevice_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t,
    nvmlGpuInstanceProfileInfo_v3_t,
};

use crate::mig::{grants, nodes};
use crate::{Node, done, handle, out, without_mount_rights};

/// A GPU, for calls that the wrapper lacks.
#[derive(Clone, Copy)]
struct Gpu<'a> {
    nvml: &'a NvmlLib,
    index: u32,
    device: nvmlDevice_t,
}

/// The calls, by what they answer.
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) -> $value:ty = $function:ident($($passed:expr),*);)*) => {
        $(
            fn $name(self $(, $argument: $type)*) -> Result<$value, u32> {
                // SAFETY: handles are the library's, or to be refused, and there is room for the value.
                out(|to| unsafe { self.nvml.$function(self.device $(, $passed)*, to) })
            }
        )*
    };
}

impl<'a> Gpu<'a> {
    fn new(nvml: &'a Nvml, index: u32) -> Self {
        Self { nvml: nvml.lib(), index, device: handle(nvml, index) }
    }

    calls! {
        profile(kind: u32) -> nvmlGpuInstanceProfileInfo_t = nvmlDeviceGetGpuInstanceProfileInfo(kind);
        remaining(id: u32) -> u32 = nvmlDeviceGetGpuInstanceRemainingCapacity(id);
        create_anywhere(id: u32) -> nvmlGpuInstance_t = nvmlDeviceCreateGpuInstance(id);
        by_id(id: u32) -> nvmlGpuInstance_t = nvmlDeviceGetGpuInstanceById(id);
        set_mode(mode: u32) -> u32 = nvmlDeviceSetMigMode(mode);
    }

    fn create(self, id: u32, start: u32, size: u32) -> Result<nvmlGpuInstance_t, u32> {
        let placement = nvmlGpuInstancePlacement_t { start, size };
        // SAFETY: as above; so in all that follows.
        out(|to| unsafe {
            self.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(self.device, id, &raw const placement, to)
        })
    }

    fn placements(self, id: u32) -> Result<Vec<(u32, u32)>, u32> {
        let call = |list| {
            // SAFETY: as above.
            out(|to| unsafe { self.nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(self.device, id, list, to) })
        };
        let count: u32 = call(std::ptr::null_mut())?;
        let mut list = vec![nvmlGpuInstancePlacement_t { start: 99, size: 99 }; count as usize];
        assert_eq!(call(list.as_mut_ptr()), Ok(count));
        Ok(list.iter().map(|placement| (placement.start, placement.size)).collect())
    }

    fn instances(self, id: u32) -> Result<Vec<nvmlGpuInstance_t>, u32> {
        let mut list = [std::ptr::null_mut(); 16];
        // SAFETY: as above.
        let count: u32 =
            out(|to| unsafe { self.nvml.nvmlDeviceGetGpuInstances(self.device, id, list.as_mut_ptr(), to) })?;
        Ok(list[..count as usize].to_vec())
    }

    fn info(self, instance: nvmlGpuInstance_t) -> Result<nvmlGpuInstanceInfo_t, u32> {
        // SAFETY: as above.
        out(|to| unsafe { self.nvml.nvmlGpuInstanceGetInfo(instance, to) })
    }

    fn destroy(self, instance: nvmlGpuInstance_t) -> Result<(), u32> {
        // SAFETY: as above.
        done(unsafe { self.nvml.nvmlGpuInstanceDestroy(instance) })
    }

    fn compute_profile(self, instance: nvmlGpuInstance_t, kind: u32) -> Result<nvmlComputeInstanceProfileInfo_t, u32> {
        // SAFETY: as above.
        out(|to| unsafe { self.nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, 0, to) })
    }

    fn create_compute(self, instance: nvmlGpuInstance_t, id: u32) -> Result<nvmlComputeInstance_t, u32> {
        // SAFETY: as above.
        out(|to| unsafe { self.nvml.nvmlGpuInstanceCreateComputeInstance(instance, id, to) })
    }

    fn compute_info(self, compute: nvmlComputeInstance_t) -> Result<nvmlComputeInstanceInfo_t, u32> {
        // SAFETY: as above.
        out(|to| unsafe { self.nvml.nvmlComputeInstanceGetInfo_v2(compute, to) })
    }

    fn destroy_compute(self, compute: nvmlComputeInstance_t) -> Result<(), u32> {
        // SAFETY: as above.
        done(unsafe { self.nvml.nvmlComputeInstanceDestroy(compute) })
    }

    /// The UUIDs of the MIG devices.
    fn uuids(self, nvml: &Nvml) -> Vec<String> {
        let gpu = nvml.device_by_index(self.index).unwrap();
        (0..gpu.mig_device_count().unwrap())
            .filter_map(|index| gpu.mig_device_by_index(index).ok())
            .map(|device| device.uuid().unwrap())
            .collect()
    }
}

/// A node whose first GPU is in MIG mode.
fn node_in_mig_mode(machine: &str) -> Node {
    let node = Node::new(machine);
    node.make(&["set", "--gpu", "0", "--mig", "on"]);
    node
}

const KINDS: u32 = 18;

/// The machines with a model that can be partitioned: a GPU of each.
const FAMILIES: [&str; 7] = [
    "a30.yaml",
    "dgx-a100.yaml",
    "dgx-h100.yaml",
    "dgx-h200.yaml",
    "gb200-tray.yaml",
    "hgx-b200.yaml",
    "rtx-pro-6000.yaml",
];

#[test]
fn every_family_lives_through_its_life() {
    for machine in FAMILIES {
        let node = node_in_mig_mode(machine);
        let nvml = node.nvml();
        let gpu = Gpu::new(&nvml, 0);
        let before = (grants(&node), nodes(&node));
        let mut seen = 0;
        for kind in 0..KINDS {
            let profile = match gpu.profile(kind) {
                Err(3) => continue,
                result => result.unwrap(),
            };
            seen += 1;
            let places = gpu.placements(profile.id).unwrap();
            let mut made = Vec::new();
            for (start, size) in &places {
                let left = profile.instanceCount - u32::try_from(made.len()).unwrap();
                assert_eq!(gpu.remaining(profile.id), Ok(left), "{machine} {kind}");
                if left == 0 {
                    assert_eq!(gpu.create(profile.id, *start, *size), Err(23));
                    continue;
                }
                let instance = gpu.create(profile.id, *start, *size).unwrap();
                let info = gpu.info(instance).unwrap();
                assert_eq!((info.profileId, info.placement.start, info.placement.size), (profile.id, *start, *size));
                assert_eq!(info.device, gpu.device);
                assert_eq!(gpu.by_id(info.id), Ok(instance));
                // The kind that has all slices, the lowest number first.
                let whole = |kind: &u32| {
                    gpu.compute_profile(instance, *kind).is_ok_and(|found| found.sliceCount == profile.sliceCount)
                };
                let whole = gpu.compute_profile(instance, (0..9).find(whole).unwrap()).unwrap();
                assert_eq!((whole.instanceCount, whole.multiprocessorCount), (1, profile.multiprocessorCount));
                let compute = gpu.create_compute(instance, whole.id).unwrap();
                assert_eq!(gpu.compute_info(compute).unwrap().gpuInstance, instance);
                made.push((instance, compute));
            }
            assert_eq!(gpu.remaining(profile.id), Ok(0));
            assert_eq!(gpu.create_anywhere(profile.id), Err(23));
            assert_eq!(gpu.instances(profile.id).unwrap().len(), made.len());
            assert_eq!(gpu.uuids(&nvml).len(), made.len());
            for (instance, compute) in made {
                assert_eq!(gpu.destroy(instance), Err(19));
                gpu.destroy_compute(compute).unwrap();
                gpu.destroy(instance).unwrap();
                assert_eq!(gpu.destroy(instance), Err(2));
            }
        }
        assert!(seen >= 5, "{machine}");
        assert_eq!(gpu.profile(KINDS).map(|profile| profile.id), Err(2));
        assert_eq!((grants(&node), nodes(&node)), before, "{machine}");
    }
}

#[test]
fn what_a_profile_is_called_by_is_not_what_it_is_made_by() {
    let node = node_in_mig_mode("dgx-h100.yaml");
    let nvml = node.nvml();
    let gpu = Gpu::new(&nvml, 0);
    let (one, whole) = (gpu.profile(0).unwrap(), gpu.profile(4).unwrap());
    assert_eq!((one.id, one.sliceCount, one.instanceCount), (19, 1, 7));
    assert_eq!((whole.id, whole.sliceCount, whole.instanceCount), (0, 7, 1));
    for kind in 1..=4 {
        assert_eq!(gpu.create_anywhere(kind), Err(2));
        assert_eq!(gpu.placements(kind), Err(2));
        assert_eq!(gpu.remaining(kind), Err(2));
        assert_eq!(gpu.instances(kind), Err(2));
    }
    // The one id that is also a kind is the whole GPU.
    let instance = gpu.create_anywhere(0).unwrap();
    assert_eq!(gpu.info(instance).unwrap().placement.size, 8);
    assert_eq!(gpu.create(19, 0, 1), Err(23));
}

#[test]
fn places_must_be_the_tables() {
    let node = node_in_mig_mode("dgx-h100.yaml");
    let nvml = node.nvml();
    let gpu = Gpu::new(&nvml, 0);
    assert_eq!(gpu.placements(9), Ok(vec![(0, 4), (4, 4)]));
    assert_eq!(gpu.placements(15), Ok(vec![(0, 2), (2, 2), (4, 2), (6, 2)]));
    for (id, start, size) in [(9, 0, 3), (9, 1, 4), (14, 6, 2), (19, 7, 1), (19, 0, 2), (0, 0, 7)] {
        assert_eq!(gpu.create(id, start, size), Err(2));
    }
    gpu.create(9, 4, 4).unwrap();
    assert_eq!(gpu.create(9, 4, 4), Err(23));
    assert_eq!(gpu.create(19, 5, 1), Err(23));
    // Both count: memory for four more, compute slices for three, of which two are asked at a time.
    assert_eq!((gpu.remaining(19), gpu.remaining(14), gpu.remaining(5)), (Ok(4), Ok(2), Ok(1)));
    // SAFETY: null is to be refused.
    let nothing =
        |to| unsafe { gpu.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu.device, 19, std::ptr::null(), to) };
    assert_eq!(out::<nvmlGpuInstance_t>(nothing), Err(2));
}

#[test]
fn the_worst_order_finds_no_room() {
    let node = node_in_mig_mode("dgx-h100.yaml");
    let nvml = node.nvml();
    let gpu = Gpu::new(&nvml, 0);
    let fill = |ids: &[u32]| {
        let made = ids.iter().map(|id| gpu.create_anywhere(*id)).collect::<Vec<_>>();
        for instance in made.iter().flatten() {
            gpu.destroy(*instance).unwrap();
        }
        made.into_iter().map(Result::err).collect::<Vec<_>>()
    };
    assert_eq!(fill(&[19, 19, 14, 9]), [None, None, None, Some(23)]);
    assert_eq!(fill(&[9, 19, 14, 19]), [None; 4]);
}

#[test]
fn engines_are_a_limit_of_their_own() {
    let node = node_in_mig_mode("rtx-pro-6000.yaml");
    let nvml = node.nvml();
    let gpu = Gpu::new(&nvml, 0);
    // 1g.24gb+me.all has all media engines: only those without any fit beside it.
    let all = gpu.create(65, 0, 3).unwrap();
    assert_eq!(
        (gpu.remaining(14), gpu.remaining(5), gpu.remaining(21), gpu.remaining(65)),
        (Ok(0), Ok(0), Ok(0), Ok(0))
    );
    assert_eq!((gpu.remaining(67), gpu.remaining(66)), (Ok(3), Ok(1)));
    assert_eq!(gpu.create(14, 3, 3), Err(23));
    gpu.create(67, 3, 3).unwrap();
    gpu.destroy(all).unwrap();
    gpu.create(14, 0, 3).unwrap();
}

#[test]
fn ids_are_not_the_order_of_places() {
    let node = node_in_mig_mode("dgx-h100.yaml");
    let nvml = node.nvml();
    let gpu = Gpu::new(&nvml, 0);
    let ids = |starts: [u32; 3]| {
        let made = starts.map(|start| gpu.create(19, start, 1).unwrap());
        let ids = made.map(|instance| gpu.info(instance).unwrap().id);
        for instance in made {
            gpu.destroy(instance).unwrap();
        }
        ids
    };
    assert_eq!(ids([0, 1, 2]), [13, 11, 12]);
    assert_eq!(ids([2, 0, 1]), [13, 11, 12]);
}

#[test]
fn structs_have_versions() {
    let node = node_in_mig_mode("dgx-h100.yaml");
    let nvml = node.nvml();
    let gpu = Gpu::new(&nvml, 0);
    let name = |bytes: &[std::ffi::c_char]| {
        bytes.iter().take_while(|byte| **byte != 0).map(|byte| char::from(byte.cast_unsigned())).collect::<String>()
    };
    let version = |size: usize, number: u32| u32::try_from(size).unwrap() | number << 24;

    // SAFETY: zeroes are good; so for the other structs.
    let mut second: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
    second.version = version(size_of_val(&second), 2);
    // SAFETY: there is room for the struct of the version that it says; so in the rest of this test.
    let code = unsafe { gpu.nvml.nvmlDeviceGetGpuInstanceProfileInfoV(gpu.device, 9, &raw mut second) };
    assert_eq!((code, second.id, name(&second.name).as_str()), (0, 15, "MIG 1g.20gb"));
    // SAFETY: as above.
    let code = unsafe { gpu.nvml.nvmlDeviceGetGpuInstanceProfileInfoByIdV(gpu.device, 9, &raw mut second) };
    assert_eq!((code, second.memorySizeMB, name(&second.name).as_str()), (0, 40448, "MIG 3g.40gb"));
    // SAFETY: as above.
    let mut third: nvmlGpuInstanceProfileInfo_v3_t = unsafe { std::mem::zeroed() };
    third.version = version(size_of_val(&third), 3);
    let as_second = (&raw mut third).cast();
    // SAFETY: as above.
    let code = unsafe { gpu.nvml.nvmlDeviceGetGpuInstanceProfileInfoV(gpu.device, 2, as_second) };
    assert_eq!((code, third.id, third.memorySizeMB, name(&third.name).as_str()), (0, 9, 40448, "MIG 3g.40gb"));
    for wrong in [0, 2, version(size_of_val(&second), 1)] {
        second.version = wrong;
        // SAFETY: as above.
        let code = unsafe { gpu.nvml.nvmlDeviceGetGpuInstanceProfileInfoV(gpu.device, 0, &raw mut second) };
        assert_eq!(code, 25);
    }

    let instance = gpu.create(9, 0, 4).unwrap();
    // SAFETY: as above.
    let mut compute: nvmlComputeInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
    compute.version = version(size_of_val(&compute), 2);
    let to = &raw mut compute;
    // SAFETY: as above.
    let code = unsafe { gpu.nvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, 1, 0, to) };
    assert_eq!((code, compute.id, name(&compute.name).as_str()), (0, 1, "MIG 2c.3g.40gb"));
    compute.version = 1;
    // SAFETY: as above.
    let code = unsafe { gpu.nvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, 1, 0, &raw mut compute) };
    assert_eq!(code, 25);
}

#[test]
fn compute_instances_share_a_gpu_instance() {
    let node = node_in_mig_mode("dgx-a100.yaml");
    node.make(&["reset", "--gpu", "0"]);
    let nvml = node.nvml();
    let gpu = Gpu::new(&nvml, 0);
    let instance = gpu.create(9, 0, 4).unwrap();
    let kinds = (0..9).map(|kind| gpu.compute_profile(instance, kind).map(|found| (found.id, found.instanceCount)));
    let expected = [Ok((0, 3)), Ok((1, 1)), Ok((2, 1)), Err(3), Err(3), Err(3), Err(3), Ok((0, 3)), Err(3)];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
    assert_eq!(gpu.compute_profile(instance, 9).map(|found| found.id), Err(2));
    // SAFETY: engines that aren't shared are to be refused.
    let unshared = |to| unsafe { gpu.nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 0, 1, to) };
    assert_eq!(out::<nvmlComputeInstanceProfileInfo_t>(unshared).map(|found| found.id), Err(2));

    let place = |start, size| {
        let placement = nvmlComputeInstancePlacement_t { start, size };
        // SAFETY: the handle is good, and there is room for the new one.
        out(|to| unsafe {
            gpu.nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 1, &raw const placement, to)
        })
    };
    assert_eq!(place(1, 2), Err(2));
    let two = place(0, 2).unwrap();
    assert_eq!(gpu.create_compute(instance, 2), Err(23));
    assert_eq!(gpu.create_compute(instance, 3), Err(2));
    let remaining =
        // SAFETY: the handle is good, and there is room for a number.
        |id| out(|to| unsafe { gpu.nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, id, to) });
    assert_eq!((remaining(0), remaining(1)), (Ok(1_u32), Ok(0)));
    let one = gpu.create_compute(instance, 0).unwrap();
    let info = gpu.compute_info(one).unwrap();
    assert_eq!((info.id, info.profileId, info.placement.start, info.placement.size), (1, 0, 2, 1));
    let names = nvml.device_by_index(0).map(|gpu| {
        [0, 1]
            .map(|index| gpu.mig_device_by_index(index).unwrap().name().unwrap().rsplit(' ').next().unwrap().to_owned())
    });
    assert_eq!(names.unwrap(), ["2c.3g.20gb", "1c.3g.20gb"]);
    gpu.destroy_compute(two).unwrap();
    assert_eq!(gpu.uuids(&nvml).len(), 1);
    assert_eq!(gpu.destroy(instance), Err(19));
}

#[test]
fn handles_of_what_is_gone_are_stale_and_uuids_come_back() {
    let node = node_in_mig_mode("dgx-h100.yaml");
    let nvml = node.nvml();
    let gpu = Gpu::new(&nvml, 0);
    let make = || {
        let instance = gpu.create(19, 3, 1).unwrap();
        (instance, gpu.create_compute(instance, 0).unwrap())
    };
    let (instance, compute) = make();
    let mig_device = gpu.compute_info(compute).unwrap().device;
    let uuids = gpu.uuids(&nvml);
    assert_eq!(
        nvml.device_by_uuid(uuids[0].as_str())
            .map(|found| {
                // SAFETY: the handle is compared only.
                unsafe { found.handle() }
            })
            .unwrap(),
        mig_device
    );
    gpu.destroy_compute(compute).unwrap();
    // A GPU instance without compute instance is no device.
    assert!(gpu.uuids(&nvml).is_empty());
    assert!(matches!(nvml.device_by_uuid(uuids[0].as_str()), Err(NvmlError::NotFound)));
    gpu.destroy(instance).unwrap();

    let (new_instance, new_compute) = make();
    assert_eq!(gpu.uuids(&nvml), uuids);
    assert_eq!(gpu.info(new_instance).unwrap().id, 13);
    assert_eq!(gpu.info(instance).map(|info| info.id), Err(2));
    assert_eq!(gpu.destroy(instance), Err(2));
    assert_eq!(gpu.compute_info(compute).map(|info| info.id), Err(2));
    assert_eq!(gpu.destroy_compute(compute), Err(2));
    // SAFETY: a stale handle is to be refused.
    let id = out::<u32>(|to| unsafe { gpu.nvml.nvmlDeviceGetGpuInstanceId(mig_device, to) });
    assert_eq!(id, Err(2));
    assert!(gpu.compute_info(new_compute).is_ok());
}

#[test]
fn nothing_can_be_made_out_of_mig_mode() {
    let node = Node::new("mixed.yaml");
    let nvml = node.nvml();
    let off = Gpu::new(&nvml, 2);
    assert_eq!(off.profile(0).map(|profile| profile.id), Ok(19));
    assert_eq!(off.placements(9), Ok(vec![(0, 4), (4, 4)]));
    assert_eq!((off.create_anywhere(19), off.instances(19), off.remaining(19)), (Err(3), Err(3), Err(3)));
    assert_eq!(off.by_id(1), Err(3));
    let never = Gpu::new(&nvml, 4);
    assert_eq!((never.profile(0).map(|profile| profile.id), never.set_mode(1)), (Err(3), Err(3)));
    assert_eq!((never.create_anywhere(19), never.placements(19)), (Err(3), Err(3)));
    let empty = Gpu::new(&nvml, 1);
    assert_eq!(empty.by_id(1), Err(6));
    assert_eq!(empty.instances(19), Ok(Vec::new()));
}

#[test]
fn newer_gpus_change_their_mode_when_idle() {
    let node = Node::new("dgx-h100.yaml");
    let nvml = node.nvml();
    let (gpu, device) = (Gpu::new(&nvml, 0), nvml.device_by_index(0).unwrap());
    let mode = || device.mig_mode().map(|mode| (mode.current, mode.pending)).unwrap();
    assert_eq!(gpu.set_mode(2), Err(2));
    node.make(&["process", "add", "--gpu", "0", "--pid", "77"]);
    assert_eq!((gpu.set_mode(1), mode()), (Ok(19), (0, 1)));
    node.make(&["process", "remove", "--pid", "77"]);
    assert_eq!((gpu.set_mode(1), mode()), (Ok(0), (1, 1)));
    let instance = gpu.create(19, 0, 1).unwrap();
    assert_eq!((gpu.set_mode(0), mode()), (Err(19), (1, 1)));
    gpu.destroy(instance).unwrap();
    assert_eq!((gpu.set_mode(0), mode()), (Ok(0), (0, 0)));
}

#[test]
fn an_a100_changes_its_mode_by_a_reset() {
    let node = Node::new("dgx-a100.yaml");
    let nvml = node.nvml();
    let (gpu, device) = (Gpu::new(&nvml, 0), nvml.device_by_index(0).unwrap());
    let mode = || device.mig_mode().map(|mode| (mode.current, mode.pending)).unwrap();
    assert_eq!(gpu.profile(0).map(|profile| profile.id), Err(3));
    assert_eq!((gpu.set_mode(1), mode()), (Ok(16), (0, 1)));
    assert_eq!(gpu.create_anywhere(19), Err(3));
    node.make(&["reset", "--gpu", "0"]);
    assert_eq!(mode(), (1, 1));
    let instance = gpu.create(19, 0, 1).unwrap();
    gpu.create_compute(instance, 0).unwrap();
    node.make(&["process", "add", "--gpu", "0", "--pid", "77"]);
    assert!(!node.tool(&["reset", "--gpu", "0"]).status.success());
    node.make(&["process", "remove", "--pid", "77"]);
    node.make(&["reset", "--gpu", "0"]);
    // Partitions don't survive.
    assert_eq!((mode(), gpu.uuids(&nvml).len(), grants(&node).len()), ((1, 1), 0, 0));
    assert_eq!(gpu.info(instance).map(|info| info.id), Err(2));
}

#[test]
fn a_partition_in_use_cannot_be_destroyed() {
    let node = Node::new("mixed.yaml");
    let nvml = node.nvml();
    let gpu = Gpu::new(&nvml, 0);
    let of = gpu.by_id(13).unwrap();
    // SAFETY: the handle is good, and there is room for one.
    let compute = out(|to| unsafe { gpu.nvml.nvmlGpuInstanceGetComputeInstanceById(of, 0, to) }).unwrap();
    let add = ["process", "add", "--gpu", "0", "--gpu-instance", "13", "--compute-instance", "0", "--pid", "7"];
    node.make(&add);
    assert_eq!(gpu.destroy_compute(compute), Err(19));
    node.make(&["process", "remove", "--pid", "7"]);
    assert_eq!(gpu.destroy_compute(compute), Ok(()));
    assert_eq!(gpu.destroy(of), Ok(()));
}

#[test]
fn the_tool_partitions_too() {
    let node = Node::new("mixed.yaml");
    let nvml = node.nvml();
    let (gpu, before) = (Gpu::new(&nvml, 1), grants(&node));
    node.make(&["mig", "create", "--gpu", "1", "1g.10gb", "--start", "6"]);
    assert_eq!(gpu.uuids(&nvml).len(), 1);
    assert_eq!(grants(&node)["gpu1/mig/gi13/ci0"], 3 + 135 + 9 * 13 + 1);
    let no_room = node.tool(&["mig", "create", "--gpu", "1", "1g.10gb", "--start", "6"]);
    assert!(String::from_utf8_lossy(&no_room.stderr).contains("there is no room for a 1g.10gb at 6"), "{no_room:?}");
    assert_eq!(node.show()["gpus"][1]["gpuInstances"][0]["computeInstances"][0]["uuid"], gpu.uuids(&nvml)[0]);
    node.make(&["mig", "destroy", "--gpu", "1", "13"]);
    assert_eq!((gpu.uuids(&nvml).len(), grants(&node)), (0, before));
}

/// Runs a test of this program that does something in another process.
fn other_process(node: &Node, test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "--nocapture", test]).env("MOCK_NODE_LIBRARIES", node.libraries());
    command
}

fn nvml_of_parent() -> Nvml {
    let library = PathBuf::from(std::env::var_os("MOCK_NODE_LIBRARIES").unwrap()).join("libnvidia-ml.so.1");
    Nvml::builder().lib_path(library.as_os_str()).init().unwrap()
}

#[test]
#[ignore = "run by other tests, in a process of its own"]
fn makes_a_gpu_instance_and_hangs() {
    let nvml = nvml_of_parent();
    Gpu::new(&nvml, 1).create(9, 4, 4).unwrap();
    println!("\nmade");
    loop {
        std::thread::park();
    }
}

#[test]
fn who_is_killed_half_way_leaves_a_gpu_instance_without_compute_instance() {
    let node = Node::new("mixed.yaml");
    let mut child = other_process(&node, "life_cycle::makes_a_gpu_instance_and_hangs");
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "made"));
    child.kill().unwrap();
    child.wait().unwrap();

    let nvml = node.nvml();
    let gpu = Gpu::new(&nvml, 1);
    assert!(gpu.uuids(&nvml).is_empty());
    let found = gpu.instances(9).unwrap();
    assert_eq!(found.len(), 1);
    let info = gpu.info(found[0]).unwrap();
    assert_eq!((info.id, info.placement.start), (2, 4));
    assert!(grants(&node).contains_key("gpu1/mig/gi2"));
    gpu.destroy(found[0]).unwrap();
    assert!(!grants(&node).contains_key("gpu1/mig/gi2"));
}

#[test]
#[ignore = "run by other tests, in a process of its own"]
fn fills_a_gpu() {
    let nvml = nvml_of_parent();
    let gpu = Gpu::new(&nvml, 1);
    while gpu.create_anywhere(19).is_ok() {}
}

#[test]
fn two_processes_never_make_more_than_there_is() {
    let node = Node::new("mixed.yaml");
    let children =
        [(); 2].map(|()| other_process(&node, "life_cycle::fills_a_gpu").stdout(Stdio::null()).spawn().unwrap());
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let nvml = node.nvml();
    let gpu = Gpu::new(&nvml, 1);
    let mut starts =
        gpu.instances(19).unwrap().into_iter().map(|made| gpu.info(made).unwrap().placement.start).collect::<Vec<_>>();
    starts.sort_unstable();
    assert_eq!(starts, [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_privileged_container_partitions_through_a_read_only_mount() {
    let node = Node::new("mixed.yaml");
    node.in_container(|| {
        let nvml = node.nvml();
        let gpu = Gpu::new(&nvml, 1);
        let instance = gpu.create(19, 0, 1).unwrap();
        assert!(grants(&node).contains_key("gpu1/mig/gi13"));
        without_mount_rights();
        assert_eq!(gpu.create(19, 1, 1), Err(4));
        assert_eq!(gpu.destroy(instance), Err(4));
    });
    assert!(grants(&node).contains_key("gpu1/mig/gi13"));
    assert!(Path::new(&node.path("dev/nvidia-caps/nvidia-cap255")).exists());

    // Whoever hasn't been given the right to change partitions can't either.
    std::fs::remove_file(node.path("dev/nvidia-caps/nvidia-cap1")).unwrap();
    let nvml = node.nvml();
    assert_eq!(Gpu::new(&nvml, 1).create(19, 1, 1), Err(4));
}

//! GPUs, the driver's files, and what programs do wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_uint};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Brand, ComputeMode, TopologyLevel};
use nvml_wrapper::enums::device::DeviceArchitecture;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventSet_t};
use tempfile::TempDir;

use crate::{DRIVER, Node, TOOL, devices, machine, text, without_mount_rights};

#[test]
fn a_dgx_h100_is_what_its_machine_file_says() {
    let node = Node::new("dgx-h100.yaml");
    let nvml = node.nvml();
    assert_eq!(nvml.sys_driver_version().unwrap(), DRIVER);
    assert_eq!(nvml.sys_nvml_version().unwrap(), "13.580.95.05");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);

    let devices = devices(&nvml);
    let buses = ["1B", "43", "51", "9B", "C2", "CA", "DA", "E2"];
    assert_eq!(devices.len(), buses.len());
    for ((index, device), bus) in (0..).zip(&devices).zip(buses) {
        assert_eq!(device.name().unwrap(), "NVIDIA H100 80GB HBM3");
        assert_eq!(device.brand().unwrap(), Brand::Nvidia);
        assert_eq!(device.architecture().unwrap(), DeviceArchitecture::Hopper);
        let capability = device.cuda_compute_capability().unwrap();
        assert_eq!((capability.major, capability.minor), (9, 0));
        assert_eq!(device.index().unwrap(), index);
        assert_eq!(device.minor_number().unwrap(), index);
        let pci = device.pci_info().unwrap();
        assert_eq!(pci.bus_id, format!("00000000:{bus}:00.0"));
        assert_eq!((pci.pci_device_id, pci.pci_sub_system_id), (0x2330_10de, Some(0x16c1_10de)));
        let memory = device.memory_info().unwrap();
        assert_eq!((memory.total, memory.reserved, memory.used), (81_559 << 20, 480 << 20, 0));
        assert_eq!(memory.free, memory.total - memory.reserved);
        assert_eq!(device.bar1_memory_info().unwrap().total, 128 << 30);
        assert_eq!(device.board_part_number().unwrap(), "692-2G520-0200-000");
        let mig = device.mig_mode().unwrap();
        assert_eq!((mig.current, mig.pending), (0, 0));
        assert_eq!(device.mig_device_count().unwrap(), 0);
        assert!(matches!(device.mig_device_by_index(0), Err(NvmlError::NotFound)));
        assert!(!device.mig_is_mig_device_handle().unwrap());
        assert!(device.link_wrapper_for(17).is_active().unwrap());
        assert!(matches!(device.link_wrapper_for(18).is_active(), Err(NvmlError::InvalidArg)));
        assert!(matches!(device.numa_node_id(), Err(NvmlError::NotSupported)));
        assert!(device.running_compute_processes().unwrap().is_empty());
        assert_eq!(device.compute_mode().unwrap(), ComputeMode::Default);
        assert!(!device.is_in_persistent_mode().unwrap());

        let uuid = device.uuid().unwrap();
        let serial = CString::new(device.serial().unwrap()).unwrap();
        let mut by_serial: nvmlDevice_t = std::ptr::null_mut();
        // SAFETY: a text, and room for a handle.
        assert_eq!(unsafe { nvml.lib().nvmlDeviceGetHandleBySerial(serial.as_ptr(), &raw mut by_serial) }, 0);
        // SAFETY: the handle is compared only.
        assert_eq!(by_serial, unsafe { device.handle() });
        for same in [
            nvml.device_by_uuid(uuid.as_str()).unwrap(),
            nvml.device_by_pci_bus_id(pci.bus_id).unwrap(),
            nvml.device_by_pci_bus_id(format!("0000:{}:00.0", bus.to_lowercase())).unwrap(),
        ] {
            assert_eq!(same.uuid().unwrap(), uuid);
        }
    }
    let common =
        |one: usize, two: u32| devices[one].topology_common_ancestor(nvml.device_by_index(two).unwrap()).unwrap();
    assert_eq!(common(0, 0), TopologyLevel::Internal);
    assert_eq!(common(0, 3), TopologyLevel::Node);
    assert_eq!(common(3, 4), TopologyLevel::System);
    assert!(matches!(nvml.device_by_index(8), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_pci_bus_id("0000:ff:00.0"), Err(NvmlError::NotFound)));
    assert!(matches!(nvml.device_by_pci_bus_id("nonsense"), Err(NvmlError::InvalidArg)));
    let unknown = "GPU-00000000-0000-0000-0000-000000000000";
    assert!(matches!(nvml.device_by_uuid(unknown), Err(NvmlError::NotFound)));
}

#[test]
fn uuids_are_those_of_the_node() {
    let uuids = |node: &Node| {
        let nvml = node.nvml();
        devices(&nvml).iter().map(|device| device.uuid().unwrap()).collect::<BTreeSet<_>>()
    };
    let node = Node::new("l4.yaml");
    let first = uuids(&node);
    assert_eq!(first.len(), 2);
    assert_eq!(first, uuids(&Node::new("l4.yaml")));
    node.lay_out(&machine("l4.yaml"), "node-1");
    assert!(first.is_disjoint(&uuids(&node)));
}

#[test]
fn a_gpu_without_memory_figure_says_so() {
    let node = Node::new("no-memory.yaml");
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.name().unwrap(), "NVIDIA GB10");
    assert_eq!(device.pci_info().unwrap().bus_id, "0000000F:01:00.0");
    assert!(matches!(device.memory_info(), Err(NvmlError::NotSupported)));
    assert!(matches!(device.bar1_memory_info(), Err(NvmlError::NotSupported)));
    assert!(matches!(device.board_part_number(), Err(NvmlError::NotSupported)));
    assert!(matches!(device.mig_mode(), Err(NvmlError::NotSupported)));
    assert!(matches!(device.mig_device_by_index(0), Err(NvmlError::NotSupported)));
    assert_eq!(device.mig_device_count().unwrap(), 0);
    assert!(matches!(device.link_wrapper_for(0).is_active(), Err(NvmlError::NotSupported)));
    let table = node.nvidia_smi(&[]).env("LD_LIBRARY_PATH", node.libraries()).output().unwrap();
    assert!(text(&table.stdout).contains("Not Supported"), "{table:?}");
}

#[test]
fn a_gpu_without_device_node_is_hidden_and_others_move_up() {
    let node = Node::new("dgx-h100.yaml");
    let all = node.nvml();
    let hidden = all.device_by_index(3).unwrap().uuid().unwrap();
    let next = all.device_by_index(4).unwrap().uuid().unwrap();
    fs::remove_file(node.path("dev/nvidia3")).unwrap();
    // What is visible is decided when the library is initialised.
    assert_eq!(all.device_count().unwrap(), 8);
    drop(all);

    let nvml = node.nvml();
    assert_eq!(nvml.device_count().unwrap(), 7);
    assert!(matches!(nvml.device_by_uuid(hidden), Err(NvmlError::NotFound)));
    assert!(matches!(nvml.device_by_pci_bus_id("0000:9b:00.0"), Err(NvmlError::NotFound)));
    let moved = nvml.device_by_index(3).unwrap();
    assert_eq!(moved.uuid().unwrap(), next);
    assert_eq!(moved.minor_number().unwrap(), 4);
}

#[test]
fn without_device_nodes_there_is_no_driver() {
    let node = Node::new("l4.yaml");
    for name in ["nvidia0", "nvidia1"] {
        fs::remove_file(node.path("dev").join(name)).unwrap();
    }
    assert_eq!(node.nvml().device_count().unwrap(), 0);
    fs::remove_file(node.path("dev/nvidiactl")).unwrap();
    assert!(matches!(node.try_nvml(), Err(NvmlError::DriverNotLoaded)));
    let no_driver = node.nvidia_smi(&["-L"]).env("LD_LIBRARY_PATH", node.libraries()).output().unwrap();
    assert_eq!(no_driver.status.code(), Some(9));
    assert!(text(&no_driver.stdout).contains("couldn't communicate with the NVIDIA driver"), "{no_driver:?}");
}

#[test]
fn buffers_that_are_too_short_are_refused() {
    let node = Node::new("l4.yaml");
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let uuid = device.uuid().unwrap();
    let mut buffer = [0x55; 96];
    let mut get = |length: usize| {
        // SAFETY: the buffer is at least that long.
        unsafe { nvml.lib().nvmlDeviceGetUUID(device.handle(), buffer.as_mut_ptr(), c_uint::try_from(length).unwrap()) }
    };
    assert_eq!(get(0), 7);
    assert_eq!(get(uuid.len()), 7);
    assert_eq!(get(uuid.len() + 1), 0);
    assert_eq!(buffer.iter().take_while(|byte| **byte != 0).count(), uuid.len());
    assert!(buffer[uuid.len() + 1..].iter().all(|byte| *byte == 0x55));

    let nothing = std::ptr::null_mut::<c_char>();
    // SAFETY: null is an argument that the function has to refuse; so in the rest of this test.
    assert_eq!(unsafe { nvml.lib().nvmlDeviceGetUUID(device.handle(), nothing, 96) }, 2);
    // SAFETY: as above.
    assert_eq!(unsafe { nvml.lib().nvmlDeviceGetMinorNumber(device.handle(), std::ptr::null_mut()) }, 2);
    let mut handle: nvmlDevice_t = std::ptr::null_mut();
    // SAFETY: as above.
    assert_eq!(unsafe { nvml.lib().nvmlDeviceGetHandleByUUID(std::ptr::null(), &raw mut handle) }, 2);
}

#[test]
fn a_struct_of_another_version_is_refused() {
    let node = Node::new("l4.yaml");
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let mut memory =
        nvml_wrapper_sys::bindings::nvmlMemory_v2_t { version: 3, total: 0, reserved: 0, free: 0, used: 0 };
    // SAFETY: the struct is one that the function may fill.
    assert_eq!(unsafe { nvml.lib().nvmlDeviceGetMemoryInfo_v2(device.handle(), &raw mut memory) }, 25);
}

#[test]
fn handles_that_are_forged_or_stale_are_refused() {
    let node = Node::new("l4.yaml");
    let nvml = node.raw();
    let mut minor = 0;
    // SAFETY: handles that aren't NVML's are arguments that the functions have to refuse, and all others are sound.
    unsafe {
        assert_eq!(nvml.nvmlInit_v2(), 0);
        let local = &raw mut minor;
        for forged in [std::ptr::null_mut(), std::ptr::without_provenance_mut(1), local.cast()] {
            assert_eq!(nvml.nvmlDeviceGetMinorNumber(forged, local), 2);
            assert_eq!(nvml.nvmlEventSetFree(forged.cast()), 2);
        }
        let mut device: nvmlDevice_t = std::ptr::null_mut();
        let mut set: nvmlEventSet_t = std::ptr::null_mut();
        assert_eq!(nvml.nvmlDeviceGetHandleByIndex_v2(1, &raw mut device), 0);
        assert_eq!(nvml.nvmlEventSetCreate(&raw mut set), 0);
        assert_eq!(nvml.nvmlDeviceGetMinorNumber(device, local), 0);
        assert_eq!(nvml.nvmlDeviceGetMinorNumber(set.cast(), local), 2);
        assert_eq!(nvml.nvmlEventSetFree(set), 0);
        assert_eq!(nvml.nvmlEventSetFree(set), 2);
        assert_eq!(nvml.nvmlShutdown(), 0);
        assert_eq!(nvml.nvmlInit_v2(), 0);
        assert_eq!(nvml.nvmlDeviceGetMinorNumber(device, local), 2);
        assert_eq!(nvml.nvmlShutdown(), 0);
    }
}

#[test]
fn initialisations_are_counted() {
    let node = Node::new("l4.yaml");
    let nvml = node.raw();
    let mut count = 0;
    // SAFETY: all arguments are sound.
    unsafe {
        assert_eq!(nvml.nvmlDeviceGetCount_v2(&raw mut count), 1);
        assert_eq!(nvml.nvmlShutdown(), 1);
        assert_eq!(nvml.nvmlInit_v2(), 0);
        assert_eq!(nvml.nvmlInitWithFlags(InitFlags::NO_GPUS.bits()), 0);
        assert_eq!(nvml.nvmlShutdown(), 0);
        assert_eq!(nvml.nvmlDeviceGetCount_v2(&raw mut count), 0);
        assert_eq!(nvml.nvmlShutdown(), 0);
        assert_eq!(nvml.nvmlDeviceGetCount_v2(&raw mut count), 1);
        assert_eq!(nvml.nvmlShutdown(), 1);
        assert_eq!(CStr::from_ptr(nvml.nvmlErrorString(1)), c"Uninitialized");
    }
    assert_eq!(count, 2);
}

#[test]
fn an_event_set_waits_until_its_time_is_over() {
    let node = Node::new("l4.yaml");
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    assert!(device.supported_event_types().unwrap().contains(EventTypes::CRITICAL_XID_ERROR));
    let set = nvml.create_event_set().unwrap();
    let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    let start = Instant::now();
    assert!(matches!(set.wait(50), Err(NvmlError::Timeout)));
    assert!(start.elapsed() >= Duration::from_millis(50));
    // A change that is none of its business doesn't end the wait.
    assert!(node.set("1", ["--fault", "gpu-is-lost"]).status.success());
    assert!(matches!(set.wait(50), Err(NvmlError::Timeout)));
    let set = nvml.create_event_set().unwrap();
    assert!(device.register_events(EventTypes::PSTATE_CHANGE, set).is_err());
}

#[test]
fn an_event_set_wakes_when_a_gpu_is_lost() {
    let node = Node::new("l4.yaml");
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let set = nvml.create_event_set().unwrap();
    let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(node.set("0", ["--fault", "gpu-is-lost"]).status.success()));
        assert!(matches!(set.wait(600_000), Err(NvmlError::GpuLost)));
    });
    assert!(matches!(device.uuid(), Err(NvmlError::GpuLost)));
    assert!(nvml.device_by_index(1).unwrap().uuid().is_ok());
    assert!(node.set("0", ["--fault", "none"]).status.success());
    assert!(device.uuid().is_ok());
}

#[test]
fn a_change_is_seen_by_other_processes_at_once() {
    let node = Node::new("dgx-h100.yaml");
    let nvml = node.nvml();
    let mut device = nvml.device_by_index(2).unwrap();
    assert!(node.set("0000:51:00.0", ["--compute-mode", "exclusive-process"]).status.success());
    assert_eq!(device.compute_mode().unwrap(), ComputeMode::ExclusiveProcess);
    assert!(node.set("2", ["--mig", "on"]).status.success());
    assert_eq!(device.mig_mode().unwrap().current, 1);
    assert_eq!(device.mig_device_count().unwrap(), 7);
    // In MIG mode there is but one.
    assert!(matches!(device.set_compute_mode(ComputeMode::Prohibited), Err(NvmlError::NotSupported)));
    assert!(node.set("2", ["--mig", "off"]).status.success());

    device.set_compute_mode(ComputeMode::Prohibited).unwrap();
    device.set_persistent(true).unwrap();
    let shown = &node.show()["gpus"][2];
    assert_eq!((&shown["computeMode"], &shown["persistence"]), (&"prohibited".into(), &"on".into()));
    assert_eq!(node.show()["gpus"][1]["computeMode"], "default");

    // The node boots again: it is as at first, in the same file.
    node.lay_out(&machine("dgx-h100.yaml"), "node-0");
    assert_eq!(device.compute_mode().unwrap(), ComputeMode::Default);
}

#[test]
fn where_the_driver_is_mounted_read_only_nothing_can_be_changed() {
    let node = Node::new("l4.yaml");
    node.in_container(|| {
        let nvml = node.nvml();
        let mut device = nvml.device_by_index(0).unwrap();
        assert_eq!(device.name().unwrap(), "NVIDIA L4");
        // A privileged container may change GPUs, however the driver is mounted.
        device.set_persistent(true).unwrap();
        assert!(device.is_in_persistent_mode().unwrap());
        without_mount_rights();
        assert!(matches!(device.set_compute_mode(ComputeMode::Prohibited), Err(NvmlError::NoPermission)));
        assert_eq!(device.compute_mode().unwrap(), ComputeMode::Default);
    });
}

#[test]
fn a_bad_state_file_is_an_error_and_no_crash() {
    let node = Node::new("l4.yaml");
    let good = fs::read(node.state_file()).unwrap();
    let half = good.len() / 2;
    fs::write(node.state_file(), [&good[..16], &vec![0x5a; good.len() - 16]].concat()).unwrap();
    assert!(matches!(node.try_nvml(), Err(NvmlError::Unknown)));
    let shown = Command::new(TOOL).args(["show", "--root"]).arg(node.path("root")).output().unwrap();
    assert_eq!(shown.status.code(), Some(1));
    assert!(text(&shown.stderr).contains(&format!("libnvidia-mock.so.{DRIVER} is damaged")), "{shown:?}");
    fs::write(node.state_file(), &good[..half]).unwrap();
    assert!(matches!(node.try_nvml(), Err(NvmlError::LibRmVersionMismatch)));
    fs::remove_file(node.state_file()).unwrap();
    assert!(matches!(node.try_nvml(), Err(NvmlError::DriverNotLoaded)));
    node.lay_out(&machine("l4.yaml"), "node-0");
    assert_eq!(node.nvml().device_count().unwrap(), 2);
}

#[test]
fn many_threads_may_call_at_once() {
    let node = Node::new("dgx-h100.yaml");
    let nvml = node.nvml();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..200 {
                    let set = nvml.create_event_set().unwrap();
                    let mut device = nvml.device_by_index(round % 8).unwrap();
                    device.set_persistent(round % 2 == 0).unwrap();
                    assert_eq!(device.name().unwrap(), "NVIDIA H100 80GB HBM3");
                    let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
                    assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));
                }
            });
        }
    });
}

/// Everything below a folder: what it is, and for the state file where it is.
fn listing(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        if about.is_dir() {
            found.extend(listing(&path));
        }
        let target = fs::read_link(&path).unwrap_or_default();
        found.insert(path, format!("{:o} {} {} {}", about.mode(), about.ino(), about.rdev(), target.display()));
    }
    found
}

#[test]
fn laying_out_twice_changes_nothing() {
    let node = Node::new("dgx-h100.yaml");
    let before = (listing(node.folder.path()), fs::read(node.state_file()).unwrap());
    node.lay_out(&machine("dgx-h100.yaml"), "node-0");
    assert_eq!(before, (listing(node.folder.path()), fs::read(node.state_file()).unwrap()));
}

#[test]
fn another_machine_leaves_nothing_of_the_one_before() {
    let node = Node::new("dgx-h100.yaml");
    let file = node.folder.path().join("two.yaml");
    let text = fs::read_to_string(machine("dgx-h100.yaml")).unwrap();
    let gpus = text.find("- {model: h100-sxm-80gb, minor: 2").unwrap();
    fs::write(&file, &text[..gpus]).unwrap();
    let state_file = fs::metadata(node.state_file()).unwrap().ino();
    let nvml = node.nvml();
    node.lay_out(&file, "node-0");

    assert_eq!(fs::metadata(node.state_file()).unwrap().ino(), state_file);
    assert!(nvml.device_by_index(1).is_ok());
    assert!(matches!(nvml.device_by_index(7), Err(NvmlError::GpuLost)));
    drop(nvml);
    assert_eq!(node.nvml().device_count().unwrap(), 2);
    let names = |folder: &str| {
        let entries = fs::read_dir(node.path(folder)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
    };
    let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(names("root/proc/driver/nvidia/gpus"), set(&["0000:1b:00.0", "0000:43:00.0"]));
    assert_eq!(names("root/sys/bus/pci/drivers/nvidia"), set(&["0000:1b:00.0", "0000:43:00.0"]));
    assert_eq!(names("root/sys/devices"), set(&["pci0000:15", "pci0000:37"]));
    assert!(!names("dev").contains("nvidia2"));
}

#[test]
fn sysfs_leads_from_a_gpu_to_its_root() {
    let node = Node::new("dgx-h100.yaml");
    let device = node.path("root/sys/bus/pci/devices/0000:c2:00.0");
    let sys = node.path("root/sys").canonicalize().unwrap();
    let place = device.canonicalize().unwrap();
    assert_eq!(place.strip_prefix(&sys).unwrap(), Path::new("devices/pci0000:b7/0000:b7:01.0/0000:c2:00.0"));
    let read = |name: &str| fs::read_to_string(device.join(name)).unwrap();
    assert_eq!(read("vendor"), "0x10de\n");
    assert_eq!(read("device"), "0x2330\n");
    assert_eq!(read("class"), "0x030200\n");
    assert_eq!(read("numa_node"), "1\n");
    assert_eq!(device.join("driver").canonicalize().unwrap(), sys.join("bus/pci/drivers/nvidia"));
    let information = node.path("root/proc/driver/nvidia/gpus/0000:c2:00.0/information");
    assert!(fs::read_to_string(information).unwrap().contains("Device Minor: \t 4\n"));
}

#[test]
fn nvidia_smi_lists_what_the_library_shows() {
    let node = Node::new("l4.yaml");
    let nvml = node.nvml();
    let expected = devices(&nvml)
        .iter()
        .map(|gpu| format!("GPU {}: NVIDIA L4 (UUID: {})\n", gpu.index().unwrap(), gpu.uuid().unwrap()))
        .collect::<Vec<_>>()
        .concat();
    let listed = node.nvidia_smi(&["-L"]).env("LD_LIBRARY_PATH", node.libraries()).output().unwrap();
    assert_eq!((listed.status.code(), text(&listed.stdout)), (Some(0), expected.as_str()));

    let missing = node.nvidia_smi(&["-L"]).env_remove("LD_LIBRARY_PATH").output().unwrap();
    assert_eq!(missing.status.code(), Some(12));
    assert!(text(&missing.stdout).contains("couldn't find libnvidia-ml.so"), "{missing:?}");
}

#[test]
fn the_loader_accepts_all_libraries() {
    let node = Node::new("l4.yaml");
    let folder = node.libraries();
    let output = Command::new("/sbin/ldconfig").args(["-v", "-N", "-n"]).arg(&folder).output().unwrap();
    let found = text(&output.stdout);
    for name in ["libnvidia-ml.so.1", "libcuda.so.1", "libnvidia-nvvm.so.4"] {
        let stem = name.rsplit_once(".so").unwrap().0;
        assert!(found.contains(&format!("\t{name} -> {stem}.so.{DRIVER}")), "{output:?}");
    }
    let opened = CString::new(folder.join("libcuda.so").to_str().unwrap()).unwrap();
    // SAFETY: the library is empty.
    assert!(!unsafe { libc::dlopen(opened.as_ptr(), libc::RTLD_NOW) }.is_null());
}

#[test]
fn a_typo_in_a_machine_file_is_named_and_nothing_is_written() {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let node = Node { folder };
    let file = node.path("typo.yaml");
    let good = fs::read_to_string(machine("l4.yaml")).unwrap();
    let refused = |text_: String| {
        fs::write(&file, text_).unwrap();
        let output = node.try_lay_out(&file, "node-0");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!node.path("root").exists() && !node.path("dev").exists());
        let compiled = Command::new(TOOL)
            .arg("compile")
            .arg(&file)
            .args(["--node", "node-0", "--out"])
            .arg(node.path("out"))
            .output()
            .unwrap();
        assert_eq!(compiled.status.code(), Some(1));
        assert!(!node.path("out").exists());
        assert_eq!(output.stderr, compiled.stderr);
        text(&output.stderr).replace(file.to_str().unwrap(), "typo.yaml")
    };
    let unknown = refused(good.replace("numaNode: 1", "numaNod: 1"));
    assert!(unknown.starts_with("mock-nvml: machine file typo.yaml: gpus[1]: unknown field `numaNod`"), "{unknown}");
    assert!(unknown.contains("expected one of `model`, `pci`, `minor`, `numaNode`"), "{unknown}");
    assert!(unknown.contains("at line 10"), "{unknown}");
    assert_eq!(
        refused(good.replace("minor: 1", "minor: 0")),
        "mock-nvml: machine file typo.yaml:\ngpus[1].minor: 0 is already that of gpus[0]\n"
    );
    let model = fs::read_to_string(machine("models/l4.yaml")).unwrap().replace("NVIDIA L4", &"L4".repeat(48));
    let model = model.replace('\n', "\n    ");
    let long = refused(format!("{good}models:\n  l4:\n    {model}"));
    assert!(long.starts_with("mock-nvml: machine file typo.yaml: models.l4.productName: \"L4L4"), "{long}");
}

#[test]
fn what_cannot_be_set_is_refused_with_what_can() {
    let node = Node::new("l4.yaml");
    let unknown = node.set("7", ["--fault", "none"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert_eq!(text(&unknown.stderr), "mock-nvml: --gpu 7: no such GPU; there are: 0000:31:00.0, 0000:ca:00.0\n");
    let no_mig = node.set("0", ["--mig", "on"]);
    assert_eq!(text(&no_mig.stderr), "mock-nvml: --gpu 0: NVIDIA L4 can't be partitioned\n");
}

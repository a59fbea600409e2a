//! Partitions that are there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::nvmlDeviceAttributes_t;

use crate::{Node, devices, handle, out, text};

/// The files of partitions in `/proc`, with the minor numbers in them.
pub(crate) fn grants(node: &Node) -> BTreeMap<String, u32> {
    fn collect(folder: &Path, below: &Path, found: &mut BTreeMap<String, u32>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, below, found);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                let minor = text.strip_prefix("DeviceFileMinor: ").unwrap().lines().next().unwrap().parse().unwrap();
                let name = path.parent().unwrap().strip_prefix(below).unwrap().to_str().unwrap().to_owned();
                found.insert(name, minor);
            }
        }
    }
    let folder = node.path("root/proc/driver/nvidia/capabilities");
    let mut found = BTreeMap::new();
    for gpu in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
        if gpu.file_name().unwrap() != "mig" {
            collect(&gpu, &folder, &mut found);
        }
    }
    found
}

/// The minor numbers of the device nodes that grant something.
pub(crate) fn nodes(node: &Node) -> Vec<u32> {
    let entries = fs::read_dir(node.path("dev/nvidia-caps")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut minors = names.map(|name| name.strip_prefix("nvidia-cap").unwrap().parse().unwrap()).collect::<Vec<_>>();
    minors.sort_unstable();
    minors
}

#[test]
fn partitions_are_there_at_boot() {
    let node = Node::new("mixed.yaml");
    let nvml = node.nvml();
    let counts = (0..5).map(|index| {
        let device = nvml.device_by_index(index).unwrap();
        let found = |index| match device.mig_device_by_index(index) {
            Ok(_) => true,
            Err(NvmlError::NotFound | NvmlError::NotSupported) => false,
            Err(error) => panic!("{error}"),
        };
        let most = device.mig_device_count().unwrap();
        (most, (0..most).filter(|index| found(*index)).count())
    });
    assert_eq!(counts.collect::<Vec<_>>(), [(7, 3), (7, 0), (0, 0), (4, 3), (0, 0)]);
    assert!(matches!(nvml.device_by_index(5), Err(NvmlError::Unknown)));

    let gpu = nvml.device_by_index(0).unwrap();
    // The driver's order of ids isn't that of the places.
    let found = (0..3).map(|index| gpu.mig_device_by_index(index).unwrap()).map(|device| {
        let attributes: nvmlDeviceAttributes_t =
            // SAFETY: the handle is good, and there is room for the struct; so in the rest of this test.
            out(|to| unsafe { nvml.lib().nvmlDeviceGetAttributes_v2(device.handle(), to) }).unwrap();
        // SAFETY: as above.
        let id = out(|to| unsafe { nvml.lib().nvmlDeviceGetGpuInstanceId(device.handle(), to) }).unwrap();
        // SAFETY: as above.
        let compute = out(|to| unsafe { nvml.lib().nvmlDeviceGetComputeInstanceId(device.handle(), to) }).unwrap();
        let memory = device.memory_info().unwrap();
        assert_eq!((memory.total >> 20, memory.used), (attributes.memorySizeMB, 0));
        assert_eq!(attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount);
        assert!(device.mig_is_mig_device_handle().unwrap());
        assert_eq!(device.mig_parent_device().unwrap().uuid().unwrap(), gpu.uuid().unwrap());
        assert_eq!(device.pci_info().unwrap().bus_id, gpu.pci_info().unwrap().bus_id);
        let uuid = device.uuid().unwrap();
        assert_eq!(nvml.device_by_uuid(uuid.as_str()).unwrap().index().unwrap(), device.index().unwrap());
        assert!(matches!(device.minor_number(), Err(NvmlError::InvalidArg)));
        let name = device.name().unwrap();
        (name, id, compute, attributes.multiprocessorCount, attributes.sharedOfaCount, attributes.memorySizeMB)
    });
    let name = |profile: &str| format!("NVIDIA H100 80GB HBM3 MIG {profile}");
    let expected = [
        (name("3g.40gb"), 2, 0, 60, 0, 40448),
        (name("1g.10gb+me"), 11, 0, 16, 1, 9984),
        (name("1g.10gb"), 13, 0, 16, 0, 9984),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let unknown = "MIG-00000000-0000-0000-0000-000000000000";
    assert!(matches!(nvml.device_by_uuid(unknown), Err(NvmlError::NotFound)));
    // SAFETY: as above.
    let whole = out(|to| unsafe { nvml.lib().nvmlDeviceGetAttributes_v2(handle(&nvml, 0), to) });
    assert_eq!(whole.map(|attributes: nvmlDeviceAttributes_t| attributes.memorySizeMB), Err(3));
}

#[test]
fn partitions_come_with_what_grants_them() {
    let node = Node::new("mixed.yaml");
    let expected = [
        // 3 + 135 · GPU + 9 · GPU instance, and 1 + compute instance more.
        ("gpu0/mig/gi2", 21),
        ("gpu0/mig/gi2/ci0", 22),
        ("gpu0/mig/gi11", 102),
        ("gpu0/mig/gi11/ci0", 103),
        ("gpu0/mig/gi13", 120),
        ("gpu0/mig/gi13/ci0", 121),
        ("gpu3/mig/gi2", 426),
        ("gpu3/mig/gi2/ci0", 427),
        ("gpu3/mig/gi3", 435),
        ("gpu3/mig/gi3/ci0", 436),
        ("gpu3/mig/gi5", 453),
        ("gpu3/mig/gi5/ci0", 454),
    ];
    assert_eq!(grants(&node), expected.map(|(name, minor)| (name.to_owned(), minor)).into());
    let minors = [1, 2].into_iter().chain(expected.map(|(_, minor)| minor)).collect::<Vec<_>>();
    assert_eq!(nodes(&node), minors);
    let all = fs::read_to_string(node.path("root/proc/driver/nvidia-caps/mig-minors")).unwrap();
    assert!(all.contains("\ngpu3/gi5/ci0/access 454\n"), "{all}");

    // Another machine in the same place has none of them.
    node.lay_out(&crate::machine("l4.yaml"), "node-0");
    assert_eq!((grants(&node), nodes(&node)), (BTreeMap::new(), vec![1, 2]));
}

#[test]
fn a_container_sees_the_partition_that_it_was_given() {
    let node = Node::new("mixed.yaml");
    let nvml = node.nvml();
    let list = || {
        let output = node.nvidia_smi(&["-L"]).env("LD_LIBRARY_PATH", node.libraries()).output().unwrap();
        text(&output.stdout).to_owned()
    };
    // The broken GPU would be the end of it.
    fs::remove_file(node.path("dev/nvidia5")).unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let uuids = (0..3).map(|index| gpu.mig_device_by_index(index).unwrap().uuid().unwrap()).collect::<Vec<_>>();
    let parent = format!("GPU 0: NVIDIA H100 80GB HBM3 (UUID: {})\n", gpu.uuid().unwrap());
    let all = format!(
        "{parent}  MIG 3g.40gb     Device  0: (UUID: {})\n  MIG 1g.10gb+me  Device  1: (UUID: {})\n  \
         MIG 1g.10gb     Device  2: (UUID: {})\nGPU 1: ",
        uuids[0], uuids[1], uuids[2]
    );
    let listed = list();
    assert!(listed.starts_with(&all), "{listed}");

    // What a container's /dev has.
    for name in ["nvidia1", "nvidia2", "nvidia3", "nvidia4"] {
        fs::remove_file(node.path("dev").join(name)).unwrap();
    }
    for minor in nodes(&node).into_iter().filter(|minor| ![102, 103].contains(minor)) {
        fs::remove_file(node.path(&format!("dev/nvidia-caps/nvidia-cap{minor}"))).unwrap();
    }
    let expected = format!("{parent}  MIG 1g.10gb+me  Device  0: (UUID: {})\n", uuids[1]);
    assert_eq!(list(), expected);
    // What GPUs are visible is decided when the library is initialised.
    drop(nvml);
    let inside = node.nvml();
    assert_eq!(inside.device_by_uuid(uuids[1].as_str()).unwrap().uuid().unwrap(), uuids[1]);
    assert!(matches!(inside.device_by_uuid(uuids[0].as_str()), Err(NvmlError::NotFound)));
    // Both nodes are needed.
    fs::remove_file(node.path("dev/nvidia-caps/nvidia-cap102")).unwrap();
    assert_eq!(list(), parent);
    assert_eq!(devices(&inside).len(), 1);
}

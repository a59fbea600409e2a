//! The machine files.

use std::fs;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlPciInfo_t};

use crate::{Node, handle, machine, out};

/// Each machine file: how many GPUs it has, their names, the memory of each in MiB, and how many partitions one can have.
const MACHINES: [(&str, u32, &str, u64, u32); 11] = [
    ("a30.yaml", 2, "NVIDIA A30", 24_576, 4),
    ("dgx-a100.yaml", 8, "NVIDIA A100-SXM4-40GB", 40_960, 7),
    ("dgx-h100.yaml", 8, "NVIDIA H100 80GB HBM3", 81_559, 7),
    ("dgx-h200.yaml", 8, "NVIDIA H200", 143_771, 7),
    ("gb200-tray.yaml", 4, "NVIDIA GB200", 189_471, 7),
    ("h100-16gpu.yaml", 16, "NVIDIA H100 80GB HBM3", 81_559, 7),
    ("hgx-b200.yaml", 8, "NVIDIA B200", 183_359, 7),
    ("l4.yaml", 2, "NVIDIA L4", 23_034, 0),
    ("l40s.yaml", 4, "NVIDIA L40S", 46_068, 0),
    ("rtx-pro-6000.yaml", 4, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97_887, 4),
    ("t4.yaml", 4, "Tesla T4", 15_360, 0),
];

/// The machine files that aren't like the others.
const SPECIAL: [&str; 2] = ["mixed.yaml", "no-memory.yaml"];

#[test]
fn every_machine_has_its_gpus() {
    for (name, count, product, memory, partitions) in MACHINES {
        let node = Node::new(name);
        if partitions > 0 {
            node.make(&["set", "--gpu", "0", "--mig", "on"]);
        }
        let nvml = node.nvml();
        assert_eq!(nvml.device_count().unwrap(), count, "{name}");
        for index in 0..count {
            let device = nvml.device_by_index(index).unwrap();
            assert_eq!(device.name().unwrap(), product);
            assert_eq!(device.memory_info().unwrap().total >> 20, memory);
            assert_eq!(device.mig_mode().is_ok(), partitions > 0, "{name}");
        }
        assert_eq!(nvml.device_by_index(0).unwrap().mig_device_count().unwrap(), partitions, "{name}");
    }
}

#[test]
fn every_machine_file_is_tested() {
    let entries = fs::read_dir(machine("")).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let mut names = files.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>();
    let mut known = MACHINES.iter().map(|machine| machine.0).chain(SPECIAL).collect::<Vec<_>>();
    names.sort();
    known.sort_unstable();
    assert_eq!(names, known);
}

#[test]
fn what_does_not_fit_at_boot_is_named() {
    let node = Node::new("mixed.yaml");
    let file = node.path("full.yaml");
    let text = fs::read_to_string(machine("mixed.yaml")).unwrap();
    let refused = |from: &str, to: &str| {
        fs::write(&file, text.replacen(from, to, 1)).unwrap();
        let output = node.try_lay_out(&file, "node-0");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap().replace(file.to_str().unwrap(), "full.yaml")
    };
    assert_eq!(
        refused("1g.10gb, start: 0", "1g.10gb, start: 5"),
        "mock-nvml: machine file full.yaml: gpus[0].mig.devices[1]: there is no room for a 1g.10gb beside those before it\n"
    );
    assert!(refused("1g.10gb, start: 0", "1g.10gb, start: 9").contains("gpus[0].mig.devices[1].start: no 1g.10gb"));
    assert!(refused("model: t4", "model: t5").contains("gpus[4].model: no model is called \"t5\""));
}

#[test]
fn links_lead_to_switches() {
    let node = Node::new("dgx-a100.yaml");
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.link_wrapper_for(0).version().unwrap(), 3);
    assert!(device.link_wrapper_for(11).is_active().unwrap());
    assert!(matches!(device.link_wrapper_for(12).is_active(), Err(NvmlError::InvalidArg)));
    let remote = |link| {
        // SAFETY: the handle is good, and there is room for the struct.
        out::<nvmlPciInfo_t>(|to| unsafe { nvml.lib().nvmlDeviceGetNvLinkRemotePciInfo_v2(handle(&nvml, 0), link, to) })
            .map(|info| info.bus)
    };
    assert_eq!((remote(0), remote(5), remote(6), remote(12)), (Ok(0xc4), Ok(0xc9), Ok(0xc4), Err(2)));
    let capability = |number| {
        // SAFETY: the handle is good, and there is room for a number.
        out::<u32>(|to| unsafe { nvml.lib().nvmlDeviceGetNvLinkCapability(handle(&nvml, 0), 0, number, to) })
    };
    assert_eq!((capability(0), capability(1), capability(5), capability(6)), (Ok(1), Ok(0), Ok(1), Err(2)));
    assert_eq!(fabric(&node), Ok(([0; 16], 0, 0)));
    let nvml = Node::new("l40s.yaml").nvml();
    assert!(matches!(nvml.device_by_index(0).unwrap().link_wrapper_for(0).version(), Err(NvmlError::NotSupported)));
}

/// The fabric's UUID, the clique, and the state.
fn fabric(node: &Node) -> Result<([u8; 16], u32, u8), u32> {
    let nvml = node.nvml();
    // SAFETY: the handle is good, and there is room for the struct.
    let info: nvmlGpuFabricInfo_t = out(|to| unsafe { nvml.lib().nvmlDeviceGetGpuFabricInfo(handle(&nvml, 0), to) })?;
    Ok((info.clusterUuid, info.cliqueId, info.state))
}

#[test]
fn a_fabric_has_a_name_where_it_has_several_machines() {
    assert_eq!(fabric(&Node::new("dgx-h100.yaml")), Ok(([0; 16], 0, 3)));
    let node = Node::new("gb200-tray.yaml");
    let uuid = [0x6d, 0x3b, 0x1f, 0x0a, 0x52, 0xc8, 0x4e, 0x67, 0x9b, 0x0d, 0x1f, 0x2e, 0x3d, 0x4c, 0x5b, 0x6a];
    assert_eq!(fabric(&node), Ok((uuid, 2, 3)));
    let nvml = node.nvml();
    let get = |info: *mut nvmlGpuFabricInfo_v3_t| {
        // SAFETY: the handle is good, and there is room for the struct of the version that it says.
        unsafe { nvml.lib().nvmlDeviceGetGpuFabricInfoV(handle(&nvml, 0), info) }
    };
    // SAFETY: zeroes are good.
    let mut info: nvmlGpuFabricInfo_v3_t = unsafe { std::mem::zeroed() };
    info.version = u32::try_from(size_of_val(&info)).unwrap() | 3 << 24;
    assert_eq!((get(&raw mut info), info.clusterUuid, info.cliqueId, info.state), (0, uuid, 2, 3));
    info.version = u32::try_from(size_of::<nvmlGpuFabricInfo_v2_t>()).unwrap() | 2 << 24;
    assert_eq!((get(&raw mut info), info.cliqueId), (0, 2));
    info.version = 3;
    assert_eq!(get(&raw mut info), 25);
}

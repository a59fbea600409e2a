//! `NVLinks` and their fabric: as NVML has them, and as the node plugin reads them.

use std::collections::BTreeSet;

use aliquot_device::observation::{Fabric, LinkEnd, NvLink};
use aliquot_nvml::Library;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlPciInfo_t};

use crate::{Node, handle, out};

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

/// The UUID of the fabric in `gb200-tray.yaml`.
const GB200_CLUSTER: [u8; 16] =
    [0x6d, 0x3b, 0x1f, 0x0a, 0x52, 0xc8, 0x4e, 0x67, 0x9b, 0x0d, 0x1f, 0x2e, 0x3d, 0x4c, 0x5b, 0x6a];

#[test]
fn a_fabric_has_a_name_where_it_has_several_machines() {
    assert_eq!(fabric(&Node::new("dgx-h100.yaml")), Ok(([0; 16], 0, 3)));
    let node = Node::new("gb200-tray.yaml");
    assert_eq!(fabric(&node), Ok((GB200_CLUSTER, 2, 3)));
    let nvml = node.nvml();
    let get = |info: *mut nvmlGpuFabricInfo_v3_t| {
        // SAFETY: the handle is good, and there is room for the struct of the version that it says.
        unsafe { nvml.lib().nvmlDeviceGetGpuFabricInfoV(handle(&nvml, 0), info) }
    };
    // SAFETY: zeroes are good.
    let mut info: nvmlGpuFabricInfo_v3_t = unsafe { std::mem::zeroed() };
    info.version = u32::try_from(size_of_val(&info)).unwrap() | 3 << 24;
    assert_eq!((get(&raw mut info), info.clusterUuid, info.cliqueId, info.state), (0, GB200_CLUSTER, 2, 3));
    info.version = u32::try_from(size_of::<nvmlGpuFabricInfo_v2_t>()).unwrap() | 2 << 24;
    assert_eq!((get(&raw mut info), info.cliqueId), (0, 2));
    info.version = 3;
    assert_eq!(get(&raw mut info), 25);
}

#[test]
fn a_bridge_leads_to_the_other_gpu() {
    let node = Node::new("a30.yaml");
    let nvml = node.nvml();
    let remote = |index, link| {
        let remote = nvml.device_by_index(index).unwrap().link_wrapper_for(link).remote_pci_info();
        remote.map(|info| info.bus_id)
    };
    assert_eq!(remote(0, 3).unwrap(), "00000002:00:00.0");
    assert_eq!(remote(1, 0).unwrap(), "00000001:00:00.0");
    assert!(matches!(remote(0, 4), Err(NvmlError::InvalidArg)));
}

/// What the node plugin reads of each GPU.
fn read(node: &Node) -> Vec<Result<NvLink, String>> {
    let library = Library::load(&node.libraries().join("libnvidia-ml.so.1")).unwrap();
    (0..library.count().unwrap()).map(|index| library.gpu(index).unwrap().nvlink).collect()
}

#[test]
fn the_plugin_reads_where_links_lead() {
    let switched = |fabric| NvLink { ends: [LinkEnd::Switch].into(), fabric };
    let alone = Fabric::Joined { cluster: [0; 16], clique: 0 };
    let cases = [
        ("dgx-a100.yaml", switched(None)),
        ("dgx-h100.yaml", switched(Some(alone))),
        ("dgx-h200.yaml", switched(Some(alone))),
        ("h100-16gpu.yaml", switched(Some(alone))),
        ("hgx-b200.yaml", switched(Some(alone))),
        ("gb200-tray.yaml", switched(Some(Fabric::Joined { cluster: GB200_CLUSTER, clique: 2 }))),
        ("l40s.yaml", NvLink::default()),
    ];
    for (machine, expected) in cases {
        for gpu in read(&Node::new(machine)) {
            assert_eq!(gpu, Ok(expected.clone()), "{machine}");
        }
    }
    let to = |address: &str| {
        let ends = BTreeSet::from([LinkEnd::Gpu(address.parse().unwrap())]);
        Ok(NvLink { ends, fabric: None })
    };
    assert_eq!(read(&Node::new("a30.yaml")), [to("0002:00:00.0"), to("0001:00:00.0")]);
}

#[test]
fn an_older_driver_is_asked_for_the_fabric_in_its_way() {
    let node = Node::new("gb200-tray.yaml");
    let expected = read(&node);
    // The struct's version isn't known.
    node.make(&["fault", "nvmlDeviceGetGpuFabricInfoV", "--fail", "25"]);
    assert_eq!(read(&node), expected);
    // It knows no fabrics, and not what is at the other end.
    node.make(&["fault", "nvmlDeviceGetGpuFabricInfo", "--fail", "3"]);
    assert_eq!(read(&node)[0].as_ref().unwrap().fabric, None);
    node.make(&["fault", "nvmlDeviceGetNvLinkRemoteDeviceType", "--fail", "3"]);
    assert_eq!(read(&node)[0], Ok(NvLink::default()));
}

#[test]
fn links_that_cannot_be_asked_for_cost_no_gpu() {
    let node = Node::new("dgx-h100.yaml");
    node.make(&["fault", "nvmlDeviceGetNvLinkState", "--gpu", "1", "--fail", "999"]);
    node.make(&["fault", "nvmlDeviceGetGpuFabricInfoV", "--gpu", "2", "--fail", "999"]);
    let gpus = read(&node);
    assert!(gpus[1].as_ref().is_err_and(|reason| reason.starts_with("NVLink 0: ")), "{:?}", gpus[1]);
    assert!(gpus[2].as_ref().is_err_and(|reason| reason.starts_with("NVLink fabric: ")), "{:?}", gpus[2]);
    assert_eq!(gpus.iter().filter(|gpu| gpu.is_ok()).count(), 6);
}

//! What connects GPUs with each other.

use std::ffi::c_uint;

use crate::abi::{Answer, FabricInfo, FabricInfoV2, FabricInfoV3, Failure, Out, PciInfo, struct_version};
use crate::exports::{pci_info_of, supported};
use crate::handle::Handle;
use crate::library::{gpu, session};
use crate::state::{Address, Gpu, State};

export! {
    fn nvmlDeviceGetNvLinkState(device: Handle, link: c_uint, is_active: Out<c_uint>) =
        a_link(device, link, |_| is_active.put(1));

    fn nvmlDeviceGetNvLinkVersion(device: Handle, link: c_uint, version: Out<c_uint>) =
        a_link(device, link, |gpu| version.put(nv_link_version(gpu)));

    fn nvmlDeviceGetNvLinkCapability(device: Handle, link: c_uint, capability: c_uint, has: Out<c_uint>) =
        a_link(device, link, |_| match capability {
            P2P_SUPPORTED | P2P_ATOMICS | VALID => has.put(1),
            0..VALID => has.put(0),
            _ => Err(Failure::InvalidArgument),
        });

    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: Handle, link: c_uint, kind: Out<c_uint>) =
        a_link(device, link, |gpu| kind.put(if bridge(gpu).is_some() { GPU } else { SWITCH }));

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Handle, link: c_uint, info: Out<PciInfo>) = session(|session| {
        let gpu = session.gpu(session.index(device)?)?;
        check(gpu, link)?;
        if let Some(other) = bridge(gpu) {
            return info.put(pci_info_of(other, 0, 0));
        }
        let state = session.state();
        let switch = supported(state.nv_switch_count, |count| *count > 0)?;
        let address = state.nv_switches.get((link % switch) as usize).ok_or(Failure::Unknown)?;
        info.put(pci_info_of(*address, 0, 0))
    });
}

/// NVML's numbers of what a link can do.
const P2P_SUPPORTED: c_uint = 0;
const P2P_ATOMICS: c_uint = 2;
const VALID: c_uint = 5;

/// NVML's numbers of what is at a link's other end.
const GPU: c_uint = 0;
const SWITCH: c_uint = 2;

/// Where the GPU's bridge leads.
fn bridge(gpu: &Gpu) -> Option<Address> {
    (gpu.bridge != Address::NOWHERE).then_some(gpu.bridge)
}

fn check(gpu: &Gpu, link: c_uint) -> Answer {
    let links = supported(gpu.nv_links, |links| *links > 0)?;
    if link < links { Ok(()) } else { Err(Failure::InvalidArgument) }
}

fn a_link(device: Handle, link: c_uint, call: impl FnOnce(&Gpu) -> Answer) -> Answer {
    gpu(device, |gpu| check(gpu, link).and_then(|()| call(gpu)))
}

/// By architecture, as NVML numbers them: 3 for Ampere, 4 for Hopper, 5 for Blackwell.
fn nv_link_version(gpu: &Gpu) -> c_uint {
    match gpu.architecture {
        7 => 3,
        9 => 4,
        _ => 5,
    }
}

export! {
    fn nvmlDeviceGetGpuFabricInfo(device: Handle, info: Out<FabricInfo>) = fabric(device, |fabric| {
        let Fabric { cluster_uuid, clique_id, state } = fabric;
        info.put(FabricInfo { cluster_uuid, status: 0, clique_id, state })
    });

    fn nvmlDeviceGetGpuFabricInfoV(device: Handle, info: Out<FabricInfoV2>) = fabric(device, |fabric| {
        let Fabric { cluster_uuid, clique_id, state } = fabric;
        let version = info.version()?;
        if version == struct_version::<FabricInfoV2>(2) {
            info.put(FabricInfoV2 { version, cluster_uuid, status: 0, clique_id, state, health_mask: 0 })
        } else if version == struct_version::<FabricInfoV3>(3) {
            info.cast().put(FabricInfoV3 {
                version,
                cluster_uuid,
                status: 0,
                clique_id,
                state,
                health_mask: 0,
                health_summary: 0,
            })
        } else {
            Err(Failure::ArgumentVersionMismatch)
        }
    });
}

/// What NVML says of the fabric.
struct Fabric {
    cluster_uuid: [u8; 16],
    clique_id: c_uint,
    state: u8,
}

/// Runs a call about the fabric. A GPU without links belongs to none.
fn fabric(device: Handle, call: impl FnOnce(Fabric) -> Answer) -> Answer {
    session(|session| {
        let gpu = session.gpu(session.index(device)?)?;
        let State { fabric_cluster, fabric_clique, fabric_state, .. } = *session.state();
        let state = if gpu.nv_links == 0 { 0 } else { fabric_state.try_into().unwrap_or_default() };
        call(Fabric { cluster_uuid: fabric_cluster, clique_id: fabric_clique, state })
    })
}

//! `NVLinks` and their fabric. nvml-wrapper can't ask for the fabric, and its question for what is at a link's other end always
//! answers "unknown".

use std::collections::BTreeSet;

use aliquot_api::ids::IdError;
use aliquot_device::observation::{Fabric, LinkEnd, NvLink};
use nvml_wrapper::error::NvmlError as Cause;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_COMPLETED, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, NVML_NVLINK_MAX_LINKS, nvmlGpuFabricInfo_t,
    nvmlGpuFabricInfo_v3_t, nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as SWITCH,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};

use crate::{absent_if_unsupported, raw};

/// Where a GPU's links lead, and the fabric that they are part of.
pub(crate) fn nvlink(nvml: &Nvml, gpu: &Device<'_>) -> Result<NvLink, String> {
    let mut ends = BTreeSet::new();
    for link in 0..NVML_NVLINK_MAX_LINKS {
        ends.extend(end(nvml, gpu, link).map_err(|reason| format!("NVLink {link}: {reason}"))?);
    }
    let fabric = fabric(nvml, gpu).map_err(|cause| format!("NVLink fabric: {cause}"))?;
    Ok(NvLink { ends, fabric })
}

/// What is at the other end of a link, if the link is up and leads to something that GPUs can use.
fn end(nvml: &Nvml, gpu: &Device<'_>, number: u32) -> Result<Option<LinkEnd>, String> {
    let said = |cause: Cause| cause.to_string();
    let link = gpu.link_wrapper_for(number);
    let is_up = match link.is_active() {
        // There are fewer links.
        Err(Cause::InvalidArg) => None,
        answer => absent_if_unsupported(answer).map_err(said)?,
    };
    if is_up != Some(true) {
        return Ok(None);
    }
    let kind = raw::get_by(&nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType, raw::handle(gpu), number);
    match absent_if_unsupported(kind).map_err(said)? {
        Some(SWITCH) => Ok(Some(LinkEnd::Switch)),
        Some(GPU) => match absent_if_unsupported(link.remote_pci_info()).map_err(said)? {
            Some(peer) => Ok(Some(LinkEnd::Gpu(peer.bus_id.parse().map_err(|error: IdError| error.to_string())?))),
            None => Ok(None),
        },
        // A processor, or nobody knows.
        _ => Ok(None),
    }
}

fn fabric(nvml: &Nvml, gpu: &Device<'_>) -> Result<Option<Fabric>, Cause> {
    let (library, gpu) = (nvml.lib(), raw::handle(gpu));
    let versioned = nvmlGpuFabricInfo_v3_t {
        version: struct_version::<nvmlGpuFabricInfo_v3_t>(3),
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    let answer = match raw::fill(&library.nvmlDeviceGetGpuFabricInfoV, gpu, versioned) {
        // An older driver.
        Err(Cause::FailedToLoadSymbol(_) | Cause::UnexpectedVariant(VERSION_MISMATCH)) => {
            raw::get(&library.nvmlDeviceGetGpuFabricInfo, gpu)
        }
        answer => answer.map(|info| nvmlGpuFabricInfo_t {
            clusterUuid: info.clusterUuid,
            status: info.status,
            cliqueId: info.cliqueId,
            state: info.state,
        }),
    };
    let info = absent_if_unsupported(answer)?;
    Ok(info.and_then(|info| match u32::from(info.state) {
        NVML_GPU_FABRIC_STATE_NOT_SUPPORTED => None,
        NVML_GPU_FABRIC_STATE_COMPLETED if info.status == SUCCESS => {
            Some(Fabric::Joined { cluster: info.clusterUuid, clique: info.cliqueId })
        }
        _ => Some(Fabric::NotJoined),
    }))
}

/// As NVML marks structs that exist in several versions.
fn struct_version<T>(version: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or_default() | version << 24
}

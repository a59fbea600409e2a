//! MIG devices. nvml-wrapper lacks most of these calls.

use aliquot_api::ids::IdError;
use aliquot_device::mig::{PROFILE_NUMBERS, ProfileNumber, profile_name};
use aliquot_device::observation::{Engines, Mig};
use nvml_wrapper::error::NvmlError as Cause;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstanceProfileInfo_t,
};

use crate::raw::{self, get, get_by};

/// MIG mode is on.
const ENABLED: u32 = 1;

/// The MIG devices of a GPU in MIG mode, by where they start; none if it isn't in MIG mode.
pub(crate) fn devices(nvml: &Nvml, gpu: &Device<'_>, memory: Option<u64>) -> Result<Option<Vec<Mig>>, String> {
    let said = |what: &'static str| move |cause: Cause| format!("{what}: {cause}");
    match gpu.mig_mode() {
        Ok(mode) if mode.current == ENABLED => {}
        Ok(_) | Err(Cause::NotSupported | Cause::FailedToLoadSymbol(_)) => return Ok(None),
        Err(cause) => return Err(said("MIG mode")(cause)),
    }
    let count = gpu.mig_device_count().map_err(said("number of MIG devices"))?;
    let mut devices = Vec::new();
    for index in 0..count {
        match gpu.mig_device_by_index(index) {
            Ok(mig) => {
                let described = describe(nvml, gpu, &mig, memory.unwrap_or_default());
                devices.push(described.map_err(|reason| format!("MIG device {index}: {reason}"))?);
            }
            Err(Cause::NotFound) => {}
            Err(cause) => return Err(format!("MIG device {index}: {cause}")),
        }
    }
    devices.sort_by_key(|mig| (mig.start, mig.compute_instance));
    Ok(Some(devices))
}

fn describe(nvml: &Nvml, gpu: &Device<'_>, mig: &Device<'_>, total: u64) -> Result<Mig, String> {
    let said = |what: &'static str| move |cause: Cause| format!("{what}: {cause}");
    let library = nvml.lib();
    let (gpu_handle, mig_handle) = (raw::handle(gpu), raw::handle(mig));

    let uuid = mig.uuid().map_err(said("UUID"))?;
    let gpu_instance = get(&library.nvmlDeviceGetGpuInstanceId, mig_handle).map_err(said("GPU instance's id"))?;
    let compute_instance =
        get(&library.nvmlDeviceGetComputeInstanceId, mig_handle).map_err(said("compute instance's id"))?;
    let attributes: nvmlDeviceAttributes_t =
        get(&library.nvmlDeviceGetAttributes_v2, mig_handle).map_err(said("attributes"))?;
    let instance: nvmlGpuInstance_t =
        get_by(&library.nvmlDeviceGetGpuInstanceById, gpu_handle, gpu_instance).map_err(said("GPU instance"))?;
    let info: nvmlGpuInstanceInfo_t =
        get(&library.nvmlGpuInstanceGetInfo, instance).map_err(said("GPU instance's placement"))?;

    let profile = profile_number(nvml, gpu_handle, info.profileId).map_err(said("GPU instance profiles"))?;
    let (slices, compute) = (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount);
    Ok(Mig {
        uuid: uuid.parse().map_err(|error: IdError| error.to_string())?,
        gpu_instance,
        compute_instance,
        profile: profile_name(compute, slices, attributes.memorySizeMB, total, profile),
        start: info.placement.start,
        is_whole_instance: slices == compute,
        memory: attributes.memorySizeMB << 20,
        engines: Engines {
            multiprocessors: attributes.multiprocessorCount,
            copy: attributes.sharedCopyEngineCount,
            decoders: attributes.sharedDecoderCount,
            encoders: attributes.sharedEncoderCount,
            jpeg: attributes.sharedJpegCount,
            ofa: attributes.sharedOfaCount,
        },
    })
}

/// Which number in NVML's enumeration has the profile of this id.
fn profile_number(nvml: &Nvml, gpu: nvmlDevice_t, id: u32) -> Result<ProfileNumber, Cause> {
    for number in 0..PROFILE_NUMBERS {
        let info: Result<nvmlGpuInstanceProfileInfo_t, Cause> =
            get_by(&nvml.lib().nvmlDeviceGetGpuInstanceProfileInfo, gpu, number);
        match info {
            Ok(info) if info.id == id => return Ok(number),
            // The GPU hasn't this profile, or the library doesn't know the number.
            Ok(_) | Err(Cause::NotSupported | Cause::InvalidArg) => {}
            Err(cause) => return Err(cause),
        }
    }
    Err(Cause::NotFound)
}

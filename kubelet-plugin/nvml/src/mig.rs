//! MIG devices. nvml-wrapper lacks most of these calls, so they are made through the library's symbols.
#![allow(unsafe_code)]

use std::ffi::c_uint;
use std::mem::MaybeUninit;

use aliquot_api::ids::IdError;
use aliquot_device::mig::{PROFILE_NUMBERS, ProfileNumber, profile_name};
use aliquot_device::observation::{Engines, Mig};
use nvml_wrapper::error::{NvmlError as Cause, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstanceProfileInfo_t,
    nvmlReturn_t,
};

/// MIG mode is on.
const ENABLED: u32 = 1;

/// A call of NVML that fills one value.
type Getter<A, T> = unsafe extern "C" fn(A, *mut T) -> nvmlReturn_t;

fn symbol<F: Copy>(symbol: &Result<F, libloading::Error>) -> Result<F, Cause> {
    symbol.as_ref().copied().map_err(|error| Cause::FailedToLoadSymbol(error.to_string()))
}

/// Calls a getter.
fn get<A, T>(getter: &Result<Getter<A, T>, libloading::Error>, of: A) -> Result<T, Cause> {
    let getter = symbol(getter)?;
    let mut value = MaybeUninit::uninit();
    // SAFETY: the symbol has this signature in NVML's header. `of` is a handle that the same library gave and hasn't shut down,
    // and `value` is room for what the call writes.
    nvml_try(unsafe { getter(of, value.as_mut_ptr()) })?;
    // SAFETY: NVML fills the value when it says success.
    Ok(unsafe { value.assume_init() })
}

/// The same with a number.
fn get_by<T>(
    getter: &Result<unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut T) -> nvmlReturn_t, libloading::Error>,
    of: nvmlDevice_t,
    number: c_uint,
) -> Result<T, Cause> {
    let getter = symbol(getter)?;
    let mut value = MaybeUninit::uninit();
    // SAFETY: as in `get`.
    nvml_try(unsafe { getter(of, number, value.as_mut_ptr()) })?;
    // SAFETY: as in `get`.
    Ok(unsafe { value.assume_init() })
}

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
    // SAFETY: the handles don't outlive the devices, which borrow the library.
    let (gpu_handle, mig_handle) = unsafe { (gpu.handle(), mig.handle()) };

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

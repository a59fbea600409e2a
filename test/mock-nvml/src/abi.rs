//! NVML's C types, and how values get out of a function.

use std::ffi::{CStr, c_char, c_uint};

use crate::handle::Handle;

/// Defines NVML's results with the texts that `nvmlErrorString` has for them.
macro_rules! results {
    ($($name:ident = $code:literal $text:literal,)*) => {
        /// Why a call failed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Failure { $($name = $code,)* }

        /// The text for a result.
        pub(crate) fn text_of(result: c_uint) -> &'static CStr {
            match result {
                0 => c"Success",
                $($code => $text,)*
                _ => c"Unknown Error",
            }
        }
    };
}

results! {
    Uninitialized = 1 c"Uninitialized",
    InvalidArgument = 2 c"Invalid Argument",
    NotSupported = 3 c"Not Supported",
    NoPermission = 4 c"Insufficient Permissions",
    NotFound = 6 c"Not Found",
    InsufficientSize = 7 c"Insufficient Size",
    DriverNotLoaded = 9 c"Driver Not Loaded",
    Timeout = 10 c"Timeout",
    GpuIsLost = 15 c"GPU is lost",
    ResetRequired = 16 c"GPU requires reset",
    VersionMismatch = 18 c"Driver/library version mismatch",
    InUse = 19 c"In use by another client",
    InsufficientResources = 23 c"Insufficient Resources",
    ArgumentVersionMismatch = 25 c"Argument version mismatch",
    Unknown = 999 c"Unknown Error",
}

/// The result of a call.
pub(crate) type Answer = Result<(), Failure>;

pub(crate) fn code(answer: Answer) -> c_uint {
    match answer {
        Ok(()) => 0,
        Err(failure) => failure as c_uint,
    }
}

/// Where a C program wants a value to be put.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn put(&self, value: T) -> Answer {
        self.check()?;
        // SAFETY: the C program vouches that a pointer that isn't null is one to a `T` that may be written.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// The same place for a struct that is another version of this one.
    pub(crate) fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }

    /// The value that is there.
    pub(crate) fn get(&self) -> Result<T, Failure>
    where
        T: Copy,
    {
        self.check()?;
        // SAFETY: the C program vouches that a pointer that isn't null is one to a `T`.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The place of the value behind it, where there are several.
    pub(crate) fn at(&self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Puts values there, for which there must be room.
    pub(crate) fn put_all(&self, values: impl IntoIterator<Item = T>) -> Answer {
        self.check()?;
        for (index, value) in values.into_iter().enumerate() {
            // SAFETY: the C program vouches that there is room for as many as the function's documentation says.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
        Ok(())
    }

    /// Fails if there is no place for a value.
    pub(crate) fn check(&self) -> Answer {
        if self.0.is_null() { Err(Failure::InvalidArgument) } else { Ok(()) }
    }

    /// The first word of a struct, in which the program says which version of the struct it means.
    pub(crate) fn version(&self) -> Result<c_uint, Failure> {
        self.check()?;
        // SAFETY: as above, and the version is set before the call.
        Ok(unsafe { self.0.cast::<c_uint>().read_unaligned() })
    }
}

/// A value that a C program gave by a pointer.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn get(&self) -> Result<T, Failure> {
        if self.0.is_null() {
            return Err(Failure::InvalidArgument);
        }
        // SAFETY: the C program vouches that a pointer that isn't null is one to a `T`.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// The number by which a program says that it means version `version` of the struct `T`.
pub(crate) fn struct_version<T>(version: c_uint) -> c_uint {
    u32::try_from(size_of::<T>()).unwrap_or_default() | version << 24
}

/// A text that a C program gave.
#[repr(transparent)]
pub(crate) struct TextIn(*const c_char);

impl TextIn {
    pub(crate) fn get(&self) -> Result<&str, Failure> {
        if self.0.is_null() {
            return Err(Failure::InvalidArgument);
        }
        // SAFETY: the C program vouches that a pointer that isn't null is one to a text that ends with a zero byte.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| Failure::InvalidArgument)
    }
}

/// Where a C program wants a text to be put.
#[repr(transparent)]
pub(crate) struct TextOut(*mut c_char);

impl TextOut {
    /// Puts the text there, if it fits into `length` bytes with the zero byte at its end.
    pub(crate) fn put(&self, length: c_uint, text: &str) -> Answer {
        if self.0.is_null() {
            return Err(Failure::InvalidArgument);
        }
        if text.len() >= length as usize {
            return Err(Failure::InsufficientSize);
        }
        // SAFETY: the C program vouches that there is room for `length` bytes, and the text with its end is shorter.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), self.0.cast(), text.len());
            self.0.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// A text in a struct, cut off if it doesn't fit.
pub(crate) fn text_field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = from;
    }
    field
}

#[repr(C)]
pub(crate) struct PciInfo {
    pub(crate) bus_id_legacy: [u8; 16],
    pub(crate) domain: c_uint,
    pub(crate) bus: c_uint,
    pub(crate) device: c_uint,
    pub(crate) pci_device_id: c_uint,
    pub(crate) pci_subsystem_id: c_uint,
    pub(crate) bus_id: [u8; 32],
}

#[repr(C)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

#[repr(C)]
pub(crate) struct MemoryV2 {
    pub(crate) version: c_uint,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

#[repr(C)]
pub(crate) struct EventData {
    pub(crate) device: Handle,
    pub(crate) types: u64,
    pub(crate) data: u64,
    pub(crate) gpu_instance_id: c_uint,
    pub(crate) compute_instance_id: c_uint,
}

#[repr(C)]
pub(crate) struct ProcessInfo {
    pub(crate) pid: c_uint,
    pub(crate) used_gpu_memory: u64,
    pub(crate) gpu_instance_id: c_uint,
    pub(crate) compute_instance_id: c_uint,
}

/// The memory units of a GPU instance, or the slices of a compute instance.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Placement {
    pub(crate) start: c_uint,
    pub(crate) size: c_uint,
}

#[repr(C)]
pub(crate) struct GpuInstanceProfileInfo {
    pub(crate) id: c_uint,
    pub(crate) is_p2p_supported: c_uint,
    pub(crate) slice_count: c_uint,
    pub(crate) instance_count: c_uint,
    pub(crate) multiprocessor_count: c_uint,
    pub(crate) engines: [c_uint; 5],
    pub(crate) memory_size_mb: u64,
}

#[repr(C)]
pub(crate) struct GpuInstanceProfileInfoV2 {
    pub(crate) version: c_uint,
    pub(crate) id: c_uint,
    pub(crate) is_p2p_supported: c_uint,
    pub(crate) slice_count: c_uint,
    pub(crate) instance_count: c_uint,
    pub(crate) multiprocessor_count: c_uint,
    pub(crate) engines: [c_uint; 5],
    pub(crate) memory_size_mb: u64,
    pub(crate) name: [u8; 96],
}

#[repr(C)]
pub(crate) struct GpuInstanceProfileInfoV3 {
    pub(crate) version: c_uint,
    pub(crate) id: c_uint,
    pub(crate) slice_count: c_uint,
    pub(crate) instance_count: c_uint,
    pub(crate) multiprocessor_count: c_uint,
    pub(crate) engines: [c_uint; 5],
    pub(crate) memory_size_mb: u64,
    pub(crate) name: [u8; 96],
    pub(crate) capabilities: c_uint,
}

#[repr(C)]
pub(crate) struct GpuInstanceInfo {
    pub(crate) device: Handle,
    pub(crate) id: c_uint,
    pub(crate) profile_id: c_uint,
    pub(crate) placement: Placement,
}

#[repr(C)]
pub(crate) struct ComputeInstanceProfileInfo {
    pub(crate) id: c_uint,
    pub(crate) slice_count: c_uint,
    pub(crate) instance_count: c_uint,
    pub(crate) multiprocessor_count: c_uint,
    pub(crate) shared_engines: [c_uint; 5],
}

#[repr(C)]
pub(crate) struct ComputeInstanceProfileInfoV2 {
    pub(crate) version: c_uint,
    pub(crate) info: ComputeInstanceProfileInfo,
    pub(crate) name: [u8; 96],
}

#[repr(C)]
pub(crate) struct ComputeInstanceProfileInfoV3 {
    pub(crate) version: c_uint,
    pub(crate) info: ComputeInstanceProfileInfo,
    pub(crate) name: [u8; 96],
    pub(crate) capabilities: c_uint,
}

#[repr(C)]
pub(crate) struct ComputeInstanceInfo {
    pub(crate) device: Handle,
    pub(crate) gpu_instance: Handle,
    pub(crate) id: c_uint,
    pub(crate) profile_id: c_uint,
    pub(crate) placement: Placement,
}

#[repr(C)]
pub(crate) struct FabricInfo {
    pub(crate) cluster_uuid: [u8; 16],
    pub(crate) status: c_uint,
    pub(crate) clique_id: c_uint,
    pub(crate) state: u8,
}

#[repr(C)]
pub(crate) struct FabricInfoV2 {
    pub(crate) version: c_uint,
    pub(crate) cluster_uuid: [u8; 16],
    pub(crate) status: c_uint,
    pub(crate) clique_id: c_uint,
    pub(crate) state: u8,
    pub(crate) health_mask: c_uint,
}

#[repr(C)]
pub(crate) struct FabricInfoV3 {
    pub(crate) version: c_uint,
    pub(crate) cluster_uuid: [u8; 16],
    pub(crate) status: c_uint,
    pub(crate) clique_id: c_uint,
    pub(crate) state: u8,
    pub(crate) health_mask: c_uint,
    pub(crate) health_summary: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FieldValue {
    pub(crate) field_id: c_uint,
    pub(crate) scope_id: c_uint,
    pub(crate) timestamp: i64,
    pub(crate) latency_usec: i64,
    pub(crate) value_type: c_uint,
    pub(crate) result: c_uint,
    pub(crate) value: u64,
}

/// What a MIG device has.
#[repr(C)]
pub(crate) struct DeviceAttributes {
    pub(crate) multiprocessor_count: c_uint,
    pub(crate) shared_engines: [c_uint; 5],
    pub(crate) gpu_instance_slice_count: c_uint,
    pub(crate) compute_instance_slice_count: c_uint,
    pub(crate) memory_size_mb: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields one after the other, as C has them.
    macro_rules! same {
        ($($ours:ty = $theirs:ident { $($our:ident = $their:ident),* };)*) => {
            $(
                assert_eq!(size_of::<$ours>(), size_of::<nvml_wrapper_sys::bindings::$theirs>());
                $(
                    assert_eq!(
                        std::mem::offset_of!($ours, $our),
                        std::mem::offset_of!(nvml_wrapper_sys::bindings::$theirs, $their)
                    );
                )*
            )*
        };
    }

    #[test]
    fn structs_of_partitions_are_laid_out_as_in_nvml() {
        same! {
            Placement = nvmlGpuInstancePlacement_t { size = size };
            GpuInstanceProfileInfo = nvmlGpuInstanceProfileInfo_t {
                multiprocessor_count = multiprocessorCount, engines = copyEngineCount, memory_size_mb = memorySizeMB
            };
            GpuInstanceProfileInfoV2 = nvmlGpuInstanceProfileInfo_v2_t {
                engines = copyEngineCount, memory_size_mb = memorySizeMB, name = name
            };
            GpuInstanceProfileInfoV3 = nvmlGpuInstanceProfileInfo_v3_t {
                engines = copyEngineCount, memory_size_mb = memorySizeMB, name = name, capabilities = capabilities
            };
            GpuInstanceInfo = nvmlGpuInstanceInfo_t { profile_id = profileId, placement = placement };
            ComputeInstanceProfileInfo = nvmlComputeInstanceProfileInfo_t { shared_engines = sharedCopyEngineCount };
            ComputeInstanceProfileInfoV2 = nvmlComputeInstanceProfileInfo_v2_t { info = id, name = name };
            ComputeInstanceProfileInfoV3 = nvmlComputeInstanceProfileInfo_v3_t {
                info = id, name = name, capabilities = capabilities
            };
            ComputeInstanceInfo = nvmlComputeInstanceInfo_t { gpu_instance = gpuInstance, placement = placement };
            FabricInfo = nvmlGpuFabricInfo_t { status = status, state = state };
            FabricInfoV2 = nvmlGpuFabricInfo_v2_t { state = state, health_mask = healthMask };
            FabricInfoV3 = nvmlGpuFabricInfo_v3_t { health_mask = healthMask, health_summary = healthSummary };
            FieldValue = nvmlFieldValue_t { value_type = valueType, result = nvmlReturn, value = value };
            DeviceAttributes = nvmlDeviceAttributes_t {
                shared_engines = sharedCopyEngineCount, gpu_instance_slice_count = gpuInstanceSliceCount,
                memory_size_mb = memorySizeMB
            };
        }
    }

    #[test]
    fn structs_are_laid_out_as_in_nvml() {
        use nvml_wrapper_sys::bindings as nvml;
        assert_eq!(size_of::<PciInfo>(), size_of::<nvml::nvmlPciInfo_t>());
        assert_eq!(std::mem::offset_of!(PciInfo, bus_id), std::mem::offset_of!(nvml::nvmlPciInfo_t, busId));
        assert_eq!(size_of::<Memory>(), size_of::<nvml::nvmlBAR1Memory_t>());
        assert_eq!(size_of::<Memory>(), size_of::<nvml::nvmlMemory_t>());
        assert_eq!(size_of::<MemoryV2>(), size_of::<nvml::nvmlMemory_v2_t>());
        assert_eq!(size_of::<EventData>(), size_of::<nvml::nvmlEventData_t>());
        assert_eq!(size_of::<ProcessInfo>(), size_of::<nvml::nvmlProcessInfo_t>());
        assert_eq!(struct_version::<MemoryV2>(2), 0x0200_0028);
    }
}

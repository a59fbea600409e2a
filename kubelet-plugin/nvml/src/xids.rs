//! Critical errors of a GPU (XID), which the driver tells whoever has registered for them.
//!
//! nvml-wrapper's event set borrows its library, so one couldn't be kept beside the other.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::Arc;

use nvml_wrapper::error::{NvmlError as Cause, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlEventSet_t, nvmlEventTypeXidCriticalError};

use crate::Library;
use crate::raw::{self, get, symbol};

/// How many are taken at once. The others are there still the next time.
const AT_ONCE: usize = 100;

/// The errors of one GPU.
#[derive(Debug)]
pub struct Xids {
    set: nvmlEventSet_t,
    library: Arc<Library>,
}

impl Xids {
    /// Registers for what happens from now on to the GPU at this place in the driver's list.
    pub fn watch(library: Arc<Library>, index: u32) -> Result<Self, Cause> {
        let nvml = library.nvml.lib();
        let types = u64::from(nvmlEventTypeXidCriticalError);
        let gpu = library.nvml.device_by_index(index)?;
        let gpu = raw::handle(&gpu);
        if get(&nvml.nvmlDeviceGetSupportedEventTypes, gpu)? & types == 0 {
            return Err(Cause::NotSupported);
        }
        let register = symbol(&nvml.nvmlDeviceRegisterEvents)?;
        let create = symbol(&nvml.nvmlEventSetCreate)?;
        let mut set = MaybeUninit::uninit();
        // SAFETY: the symbol has this signature in NVML's header, and there is room for what the call writes.
        nvml_try(unsafe { create(set.as_mut_ptr()) })?;
        // SAFETY: NVML fills the value when it says success.
        let set = unsafe { set.assume_init() };
        let this = Self { set, library: Arc::clone(&library) };
        // SAFETY: both handles are of this library, which is still initialized.
        nvml_try(unsafe { register(gpu, types, this.set) })?;
        Ok(this)
    }

    /// The numbers of the errors since the last time, oldest first. Doesn't wait for any.
    pub fn take(&mut self) -> Vec<u64> {
        let Ok(wait) = symbol(&self.library.nvml.lib().nvmlEventSetWait_v2) else { return Vec::new() };
        let next = || {
            let mut event = MaybeUninit::uninit();
            // SAFETY: the set is of this library, which is still initialized, and there is room for what the call writes.
            nvml_try(unsafe { wait(self.set, event.as_mut_ptr(), 0) }).ok()?;
            // SAFETY: NVML fills the value when it says success.
            Some(unsafe { event.assume_init() }.eventData)
        };
        // A GPU that is lost says so here too; its other calls tell it as well.
        std::iter::from_fn(next).take(AT_ONCE).collect()
    }
}

impl Drop for Xids {
    fn drop(&mut self) {
        if let Ok(free) = symbol(&self.library.nvml.lib().nvmlEventSetFree) {
            // SAFETY: the set is of this library, which ends after it, and nobody uses it any more.
            unsafe { free(self.set) };
        }
    }
}

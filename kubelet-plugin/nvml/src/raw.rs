//! Calls that nvml-wrapper lacks or gets wrong, through the library's symbols.
#![allow(unsafe_code)]

use std::ffi::c_uint;
use std::mem::MaybeUninit;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError as Cause, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

/// A symbol, or that the library lacks it.
type Symbol<F> = Result<F, libloading::Error>;

/// A call of NVML that fills one value.
type Getter<A, T> = unsafe extern "C" fn(A, *mut T) -> nvmlReturn_t;

/// The same with a number.
type NumberedGetter<T> = unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut T) -> nvmlReturn_t;

pub(crate) fn symbol<F: Copy>(symbol: &Symbol<F>) -> Result<F, Cause> {
    symbol.as_ref().copied().map_err(|error| Cause::FailedToLoadSymbol(error.to_string()))
}

/// A device's handle. Only for calls while the device is there.
pub(crate) fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: nobody keeps the handle longer than the device, which borrows the library.
    unsafe { device.handle() }
}

/// Calls a getter.
pub(crate) fn get<A, T>(getter: &Symbol<Getter<A, T>>, of: A) -> Result<T, Cause> {
    let getter = symbol(getter)?;
    let mut value = MaybeUninit::uninit();
    // SAFETY: the symbol has this signature in NVML's header. `of` is a handle that the same library gave and hasn't shut down,
    // and `value` is room for what the call writes.
    nvml_try(unsafe { getter(of, value.as_mut_ptr()) })?;
    // SAFETY: NVML fills the value when it says success.
    Ok(unsafe { value.assume_init() })
}

/// Calls a getter that has a number for the value's version in it.
pub(crate) fn fill<A, T>(getter: &Symbol<Getter<A, T>>, of: A, mut value: T) -> Result<T, Cause> {
    let getter = symbol(getter)?;
    // SAFETY: as in `get`; and the version in the value is that of its type.
    nvml_try(unsafe { getter(of, &raw mut value) })?;
    Ok(value)
}

/// Calls a getter that takes a number.
pub(crate) fn get_by<T>(getter: &Symbol<NumberedGetter<T>>, of: nvmlDevice_t, number: c_uint) -> Result<T, Cause> {
    let getter = symbol(getter)?;
    let mut value = MaybeUninit::uninit();
    // SAFETY: as in `get`.
    nvml_try(unsafe { getter(of, number, value.as_mut_ptr()) })?;
    // SAFETY: as in `get`.
    Ok(unsafe { value.assume_init() })
}

//! NVIDIA's management library for machines without GPUs.
//!
//! Programs load it as `libnvidia-ml.so.1` and can't tell the difference: it has NVML's C interface, and answers from a
//! [state file](state) that lies beside it, so that all processes of a node see the same GPUs and every change at once.
//! A GPU whose device node the process can't open isn't there for it, as in a real container.
//!
//! The library reads no YAML and needs nothing but libc: the program `mock-nvml` makes the state file from a machine file.

pub mod caps;
pub mod mig;
pub mod state;

mod abi;
mod exports;
mod faults;
mod handle;
mod library;
mod writable;

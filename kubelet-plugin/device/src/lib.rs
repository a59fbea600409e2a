//! What a node's devices are and what an allocation needs, decided without IO: every decision is a value.
//!
//! ```text
//! Observation ── Numbering ──> Inventory ──┬─> publish: slices to create, update, delete
//!  (NVML, sysfs)                           ├─> health: what kubelet shows of the devices that pods have
//!                                          └─> prepare: allocation + configs ──> Plan ──> cdi: the files' content
//! ```

pub mod cdi;
pub mod hash;
pub mod health;
pub mod inventory;
pub mod mig;
pub mod numbering;
mod nvlink;
pub mod observation;
pub mod prepare;
pub mod publish;

//! What stands for a device, a partition or an event set in NVML's interface.
//!
//! To programs a handle is an opaque pointer. Here it is a number in a pointer's place that can't be an address, so that
//! whoever follows it fails at once. It has the number of the session in it: one from before the last shutdown is known
//! to be stale.

use std::ffi::c_void;

/// One of them, as a C program holds it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(*mut c_void);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Gpu = 1,
    EventSet = 2,
    MigDevice = 3,
    GpuInstance = 4,
    ComputeInstance = 5,
}

/// No address on the machines that there are: its upper bits are neither all 0 nor all 1.
const TAG: usize = 0x6e76;
const KIND: u32 = 44;
const SESSION: u32 = 20;

impl Handle {
    /// Sessions are counted modulo 2^24, and there are up to 2^20 of a kind in each.
    pub(crate) fn new(kind: Kind, session: u32, number: u32) -> Self {
        let (session, number) = ((session & 0xff_ffff) as usize, (number & 0xf_ffff) as usize);
        let value = (TAG << 48) | ((kind as usize) << KIND) | (session << SESSION) | number;
        Self(std::ptr::without_provenance_mut(value))
    }

    /// The number it was made with, if it is one of that kind from that session.
    pub(crate) fn number(self, kind: Kind, session: u32) -> Option<u32> {
        let number = u32::try_from(self.0.addr() & 0xf_ffff).ok()?;
        (Self::new(kind, session, number) == self).then_some(number)
    }
}

/// Which partition of which GPU: of the index, with these ids, and which one of those that have had the ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) index: u32,
    pub(crate) gpu_instance: usize,
    pub(crate) compute_instance: usize,
    pub(crate) generation: u8,
}

impl Ids {
    const COMPUTE_INSTANCE: u32 = 4;
    const INDEX: u32 = 7;
    const GENERATION: u32 = 12;

    /// All of it in the number of a handle.
    pub(crate) fn number(self) -> u32 {
        let id = |id: usize| u32::try_from(id).unwrap_or_default();
        id(self.gpu_instance)
            | id(self.compute_instance) << Self::COMPUTE_INSTANCE
            | self.index << Self::INDEX
            | u32::from(self.generation) << Self::GENERATION
    }

    /// What [`Ids::number`] made the number of.
    pub(crate) fn from_number(number: u32) -> Self {
        Self {
            index: number >> Self::INDEX & 0x1f,
            gpu_instance: (number & 0xf) as usize,
            compute_instance: (number >> Self::COMPUTE_INSTANCE & 0x7) as usize,
            generation: (number >> Self::GENERATION).try_into().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_known_by_its_kind_and_session_only() {
        let handle = Handle::new(Kind::Gpu, 3, 7);
        assert_eq!(handle.number(Kind::Gpu, 3), Some(7));
        assert_eq!(handle.number(Kind::Gpu, 4), None);
        assert_eq!(handle.number(Kind::EventSet, 3), None);
    }

    #[test]
    fn an_instance_fits_into_a_handle() {
        let instance = Ids { index: 31, gpu_instance: 14, compute_instance: 7, generation: 255 };
        let handle = Handle::new(Kind::MigDevice, 1, instance.number());
        assert_eq!(Ids::from_number(handle.number(Kind::MigDevice, 1).unwrap()), instance);
    }

    #[test]
    fn what_was_not_given_out_is_no_handle() {
        for forged in [0, 1, 7, usize::MAX, 0x7f00_0000_1000] {
            let handle = Handle(std::ptr::without_provenance_mut(forged));
            for number in 0..3 {
                assert_eq!(handle.number(Kind::Gpu, number), None);
            }
        }
    }
}

//! What stands for a device or an event set in NVML's interface.
//!
//! To programs a handle is an opaque pointer. Here it is a number in a pointer's place that can't be an address, so that
//! whoever follows it fails at once. It has the number of the session in it: one from before the last shutdown is known
//! to be stale.

use std::ffi::c_void;

/// A device or an event set, as a C program holds it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(*mut c_void);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Gpu = 1,
    EventSet = 2,
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
    fn what_was_not_given_out_is_no_handle() {
        for forged in [0, 1, 7, usize::MAX, 0x7f00_0000_1000] {
            let handle = Handle(std::ptr::without_provenance_mut(forged));
            for number in 0..3 {
                assert_eq!(handle.number(Kind::Gpu, number), None);
            }
        }
    }
}

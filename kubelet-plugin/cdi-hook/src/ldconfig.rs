//! The host's `ldconfig`, taken along into the container.

use std::{
    fmt, io,
    io::Write,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    io::Errno,
};

/// A static `ldconfig`, or why each of the files looked at is none.
pub(crate) fn find(preferred: Option<&Path>) -> Result<Ldconfig, Vec<Unfit>> {
    let mut unfit = Vec::new();
    for path in candidates(preferred) {
        match std::fs::read(&path).map_err(Reason::Unreadable).and_then(static_elf) {
            Ok(program) => return Ok(Ldconfig { path, program }),
            Err(reason) => unfit.push(Unfit { path, reason }),
        }
    }
    Err(unfit)
}

pub(crate) struct Ldconfig {
    pub(crate) path: PathBuf,
    program: Vec<u8>,
}

pub(crate) struct Unfit {
    path: PathBuf,
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("{0}")]
    Unreadable(io::Error),
    #[error("not a program of this machine")]
    NotElf,
    #[error("not a static program")]
    Dynamic,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

/// Ubuntu's `ldconfig` is a script around `ldconfig.real`.
fn candidates(preferred: Option<&Path>) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for path in preferred.into_iter().chain([Path::new("/sbin/ldconfig"), Path::new("/usr/sbin/ldconfig")]) {
        let mut real = path.as_os_str().to_owned();
        real.push(".real");
        for path in [PathBuf::from(real), path.to_owned()] {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    paths
}

/// A script or a program with an interpreter would run a program of the container, with the rights of the host.
fn static_elf(program: Vec<u8>) -> Result<Vec<u8>, Reason> {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = program.get(at..at.checked_add(size)?)?;
        bytes.iter().rev().try_fold(0_usize, |sum, byte| Some(sum.checked_mul(256)? + usize::from(*byte)))
    };
    // 64 bit, little endian.
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return Err(Reason::NotElf);
    }
    let (table, size, count) =
        (number(0x20, 8).ok_or(Reason::NotElf)?, number(0x36, 2).ok_or(Reason::NotElf)?, number(0x38, 2));
    for index in 0..count.ok_or(Reason::NotElf)? {
        let header = index.checked_mul(size).and_then(|offset| offset.checked_add(table)).ok_or(Reason::NotElf)?;
        if number(header, 4).ok_or(Reason::NotElf)? == PT_INTERP as usize {
            return Err(Reason::Dynamic);
        }
    }
    Ok(program)
}

impl Ldconfig {
    /// A copy that nobody can change: what runs in the container's view is never a file of the host.
    pub(crate) fn sealed(&self) -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Linux before 6.3 doesn't know the flag, and needs none.
        let copy = match rustix::fs::memfd_create(c"ldconfig", flags | MemfdFlags::EXEC) {
            Err(Errno::INVAL) => rustix::fs::memfd_create(c"ldconfig", flags)?,
            result => result?,
        };
        let mut copy = std::fs::File::from(copy);
        copy.write_all(&self.program)?;
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        rustix::fs::fcntl_add_seals(&copy, seals)?;
        Ok(copy.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(segments: &[u8]) -> Vec<u8> {
        let mut program = vec![0; 64];
        program[..6].copy_from_slice(b"\x7fELF\x02\x01");
        program[0x20] = 64;
        program[0x36] = 56;
        program[0x38] = u8::try_from(segments.len()).unwrap();
        for segment in segments {
            program.push(*segment);
            program.resize(program.len() + 55, 0);
        }
        program
    }

    #[test]
    fn only_a_static_program_is_taken() {
        assert!(static_elf(elf(&[1, 1, 2, 4])).is_ok());
        assert!(matches!(static_elf(elf(&[6, 3, 1])), Err(Reason::Dynamic)));
        assert!(matches!(static_elf(b"#!/bin/sh\nexec ldconfig.real".to_vec()), Err(Reason::NotElf)));
        assert!(matches!(static_elf(Vec::new()), Err(Reason::NotElf)));
        let mut cut = elf(&[1, 1]);
        cut.truncate(100);
        assert!(matches!(static_elf(cut), Err(Reason::NotElf)));
        let mut far = elf(&[1]);
        far[0x20..0x28].fill(0xff);
        assert!(matches!(static_elf(far), Err(Reason::NotElf)));
    }

    #[test]
    fn ubuntus_real_one_comes_first() {
        let paths = candidates(Some(Path::new("/sbin/ldconfig")));
        let expected = ["/sbin/ldconfig.real", "/sbin/ldconfig", "/usr/sbin/ldconfig.real", "/usr/sbin/ldconfig"];
        assert_eq!(paths, expected.map(PathBuf::from));
        assert_eq!(candidates(Some(Path::new("/x")))[..2], ["/x.real", "/x"].map(PathBuf::from));
    }
}

//! Shared libraries with a name and nothing else in them.
//!
//! A driver has a dozen libraries beside NVML. Nothing calls them here, but tools read their names, and `ldconfig` makes
//! links and a cache from them; so they are real ELF files, which can even be loaded.

/// Sizes and numbers of the ELF format for 64-bit little-endian machines.
mod format {
    pub(super) const HEADER: u64 = 64;
    pub(super) const PROGRAM_HEADER: u64 = 56;
    pub(super) const SYMBOL: u64 = 24;
    pub(super) const SHARED_OBJECT: u16 = 3;
    pub(super) const LOAD: u32 = 1;
    pub(super) const DYNAMIC: u32 = 2;
    pub(super) const STACK: u32 = 0x6474_e551;
    pub(super) const READ_WRITE: u32 = 6;
    #[cfg(target_arch = "x86_64")]
    pub(super) const MACHINE: u16 = 62;
    #[cfg(target_arch = "aarch64")]
    pub(super) const MACHINE: u16 = 183;
}

/// An empty shared library of that name.
pub(crate) fn library(soname: &str) -> Vec<u8> {
    const PROGRAM_HEADERS: u64 = 3;
    let hash = format::HEADER + PROGRAM_HEADERS * format::PROGRAM_HEADER;
    // A hash table of one bucket and one symbol.
    let symbols = hash + 4 * 4 + 8;
    let dynamic = symbols + format::SYMBOL;
    let entries = |strings: u64, length: u64| {
        // DT_SONAME, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL
        [(14, 1), (4, hash), (5, strings), (6, symbols), (10, length), (11, format::SYMBOL), (0, 0)]
    };
    let dynamic_size = (entries(0, 0).len() * 16) as u64;
    let strings = dynamic + dynamic_size;
    let string_table = [b"\0", soname.as_bytes(), b"\0"].concat();
    let size = strings + string_table.len() as u64;

    let mut file = Bytes::default();
    file.raw(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.half(format::SHARED_OBJECT).half(format::MACHINE).word(1);
    file.long(0).long(format::HEADER).long(0).word(0);
    file.half(64).half(56).half(3).half(64).half(0).half(0);
    let mut segment = |kind: u32, start: u64, size: u64, align: u64| {
        file.word(kind).word(format::READ_WRITE).long(start).long(start).long(start).long(size).long(size).long(align);
    };
    segment(format::LOAD, 0, size, 0x1_0000);
    segment(format::DYNAMIC, dynamic, dynamic_size, 8);
    segment(format::STACK, 0, 0, 16);
    file.word(1).word(1).word(0).word(0).long(0);
    file.long(0).long(0).long(0);
    for (tag, value) in entries(strings, string_table.len() as u64) {
        file.long(tag).long(value);
    }
    file.raw(&string_table);
    file.0
}

/// Numbers one after the other, little-endian.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn half(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn word(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn long(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }
}

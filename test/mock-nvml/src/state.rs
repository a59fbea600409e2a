//! The state of a node's GPUs: one file that all processes of the node have mapped.
//!
//! The file has two slots. A writer fills the slot that isn't in use and then switches over by a single store of the
//! sequence number, whose lowest bit tells the slot: whoever dies in the middle leaves the old state in place. A checksum
//! that covers the sequence number tells a reader that it was overtaken, so readers need no lock and no right to write.
//! Writers take turns by `flock`. The sequence number is a futex that wakes whoever waits for a change.
//!
//! The file is never replaced while in use, because containers have it mounted: it changes in place and keeps its size.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

use crate::writable::writable;

/// How many GPUs a node can have.
pub const MAX_GPUS: usize = 32;

/// How many models of GPUs that can be partitioned a node can have.
pub const MAX_MIG_TABLES: usize = 8;

/// How many profiles a model can have.
pub const MAX_PROFILES: usize = 16;

/// GPU instances have ids below this: one for the whole GPU, two for halves, four for quarters, eight for eighths.
pub const MAX_GPU_INSTANCES: usize = 15;

/// Compute instances have ids below this.
pub const MAX_COMPUTE_INSTANCES: usize = 8;

/// How many processes can be on the GPUs of a node.
pub const MAX_PROCESSES: usize = 64;

/// How many events are remembered for those who wait.
pub const MAX_EVENTS: usize = 64;

/// How many faults of functions there can be at once.
pub const MAX_FAULTS: usize = 16;

/// No instance, no GPU in particular, no end.
pub const NONE: u32 = u32::MAX;

/// How many `NVSwitches` a node can have.
pub const MAX_SWITCHES: usize = 8;

/// The name of the state file, before the driver's version.
pub const FILE_PREFIX: &str = "libnvidia-mock.so.";

/// Defines a struct that has no padding, so that it is the same as its bytes.
macro_rules! plain {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*);
    };
}

/// A text of less than `N` bytes.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// Nothing if the text is too long, or has a zero byte in it.
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; N];
        bytes.get_mut(..text.len()).filter(|_| text.len() < N)?.copy_from_slice(text.as_bytes());
        (!text.contains('\0')).then_some(Self(bytes))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(N);
        str::from_utf8(&self.0[..end]).unwrap_or_default()
    }
}

impl<const N: usize> std::fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

plain! {
    /// A compute instance; its place is its id.
    pub struct ComputeInstance {
        /// Whether there is one.
        pub is_there: u8,
        /// How many compute slices it has.
        pub slices: u8,
        /// The first of them, within the GPU instance.
        pub start: u8,
        /// How many of this id there have been: handles of those before are stale.
        pub generation: u8,
    }
}

plain! {
    /// A GPU instance; its place is its id.
    pub struct GpuInstance {
        /// Whether there is one.
        pub is_there: u8,
        /// The place of its profile in the table.
        pub profile: u8,
        /// The memory unit at which it begins.
        pub start: u8,
        /// How many of this id there have been: handles of those before are stale.
        pub generation: u8,
        /// Its compute instances.
        pub compute_instances: [ComputeInstance; MAX_COMPUTE_INSTANCES],
    }
}

plain! {
    /// A kind of partition.
    pub struct Profile {
        /// NVML's number for programs to ask by.
        pub kind: u32,
        /// NVML's number for programs to create by.
        pub id: u32,
        /// How many compute slices each has.
        pub slices: u32,
        /// How many there can be.
        pub instances: u32,
        /// The memory of each in MiB.
        pub memory: u32,
        /// The multiprocessors of each.
        pub sms: u32,
        /// The engines of each: copy, decoder, encoder, JPEG, optical flow.
        pub engines: [u32; 5],
        /// How many memory units each takes.
        pub size: u32,
        /// The memory units at which one can begin, as bits.
        pub starts: u32,
        /// Its name.
        pub name: Text<32>,
    }
}

plain! {
    /// How GPUs of one model can be partitioned.
    pub struct MigTable {
        /// Whether the GPU must be reset for the MIG mode to change.
        pub mode_needs_reset: u32,
        /// How many memory units there are.
        pub memory_units: u32,
        /// How many of `profiles` there are.
        pub profile_count: u32,
        /// The profiles.
        pub profiles: [Profile; MAX_PROFILES],
    }
}

impl MigTable {
    /// The profiles.
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles[..MAX_PROFILES.min(self.profile_count as usize)]
    }

    /// How many partitions there can be at once.
    pub fn max_devices(&self) -> u32 {
        self.profiles().iter().map(|profile| profile.instances).max().unwrap_or_default()
    }
}

plain! {
    /// A process that uses a GPU. There is none if the pid is 0.
    pub struct Process {
        /// How much of the GPU's memory it has.
        pub memory: u64,
        /// The process.
        pub pid: u32,
        /// The place of the GPU.
        pub gpu: u32,
        /// The GPU instance, or `NONE`.
        pub gpu_instance: u32,
        /// The compute instance, or `NONE`.
        pub compute_instance: u32,
    }
}

plain! {
    /// Something that happened to a GPU.
    pub struct Event {
        /// What NVML says about it; for a critical error the XID.
        pub data: u64,
        /// NVML's type of event.
        pub types: u32,
        /// The place of the GPU.
        pub gpu: u32,
        /// The GPU instance, or `NONE`.
        pub gpu_instance: u32,
        /// The compute instance, or `NONE`.
        pub compute_instance: u32,
    }
}

plain! {
    /// What is wrong with a function. There is nothing wrong if `kind` is 0.
    pub struct Fault {
        /// The function's name.
        pub function: Text<64>,
        /// The place of the GPU for which it is wrong, or `NONE` for calls about any GPU, or about none.
        pub gpu: u32,
        /// How it is wrong: `FAILS`, `BLOCKS`, or `IS_SLOW`.
        pub kind: u32,
        /// The result, or the milliseconds.
        pub value: u32,
        /// How many calls it will be wrong for, or `NONE`.
        pub calls: u32,
    }
}

/// A function answers with an error.
pub const FAILS: u32 = 1;

/// A function doesn't return as long as this is so.
pub const BLOCKS: u32 = 2;

/// A function takes its time.
pub const IS_SLOW: u32 = 3;

plain! {
    /// A PCI address.
    pub struct Address {
        /// The domain.
        pub domain: u32,
        /// The bus.
        pub bus: u32,
        /// The device.
        pub device: u32,
        /// The function.
        pub function: u32,
    }
}

impl Address {
    /// No GPU's address.
    pub const NOWHERE: Self = Self { domain: 0, bus: 0, device: 0, function: 0 };
}

plain! {
    /// One GPU. Numbers for brands, architectures, modes and results are NVML's.
    pub struct Gpu {
        /// All memory in bytes; 0 if NVML has no figure.
        pub memory_total: u64,
        /// Memory that the driver and the firmware keep.
        pub memory_reserved: u64,
        /// The size of the window to the memory; 0 if NVML has no figure.
        pub bar1_total: u64,
        /// Memory errors of one bit.
        pub corrected_errors: u64,
        /// Memory errors of two bits.
        pub uncorrected_errors: u64,
        /// The PCI address.
        pub address: Address,
        /// The PCI address of the GPU that its bridge leads to; `NOWHERE` if it has none.
        pub bridge: Address,
        /// The number of the root complex's first bus, in the same domain.
        pub root_bus: u32,
        /// Device and vendor id as NVML puts them together.
        pub pci_id: u32,
        /// The subsystem's device and vendor id.
        pub pci_subsystem_id: u32,
        /// The number of the device node.
        pub minor: u32,
        /// The NUMA node; negative if the firmware doesn't say.
        pub numa_node: i32,
        /// The brand.
        pub brand: u32,
        /// The architecture.
        pub architecture: u32,
        /// The CUDA compute capability.
        pub compute_major: u32,
        /// The CUDA compute capability.
        pub compute_minor: u32,
        /// How many `NVLinks` there are.
        pub nv_links: u32,
        /// The number of its MIG table, from 1 on; 0 if the GPU can't be partitioned.
        pub mig_table: u32,
        /// Whether the GPU is in MIG mode.
        pub mig_mode: u32,
        /// Whether it will be after a reset.
        pub mig_mode_pending: u32,
        /// The compute mode.
        pub compute_mode: u32,
        /// The persistence mode.
        pub persistence_mode: u32,
        /// What every call about this GPU answers; 0 if the GPU is well.
        pub fault: u32,
        /// What the driver recommends to do about the GPU.
        pub recovery_action: u32,
        /// Remapped rows: for correctable errors, for uncorrectable ones, whether one is pending, whether one failed.
        pub remapped_rows: [u32; 4],
        /// The name.
        pub name: Text<96>,
        /// The UUID.
        pub uuid: Text<48>,
        /// The serial number.
        pub serial: Text<32>,
        /// The board's part number; empty if NVML has none.
        pub board_part_number: Text<80>,
        /// Its partitions.
        pub gpu_instances: [GpuInstance; MAX_GPU_INSTANCES],
    }
}

plain! {
    /// A node's GPUs and GPU driver.
    pub struct State {
        /// The CUDA version as NVML writes it: 13000 for 13.0.
        pub cuda_version: u32,
        /// How many of `gpus` there are.
        pub gpu_count: u32,
        /// What every call answers because the driver has gone; 0 while it is loaded.
        pub gone: u32,
        /// How many of `nv_switches` there are.
        pub nv_switch_count: u32,
        /// Whether the NVLink fabric has been set up, as NVML numbers it.
        pub fabric_state: u32,
        /// The GPUs' clique in the fabric.
        pub fabric_clique: u32,
        /// The fabric's UUID.
        pub fabric_cluster: [u8; 16],
        /// The `NVSwitches` that all `NVLinks` lead to which aren't a bridge's.
        pub nv_switches: [Address; MAX_SWITCHES],
        /// The node's name.
        pub node: Text<256>,
        /// The folder with the device nodes.
        pub dev: Text<256>,
        /// The driver's version.
        pub driver_version: Text<32>,
        /// NVML's version.
        pub nvml_version: Text<32>,
        /// The folder with the libraries, below the driver's root.
        pub library_dir: Text<128>,
        /// The GPUs in the order of their PCI addresses.
        pub gpus: [Gpu; MAX_GPUS],
        /// How the models of GPUs can be partitioned.
        pub mig_tables: [MigTable; MAX_MIG_TABLES],
        /// The processes on the GPUs.
        pub processes: [Process; MAX_PROCESSES],
        /// The last events; that of number n is at n modulo the size.
        pub events: [Event; MAX_EVENTS],
        /// How many events there have been.
        pub event_count: u64,
        /// What is wrong with functions.
        pub faults: [Fault; MAX_FAULTS],
    }
}

impl State {
    /// A state without GPUs.
    pub fn empty() -> Box<Self> {
        words_to_state(no_words())
    }

    /// The GPUs.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus[..MAX_GPUS.min(self.gpu_count as usize)]
    }

    /// The GPUs, to change them.
    pub fn gpus_mut(&mut self) -> &mut [Gpu] {
        &mut self.gpus[..MAX_GPUS.min(self.gpu_count as usize)]
    }

    /// The processes on the GPU of that place.
    pub fn processes(&self, gpu: usize) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |process| process.pid != 0 && process.gpu as usize == gpu)
    }

    /// The events from that number on, as far as they are remembered, with their numbers.
    pub fn events(&self, from: u64) -> impl Iterator<Item = (u64, &Event)> {
        let oldest = self.event_count.saturating_sub(MAX_EVENTS as u64);
        (from.max(oldest)..self.event_count).map(|number| (number, &self.events[event_place(number)]))
    }

    /// Tells everybody who waits for it that something happened.
    pub fn happen(&mut self, event: Event) {
        self.events[event_place(self.event_count)] = event;
        self.event_count += 1;
    }

    /// What is wrong with a function called for the GPU of that place, or for none.
    pub fn fault(&self, function: &str, gpu: Option<usize>) -> Option<(usize, &Fault)> {
        let is_for = |fault: &Fault| fault.gpu == NONE || gpu.is_some_and(|gpu| fault.gpu as usize == gpu);
        self.faults.iter().enumerate().find(|(_, fault)| {
            fault.kind != 0 && fault.calls > 0 && fault.function.as_str() == function && is_for(fault)
        })
    }

    /// How a GPU can be partitioned, if it can.
    pub fn mig_table(&self, gpu: &Gpu) -> Option<&MigTable> {
        self.mig_tables.get((gpu.mig_table as usize).checked_sub(1)?)
    }
}

fn event_place(number: u64) -> usize {
    usize::try_from(number).unwrap_or_default() % MAX_EVENTS
}

const WORDS: usize = size_of::<State>() / size_of::<u64>();
const _: () = assert!(size_of::<State>() == WORDS * size_of::<u64>() && align_of::<State>() == align_of::<u64>());

/// The state is large: it is kept off the stacks of the threads that programs call from.
fn words_to_state(words: Box<[u64; WORDS]>) -> Box<State> {
    // SAFETY: size and alignment are the same, and any bytes make a `State`.
    unsafe { Box::from_raw(Box::into_raw(words).cast()) }
}

fn no_words() -> Box<[u64; WORDS]> {
    let words = vec![0_u64; WORDS].into_boxed_slice();
    // SAFETY: the slice is as long as the array.
    unsafe { Box::from_raw(Box::into_raw(words).cast()) }
}

fn as_words(state: &State) -> &[u64; WORDS] {
    // SAFETY: size and alignment are the same, and `plain!` sees to it that no byte is padding.
    unsafe { &*ptr::from_ref(state).cast() }
}

/// Changes whenever the layout of the file does.
const FORMAT: u32 = 2;
const MAGIC: u64 = u64::from_le_bytes(*b"aliqmock");

#[repr(C)]
struct Header {
    magic: AtomicU64,
    format: AtomicU32,
    /// Counts the changes; its lowest bit tells the slot that is in use.
    sequence: AtomicU32,
}

#[repr(C)]
struct Slot {
    checksum: AtomicU64,
    words: [AtomicU64; WORDS],
}

#[repr(C)]
struct Contents {
    header: Header,
    slots: [Slot; 2],
}

/// The size of a state file.
pub const FILE_SIZE: usize = size_of::<Contents>();

/// FNV-1a by words, begun with the sequence number.
fn checksum(sequence: u32, words: &[u64; WORDS]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ u64::from(sequence);
    words.iter().fold(start, |hash, word| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29))
}

impl Contents {
    /// The slot in use while the sequence number is `sequence`.
    fn slot(&self, sequence: u32) -> &Slot {
        &self.slots[(sequence & 1) as usize]
    }

    fn read(&self) -> Result<(u32, Box<State>), Error> {
        if self.header.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(Error::Damaged);
        }
        if self.header.format.load(Ordering::Relaxed) != FORMAT {
            return Err(Error::Format);
        }
        let mut words = no_words();
        loop {
            let sequence = self.header.sequence.load(Ordering::Acquire);
            let slot = self.slot(sequence);
            for (word, shared) in words.iter_mut().zip(&slot.words) {
                *word = shared.load(Ordering::Relaxed);
            }
            let expected = slot.checksum.load(Ordering::Relaxed);
            if checksum(sequence, &words) == expected {
                return Ok((sequence, words_to_state(words)));
            }
            fence(Ordering::Acquire);
            if self.header.sequence.load(Ordering::Relaxed) == sequence {
                return Err(Error::Damaged);
            }
        }
    }

    /// Fills the slot that isn't in use, and switches over.
    fn write(&self, state: &State) {
        let next = self.header.sequence.load(Ordering::Relaxed).wrapping_add(1);
        let slot = self.slot(next);
        let words = as_words(state);
        // Whoever sees one of these words also sees that its slot is out of use.
        fence(Ordering::Release);
        for (word, shared) in words.iter().zip(&slot.words) {
            shared.store(*word, Ordering::Relaxed);
        }
        slot.checksum.store(checksum(next, words), Ordering::Relaxed);
        self.header.sequence.store(next, Ordering::Release);
    }
}

/// Why a state file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It can't be opened or mapped.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It doesn't have the size of a state file.
    #[error("is {0} bytes long instead of {FILE_SIZE}: not a state file of this version")]
    Size(u64),
    /// It is of another version.
    #[error("has the format of another version")]
    Format,
    /// Its contents aren't what was written.
    #[error("is damaged")]
    Damaged,
}

/// A mapped state file.
struct Mapping {
    start: ptr::NonNull<Contents>,
}

// SAFETY: all access goes through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &File, protection: ProtFlags) -> Result<Self, Error> {
        let size = file.metadata()?.len();
        if size != FILE_SIZE as u64 {
            return Err(Error::Size(size));
        }
        // SAFETY: a new mapping touches no memory that exists.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), FILE_SIZE, protection, MapFlags::SHARED, file, 0) };
        let start = ptr::NonNull::new(start.map_err(io::Error::from)?.cast()).ok_or(Error::Damaged)?;
        Ok(Self { start })
    }

    fn contents(&self) -> &Contents {
        // SAFETY: the mapping is as large as `Contents`, aligned to a page, lives as long as `self`, and consists of
        // atomics, for which any bytes are valid. Nobody shortens a state file.
        unsafe { self.start.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), FILE_SIZE) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A state file, to read it.
pub struct Reader(Mapping);

impl Reader {
    /// Opens a state file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self(Mapping::new(&File::open(path)?, ProtFlags::READ)?))
    }

    /// The state, and the sequence number that belongs to it.
    pub fn read(&self) -> Result<(u32, Box<State>), Error> {
        self.0.contents().read()
    }

    /// Other than that of the last [`Reader::read`] if the state has changed since.
    pub fn sequence(&self) -> u32 {
        self.0.contents().header.sequence.load(Ordering::Acquire)
    }

    /// Waits until the sequence number isn't `sequence` any more, the time is over, or for no reason.
    pub fn wait(&self, sequence: u32, timeout: Duration) {
        let word = &self.0.contents().header.sequence;
        if let Ok(timeout) = timeout.try_into() {
            // Whatever the answer is, the caller looks again.
            let _ = futex::wait(word, futex::Flags::empty(), sequence, Some(&timeout));
        }
    }
}

/// A state file, to change it. There is one writer at a time; others wait.
pub struct Writer {
    mapping: Mapping,
    /// Holds the lock.
    _file: File,
}

impl Writer {
    /// Opens a state file and waits until no one else writes.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        let file = match open(path) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => open(&writable(path)?.1)?,
            result => result?,
        };
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(io::Error::from)?;
        Ok(Self { mapping: Mapping::new(&file, ProtFlags::READ | ProtFlags::WRITE)?, _file: file })
    }

    /// The state.
    pub fn read(&self) -> Result<Box<State>, Error> {
        Ok(self.mapping.contents().read()?.1)
    }

    /// Changes the state.
    pub fn update<T>(&mut self, change: impl FnOnce(&mut State) -> T) -> Result<T, Error> {
        let (_, mut state) = self.mapping.contents().read()?;
        let result = change(&mut state);
        self.put(&state);
        Ok(result)
    }

    /// Puts this state in place, whatever was there. Readers see no change if there is none.
    pub fn replace(&mut self, state: &State) {
        let contents = self.mapping.contents();
        if contents.read().is_ok_and(|(_, old)| *old == *state) {
            return;
        }
        self.put(state);
        contents.header.format.store(FORMAT, Ordering::Relaxed);
        contents.header.magic.store(MAGIC, Ordering::Release);
    }

    /// Puts this state in place of another.
    pub fn put(&self, state: &State) {
        let contents = self.mapping.contents();
        contents.write(state);
        // A shared futex in a mapped file: nothing to do if nobody waits.
        let _ = futex::wake(&contents.header.sequence, futex::Flags::empty(), u32::MAX >> 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(state: &State) -> (tempfile::NamedTempFile, Writer) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(FILE_SIZE as u64).unwrap();
        let mut writer = Writer::open(file.path()).unwrap();
        writer.replace(state);
        (file, writer)
    }

    /// A state of which every word is the number.
    fn all(number: u64) -> Box<State> {
        let mut words = no_words();
        words.fill(number);
        words_to_state(words)
    }

    #[test]
    fn a_writer_killed_in_the_middle_leaves_the_old_state() {
        let (file, writer) = file(&all(1));
        let contents = writer.mapping.contents();
        let sequence = contents.header.sequence.load(Ordering::Relaxed);
        for word in &contents.slot(sequence.wrapping_add(1)).words[..WORDS / 2] {
            word.store(2, Ordering::Relaxed);
        }
        drop(writer);
        assert_eq!(*Reader::open(file.path()).unwrap().read().unwrap().1, *all(1));
        Writer::open(file.path()).unwrap().update(|state| *state = *all(3)).unwrap();
        assert_eq!(*Reader::open(file.path()).unwrap().read().unwrap().1, *all(3));
    }

    #[test]
    fn damage_is_noticed() {
        let (file, writer) = file(&all(1));
        let reader = Reader::open(file.path()).unwrap();
        let contents = writer.mapping.contents();
        let slot = contents.slot(contents.header.sequence.load(Ordering::Relaxed));
        slot.words[WORDS / 2].store(2, Ordering::Relaxed);
        assert!(matches!(reader.read(), Err(Error::Damaged)));
        contents.header.format.store(FORMAT + 1, Ordering::Relaxed);
        assert!(matches!(reader.read(), Err(Error::Format)));
        contents.header.magic.store(0, Ordering::Relaxed);
        assert!(matches!(reader.read(), Err(Error::Damaged)));
        file.as_file().set_len(FILE_SIZE as u64 - 1).unwrap();
        assert!(matches!(Reader::open(file.path()), Err(Error::Size(_))));
    }

    #[test]
    fn what_is_damaged_can_be_replaced() {
        let (file, mut writer) = file(&all(1));
        writer.mapping.contents().header.magic.store(0, Ordering::Relaxed);
        writer.replace(&all(2));
        assert_eq!(*Reader::open(file.path()).unwrap().read().unwrap().1, *all(2));
    }

    #[test]
    fn readers_never_see_half_a_change() {
        const CHANGES: u64 = 2_000;
        let (file, mut writer) = file(&all(0));
        std::thread::scope(|scope| {
            let path = file.path();
            let readers = [(); 2].map(|()| {
                scope.spawn(move || {
                    let reader = Reader::open(path).unwrap();
                    let mut last = 0;
                    while last < CHANGES {
                        let (_, state) = reader.read().unwrap();
                        let [first, rest @ ..] = as_words(&state);
                        assert!(rest.iter().all(|word| word == first));
                        assert!(*first >= last);
                        last = *first;
                    }
                })
            });
            for number in 1..=CHANGES {
                writer.update(|state| *state = *all(number)).unwrap();
            }
            for reader in readers {
                reader.join().unwrap();
            }
        });
    }

    #[test]
    fn a_text_has_an_end_and_no_zero_byte_before_it() {
        assert_eq!(Text::<4>::new("abc").unwrap().as_str(), "abc");
        assert_eq!(Text::<4>::new("").unwrap().as_str(), "");
        assert!(Text::<4>::new("abcd").is_none());
        assert!(Text::<4>::new("abcde").is_none());
        assert!(Text::<4>::new("a\0b").is_none());
    }
}

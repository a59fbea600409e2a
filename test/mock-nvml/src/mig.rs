//! Partitions of a GPU: what fits beside what.
//!
//! A GPU instance needs a place among the memory units, compute slices, engines of each kind, and one of the instances that
//! its profile allows. What a GPU has of each is what its largest profile has.

use crate::state::{ComputeInstance, Gpu, GpuInstance, MigTable, Profile};

/// There is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

impl Profile {
    /// The memory units at which one can begin, in order.
    pub fn starts(&self) -> impl Iterator<Item = u32> {
        (0..u32::BITS).filter(|start| self.starts & 1 << start != 0)
    }

    /// What one takes of everything that isn't memory.
    fn needs(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.slices).chain(self.engines)
    }

    /// The memory units of one that begins there, as bits.
    fn units(&self, start: u32) -> u64 {
        ((1 << self.size) - 1) << start
    }
}

impl Gpu {
    /// The GPU instances that are there, with their ids and profiles.
    pub fn instances<'a>(&'a self, table: &'a MigTable) -> impl Iterator<Item = (usize, &'a GpuInstance, &'a Profile)> {
        let there = self.gpu_instances.iter().enumerate().filter(|(_, instance)| instance.is_there != 0);
        there.filter_map(|(id, instance)| Some((id, instance, table.profiles().get(instance.profile as usize)?)))
    }

    /// Where instances of a profile could begin if nothing but memory mattered.
    fn free_starts(&self, table: &MigTable, profile: &Profile) -> Vec<u32> {
        let taken = self.instances(table).fold(0, |taken, (_, there, of)| taken | of.units(there.start.into()));
        profile.starts().filter(|start| profile.units(*start) & taken == 0).collect()
    }

    /// How many more instances of a profile there can be, memory aside.
    fn spare(&self, table: &MigTable, profile: &Profile) -> u32 {
        let of_profile = self.instances(table).filter(|(_, _, of)| of.id == profile.id).count();
        let instances = profile.instances.saturating_sub(u32::try_from(of_profile).unwrap_or(u32::MAX));
        let by_need = profile.needs().enumerate().filter(|(_, need)| *need > 0).map(|(kind, need)| {
            let of = |profile: &Profile| profile.needs().nth(kind).unwrap_or_default();
            let all = table.profiles().iter().map(of).max().unwrap_or_default();
            let taken = self.instances(table).map(|(_, _, profile)| of(profile)).sum();
            all.saturating_sub(taken) / need
        });
        by_need.min().unwrap_or_default().min(instances)
    }

    /// How many more instances of a profile there can be.
    pub fn remaining(&self, table: &MigTable, profile: &Profile) -> u32 {
        // Places of one profile never overlap.
        let places = u32::try_from(self.free_starts(table, profile).len()).unwrap_or(u32::MAX);
        self.spare(table, profile).min(places)
    }

    /// Makes a GPU instance of the profile at that place in the table. The driver chooses where, unless told. Answers the id.
    pub fn create_instance(&mut self, table: &MigTable, place: usize, start: Option<u32>) -> Result<usize, NoRoom> {
        let profile = table.profiles().get(place).ok_or(NoRoom)?;
        let mut starts = self.free_starts(table, profile);
        starts.sort_by_key(|start| (std::cmp::Reverse(profile.rank(*start, table.memory_units)), *start));
        let start = match start {
            Some(start) => starts.contains(&start).then_some(start),
            None => starts.first().copied(),
        };
        let start = start.filter(|_| self.spare(table, profile) > 0).ok_or(NoRoom)?;
        let is_free = |id: &&usize| self.gpu_instances.get(**id).is_some_and(|there| there.is_there == 0);
        let id = *ids(table.memory_units / profile.size).iter().find(is_free).ok_or(NoRoom)?;
        let instance = &mut self.gpu_instances[id];
        *instance = GpuInstance {
            is_there: 1,
            profile: small(place),
            start: small(start),
            generation: instance.generation.wrapping_add(1),
            compute_instances: instance.compute_instances,
        };
        Ok(id)
    }
}

fn small(number: impl TryInto<u8>) -> u8 {
    number.try_into().unwrap_or(u8::MAX)
}

/// The ids of instances that take one of `parts` equal parts of the GPU, in the order in which the driver gives them out. On
/// purpose that isn't the order of their places, as on real GPUs.
fn ids(parts: u32) -> &'static [usize] {
    match parts {
        1 => &[0],
        2 => &[2, 1],
        4 => &[5, 3, 4, 6],
        _ => &[13, 11, 12, 7, 8, 9, 10, 14],
    }
}

impl Profile {
    /// The driver fills a GPU from the end, by halves: whatever begins in the second half comes before the first half, and in
    /// the first half what begins first. So eighths come in the order 6, 4, 5, 0, 1, 2, 3.
    fn rank(&self, start: u32, memory_units: u32) -> u32 {
        let bits = (memory_units / self.size).ilog2();
        if bits == 0 { 0 } else { ((start / self.size) << (u32::BITS - bits)).leading_ones() }
    }
}

/// NVML's kinds of compute instances, in the order of their numbers: how many slices each has, and its id.
pub const COMPUTE_PROFILES: [(u32, u32); 8] = [(1, 0), (2, 1), (3, 2), (4, 3), (7, 4), (8, 5), (6, 6), (1, 0)];

/// The slices at which compute instances of `slices` can begin in a GPU instance of `of`.
pub fn compute_starts(of: u32, slices: u32) -> Vec<u32> {
    match (of, slices) {
        (_, 1) => (0..of).collect(),
        (7, 2) => vec![0, 2, 4],
        (4, 2) => vec![0, 2],
        (7, 3) => vec![0, 4],
        (2 | 3, 2) | (3, 3) | (4 | 7, 4) | (7, 7) => vec![0],
        _ => Vec::new(),
    }
}

impl Profile {
    /// The multiprocessors of a compute instance. Not confirmed where it isn't all of a GPU instance, except for the A100.
    pub fn compute_sms(&self, slices: u32) -> u32 {
        if slices == self.slices { self.sms } else { self.sms * slices / self.slices / 2 * 2 }
    }
}

impl GpuInstance {
    /// The compute instances that are there, with their ids.
    pub fn compute_instances(&self) -> impl Iterator<Item = (usize, &ComputeInstance)> {
        let all = self.compute_instances.iter().enumerate();
        all.filter(|(_, instance)| self.is_there != 0 && instance.is_there != 0)
    }

    /// Where compute instances of `slices` can begin now.
    pub fn free_compute_starts(&self, profile: &Profile, slices: u32) -> Vec<u32> {
        let units = |start: u32, slices: u32| ((1 << slices) - 1) << start;
        let taken = self.compute_instances().fold(0, |taken, (_, there)| {
            let taken: u64 = taken;
            taken | units(there.start.into(), there.slices.into())
        });
        let mut starts = compute_starts(profile.slices, slices);
        starts.retain(|start| units(*start, slices) & taken == 0);
        starts
    }

    /// Makes a compute instance. Answers the id.
    pub fn create_compute_instance(
        &mut self,
        profile: &Profile,
        slices: u32,
        start: Option<u32>,
    ) -> Result<usize, NoRoom> {
        let starts = self.free_compute_starts(profile, slices);
        let start = start.map_or(starts.first().copied(), |start| starts.contains(&start).then_some(start));
        let start = start.ok_or(NoRoom)?;
        let id = self.compute_instances.iter().position(|there| there.is_there == 0).ok_or(NoRoom)?;
        let instance = &mut self.compute_instances[id];
        let generation = instance.generation.wrapping_add(1);
        *instance = ComputeInstance { is_there: 1, slices: small(slices), start: small(start), generation };
        Ok(id)
    }
}

/// The UUID of a MIG device: always the same for the same instances of the same GPU.
pub fn uuid(gpu: &str, gpu_instance: usize, compute_instance: usize) -> String {
    let text = format!("{gpu}/{gpu_instance}/{compute_instance}");
    let half = |seed: u64| {
        let hash = text.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ hash >> 31
    };
    // Version 5 of RFC 9562, as real ones.
    let high = half(0xcbf2_9ce4_8422_2325) & !0xf000 | 0x5000;
    let low = half(0x6c62_272e_07bb_0142) & !(0b11 << 62) | 0b10 << 62;
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
    format!("MIG-{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{State, Text};

    fn profile(name: &str, id: u32, instances: u32, slices: u32, size: u32, starts: &[u32]) -> Profile {
        Profile {
            kind: id,
            id,
            slices,
            instances,
            memory: 0,
            sms: 14 * slices,
            engines: [slices, 0, 0, 0, 0],
            size,
            starts: starts.iter().fold(0, |bits, start| bits | 1 << start),
            name: Text::new(name).unwrap(),
        }
    }

    /// An A100's profiles: 1g, 2g, 3g, 7g.
    fn a100() -> (MigTable, Gpu) {
        let state = State::empty();
        let mut table = state.mig_tables[0];
        (table.memory_units, table.profile_count) = (8, 4);
        table.profiles[0] = profile("1g", 19, 7, 1, 1, &[0, 1, 2, 3, 4, 5, 6]);
        table.profiles[1] = profile("2g", 14, 3, 2, 2, &[0, 2, 4]);
        table.profiles[2] = profile("3g", 9, 2, 3, 4, &[0, 4]);
        table.profiles[3] = profile("7g", 0, 1, 7, 8, &[0]);
        (table, state.gpus[0])
    }

    #[test]
    fn the_order_decides_what_fits_where_the_driver_chooses() {
        let fits = |order: &[usize]| {
            let (table, mut gpu) = a100();
            order.iter().all(|place| gpu.create_instance(&table, *place, None).is_ok())
        };
        assert!(!fits(&[0, 0, 1, 2]));
        assert!(fits(&[2, 0, 1, 0]));
    }

    #[test]
    fn eighths_come_in_an_order_of_their_own() {
        let (table, mut gpu) = a100();
        let made = (0..7).map(|_| gpu.create_instance(&table, 0, None).unwrap()).collect::<Vec<_>>();
        assert_eq!(made, [13, 11, 12, 7, 8, 9, 10]);
        assert_eq!(made.iter().map(|id| gpu.gpu_instances[*id].start).collect::<Vec<_>>(), [6, 4, 5, 0, 1, 2, 3]);
        assert_eq!(gpu.create_instance(&table, 0, None), Err(NoRoom));
    }

    #[test]
    fn compute_slices_and_memory_are_separate_limits() {
        let (table, mut gpu) = a100();
        let remaining = |gpu: &Gpu| table.profiles().iter().map(|of| gpu.remaining(&table, of)).collect::<Vec<_>>();
        assert_eq!(remaining(&gpu), [7, 3, 2, 1]);
        gpu.create_instance(&table, 2, Some(4)).unwrap();
        assert_eq!(remaining(&gpu), [4, 2, 1, 0]);
        gpu.create_instance(&table, 2, Some(0)).unwrap();
        // A compute slice is left, but no memory.
        assert_eq!(remaining(&gpu), [0, 0, 0, 0]);
    }

    #[test]
    fn an_id_is_of_the_size_and_used_again() {
        let (table, mut gpu) = a100();
        let first = gpu.create_instance(&table, 2, Some(0)).unwrap();
        let second = gpu.create_instance(&table, 2, Some(4)).unwrap();
        assert_eq!((first, second), (2, 1));
        let generation = gpu.gpu_instances[first].generation;
        gpu.gpu_instances[first].is_there = 0;
        assert_eq!(gpu.create_instance(&table, 2, None), Ok(first));
        assert_ne!(gpu.gpu_instances[first].generation, generation);
    }

    #[test]
    fn compute_instances_take_slices() {
        let (table, mut gpu) = a100();
        let whole = table.profiles[3];
        let id = gpu.create_instance(&table, 3, None).unwrap();
        let instance = &mut gpu.gpu_instances[id];
        assert_eq!(instance.create_compute_instance(&whole, 2, Some(2)), Ok(0));
        assert_eq!(instance.free_compute_starts(&whole, 3), [4]);
        assert_eq!(instance.create_compute_instance(&whole, 3, None), Ok(1));
        assert_eq!(instance.create_compute_instance(&whole, 7, None), Err(NoRoom));
        assert_eq!(instance.free_compute_starts(&whole, 1), [0, 1]);
        assert_eq!(whole.compute_sms(3), 42);
    }

    #[test]
    fn uuids_differ() {
        assert_eq!(uuid("GPU-1", 1, 0), uuid("GPU-1", 1, 0));
        assert_ne!(uuid("GPU-1", 1, 0), uuid("GPU-1", 0, 1));
        assert_ne!(uuid("GPU-1", 1, 0), uuid("GPU-2", 1, 0));
        assert_eq!(uuid("GPU-1", 1, 0).len(), 40);
    }
}

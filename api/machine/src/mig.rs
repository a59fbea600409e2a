//! How a GPU can be partitioned, and how it is at boot.

use serde::Deserialize;

use crate::MemorySize;

/// How GPUs of a model can be partitioned.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mig {
    /// Whether the GPU must be reset for the MIG mode to change.
    #[serde(default)]
    pub mode_needs_reset: bool,
    /// How many units of memory there are for partitions to have. Placements count in these.
    pub memory_units: u32,
    /// The kinds of partitions.
    pub profiles: Vec<Profile>,
}

impl Mig {
    /// How many partitions there can be at once.
    pub fn max_devices(&self) -> u32 {
        self.profiles.iter().map(|profile| profile.instances).max().unwrap_or_default()
    }

    /// The profile of that name.
    pub fn profile(&self, name: &str) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.name == name)
    }
}

/// A kind of partition: what `nvidia-smi mig -lgip` prints.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Profile {
    /// Its name, such as `1g.10gb`.
    pub name: String,
    /// Which one of NVML's kinds it is. Programs ask for a profile by this.
    pub kind: ProfileKind,
    /// Its number. Programs create partitions by this.
    pub id: u32,
    /// How many there can be at once.
    pub instances: u32,
    /// The memory of each.
    pub memory: MemorySize,
    /// The streaming multiprocessors of each.
    pub sms: u32,
    /// The copy engines of each.
    pub copy: u32,
    /// The video decoders of each.
    #[serde(default)]
    pub decode: u32,
    /// The video encoders of each.
    #[serde(default)]
    pub encode: u32,
    /// The JPEG engines of each.
    #[serde(default)]
    pub jpeg: u32,
    /// The optical flow accelerators of each.
    #[serde(default)]
    pub ofa: u32,
    /// How many memory units each takes.
    pub size: u32,
    /// The memory units at which one can begin.
    pub starts: Vec<u32>,
}

/// A kind of partition as NVML's header names it, without `NVML_GPU_INSTANCE_PROFILE_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[expect(missing_docs, reason = "NVML's own terms")]
pub enum ProfileKind {
    #[serde(rename = "1_SLICE")]
    Slice1 = 0,
    #[serde(rename = "2_SLICE")]
    Slice2 = 1,
    #[serde(rename = "3_SLICE")]
    Slice3 = 2,
    #[serde(rename = "4_SLICE")]
    Slice4 = 3,
    #[serde(rename = "7_SLICE")]
    Slice7 = 4,
    #[serde(rename = "1_SLICE_REV1")]
    Slice1Rev1 = 7,
    #[serde(rename = "2_SLICE_REV1")]
    Slice2Rev1 = 8,
    #[serde(rename = "1_SLICE_REV2")]
    Slice1Rev2 = 9,
    #[serde(rename = "1_SLICE_GFX")]
    Slice1Gfx = 10,
    #[serde(rename = "2_SLICE_GFX")]
    Slice2Gfx = 11,
    #[serde(rename = "4_SLICE_GFX")]
    Slice4Gfx = 12,
    #[serde(rename = "1_SLICE_NO_ME")]
    Slice1NoMe = 13,
    #[serde(rename = "2_SLICE_NO_ME")]
    Slice2NoMe = 14,
    #[serde(rename = "1_SLICE_ALL_ME")]
    Slice1AllMe = 15,
    #[serde(rename = "2_SLICE_ALL_ME")]
    Slice2AllMe = 16,
}

impl ProfileKind {
    /// As NVML numbers them.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// How many compute slices such a partition has.
    pub fn slices(self) -> u32 {
        match self {
            Self::Slice1
            | Self::Slice1Rev1
            | Self::Slice1Rev2
            | Self::Slice1Gfx
            | Self::Slice1NoMe
            | Self::Slice1AllMe => 1,
            Self::Slice2 | Self::Slice2Rev1 | Self::Slice2Gfx | Self::Slice2NoMe | Self::Slice2AllMe => 2,
            Self::Slice3 => 3,
            Self::Slice4 | Self::Slice4Gfx => 4,
            Self::Slice7 => 7,
        }
    }
}

/// A GPU in MIG mode.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Partitions {
    /// The partitions that are there at boot, in the order in which they are made.
    #[serde(default)]
    pub devices: Vec<Partition>,
}

/// A partition with one compute instance that has all of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Partition {
    /// The name of its profile.
    pub profile: String,
    /// The memory unit at which it begins.
    pub start: u32,
}

impl Mig {
    /// What is wrong with the table, each with the path of the field below the model's `mig`.
    pub(crate) fn problems(&self) -> impl Iterator<Item = (String, String)> {
        self.profiles.iter().enumerate().flat_map(|(index, profile)| {
            let at = move |field: &str, what: String| (format!("profiles[{index}].{field}"), what);
            let fits = |start: &u32| start.checked_add(profile.size).is_some_and(|end| end <= self.memory_units);
            let outside = profile.starts.iter().find(|start| !fits(start)).map(|start| {
                let (size, units) = (profile.size, self.memory_units);
                at("starts", format!("{size} from {start} on are not within the {units} memory units"))
            });
            let before = &self.profiles[..index];
            let kind = before.iter().find(|other| other.kind == profile.kind);
            let kind = kind.map(|other| at("kind", format!("is already that of {}", other.name)));
            let id = before.iter().find(|other| other.id == profile.id);
            let id = id.map(|other| at("id", format!("{} is already that of {}", profile.id, other.name)));
            let size = (profile.size == 0).then(|| at("size", "is 0".to_owned()));
            [size, outside, kind, id].into_iter().flatten()
        })
    }
}

impl Partitions {
    /// What is wrong with the partitions of a GPU of that model, each with the path of the field below the GPU's `mig`.
    pub(crate) fn problems(&self, mig: &Mig) -> impl Iterator<Item = (String, String)> {
        self.devices.iter().enumerate().filter_map(|(index, partition)| {
            let at = |field: &str, what: String| Some((format!("devices[{index}].{field}"), what));
            let Some(profile) = mig.profile(&partition.profile) else {
                let known = mig.profiles.iter().map(|profile| profile.name.as_str()).collect::<Vec<_>>().join(", ");
                return at("profile", format!("no profile is called {:?}; there are: {known}", partition.profile));
            };
            if profile.starts.contains(&partition.start) {
                return None;
            }
            let (name, start) = (&profile.name, partition.start);
            let starts = profile.starts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            at("start", format!("no {name} begins at {start}; one begins at: {starts}"))
        })
    }
}

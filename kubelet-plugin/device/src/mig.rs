//! What a MIG device is called. NVML gives numbers; the name that people use is made of them by the driver's tools, and so here.

/// A GPU instance profile's number in NVML's enumeration, which isn't its id.
pub type ProfileNumber = u32;

/// How many profile numbers there are to ask for.
pub const PROFILE_NUMBERS: ProfileNumber = 18;

/// What sets profiles of one size apart, by their number in NVML's enumeration.
fn attribute(profile: ProfileNumber) -> &'static str {
    match profile {
        // With media extensions: REV1.
        7 | 8 => "+me",
        // With graphics.
        10..=12 | 17 => "+gfx",
        // Without media extensions.
        13 | 14 => "-me",
        // With all media extensions of the GPU.
        15 | 16 => "+me.all",
        _ => "",
    }
}

/// The name of a MIG device's profile: `1g.10gb`, `1c.3g.40gb`, `1g.10gb+me`.
///
/// `memory_mib` is the GPU instance's, `total` the GPU's in bytes. The gigabytes are the instance's share in eighths of the
/// GPU's, rounded up, of the GPU's memory in GiB, rounded up.
pub fn profile_name(compute: u32, slices: u32, memory_mib: u64, total: u64, profile: ProfileNumber) -> String {
    let eighths = ((memory_mib << 20) * 8).div_ceil(total.max(1));
    let gigabytes = (eighths * total.div_ceil(1 << 30) + 4) / 8;
    let part = if compute == slices { String::new() } else { format!("{compute}c.") };
    format!("{part}{slices}g.{gigabytes}gb{}", attribute(profile))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_drivers_tools_print() {
        let (h100, a30, rtx, a100) = (81559_u64 << 20, 24576 << 20, 97887 << 20, 40960 << 20);
        let cases = [
            (1, 1, 9984, h100, 0, "1g.10gb"),
            (1, 1, 9984, h100, 7, "1g.10gb+me"),
            (1, 1, 20096, h100, 9, "1g.20gb"),
            (2, 2, 20096, h100, 1, "2g.20gb"),
            (3, 3, 40448, h100, 2, "3g.40gb"),
            (1, 3, 40448, h100, 2, "1c.3g.40gb"),
            (4, 4, 40448, h100, 3, "4g.40gb"),
            (7, 7, 81152, h100, 4, "7g.80gb"),
            (1, 1, 5952, a30, 0, "1g.6gb"),
            (2, 2, 11968, a30, 8, "2g.12gb+me"),
            (4, 4, 24000, a30, 3, "4g.24gb"),
            (1, 1, 24192, rtx, 15, "1g.24gb+me.all"),
            (2, 2, 48512, rtx, 14, "2g.48gb-me"),
            (4, 4, 97408, rtx, 12, "4g.96gb+gfx"),
            (1, 1, 4864, a100, 0, "1g.5gb"),
            (7, 7, 40192, a100, 4, "7g.40gb"),
        ];
        for (compute, slices, memory, total, profile, name) in cases {
            assert_eq!(profile_name(compute, slices, memory, total, profile), name);
        }
    }
}

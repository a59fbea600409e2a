//! Which GPUs reach each other over NVLink.

use std::collections::BTreeMap;

use crate::observation::{Fabric, Gpu, LinkEnd, NvLink};

/// What GPUs have in common that reach each other, by number; who reaches nobody has none.
///
/// A fabric of several machines has a UUID. Otherwise it is the UUID of the lowest-numbered GPU of them that answers: nothing else
/// on a machine is unique in the world for sure. While that one doesn't answer, the others' name is another one, which is published
/// together with its absence.
pub(crate) fn domains(gpus: &BTreeMap<u32, Gpu>) -> BTreeMap<u32, String> {
    let groups = groups(gpus);
    let domain = |(number, gpu): (&u32, &Gpu)| {
        let links = gpu.nvlink.as_ref().ok()?;
        let domain = match cluster(links) {
            Some((uuid, _)) => uuid,
            None if is_switched(links) || peers(links).next().is_some() => {
                gpus.get(groups.get(number)?)?.uuid.to_string()
            }
            None => return None,
        };
        Some((*number, domain))
    };
    gpus.iter().filter_map(domain).collect()
}

/// The UUID of a fabric of several machines and the GPU's clique in it, as NVIDIA labels nodes.
pub(crate) fn clique(links: &NvLink) -> Option<String> {
    cluster(links).map(|(uuid, clique)| format!("{uuid}.{clique}"))
}

/// Whether a GPU's links lead to switches, if it has any.
pub(crate) fn has_switch(links: &NvLink) -> Option<bool> {
    (!links.ends.is_empty()).then(|| links.ends.contains(&LinkEnd::Switch))
}

fn peers(links: &NvLink) -> impl Iterator<Item = &LinkEnd> {
    links.ends.iter().filter(|end| matches!(end, LinkEnd::Gpu(_)))
}

/// Whether a GPU reaches others through switches.
fn is_switched(links: &NvLink) -> bool {
    links.ends.contains(&LinkEnd::Switch) && links.fabric != Some(Fabric::NotJoined)
}

/// The fabric of several machines that a GPU is part of: UUID and clique.
fn cluster(links: &NvLink) -> Option<(String, u32)> {
    match links.fabric {
        Some(Fabric::Joined { cluster, clique }) if cluster != [0; 16] => Some((uuid(cluster), clique)),
        _ => None,
    }
}

fn uuid(bytes: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// The lowest number of the GPUs that each GPU is linked with, directly or over others, itself included.
fn groups(gpus: &BTreeMap<u32, Gpu>) -> BTreeMap<u32, u32> {
    let mut groups: BTreeMap<u32, u32> = gpus.keys().map(|number| (*number, *number)).collect();
    let links = || gpus.iter().filter_map(|(number, gpu)| Some((*number, gpu.nvlink.as_ref().ok()?)));
    let first_switched = links().find(|(_, links)| is_switched(links)).map(|(number, _)| number);
    for (number, links) in links() {
        let at = |end: &LinkEnd| gpus.iter().find(|(_, gpu)| *end == LinkEnd::Gpu(gpu.pci)).map(|(number, _)| *number);
        let others = peers(links).filter_map(at).chain(first_switched.filter(|_| is_switched(links)));
        for other in others {
            let (low, high) = (groups[&number].min(groups[&other]), groups[&number].max(groups[&other]));
            groups.values_mut().filter(|group| **group == high).for_each(|group| *group = low);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_MACHINE: Fabric = Fabric::Joined { cluster: [0; 16], clique: 0 };

    fn gpu(number: u32, ends: impl IntoIterator<Item = LinkEnd>, fabric: Option<Fabric>) -> Gpu {
        let (uuid, pci) = (format!("GPU-{number}"), address(number));
        let nvlink = Ok(NvLink { ends: ends.into_iter().collect(), fabric });
        Gpu { nvlink, ..Gpu::new(uuid.parse().unwrap(), pci.parse().unwrap(), number) }
    }

    fn address(number: u32) -> String {
        format!("0000:{number:02x}:00.0")
    }

    fn to(number: u32) -> LinkEnd {
        LinkEnd::Gpu(address(number).parse().unwrap())
    }

    /// The domains as text: `0=GPU-0`.
    fn found(gpus: impl IntoIterator<Item = Gpu>) -> Vec<String> {
        let gpus = gpus.into_iter().map(|gpu| (gpu.minor, gpu)).collect();
        domains(&gpus).into_iter().map(|(number, domain)| format!("{number}={domain}")).collect()
    }

    #[test]
    fn switches_join_all_gpus_of_a_machine() {
        for fabric in [None, Some(ONE_MACHINE)] {
            let all = (0..3).map(|number| gpu(number, [LinkEnd::Switch], fabric));
            assert_eq!(found(all.clone()), ["0=GPU-0", "1=GPU-0", "2=GPU-0"]);
            assert_eq!(found(all.skip(1)), ["1=GPU-1", "2=GPU-1"]);
        }
        // One that is not on the board, one that has joined no fabric, and one whose links can't be asked for.
        let silent = Gpu { nvlink: Err("NVLink 0: unknown".to_owned()), ..gpu(2, [], None) };
        let mut gpus = vec![gpu(0, [], None), gpu(1, [LinkEnd::Switch], Some(Fabric::NotJoined)), silent];
        gpus.extend((3..5).map(|number| gpu(number, [LinkEnd::Switch], Some(ONE_MACHINE))));
        assert_eq!(found(gpus), ["3=GPU-3", "4=GPU-3"]);
    }

    #[test]
    fn bridges_join_who_they_connect() {
        let pairs = [gpu(0, [to(2)], None), gpu(1, [to(3)], None), gpu(2, [to(0)], None), gpu(3, [to(1)], None)];
        assert_eq!(found(pairs), ["0=GPU-0", "1=GPU-1", "2=GPU-0", "3=GPU-1"]);
        // A chain, told from its far end.
        let chain = [gpu(0, [to(3)], None), gpu(1, [to(2)], None), gpu(2, [to(1), to(3)], None), gpu(3, [to(0)], None)];
        assert_eq!(found(chain), ["0=GPU-0", "1=GPU-0", "2=GPU-0", "3=GPU-0"]);
        // The other one isn't this machine's.
        assert_eq!(found([gpu(0, [], None), gpu(1, [to(9)], None)]), ["1=GPU-1"]);
    }

    #[test]
    fn the_name_stays_while_one_of_a_pair_cannot_tell() {
        let silent = Gpu { nvlink: Err("NVLink 0: unknown".to_owned()), ..gpu(0, [], None) };
        assert_eq!(found([silent, gpu(1, [to(0)], None)]), ["1=GPU-0"]);
    }

    #[test]
    fn a_fabric_of_several_machines_has_a_name() {
        let cluster = [0x6d, 0x3b, 0x1f, 0x0a, 0x52, 0xc8, 0x4e, 0x67, 0x9b, 0x0d, 0x1f, 0x2e, 0x3d, 0x4c, 0x5b, 0x6a];
        let tray = (0..2).map(|number| gpu(number, [LinkEnd::Switch], Some(Fabric::Joined { cluster, clique: 2 })));
        let uuid = "6d3b1f0a-52c8-4e67-9b0d-1f2e3d4c5b6a";
        assert_eq!(found(tray.clone()), [format!("0={uuid}"), format!("1={uuid}")]);
        for gpu in tray {
            assert_eq!(clique(&gpu.nvlink.unwrap()), Some(format!("{uuid}.2")));
        }
        for fabric in [None, Some(ONE_MACHINE), Some(Fabric::NotJoined)] {
            assert_eq!(clique(&gpu(0, [LinkEnd::Switch], fabric).nvlink.unwrap()), None);
        }
    }

    #[test]
    fn who_has_no_links_is_in_no_domain() {
        let gpus = [gpu(0, [], None), gpu(1, [], Some(ONE_MACHINE))];
        assert_eq!(found(gpus.clone()), [""; 0]);
        assert_eq!(has_switch(gpus[0].nvlink.as_ref().unwrap()), None);
        assert_eq!(has_switch(&gpu(0, [to(1)], None).nvlink.unwrap()), Some(false));
        assert_eq!(has_switch(&gpu(0, [LinkEnd::Switch], None).nvlink.unwrap()), Some(true));
    }
}

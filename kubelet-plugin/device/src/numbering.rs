//! Which number a GPU has. `gpu-3` must stay `gpu-3` while claims hold it, also when `gpu-2` falls off its bus.

use std::collections::BTreeMap;

use aliquot_api::ids::PciAddress;
use serde::{Deserialize, Serialize};

/// The numbers given on this node so far, remembered across restarts.
///
/// A node's first look numbers its GPUs in PCI order, so equal machines number equally. What comes later gets the next number
/// that was never given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbering {
    numbers: BTreeMap<PciAddress, u32>,
}

impl Numbering {
    /// Gives numbers to addresses that have none, and says whether there were any.
    pub fn add(&mut self, seen: impl IntoIterator<Item = PciAddress>) -> bool {
        let mut new: Vec<PciAddress> = seen.into_iter().filter(|address| !self.numbers.contains_key(address)).collect();
        new.sort_unstable();
        new.dedup();
        let next = self.numbers.values().max().map_or(0, |last| last + 1);
        let changed = !new.is_empty();
        self.numbers.extend(new.into_iter().zip(next..));
        changed
    }

    /// The number of an address.
    pub fn get(&self, address: PciAddress) -> Option<u32> {
        self.numbers.get(&address).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<PciAddress> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_first_look_numbers_in_pci_order() {
        let mut numbering = Numbering::default();
        let seen = addresses(&["0000:9b:00.0", "0000:1b:00.0", "0000:43:00.0"]);
        assert!(numbering.add(seen.clone()));
        let numbers: Vec<_> = seen.iter().map(|address| numbering.get(*address)).collect();
        assert_eq!(numbers, [Some(2), Some(0), Some(1)]);
    }

    #[test]
    fn a_lost_gpu_shifts_nobody_and_comes_back_as_itself() {
        let mut numbering = Numbering::default();
        let all = addresses(&["0000:1b:00.0", "0000:43:00.0", "0000:9b:00.0"]);
        numbering.add(all.clone());
        assert!(!numbering.add([all[0], all[2]]));
        assert_eq!((numbering.get(all[1]), numbering.get(all[2])), (Some(1), Some(2)));
        let late = addresses(&["0000:00:00.0"]);
        assert!(numbering.add(late.clone()));
        assert_eq!(numbering.get(late[0]), Some(3));
    }

    #[test]
    fn numbers_survive_their_file() {
        let mut numbering = Numbering::default();
        numbering.add(addresses(&["0000:1b:00.0"]));
        let text = serde_json::to_string(&numbering).unwrap();
        assert_eq!(text, r#"{"numbers":{"0000:1b:00.0":0}}"#);
        assert_eq!(serde_json::from_str::<Numbering>(&text).unwrap(), numbering);
    }
}

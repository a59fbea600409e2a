//! How the devices that pods have are doing, for kubelet to show.
//!
//! A device that was there and isn't any more is as important as one that is: somebody has it. So what was told before, and what
//! claims hold, is part of the decision.

use std::collections::BTreeMap;

use aliquot_api::ids::{DeviceName, PciAddress};

use crate::inventory::Inventory;
use crate::observation::Problem;

/// Errors that a program has brought upon itself; the GPU is as good as before.
const OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Whether a GPU with this error (XID) isn't to be trusted.
pub fn is_critical(xid: u64) -> bool {
    !OF_PROGRAMS.contains(&xid)
}

/// An error (XID) in words, where it has some.
pub fn describe(xid: u64) -> String {
    let words = match xid {
        13 => "graphics engine exception",
        31 => "GPU memory page fault",
        43 => "GPU stopped processing",
        45 => "preemptive cleanup after earlier errors",
        48 => "double bit ECC error",
        63 => "memory row remapping recorded",
        64 => "memory row remapping failed",
        68 => "video processor exception",
        74 => "NVLink error",
        79 => "GPU has fallen off the bus",
        92 => "high rate of single bit ECC errors",
        94 => "contained ECC error",
        95 => "uncontained ECC error",
        109 => "context switch timeout",
        119 => "GSP firmware doesn't answer",
        120 => "GSP firmware error",
        140 => "unrecovered ECC error",
        143 => "GPU initialization failed",
        _ => return format!("XID {xid}"),
    };
    format!("XID {xid}: {words}")
}

/// How a device is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Nobody can tell.
    Unknown,
    /// Its GPU answers, and nothing is known against it.
    Healthy,
    /// Why it isn't.
    Unhealthy(String),
}

/// A device, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its GPU.
    pub gpu: PciAddress,
    /// How it is doing.
    pub health: Health,
}

/// All devices that matter.
pub type Conditions = BTreeMap<DeviceName, Condition>;

/// Devices of claims, with their GPUs.
pub type Held = BTreeMap<DeviceName, PciAddress>;

/// How the devices are doing: those that there are, those of GPUs that were there before, and those that claims hold.
pub fn judge(
    before: &Conditions,
    held: &Held,
    inventory: &Inventory,
    problems: &[Problem],
    is_ready: bool,
) -> Conditions {
    let errors = |gpu: PciAddress| inventory.xids(gpu).iter().map(|xid| describe(*xid));
    let answers = |gpu: PciAddress| inventory.gpus().any(|(_, other)| other.pci == gpu);
    let mut conditions: Conditions = inventory
        .names()
        .map(|(name, gpu)| {
            let reasons: Vec<String> = errors(gpu.pci).collect();
            let health = if reasons.is_empty() { Health::Healthy } else { Health::Unhealthy(reasons.join("; ")) };
            (name.clone(), Condition { gpu: gpu.pci, health })
        })
        .collect();
    let before = before.iter().map(|(name, condition)| (name, condition.gpu));
    for (name, gpu) in before.chain(held.iter().map(|(name, gpu)| (name, *gpu))) {
        // A part of a GPU that was destroyed is missed only by who has it.
        if conditions.contains_key(name) || (answers(gpu) && !held.contains_key(name)) {
            continue;
        }
        let absence = match problems.iter().find(|problem| problem.pci == Some(gpu)) {
            Some(problem) => problem.to_string(),
            None if answers(gpu) => format!("GPU {gpu} has no such part any more"),
            None => format!("GPU {gpu} isn't there any more"),
        };
        let health = Health::Unhealthy(errors(gpu).chain([absence]).collect::<Vec<_>>().join("; "));
        conditions.insert(name.clone(), Condition { gpu, health });
    }
    if !is_ready {
        for condition in conditions.values_mut() {
            condition.health = Health::Unknown;
        }
    }
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::{gpu, mig};
    use crate::numbering::Numbering;
    use crate::observation::{Gpu, Observation};

    /// A node with two GPUs, of which the second one is in parts.
    struct Node {
        gpus: Vec<Gpu>,
        problems: Vec<Problem>,
        xids: BTreeMap<PciAddress, Vec<u64>>,
        held: Held,
        is_ready: bool,
        told: Conditions,
    }

    fn pci(bus: &str) -> PciAddress {
        format!("0000:{bus}:00.0").parse().unwrap()
    }

    fn node() -> Node {
        let parts = vec![mig("MIG-a", "3g.40gb", 1, 0), mig("MIG-b", "3g.40gb", 2, 4)];
        Node {
            gpus: vec![gpu("1b", "GPU-a"), Gpu { mig: Some(parts), ..gpu("43", "GPU-b") }],
            problems: Vec::new(),
            xids: BTreeMap::new(),
            held: Held::new(),
            is_ready: true,
            told: Conditions::new(),
        }
    }

    impl Node {
        /// Another look: what is told of each device.
        fn look(&mut self) -> Vec<(String, Health)> {
            let mut numbering = Numbering::default();
            numbering.add([pci("1b"), pci("43")]);
            let (gpus, xids) = (self.gpus.clone(), self.xids.clone());
            let inventory = Inventory::new(Observation { gpus, xids, ..Observation::default() }, &numbering);
            self.told = judge(&self.told, &self.held, &inventory, &self.problems, self.is_ready);
            self.told.iter().map(|(name, condition)| (name.to_string(), condition.health.clone())).collect()
        }

        fn lose(&mut self, bus: &str) {
            self.gpus.retain(|gpu| gpu.pci != pci(bus));
        }
    }

    fn unhealthy(message: &str) -> Health {
        Health::Unhealthy(message.to_owned())
    }

    fn all(healths: [Health; 3]) -> Vec<(String, Health)> {
        ["gpu-0", "gpu-1-mig-3g40gb-0", "gpu-1-mig-3g40gb-4"].map(str::to_owned).into_iter().zip(healths).collect()
    }

    #[test]
    fn what_answers_is_healthy() {
        assert_eq!(node().look(), all([Health::Healthy, Health::Healthy, Health::Healthy]));
    }

    #[test]
    fn a_gpu_that_fails_takes_its_parts_with_it_and_brings_them_back() {
        let mut node = node();
        node.look();
        let gpus = node.gpus.clone();
        node.lose("43");
        let reason = "hasn't answered".to_owned();
        node.problems.push(Problem { index: 1, pci: Some(pci("43")), reason });
        let message = "GPU 0000:43:00.0: hasn't answered";
        for _ in 0..2 {
            assert_eq!(node.look(), all([Health::Healthy, unhealthy(message), unhealthy(message)]));
        }
        (node.gpus, node.problems) = (gpus, Vec::new());
        assert_eq!(node.look(), all([Health::Healthy, Health::Healthy, Health::Healthy]));
    }

    #[test]
    fn a_gpu_that_is_gone_is_missed() {
        let mut node = node();
        node.look();
        node.lose("1b");
        // It may be the one that doesn't answer, or another.
        node.problems.push(Problem { index: 0, pci: None, reason: "lost".to_owned() });
        let message = "GPU 0000:1b:00.0 isn't there any more";
        assert_eq!(node.look(), all([unhealthy(message), Health::Healthy, Health::Healthy]));
    }

    #[test]
    fn a_claims_device_is_missed_though_this_process_never_saw_it() {
        let mut node = node();
        node.lose("1b");
        assert_eq!(node.look(), all([Health::Healthy, Health::Healthy, Health::Healthy])[1..]);
        node.held.insert("gpu-0".parse().unwrap(), pci("1b"));
        assert_eq!(node.look()[0].1, unhealthy("GPU 0000:1b:00.0 isn't there any more"));
    }

    #[test]
    fn a_destroyed_part_is_missed_by_who_has_it() {
        let mut node = node();
        node.look();
        node.held.insert("gpu-1-mig-3g40gb-4".parse().unwrap(), pci("43"));
        node.gpus[1].mig = Some(Vec::new());
        let message = unhealthy("GPU 0000:43:00.0 has no such part any more");
        let [whole, _, held] = all([Health::Healthy, Health::Healthy, message]).try_into().unwrap();
        assert_eq!(node.look(), [whole.clone(), held]);
        node.held.clear();
        assert_eq!(node.look(), [whole]);
    }

    #[test]
    fn a_critical_error_is_of_the_whole_gpu_and_is_told_first() {
        let mut node = node();
        node.xids.insert(pci("43"), vec![48, 79]);
        let message = "XID 48: double bit ECC error; XID 79: GPU has fallen off the bus";
        assert_eq!(node.look(), all([Health::Healthy, unhealthy(message), unhealthy(message)]));
        node.lose("43");
        let message = &format!("{message}; GPU 0000:43:00.0 isn't there any more");
        assert_eq!(node.look(), all([Health::Healthy, unhealthy(message), unhealthy(message)]));
    }

    #[test]
    fn nothing_is_known_while_the_driver_is_away() {
        let mut node = node();
        node.xids.insert(pci("43"), vec![79]);
        node.look();
        node.lose("1b");
        node.is_ready = false;
        assert_eq!(node.look(), all([Health::Unknown, Health::Unknown, Health::Unknown]));
    }

    #[test]
    fn errors_of_programs_are_not_critical() {
        let critical: Vec<u64> = (0..200).filter(|xid| is_critical(*xid)).collect();
        assert_eq!(critical.len(), 200 - OF_PROGRAMS.len());
        assert!([13, 31, 43, 45, 68, 109].iter().all(|xid| !critical.contains(xid)));
        assert_eq!(
            (describe(79).as_str(), describe(1000).as_str()),
            ("XID 79: GPU has fallen off the bus", "XID 1000")
        );
    }
}

//! The machine files.

use std::fs;

use crate::{Node, machine};

/// Each machine file: how many GPUs it has, their names, the memory of each in MiB, and how many partitions one can have.
const MACHINES: [(&str, u32, &str, u64, u32); 11] = [
    ("a30.yaml", 2, "NVIDIA A30", 24_576, 4),
    ("dgx-a100.yaml", 8, "NVIDIA A100-SXM4-40GB", 40_960, 7),
    ("dgx-h100.yaml", 8, "NVIDIA H100 80GB HBM3", 81_559, 7),
    ("dgx-h200.yaml", 8, "NVIDIA H200", 143_771, 7),
    ("gb200-tray.yaml", 4, "NVIDIA GB200", 189_471, 7),
    ("h100-16gpu.yaml", 16, "NVIDIA H100 80GB HBM3", 81_559, 7),
    ("hgx-b200.yaml", 8, "NVIDIA B200", 183_359, 7),
    ("l4.yaml", 2, "NVIDIA L4", 23_034, 0),
    ("l40s.yaml", 4, "NVIDIA L40S", 46_068, 0),
    ("rtx-pro-6000.yaml", 4, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97_887, 4),
    ("t4.yaml", 4, "Tesla T4", 15_360, 0),
];

/// The machine files that aren't like the others.
const SPECIAL: [&str; 2] = ["mixed.yaml", "no-memory.yaml"];

#[test]
fn every_machine_has_its_gpus() {
    for (name, count, product, memory, partitions) in MACHINES {
        let node = Node::new(name);
        if partitions > 0 {
            node.make(&["set", "--gpu", "0", "--mig", "on"]);
        }
        let nvml = node.nvml();
        assert_eq!(nvml.device_count().unwrap(), count, "{name}");
        for index in 0..count {
            let device = nvml.device_by_index(index).unwrap();
            assert_eq!(device.name().unwrap(), product);
            assert_eq!(device.memory_info().unwrap().total >> 20, memory);
            assert_eq!(device.mig_mode().is_ok(), partitions > 0, "{name}");
        }
        assert_eq!(nvml.device_by_index(0).unwrap().mig_device_count().unwrap(), partitions, "{name}");
    }
}

#[test]
fn every_machine_file_is_tested() {
    let entries = fs::read_dir(machine("")).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let mut names = files.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>();
    let mut known = MACHINES.iter().map(|machine| machine.0).chain(SPECIAL).collect::<Vec<_>>();
    names.sort();
    known.sort_unstable();
    assert_eq!(names, known);
}

#[test]
fn what_does_not_fit_at_boot_is_named() {
    let node = Node::new("mixed.yaml");
    let file = node.path("full.yaml");
    let text = fs::read_to_string(machine("mixed.yaml")).unwrap();
    let refused = |from: &str, to: &str| {
        fs::write(&file, text.replacen(from, to, 1)).unwrap();
        let output = node.try_lay_out(&file, "node-0");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap().replace(file.to_str().unwrap(), "full.yaml")
    };
    assert_eq!(
        refused("1g.10gb, start: 0", "1g.10gb, start: 5"),
        "mock-nvml: machine file full.yaml: gpus[0].mig.devices[1]: there is no room for a 1g.10gb beside those before it\n"
    );
    assert!(refused("1g.10gb, start: 0", "1g.10gb, start: 9").contains("gpus[0].mig.devices[1].start: no 1g.10gb"));
    assert!(refused("model: t4", "model: t5").contains("gpus[4].model: no model is called \"t5\""));
}

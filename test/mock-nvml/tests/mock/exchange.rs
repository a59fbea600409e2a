//! A driver that comes late, goes, or is exchanged.

use std::fs;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use tempfile::TempDir;

use crate::{DRIVER, Node, TOOL, machine};

/// The same machine with a newer driver.
fn newer(node: &Node) -> std::path::PathBuf {
    let file = node.path("newer.yaml");
    let text = fs::read_to_string(machine("l4.yaml")).unwrap();
    fs::write(&file, text.replace(DRIVER, "590.44.01")).unwrap();
    file
}

#[test]
fn a_driver_may_come_late() {
    let node = Node { folder: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
    assert!(!node.path("root").exists());
    node.lay_out(&machine("l4.yaml"), "node-0");
    assert_eq!(node.nvml().device_count().unwrap(), 2);
}

#[test]
fn a_newer_driver_replaces_the_older() {
    let node = Node::new("l4.yaml");
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let set = nvml.create_event_set().unwrap();
    let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    let newer = newer(&node);
    std::thread::scope(|scope| {
        scope.spawn(|| node.lay_out(&newer, "node-0"));
        // Whoever waits is told at once.
        assert!(matches!(set.wait(600_000), Err(NvmlError::LibRmVersionMismatch)));
    });
    assert!(matches!(device.uuid(), Err(NvmlError::LibRmVersionMismatch)));
    let files = fs::read_dir(node.libraries()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(files.filter(|name| name.contains(DRIVER)).collect::<Vec<_>>(), Vec::<String>::new());
    drop(set);
    drop(nvml);
    let nvml = node.nvml();
    assert_eq!(nvml.sys_driver_version().unwrap(), "590.44.01");
    assert_eq!(nvml.device_count().unwrap(), 2);
}

#[test]
fn the_old_library_refuses_the_new_driver() {
    let node = Node::new("l4.yaml");
    let raw = node.raw();
    // SAFETY: there are no arguments.
    unsafe {
        assert_eq!(raw.nvmlInit_v2(), 0);
        node.lay_out(&newer(&node), "node-0");
        assert_eq!(raw.nvmlShutdown(), 0);
        assert_eq!(raw.nvmlInit_v2(), 18);
    }
}

#[test]
fn a_driver_goes_and_comes_back() {
    let node = Node::new("mixed.yaml");
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let remove = || {
        let mut command = std::process::Command::new(TOOL);
        command.args(["remove", "--root"]).arg(node.path("root")).arg("--dev").arg(node.path("dev"));
        assert!(command.output().unwrap().status.success());
    };
    remove();
    assert!(matches!(device.uuid(), Err(NvmlError::DriverNotLoaded)));
    assert!(fs::read_dir(node.path("dev")).unwrap().next().is_none());
    assert!(!node.path("root/proc").exists() && !node.path("root/usr/bin/nvidia-smi").exists());
    let on_bus = |name: &str| node.path(&format!("root/sys/bus/pci/devices/0000:1b:00.0/{name}"));
    assert!(on_bus("vendor").exists() && on_bus("driver").symlink_metadata().is_err());
    // There is nothing left to remove.
    remove();
    drop(nvml);
    node.lay_out(&machine("mixed.yaml"), "node-0");
    assert_eq!(node.nvml().device_count().unwrap(), 6);
    assert!(on_bus("driver").exists());
}

#[test]
fn a_gpu_more_or_less_shifts_nobody_in_a_running_program() {
    let node = Node::new("dgx-h100.yaml");
    let text = fs::read_to_string(machine("dgx-h100.yaml")).unwrap();
    let without = |minor: u32| {
        let file = node.path("fewer.yaml");
        let is_it = |line: &str| line.contains(&format!("minor: {minor},"));
        let lines = text.lines().filter(|line| !is_it(line)).map(|line| line.to_owned() + "\n");
        fs::write(&file, lines.collect::<String>()).unwrap();
        node.lay_out(&file, "node-0");
    };
    let uuids = |nvml: &nvml_wrapper::Nvml| {
        let count = nvml.device_count().unwrap();
        (0..count).map(|index| nvml.device_by_index(index).and_then(|gpu| gpu.uuid()).ok()).collect::<Vec<_>>()
    };
    let nvml = node.nvml();
    let before = uuids(&nvml);
    without(2);
    let mut expected = before.clone();
    expected[2] = None;
    assert_eq!(uuids(&nvml), expected);
    drop(nvml);
    expected.remove(2);
    let nvml = node.nvml();
    assert_eq!(uuids(&nvml), expected);
    node.lay_out(&machine("dgx-h100.yaml"), "node-0");
    assert_eq!(uuids(&nvml), expected);
    drop(nvml);
    assert_eq!(uuids(&node.nvml()), before);
}

//! What happens to GPUs, and what is wrong with functions.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t, nvmlFieldValue_t, nvmlProcessInfo_t};

use crate::{Node, done, handle, out};

const CRITICAL_ERROR: u64 = 8;
const NONE: u32 = u32::MAX;

/// Longer than any test takes.
const LONG: u32 = 600_000;

/// An event set that watches a GPU.
fn watch(nvml: &Nvml, index: u32, types: u64) -> nvmlEventSet_t {
    // SAFETY: handles are good, and there is room for one; so for all calls in this file.
    let set = out(|to| unsafe { nvml.lib().nvmlEventSetCreate(to) }).unwrap();
    // SAFETY: as above.
    done(unsafe { nvml.lib().nvmlDeviceRegisterEvents(handle(nvml, index), types, set) }).unwrap();
    set
}

fn next(nvml: &Nvml, set: nvmlEventSet_t, timeout: u32) -> Result<nvmlEventData_t, u32> {
    // SAFETY: as above.
    out(|to| unsafe { nvml.lib().nvmlEventSetWait_v2(set, to, timeout) })
}

#[test]
fn an_error_wakes_who_waits_for_it() {
    let node = Node::new("mixed.yaml");
    let nvml = node.nvml();
    let set = watch(&nvml, 0, CRITICAL_ERROR);
    let event = std::thread::scope(|scope| {
        // Another process.
        scope.spawn(|| node.make(&["xid", "--gpu", "0", "79"]));
        next(&nvml, set, LONG).unwrap()
    });
    assert_eq!((event.device, event.eventType, event.eventData), (handle(&nvml, 0), CRITICAL_ERROR, 79));
    assert_eq!((event.gpuInstanceId, event.computeInstanceId), (NONE, NONE));
    assert_eq!(next(&nvml, set, 0).map(|event| event.eventData), Err(10));
}

#[test]
fn errors_are_kept_in_order_for_each_who_watches_them() {
    let node = Node::new("mixed.yaml");
    let nvml = node.nvml();
    node.make(&["xid", "--gpu", "0", "1"]);
    let (first, second) = (watch(&nvml, 0, CRITICAL_ERROR), watch(&nvml, 3, CRITICAL_ERROR));
    // SAFETY: as above.
    done(unsafe { nvml.lib().nvmlDeviceRegisterEvents(handle(&nvml, 2), CRITICAL_ERROR, first) }).unwrap();
    let memory_only = watch(&nvml, 0, 2);
    node.make(&["xid", "--gpu", "2", "2"]);
    node.make(&["xid", "--gpu", "0", "--gpu-instance", "13", "--compute-instance", "0", "3"]);
    node.make(&["xid", "--gpu", "0", "--gpu-instance", "13", "4"]);
    node.make(&["xid", "--gpu", "3", "5"]);
    let drain = |set| {
        let mut found = Vec::new();
        while let Ok(event) = next(&nvml, set, 0) {
            found.push((event.eventData, event.gpuInstanceId, event.computeInstanceId));
        }
        found
    };
    // Neither what was before, nor what is another's.
    assert_eq!(drain(first), [(2, NONE, NONE), (3, 13, 0), (4, 13, NONE)]);
    assert_eq!(drain(second), [(5, NONE, NONE)]);
    assert_eq!(drain(memory_only), []);
}

#[test]
fn figures_of_health_can_be_set() {
    let node = Node::new("mixed.yaml");
    let nvml = node.nvml();
    node.make(&["set", "--gpu", "0", "--remapped-rows", "1", "2", "1", "0", "--recovery-action", "gpu-reset"]);
    node.make(&["set", "--gpu", "0", "--memory-errors", "7", "3"]);
    let rows = |index| {
        let [mut a, mut b, mut c, mut d] = [9_u32; 4];
        // SAFETY: as above.
        let code = unsafe {
            let places = (&raw mut a, &raw mut b, &raw mut c, &raw mut d);
            nvml.lib().nvmlDeviceGetRemappedRows(handle(&nvml, index), places.0, places.1, places.2, places.3)
        };
        done(code).map(|()| [a, b, c, d])
    };
    assert_eq!((rows(0), rows(2), rows(4)), (Ok([1, 2, 1, 0]), Ok([0; 4]), Err(3)));

    let field = |index, id| {
        // SAFETY: zeroes are good.
        let mut values: [nvmlFieldValue_t; 2] = unsafe { std::mem::zeroed() };
        (values[0].fieldId, values[1].fieldId) = (9999, id);
        // SAFETY: as above.
        let code = unsafe { nvml.lib().nvmlDeviceGetFieldValues(handle(&nvml, index), 2, values.as_mut_ptr()) };
        assert_eq!((code, values[0].nvmlReturn), (0, 3));
        // SAFETY: all members of the union are numbers.
        done(values[1].nvmlReturn).map(|()| unsafe { values[1].value.uiVal })
    };
    assert_eq!((field(0, 230), field(2, 230), field(0, 91), field(0, 1)), (Ok(1), Ok(0), Ok(18), Err(3)));
    // SAFETY: as above.
    let errors = |kind| out(|to| unsafe { nvml.lib().nvmlDeviceGetTotalEccErrors(handle(&nvml, 0), kind, 0, to) });
    assert_eq!((errors(0), errors(1), errors(2)), (Ok(7), Ok(3), Err(2)));
}

#[test]
fn processes_are_listed_where_they_are() {
    let node = Node::new("mixed.yaml");
    let nvml = node.nvml();
    let add = ["process", "add", "--gpu", "0", "--gpu-instance", "13", "--compute-instance", "0", "--pid", "7"];
    node.make(&[&add[..], &["--memory", "100"]].concat());
    node.make(&["process", "add", "--gpu", "2", "--pid", "8", "--memory", "50"]);
    let shown = serde_json::json!([
        {"pid": 7, "gpu": 0, "gpuInstance": 13, "computeInstance": 0, "memory": "100Mi"},
        {"pid": 8, "gpu": 2, "memory": "50Mi"},
    ]);
    assert_eq!(node.show()["processes"], shown);
    let gpu = nvml.device_by_index(0).unwrap();
    let pids = |device: &nvml_wrapper::Device<'_>| {
        let found = device.running_compute_processes().unwrap();
        found.iter().map(|process| (process.pid, process.gpu_instance_id)).collect::<Vec<_>>()
    };
    assert_eq!(pids(&gpu), [(7, Some(13))]);
    assert_eq!(pids(&nvml.device_by_index(2).unwrap()), [(8, None)]);
    let [other, partition] = [0, 2].map(|index| gpu.mig_device_by_index(index).unwrap());
    assert_eq!((pids(&other), pids(&partition)), (vec![], vec![(7, Some(13))]));
    assert_eq!(partition.memory_info().unwrap().used, 100 << 20);
    assert_eq!(nvml.device_by_index(2).unwrap().memory_info().unwrap().used, 50 << 20);

    // SAFETY: zeroes are good.
    let mut one: nvmlProcessInfo_t = unsafe { std::mem::zeroed() };
    let mut count = 0;
    // SAFETY: as above.
    let mut ask = |count: &mut u32| unsafe {
        nvml.lib().nvmlDeviceGetComputeRunningProcesses_v3(handle(&nvml, 2), count, &raw mut one)
    };
    assert_eq!((ask(&mut count), count), (7, 1));
    assert_eq!((ask(&mut count), count), (0, 1));
    node.make(&["process", "remove", "--pid", "8"]);
    assert_eq!((ask(&mut count), count), (0, 0));
}

#[test]
fn a_function_fails_as_often_as_it_shall() {
    let node = Node::new("l4.yaml");
    let nvml = node.nvml();
    let [first, second] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
    node.make(&["fault", "nvmlDeviceGetUUID", "--gpu", "0", "--fail", "15", "--times", "2"]);
    assert!(matches!(first.uuid(), Err(NvmlError::GpuLost)));
    let shown = serde_json::json!([
        {"function": "nvmlDeviceGetUUID", "gpu": 0, "how": "answers 15", "callsLeft": 1},
    ]);
    assert_eq!(node.show()["faults"], shown);
    assert!(second.uuid().is_ok());
    assert!(first.name().is_ok());
    assert!(matches!(first.uuid(), Err(NvmlError::GpuLost)));
    assert!(first.uuid().is_ok());

    node.make(&["fault", "nvmlDeviceGetUUID", "--fail", "999"]);
    assert!(matches!(first.uuid(), Err(NvmlError::Unknown)));
    assert!(matches!(second.uuid(), Err(NvmlError::Unknown)));
    node.make(&["fault", "nvmlDeviceGetUUID", "--clear"]);
    assert!(first.uuid().is_ok() && second.uuid().is_ok());
    let no_function = node.tool(&["fault", "DeviceGetUUID", "--clear"]);
    assert!(String::from_utf8_lossy(&no_function.stderr).contains("\"DeviceGetUUID\" is no name"), "{no_function:?}");

    // A GPU is also what a handle is asked by.
    for function in ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID"] {
        node.make(&["fault", function, "--gpu", "0", "--fail", "999"]);
    }
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::Unknown)));
    assert!(nvml.device_by_index(1).is_ok());
    assert!(matches!(nvml.device_by_uuid(first.uuid().unwrap()), Err(NvmlError::Unknown)));
    assert!(nvml.device_by_uuid(second.uuid().unwrap()).is_ok());

    node.make(&["fault", "nvmlInit_v2", "--fail", "9", "--times", "1"]);
    drop(nvml);
    assert!(matches!(node.try_nvml(), Err(NvmlError::DriverNotLoaded)));
    assert!(node.try_nvml().is_ok());
}

#[test]
fn a_blocked_call_holds_nobody_else_and_returns_when_it_may() {
    let node = Node::new("l4.yaml");
    let nvml = node.nvml();
    let [first, second] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
    node.make(&["fault", "nvmlDeviceGetUUID", "--gpu", "0", "--block"]);
    std::thread::scope(|scope| {
        let (answer, answered) = mpsc::channel();
        scope.spawn(move || answer.send(first.uuid().is_ok()).unwrap());
        assert!(answered.recv_timeout(Duration::from_millis(100)).is_err());
        assert!(second.uuid().is_ok());
        // Changes that are none of its business don't end it.
        node.make(&["set", "--gpu", "0", "--persistence", "on"]);
        assert!(answered.recv_timeout(Duration::from_millis(100)).is_err());
        node.make(&["fault", "nvmlDeviceGetUUID", "--gpu", "0", "--clear"]);
        assert!(answered.recv().unwrap());
    });
}

#[test]
fn a_slow_call_takes_its_time() {
    let node = Node::new("l4.yaml");
    let nvml = node.nvml();
    let device = nvml.device_by_index(0).unwrap();
    node.make(&["fault", "nvmlDeviceGetName", "--slow", "60", "--times", "1"]);
    let start = Instant::now();
    assert!(device.name().is_ok());
    assert!(start.elapsed() >= Duration::from_millis(60));
}

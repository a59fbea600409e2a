//! What the plugin counts. Labels have few values; what is unknown is absent.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aliquot_api::ids::{GpuUuid, PciAddress};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::gpus::Snapshot;
use crate::store::PreparedClaim;

/// Which call of kubelet, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    operation: &'static str,
    result: &'static str,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    operation: &'static str,
    reason: &'static str,
}

/// A part of preparing, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: &'static str,
    result: &'static str,
}

/// Which claim has which device, spelt so that it joins with DCGM's series.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(non_snake_case)]
struct AllocationLabels {
    node: String,
    UUID: String,
    GPU_I_ID: String,
    form: &'static str,
    namespace: String,
    claim: String,
    request: String,
    device: String,
    admin_access: &'static str,
}

/// How a write ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    result: &'static str,
}

/// A GPU, spelt as DCGM spells it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(non_snake_case)]
struct GpuLabels {
    gpu: String,
    UUID: String,
}

/// An error of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(non_snake_case)]
struct XidLabels {
    UUID: String,
    xid: u64,
}

/// What there is to know of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(non_snake_case)]
struct GpuInfoLabels {
    gpu: String,
    UUID: String,
    pci_bus_id: String,
    model: String,
    nvlink_domain: String,
    clique: String,
}

/// The plugin's metrics.
pub(crate) struct Metrics {
    registry: Registry,
    calls: Family<CallLabels, Histogram, fn() -> Histogram>,
    failures: Family<FailureLabels, Counter>,
    phases: Family<PhaseLabels, Histogram, fn() -> Histogram>,
    allocations: Family<AllocationLabels, Gauge>,
    node: String,
    gpu_uuids: Mutex<BTreeMap<PciAddress, GpuUuid>>,
    prepared_claims: Gauge,
    damaged_files: Counter,
    slice_writes: Family<WriteLabels, Counter>,
    gpu_info: Family<GpuInfoLabels, Gauge>,
    gpu_memory: Family<GpuLabels, Gauge<f64, AtomicU64>>,
    gpu_problems: Gauge,
    xids: Family<XidLabels, Counter>,
}

/// One of kubelet's calls.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    /// `NodePrepareResources`, for one claim.
    Prepare,
    /// `NodeUnprepareResources`, for one claim.
    Unprepare,
}

impl Operation {
    fn label(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Unprepare => "unprepare",
        }
    }
}

/// A part of preparing a claim.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    /// Asking the API server.
    Read,
    /// Waiting for devices that others hold.
    Wait,
    /// Writing files.
    Write,
    /// Waiting for the disk.
    Sync,
}

impl Phase {
    fn label(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Wait => "wait",
            Self::Write => "write",
            Self::Sync => "sync",
        }
    }
}

fn duration_buckets() -> Histogram {
    Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 45.0])
}

impl Metrics {
    /// Metrics that have counted nothing.
    pub(crate) fn new(node: &str) -> Self {
        let mut registry = Registry::with_prefix("aliquot");
        let calls = Family::new_with_constructor(duration_buckets as fn() -> Histogram);
        let phases = Family::new_with_constructor(duration_buckets as fn() -> Histogram);
        let (failures, slice_writes, allocations) = (Family::default(), Family::default(), Family::default());
        let (prepared_claims, damaged_files, gpu_problems) = (Gauge::default(), Counter::default(), Gauge::default());
        let (gpu_info, gpu_memory, xids) = (Family::default(), Family::default(), Family::default());
        registry.register("build", "This program", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        registry.register_with_unit(
            "claim_call_duration",
            "Time for one claim of one call of kubelet",
            Unit::Seconds,
            calls.clone(),
        );
        registry.register_with_unit(
            "prepare_duration",
            "Time for a part of preparing a claim: reading it, waiting for its devices, writing files, syncing them",
            Unit::Seconds,
            phases.clone(),
        );
        registry.register("allocation_info", "Which claim has which device", allocations.clone());
        registry.register("claim_call_failures", "Claims that couldn't be prepared or unprepared", failures.clone());
        registry.register("prepared_claims", "Claims that are prepared now", prepared_claims.clone());
        registry.register("claim_store_errors", "Claim files found damaged", damaged_files.clone());
        registry.register("slice_writes", "Writes of ResourceSlices", slice_writes.clone());
        registry.register("gpu_info", "The node's GPUs", gpu_info.clone());
        registry.register_with_unit("gpu_memory", "Memory of a GPU", Unit::Bytes, gpu_memory.clone());
        registry.register("gpus_failed", "GPUs that don't answer and aren't published", gpu_problems.clone());
        registry.register("xid_errors", "Errors of GPUs (XID), those that programs caused included", xids.clone());
        for result in ["success", "failure"] {
            drop(slice_writes.get_or_create(&WriteLabels { result }));
        }
        Self {
            registry,
            calls,
            failures,
            phases,
            allocations,
            node: node.to_owned(),
            gpu_uuids: Mutex::default(),
            prepared_claims,
            damaged_files,
            slice_writes,
            gpu_info,
            gpu_memory,
            gpu_problems,
            xids,
        }
    }

    /// A claim was dealt with. `failure` is the reason, from a closed list.
    pub(crate) fn call(&self, operation: Operation, took: Duration, failure: Option<&'static str>) {
        let operation = operation.label();
        let result = if failure.is_some() { "failure" } else { "success" };
        self.calls.get_or_create(&CallLabels { operation, result }).observe(took.as_secs_f64());
        if let Some(reason) = failure {
            self.failures.get_or_create(&FailureLabels { operation, reason }).inc();
        }
    }

    /// A part of preparing a claim is over.
    pub(crate) fn phase(&self, phase: Phase, took: Duration, success: bool) {
        let result = if success { "success" } else { "failure" };
        self.phases.get_or_create(&PhaseLabels { phase: phase.label(), result }).observe(took.as_secs_f64());
    }

    /// These claims are prepared.
    pub(crate) fn set_claims<'a>(&self, claims: impl IntoIterator<Item = &'a PreparedClaim>) {
        self.allocations.clear();
        let mut count = 0;
        // DCGM knows a MIG device by its GPU's UUID and its GPU instance.
        let uuids = self.gpu_uuids.lock().unwrap_or_else(PoisonError::into_inner);
        for PreparedClaim { claim, devices, .. } in claims {
            count += 1;
            for device in devices {
                let labels = AllocationLabels {
                    node: self.node.clone(),
                    UUID: uuids.get(&device.pci).unwrap_or(&device.uuid).to_string(),
                    GPU_I_ID: device.mig.map_or_else(String::new, |mig| mig.gpu_instance.to_string()),
                    form: if device.mig.is_some() { "mig" } else { "whole" },
                    namespace: claim.namespace.clone(),
                    claim: claim.name.clone(),
                    request: device.request.clone(),
                    device: device.device.to_string(),
                    admin_access: if device.admin_access { "true" } else { "false" },
                };
                self.allocations.get_or_create(&labels).set(1);
            }
        }
        self.prepared_claims.set(count);
    }

    /// A claim's file was found damaged.
    pub(crate) fn damaged_file(&self) {
        self.damaged_files.inc();
    }

    /// A slice was written, or not.
    pub(crate) fn slice_write(&self, success: bool) {
        let result = if success { "success" } else { "failure" };
        self.slice_writes.get_or_create(&WriteLabels { result }).inc();
    }

    /// A GPU had an error.
    pub(crate) fn xid(&self, uuid: String, xid: u64) {
        self.xids.get_or_create(&XidLabels { UUID: uuid, xid }).inc();
    }

    /// What was seen of the GPUs.
    pub(crate) fn set_gpus(&self, snapshot: &Snapshot) {
        self.gpu_info.clear();
        self.gpu_memory.clear();
        let mut uuids = self.gpu_uuids.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, gpu) in snapshot.inventory.gpus() {
            let name = number.to_string();
            uuids.insert(gpu.pci, gpu.uuid.clone());
            let info = GpuInfoLabels {
                gpu: name.clone(),
                UUID: gpu.uuid.to_string(),
                pci_bus_id: gpu.pci.to_string(),
                model: gpu.product_name.clone().unwrap_or_default(),
                nvlink_domain: snapshot.inventory.nvlink_domain(number).unwrap_or_default().to_owned(),
                clique: snapshot.inventory.nvlink_clique(number).unwrap_or_default(),
            };
            self.gpu_info.get_or_create(&info).set(1);
            if let Some(bytes) = gpu.memory {
                let labels = GpuLabels { gpu: name, UUID: gpu.uuid.to_string() };
                // Exact up to 2^53 bytes.
                #[allow(clippy::cast_precision_loss)]
                self.gpu_memory.get_or_create(&labels).set(bytes as f64);
            }
        }
        self.gpu_problems.set(i64::try_from(snapshot.problems.len()).unwrap_or(i64::MAX));
    }

    /// All of it, as Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

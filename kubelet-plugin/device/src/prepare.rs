//! What an allocation needs on this node, or why it can't be had.

use std::collections::BTreeSet;

use aliquot_api::config::{self, ConfigErrors};
use aliquot_api::ids::{DeviceName, DriverName, GpuUuid, PciAddress, PoolName};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
};
use serde::{Deserialize, Serialize};

use crate::inventory::{Found, Inventory};
use crate::observation::Mig;

/// A device that a claim gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedDevice {
    /// The request of the claim, without the name of a subrequest, as kubelet wants it.
    pub request: String,
    /// The device.
    pub device: DeviceName,
    /// The GPU's UUID when it was prepared.
    pub uuid: GpuUuid,
    /// Where the GPU is.
    pub pci: PciAddress,
    /// N of its `/dev/nvidiaN`.
    pub minor: u32,
    /// The part of the GPU, if it isn't the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigInstance>,
    /// Whether the claim only watches: such a claim excludes nobody.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub admin_access: bool,
    /// Which share of the device, where it has shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
}

/// Which part of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigInstance {
    /// The GPU instance's id on its GPU.
    pub gpu_instance: u32,
    /// The compute instance's id in its GPU instance.
    pub compute_instance: u32,
}

impl PlannedDevice {
    /// Whether the two can't be held by two claims, whoever allocated them: the same device, or a GPU and a part of it.
    pub fn excludes(&self, other: &Self) -> bool {
        let overlap = match (self.mig, other.mig) {
            (Some(one), Some(two)) => one == two,
            (None, _) | (_, None) => true,
        };
        // Who only watches excludes nobody.
        self.pci == other.pci && overlap && !self.admin_access && !other.admin_access
    }
}

/// Why a claim can't be prepared here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody has allocated it.
    #[error("the claim isn't allocated")]
    NotAllocated,
    /// It is allocated, with nothing of this driver.
    #[error("the claim's allocation holds no device of driver {driver}")]
    NothingOfOurs {
        /// Our driver.
        driver: DriverName,
    },
    /// Allocated from another node's pool.
    #[error(
        "device {device} is of pool {pool}, this node's pool is {own}: the pod runs on another node than its claim's"
    )]
    ForeignPool {
        /// The device.
        device: String,
        /// The allocation's pool.
        pool: String,
        /// This node's.
        own: PoolName,
    },
    /// Allocated and not here.
    #[error("device {device} of pool {pool} isn't there (any more)")]
    UnknownDevice {
        /// The device.
        device: String,
        /// The pool.
        pool: PoolName,
    },
    /// The API doesn't give out such names.
    #[error("{0}")]
    Id(#[from] aliquot_api::ids::IdError),
    /// A config for us that isn't one.
    #[error("config of {origin}{requests}: {error}", requests = for_requests(.requests))]
    Config {
        /// The claim or its class.
        origin: &'static str,
        /// The requests that it is for; none means all.
        requests: Vec<String>,
        /// What is wrong with it.
        error: ConfigErrors,
    },
    /// A config that nobody would ever read.
    #[error(
        "config of the claim{requests} is for driver {found:?}, but {driver} serves what it is for: it would have no effect",
        requests = for_requests(.requests)
    )]
    OtherDriversConfig {
        /// The driver that it names.
        found: String,
        /// Ours.
        driver: DriverName,
        /// The requests that it is for; none means all.
        requests: Vec<String>,
    },
}

fn for_requests(requests: &[String]) -> String {
    if requests.is_empty() { String::new() } else { format!(" for request {}", requests.join(", ")) }
}

/// The devices that a claim needs of this node's driver, in the allocation's order.
pub fn plan(
    driver: &DriverName,
    pool: &PoolName,
    inventory: &Inventory,
    claim: &ResourceClaim,
) -> Result<Vec<PlannedDevice>, Refusal> {
    let allocation =
        claim.status.as_ref().and_then(|status| status.allocation.as_ref()).ok_or(Refusal::NotAllocated)?;
    let results = results(allocation);
    let ours: Vec<&DeviceRequestAllocationResult> =
        results.iter().filter(|result| result.driver == driver.as_str()).collect();
    if ours.is_empty() {
        return Err(Refusal::NothingOfOurs { driver: driver.clone() });
    }
    check_configs(driver, claim, allocation)?;
    ours.into_iter().map(|result| planned(pool, inventory, result)).collect()
}

fn results(allocation: &AllocationResult) -> &[DeviceRequestAllocationResult] {
    allocation.devices.as_ref().and_then(|devices| devices.results.as_deref()).unwrap_or_default()
}

/// `request` or `request/subrequest`, without the subrequest.
fn base(request: &str) -> &str {
    request.split_once('/').map_or(request, |(base, _)| base)
}

fn planned(
    pool: &PoolName,
    inventory: &Inventory,
    result: &DeviceRequestAllocationResult,
) -> Result<PlannedDevice, Refusal> {
    if result.pool != pool.as_str() {
        let (device, own) = (result.device.clone(), pool.clone());
        return Err(Refusal::ForeignPool { device, pool: result.pool.clone(), own });
    }
    let device: DeviceName = result.device.parse()?;
    let Some(Found { gpu, mig }) = inventory.find(&device) else {
        return Err(Refusal::UnknownDevice { device: result.device.clone(), pool: pool.clone() });
    };
    let instance = |mig: &Mig| MigInstance { gpu_instance: mig.gpu_instance, compute_instance: mig.compute_instance };
    Ok(PlannedDevice {
        request: base(&result.request).to_owned(),
        uuid: mig.map_or(&gpu.uuid, |mig| &mig.uuid).clone(),
        pci: gpu.pci,
        minor: gpu.minor,
        mig: mig.map(instance),
        admin_access: result.admin_access.unwrap_or(false),
        share_id: result.share_id.clone(),
        device,
    })
}

fn check_configs(driver: &DriverName, claim: &ResourceClaim, allocation: &AllocationResult) -> Result<(), Refusal> {
    let configs = allocation.devices.as_ref().and_then(|devices| devices.config.as_deref()).unwrap_or_default();
    for config in configs {
        let Some(opaque) = &config.opaque else { continue };
        let requests = config.requests.clone().unwrap_or_default();
        let from_claim = config.source == "FromClaim";
        if opaque.driver == driver.as_str() {
            let origin = if from_claim { "the claim" } else { "the device class" };
            config::parse(&opaque.parameters.0).map_err(|error| Refusal::Config { origin, requests, error })?;
        } else if from_claim && has_no_reader(config, claim, results(allocation), driver) {
            return Err(Refusal::OtherDriversConfig { found: opaque.driver.clone(), driver: driver.clone(), requests });
        }
    }
    Ok(())
}

/// Whether all that a config is for is ours, and would be on any other node: of a prioritized list, another entry might be chosen.
fn has_no_reader(
    config: &DeviceAllocationConfiguration,
    claim: &ResourceClaim,
    results: &[DeviceRequestAllocationResult],
    driver: &DriverName,
) -> bool {
    let named: BTreeSet<&str> = config.requests.iter().flatten().map(|request| base(request)).collect();
    let is_meant = |request: &str| named.is_empty() || named.contains(request);
    let devices = claim.spec.iter().filter_map(|spec| spec.devices.as_ref());
    let lists = devices.flat_map(|devices| devices.requests.iter().flatten());
    let has_choice = lists.filter(|request| is_meant(&request.name)).any(|request| request.first_available.is_some());
    !has_choice
        && results
            .iter()
            .filter(|result| is_meant(base(&result.request)))
            .all(|result| result.driver == driver.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::inventory::tests::{gpu, inventory};

    fn claim(status: Value) -> ResourceClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "claim", "namespace": "default", "uid": "uid"},
            "spec": {"devices": {"requests": [
                {"name": "gpu", "exactly": {"deviceClassName": "gpu.aliquot.dev"}},
                {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "x"}]},
            ]}},
            "status": status,
        }))
        .unwrap()
    }

    fn result(request: &str, device: &str) -> Value {
        json!({"request": request, "driver": "gpu.aliquot.dev", "pool": "node-0", "device": device})
    }

    fn allocated(results: Value, config: Value) -> ResourceClaim {
        claim(json!({"allocation": {"devices": {"results": results, "config": config}}}))
    }

    fn try_plan(claim: &ResourceClaim) -> Result<Vec<PlannedDevice>, String> {
        let inventory = inventory(vec![gpu("1b", "GPU-a"), gpu("43", "GPU-b")]);
        let (driver, pool) = ("gpu.aliquot.dev".parse().unwrap(), "node-0".parse().unwrap());
        plan(&driver, &pool, &inventory, claim).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn our_devices_are_planned_in_order_and_others_are_left_to_others() {
        let nic = json!({"request": "nic", "driver": "nic.example.com", "pool": "node-0", "device": "nic-0"});
        let shared = json!({"request": "any/a", "driver": "gpu.aliquot.dev", "pool": "node-0", "device": "gpu-0",
            "adminAccess": true, "shareID": "share"});
        let plan = try_plan(&allocated(json!([result("gpu", "gpu-1"), nic, shared]), json!([]))).unwrap();
        let got: Vec<_> = plan.iter().map(|d| (d.request.as_str(), d.uuid.as_str(), d.admin_access)).collect();
        assert_eq!(got, [("gpu", "GPU-b", false), ("any", "GPU-a", true)]);
        assert_eq!(plan[1].share_id.as_deref(), Some("share"));
    }

    #[test]
    fn a_gpu_excludes_its_parts_and_parts_exclude_only_themselves() {
        let device = |bus: u8, mig: Option<u32>, admin_access| PlannedDevice {
            request: "gpu".to_owned(),
            device: "gpu-0".parse().unwrap(),
            uuid: "GPU-a".parse().unwrap(),
            pci: PciAddress { domain: 0, bus, device: 0, function: 0 },
            minor: 0,
            mig: mig.map(|gpu_instance| MigInstance { gpu_instance, compute_instance: 0 }),
            admin_access,
            share_id: None,
        };
        let (whole, one, two) = (device(1, None, false), device(1, Some(7), false), device(1, Some(8), false));
        let cases = [
            (&whole, &whole, true),
            (&whole, &one, true),
            (&one, &one, true),
            (&one, &two, false),
            (&whole, &device(2, None, false), false),
            (&whole, &device(1, None, true), false),
            (&device(1, Some(7), true), &one, false),
        ];
        for (left, right, excludes) in cases {
            assert_eq!(left.excludes(right), excludes, "{left:?} {right:?}");
            assert_eq!(right.excludes(left), excludes, "{right:?} {left:?}");
        }
    }

    #[test]
    fn what_cannot_be_prepared_here_says_why() {
        let foreign = json!([{"request": "gpu", "driver": "gpu.aliquot.dev", "pool": "node-1", "device": "gpu-0"}]);
        let nic = json!([{"request": "nic", "driver": "nic.example.com", "pool": "p", "device": "nic-0"}]);
        let cases = [
            (claim(json!({})), "the claim isn't allocated"),
            (allocated(nic, json!([])), "the claim's allocation holds no device of driver gpu.aliquot.dev"),
            (
                allocated(foreign, json!([])),
                "device gpu-0 is of pool node-1, this node's pool is node-0: the pod runs on another node than its claim's",
            ),
            (
                allocated(json!([result("gpu", "gpu-7")]), json!([])),
                "device gpu-7 of pool node-0 isn't there (any more)",
            ),
        ];
        for (claim, message) in cases {
            assert_eq!(try_plan(&claim).unwrap_err(), message);
        }
    }

    fn config(source: &str, requests: &[&str], driver: &str, kind: &str) -> Value {
        json!([{"source": source, "requests": requests, "opaque": {"driver": driver,
            "parameters": {"apiVersion": "aliquot.dev/v1alpha1", "kind": kind}}}])
    }

    #[test]
    fn a_config_for_us_is_read_strictly_wherever_it_comes_from() {
        let results = || json!([result("gpu", "gpu-0")]);
        let ours = "gpu.aliquot.dev";
        assert!(try_plan(&allocated(results(), config("FromClass", &[], ours, "GpuConfig"))).is_ok());
        assert_eq!(
            try_plan(&allocated(results(), config("FromClaim", &["gpu"], ours, "GpuConfg"))).unwrap_err(),
            "config of the claim for request gpu: kind \"GpuConfg\" is not known; aliquot.dev/v1alpha1 has GpuConfig"
        );
        assert_eq!(
            try_plan(&allocated(results(), config("FromClass", &[], ours, "GpuConfg"))).unwrap_err(),
            "config of the device class: kind \"GpuConfg\" is not known; aliquot.dev/v1alpha1 has GpuConfig"
        );
    }

    #[test]
    fn a_config_of_another_driver_is_refused_where_nobody_would_read_it() {
        let other = "gpu.nvidia.com";
        for requests in [&[][..], &["gpu"]] {
            let mut claim =
                allocated(json!([result("gpu", "gpu-0")]), config("FromClaim", requests, other, "GpuConfig"));
            let spec = claim.spec.as_mut().unwrap().devices.as_mut().unwrap();
            spec.requests.as_mut().unwrap().retain(|request| request.exactly.is_some());
            let error = try_plan(&claim).unwrap_err();
            assert!(error.contains("is for driver \"gpu.nvidia.com\", but gpu.aliquot.dev serves"), "{error}");
        }
    }

    #[test]
    fn a_config_of_another_driver_is_left_to_it_where_it_may_matter() {
        let other = "gpu.nvidia.com";
        let theirs = json!({"request": "nic", "driver": other, "pool": "node-0", "device": "x"});
        let both = json!([result("gpu", "gpu-0"), theirs]);
        let list = json!([result("any/a", "gpu-0")]);
        for (results, config) in [
            (both, config("FromClaim", &[], other, "GpuConfig")),
            (list.clone(), config("FromClaim", &["any"], other, "GpuConfig")),
            (list, config("FromClaim", &["any/b"], other, "GpuConfig")),
            (json!([result("gpu", "gpu-0")]), config("FromClass", &[], other, "GpuConfig")),
        ] {
            assert!(try_plan(&allocated(results, config)).is_ok());
        }
    }
}

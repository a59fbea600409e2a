//! Which ResourceSlices have to be created, updated or deleted, so that the API shows the node's devices.
//!
//! A pool is complete only when all its slices carry one generation. Its slices have fixed names, so a create that is tried again
//! makes no second slice.

use aliquot_api::ids::{DriverName, PoolName};
use aliquot_api::names::{FENCE_TAINT, FENCE_VALUE, NOT_READY_TAINT};
use k8s_openapi::api::resource::v1::{Device, DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::hash::sha256;

/// Devices in a slice, where one may have a taint (`resource.k8s.io/v1`). Taints come and go; slices had better not move for them.
const DEVICES_PER_SLICE: usize = 64;

/// The longest name of an object.
const NAME_MAX: usize = 253;

/// Digits of a hash that tell long names apart.
const HASH: usize = 16;

/// The node that owns the slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The Node's name.
    pub node: String,
    /// The Node's UID: another one makes the slices garbage.
    pub uid: String,
}

/// What a node wants to show.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Our driver.
    pub driver: DriverName,
    /// The pool's name.
    pub name: PoolName,
    /// The node.
    pub owner: Owner,
    /// The devices, in order, each GPU's together: they stay in one slice.
    pub devices: Vec<Vec<Device>>,
    /// Whether the driver answers. If not, the devices stay, and nobody new gets one.
    pub is_ready: bool,
    /// Whether the controller allocates the devices, and kube-scheduler must not.
    pub is_fenced: bool,
}

/// A write, in the order in which it has to happen.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Delete the slice if it is still this one.
    Delete {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// Replace the slice, which carries the version that it replaces.
    Update(Box<ResourceSlice>),
    /// Create the slice.
    Create(Box<ResourceSlice>),
}

/// What has to be done about the slices that exist.
///
/// `existing` are the driver's slices of this node, of whatever pool.
pub fn plan(pool: &Pool, existing: &[ResourceSlice]) -> Vec<Action> {
    let chunks = chunks(pool);
    let newest = existing.iter().map(|slice| slice.spec.pool.generation).max();
    let wanted = |generation: i64| -> Vec<ResourceSlice> {
        chunks
            .iter()
            .enumerate()
            .map(|(index, devices)| slice(pool, index, devices, chunks.len(), generation))
            .collect()
    };

    let same_generation = wanted(newest.unwrap_or(1));
    let find = |slice: &ResourceSlice| existing.iter().find(|old| old.metadata.name == slice.metadata.name);
    let stale: Vec<&ResourceSlice> = existing
        .iter()
        .filter(|old| !same_generation.iter().any(|slice| slice.metadata.name == old.metadata.name))
        .collect();
    let changed = same_generation.iter().filter(|slice| find(slice).is_some_and(|old| !is_shown(slice, old))).count();
    let missing = same_generation.iter().any(|slice| find(slice).is_none());

    // One changed slice is a new state by itself. Two are seen one after the other, so they need a new generation.
    let slices = match newest {
        Some(newest) if missing || changed > 1 || !stale.is_empty() => wanted(newest + 1),
        _ => same_generation,
    };
    let deletes = stale.into_iter().map(|old| Action::Delete {
        name: old.metadata.name.clone().unwrap_or_default(),
        uid: old.metadata.uid.clone().unwrap_or_default(),
    });
    let mut updates = Vec::new();
    let mut creates = Vec::new();
    for mut slice in slices {
        match find(&slice) {
            None => creates.push(Action::Create(Box::new(slice))),
            Some(old) if is_shown(&slice, old) => {}
            Some(old) => {
                slice.metadata.resource_version.clone_from(&old.metadata.resource_version);
                slice.metadata.uid.clone_from(&old.metadata.uid);
                updates.push(Action::Update(Box::new(slice)));
            }
        }
    }
    deletes.chain(updates).chain(creates).collect()
}

/// The devices of each slice. A node without any shows one slice that says so.
fn chunks(pool: &Pool) -> Vec<Vec<Device>> {
    let mut chunks = vec![Vec::new()];
    for group in &pool.devices {
        let mut devices = group.clone();
        let not_ready = (!pool.is_ready).then(|| no_schedule(NOT_READY_TAINT, None));
        let fence = pool.is_fenced.then(|| no_schedule(FENCE_TAINT, Some(FENCE_VALUE)));
        for taint in not_ready.into_iter().chain(fence) {
            for device in &mut devices {
                device.taints.get_or_insert_default().push(taint.clone());
            }
        }
        match chunks.last_mut() {
            Some(last) if last.len() + devices.len() <= DEVICES_PER_SLICE => last.append(&mut devices),
            Some(_) | None => chunks.push(devices),
        }
    }
    chunks
}

fn no_schedule(key: &str, value: Option<&str>) -> DeviceTaint {
    DeviceTaint {
        key: key.to_owned(),
        value: value.map(ToOwned::to_owned),
        effect: "NoSchedule".to_owned(),
        time_added: None,
    }
}

fn is_shown(wanted: &ResourceSlice, old: &ResourceSlice) -> bool {
    is_same(&wanted.spec, &old.spec) && wanted.metadata.owner_references == old.metadata.owner_references
}

/// Whether a server that was told `wanted` and has `stored` has dropped or changed nothing. It adds when a taint came.
pub fn is_same(wanted: &ResourceSliceSpec, stored: &ResourceSliceSpec) -> bool {
    let mut stored = stored.clone();
    let devices = stored.devices.iter_mut().flatten();
    for taint in devices.flat_map(|device| device.taints.iter_mut().flatten()) {
        taint.time_added = None;
    }
    *wanted == stored
}

fn slice(pool: &Pool, index: usize, devices: &[Device], count: usize, generation: i64) -> ResourceSlice {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: pool.owner.node.clone(),
        uid: pool.owner.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    ResourceSlice {
        metadata: ObjectMeta {
            name: Some(slice_name(pool, index)),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: ResourceSliceSpec {
            driver: pool.driver.to_string(),
            node_name: Some(pool.owner.node.clone()),
            pool: ResourcePool {
                name: pool.name.to_string(),
                generation,
                resource_slice_count: i64::try_from(count).unwrap_or(i64::MAX),
            },
            devices: (!devices.is_empty()).then(|| devices.to_vec()),
            ..ResourceSliceSpec::default()
        },
    }
}

/// kube-scheduler takes slices in the order of their names: the index leads. What is too long ends in a hash of the whole, so that two
/// nodes never share a name.
fn slice_name(pool: &Pool, index: usize) -> String {
    let mut name = format!("{index:05x}-{}-{}", pool.driver, pool.owner.node);
    if name.len() > NAME_MAX {
        let hash = sha256(name.as_bytes());
        name.truncate(NAME_MAX - HASH - 1);
        name.truncate(name.trim_end_matches(['.', '-']).len());
        name = format!("{name}-{}", &hash[..HASH]);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::{gpu, inventory};

    fn pool(devices: usize) -> Pool {
        let device = |n| Device { name: format!("gpu-{n}"), ..Device::default() };
        Pool {
            driver: "gpu.aliquot.dev".parse().unwrap(),
            name: "node-0".parse().unwrap(),
            owner: Owner { node: "node-0".to_owned(), uid: "uid-0".to_owned() },
            devices: (0..devices).map(|n| vec![device(n)]).collect(),
            is_ready: true,
            is_fenced: false,
        }
    }

    /// Carries out a plan as the API server would, refusing what it would refuse.
    fn apply(existing: &mut Vec<ResourceSlice>, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Delete { name, uid } => {
                    let before = existing.len();
                    existing.retain(|old| {
                        old.metadata.name.as_deref() != Some(&name) || old.metadata.uid.as_deref() != Some(&uid)
                    });
                    assert_eq!(existing.len() + 1, before);
                }
                Action::Update(slice) => {
                    let old = existing.iter_mut().find(|old| old.metadata.name == slice.metadata.name).unwrap();
                    assert_eq!(old.metadata.resource_version, slice.metadata.resource_version);
                    *old = *slice;
                    old.metadata.resource_version = Some("2".to_owned());
                }
                Action::Create(mut slice) => {
                    assert!(existing.iter().all(|old| old.metadata.name != slice.metadata.name));
                    assert_eq!(slice.metadata.resource_version, None);
                    slice.metadata.uid = Some(format!("uid-of-{}", slice.metadata.name.as_deref().unwrap()));
                    slice.metadata.resource_version = Some("1".to_owned());
                    existing.push(*slice);
                }
            }
        }
    }

    fn reconcile(pool: &Pool, slices: &mut Vec<ResourceSlice>) {
        let actions = plan(pool, slices);
        apply(slices, actions);
    }

    fn published(pool: &Pool) -> Vec<ResourceSlice> {
        let mut slices = Vec::new();
        reconcile(pool, &mut slices);
        slices
    }

    #[test]
    fn what_is_shown_is_left_alone() {
        for devices in [0, 1, 64, 65] {
            let pool = pool(devices);
            assert_eq!(plan(&pool, &published(&pool)), [], "{devices}");
        }
    }

    #[test]
    fn a_node_without_gpus_shows_an_empty_pool() {
        let slices = published(&pool(0));
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0].spec.devices, None);
    }

    #[test]
    fn every_state_leads_to_a_complete_pool_of_one_generation() {
        let mut slices = published(&pool(300));
        let mut broken = slices.clone();
        broken.remove(1);
        broken[0].spec.devices = None;
        let mut foreign = published(&Pool { name: "other".parse().unwrap(), ..pool(3) });
        foreign[0].metadata.name = Some("by-hand".to_owned());
        for (name, start) in [("none", vec![]), ("shown", slices.clone()), ("broken", broken), ("by hand", foreign)] {
            for wanted in [0, 1, 64, 300, 301] {
                slices.clone_from(&start);
                reconcile(&pool(wanted), &mut slices);
                let devices: usize = slices.iter().map(|slice| slice.spec.devices.as_ref().map_or(0, Vec::len)).sum();
                assert_eq!(devices, wanted, "{name}");
                for slice in &slices {
                    assert_eq!(slice.spec.pool.generation, slices[0].spec.pool.generation, "{name} {wanted}");
                    assert_eq!(usize::try_from(slice.spec.pool.resource_slice_count), Ok(slices.len()), "{name}");
                    assert_eq!(slice.spec.pool.name, "node-0");
                }
                assert_eq!(plan(&pool(wanted), &slices), [], "{name} {wanted}");
            }
        }
    }

    #[test]
    fn one_changed_slice_keeps_the_generation_and_more_raise_it() {
        let mut slices = published(&pool(128));
        let mut changed = pool(128);
        changed.devices[0][0].allow_multiple_allocations = Some(true);
        let actions = plan(&changed, &slices);
        assert_eq!(actions.len(), 1);
        apply(&mut slices, actions);
        assert_eq!(slices[0].spec.pool.generation, 1);

        changed.devices[1][0].allow_multiple_allocations = Some(true);
        changed.devices[127][0].allow_multiple_allocations = Some(true);
        reconcile(&changed, &mut slices);
        assert!(slices.iter().all(|slice| slice.spec.pool.generation == 2));
    }

    #[test]
    fn the_devices_of_a_gpu_stay_together() {
        let of_one_gpu = |n: usize, count: usize| -> Vec<Device> {
            (0..count).map(|m| Device { name: format!("gpu-{n}-{m}"), ..Device::default() }).collect()
        };
        let devices = (0..16).map(|n| of_one_gpu(n, 7)).collect();
        let slices = published(&Pool { devices, ..pool(0) });
        let counts: Vec<usize> = slices.iter().map(|slice| slice.spec.devices.as_ref().unwrap().len()).collect();
        assert_eq!(counts, [63, 49]);
    }

    #[test]
    fn devices_without_a_driver_stay_and_are_tainted() {
        let mut pool = pool(3);
        let mut slices = published(&pool);
        pool.is_ready = false;
        reconcile(&pool, &mut slices);
        let taints = |slices: &[ResourceSlice]| -> Vec<String> {
            let devices = slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
            devices.flat_map(|device| device.taints.iter().flatten()).map(|taint| taint.key.clone()).collect()
        };
        assert_eq!(taints(&slices), [NOT_READY_TAINT; 3]);
        // The server adds a time, which is no change.
        let time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time =
            serde_json::from_str("\"2026-01-01T00:00:00Z\"").unwrap();
        for device in slices[0].spec.devices.iter_mut().flatten() {
            device.taints.as_mut().unwrap()[0].time_added = Some(time.clone());
        }
        assert_eq!(plan(&pool, &slices), []);
        pool.is_ready = true;
        reconcile(&pool, &mut slices);
        assert_eq!(taints(&slices), Vec::<String>::new());
    }

    #[test]
    fn fenced_devices_say_so_beside_what_else_is_wrong_with_them() {
        let mut sick = inventory(vec![gpu("1b", "GPU-a"), gpu("43", "GPU-b")]).devices().0;
        sick[0][0].taints = Some(vec![no_schedule("aliquot.dev/unhealthy", Some("79"))]);
        let mut pool = Pool { devices: sick, is_fenced: true, ..pool(0) };
        let taints = |slices: &[ResourceSlice]| -> Vec<Vec<String>> {
            let devices = slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
            let text = |taint: &DeviceTaint| {
                format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or_default(), taint.effect)
            };
            devices.map(|device| device.taints.iter().flatten().map(text).collect()).collect()
        };
        let (unhealthy, not_ready) =
            ("aliquot.dev/unhealthy=79:NoSchedule", "aliquot.dev/driver-not-ready=:NoSchedule");
        let fence = "aliquot.dev/allocated-by-controller=true:NoSchedule";
        let mut slices = published(&pool);
        assert_eq!(taints(&slices), [vec![unhealthy, fence], vec![fence]]);
        assert_eq!(plan(&pool, &slices), []);
        pool.is_ready = false;
        reconcile(&pool, &mut slices);
        assert_eq!(taints(&slices), [vec![unhealthy, not_ready, fence], vec![not_ready, fence]]);
        (pool.is_ready, pool.is_fenced) = (true, false);
        reconcile(&pool, &mut slices);
        assert_eq!(taints(&slices), [vec![unhealthy], vec![]]);
    }

    #[test]
    fn a_node_that_was_made_again_owns_its_slices() {
        let mut pool = pool(1);
        let mut slices = published(&pool);
        pool.owner.uid = "uid-1".to_owned();
        reconcile(&pool, &mut slices);
        assert_eq!(slices[0].metadata.owner_references.as_ref().unwrap()[0].uid, "uid-1");
    }

    #[test]
    fn long_names_stay_names_and_stay_apart() {
        let name = |last: &str| {
            let node = format!("{}.{}{last}", "n".repeat(236), "m".repeat(15));
            slice_name(&Pool { owner: Owner { node, uid: String::new() }, ..pool(1) }, 0)
        };
        for name in [name("a"), name("b")] {
            assert!(name.len() <= NAME_MAX && name.ends_with(|c: char| c.is_ascii_alphanumeric()), "{name}");
        }
        assert_ne!(name("a"), name("b"));
        assert_eq!(slice_name(&pool(1), 0), "00000-gpu.aliquot.dev-node-0");
    }

    #[test]
    fn devices_reach_the_slice_in_order() {
        let (devices, _) = inventory(vec![gpu("43", "GPU-b"), gpu("1b", "GPU-a")]).devices();
        let slices = published(&Pool { devices, ..pool(0) });
        let names: Vec<&str> = slices[0].spec.devices.iter().flatten().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["gpu-0", "gpu-1"]);
    }
}

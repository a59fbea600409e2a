//! The content of CDI files, by which a container runtime puts a GPU into a container (CDI 0.5.0).
//!
//! Two kinds of files: one for the driver, which all claims refer to, and one for each claim, with little more than its device
//! nodes. So a container that is started again after the driver was upgraded gets the libraries that are there now, not those
//! that were there when its claim was prepared.

use aliquot_api::ids::{ClaimUid, DeviceName, DriverName};
use serde::{Deserialize, Serialize};

/// 0.5.0 is the first that allows digits at the start of a device's name, as claim UIDs have, and a device's path on the host.
const VERSION: &str = "0.5.0";

/// The one device in the driver's file.
const DRIVER_DEVICE: &str = "nvidia";

/// A CDI file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The format's version.
    pub cdi_version: String,
    /// `vendor/class`.
    pub kind: String,
    /// What can be asked for.
    pub devices: Vec<Device>,
}

/// A device that a container can be given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Its name in this file.
    pub name: String,
    /// What it means.
    pub container_edits: Edits,
}

/// Changes to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Edits {
    /// `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Programs that the runtime runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Bind mounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// In the container.
    pub path: String,
    /// `c`, a character device.
    #[serde(rename = "type")]
    pub kind: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Access rights, as in `st_mode`.
    pub file_mode: u32,
    /// What the device cgroup allows.
    pub permissions: String,
}

impl DeviceNode {
    /// A character device that a container may read and write, and not make again elsewhere.
    pub fn new(path: String, major: u32, minor: u32, file_mode: u32) -> Self {
        Self { path, kind: "c".to_owned(), major, minor, file_mode, permissions: "rw".to_owned() }
    }
}

/// A program that the runtime runs as root, while the container has none of its own processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// When.
    pub hook_name: String,
    /// Which program, on the host.
    pub path: String,
    /// Its arguments, with its name.
    pub args: Vec<String>,
    /// Its environment. Never empty: a runtime would pass on the image's, `LD_PRELOAD` included.
    pub env: Vec<String>,
    /// Seconds, after which the runtime ends it: an image may hold what takes for ever to read.
    pub timeout: u32,
}

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// On the host.
    pub host_path: String,
    /// In the container.
    pub container_path: String,
    /// As `mount -o` spells them.
    pub options: Vec<String>,
}

/// The files of a driver that a container needs. Paths are absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverFiles {
    /// The folder on the host below which the driver has its files; `/` where it is installed as usual.
    pub host_root: String,
    /// Libraries, programs and firmware, as paths below the root, which are their paths in a container too.
    pub files: Vec<String>,
    /// Sockets of the driver's services, likewise.
    pub sockets: Vec<String>,
    /// Links beside libraries: (target, path).
    pub links: Vec<(String, String)>,
    /// The folders that the loader has to know.
    pub library_folders: Vec<String>,
    /// Device nodes that belong to no one GPU.
    pub control_nodes: Vec<DeviceNode>,
}

/// The kind of the driver's file.
fn driver_kind(driver: &DriverName) -> String {
    format!("{driver}/driver")
}

fn claim_kind(driver: &DriverName) -> String {
    format!("{driver}/claim")
}

fn claim_device(claim: &ClaimUid, device: &DeviceName) -> String {
    format!("{claim}-{device}")
}

/// The file name of the driver's spec.
pub fn driver_file(driver: &DriverName) -> String {
    format!("{driver}-driver.json")
}

/// The file name of a claim's spec.
pub fn claim_file(driver: &DriverName, claim: &ClaimUid) -> String {
    format!("{driver}-claim_{claim}.json")
}

/// The claim whose file this is, if it is one of ours.
pub fn claim_of_file(driver: &DriverName, file: &str) -> Option<ClaimUid> {
    file.strip_prefix(driver.as_str())?.strip_prefix("-claim_")?.strip_suffix(".json")?.parse().ok()
}

/// What a container's runtime is asked for, so that it gets `device` as part of `claim`.
pub fn device_ids(driver: &DriverName, claim: &ClaimUid, device: &DeviceName) -> Vec<String> {
    vec![
        format!("{}={DRIVER_DEVICE}", driver_kind(driver)),
        format!("{}={}", claim_kind(driver), claim_device(claim, device)),
    ]
}

/// The spec that all claims share. `hook` is our hook program's path on the host.
pub fn driver_spec(driver: &DriverName, files: &DriverFiles, hook: &str) -> Spec {
    let on_host = |path: &str| format!("{}{path}", files.host_root.trim_end_matches('/'));
    let mount = |path: &String, options: &[&str]| Mount {
        host_path: on_host(path),
        container_path: path.clone(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
    };
    let read_only = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
    let socket = ["rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"];
    let mounts = files.files.iter().map(|path| mount(path, &read_only));
    let sockets = files.sockets.iter().map(|path| mount(path, &socket));

    let run = |command: &str, options: Vec<String>| Hook {
        hook_name: "createContainer".to_owned(),
        path: hook.to_owned(),
        args: ["aliquot-cdi-hook", command].map(str::to_owned).into_iter().chain(options).collect(),
        env: vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
        timeout: 30,
    };
    let mut hooks = Vec::new();
    if !files.links.is_empty() {
        let links = files.links.iter().flat_map(|(target, link)| ["--link".to_owned(), format!("{target}::{link}")]);
        hooks.push(run("create-symlinks", links.collect()));
    }
    if !files.library_folders.is_empty() {
        let folders = files.library_folders.iter().flat_map(|folder| ["--folder".to_owned(), folder.clone()]);
        let host = ["--ldconfig", "/sbin/ldconfig"].map(str::to_owned);
        hooks.push(run("update-ldcache", host.into_iter().chain(folders).collect()));
    }
    let container_edits = Edits {
        // A container toolkit that still acts on this variable leaves the container alone.
        env: vec!["NVIDIA_VISIBLE_DEVICES=void".to_owned()],
        device_nodes: files.control_nodes.clone(),
        hooks,
        mounts: mounts.chain(sockets).collect(),
    };
    Spec {
        cdi_version: VERSION.to_owned(),
        kind: driver_kind(driver),
        devices: vec![Device { name: DRIVER_DEVICE.to_owned(), container_edits }],
    }
}

/// The spec of a claim: for each of its devices, the nodes that make it visible.
pub fn claim_spec<'a>(
    driver: &DriverName,
    claim: &ClaimUid,
    devices: impl IntoIterator<Item = (&'a DeviceName, Vec<DeviceNode>)>,
) -> Spec {
    let device = |(name, device_nodes): (&DeviceName, _)| Device {
        name: claim_device(claim, name),
        container_edits: Edits { device_nodes, ..Edits::default() },
    };
    Spec {
        cdi_version: VERSION.to_owned(),
        kind: claim_kind(driver),
        devices: devices.into_iter().map(device).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver() -> DriverName {
        "gpu.aliquot.dev".parse().unwrap()
    }

    fn files() -> DriverFiles {
        DriverFiles {
            host_root: "/run/nvidia/driver".to_owned(),
            files: vec!["/usr/lib64/libcuda.so.570.1".to_owned()],
            sockets: vec!["/run/nvidia-persistenced/socket".to_owned()],
            links: vec![("libcuda.so.570.1".to_owned(), "/usr/lib64/libcuda.so.1".to_owned())],
            library_folders: vec!["/usr/lib64".to_owned()],
            control_nodes: vec![DeviceNode::new("/dev/nvidiactl".to_owned(), 195, 255, 0o666)],
        }
    }

    #[test]
    fn the_drivers_spec_is_what_a_runtime_reads() {
        let spec = driver_spec(&driver(), &files(), "/var/lib/kubelet/plugins/gpu.aliquot.dev/aliquot-cdi-hook");
        let edits = serde_json::to_value(&spec.devices[0].container_edits).unwrap();
        let expected = serde_json::json!({
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255, "fileMode": 0o666, "permissions": "rw"}],
            "hooks": [
                {"hookName": "createContainer", "path": "/var/lib/kubelet/plugins/gpu.aliquot.dev/aliquot-cdi-hook",
                 "args": ["aliquot-cdi-hook", "create-symlinks", "--link", "libcuda.so.570.1::/usr/lib64/libcuda.so.1"],
                 "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "timeout": 30},
                {"hookName": "createContainer", "path": "/var/lib/kubelet/plugins/gpu.aliquot.dev/aliquot-cdi-hook",
                 "args": ["aliquot-cdi-hook", "update-ldcache", "--ldconfig", "/sbin/ldconfig", "--folder", "/usr/lib64"],
                 "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "timeout": 30},
            ],
            "mounts": [
                {"hostPath": "/run/nvidia/driver/usr/lib64/libcuda.so.570.1", "containerPath": "/usr/lib64/libcuda.so.570.1",
                 "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]},
                {"hostPath": "/run/nvidia/driver/run/nvidia-persistenced/socket", "containerPath": "/run/nvidia-persistenced/socket",
                 "options": ["rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"]},
            ],
        });
        assert_eq!(edits, expected);
    }

    #[test]
    fn a_driver_in_its_usual_place_has_the_same_paths_on_both_sides() {
        let spec = driver_spec(&driver(), &DriverFiles { host_root: "/".to_owned(), ..files() }, "/hook");
        for mount in &spec.devices[0].container_edits.mounts {
            assert_eq!(mount.host_path, mount.container_path);
        }
    }

    #[test]
    fn ids_name_devices_of_the_two_specs() {
        let (driver, claim): (_, ClaimUid) = (driver(), "0a-uid".parse().unwrap());
        let device: DeviceName = "gpu-3".parse().unwrap();
        let node = DeviceNode::new("/dev/nvidia3".to_owned(), 195, 3, 0o666);
        let specs = [driver_spec(&driver, &files(), "/hook"), claim_spec(&driver, &claim, [(&device, vec![node])])];
        let known: Vec<String> = specs
            .iter()
            .flat_map(|spec| spec.devices.iter().map(move |device| format!("{}={}", spec.kind, device.name)))
            .collect();
        assert_eq!(device_ids(&driver, &claim, &device), known);
    }

    #[test]
    fn a_claims_file_is_recognised_and_others_are_not() {
        let (driver, claim): (_, ClaimUid) = (driver(), "0a-uid".parse().unwrap());
        assert_eq!(claim_of_file(&driver, &claim_file(&driver, &claim)), Some(claim));
        for other in ["gpu.aliquot.dev-driver.json", "gpu.aliquot.dev-claim_.json", "k8s.gpu.nvidia.com-claim_x.json"] {
            assert_eq!(claim_of_file(&driver, other), None, "{other}");
        }
    }
}

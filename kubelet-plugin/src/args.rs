//! The command line. Each flag is an environment variable too, so that the chart sets names and not positions.

use std::net::SocketAddr;
use std::path::PathBuf;

use aliquot_api::ids::DriverName;
use aliquot_api::names::DRIVER;
use clap::{Parser, ValueEnum};

/// Publishes a node's GPUs as `ResourceSlices` and prepares them for the pods that kubelet starts.
#[derive(Debug, Parser)]
#[command(name = "aliquot-kubelet-plugin", version)]
pub(crate) struct Args {
    /// The node that this runs on
    #[arg(long, env = "ALIQUOT_NODE_NAME")]
    pub node_name: String,

    /// UID of the pod that this runs in: keeps the sockets of two versions apart during an upgrade
    #[arg(long, env = "ALIQUOT_POD_UID", default_value = "plugin")]
    pub pod_uid: String,

    /// The driver's name in slices, claims and classes
    #[arg(long, env = "ALIQUOT_DRIVER_NAME", default_value = DRIVER)]
    pub driver_name: DriverName,

    /// Taint all devices, so that the controller allocates them and kube-scheduler doesn't
    #[arg(long, env = "ALIQUOT_FENCE")]
    pub fence: bool,

    /// Folder with the GPU driver's files, as seen from here
    #[arg(long, env = "ALIQUOT_DRIVER_ROOT", default_value = "/")]
    pub driver_root: PathBuf,

    /// The same folder on the host [default: the driver root]
    #[arg(long, env = "ALIQUOT_HOST_DRIVER_ROOT")]
    pub host_driver_root: Option<PathBuf>,

    /// Path of libnvidia-ml.so.1, as seen from here [default: found below the driver root]
    #[arg(long, env = "ALIQUOT_LIBRARY")]
    pub library: Option<PathBuf>,

    /// Folder with the GPUs' device nodes
    #[arg(long, env = "ALIQUOT_DEV_ROOT", default_value = "/dev")]
    pub dev_root: PathBuf,

    /// Where sysfs is mounted
    #[arg(long, env = "ALIQUOT_SYS_ROOT", default_value = "/sys")]
    pub sys_root: PathBuf,

    /// Where the host's procfs is mounted
    #[arg(long, env = "ALIQUOT_PROC_ROOT", default_value = "/proc")]
    pub proc_root: PathBuf,

    /// Kubelet's folder, the same here as on the host
    #[arg(long, env = "ALIQUOT_KUBELET_ROOT", default_value = "/var/lib/kubelet")]
    pub kubelet_root: PathBuf,

    /// Where container runtimes look for CDI files
    #[arg(long, env = "ALIQUOT_CDI_ROOT", default_value = "/var/run/cdi")]
    pub cdi_root: PathBuf,

    /// The hook program that is installed on the host
    #[arg(long, env = "ALIQUOT_CDI_HOOK", default_value = "/usr/bin/aliquot-cdi-hook")]
    pub cdi_hook: PathBuf,

    /// Address for /livez, /readyz and /metrics
    #[arg(long, env = "ALIQUOT_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,

    /// Form of the log
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Which messages: error, warn, info, debug, trace, or per module as in `info,kube=debug`
    #[arg(long, env = "ALIQUOT_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// A JSON object per line.
    Json,
    /// For people.
    Text,
}

impl Args {
    /// Our folder below kubelet's.
    pub(crate) fn plugin_folder(&self) -> PathBuf {
        self.kubelet_root.join("plugins").join(self.driver_name.as_str())
    }

    /// Where kubelet looks for plugins.
    pub(crate) fn registry_folder(&self) -> PathBuf {
        self.kubelet_root.join("plugins_registry")
    }
}

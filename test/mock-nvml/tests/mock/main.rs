//! The library as programs load it, from a driver that the tool laid out.
//!
//! Needs root, for device nodes. Every test has a driver, and so a library, of its own.

#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod basics;
mod exchange;
mod health;
mod life_cycle;
mod links;
mod machines;
mod mig;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};
use tempfile::TempDir;

const TOOL: &str = env!("CARGO_BIN_EXE_mock-nvml");
const DRIVER: &str = "580.95.05";

/// The library that cargo built with this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    [deps, Path::new(TOOL).parent().unwrap()]
        .map(|folder| folder.join("libnvidia_ml_mock.so"))
        .into_iter()
        .find(|library| library.exists())
        .unwrap()
}

fn machine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines").join(name)
}

/// A folder with a driver and device nodes.
struct Node {
    folder: TempDir,
}

impl Node {
    fn new(machine_name: &str) -> Self {
        let node = Self { folder: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
        node.lay_out(&machine(machine_name), "node-0");
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn try_lay_out(&self, machine: &Path, name: &str) -> Output {
        Command::new(TOOL)
            .arg("layout")
            .arg(machine)
            .args(["--node", name])
            .arg("--root")
            .arg(self.path("root"))
            .arg("--dev")
            .arg(self.path("dev"))
            .arg("--library")
            .arg(library())
            .output()
            .unwrap()
    }

    fn lay_out(&self, machine: &Path, name: &str) {
        let output = self.try_lay_out(machine, name);
        assert!(output.status.success(), "{output:?}");
    }

    /// The folder with the libraries.
    fn libraries(&self) -> PathBuf {
        ["lib/x86_64-linux-gnu", "lib64"]
            .map(|folder| self.path("root/usr").join(folder))
            .into_iter()
            .find(|folder| folder.join("libnvidia-ml.so.1").exists())
            .unwrap()
    }

    fn state_file(&self) -> PathBuf {
        self.libraries().join(format!("libnvidia-mock.so.{DRIVER}"))
    }

    fn try_nvml(&self) -> Result<Nvml, NvmlError> {
        Nvml::builder().lib_path(self.libraries().join("libnvidia-ml.so.1").as_os_str()).init()
    }

    fn nvml(&self) -> Nvml {
        self.try_nvml().unwrap()
    }

    /// The library without the wrapper, not initialised.
    fn raw(&self) -> NvmlLib {
        // SAFETY: the library has no constructors.
        unsafe { NvmlLib::new(self.libraries().join("libnvidia-ml.so.1")) }.unwrap()
    }

    /// Does something where the driver is mounted read-only, as in a container.
    fn in_container(&self, work: impl FnOnce() + Send) {
        use rustix::mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change, mount_remount};
        use rustix::thread::{UnshareFlags, unshare_unsafe};

        let root = self.path("root");
        let enter = || {
            // SAFETY: nothing is shared with other threads but the file system's attributes and the mounts.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
            mount_bind(&root, &root).unwrap();
            mount_remount(&root, MountFlags::BIND | MountFlags::RDONLY, c"").unwrap();
            assert!(std::fs::write(root.join("new"), "").is_err());
            work();
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap());
    }

    fn set(&self, gpu: &str, change: [&str; 2]) -> Output {
        self.tool(&["set", "--gpu", gpu, change[0], change[1]])
    }

    /// Runs the tool for this node.
    fn tool(&self, command: &[&str]) -> Output {
        Command::new(TOOL).args(command).arg("--root").arg(self.path("root")).output().unwrap()
    }

    /// Runs the tool for this node, which must succeed.
    fn make(&self, command: &[&str]) {
        let output = self.tool(command);
        assert!(output.status.success(), "{output:?}");
    }

    fn show(&self) -> serde_json::Value {
        let output = Command::new(TOOL).args(["show", "--json", "--root"]).arg(self.path("root")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn nvidia_smi(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("root/usr/bin/nvidia-smi"));
        command.args(arguments);
        command
    }
}

fn devices(nvml: &Nvml) -> Vec<Device<'_>> {
    (0..nvml.device_count().unwrap()).map(|index| nvml.device_by_index(index).unwrap()).collect()
}

/// A device's handle.
fn handle(nvml: &Nvml, index: u32) -> nvmlDevice_t {
    // SAFETY: the library stays loaded, and refuses handles from before it was initialised.
    unsafe { nvml.device_by_index(index).unwrap().handle() }
}

/// What `call` puts into a value, or the code that it answers.
fn out<T>(call: impl FnOnce(*mut T) -> u32) -> Result<T, u32> {
    let mut value = std::mem::MaybeUninit::zeroed();
    match call(value.as_mut_ptr()) {
        // SAFETY: all types that are asked for are good when they are zero.
        0 => Ok(unsafe { value.assume_init() }),
        code => Err(code),
    }
}

/// Without the value.
fn done(code: u32) -> Result<(), u32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// Takes from this thread the right to mount file systems, which is also the right to change GPUs.
fn without_mount_rights() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    let mut rights = capabilities(None).unwrap();
    rights.effective.remove(CapabilitySet::SYS_ADMIN);
    rights.permitted.remove(CapabilitySet::SYS_ADMIN);
    set_capabilities(None, rights).unwrap();
}

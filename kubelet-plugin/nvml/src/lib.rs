//! What the GPU driver's management library (NVML) says, in Aliquot's words.
//!
//! The library is the driver's own, loaded by path from wherever the driver lives. Its calls may block for seconds: callers keep
//! them on threads of their own. One GPU that fails to answer is a [`Problem`] and costs no other GPU.

mod links;
mod mig;
mod raw;
mod xids;

use std::path::{Path, PathBuf};

use aliquot_api::ids::{IdError, PciAddress};
use aliquot_device::observation::{Driver, Gpu, Problem};
use nvml_wrapper::enum_wrappers::device::Brand;
use nvml_wrapper::enums::device::DeviceArchitecture;
use nvml_wrapper::error::NvmlError as Cause;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};

pub use xids::Xids;

/// The library couldn't be used at all.
#[derive(Debug, thiserror::Error)]
#[error("{}: {doing}: {cause}", .library.display())]
pub struct NvmlError {
    /// The library's path.
    pub library: PathBuf,
    /// What was tried.
    pub doing: &'static str,
    /// What it said.
    #[source]
    pub cause: Cause,
}

/// A loaded, initialized library. Dropping it lets the driver go.
#[derive(Debug)]
pub struct Library {
    nvml: Nvml,
    path: PathBuf,
}

impl Library {
    /// Loads the library at `path` and connects to the driver.
    pub fn load(path: &Path) -> Result<Self, NvmlError> {
        let failed = |cause| NvmlError { library: path.to_owned(), doing: "load and initialize", cause };
        let nvml = Nvml::builder().lib_path(path.as_os_str()).init().map_err(failed)?;
        Ok(Self { nvml, path: path.to_owned() })
    }

    /// The driver's versions.
    pub fn driver(&self) -> Result<Driver, NvmlError> {
        let version = self.nvml.sys_driver_version().map_err(self.failed("ask for the driver's version"))?;
        let cuda = self.nvml.sys_cuda_driver_version().ok().and_then(cuda_version);
        Ok(Driver { version, cuda })
    }

    /// How many GPUs there are.
    pub fn count(&self) -> Result<u32, NvmlError> {
        self.nvml.device_count().map_err(self.failed("count the GPUs"))
    }

    fn failed(&self, doing: &'static str) -> impl Fn(Cause) -> NvmlError + '_ {
        move |cause| NvmlError { library: self.path.clone(), doing, cause }
    }

    /// Asks for one GPU, by its place in the driver's list.
    pub fn gpu(&self, index: u32) -> Result<Gpu, Problem> {
        let by_index = |reason: String| Problem { index, pci: None, reason };
        let device = self.nvml.device_by_index(index).map_err(|cause| by_index(cause.to_string()))?;
        let bus_id = device.pci_info().map_err(|cause| by_index(cause.to_string()))?.bus_id;
        let pci: PciAddress = bus_id.parse().map_err(|error: IdError| by_index(error.to_string()))?;
        describe(&self.nvml, &device, pci).map_err(|reason| Problem { index, pci: Some(pci), reason })
    }
}

/// What must be known of a GPU, and what may be.
fn describe(nvml: &Nvml, device: &Device<'_>, pci: PciAddress) -> Result<Gpu, String> {
    let said = |what: &'static str| move |cause: Cause| format!("{what}: {cause}");
    let uuid = device.uuid().map_err(said("UUID"))?;
    let memory = absent_if_unsupported(device.memory_info()).map_err(said("memory"))?;
    let uuid = uuid.parse().map_err(|error: IdError| error.to_string())?;
    let minor = device.minor_number().map_err(said("minor number"))?;
    Ok(Gpu {
        product_name: Some(device.name().map_err(said("name"))?),
        brand: device.brand().ok().and_then(brand).map(str::to_owned),
        architecture: device.architecture().ok().and_then(architecture).map(str::to_owned),
        compute_capability: device
            .cuda_compute_capability()
            .ok()
            .and_then(|version| Some((u32::try_from(version.major).ok()?, u32::try_from(version.minor).ok()?))),
        memory: memory.as_ref().map(|memory| memory.total),
        nvlink: links::nvlink(nvml, device),
        mig: mig::devices(nvml, device, memory.as_ref().map(|memory| memory.total))?,
        ..Gpu::new(uuid, pci, minor)
    })
}

/// A GPU without something says so, and an older driver has no words for it. Any other error is an error: a memory figure that is lost for a moment must not be published
/// as none.
fn absent_if_unsupported<T>(answer: Result<T, Cause>) -> Result<Option<T>, Cause> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Cause::NotSupported | Cause::FunctionNotFound | Cause::FailedToLoadSymbol(_)) => Ok(None),
        Err(cause) => Err(cause),
    }
}

fn cuda_version(version: i32) -> Option<(u32, u32)> {
    let major = u32::try_from(cuda_driver_version_major(version)).ok()?;
    Some((major, u32::try_from(cuda_driver_version_minor(version)).ok()?))
}

/// As the driver's tools print it.
fn brand(brand: Brand) -> Option<&'static str> {
    Some(match brand {
        Brand::Unknown => return None,
        Brand::Quadro => "Quadro",
        Brand::Tesla => "Tesla",
        Brand::NVS => "NVS",
        Brand::GRID => "GRID",
        Brand::GeForce => "GeForce",
        Brand::Titan => "Titan",
        Brand::VApps => "NvidiaVApps",
        Brand::VPC => "NvidiaVPC",
        Brand::VCS => "NvidiaVCS",
        Brand::VWS => "NvidiaVWS",
        Brand::VGaming | Brand::CloudGaming => "NvidiaCloudGaming",
        Brand::QuadroRTX => "QuadroRTX",
        Brand::NvidiaRTX => "NvidiaRTX",
        Brand::Nvidia => "Nvidia",
        Brand::GeForceRTX => "GeForceRTX",
        Brand::TitanRTX => "TitanRTX",
    })
}

/// As the driver's tools print it.
fn architecture(architecture: DeviceArchitecture) -> Option<&'static str> {
    Some(match architecture {
        DeviceArchitecture::Kepler => "Kepler",
        DeviceArchitecture::Maxwell => "Maxwell",
        DeviceArchitecture::Pascal => "Pascal",
        DeviceArchitecture::Volta => "Volta",
        DeviceArchitecture::Turing => "Turing",
        DeviceArchitecture::Ampere => "Ampere",
        DeviceArchitecture::Ada => "Ada Lovelace",
        DeviceArchitecture::Hopper => "Hopper",
        DeviceArchitecture::Blackwell => "Blackwell",
        DeviceArchitecture::Unknown => return None,
    })
}

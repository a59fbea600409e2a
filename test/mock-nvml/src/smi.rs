//! What people call to see their GPUs. It asks the library that the loader finds, like any program in a container.

use std::fmt::Write;
use std::process::ExitCode;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};

/// Exit codes of NVIDIA's program.
mod exit {
    pub(super) const INVALID_ARGUMENT: u8 = 2;
    pub(super) const NO_DEVICES: u8 = 6;
    pub(super) const NO_DRIVER: u8 = 9;
    pub(super) const NO_LIBRARY: u8 = 12;
    pub(super) const OTHER: u8 = 255;
}

/// The program `nvidia-smi`.
pub(crate) fn main() -> ExitCode {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    let print = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => table,
        ["-L" | "--list-gpus"] => list,
        _ => {
            eprintln!("Invalid combination of input arguments. This nvidia-smi knows -L only, and no argument.");
            return exit::INVALID_ARGUMENT.into();
        }
    };
    match run(print) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err((message, code)) => {
            println!("{message}");
            code.into()
        }
    }
}

/// What to print, or what went wrong and an exit code.
fn run(print: fn(&Nvml, &[Device<'_>]) -> Result<String, NvmlError>) -> Result<String, (String, u8)> {
    let nvml = Nvml::init().map_err(|error| match error {
        NvmlError::LibloadingError(_) => {
            let message = "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the \
                           NVIDIA Display Driver is properly installed and present in your system.";
            (message.to_owned(), exit::NO_LIBRARY)
        }
        NvmlError::DriverNotLoaded => {
            let message = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure \
                           that the latest NVIDIA driver is installed and running.";
            (message.to_owned(), exit::NO_DRIVER)
        }
        error => (format!("Failed to initialize NVML: {error}"), exit::OTHER),
    })?;
    let devices = nvml
        .device_count()
        .and_then(|count| (0..count).map(|index| nvml.device_by_index(index)).collect::<Result<Vec<_>, _>>())
        .map_err(|error| (format!("Unable to determine the device handles: {error}"), exit::OTHER))?;
    if devices.is_empty() {
        return Err(("No devices were found".to_owned(), exit::NO_DEVICES));
    }
    print(&nvml, &devices).map_err(|error| (format!("Unable to ask a device: {error}"), exit::OTHER))
}

fn list(_: &Nvml, devices: &[Device<'_>]) -> Result<String, NvmlError> {
    let mut text = String::new();
    // Writing to a string can't fail.
    for device in devices {
        let (index, name, uuid) = (device.index()?, device.name()?, device.uuid()?);
        let _ = writeln!(text, "GPU {index}: {name} (UUID: {uuid})");
        for index in 0..device.mig_device_count()? {
            let mig_device = match device.mig_device_by_index(index) {
                Err(NvmlError::NotFound) => continue,
                result => result?,
            };
            let (name, uuid) = (mig_device.name()?, mig_device.uuid()?);
            let profile = name.rsplit_once(" MIG ").map_or(name.as_str(), |(_, profile)| profile);
            let _ = writeln!(text, "  MIG {profile:<12}Device {index:>2}: (UUID: {uuid})");
        }
    }
    Ok(text)
}

fn table(nvml: &Nvml, devices: &[Device<'_>]) -> Result<String, NvmlError> {
    let driver = nvml.sys_driver_version()?;
    let cuda = nvml.sys_cuda_driver_version()?;
    let cuda = format!("{}.{}", cuda_driver_version_major(cuda), cuda_driver_version_minor(cuda));
    let line = format!("+{}+\n", "-".repeat(85));
    let row = |text: String| format!("| {text:<83} |\n");
    let mut table = line.clone();
    table += &row(format!("NVIDIA-SMI {driver:<18} Driver Version: {driver:<18} CUDA Version: {cuda}"));
    table += &line;
    table += &row(format!("{:>3}  {:<42} {:<18} {:>16}", "GPU", "Name", "Bus-Id", "Memory"));
    table += &line;
    for device in devices {
        let memory = match device.memory_info() {
            Ok(memory) => format!("{}MiB", memory.total >> 20),
            Err(NvmlError::NotSupported) => "Not Supported".to_owned(),
            Err(error) => return Err(error),
        };
        let (index, name, bus_id) = (device.index()?, device.name()?, device.pci_info()?.bus_id);
        table += &row(format!("{index:>3}  {name:<42} {bus_id:<18} {memory:>16}"));
    }
    Ok(table + &line)
}

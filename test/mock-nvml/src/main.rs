//! Makes machines that seem to have GPUs, looks at them and changes them. Called as `nvidia-smi`, it is that program.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod compile;
mod elf;
mod files;
mod inject;
mod inspect;
mod layout;
mod models;
mod smi;

#[derive(Parser)]
#[command(name = "mock-nvml", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes a state file from a machine file
    Compile {
        #[command(flatten)]
        machine: MachineArguments,
        /// The state file to write
        #[arg(long)]
        out: PathBuf,
    },
    /// Lays out the files of a GPU driver, and the device nodes, as on a node with such GPUs
    Layout {
        #[command(flatten)]
        machine: MachineArguments,
        /// The folder for the driver's files, such as /run/nvidia/driver
        #[arg(long)]
        root: PathBuf,
        /// The library to install, as cargo built it
        #[arg(long)]
        library: PathBuf,
    },
    /// Prints the state of a node's GPUs
    Show {
        /// The folder with the driver's files
        #[arg(long)]
        root: PathBuf,
        /// Print JSON instead of YAML
        #[arg(long)]
        json: bool,
    },
    /// Changes the state of a node's GPUs; all processes see it at once
    Set(inspect::Changes),
    /// Lets a critical error happen to a GPU
    Xid(inject::Xid),
    /// Lets a function fail, block, or take its time
    Fault(inject::FunctionFault),
    /// Lets processes seem to use GPUs
    #[command(subcommand)]
    Process(inject::Processes),
    /// Makes and destroys partitions
    #[command(subcommand)]
    Mig(inject::Mig),
    /// Resets a GPU
    Reset(inject::Target),
    /// Takes a driver away: its files, its device nodes, and the answers that programs get from it
    Remove {
        /// The folder with the driver's files
        #[arg(long)]
        root: PathBuf,
        /// The folder with the device nodes
        #[arg(long, default_value = "/dev")]
        dev: PathBuf,
    },
}

#[derive(clap::Args)]
struct MachineArguments {
    /// The machine file
    machine: PathBuf,
    /// The node's name: GPUs of different nodes have different UUIDs
    #[arg(long)]
    node: String,
    /// The folder for the device nodes. The library will look for them there
    #[arg(long, default_value = "/dev")]
    dev: PathBuf,
}

fn main() -> ExitCode {
    let called_as = std::env::args_os().next().unwrap_or_default();
    if Path::new(&called_as).file_name().is_some_and(|name| name == "nvidia-smi") {
        return smi::main();
    }
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mock-nvml: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Box<dyn std::error::Error>> {
    match command {
        Command::Compile { machine, out } => {
            let (_, state) = compile::load(&machine)?;
            files::put_state(&out, &state)?;
        }
        Command::Layout { machine, root, library } => {
            let (facts, state) = compile::load(&machine)?;
            layout::layout(&facts, &state, &root, &machine.dev, &library)?;
        }
        Command::Show { root, json } => print!("{}", inspect::show(&root, json)?),
        Command::Set(changes) => inspect::set(&changes)?,
        Command::Xid(xid) => inject::xid(&xid)?,
        Command::Fault(fault) => inject::fault(&fault)?,
        Command::Process(command) => inject::processes(&command)?,
        Command::Mig(command) => inject::mig(&command)?,
        Command::Reset(target) => inject::reset(&target)?,
        Command::Remove { root, dev } => layout::remove_driver(&root, &dev)?,
    }
    Ok(())
}

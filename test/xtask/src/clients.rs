//! kubectl and helm on one cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::kubernetes;
use crate::paths::Paths;
use crate::process::{Program, Step, find, step};

/// The namespace and the release of the chart.
pub(crate) const NAMESPACE: &str = "aliquot";
const RELEASE: &str = "aliquot";

/// The two clients.
pub(crate) struct Clients {
    /// Programs that start with these words.
    kubectl: Program,
    helm: Program,
}

/// What a chart is installed with.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) files: Vec<PathBuf>,
    /// The plugin's image, with a tag; the chart's own if there is none.
    pub(crate) image: Option<String>,
}

impl Clients {
    /// Those of a test cluster.
    pub(crate) fn of_build(kubernetes: &Path, kubeconfig: &Path) -> Self {
        let client = |name| Program::new(kubernetes.join("kube")).arg(name).env("KUBECONFIG", kubeconfig);
        Self { kubectl: client("kubectl"), helm: client("helm") }
    }

    /// The machine's own for somebody's cluster; built here if it has none.
    pub(crate) fn of_machine(paths: &Paths, kubeconfig: &Path) -> Result<Self> {
        if ["kubectl", "helm"].iter().any(|name| find(name.as_ref()).is_none()) {
            return Ok(Self::of_build(&kubernetes::build(paths)?, kubeconfig));
        }
        let client = |name| Program::new(name).env("KUBECONFIG", kubeconfig);
        Ok(Self { kubectl: client("kubectl"), helm: client("helm") })
    }

    pub(crate) fn kubectl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Program {
        self.kubectl.clone().args(args)
    }

    /// `kubectl get -o json`.
    pub(crate) fn get(&self, step: &mut Step, args: &[&str]) -> Result<Value> {
        let program = self.kubectl(["get", "--output", "json"]).args(args);
        let text = step.output(&program)?;
        serde_json::from_str(&text).map_err(|error| Error::Answer { command: program.shown(), why: error.to_string() })
    }

    /// Installs the chart, or upgrades it.
    pub(crate) fn install_chart(&self, paths: &Paths, log: &Path, values: &Values) -> Result<()> {
        step("install the chart", log, |step| {
            self.recover_release(step)?;
            let mut helm = self.helm.clone().args(["upgrade", "--install", "--wait", "--timeout", "3m"]);
            helm = helm.args(["--namespace", NAMESPACE, "--create-namespace", RELEASE]).arg(paths.chart());
            for file in &values.files {
                helm = helm.arg("--values").arg(file);
            }
            if let Some((repository, tag)) = values.image.as_deref().and_then(split_reference) {
                helm = helm.args(["--set-string", &format!("image.repository={repository}")]);
                helm = helm.args(["--set-string", &format!("image.tag={tag}")]);
            }
            step.run(&helm)
        })
    }

    /// Helm refuses to touch a release whose last change was cut off.
    fn recover_release(&self, step: &mut Step) -> Result<()> {
        let list = self.helm.clone().args(["list", "--deployed", "--failed", "--pending", "--uninstalling"]);
        let list = list.args(["--namespace", NAMESPACE, "--output", "json"]);
        let text = step.output(&list)?;
        let releases: Value = serde_json::from_str(&text)
            .map_err(|error| Error::Answer { command: list.shown(), why: error.to_string() })?;
        let release = releases.as_array().into_iter().flatten().find(|release| release["name"] == RELEASE);
        let status = release.and_then(|release| release["status"].as_str()).unwrap_or_default();
        let verb = match status {
            "pending-upgrade" | "pending-rollback" => "rollback",
            "pending-install" | "uninstalling" => "uninstall",
            _ => return Ok(()),
        };
        step.run(&self.helm.clone().args([verb, RELEASE, "--namespace", NAMESPACE, "--wait"]))
    }

    /// Waits until every node with a GPU says what it has. Gives back the number of devices.
    pub(crate) fn wait_for_devices(&self, log: &Path, nodes: usize) -> Result<usize> {
        step("wait for the nodes' GPUs", log, |step| {
            step.wait_for("ResourceSlices", Duration::from_mins(2), |step| {
                let slices = self.get(step, &["resourceslices"])?;
                let slices: Vec<&Value> =
                    slices["items"].as_array().into_iter().flatten().filter(|slice| is_ours(slice)).collect();
                let mut pools: Vec<&str> = slices.iter().filter_map(|s| s["spec"]["pool"]["name"].as_str()).collect();
                pools.sort_unstable();
                pools.dedup();
                if pools.len() < nodes {
                    return Ok(Err(format!("{} of {nodes} nodes have published theirs", pools.len())));
                }
                let devices = slices.iter().filter_map(|s| s["spec"]["devices"].as_array()).map(Vec::len).sum();
                Ok(Ok(devices))
            })
        })
    }
}

/// A reference's repository and tag.
pub(crate) fn split_reference(reference: &str) -> Option<(&str, &str)> {
    reference.rsplit_once(':').filter(|(repository, tag)| !repository.contains('@') && !tag.contains('/'))
}

fn is_ours(slice: &Value) -> bool {
    slice["spec"]["driver"] == "gpu.aliquot.dev"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_has_a_repository_and_a_tag() {
        assert_eq!(split_reference("r.example:5000/plugin:1.0"), Some(("r.example:5000/plugin", "1.0")));
        assert_eq!(split_reference("r.example:5000/plugin"), None);
        assert_eq!(split_reference("plugin@sha256:00"), None);
    }
}

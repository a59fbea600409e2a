//! `cargo xtask demo`: from a checkout to pods with GPUs.

use std::path::PathBuf;
use std::time::Duration;

use crate::clients::{Clients, Values};
use crate::cluster::{self, Cluster, DEMO};
use crate::error::{Error, Result};
use crate::paths::{Paths, list};
use crate::process::{Program, Step, step};
use crate::table::{Pod, devices, ready_pods, render, short_gpu};
use crate::{images, kubernetes, packages, rust};

const EXAMPLES: &str = "aliquot-demo";

/// A cluster that is already there.
#[derive(Debug)]
pub(crate) struct Existing {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) values: Values,
}

/// Starts or reuses the demo cluster and shows what Aliquot does on it.
pub(crate) fn run(paths: &Paths) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Refused(
            "the demo starts Kubernetes nodes on this machine, which only root can do; \
             with `--kubeconfig FILE` it uses a cluster of yours instead"
                .to_owned(),
        ));
    }
    packages::install(paths, &[packages::BUILD, packages::CLUSTER])?;
    let kubernetes = kubernetes::build(paths)?;
    let tool = cluster::tool(paths)?;
    let products = rust::build(paths, rust::TESTED, rust::What::Cluster)?;
    let images = images::build(paths, &tool, &products)?;

    let cluster = Cluster::new(paths, &DEMO, &tool);
    let _lock = cluster.lock()?;
    cluster.up(&kubernetes, &products.mock)?;
    cluster.load(&images)?;
    let kubeconfig = cluster.kubeconfig();
    let clients = Clients::of_build(&kubernetes, &kubeconfig);
    let values = Values { files: vec![paths.mock_values()], image: Some(images.plugin.reference) };
    show(paths, &clients, &values, DEMO.machines.len())?;
    println!(
        "\nThe cluster stays up. Its GPUs are mocks; Kubernetes, containerd and Aliquot are real. Try:
    export KUBECONFIG={}
    cargo xtask kubectl get resourceslices
    cargo xtask kubectl get resourceclaims --namespace {EXAMPLES}
    cargo xtask kubectl exec --namespace {EXAMPLES} one-gpu -- nvidia-smi -L
    cargo xtask kubectl apply --filename docs/examples/one-gpu.yaml
    cargo xtask cluster status
`cargo xtask demo` again uses it again; `cargo xtask demo stop` removes it.",
        kubeconfig.display()
    );
    Ok(())
}

/// The same on somebody's cluster, with its real GPUs.
pub(crate) fn on_existing(paths: &Paths, existing: &Existing) -> Result<()> {
    if !existing.kubeconfig.is_file() {
        return Err(Error::Refused(format!("there is no kubeconfig {}", existing.kubeconfig.display())));
    }
    let clients = Clients::of_machine(paths, &existing.kubeconfig)?;
    show(paths, &clients, &existing.values, 1)?;
    println!(
        "\nTo remove the examples and Aliquot:
    kubectl delete namespace {EXAMPLES}
    helm uninstall --namespace {} aliquot",
        crate::clients::NAMESPACE
    );
    Ok(())
}

/// Removes the demo cluster.
pub(crate) fn stop(paths: &Paths) -> Result<()> {
    let tool = cluster::tool(paths)?;
    let cluster = Cluster::new(paths, &DEMO, &tool);
    let _lock = cluster.lock()?;
    cluster.down()
}

fn show(paths: &Paths, clients: &Clients, values: &Values, nodes: usize) -> Result<()> {
    clients.install_chart(paths, &paths.log("demo-chart"), values)?;
    let devices = clients.wait_for_devices(&paths.log("demo-devices"), nodes)?;
    eprintln!("     {devices} devices are published");
    match run_examples(paths, clients) {
        Ok(rows) => {
            println!("\n{}", render(&["POD", "NODE", "DEVICES", "CONTAINER", "SEES"], &rows).trim_end());
            Ok(())
        }
        Err(error @ (Error::Timeout { .. } | Error::Failed { .. })) => {
            eprintln!("{}", state_of(clients, EXAMPLES));
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// Applies the examples anew, and tells what came of them.
fn run_examples(paths: &Paths, clients: &Clients) -> Result<Vec<Vec<String>>> {
    let files: Vec<PathBuf> =
        list(&paths.examples())?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "yaml")).collect();
    let (pods, claims) = step("run the examples", &paths.log("demo-examples"), |step| {
        let namespace = clients.kubectl(["create", "namespace", EXAMPLES, "--dry-run=client", "--output", "json"]);
        let namespace = step.output(&namespace)?;
        step.run(&clients.kubectl(["apply", "--filename", "-"]).input(namespace.into_bytes()))?;
        // Shells as PID 1 don't hear that they should end, and there is nothing in them to lose.
        let delete =
            ["delete", "--namespace", EXAMPLES, "--ignore-not-found", "--grace-period", "1", "--timeout", "90s"];
        step.run(&with_files(clients, &delete, &files))?;
        step.run(&with_files(clients, &["apply", "--namespace", EXAMPLES], &files))?;
        let pods = step.wait_for("the examples' pods", Duration::from_mins(2), |step| {
            Ok(ready_pods(&clients.get(step, &["pods", "--namespace", EXAMPLES])?))
        })?;
        let claims = devices(&clients.get(step, &["resourceclaims", "--namespace", EXAMPLES])?);
        Ok((pods, claims))
    })?;
    step("read what the containers saw", &paths.log("demo-seen"), |step| {
        let mut rows = Vec::new();
        for pod in &pods {
            let devices = pod.claims.iter().filter_map(|claim| claims.get(claim)).flatten();
            let devices = devices.map(String::as_str).collect::<Vec<_>>().join("\n");
            for (number, container) in pod.containers.iter().enumerate() {
                let first = number == 0;
                let cell = |text: &str| if first { text.to_owned() } else { String::new() };
                let seen = what_it_saw(step, clients, pod, container)?;
                rows.push(vec![cell(&pod.name), cell(&pod.node), cell(&devices), container.clone(), seen]);
            }
        }
        Ok(rows)
    })
}

fn what_it_saw(step: &mut Step, clients: &Clients, pod: &Pod, container: &str) -> Result<String> {
    let what = format!("the output of {}/{container}", pod.name);
    step.wait_for(&what, Duration::from_secs(30), |step| {
        let program = clients.kubectl(["logs", "--namespace", EXAMPLES, &pod.name, "--container", container]);
        let text = step.output(&program)?;
        let lines: Vec<String> = text.lines().map(short_gpu).collect();
        Ok(if lines.is_empty() { Err("it is empty".to_owned()) } else { Ok(lines.join("\n")) })
    })
}

fn with_files(clients: &Clients, args: &[&str], files: &[PathBuf]) -> Program {
    let mut program = clients.kubectl(args.iter().copied());
    for file in files {
        program = program.arg("--filename").arg(file);
    }
    program
}

/// What a person would look at first when pods don't start.
pub(crate) fn state_of(clients: &Clients, namespace: &str) -> String {
    let plugin = ["logs", "--namespace", crate::clients::NAMESPACE, "--tail", "20", "--prefix", "--selector"];
    let selector = ["app.kubernetes.io/name=aliquot"];
    let questions = [
        clients.kubectl(["get", "pods,resourceclaims", "--namespace", namespace, "--output", "wide"]),
        clients.kubectl(["get", "events", "--namespace", namespace, "--sort-by", ".lastTimestamp"]),
        clients.kubectl(["get", "pods", "--namespace", crate::clients::NAMESPACE, "--output", "wide"]),
        clients.kubectl(plugin.into_iter().chain(selector)),
    ];
    let answers = questions.map(|program| {
        // Each answer may be what is broken.
        let answer = program.output().unwrap_or_else(|error| error.to_string());
        format!("\n$ {}\n{}", program.shown(), answer.trim_end())
    });
    answers.concat()
}

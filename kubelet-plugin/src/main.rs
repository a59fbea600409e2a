//! The node plugin: publishes a node's GPUs and prepares them for the pods that kubelet starts.
//!
//! ```text
//! NVML, sysfs ── gpus ──> Snapshot ──┬─> publisher ──> ResourceSlices
//!                                    │
//! kubelet ── kubelet ──> claims <────┴── cluster (the claim's allocation)
//!                           │
//!    ^                      └─> CDI files, claim files
//!    └──── health <──── Snapshot, what claims hold
//! ```

mod args;
mod capabilities;
mod claims;
mod cluster;
mod driver_root;
mod files;
mod gpus;
mod health;
mod http;
mod kubelet;
mod metrics;
mod publisher;
mod reports;
mod store;
mod sysfs;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing_subscriber::EnvFilter;

use crate::args::{Args, LogFormat};
use crate::claims::{Claims, Setting};
use crate::cluster::Cluster;
use crate::driver_root::DriverRoot;
use crate::files::{At, Durability};
use crate::gpus::{Gpus, Places};
use crate::health::HealthReports;
use crate::kubelet::{Dra, Registrar, Sockets, remove_dead_sockets, serve_dra, serve_registration};
use crate::metrics::Metrics;
use crate::publisher::{Published, Publisher};
use crate::reports::Reporter;
use crate::store::ClaimStore;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long running calls may take to end when we are told to. Kubernetes kills us after thirty seconds.
const DRAIN: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(error) = start_logging(&args) {
        eprintln!("aliquot-kubelet-plugin: --log-level {:?}: {error}", args.log_level);
        return ExitCode::from(2);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "can't start");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(run(args));
    // A thread may hang in the driver for ever.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "ending");
            ExitCode::FAILURE
        }
    }
}

fn start_logging(args: &Args) -> Result<(), Error> {
    let filter = EnvFilter::try_new(&args.log_level)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Json => log.json().flatten_event(true).try_init(),
        LogFormat::Text => log.with_ansi(false).try_init(),
    }
}

async fn run(args: Args) -> Result<(), Error> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (plugin_folder, registry_folder) = (args.plugin_folder(), args.registry_folder());
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        node = args.node_name,
        driver = %args.driver_name,
        driver_root = %args.driver_root.display(),
        "starting"
    );
    files::create_folder(&plugin_folder)?;
    files::create_folder(&registry_folder)?;
    let hook = plugin_folder.join("aliquot-cdi-hook");
    install_hook(&args.cdi_hook, &hook)?;
    let boot_id = read_boot_id(&args.proc_root)?;

    let cluster = Cluster::connect().await.map_err(|error| format!("can't reach the API server: {error}"))?;
    let metrics = Arc::new(Metrics::new(&args.node_name));
    let (snapshots, snapshot) = watch::channel(None);
    let pool: aliquot_api::ids::PoolName = args.node_name.parse()?;
    let setting = Setting {
        driver: args.driver_name.clone(),
        pool: pool.clone(),
        boot_id,
        cdi_root: args.cdi_root.clone(),
        dev_root: args.dev_root.clone(),
        // A driver in a container of its own may have its own.
        procs: vec![args.proc_root.clone(), args.driver_root.join("proc")],
        hook,
    };
    let reporter = Reporter {
        cluster: cluster.clone(),
        driver: args.driver_name.clone(),
        pool: pool.clone(),
        node: args.node_name.clone(),
    };
    let store = ClaimStore::open(plugin_folder.join("claims"))?;
    let claims = Arc::new(Claims::recover(setting, cluster.clone(), store, snapshot.clone(), Arc::clone(&metrics))?);

    let places = Places {
        driver_root: DriverRoot::new(args.driver_root.clone(), args.host_driver_root.clone()),
        library: args.library.clone(),
        dev_root: args.dev_root.clone(),
        sys_root: args.sys_root.clone(),
        numbers: plugin_folder.join("gpus.json"),
    };
    let (gpus, nvml_thread) = Gpus::start(places, Arc::clone(&metrics))?;
    let (conditions, told) = watch::channel(Arc::default());
    let (published, is_published) = watch::channel(Published::No);
    let (registered, is_registered) = watch::channel(false);
    let publisher = Publisher {
        cluster,
        driver: args.driver_name.clone(),
        pool: pool.clone(),
        node: args.node_name.clone(),
        is_fenced: args.fence,
        snapshot: snapshot.clone(),
        published,
        lock: plugin_folder.join("publisher.lock"),
        metrics: Arc::clone(&metrics),
    };
    for prefix in Sockets::registration_prefixes(&args.driver_name) {
        remove_dead_sockets(&registry_folder, &prefix).await?;
    }
    remove_dead_sockets(&plugin_folder, "").await?;
    let sockets = Sockets::new(&plugin_folder, &registry_folder, &args.driver_name, &args.pod_uid)?;
    let dra = Dra { claims, metrics: Arc::clone(&metrics), reporter, tasks: TaskTracker::new() };
    let registrar = Registrar { driver: args.driver_name.clone(), endpoint: sockets.dra.clone(), registered };
    let http = http::State { metrics: Arc::clone(&metrics), registered: is_registered, published: is_published };

    let cancel = CancellationToken::new();
    let health = HealthReports { pool, conditions: told };
    let held = dra.claims.held();
    let calls = dra.tasks.clone();
    let mut tasks: JoinSet<Result<&'static str, Error>> = JoinSet::new();
    let token = || cancel.clone();
    tasks.spawn(ended("discovery", gpus.watch(snapshots, metrics, token())));
    tasks.spawn(ended("health", health::watch(snapshot, held, conditions, token())));
    tasks.spawn(ended("publisher", publisher.run(token())));
    tasks.spawn(ended("claims' server", serve_dra(sockets.dra, dra, health, token())));
    tasks.spawn(ended("registration", serve_registration(sockets.registration, registrar, token())));
    tasks.spawn(ended("HTTP server", http::serve(args.listen, http, token())));

    let result = tokio::select! {
        _ = term.recv() => Ok("SIGTERM"),
        _ = int.recv() => Ok("SIGINT"),
        task = tasks.join_next() => Err(task),
    };
    let result = match result {
        Ok(signal) => {
            tracing::info!(signal, "stopping");
            Ok(())
        }
        Err(Some(Ok(Ok(task)))) => Err(format!("{task} ended by itself").into()),
        Err(Some(Ok(Err(error)))) => Err(error),
        Err(Some(Err(error))) => Err(error.into()),
        Err(None) => Err("nothing is running".into()),
    };
    cancel.cancel();
    drain(tasks, calls, nvml_thread).await;
    result
}

/// Lets what runs come to its end, within bounds.
async fn drain(
    mut tasks: JoinSet<Result<&'static str, Error>>,
    calls: TaskTracker,
    nvml_thread: std::thread::JoinHandle<()>,
) {
    calls.close();
    let drained = tokio::time::timeout(DRAIN, async {
        while let Some(task) = tasks.join_next().await {
            if let Ok(Err(error)) = task {
                tracing::error!(%error, "while stopping");
            }
        }
        calls.wait().await;
    });
    if drained.await.is_err() {
        tracing::warn!("calls are still running; kubelet will ask for them again");
    }
    let joined = tokio::time::timeout(Duration::from_secs(2), tokio::task::spawn_blocking(|| nvml_thread.join()));
    if !matches!(joined.await, Ok(Ok(Ok(())))) {
        tracing::warn!("the driver's library hasn't let go");
    }
}

async fn ended<E: Into<Error>>(
    name: &'static str,
    task: impl Future<Output = Result<(), E>>,
) -> Result<&'static str, Error> {
    task.await.map(|()| name).map_err(Into::into)
}

/// Puts our hook program where container runtimes find it. Specs of running containers name that path for as long as they live.
fn install_hook(program: &Path, hook: &Path) -> Result<(), Error> {
    let content = std::fs::read(program).at("read the hook program", program)?;
    if files::read(hook)?.is_none_or(|old| old != content) {
        files::replace(hook, &content, 0o755, Durability::OnDisk)?;
        tracing::info!(hook = %hook.display(), "installed the hook program");
    }
    Ok(())
}

fn read_boot_id(proc_root: &Path) -> Result<String, Error> {
    let path = proc_root.join("sys/kernel/random/boot_id");
    Ok(std::fs::read_to_string(&path).at("read", &path)?.trim().to_owned())
}

//! The node plugin: publishes a node's GPUs and prepares them for the pods that kubelet starts.
//!
//! ```text
//! NVML, sysfs ── gpus ──> Snapshot ──┬─> publisher ──> ResourceSlices
//!                                    │
//! kubelet ── kubelet ──> claims <────┴── cluster (the claim's allocation)
//!                           │
//!                           └─> CDI files, claim files
//! ```

mod args;
mod claims;
mod cluster;
mod driver_root;
mod files;
mod gpus;
mod hash;
mod http;
mod kubelet;
mod metrics;
mod publisher;
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
use crate::gpus::{Gpus, Places, Snapshot};
use crate::kubelet::{Dra, Registrar, Sockets, remove_dead_sockets, serve_dra, serve_registration};
use crate::metrics::Metrics;
use crate::publisher::Publisher;
use crate::store::ClaimStore;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Between two looks for a driver that isn't ready.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

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
    let metrics = Arc::new(Metrics::new());
    let (snapshots, snapshot) = watch::channel(None);
    let pool: aliquot_api::ids::PoolName = args.node_name.parse()?;
    let setting = Setting {
        driver: args.driver_name.clone(),
        pool: pool.clone(),
        boot_id,
        cdi_root: args.cdi_root.clone(),
        dev_root: args.dev_root.clone(),
        hook,
    };
    let store = ClaimStore::open(plugin_folder.join("claims"))?;
    let claims = Arc::new(Claims::recover(setting, cluster.clone(), store, snapshot.clone(), Arc::clone(&metrics))?);

    let (gpus, nvml_thread) = Gpus::start(Places {
        driver_root: DriverRoot::new(args.driver_root.clone(), args.host_driver_root.clone()),
        library: args.library.clone(),
        dev_root: args.dev_root.clone(),
        sys_root: args.sys_root.clone(),
        numbers: plugin_folder.join("gpus.json"),
    })?;
    let (published, is_published) = watch::channel(false);
    let (registered, is_registered) = watch::channel(false);
    let publisher = Publisher {
        cluster,
        driver: args.driver_name.clone(),
        pool,
        node: args.node_name.clone(),
        snapshot,
        published,
        metrics: Arc::clone(&metrics),
    };
    remove_dead_sockets(&registry_folder, &format!("{}@", args.driver_name)).await?;
    remove_dead_sockets(&plugin_folder, "dra-").await?;
    let sockets = Sockets::new(&plugin_folder, &registry_folder, &args.driver_name, &args.pod_uid)?;
    let dra = Dra { claims, metrics: Arc::clone(&metrics), tasks: TaskTracker::new() };
    let registrar = Registrar { driver: args.driver_name.clone(), endpoint: sockets.dra.clone(), registered };
    let http = http::State { metrics: Arc::clone(&metrics), registered: is_registered, published: is_published };

    let cancel = CancellationToken::new();
    let calls = dra.tasks.clone();
    let mut tasks: JoinSet<Result<&'static str, Error>> = JoinSet::new();
    let token = || cancel.clone();
    tasks.spawn(ended("discovery", discover(gpus, snapshots, metrics, token())));
    tasks.spawn(ended("publisher", always(publisher.run(token()))));
    tasks.spawn(ended("claims' server", serve_dra(sockets.dra, dra, token())));
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
    result
}

async fn ended<E: Into<Error>>(
    name: &'static str,
    task: impl Future<Output = Result<(), E>>,
) -> Result<&'static str, Error> {
    task.await.map(|()| name).map_err(Into::into)
}

async fn always(task: impl Future<Output = ()>) -> Result<(), std::convert::Infallible> {
    task.await;
    Ok(())
}

/// Looks until the driver answers.
async fn discover(
    gpus: Gpus,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    metrics: Arc<Metrics>,
    cancel: CancellationToken,
) -> Result<(), std::convert::Infallible> {
    let mut told = None;
    loop {
        match gpus.look().await {
            Ok(snapshot) => {
                tell(&snapshot);
                metrics.set_gpus(&snapshot);
                snapshots.send_replace(Some(snapshot));
                cancel.cancelled().await;
                return Ok(());
            }
            Err(error) => {
                let text = error.to_string();
                if told.as_ref() != Some(&text) {
                    tracing::warn!(%error, "the GPU driver isn't ready; waiting for it");
                    told = Some(text);
                }
            }
        }
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}

fn tell(snapshot: &Snapshot) {
    tracing::info!(
        gpus = snapshot.inventory.len(),
        libraries = snapshot.files.files.len(),
        "the GPU driver has answered"
    );
    for problem in &snapshot.problems {
        tracing::error!(%problem, "a GPU doesn't answer; it is left out");
    }
    for left_out in snapshot.inventory.devices().1 {
        tracing::warn!(%left_out, "a device lacks an attribute");
    }
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

//! The node plugin: at rest, at its start, and under kubelet's calls.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_rig::{Claim, ControlPlane, Dra, Machine, Node, Plugin, variable};
use futures::future::join_all;
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{DeleteParams, WatchEvent, WatchParams};

use crate::figures::{Report, percentile};

const GPUS: usize = 8;
const STARTS: usize = 5;
const CLAIMS: usize = 200;
const ROUNDS: usize = 100;

/// What is idle has let go of what its start needed.
const REST: Duration = Duration::from_secs(5);

const MEGA: f64 = 1_000_000.0;

/// Measures everything. A minute or two.
pub(crate) async fn measure() -> Report {
    let mut report = Report::default();
    eprintln!("starting an API server");
    let control = Arc::new(ControlPlane::start().await);
    let node = Node::new(control, Machine::default()).await;

    eprintln!("starting the plugin {STARTS} times");
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        starts.push(start_to_slices(&node).await);
    }
    let plugin = node.start_plugin("bench");
    let dra = node.kubelet.register(&plugin).await;
    node.published(GPUS).await;
    eprintln!("letting it rest");
    tokio::time::sleep(REST).await;
    let rest = plugin.memory();
    let memory = mappings(&plugin);

    eprintln!("preparing {CLAIMS} claims, one at a time");
    let claims = allocate(&node, "one", CLAIMS).await;
    // The first call of a process opens connections; that is part of its start.
    let first = allocate(&node, "first", 1).await;
    dra.prepare_one(&first[0]).await.unwrap();
    dra.unprepare_one(&first[0]).await.unwrap();
    let before = settled(&node).await;
    let begin = phases(&plugin);
    let (mut prepares, mut unprepares) = (Vec::new(), Vec::new());
    for claim in &claims {
        prepares.push(timed(async || drop(dra.prepare_one(claim).await.unwrap())).await);
        unprepares.push(timed(async || dra.unprepare_one(claim).await.unwrap()).await);
    }
    let after = settled(&node).await;
    let alone = phases(&plugin);

    eprintln!("preparing {GPUS} claims at once, {ROUNDS} times");
    let together = at_once(&node, &dra).await;
    let crowded = phases(&plugin);
    let end = plugin.memory();
    plugin.stop();

    let size = fs::metadata(variable("ALIQUOT_PLUGIN")).unwrap().len();
    let calls = difference(&before, &after);
    report.add("rss_mb", "memory at rest with 8 GPUs, MB", mega(rest.resident), Some(13.0));
    report.add("rss_anon_mb", "  of this anonymous, MB", mega(rest.anonymous), Some(4.0));
    report.add("rss_after_mb", "memory after all the calls below, MB", mega(end.resident), None);
    report.add("binary_mb", "program, MB", mega(size), Some(10.0));
    let start = percentile(&starts, 0.5) / 1000.0;
    report.add("start_to_slices_s", "start until the API shows the slices, s (median of 5)", start, Some(0.15));
    report.add("prepare_p50_ms", "prepare, one at a time, ms: median", percentile(&prepares, 0.5), Some(3.0));
    report.add("prepare_p99_ms", "  99th percentile of 200", percentile(&prepares, 0.99), None);
    report.add("prepare_8_p50_ms", "prepare, 8 at once, ms until the last: median", percentile(&together, 0.5), None);
    report.add("prepare_8_p99_ms", "  99th percentile of 100", percentile(&together, 0.99), Some(20.0));
    report.add("unprepare_p50_ms", "unprepare, one at a time, ms: median", percentile(&unprepares, 0.5), None);
    report.add("unprepare_p99_ms", "  99th percentile of 200", percentile(&unprepares, 0.99), None);
    report.add(
        "api_calls_per_prepare",
        "calls to the API server for a prepare and an unprepare",
        per_claim(&calls),
        None,
    );
    report.note(memory);
    report.note(parts("where the time of a claim goes, one at a time, ms (mean)", &begin, &alone));
    report.note(parts("  8 at once", &alone, &crowded));
    report.note(listed("calls to the API server for these 200 claims", &calls));
    report
}

fn mega(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes).expect("less than 4 GB")) / MEGA
}

fn per_claim(calls: &BTreeMap<String, u64>) -> f64 {
    let claims = u32::try_from(CLAIMS).unwrap();
    f64::from(u32::try_from(calls.values().sum::<u64>()).unwrap()) / f64::from(claims)
}

fn listed(title: &str, values: &BTreeMap<String, u64>) -> String {
    let lines = values.iter().map(|(name, value)| format!("\n  {value:>6} {name}"));
    format!("{title}:{}", lines.collect::<String>())
}

async fn timed(work: impl AsyncFnOnce()) -> Duration {
    let start = Instant::now();
    work().await;
    start.elapsed()
}

/// A start on a node that has never seen the plugin, until a watcher sees all its devices.
async fn start_to_slices(node: &Node) -> Duration {
    let slices = node.api::<ResourceSlice>();
    let ours = WatchParams::default().fields(&format!("spec.nodeName={}", node.machine.node));
    let events = slices.watch(&ours, "0").await.unwrap();
    pin_mut!(events);
    let start = Instant::now();
    let plugin = node.start_plugin("bench");
    loop {
        match events.next().await.expect("the watch goes on").unwrap() {
            WatchEvent::Added(slice) | WatchEvent::Modified(slice)
                if slice.spec.devices.as_ref().map_or(0, Vec::len) == GPUS =>
            {
                break;
            }
            _ => {}
        }
    }
    let took = start.elapsed();
    plugin.stop();
    for slice in node.slices().await {
        slices.delete(&slice.metadata.name.unwrap(), &DeleteParams::default()).await.unwrap();
    }
    fs::remove_dir_all(node.kubelet_root()).unwrap();
    took
}

/// Claims for one GPU each, all over the machine.
async fn allocate(node: &Node, name: &str, count: usize) -> Vec<Claim> {
    let mut claims = Vec::new();
    for number in 0..count {
        let gpu = format!("gpu-{}", number % GPUS);
        claims.push(node.allocate(&format!("{name}-{number}"), &[&gpu]).await);
    }
    claims
}

/// Eight pods start at once: eight calls.
async fn at_once(node: &Node, dra: &Dra) -> Vec<Duration> {
    let claims = allocate(node, "at-once", ROUNDS * GPUS).await;
    let mut times = Vec::new();
    for round in claims.chunks(GPUS) {
        let took = timed(async || {
            for answer in join_all(round.iter().map(|claim| dra.prepare_one(claim))).await {
                answer.unwrap();
            }
        });
        times.push(took.await);
        for claim in round {
            dra.unprepare_one(claim).await.unwrap();
        }
    }
    times
}

/// The parts of a prepare: seconds, and how often.
fn phases(plugin: &Plugin) -> Vec<(&'static str, f64, f64)> {
    let of = |phase: &'static str| {
        let value = |what: &str| {
            plugin.metric(&format!("aliquot_prepare_duration_seconds_{what}"), &format!("phase=\"{phase}\""))
        };
        (phase, value("sum"), value("count"))
    };
    ["read", "wait", "write", "sync"].map(of).to_vec()
}

fn parts(title: &str, before: &[(&str, f64, f64)], after: &[(&str, f64, f64)]) -> String {
    let mean = |((phase, old, often_then), (_, new, often)): (&(&str, f64, f64), &(&str, f64, f64))| {
        format!("\n  {:>6.2} {phase}", (new - old) / (often - often_then) * 1000.0)
    };
    let lines: String = before.iter().zip(after).map(mean).collect();
    format!("{title}:{lines}")
}

/// How often each kind of call was made that a plugin makes, once what follows a reply has been done.
async fn settled(node: &Node) -> BTreeMap<String, u64> {
    const QUIET: Duration = Duration::from_millis(500);
    let mut last = calls(node).await;
    loop {
        tokio::time::sleep(QUIET).await;
        let now = calls(node).await;
        if now == last {
            return now;
        }
        last = now;
    }
}

/// `apiserver_request_total{…,resource="resourceclaims",…,subresource="",verb="GET",…} 12`
async fn calls(node: &Node) -> BTreeMap<String, u64> {
    let metrics = node.control().get("/metrics").await.expect("the API server's metrics");
    let mut calls = BTreeMap::new();
    for line in metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        let label = |name: &str| line.split_once(&format!(",{name}=\"")).unwrap().1.split('"').next().unwrap();
        let (resource, verb) = (label("resource"), label("verb"));
        if ["resourceclaims", "resourceslices", "nodes", "events"].contains(&resource) && verb != "WATCH" {
            let name = format!("{verb} {resource} {}", label("subresource")).trim().to_owned();
            let value: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            // A count of calls.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let value = value as u64;
            *calls.entry(name).or_insert(0) += value;
        }
    }
    calls
}

fn difference(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let grown = |(name, value): (&String, &u64)| (name.clone(), value - before.get(name).copied().unwrap_or(0));
    after.iter().map(grown).filter(|(_, value)| *value > 0).collect()
}

/// Which files and what else the memory belongs to.
fn mappings(plugin: &Plugin) -> String {
    let text = fs::read_to_string(format!("/proc/{}/smaps", plugin.pid())).unwrap();
    let (mut sums, mut name) = (BTreeMap::<String, u64>::new(), String::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["Rss:", kib, "kB"] => *sums.entry(name.clone()).or_insert(0) += kib.parse::<u64>().unwrap(),
            [range, _, _, _, _, rest @ ..] if range.contains('-') => {
                let path = rest.join(" ");
                let shown = path.rsplit('/').next().unwrap_or_default();
                shown.clone_into(&mut name);
                if name.is_empty() {
                    "(anonymous)".clone_into(&mut name);
                }
            }
            _ => {}
        }
    }
    sums.retain(|_, kib| *kib >= 64);
    listed("memory at rest, KiB", &sums)
}

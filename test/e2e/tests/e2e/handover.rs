//! A node whose GPUs are all taken: each pod that ends, in whatever way, hands its own on to one that waits for them.

use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};

use crate::harness::{COMMAND, Namespace, is_warning, pod, seen, template, test};

/// How often a pod with all GPUs hands over to the next in each way.
const ROUNDS: usize = 20;
/// How often eight pods with one GPU each do, all at once and two of them in each way.
const MIXED_ROUNDS: usize = 8;

/// How a pod ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// Its program ends. The claim is free before kubelet has unprepared it.
    Completion,
    /// `kubectl delete`: kubelet unprepares it before the claim is free.
    Graceful,
    /// `kubectl delete --grace-period=0`, which means one second.
    Grace0,
    /// `kubectl delete --force`: it is gone from the API while its containers run still.
    Force,
}

const ENDINGS: [Ending; 4] = [Ending::Completion, Ending::Graceful, Ending::Grace0, Ending::Force];

async fn start(namespace: &Namespace, name: &str, node: &str, template: &str) {
    let manifest = pod(name, Some(node), &["main"], &[&format!("gpus={template}")]);
    let manifest = manifest.replacen("spec:\n", "spec:\n  restartPolicy: Never\n", 1);
    // It ends when it is told to; at a signal not at once, so that who comes after it comes too early.
    let command = "trap 'sleep 1; exit' TERM; mkfifo /end; read told < /end & wait";
    let pod: Pod = serde_yaml::from_str(&manifest.replace(COMMAND, command)).unwrap();
    namespace.api().create(&PostParams::default(), &pod).await.unwrap();
}

async fn end(namespace: &Namespace, name: &str, ending: Ending) {
    let grace = match ending {
        Ending::Completion => {
            namespace.exec(name, "echo now > /end");
            return;
        }
        Ending::Graceful => None,
        Ending::Grace0 => Some(1),
        Ending::Force => Some(0),
    };
    let how = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
    namespace.api::<Pod>().delete(name, &how).await.unwrap();
}

/// Every warning in the namespace but that of pods that wait for a GPU.
pub(crate) async fn failures(namespace: &Namespace) -> Vec<String> {
    let events = namespace.api::<Event>().list(&ListParams::default()).await.unwrap().items;
    let failures = events.into_iter().filter(is_warning);
    let failures = failures.filter(|event| event.reason.as_deref() != Some("FailedScheduling"));
    failures.map(|event| format!("{:?} {:?}", event.involved_object.name, event.message)).collect()
}

fn summary(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{what}: {} times, median {median:.1?}, longest {longest:.1?}", times.len());
}

/// Pods that each have all GPUs of a node hand them on.
async fn hand_on(ns: &Namespace, node: &str, gpus: usize, endings: [Ending; 2]) {
    let (template_name, name) = (format!("all-of-{node}"), |number: usize| format!("{node}-pod-{number}"));
    ns.apply(&template(&template_name, &format!("count: {gpus}")));
    start(ns, &name(0), node, &template_name).await;
    ns.running(&name(0)).await;
    for (way, ending) in endings.into_iter().enumerate() {
        let mut times = Vec::new();
        for number in way * ROUNDS..(way + 1) * ROUNDS {
            let begin = Instant::now();
            end(ns, &name(number), ending).await;
            start(ns, &name(number + 1), node, &template_name).await;
            ns.running(&name(number + 1)).await;
            times.push(begin.elapsed());
            assert_eq!(seen(ns, &name(number + 1), "main").len(), gpus);
        }
        summary(&format!("all GPUs, {ending:?}"), times);
        assert_eq!(failures(ns).await, Vec::<String>::new(), "{ending:?}");
    }
}

#[test]
fn all_gpus_go_from_pod_to_pod() {
    test(async |ns| {
        let [completion, graceful, grace_0, force] = ENDINGS;
        // Two nodes at once take half the time.
        tokio::join!(hand_on(ns, "node-0", 8, [completion, graceful]), hand_on(ns, "node-1", 2, [grace_0, force]));
    });
}

#[test]
fn every_gpu_goes_from_pod_to_pod() {
    test(async |ns| {
        ns.apply(&template("one", ""));
        let name = |round: usize, number: usize| format!("pod-{round}-{number}");
        join_all((0..8).map(async |number| {
            start(ns, &name(0, number), "node-0", "one").await;
            ns.running(&name(0, number)).await;
        }))
        .await;
        let mut times = Vec::new();
        for round in 0..MIXED_ROUNDS {
            let begin = Instant::now();
            join_all((0..8).map(async |number| {
                end(ns, &name(round, number), ENDINGS[(round + number) % 4]).await;
                start(ns, &name(round + 1, number), "node-0", "one").await;
            }))
            .await;
            let took = join_all((0..8).map(async |number| {
                ns.running(&name(round + 1, number)).await;
                begin.elapsed()
            }));
            times.extend(took.await);
        }
        summary("one GPU each, all ways at once", times);
        assert_eq!(failures(ns).await, Vec::<String>::new());
        let mut all: Vec<String> = (0..8).flat_map(|number| seen(ns, &name(MIXED_ROUNDS, number), "main")).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 8);
    });
}

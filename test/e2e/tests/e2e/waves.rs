//! Many more pods than GPUs: all get their turn, and nothing is left on the nodes.

use std::collections::BTreeMap;
use std::time::Instant;

use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{ListParams, PostParams};

use crate::handover::failures;
use crate::harness::{COMMAND, eventually, on_node, pod, template, test};

/// For ten GPUs.
const PODS: usize = 200;

/// Waits until a node has no file of a claim; one CDI file of the driver's is there for all of them.
pub(crate) async fn no_claim_files(node: &str) {
    eventually(&format!("no file of a claim on {node}"), async || {
        let list = on_node(node, "ls /var/lib/kubelet/plugins/gpu.aliquot.dev/claims /var/run/cdi");
        list.lines().all(|line| !line.contains("json") || line.contains("driver")).then_some(())
    })
    .await;
}

#[test]
fn waves_of_pods_leave_nothing() {
    test(async |ns| {
        for node in ["node-0", "node-1"] {
            no_claim_files(node).await;
        }
        ns.apply(&template("one", ""));
        let begin = Instant::now();
        let nodes = "spec:\n  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: \
                     [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-0, node-1]}]}]}}}\n  \
                     restartPolicy: Never\n";
        stream::iter(0..PODS)
            .for_each_concurrent(8, async |number| {
                let manifest = pod(&format!("wave-{number}"), None, &["main"], &["gpu=one"]);
                let manifest = manifest.replacen("spec:\n", nodes, 1);
                let pod: Pod =
                    serde_yaml::from_str(&manifest.replace(COMMAND, "test $(nvidia-smi -L | wc -l) = 1")).unwrap();
                ns.api().create(&PostParams::default(), &pod).await.unwrap();
            })
            .await;
        let phases = async || {
            let mut phases = BTreeMap::<String, usize>::new();
            for pod in ns.api::<Pod>().list(&ListParams::default()).await.unwrap().items {
                *phases.entry(pod.status.and_then(|status| status.phase).unwrap_or_default()).or_default() += 1;
            }
            phases
        };
        let done = |phases: &BTreeMap<String, usize>, phase| phases.get(phase).copied().unwrap_or_default();
        let mut ended = 0;
        while ended < PODS {
            ended = eventually(&format!("more than {ended} of {PODS} pods end"), async || {
                let phases = phases().await;
                let now = done(&phases, "Succeeded") + done(&phases, "Failed");
                (now > ended).then_some(now)
            })
            .await;
        }
        assert_eq!(phases().await, BTreeMap::from([("Succeeded".to_owned(), PODS)]));
        println!("{PODS} pods in {:.0?}", begin.elapsed());
        assert_eq!(failures(ns).await, Vec::<String>::new());

        for node in ["node-0", "node-1"] {
            no_claim_files(node).await;
        }
        ns.kubectl(&["delete", "pods", "--all", "--wait=false"]);
        eventually("no claim is left", async || {
            ns.api::<ResourceClaim>().list(&ListParams::default()).await.unwrap().items.is_empty().then_some(())
        })
        .await;
    });
}

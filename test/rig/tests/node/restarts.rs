//! Ends, and two plugins at once: what happens in every upgrade.

use aliquot_rig::{Claim, Node, eventually};
use futures::future::join_all;

use crate::{start, test, traces};

async fn eight_claims(node: &Node, name: &str) -> Vec<Claim> {
    let mut claims = Vec::new();
    for number in 0..8 {
        claims.push(node.allocate(&format!("{name}-{number}"), &[&format!("gpu-{number}")]).await);
    }
    claims
}

#[test]
fn calls_end_before_the_plugin_does() {
    test(async |node| {
        for round in 0..5 {
            let (mut plugin, dra) = start(node, &format!("a-{round}")).await;
            let claims = eight_claims(node, &format!("claim-{round}")).await;
            let calls = claims.iter().map(|claim| dra.prepare_one(claim));
            let (answers, ()) = tokio::join!(join_all(calls), async {
                // The calls are on their way by now, at various places of it.
                for _ in 0..round {
                    tokio::task::yield_now().await;
                }
                plugin.terminate();
            });
            let status = plugin.wait();
            assert!(status.success(), "{status}");
            assert_eq!(node.kubelet.sockets(), Vec::<std::path::PathBuf>::new());
            for (claim, answer) in claims.iter().zip(answers) {
                if answer.is_ok() {
                    assert_eq!(traces(node, claim).len(), 2, "{} was answered", claim.name);
                }
            }
            let (plugin, dra) = start(node, &format!("b-{round}")).await;
            for claim in &claims {
                dra.prepare_one(claim).await.unwrap();
                dra.unprepare_one(claim).await.unwrap();
                assert_eq!(traces(node, claim), Vec::<String>::new());
            }
            plugin.stop();
        }
    });
}

#[test]
fn sockets_of_the_killed_are_removed() {
    test(async |node| {
        let (mut plugin, dra) = start(node, "a").await;
        plugin.kill();
        assert_eq!(node.kubelet.sockets().len(), 1);
        let dead = dra.endpoint().to_owned();
        assert!(dead.exists());
        let (plugin, dra) = start(node, "b").await;
        assert!(!dead.exists());
        assert_eq!(node.kubelet.sockets(), [node.kubelet.socket_of(&plugin).await.unwrap()]);
        // A new container of the same pod has the same names.
        drop(plugin);
        let (_plugin, again) = start(node, "b").await;
        assert_eq!(again.endpoint(), dra.endpoint());
    });
}

#[test]
fn a_boot_frees_all_claims() {
    test(async |node| {
        let (mut plugin, dra) = start(node, "a").await;
        let claims = eight_claims(node, "before").await;
        for claim in &claims {
            dra.prepare_one(claim).await.unwrap();
        }
        plugin.kill();
        // What was on its way to the disk when the power went.
        let cut_off = traces(node, &claims[1]).into_iter().find(|file| file.contains("/claims/")).unwrap();
        std::fs::write(cut_off, "").unwrap();
        node.boot("second");

        let (plugin, dra) = start(node, "a").await;
        // Some pods were deleted meanwhile, some start again, others come instead.
        dra.unprepare_one(&claims[0]).await.unwrap();
        dra.unprepare_one(&claims[1]).await.unwrap();
        dra.prepare_one(&claims[2]).await.unwrap();
        let next = node.allocate("next", &["gpu-3"]).await;
        dra.prepare_one(&next).await.unwrap();
        assert!((plugin.metric("aliquot_prepared_claims", "") - 2.0).abs() < f64::EPSILON);
        for claim in claims.iter().filter(|claim| **claim != claims[2]) {
            assert_eq!(traces(node, claim), Vec::<String>::new());
        }
    });
}

/// A rolling update with `maxSurge: 1`: the new one comes, kubelet turns to it, the old one ends.
#[test]
fn two_plugins_share_the_claims() {
    test(async |node| {
        let (mut old, old_dra) = start(node, "old").await;
        node.published(8).await;
        let before = eight_claims(node, "before").await;
        let mut answers = Vec::new();
        for claim in &before {
            answers.push(old_dra.prepare_one(claim).await.unwrap());
        }
        let (new, new_dra) = start(node, "new").await;
        assert!(old.is_running());
        assert_ne!(old_dra.endpoint(), new_dra.endpoint());
        assert_eq!(node.kubelet.sockets().len(), 2);
        for (claim, answer) in before.iter().zip(&answers) {
            assert_eq!(&new_dra.prepare_one(claim).await.unwrap(), answer);
        }

        // Who is on its way in the old one and who in the new one exclude each other.
        let [first, second] = [node.allocate("first", &["gpu-0"]).await, node.allocate("second", &["gpu-0"]).await];
        new_dra.unprepare_one(&before[0]).await.unwrap();
        old_dra.prepare_one(&first).await.unwrap();
        let mut waiting = Box::pin(new_dra.prepare_one(&second));
        let early = tokio::time::timeout(std::time::Duration::from_millis(500), &mut waiting).await;
        assert!(early.is_err(), "two claims have one GPU: {early:?}");
        old_dra.unprepare_one(&first).await.unwrap();
        waiting.await.unwrap();
        assert_eq!(traces(node, &first), Vec::<String>::new());

        // kubelet lets a plugin go when its registration socket does, so the other one must not go before.
        let registration = node.kubelet.socket_of(&old).await.unwrap();
        old.terminate();
        while old.is_running() {
            let is_deaf = !old_dra.endpoint().exists();
            assert!(!(is_deaf && registration.exists()), "kubelet would call a plugin that is gone");
        }
        assert!(old.wait().success());
        assert_eq!(node.kubelet.sockets(), [node.kubelet.socket_of(&new).await.unwrap()]);
        for claim in before[1..].iter().chain([&second]) {
            assert_eq!(traces(node, claim).len(), 2);
            new_dra.unprepare_one(claim).await.unwrap();
            assert_eq!(traces(node, claim), Vec::<String>::new());
        }
        assert_eq!(node.slices().await.len(), 1);
        let is_ready = async || (new.get("/readyz")?.0 == 200).then_some(());
        eventually("the new plugin is ready", is_ready).await;
    });
}

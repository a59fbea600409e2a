//! Claims, as kubelet asks for them.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use aliquot_rig::{Claim, eventually};
use futures::future::join_all;
use futures::{FutureExt, poll};

use crate::{start, test, test_alone, traces};

/// Long enough for an answer that must not come.
const A_WHILE: Duration = Duration::from_millis(500);

#[test]
fn a_claim_is_prepared_and_unprepared() {
    test(async |node| {
        let (plugin, dra) = start(node, "a").await;
        let claim = node.allocate("claim", &["gpu-0", "gpu-3"]).await;
        let devices = dra.prepare_one(&claim).await.unwrap();
        assert_eq!(devices.len(), 2);
        for (device, name) in devices.iter().zip(["gpu-0", "gpu-3"]) {
            assert_eq!((device.device_name.as_str(), &device.pool_name), (name, &node.machine.node));
            assert_eq!(device.request_names, ["gpu"]);
            assert!(!device.cdi_device_ids.is_empty());
        }
        let spec = node.cdi_file(&claim).unwrap();
        let text = spec.to_string();
        assert!(text.contains("/dev/nvidia0") && text.contains("/dev/nvidia3") && !text.contains("/dev/nvidia1"));

        // As often as kubelet likes, and in the words of older ones.
        assert_eq!(dra.prepare_one(&claim).await.unwrap(), devices);
        let old = dra.prepare_v1beta1(&claim).await.unwrap();
        let ids = old.iter().map(|device| &device.cdi_device_ids);
        assert!(ids.eq(devices.iter().map(|device| &device.cdi_device_ids)));
        assert_eq!(node.cdi_file(&claim).unwrap(), spec);

        dra.unprepare_v1beta1(&claim).await.unwrap();
        assert_eq!(traces(node, &claim), Vec::<String>::new());
        dra.unprepare_one(&claim).await.unwrap();
        plugin.stop();
    });
}

#[test]
fn unknown_claims_are_unprepared() {
    test(async |node| {
        let (_plugin, dra) = start(node, "a").await;
        let unknown = Claim {
            namespace: "gone".to_owned(),
            name: "gone".to_owned(),
            uid: "00000000-0000-4000-8000-000000000000".to_owned(),
        };
        dra.unprepare_one(&unknown).await.unwrap();
        let error = dra.prepare_one(&unknown).await.unwrap_err();
        assert!(error.contains("gone/gone"), "{error}");
        assert_eq!(traces(node, &unknown), Vec::<String>::new());
    });
}

#[test]
fn a_bad_claim_harms_no_other_of_its_call() {
    test(async |node| {
        let (_plugin, dra) = start(node, "a").await;
        let good = node.allocate("good", &["gpu-0"]).await;
        let bad = node.allocate("bad", &["gpu-99"]).await;
        let answers = dra.prepare(&[&bad, &good]).await.unwrap();
        assert!(answers[&good.uid].is_ok(), "{answers:?}");
        let error = answers[&bad.uid].as_ref().unwrap_err();
        assert!(error.contains("bad") && error.contains("gpu-99"), "{error}");
        assert_eq!(answers.len(), 2);
        assert_eq!(traces(node, &bad), Vec::<String>::new());
    });
}

#[test]
fn a_claim_made_again_under_its_name_is_another() {
    test(async |node| {
        let (_plugin, dra) = start(node, "a").await;
        let old = node.allocate("claim", &["gpu-0"]).await;
        dra.prepare_one(&old).await.unwrap();
        node.delete(&old).await;
        let new = node.allocate("claim", &["gpu-0"]).await;
        assert_ne!(old.uid, new.uid);

        // Its GPU comes when the old one lets go.
        let mut prepare = Box::pin(dra.prepare_one(&new));
        assert!(tokio::time::timeout(A_WHILE, &mut prepare).await.is_err());
        dra.unprepare_one(&old).await.unwrap();
        prepare.await.unwrap();
        assert_eq!(traces(node, &old), Vec::<String>::new());

        let error = dra.prepare_one(&old).await.unwrap_err();
        assert!(error.contains(&new.uid), "{error}");
        assert_eq!(traces(node, &old), Vec::<String>::new());
        assert_eq!(traces(node, &new).len(), 2);
    });
}

#[test]
fn a_late_prepare_is_refused() {
    test(async |node| {
        let (_plugin, dra) = start(node, "a").await;
        let claim = node.allocate("claim", &["gpu-0"]).await;
        dra.prepare_one(&claim).await.unwrap();
        dra.unprepare_one(&claim).await.unwrap();
        node.unreserve(&claim).await;
        let error = dra.prepare_one(&claim).await.unwrap_err();
        assert!(error.contains("unprepared"), "{error}");
        assert_eq!(traces(node, &claim), Vec::<String>::new());
    });
}

#[test]
fn claims_for_one_gpu_wait_for_each_other() {
    test(async |node| {
        let (plugin, dra) = start(node, "a").await;
        let mut claims = Vec::new();
        for number in 0..16 {
            claims.push(node.allocate(&format!("claim-{number}"), &["gpu-0"]).await);
        }
        let mut waiting: Vec<_> =
            claims.iter().map(|claim| dra.prepare_one(claim).map(move |r| (claim, r)).boxed()).collect();
        let mut done = BTreeSet::new();
        while !waiting.is_empty() {
            let ((claim, prepared), _, rest) = futures::future::select_all(waiting).await;
            prepared.unwrap_or_else(|error| panic!("{}: {error}", claim.name));
            // Nobody else has it meanwhile.
            let holders: Vec<&Claim> = claims.iter().filter(|claim| !traces(node, claim).is_empty()).collect();
            assert_eq!(holders, [claim]);
            done.insert(claim.uid.clone());
            dra.unprepare_one(claim).await.unwrap();
            waiting = rest;
        }
        assert_eq!(done.len(), claims.len());
        assert!((plugin.metric("aliquot_prepared_claims", "") - 0.0).abs() < f64::EPSILON);
    });
}

#[test]
fn who_waits_too_long_is_told_who_has_the_gpu() {
    test(async |node| {
        let (plugin, dra) = start(node, "a").await;
        let holder = node.allocate("holder", &["gpu-0"]).await;
        dra.prepare_one(&holder).await.unwrap();
        let late = node.allocate("late", &["gpu-0", "gpu-1"]).await;
        let wait = dra.prepare_one(&late);
        // Whoever wants only the other GPU doesn't wait.
        let other = node.allocate("other", &["gpu-2"]).await;
        let (error, ()) = tokio::join!(wait, async { drop(dra.prepare_one(&other).await.unwrap()) });
        let error = error.unwrap_err();
        let named = format!("{}/holder", node.machine.namespace);
        assert!(error.contains("gpu-0") && error.contains(&named), "{error}");
        assert_eq!(traces(node, &late), Vec::<String>::new());
        assert!(plugin.metric("aliquot_claim_call_failures_total", "device_held") > 0.0);
        // It holds nothing that it didn't get.
        let next = node.allocate("next", &["gpu-1"]).await;
        dra.prepare_one(&next).await.unwrap();
    });
}

#[test]
fn watching_excludes_nobody_and_64_claims_come_at_once() {
    test(async |node| {
        let (plugin, dra) = start(node, "a").await;
        let mut users = Vec::new();
        let mut watchers = Vec::new();
        for number in 0..64 {
            let gpu = format!("gpu-{}", number % 8);
            watchers.push(node.allocate_admin(&format!("watcher-{number}"), &[&gpu]).await);
        }
        for number in 0..8 {
            users.push(node.allocate(&format!("user-{number}"), &[&format!("gpu-{number}")]).await);
        }
        let all: Vec<&Claim> = watchers.iter().chain(&users).collect();
        for answer in join_all(all.iter().map(|claim| dra.prepare_one(claim))).await {
            assert_eq!(answer.unwrap().len(), 1);
        }
        assert!((plugin.metric("aliquot_prepared_claims", "") - 72.0).abs() < f64::EPSILON);
        for claim in &all {
            assert_eq!(traces(node, claim).len(), 2, "{}", claim.name);
        }
        for answer in join_all(all.iter().map(|claim| dra.unprepare_one(claim))).await {
            answer.unwrap();
        }
        for claim in &all {
            assert_eq!(traces(node, claim), Vec::<String>::new(), "{}", claim.name);
        }
    });
}

#[test]
fn a_call_that_kubelet_gave_up_is_finished() {
    test(async |node| {
        let (_plugin, dra) = start(node, "a").await;
        let (holder, claim) = (node.allocate("holder", &["gpu-0"]).await, node.allocate("claim", &["gpu-0"]).await);
        dra.prepare_one(&holder).await.unwrap();
        let mut prepare = Box::pin(dra.prepare_one(&claim));
        assert!(tokio::time::timeout(A_WHILE, &mut prepare).await.is_err());
        drop(prepare);
        dra.unprepare_one(&holder).await.unwrap();
        eventually("the claim is prepared", async || (traces(node, &claim).len() == 2).then_some(())).await;
        dra.unprepare_one(&claim).await.unwrap();
        assert_eq!(traces(node, &claim), Vec::<String>::new());
    });
}

/// Every length of a claim's file, and of its CDI file, as a start may find them.
#[test]
fn damaged_files_harm_only_their_claim() {
    test(async |node| {
        let (mut plugin, dra) = start(node, "a").await;
        let good = node.allocate("good", &["gpu-0"]).await;
        let bad = node.allocate("bad", &["gpu-1"]).await;
        let no_spec = node.allocate("no-spec", &["gpu-2"]).await;
        for claim in [&good, &bad, &no_spec] {
            dra.prepare_one(claim).await.unwrap();
        }
        let file = |claim: &Claim, below: &str| {
            let files = traces(node, claim);
            PathBuf::from(files.into_iter().find(|file| file.contains(below)).expect("a file of the claim"))
        };
        let (stored, spec) = (file(&bad, "/claims/"), file(&no_spec, "/cdi/"));
        let (whole, whole_spec) = (fs::read(&stored).unwrap(), fs::read(&spec).unwrap());
        let of_good = [fs::read(file(&good, "/claims/")).unwrap(), fs::read(file(&good, "/cdi/")).unwrap()];
        for (number, share) in [0.0, 0.2, 0.5, 0.9, 1.0].into_iter().enumerate() {
            plugin.kill();
            let cut = |bytes: &[u8]| {
                #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
                let length = ((bytes.len() - 1) as f64 * share) as usize;
                bytes[..length].to_vec()
            };
            fs::write(&stored, cut(&whole)).unwrap();
            fs::write(&spec, cut(&whole_spec)).unwrap();

            let instance = format!("b-{number}");
            let (next, dra) = start(node, &instance).await;
            plugin = next;
            assert_eq!([fs::read(file(&good, "/claims/")).unwrap(), fs::read(file(&good, "/cdi/")).unwrap()], of_good);
            assert_eq!(fs::read(&spec).unwrap(), whole_spec);
            assert!((plugin.metric("aliquot_claim_store_errors_total", "") - 1.0).abs() < f64::EPSILON, "{share}");
            let log = node.log();
            let log = log.rsplit("starting version").next().unwrap();
            assert!(log.lines().any(|line| line.contains("ERROR") && line.contains(&bad.uid)), "{log}");
            // kubelet asks for it, and gets it.
            dra.prepare_one(&bad).await.unwrap();
            assert_eq!(fs::read(&stored).unwrap(), whole);
        }
        drop(dra);
        let dra = node.kubelet.register(&plugin).await;
        for claim in [&good, &bad, &no_spec] {
            dra.unprepare_one(claim).await.unwrap();
            assert_eq!(traces(node, claim), Vec::<String>::new());
        }
    });
}

#[test]
fn a_damaged_claim_is_unprepared() {
    test(async |node| {
        let (mut plugin, dra) = start(node, "a").await;
        let claim = node.allocate("claim", &["gpu-0"]).await;
        dra.prepare_one(&claim).await.unwrap();
        plugin.kill();
        let stored = traces(node, &claim).into_iter().find(|file| file.contains("/claims/")).unwrap();
        fs::write(&stored, "").unwrap();
        let (_plugin, dra) = start(node, "b").await;
        dra.unprepare_one(&claim).await.unwrap();
        assert_eq!(traces(node, &claim), Vec::<String>::new());
        let next = node.allocate("next", &["gpu-0"]).await;
        dra.prepare_one(&next).await.unwrap();
    });
}

#[test]
fn an_api_server_that_is_away_delays_only_what_is_new() {
    test_alone(async |node| {
        let (plugin, dra) = start(node, "a").await;
        node.published(8).await;
        let (held, leaving) = (node.allocate("held", &["gpu-0"]).await, node.allocate("leaving", &["gpu-1"]).await);
        let (new, early) = (node.allocate("new", &["gpu-2"]).await, node.allocate("early", &["gpu-3"]).await);
        let devices = dra.prepare_one(&held).await.unwrap();
        dra.prepare_one(&leaving).await.unwrap();

        node.control().pause();
        // One is asked for just before the server comes back.
        let mut prepare = Box::pin(dra.prepare_one(&early));
        assert!(poll!(&mut prepare).is_pending());
        dra.unprepare_one(&leaving).await.unwrap();
        let (again, refused) = tokio::join!(dra.prepare_one(&held), dra.prepare_one(&new));
        assert_eq!(again.unwrap(), devices);
        let error = refused.unwrap_err();
        assert!(error.contains(&format!("get claim {}/new", new.namespace)), "{error}");
        assert_eq!(traces(node, &new), Vec::<String>::new());
        let _ = prepare.await;

        // Also one that starts meanwhile knows what it held. kubelet finds it at once.
        drop(plugin);
        let (_plugin, dra) = start(node, "b").await;
        assert_eq!(dra.prepare_one(&held).await.unwrap(), devices);
        node.control().resume().await;
        dra.prepare_one(&new).await.unwrap();
        dra.prepare_one(&early).await.unwrap();
    });
}

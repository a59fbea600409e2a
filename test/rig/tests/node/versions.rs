//! Claims' files that another version of the plugin has written. The version in a file is rewritten: what is the newer one's part is
//! played by the program whenever the file is of its own version.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use aliquot_device::hash::sha256;
use aliquot_rig::{Claim, Node};

use crate::{start, test, traces};

/// Changes both lines of a claim's file, and the sums that make it a whole one.
fn rewrite(node: &Node, claim: &Claim, header_edit: (&str, &str), body_edit: (&str, &str)) {
    let file = PathBuf::from(traces(node, claim).into_iter().find(|file| file.contains("/claims/")).unwrap());
    let content = fs::read_to_string(&file).unwrap();
    let (line, body) = content.split_once('\n').unwrap();
    let header = line.split_once(' ').unwrap().1;
    assert!(header.contains(header_edit.0) && body.contains(body_edit.0), "{content}");
    let new_body = body.replacen(body_edit.0, body_edit.1, 1);
    let new_header = header.replacen(header_edit.0, header_edit.1, 1);
    let new_header = new_header.replace(&sha256(body.as_bytes()), &sha256(new_body.as_bytes()));
    fs::write(file, format!("{} {new_header}\n{new_body}", sha256(new_header.as_bytes()))).unwrap();
}

#[test]
fn a_newer_versions_claims_are_kept_for_it() {
    test(async |node| {
        let (mut plugin, dra) = start(node, "newer").await;
        let (claim, other) = (node.allocate("claim", &["gpu-0"]).await, node.allocate("other", &["gpu-1"]).await);
        dra.prepare_one(&claim).await.unwrap();
        dra.prepare_one(&other).await.unwrap();
        plugin.kill();
        rewrite(node, &claim, ("\"version\":1", "\"version\":2"), ("\"bootId\"", "\"machineBoot\""));
        let files = || node.files().into_iter().filter(|(path, _)| path.display().to_string().contains(&claim.uid));
        let before: Vec<_> = files().collect();
        assert_eq!(before.len(), 2);

        let (older, dra) = start(node, "older").await;
        let refused = [dra.prepare_one(&claim).await.unwrap_err(), dra.unprepare_one(&claim).await.unwrap_err()];
        for error in refused {
            assert!(error.contains(&format!("{}/claim", claim.namespace)), "{error}");
            assert!(error.contains("of version 2") && error.contains("the newer version has to run again"), "{error}");
        }
        let next = node.allocate("next", &["gpu-0"]).await;
        let mut waiting = Box::pin(dra.prepare_one(&next));
        assert!(tokio::time::timeout(Duration::from_millis(500), &mut waiting).await.is_err());
        dra.unprepare_one(&other).await.unwrap();
        assert_eq!(traces(node, &other), Vec::<String>::new());
        assert_eq!(files().collect::<Vec<_>>(), before);

        // The next upgrade: it starts beside the older one and releases what is its own.
        rewrite(node, &claim, ("\"version\":2", "\"version\":1"), ("\"machineBoot\"", "\"bootId\""));
        let (_newer, newer_dra) = start(node, "newer-again").await;
        newer_dra.unprepare_one(&claim).await.unwrap();
        waiting.await.unwrap();
        assert_eq!(traces(node, &claim), Vec::<String>::new());
        assert_eq!(traces(node, &next).len(), 2);
        older.stop();
    });
}

#[test]
fn additions_of_a_later_program_are_ignored() {
    test(async |node| {
        let (mut plugin, dra) = start(node, "later").await;
        let claim = node.allocate("claim", &["gpu-0"]).await;
        let devices = dra.prepare_one(&claim).await.unwrap();
        plugin.kill();
        rewrite(node, &claim, ("{", r#"{"later":[1],"#), ("{\"request\"", r#"{"later":{"a":1},"request""#));

        let (plugin, dra) = start(node, "earlier").await;
        assert!((plugin.metric("aliquot_prepared_claims", "") - 1.0).abs() < f64::EPSILON);
        assert!((plugin.metric("aliquot_claim_store_errors_total", "") - 0.0).abs() < f64::EPSILON);
        assert_eq!(dra.prepare_one(&claim).await.unwrap(), devices);
        dra.unprepare_one(&claim).await.unwrap();
        assert_eq!(traces(node, &claim), Vec::<String>::new());
    });
}

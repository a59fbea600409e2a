//! Claims, as kubelet asks for them.

use aliquot_rig::{Claim, Node};

use crate::test;

/// What is left of a claim on the node.
pub(crate) fn traces(node: &Node, claim: &Claim) -> Vec<String> {
    let names = node.files().into_iter().map(|(path, _)| path.display().to_string());
    names.filter(|name| name.contains(&claim.uid)).collect()
}

#[test]
fn a_claim_is_prepared_and_unprepared() {
    test(async |node| {
        let plugin = node.start_plugin("a");
        let dra = node.kubelet.register(&plugin).await;
        node.published(8).await;
        let claim = node.allocate("claim", &["gpu-0", "gpu-3"]).await;
        let devices = dra.prepare_one(&claim).await.unwrap();
        assert_eq!(devices.len(), 2);
        assert_eq!(dra.prepare_one(&claim).await.unwrap(), devices);
        let spec = node.cdi_file(&claim).unwrap().to_string();
        assert!(spec.contains("/dev/nvidia0") && spec.contains("/dev/nvidia3") && !spec.contains("/dev/nvidia1"));
        dra.unprepare_one(&claim).await.unwrap();
        dra.unprepare_one(&claim).await.unwrap();
        assert_eq!(traces(node, &claim), Vec::<String>::new());
        drop(dra);
        plugin.stop();
    });
}

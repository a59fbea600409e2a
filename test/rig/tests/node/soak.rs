//! What a plugin does thousands of times leaves nothing behind.

use aliquot_rig::{Node, Plugin};
use futures::future::join_all;

use crate::{start, test};

const CALLS: usize = 5000;
const WARM: usize = 500;
const AT_ONCE: usize = 8;

/// What an allocator may keep after a burst. 4,500 claims of which each left a kilobyte would be more.
const SLACK: u64 = 2_000_000;

/// What it holds, when nothing is prepared.
struct State {
    anonymous: u64,
    resident: u64,
    descriptors: usize,
    files: usize,
}

fn state(node: &Node, plugin: &Plugin) -> State {
    let memory = plugin.memory();
    State {
        anonymous: memory.anonymous,
        resident: memory.resident,
        descriptors: plugin.descriptors(),
        files: node.files().len(),
    }
}

#[test]
fn five_thousand_claims_leave_nothing() {
    test(async |node| {
        let (plugin, dra) = start(node, "a").await;
        node.published(8).await;
        let mut warm = None;
        for start in (0..CALLS).step_by(AT_ONCE) {
            let names: Vec<String> = (start..start + AT_ONCE).map(|number| format!("claim-{number}")).collect();
            let gpus: Vec<String> = (0..AT_ONCE).map(|number| format!("gpu-{number}")).collect();
            join_all(names.iter().zip(&gpus).map(async |(name, gpu)| {
                let claim = node.allocate(name, &[gpu]).await;
                dra.prepare_one(&claim).await.unwrap();
                dra.unprepare_one(&claim).await.unwrap();
            }))
            .await;
            if warm.is_none() && start >= WARM {
                warm = Some(state(node, &plugin));
            }
        }
        let (warm, end) = (warm.unwrap(), state(node, &plugin));
        assert_eq!(end.files, warm.files);
        // Connections to the API server come and go.
        assert!(end.descriptors <= warm.descriptors + 4, "{} descriptors, were {}", end.descriptors, warm.descriptors);
        assert!(end.anonymous <= warm.anonymous + SLACK, "{} bytes, were {}", end.anonymous, warm.anonymous);
        assert!(end.resident <= warm.resident + SLACK, "{} bytes, were {}", end.resident, warm.resident);
        println!("{} to {} bytes of anonymous memory", warm.anonymous, end.anonymous);
        assert!((plugin.metric("aliquot_prepared_claims", "") - 0.0).abs() < f64::EPSILON);
    });
}

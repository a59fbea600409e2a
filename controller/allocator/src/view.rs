//! What is known of a node's devices from one search to another.

use std::collections::BTreeMap;
use std::ops::Range;

use k8s_openapi::api::core::v1::Node;

use crate::cost::Board;
use crate::error::Error;
use crate::features::Features;
use crate::matcher::Memo;
use crate::mode::Mode;
use crate::model::Model;
use crate::pools::{self, Slices};
use crate::state::{AllocatedState, PoolId};

/// When something changed last, if it is there.
type Version = Option<u64>;

/// The devices of a node, and what they were found to be. Brought up to date before each search, where that costs what has
/// changed: the slices of a pool make its devices unknown again, and what claims have is counted anew for that pool.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) model: Model,
    pub(crate) memo: Memo,
    /// For placement.
    pub(crate) board: Board,
    seen: Option<Seen>,
}

/// What a view was made of.
#[derive(Debug)]
struct Seen {
    slices: u64,
    state: u64,
    of_node: Version,
    without_node: u64,
    /// All pools with slices for the node, also those without devices for it.
    pools: Vec<(PoolId, Version)>,
    /// The node's labels, if it may depend on them which devices it has.
    labels: Option<BTreeMap<String, String>>,
}

impl Seen {
    fn is_current(&self, slices: &Slices, node: &Node) -> bool {
        self.has_labels_of(node) && (self.slices == slices.clock || self.has_slices(slices, node))
    }

    fn has_labels_of(&self, node: &Node) -> bool {
        let own = node.metadata.labels.iter().flatten();
        self.labels.as_ref().is_none_or(|labels| labels.iter().eq(own))
    }

    fn has_slices(&self, slices: &Slices, node: &Node) -> bool {
        self.of_node == slices.node_changed(name(node))
            && self.without_node == slices.without_node.changed
            && self.pools.iter().all(|(id, version)| slices.pool_changed(id) == *version)
    }
}

fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

impl View {
    /// Makes it one of these slices, this state and this node, of which only the name may not be another.
    pub(crate) fn update(
        &mut self,
        slices: &Slices,
        state: &AllocatedState,
        node: &Node,
        (features, mode): (Features, Mode),
    ) -> Result<(), Error> {
        let mut is_new = false;
        match &mut self.seen {
            Some(seen) if seen.is_current(slices, node) => seen.slices = slices.clock,
            _ => {
                self.rebuild(slices, node, (features, mode))?;
                is_new = true;
            }
        }
        let Some(seen) = &mut self.seen else { return Ok(()) };
        if is_new || seen.state != state.clock {
            seen.state = state.clock;
            let mut has_changed = false;
            for index in 0..self.model.pools.len() {
                let state = state.pool(&self.model.pools[index].id);
                has_changed |= self.model.give(index, state, mode);
            }
            match mode {
                Mode::Placement if is_new => self.board = Board::new(&self.model),
                Mode::Placement if has_changed => self.board.update(&self.model),
                Mode::Parity | Mode::Placement => {}
            }
        }
        if self.memo.is_full() {
            self.memo = Memo::new(self.model.devices.len());
        }
        Ok(())
    }

    fn rebuild(&mut self, slices: &Slices, node: &Node, (features, mode): (Features, Mode)) -> Result<(), Error> {
        let gathered = pools::gather(slices, node, features, mode)?;
        let pools: Vec<_> = gathered.iter().map(|(id, _)| (id.clone(), slices.pool_changed(id))).collect();
        let model = Model::new(gathered, (features, mode))?;
        match &self.seen {
            Some(seen) if seen.has_labels_of(node) => {
                let kept = kept(&self.model, &seen.pools, &model, &pools);
                self.memo.rearrange(model.devices.len(), &kept);
            }
            _ => self.memo = Memo::new(model.devices.len()),
        }
        let has_selectors = slices.has_any_without_node() || model.devices.iter().any(|device| device.selects_nodes);
        self.model = model;
        self.seen = Some(Seen {
            slices: slices.clock,
            state: 0,
            of_node: slices.node_changed(name(node)),
            without_node: slices.without_node.changed,
            pools,
            labels: has_selectors.then(|| node.metadata.labels.clone().unwrap_or_default()),
        });
        Ok(())
    }
}

/// Where the devices of pools were that have the same slices as before, and where they begin now.
fn kept(
    old: &Model,
    old_pools: &[(PoolId, Version)],
    new: &Model,
    new_pools: &[(PoolId, Version)],
) -> Vec<(Range<usize>, usize)> {
    let version = |pools: &[(PoolId, Version)], id: &PoolId| {
        pools.iter().find(|(other, _)| other == id).and_then(|(_, version)| *version)
    };
    let mut kept = Vec::new();
    for pool in &new.pools {
        let before = old.pools.iter().find(|before| before.id == pool.id);
        if let Some(before) = before.filter(|_| version(old_pools, &pool.id) == version(new_pools, &pool.id)) {
            kept.push((before.devices.clone(), pool.devices.start));
        }
    }
    kept
}

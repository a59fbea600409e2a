//! Which nodes a slice or device is for.

use aliquot_fit::term_matches;
use k8s_openapi::api::core::v1::{Node, NodeSelector};

/// Whether a slice or device is for the node, or what is wrong with its selector. The first of the three that is set counts.
pub(crate) fn matches(
    node: &Node,
    name: Option<&str>,
    all: Option<bool>,
    selector: Option<&NodeSelector>,
) -> Result<bool, String> {
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        return Ok(node.metadata.name.as_deref() == Some(name));
    }
    if all == Some(true) {
        return Ok(true);
    }
    let Some(selector) = selector else { return Ok(false) };
    // Nothing is decided before all of it is known to be right.
    let mut any = false;
    for term in &selector.node_selector_terms {
        any |= term_matches(node, term)?;
    }
    Ok(any)
}

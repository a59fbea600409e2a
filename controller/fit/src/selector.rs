//! Node selectors and tolerations, as the scheduler reads them.

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};

/// One of the terms is enough; one that can't be read matches nothing.
pub(crate) fn matches(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(node, term).unwrap_or(false))
}

/// Whether a node is what a term says, or what is wrong with the term. An empty one matches nothing.
pub fn term_matches(node: &Node, term: &NodeSelectorTerm) -> Result<bool, String> {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let mut all = !(expressions.is_empty() && fields.is_empty());
    for requirement in expressions {
        all &= label_matches(node, requirement)?;
    }
    for requirement in fields {
        all &= field_matches(node, requirement)?;
    }
    Ok(all)
}

fn label_matches(node: &Node, requirement: &NodeSelectorRequirement) -> Result<bool, String> {
    let values = requirement.values.as_deref().unwrap_or_default();
    let key = &requirement.key;
    if !is_label_key(key) {
        return Err(format!("{key:?} is no label"));
    }
    if let Some(value) = values.iter().find(|value| !is_label_value(value)) {
        return Err(format!("{value:?} is no value of a label"));
    }
    let label = node.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let is_in = || label.is_some_and(|label| values.contains(label));
    match (requirement.operator.as_str(), values) {
        ("In" | "NotIn", []) => Err(format!("{} of label {key} needs values", requirement.operator)),
        ("In", _) => Ok(is_in()),
        ("NotIn", _) => Ok(!is_in()),
        ("Exists", []) => Ok(label.is_some()),
        ("DoesNotExist", []) => Ok(label.is_none()),
        ("Exists" | "DoesNotExist", _) => Err(format!("{} of label {key} takes no values", requirement.operator)),
        ("Gt" | "Lt", [value]) => {
            let value = number(value).ok_or_else(|| format!("{value:?} isn't a number to compare label {key} with"))?;
            let label = label.and_then(|label| number(label));
            Ok(label.is_some_and(|label| if requirement.operator == "Gt" { label > value } else { label < value }))
        }
        ("Gt" | "Lt", _) => Err(format!("{} of label {key} needs one value", requirement.operator)),
        (other, _) => Err(format!("unknown operator {other:?} of label {key}")),
    }
}

fn field_matches(node: &Node, requirement: &NodeSelectorRequirement) -> Result<bool, String> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let field = if requirement.key == "metadata.name" { name } else { "" };
    match (requirement.operator.as_str(), requirement.values.as_deref().unwrap_or_default()) {
        // A node without a name has no fields, and then they aren't looked at.
        ("In", [value]) => Ok(name.is_empty() || field == value),
        ("NotIn", [value]) => Ok(name.is_empty() || field != value),
        ("In" | "NotIn", _) => Err(format!("{} of field {} needs one value", requirement.operator, requirement.key)),
        (other, _) => Err(format!("unknown operator {other:?} of field {}", requirement.key)),
    }
}

/// Rust takes the same numbers as Go here.
fn number(text: &str) -> Option<i64> {
    text.parse().ok()
}

fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(|p| p.len() <= 253 && p.split('.').all(is_part))
}

fn is_label_value(value: &str) -> bool {
    value.len() <= 63
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && value.bytes().next().is_none_or(|b| b.is_ascii_alphanumeric())
        && value.bytes().last().is_none_or(|b| b.is_ascii_alphanumeric())
}

/// Whether a toleration is for a taint.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_empty = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
    let is_effect = is_empty(&toleration.effect) || toleration.effect.as_deref() == Some(&taint.effect);
    let is_key = is_empty(&toleration.key) || toleration.key.as_deref() == Some(&taint.key);
    let is_value = match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default(),
        "Exists" => true,
        _ => false,
    };
    is_effect && is_key && is_value
}

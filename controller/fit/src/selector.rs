//! Node selectors and tolerations, as the scheduler reads them for pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};

/// One of the terms is enough; an empty one matches nothing, and so does one that can't be read.
pub(crate) fn matches(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, name, labels))
}

fn term_matches(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let field = |key: &str| (key == "metadata.name").then_some(name);
    expressions.iter().all(|one| requirement_matches(one, labels.get(&one.key).map(String::as_str)))
        && fields.iter().all(|one| requirement_matches(one, field(&one.key)))
}

fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_in = value.is_some_and(|value| values.iter().any(|one| one == value));
    let compare = |is: fn(i64, i64) -> bool| {
        let than = values.first().and_then(|text| text.parse().ok());
        let value = value.and_then(|text| text.parse().ok());
        than.zip(value).is_some_and(|(than, value)| is(value, than))
    };
    match requirement.operator.as_str() {
        "In" => is_in,
        "NotIn" => !is_in,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|value, than| value > than),
        "Lt" => compare(|value, than| value < than),
        _ => false,
    }
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

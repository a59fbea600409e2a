//! Why a pod got nothing, from what each node said: one reason, and one sentence with numbers.

use std::collections::BTreeMap;
use std::fmt::Write;

use aliquot_allocator::{Reason as Against, Reasons, Shortage};
use aliquot_api::reason::Reason;
use aliquot_fit::Misfit;

/// The longest message: what a line of a terminal or two can hold.
const MESSAGE_MAX: usize = 200;

/// Why a pod waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The reason.
    pub reason: Reason,
    /// One sentence.
    pub message: String,
}

impl Verdict {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MESSAGE_MAX {
            let end = (0..=MESSAGE_MAX - '…'.len_utf8()).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
            message.truncate(end);
            message.push('…');
        }
        Self { reason, message }
    }
}

/// What speaks against a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum No {
    /// Something other than devices.
    Fit(Misfit),
    /// Its devices.
    Devices(Reasons),
}

/// What was found out about one request on all nodes.
#[derive(Default)]
struct Asked {
    needed: i64,
    /// Devices that are what is asked for.
    matching: usize,
    /// The most of them on one node.
    most: usize,
    devices: usize,
}

/// Puts together what the nodes said. All of them have devices of ours.
pub(crate) fn of(nodes: &[No]) -> Verdict {
    if nodes.is_empty() {
        return Verdict::new(Reason::DriverNotReady, "no node publishes devices yet");
    }
    let mut requests = BTreeMap::<(&str, &str), Asked>::new();
    for shortage in nodes.iter().filter_map(reasons).flat_map(|reasons| &reasons.shortages) {
        let asked = requests.entry((&shortage.claim, &shortage.request)).or_default();
        let all = shortage.usable + shortage.reasons.values().sum::<usize>();
        let matching = all - shortage.reasons.get(&Against::Selector).copied().unwrap_or_default();
        asked.needed = asked.needed.max(shortage.needed);
        asked.matching += matching;
        asked.most = asked.most.max(matching);
        asked.devices += all;
    }
    let is_alternative = |request: &str| request.contains('/');
    let is_all_seen = nodes.iter().all(|no| reasons(no).is_some_and(|reasons| reasons.incomplete_pools.is_empty()));
    if is_all_seen {
        // One of several alternatives may be impossible.
        for ((claim, request), asked) in requests.iter().filter(|((_, request), _)| !is_alternative(request)) {
            if asked.matching == 0 {
                let text = format!("claim {claim}, request {request} matches none of {} devices", asked.devices);
                return Verdict::new(Reason::SelectorMatchesNothing, text);
            }
            let Asked { needed, most, .. } = asked;
            if usize::try_from(*needed).is_ok_and(|needed| needed > *most) {
                let text = format!(
                    "claim {claim}, request {request} needs {needed} devices on one node; no node has more than {most}"
                );
                return Verdict::new(Reason::NeverFits, text);
            }
        }
    }
    let mut counts = BTreeMap::<String, usize>::new();
    for no in nodes {
        *counts.entry(cause(no)).or_default() += 1;
    }
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let mut text = format!("0 of {} nodes with devices fit", nodes.len());
    for (index, (cause, count)) in counts.iter().enumerate() {
        let _ = write!(text, "{} {count} {cause}", if index == 0 { ":" } else { "," });
    }
    let is_not_ready = nodes.iter().all(|no| reasons(no).is_some_and(|reasons| !reasons.incomplete_pools.is_empty()));
    Verdict::new(if is_not_ready { Reason::DriverNotReady } else { Reason::NoDevicesFit }, text)
}

fn reasons(no: &No) -> Option<&Reasons> {
    match no {
        No::Fit(_) => None,
        No::Devices(reasons) => Some(reasons),
    }
}

/// In a word or two, why not this node.
fn cause(no: &No) -> String {
    let reasons = match no {
        No::Fit(misfit) => return format!("without room ({})", misfit.cause()),
        No::Devices(reasons) => reasons,
    };
    let is_short = |one: &&Shortage| usize::try_from(one.needed).is_ok_and(|needed| needed > one.usable);
    let Some(shortage) = reasons.shortages.iter().find(is_short) else {
        return if reasons.incomplete_pools.is_empty() { "other combination".into() } else { "incomplete pool".into() };
    };
    // What comes nearest to being possible says most.
    let order = [
        (Against::InUse, "busy"),
        (Against::Counters, "busy"),
        (Against::Capacity, "too little left"),
        (Against::CompatibilityGroups, "incompatible"),
        (Against::Taint, "tainted"),
        (Against::Constraint, "attribute missing"),
        (Against::Feature, "feature off"),
        (Against::Selector, "other devices"),
    ];
    let found = order.into_iter().find(|(against, _)| shortage.reasons.contains_key(against));
    found.map_or("incomplete pool", |(_, word)| word).to_owned()
}

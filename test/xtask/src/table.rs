//! The table at the end of the demo: which pod got what, and what its containers saw.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

/// A pod of the examples that runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) containers: Vec<String>,
    /// Its ResourceClaims.
    pub(crate) claims: Vec<String>,
}

/// The pods of a list; or what isn't ready yet.
pub(crate) fn ready_pods(list: &Value) -> Result<Vec<Pod>, String> {
    let mut pods = Vec::new();
    for item in items(list) {
        let name = text(&item["metadata"]["name"]);
        let ready = items_of(&item["status"]["conditions"]).any(|c| c["type"] == "Ready" && c["status"] == "True");
        if !ready {
            let phase = text(&item["status"]["phase"]);
            let why = items_of(&item["status"]["conditions"]).filter(|c| c["status"] == "False");
            let why = why.map(|c| text(&c["message"])).find(|message| !message.is_empty()).unwrap_or_default();
            return Err(format!("{name} is {phase}: {why}"));
        }
        let statuses = items_of(&item["status"]["resourceClaimStatuses"]);
        let made = statuses.map(|status| (text(&status["name"]), text(&status["resourceClaimName"])));
        let made: BTreeMap<String, String> = made.collect();
        let claims = items_of(&item["spec"]["resourceClaims"]).map(|claim| {
            let named = text(&claim["resourceClaimName"]);
            if named.is_empty() { made.get(&text(&claim["name"])).cloned().unwrap_or_default() } else { named }
        });
        pods.push(Pod {
            node: text(&item["spec"]["nodeName"]),
            containers: items_of(&item["spec"]["containers"]).map(|container| text(&container["name"])).collect(),
            claims: claims.collect(),
            name,
        });
    }
    if pods.is_empty() { Err("there is no pod".to_owned()) } else { Ok(pods) }
}

/// The devices of each claim of a list.
pub(crate) fn devices(list: &Value) -> BTreeMap<String, Vec<String>> {
    let of_claim = |item: &Value| {
        items_of(&item["status"]["allocation"]["devices"]["results"]).map(|result| text(&result["device"])).collect()
    };
    items(list).map(|item| (text(&item["metadata"]["name"]), of_claim(item))).collect()
}

/// A line of `nvidia-smi -L`, short enough for a table.
pub(crate) fn short_gpu(line: &str) -> String {
    let Some((index, rest)) = line.split_once(": ") else { return line.to_owned() };
    let Some((product, uuid)) = rest.split_once(" (UUID: ") else { return line.to_owned() };
    let uuid = uuid.trim_end_matches(')');
    format!("{index}: {product} {}", uuid.get(..12).unwrap_or(uuid))
}

/// Columns as wide as they must be; the last cell of a row may have several lines.
pub(crate) fn render(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|name| name.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.lines().map(|line| line.chars().count()).max().unwrap_or(0));
        }
    }
    let mut table = String::new();
    let mut write_row = |cells: &[&str]| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            // Writing to a String can't fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        table.push_str(line.trim_end());
        table.push('\n');
    };
    write_row(head);
    for row in rows {
        let lines = row.iter().map(|cell| cell.lines().count()).max().unwrap_or(0).max(1);
        for number in 0..lines {
            let cells: Vec<&str> = row.iter().map(|cell| cell.lines().nth(number).unwrap_or_default()).collect();
            write_row(&cells);
        }
    }
    table
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    items_of(&list["items"])
}

fn items_of(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(ready: &str) -> Value {
        json!({"items": [{
            "metadata": {"name": "train"},
            "spec": {
                "nodeName": "node-1",
                "containers": [{"name": "a"}, {"name": "b"}],
                "resourceClaims": [
                    {"name": "own", "resourceClaimTemplateName": "one-gpu"},
                    {"name": "shared", "resourceClaimName": "team"},
                ],
            },
            "status": {
                "phase": "Pending",
                "conditions": [{"type": "Ready", "status": ready, "message": "no GPU is free"}],
                "resourceClaimStatuses": [{"name": "own", "resourceClaimName": "train-own-x1"}],
            },
        }]})
    }

    #[test]
    fn a_pod_names_its_claims() {
        let pods = ready_pods(&pod("True")).unwrap();
        assert_eq!(pods[0].claims, ["train-own-x1", "team"]);
        assert_eq!(pods[0].containers, ["a", "b"]);
        assert_eq!(pods[0].node, "node-1");
    }

    #[test]
    fn what_is_not_ready_says_why() {
        assert_eq!(ready_pods(&pod("False")).unwrap_err(), "train is Pending: no GPU is free");
        assert_eq!(ready_pods(&json!({"items": []})).unwrap_err(), "there is no pod");
    }

    #[test]
    fn a_claim_has_devices() {
        let results = json!([{"device": "gpu-3"}, {"device": "gpu-4"}]);
        let list = json!({"items": [
            {"metadata": {"name": "a"}, "status": {"allocation": {"devices": {"results": results}}}},
            {"metadata": {"name": "b"}},
        ]});
        let devices = devices(&list);
        assert_eq!(devices["a"], ["gpu-3", "gpu-4"]);
        assert!(devices["b"].is_empty());
    }

    #[test]
    fn gpu_lines_are_shortened_if_they_are_known() {
        let line = "GPU 0: NVIDIA L4 (UUID: GPU-12345678-9abc-def0-1234-56789abcdef0)";
        assert_eq!(short_gpu(line), "GPU 0: NVIDIA L4 GPU-12345678");
        assert_eq!(short_gpu("something else"), "something else");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "one\ntwo".to_owned()], vec!["long".to_owned(), String::new()]];
        assert_eq!(render(&["POD", "SEES"], &rows), "POD   SEES\na     one\n      two\nlong\n");
    }
}

//! Figures and how they are shown.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Map, Value, json};

/// What was measured.
pub(crate) struct Figure {
    /// Its name in JSON.
    pub key: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// The value, in the unit that the key ends with.
    pub value: f64,
    /// The greatest value that is fine.
    pub aim: Option<f64>,
}

/// All figures, and what explains them.
#[derive(Default)]
pub(crate) struct Report {
    figures: Vec<Figure>,
    /// Where the memory is, which calls were made: only for people.
    notes: Vec<String>,
}

impl Report {
    pub(crate) fn add(&mut self, key: &'static str, title: &'static str, value: f64, aim: Option<f64>) {
        self.figures.push(Figure { key, title, value, aim });
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// One line.
    pub(crate) fn json(&self) -> String {
        let rounded = |value: f64| json!((value * 1000.0).round() / 1000.0);
        let figures: Map<String, Value> =
            self.figures.iter().map(|figure| (figure.key.to_owned(), rounded(figure.value))).collect();
        Value::Object(figures).to_string()
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut table = format!("{:<58} {:>9} {:>7}\n", "", "MEASURED", "AIM");
        for Figure { title, value, aim, .. } in &self.figures {
            let missed = if aim.is_some_and(|aim| *value > aim) { "  missed" } else { "" };
            let aim = aim.map_or_else(String::new, |aim| aim.to_string());
            // Writing to a String can't fail.
            let _ = writeln!(table, "{title:<58} {value:>9.2} {aim:>7}{missed}");
        }
        for note in &self.notes {
            let _ = writeln!(table, "\n{note}");
        }
        table
    }
}

/// The smallest of the values that is as great as this share of them, in milliseconds.
pub(crate) fn percentile(times: &[Duration], share: f64) -> f64 {
    let mut times = times.to_vec();
    times.sort();
    // Not more than the tests make, and not negative.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
    let rank = (times.len() as f64 * share).ceil() as usize;
    times[rank.clamp(1, times.len()) - 1].as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let times: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        for (share, expected) in [(0.5, 100.0), (0.99, 198.0), (1.0, 200.0), (0.0, 1.0)] {
            assert!((percentile(&times, share) - expected).abs() < f64::EPSILON, "{share}");
        }
        assert!((percentile(&times[..1], 0.99) - 200.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_missed_aim_is_told() {
        let mut report = Report::default();
        report.add("rss_mb", "memory", 12.3456, Some(13.0));
        report.add("prepare_p50_ms", "prepare", 3.01, Some(3.0));
        assert_eq!(report.json(), r#"{"prepare_p50_ms":3.01,"rss_mb":12.346}"#);
        let table = report.table();
        assert!(!table.lines().nth(1).unwrap().contains("missed"), "{table}");
        assert!(table.lines().nth(2).unwrap().ends_with("missed"), "{table}");
    }
}

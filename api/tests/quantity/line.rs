//! What is asked of quantities and answered, here and by the Go program `oracle/quantity`.

use std::cmp::Ordering;

use aliquot_api::quantity::{Format, Quantity};
use serde::{Deserialize, Serialize};

/// A question of one or two texts; with the answer, when there is one.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Line {
    pub(crate) a: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) b: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) error: bool,
    /// Empty where Kubernetes writes something that it wouldn't read as the same; so are the sum and difference.
    #[serde(skip_serializing_if = "String::is_empty")]
    text: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    format: String,
    sign: i8,
    /// None where what Kubernetes says is no number near it; so are the thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    milli: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    int: Option<i64>,
    float: String,
    compared: i8,
    #[serde(skip_serializing_if = "String::is_empty")]
    sum: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    difference: String,
}

fn sign(order: Ordering) -> i8 {
    match order {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }
}

impl Line {
    /// Our answer to the question; where this answer has nothing to compare with, it hasn't either.
    pub(crate) fn answered(&self) -> Self {
        let ours = Self { a: self.a.clone(), b: self.b.clone(), ..Self::default() };
        let (Ok(a), Ok(b)) = (self.a.parse::<Quantity>(), if self.b.is_empty() { "0" } else { &self.b }.parse()) else {
            return Self { error: true, float: "0".to_owned(), ..ours };
        };
        let unless_empty = |text: &str, ours: &Quantity| if text.is_empty() { String::new() } else { ours.to_string() };
        let format = match a.format() {
            Format::DecimalSi => "DecimalSI",
            Format::BinarySi => "BinarySI",
            Format::DecimalExponent => "DecimalExponent",
        };
        // As a number: each side may write it in its own way.
        let is_same = self.float.parse() == Ok(a.approximate());
        let ours = Self {
            text: unless_empty(&self.text, &a),
            format: format.to_owned(),
            sign: sign(a.sign()),
            value: self.value.map(|_| a.value()),
            milli: self.milli.map(|_| a.milli_value()),
            int: a.as_i64(),
            float: if is_same { self.float.clone() } else { a.approximate().to_string() },
            ..ours
        };
        if self.b.is_empty() {
            return ours;
        }
        let (mut sum, mut difference) = (a.clone(), a.clone());
        sum.add(&b);
        difference.sub(&b);
        Self {
            compared: sign(a.cmp(&b)),
            sum: unless_empty(&self.sum, &sum),
            difference: unless_empty(&self.difference, &difference),
            ..ours
        }
    }
}

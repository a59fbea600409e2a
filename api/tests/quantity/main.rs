//! Quantities against what Kubernetes' own code says of them. `go run ./oracle/quantity` in `test/cluster` makes the table.

#![allow(clippy::panic)]

mod line;

use std::cmp::Ordering;
use std::str::FromStr;

use aliquot_api::quantity::{Format, Quantity, QuantityError};
use line::Line;
use proptest::prelude::*;

fn quantity(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn they_are_what_kubernetes_says() {
    let (mut lines, mut wrong) = (0, Vec::new());
    for text in include_str!("cases.jsonl").lines() {
        let line: Line = serde_json::from_str(text).unwrap();
        lines += 1;
        let ours = line.answered();
        if ours != line {
            wrong.push(format!("{line:?}\n  gave {ours:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {lines}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(lines > 1000, "the table has only {lines} lines");
}

#[test]
fn what_has_no_suffix_keeps_its_zeros() {
    assert_eq!(quantity("1000000E").to_string(), "1000000E");
    let mut sum = quantity("7Ei");
    for _ in 0..9 {
        sum.add(&quantity("7Ei"));
    }
    assert_eq!(sum.to_string(), "70Ei");
    let mut kibi = quantity("4Ei");
    for _ in 0..8 {
        let twice = kibi.clone();
        kibi.add(&twice);
    }
    assert_eq!(kibi.to_string(), "1024Ei");
    assert_eq!(kibi.value(), i64::MAX);
}

#[test]
fn huge_exponents_are_refused() {
    assert!(quantity("1e10000") > quantity("1e9999"));
    for text in ["1e10001", "1e-2000000000", "1e4294967296"] {
        assert_eq!(Quantity::from_str(text), Err(QuantityError::Exponent(text.to_owned())));
    }
}

fn any_text() -> impl Strategy<Value = String> {
    ("[+-]?[0-9]{1,24}", "(\\.[0-9]{0,12})?", "n|u|m||k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|e3|e-6|E40")
        .prop_map(|(whole, fraction, suffix)| format!("{whole}{fraction}{suffix}"))
}

proptest! {
    #[test]
    fn any_text_is_a_quantity_or_an_error(text in "[-+0-9.eEinumkKMGTP é]{0,12}") {
        let _ = Quantity::from_str(&text);
    }

    #[test]
    fn the_text_means_the_same(text in any_text()) {
        let one = quantity(&text);
        // A binary number is cut where it is parsed.
        prop_assume!(one <= Quantity::new(i64::MAX, Format::DecimalSi) || one.format() != Format::BinarySi);
        let again = quantity(&one.to_string());
        prop_assert_eq!(&again, &one);
        prop_assert_eq!(again.to_string(), one.to_string());
    }

    #[test]
    fn taking_away_undoes_adding(a in any_text(), b in any_text()) {
        let (a, b) = (quantity(&a), quantity(&b));
        let mut changed = a.clone();
        changed.add(&b);
        prop_assert_eq!(changed.cmp(&a), b.sign());
        changed.sub(&b);
        prop_assert_eq!(&changed, &a);
        changed.sub(&a);
        prop_assert!(changed.is_zero());
    }

    #[test]
    fn the_order_is_one(a in any_text(), b in any_text()) {
        let (a, b) = (quantity(&a), quantity(&b));
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        let mut difference = a.clone();
        difference.sub(&b);
        prop_assert_eq!(a.cmp(&b), difference.sign());
    }

    #[test]
    fn values_are_rounded_away_from_zero(milli in any::<i64>()) {
        let quantity = Quantity::from_milli(milli, Format::DecimalSi);
        prop_assert_eq!(quantity.milli_value(), milli);
        let back = Quantity::new(quantity.value(), Format::DecimalSi);
        let order = if milli % 1000 == 0 { Ordering::Equal } else { milli.cmp(&0) };
        prop_assert_eq!(back.cmp(&quantity), order);
    }
}

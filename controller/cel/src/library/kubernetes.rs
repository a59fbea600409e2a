//! Quantities and versions.

use std::cmp::Ordering;
use std::str::FromStr;
use std::sync::Arc;

use aliquot_api::quantity::{Format, Quantity};

use super::scan;
use super::strings::text;
use crate::error::EvaluationError;
use crate::functions::Cost::{Name, One};
use crate::functions::Row;
use crate::functions::Style::{Global, Member};
use crate::semver::Version;
use crate::value::Value;

type Outcome = Result<Value, EvaluationError>;

pub(crate) const ROWS: &[Row] = &[
    Row("quantity", Global, "string -> quantity", Name(scan), |args| {
        let quantity = Quantity::from_str(text(args, 0)?).map_err(|error| EvaluationError::text(error.to_string()))?;
        Ok(Value::quantity(quantity, false))
    }),
    Row("isQuantity", Global, "string -> bool", Name(scan), |args| {
        Ok(Value::Bool(Quantity::from_str(text(args, 0)?).is_ok()))
    }),
    // A function, not a member: so it is in Kubernetes.
    Row("sign", Global, "quantity -> int", One, |args| Ok(order(quantity(args, 0)?.sign()))),
    Row("isGreaterThan", Member, "quantity quantity -> bool", One, |args| {
        Ok(Value::Bool(quantity(args, 0)? > quantity(args, 1)?))
    }),
    Row("isLessThan", Member, "quantity quantity -> bool", One, |args| {
        Ok(Value::Bool(quantity(args, 0)? < quantity(args, 1)?))
    }),
    Row("compareTo", Member, "quantity quantity -> int", One, |args| {
        Ok(order(quantity(args, 0)?.cmp(quantity(args, 1)?)))
    }),
    Row("asApproximateFloat", Member, "quantity -> double", One, |args| {
        Ok(Value::Double(quantity(args, 0)?.approximate()))
    }),
    Row("asInteger", Member, "quantity -> int", One, |args| {
        let value = quantity(args, 0)?.as_i64();
        value.map(Value::Int).ok_or(EvaluationError::fixed("cannot convert value to integer"))
    }),
    Row("isInteger", Member, "quantity -> bool", One, |args| Ok(Value::Bool(quantity(args, 0)?.as_i64().is_some()))),
    Row("add", Member, "quantity quantity -> quantity", One, |args| combined(args, Quantity::add)),
    Row("add", Member, "quantity int -> quantity", One, |args| combined(args, Quantity::add)),
    Row("sub", Member, "quantity quantity -> quantity", One, |args| combined(args, Quantity::sub)),
    Row("sub", Member, "quantity int -> quantity", One, |args| combined(args, Quantity::sub)),
    Row("semver", Global, "string -> semver", Name(scan), |args| parsed(args, false)),
    Row("semver", Global, "string bool -> semver", Name(scan), |args| parsed(args, is_loose(args)?)),
    Row("isSemver", Global, "string -> bool", Name(scan), |args| Ok(Value::Bool(version_of(args, false)?.is_some()))),
    Row("isSemver", Global, "string bool -> bool", Name(scan), |args| {
        Ok(Value::Bool(version_of(args, is_loose(args)?)?.is_some()))
    }),
    Row("isGreaterThan", Member, "semver semver -> bool", One, |args| Ok(Value::Bool(precedence(args)?.is_gt()))),
    Row("isLessThan", Member, "semver semver -> bool", One, |args| Ok(Value::Bool(precedence(args)?.is_lt()))),
    Row("compareTo", Member, "semver semver -> int", One, |args| Ok(order(precedence(args)?))),
    Row("major", Member, "semver -> int", One, |args| number(args, 0)),
    Row("minor", Member, "semver -> int", One, |args| number(args, 1)),
    Row("patch", Member, "semver -> int", One, |args| number(args, 2)),
];

fn order(order: Ordering) -> Value {
    Value::Int(match order {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    })
}

fn quantity(args: &[Value], at: usize) -> Result<&Quantity, EvaluationError> {
    match args.get(at) {
        Some(Value::Quantity(value)) => Ok(value.get()),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn combined(args: &[Value], how: fn(&mut Quantity, &Quantity)) -> Outcome {
    let mut result = quantity(args, 0)?.clone();
    match args.get(1) {
        Some(Value::Int(value)) => how(&mut result, &Quantity::new(*value, Format::DecimalExponent)),
        _ => how(&mut result, quantity(args, 1)?),
    }
    Ok(Value::quantity(result, true))
}

fn is_loose(args: &[Value]) -> Result<bool, EvaluationError> {
    match args.get(1) {
        Some(Value::Bool(value)) => Ok(*value),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn version_of(args: &[Value], loose: bool) -> Result<Option<Version>, EvaluationError> {
    let text = text(args, 0)?;
    Ok(if loose { Version::parse_loosely(text) } else { Version::parse(text) })
}

fn parsed(args: &[Value], loose: bool) -> Outcome {
    let version = version_of(args, loose)?.ok_or(EvaluationError::fixed("this is no semantic version"))?;
    Ok(Value::Semver(Arc::new(version)))
}

fn version(args: &[Value], at: usize) -> Result<&Version, EvaluationError> {
    match args.get(at) {
        Some(Value::Semver(version)) => Ok(version),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn precedence(args: &[Value]) -> Result<Ordering, EvaluationError> {
    Ok(version(args, 0)?.precedence(version(args, 1)?))
}

/// Go's conversion wraps around.
fn number(args: &[Value], which: usize) -> Outcome {
    Ok(Value::Int(version(args, 0)?.numbers[which].cast_signed()))
}

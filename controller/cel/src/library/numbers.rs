//! Numbers, comparisons and conversions.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{both, scan, shorter, time};
use crate::error::EvaluationError;
use crate::functions::Cost::{Id, One};
use crate::functions::Row;
use crate::functions::Style::{Global, Member};
use crate::value::{MAX_PARTS, Opaque, Other, Value};

type Outcome = Result<Value, EvaluationError>;

const DIVIDED_BY_ZERO: EvaluationError = EvaluationError::fixed("division by zero");

pub(crate) const ROWS: &[Row] = &[
    // Evaluated by the tree itself; the signatures are for its types.
    Row("_?_:_", Global, "bool A A -> A", One, none),
    Row("_&&_", Global, "bool bool -> bool", One, none),
    Row("_||_", Global, "bool bool -> bool", One, none),
    Row("@not_strictly_false", Global, "bool -> bool", One, none),
    Row("_==_", Global, "A A -> bool", One, none),
    Row("_!=_", Global, "A A -> bool", One, none),
    Row("_[_]", Global, "[A] int -> A", One, none),
    Row("_[_]", Global, "{A:B} A -> B", One, none),
    Row("_[_]", Global, "?[A] int -> ?A", One, none),
    Row("_[_]", Global, "?{A:B} A -> ?B", One, none),
    Row("!_", Global, "bool -> bool", One, |args| match args {
        [Value::Bool(value)] => Ok(Value::Bool(!value)),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }),
    Row("_+_", Global, "bytes bytes -> bytes", Id(both), |args| match args {
        [Value::Bytes(a), Value::Bytes(b)] => Ok(Value::Bytes(a.iter().chain(b.iter()).copied().collect())),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }),
    Row("_+_", Global, "double double -> double", One, |args| doubles(args, |a, b| a + b)),
    Row("_+_", Global, "duration duration -> duration", One, time::sum),
    Row("_+_", Global, "duration timestamp -> timestamp", One, time::sum),
    Row("_+_", Global, "timestamp duration -> timestamp", One, time::sum),
    Row("_+_", Global, "int int -> int", One, |args| ints(args, i64::checked_add)),
    Row("_+_", Global, "[A] [A] -> [A]", One, |args| match args {
        [Value::List(a), Value::List(b)] if a.len() + b.len() > MAX_PARTS => Err(EvaluationError::TOO_LARGE),
        [Value::List(a), Value::List(b)] => Ok(Value::list(a.iter().chain(b.iter()).cloned().collect())),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }),
    Row("_+_", Global, "string string -> string", Id(both), |args| match (args[0].as_text(), args[1].as_text()) {
        (Some(a), Some(b)) => Ok(Value::String(Arc::from(format!("{a}{b}")))),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }),
    Row("_+_", Global, "uint uint -> uint", One, |args| uints(args, u64::checked_add)),
    Row("_-_", Global, "double double -> double", One, |args| doubles(args, |a, b| a - b)),
    Row("_-_", Global, "duration duration -> duration", One, time::difference),
    Row("_-_", Global, "int int -> int", One, |args| ints(args, i64::checked_sub)),
    Row("_-_", Global, "timestamp duration -> timestamp", One, time::difference),
    Row("_-_", Global, "timestamp timestamp -> duration", One, time::difference),
    Row("_-_", Global, "uint uint -> uint", One, |args| uints(args, u64::checked_sub)),
    Row("_*_", Global, "double double -> double", One, |args| doubles(args, |a, b| a * b)),
    Row("_*_", Global, "int int -> int", One, |args| ints(args, i64::checked_mul)),
    Row("_*_", Global, "uint uint -> uint", One, |args| uints(args, u64::checked_mul)),
    Row("_/_", Global, "double double -> double", One, |args| doubles(args, |a, b| a / b)),
    Row("_/_", Global, "int int -> int", One, |args| divided(args).and_then(|()| ints(args, i64::checked_div))),
    Row("_/_", Global, "uint uint -> uint", One, |args| divided(args).and_then(|()| uints(args, u64::checked_div))),
    Row("_%_", Global, "int int -> int", One, |args| divided(args).and_then(|()| ints(args, i64::checked_rem))),
    Row("_%_", Global, "uint uint -> uint", One, |args| divided(args).and_then(|()| uints(args, u64::checked_rem))),
    Row("-_", Global, "double -> double", One, |args| match args {
        [Value::Double(value)] => Ok(Value::Double(-value)),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }),
    Row("-_", Global, "int -> int", One, |args| match args {
        [Value::Int(value)] => value.checked_neg().map(Value::Int).ok_or(EvaluationError::OVERFLOW),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }),
    Row("bool", Global, "bool -> bool", One, same),
    Row("bool", Global, "string -> bool", One, |args| match args[0].as_text().map(|text| &**text) {
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Value::Bool(true)),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Value::Bool(false)),
        _ => Err(conversion(&args[0], "bool")),
    }),
    Row("bytes", Global, "bytes -> bytes", One, same),
    Row("bytes", Global, "string -> bytes", Id(scan), |args| match args[0].as_text() {
        Some(text) => Ok(Value::Bytes(text.as_bytes().into())),
        None => Err(EvaluationError::NO_OVERLOAD),
    }),
    Row("double", Global, "double -> double", One, same),
    Row("double", Global, "int -> double", One, double),
    Row("double", Global, "string -> double", One, double),
    Row("double", Global, "uint -> double", One, double),
    Row("dyn", Global, "A -> dyn", One, same),
    Row("type", Global, "A -> type(A)", One, |args| Ok(Value::Type(args[0].type_value()))),
    Row("int", Global, "int -> int", One, same),
    Row("int", Global, "double -> int", One, int),
    Row("int", Global, "duration -> int", One, int),
    Row("int", Global, "string -> int", One, int),
    Row("int", Global, "timestamp -> int", One, int),
    Row("int", Global, "uint -> int", One, int),
    Row("uint", Global, "uint -> uint", One, same),
    Row("uint", Global, "double -> uint", One, uint),
    Row("uint", Global, "int -> uint", One, uint),
    Row("uint", Global, "string -> uint", One, uint),
    Row("string", Global, "string -> string", One, same),
    Row("string", Global, "bool -> string", One, string),
    Row("string", Global, "bytes -> string", Id(scan), string),
    Row("string", Global, "double -> string", One, string),
    Row("string", Global, "duration -> string", One, string),
    Row("string", Global, "int -> string", One, string),
    Row("string", Global, "timestamp -> string", One, string),
    Row("string", Global, "uint -> string", One, string),
    Row("string", Global, "ip -> string", One, string),
    Row("string", Global, "cidr -> string", One, string),
    Row("size", Global, "bytes -> int", One, size),
    Row("size", Member, "bytes -> int", One, size),
    Row("size", Global, "[A] -> int", One, size),
    Row("size", Member, "[A] -> int", One, size),
    Row("size", Global, "{A:B} -> int", One, size),
    Row("size", Member, "{A:B} -> int", One, size),
    Row("size", Global, "string -> int", One, size),
    Row("size", Member, "string -> int", One, size),
    Row("_<_", Global, "bool bool -> bool", One, |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "int int -> bool", One, |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "int double -> bool", One, |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "int uint -> bool", One, |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "uint uint -> bool", One, |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "uint double -> bool", One, |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "uint int -> bool", One, |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "double double -> bool", One, |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "double int -> bool", One, |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "double uint -> bool", One, |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "string string -> bool", Id(shorter), |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "bytes bytes -> bool", Id(shorter), |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "timestamp timestamp -> bool", One, |args| ordered(args, Ordering::is_lt)),
    Row("_<_", Global, "duration duration -> bool", One, |args| ordered(args, Ordering::is_lt)),
    Row("_<=_", Global, "bool bool -> bool", One, |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "int int -> bool", One, |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "int double -> bool", One, |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "int uint -> bool", One, |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "uint uint -> bool", One, |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "uint double -> bool", One, |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "uint int -> bool", One, |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "double double -> bool", One, |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "double int -> bool", One, |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "double uint -> bool", One, |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "string string -> bool", Id(shorter), |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "bytes bytes -> bool", Id(shorter), |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "timestamp timestamp -> bool", One, |args| ordered(args, Ordering::is_le)),
    Row("_<=_", Global, "duration duration -> bool", One, |args| ordered(args, Ordering::is_le)),
    Row("_>_", Global, "bool bool -> bool", One, |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "int int -> bool", One, |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "int double -> bool", One, |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "int uint -> bool", One, |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "uint uint -> bool", One, |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "uint double -> bool", One, |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "uint int -> bool", One, |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "double double -> bool", One, |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "double int -> bool", One, |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "double uint -> bool", One, |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "string string -> bool", Id(shorter), |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "bytes bytes -> bool", Id(shorter), |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "timestamp timestamp -> bool", One, |args| ordered(args, Ordering::is_gt)),
    Row("_>_", Global, "duration duration -> bool", One, |args| ordered(args, Ordering::is_gt)),
    Row("_>=_", Global, "bool bool -> bool", One, |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "int int -> bool", One, |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "int double -> bool", One, |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "int uint -> bool", One, |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "uint uint -> bool", One, |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "uint double -> bool", One, |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "uint int -> bool", One, |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "double double -> bool", One, |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "double int -> bool", One, |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "double uint -> bool", One, |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "string string -> bool", Id(shorter), |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "bytes bytes -> bool", Id(shorter), |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "timestamp timestamp -> bool", One, |args| ordered(args, Ordering::is_ge)),
    Row("_>=_", Global, "duration duration -> bool", One, |args| ordered(args, Ordering::is_ge)),
];

// Of the form of all functions.
#[allow(clippy::unnecessary_wraps)]
fn none(_: &[Value]) -> Outcome {
    Err(EvaluationError::NO_OVERLOAD)
}

#[allow(clippy::unnecessary_wraps)]
fn same(args: &[Value]) -> Outcome {
    Ok(args[0].clone())
}

#[allow(clippy::unnecessary_wraps)]
fn size(args: &[Value]) -> Outcome {
    Ok(Value::Int(i64::try_from(args[0].size()).unwrap_or(i64::MAX)))
}

/// NaN is in no order with anything, but that is no failure.
fn ordered(args: &[Value], wanted: fn(Ordering) -> bool) -> Outcome {
    let nan = |value: &Value| matches!(value, Value::Double(value) if value.is_nan());
    if args.iter().any(nan) {
        return Err(EvaluationError::fixed("NaN values cannot be ordered"));
    }
    args[0].order(&args[1]).map(|order| Value::Bool(wanted(order)))
}

fn doubles(args: &[Value], how: fn(f64, f64) -> f64) -> Outcome {
    match args {
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(how(*a, *b))),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn ints(args: &[Value], how: fn(i64, i64) -> Option<i64>) -> Outcome {
    match args {
        [Value::Int(a), Value::Int(b)] => how(*a, *b).map(Value::Int).ok_or(EvaluationError::OVERFLOW),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn uints(args: &[Value], how: fn(u64, u64) -> Option<u64>) -> Outcome {
    match args {
        [Value::Uint(a), Value::Uint(b)] => how(*a, *b).map(Value::Uint).ok_or(EvaluationError::OVERFLOW),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn divided(args: &[Value]) -> Result<(), EvaluationError> {
    match args.get(1) {
        Some(Value::Int(0) | Value::Uint(0)) => Err(DIVIDED_BY_ZERO),
        _ => Ok(()),
    }
}

fn conversion(value: &Value, to: &str) -> EvaluationError {
    EvaluationError::text(format!("type conversion error from {} to {to}", value.type_name()))
}

#[allow(clippy::cast_precision_loss)]
fn double(args: &[Value]) -> Outcome {
    let value = match &args[0] {
        Value::Int(value) => Some(*value as f64),
        Value::Uint(value) => Some(*value as f64),
        other => other.as_text().and_then(|text| parse_double(text)),
    };
    value.map(Value::Double).ok_or_else(|| conversion(&args[0], "double"))
}

/// As Go reads numbers, without its hexadecimal ones.
fn parse_double(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text).to_ascii_lowercase();
    let is_word = matches!(unsigned.as_str(), "inf" | "infinity" | "nan");
    let value: f64 = text.parse().ok()?;
    (value.is_finite() || is_word).then_some(value)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
fn int(args: &[Value]) -> Outcome {
    let value = match &args[0] {
        Value::Double(value) => {
            let fits = *value > i64::MIN as f64 && *value < i64::MAX as f64;
            return if fits { Ok(Value::Int(*value as i64)) } else { Err(EvaluationError::OVERFLOW) };
        }
        Value::Duration(nanos) => Some(*nanos),
        Value::Timestamp(time) => Some(time.seconds),
        Value::Uint(value) => return i64::try_from(*value).map(Value::Int).map_err(|_| EvaluationError::OVERFLOW),
        other => other.as_text().and_then(|text| text.parse().ok()),
    };
    value.map(Value::Int).ok_or_else(|| conversion(&args[0], "int"))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
fn uint(args: &[Value]) -> Outcome {
    let value = match &args[0] {
        Value::Double(value) => {
            let fits = *value >= 0.0 && *value < u64::MAX as f64;
            return if fits { Ok(Value::Uint(*value as u64)) } else { Err(EvaluationError::OVERFLOW) };
        }
        Value::Int(value) => return u64::try_from(*value).map(Value::Uint).map_err(|_| EvaluationError::OVERFLOW),
        // Go takes no sign here.
        other => other.as_text().filter(|text| !text.starts_with('+')).and_then(|text| text.parse().ok()),
    };
    value.map(Value::Uint).ok_or_else(|| conversion(&args[0], "uint"))
}

fn string(args: &[Value]) -> Outcome {
    to_text(&args[0]).map(Value::text).ok_or_else(|| conversion(&args[0], "string"))
}

/// The text of a value that has one.
pub(crate) fn to_text(value: &Value) -> Option<String> {
    Some(match value {
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => double_text(*value),
        Value::Bytes(bytes) => String::from_utf8(bytes.to_vec()).ok()?,
        Value::Duration(nanos) => time::duration_text(*nanos),
        Value::Timestamp(time) => time.to_string(),
        Value::Type(name) => name.0.to_string(),
        Value::Other(Other(Opaque::Ip(ip))) => ip.to_string(),
        Value::Other(Other(Opaque::Cidr(cidr))) => cidr.to_string(),
        other => other.as_text()?.to_string(),
    })
}

/// As Go's `%g` has it.
fn double_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    value.to_string()
}

/// A list's index.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
pub(crate) fn index(value: &Value) -> Option<i64> {
    match value {
        Value::Int(value) => Some(*value),
        Value::Uint(value) => i64::try_from(*value).ok(),
        Value::Double(value) if value.fract() == 0.0 && value.abs() < i64::MAX as f64 => Some(*value as i64),
        _ => None,
    }
}

//! Values that may be missing.

use crate::error::EvaluationError;
use crate::functions::Cost::One;
use crate::functions::Row;
use crate::functions::Style::{Global, Member};
use crate::value::Value;

type Outcome = Result<Value, EvaluationError>;

pub(crate) const ROWS: &[Row] = &[
    Row("optional.of", Global, "A -> ?A", One, |args| Ok(Value::some(args[0].clone()))),
    Row("optional.ofNonZeroValue", Global, "A -> ?A", One, |args| {
        Ok(if is_zero(&args[0]) { Value::NONE } else { Value::some(args[0].clone()) })
    }),
    Row("optional.none", Global, "-> ?A", One, |_| Ok(Value::NONE)),
    Row("value", Member, "?A -> A", One, |args| match &args[0] {
        Value::Optional(Some(value)) => Ok((**value).clone()),
        _ => Err(EvaluationError::fixed("optional.none() dereference")),
    }),
    Row("hasValue", Member, "?A -> bool", One, |args| Ok(Value::Bool(matches!(args[0], Value::Optional(Some(_)))))),
    // Evaluated by the tree itself; the signatures are for its types.
    Row("or", Member, "?A ?A -> ?A", One, |args| Ok(args[0].clone())),
    Row("orValue", Member, "?A A -> A", One, |args| Ok(args[0].clone())),
    Row("_[?_]", Global, "[A] int -> ?A", One, |args| Ok(args[0].clone())),
    Row("_[?_]", Global, "?[A] int -> ?A", One, |args| Ok(args[0].clone())),
    Row("_[?_]", Global, "{A:B} A -> ?B", One, |args| Ok(args[0].clone())),
    Row("_[?_]", Global, "?{A:B} A -> ?B", One, |args| Ok(args[0].clone())),
    Row("first", Member, "[A] -> ?A", One, |args| end(args, <[Value]>::first)),
    Row("last", Member, "[A] -> ?A", One, |args| end(args, <[Value]>::last)),
    Row("optional.unwrap", Global, "[?A] -> [A]", One, unwrap),
    Row("unwrapOpt", Member, "[?A] -> [A]", One, unwrap),
];

fn end(args: &[Value], which: fn(&[Value]) -> Option<&Value>) -> Outcome {
    match &args[0] {
        Value::List(values) => Ok(which(values).map_or(Value::NONE, |value| Value::some(value.clone()))),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn unwrap(args: &[Value]) -> Outcome {
    let Value::List(values) = &args[0] else { return Err(EvaluationError::NO_OVERLOAD) };
    let mut there = Vec::new();
    for value in values.iter() {
        match value {
            Value::Optional(value) => there.extend(value.as_deref().cloned()),
            _ => return Err(EvaluationError::fixed("an element isn't optional")),
        }
    }
    Ok(Value::list(there))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Int(value) | Value::Duration(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Double(value) => *value == 0.0,
        Value::Bytes(value) => value.is_empty(),
        Value::List(values) => values.is_empty(),
        Value::Map(map) => map.entries().is_empty(),
        Value::Timestamp(time) => time.is_zero(),
        other => other.as_text().is_some_and(|text| text.is_empty()),
    }
}

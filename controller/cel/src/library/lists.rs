//! Lists, sets and maps.

use std::cmp::Ordering;
use std::sync::Arc;

use super::size;
use super::strings::int;
use crate::MAX_COST;
use crate::error::EvaluationError;
use crate::functions::Cost::{Id, Name, One};
use crate::functions::Row;
use crate::functions::Style::{Global, Member};
use crate::value::{Key, MAX_PARTS, Map, Value};

type Outcome = Result<Value, EvaluationError>;

/// More would fill the memory before the costs end it.
const MAX_RANGE: i64 = 1_000_000;

pub(crate) const ROWS: &[Row] = &[
    Row("@in", Global, "A [A] -> bool", Id(second), |args| {
        let values = list(args, 1)?;
        Ok(Value::Bool(position(values.iter(), &args[0]).is_some()))
    }),
    Row("@in", Global, "A {A:B} -> bool", One, |args| match &args[1] {
        // What is optional is wrapped anew whenever it is used.
        Value::Map(_) if matches!(args[0], Value::Optional(Some(_))) => Ok(Value::Bool(false)),
        // The default is no key.
        Value::Map(map) => Ok(Value::Bool(map.stored(&args[0])?.is_some())),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }),
    Row("slice", Member, "[A] int int -> [A]", Id(output), |args| {
        let (values, start, end) = (list(args, 0)?, int(args, 1)?, int(args, 2)?);
        if start < 0 || end < 0 || start > end {
            return Err(EvaluationError::text(format!("cannot slice({start}, {end})")));
        }
        let part = usize::try_from(start).ok().zip(usize::try_from(end).ok()).and_then(|(a, b)| values.get(a..b));
        let part =
            part.ok_or_else(|| EvaluationError::text(format!("cannot slice({start}, {end}), list is too short")))?;
        Ok(Value::list(part.to_vec()))
    }),
    Row("flatten", Member, "[[A]] -> [A]", Id(flattened), |args| flatten(args, 1)),
    Row("flatten", Member, "[dyn] int -> [dyn]", Id(flattened), |args| flatten(args, int(args, 1)?)),
    Row("distinct", Member, "[A] -> [A]", Id(compared), |args| {
        let mut distinct: Vec<Value> = Vec::new();
        for value in list(args, 0)?.iter() {
            if !distinct.iter().any(|other| value.equals(other) == Ok(true)) {
                distinct.push(value.clone());
            }
        }
        Ok(Value::list(distinct))
    }),
    Row("reverse", Member, "[A] -> [A]", Id(output), |args| {
        Ok(Value::list(list(args, 0)?.iter().rev().cloned().collect()))
    }),
    Row("lists.range", Global, "int -> [int]", Id(output), |args| {
        let count = int(args, 0)?;
        if !(0..=MAX_RANGE).contains(&count) {
            return Err(EvaluationError::text(format!("lists.range: {count} is no size of a list")));
        }
        Ok(Value::list((0..count).map(Value::Int).collect()))
    }),
    Row("indexOf", Member, "[A] A -> int", Name(traversal), |args| {
        Ok(position(list(args, 0)?.iter(), &args[1]).map_or(Value::Int(-1), Value::size_of))
    }),
    Row("lastIndexOf", Member, "[A] A -> int", Name(traversal), |args| {
        let values = list(args, 0)?;
        let found = position(values.iter().rev(), &args[1]).map(|at| values.len() - 1 - at);
        Ok(found.map_or(Value::Int(-1), Value::size_of))
    }),
    Row("includes", Member, "dyn dyn -> bool", Name(traversal), |args| {
        Ok(Value::Bool(match &args[0] {
            Value::List(values) => position(values.iter(), &args[1]).is_some(),
            value => value.equals(&args[1]) == Ok(true),
        }))
    }),
    Row("sets.contains", Global, "[A] [A] -> bool", Id(set_once), |args| contains_all(args, 0, 1)),
    Row("sets.equivalent", Global, "[A] [A] -> bool", Id(set_twice), |args| match contains_all(args, 0, 1)? {
        Value::Bool(true) => contains_all(args, 1, 0),
        other => Ok(other),
    }),
    Row("sets.intersects", Global, "[A] [A] -> bool", Id(set_once), |args| {
        let (a, b) = (list(args, 0)?, list(args, 1)?);
        Ok(Value::Bool(a.iter().any(|value| position(b.iter(), value).is_some())))
    }),
    Row("cel.@mapInsert", Global, "{A:B} A B -> {A:B}", One, |args| {
        let mut map = map(&args[0])?;
        insert(Arc::make_mut(&mut map), &args[1], &args[2])?;
        Ok(Value::Map(map))
    }),
    Row("cel.@mapInsert", Global, "{A:B} {A:B} -> {A:B}", One, |args| {
        let mut map = map(&args[0])?;
        for (key, value) in self::map(&args[1])?.entries() {
            insert(Arc::make_mut(&mut map), &key.to_value(), value)?;
        }
        Ok(Value::Map(map))
    }),
    Row("isSorted", Member, "[int] -> bool", Name(traversal), is_sorted),
    Row("min", Member, "[int] -> int", Name(traversal), |args| extreme(args, Ordering::Less)),
    Row("max", Member, "[int] -> int", Name(traversal), |args| extreme(args, Ordering::Greater)),
    Row("sort", Member, "[int] -> [int]", Id(compared), |args| sort(args, 0)),
    Row("@sortByAssociatedKeys", Member, "[A] [int] -> [A]", Id(keys_compared), |args| sort(args, 1)),
    Row("isSorted", Member, "[uint] -> bool", Name(traversal), is_sorted),
    Row("min", Member, "[uint] -> uint", Name(traversal), |args| extreme(args, Ordering::Less)),
    Row("max", Member, "[uint] -> uint", Name(traversal), |args| extreme(args, Ordering::Greater)),
    Row("sort", Member, "[uint] -> [uint]", Id(compared), |args| sort(args, 0)),
    Row("@sortByAssociatedKeys", Member, "[A] [uint] -> [A]", Id(keys_compared), |args| sort(args, 1)),
    Row("isSorted", Member, "[double] -> bool", Name(traversal), is_sorted),
    Row("min", Member, "[double] -> double", Name(traversal), |args| extreme(args, Ordering::Less)),
    Row("max", Member, "[double] -> double", Name(traversal), |args| extreme(args, Ordering::Greater)),
    Row("sort", Member, "[double] -> [double]", Id(compared), |args| sort(args, 0)),
    Row("@sortByAssociatedKeys", Member, "[A] [double] -> [A]", Id(keys_compared), |args| sort(args, 1)),
    Row("isSorted", Member, "[bool] -> bool", Name(traversal), is_sorted),
    Row("min", Member, "[bool] -> bool", Name(traversal), |args| extreme(args, Ordering::Less)),
    Row("max", Member, "[bool] -> bool", Name(traversal), |args| extreme(args, Ordering::Greater)),
    Row("sort", Member, "[bool] -> [bool]", Id(compared), |args| sort(args, 0)),
    Row("@sortByAssociatedKeys", Member, "[A] [bool] -> [A]", Id(keys_compared), |args| sort(args, 1)),
    Row("isSorted", Member, "[duration] -> bool", Name(traversal), is_sorted),
    Row("min", Member, "[duration] -> duration", Name(traversal), |args| extreme(args, Ordering::Less)),
    Row("max", Member, "[duration] -> duration", Name(traversal), |args| extreme(args, Ordering::Greater)),
    Row("sort", Member, "[duration] -> [duration]", Id(compared), |args| sort(args, 0)),
    Row("@sortByAssociatedKeys", Member, "[A] [duration] -> [A]", Id(keys_compared), |args| sort(args, 1)),
    Row("isSorted", Member, "[timestamp] -> bool", Name(traversal), is_sorted),
    Row("min", Member, "[timestamp] -> timestamp", Name(traversal), |args| extreme(args, Ordering::Less)),
    Row("max", Member, "[timestamp] -> timestamp", Name(traversal), |args| extreme(args, Ordering::Greater)),
    Row("sort", Member, "[timestamp] -> [timestamp]", Id(compared), |args| sort(args, 0)),
    Row("@sortByAssociatedKeys", Member, "[A] [timestamp] -> [A]", Id(keys_compared), |args| sort(args, 1)),
    Row("isSorted", Member, "[string] -> bool", Name(traversal), is_sorted),
    Row("min", Member, "[string] -> string", Name(traversal), |args| extreme(args, Ordering::Less)),
    Row("max", Member, "[string] -> string", Name(traversal), |args| extreme(args, Ordering::Greater)),
    Row("sort", Member, "[string] -> [string]", Id(compared), |args| sort(args, 0)),
    Row("@sortByAssociatedKeys", Member, "[A] [string] -> [A]", Id(keys_compared), |args| sort(args, 1)),
    Row("isSorted", Member, "[bytes] -> bool", Name(traversal), is_sorted),
    Row("min", Member, "[bytes] -> bytes", Name(traversal), |args| extreme(args, Ordering::Less)),
    Row("max", Member, "[bytes] -> bytes", Name(traversal), |args| extreme(args, Ordering::Greater)),
    Row("sort", Member, "[bytes] -> [bytes]", Id(compared), |args| sort(args, 0)),
    Row("@sortByAssociatedKeys", Member, "[A] [bytes] -> [A]", Id(keys_compared), |args| sort(args, 1)),
    Row("sum", Member, "[int] -> int", Name(traversal), |args| sum(args, Value::Int(0))),
    Row("sum", Member, "[uint] -> uint", Name(traversal), |args| sum(args, Value::Uint(0))),
    Row("sum", Member, "[double] -> double", Name(traversal), |args| sum(args, Value::Double(0.0))),
    Row("sum", Member, "[duration] -> duration", Name(traversal), |args| sum(args, Value::Duration(0))),
];

fn second(args: &[Value], _: &Value) -> u64 {
    size(args, 1)
}

fn output(_: &[Value], result: &Value) -> u64 {
    11 + if let Value::List(values) = result { u64::try_from(values.len()).unwrap_or(u64::MAX) } else { 1 }
}

fn flattened(args: &[Value], _: &Value) -> u64 {
    let depth = match args.get(1) {
        Some(Value::Int(depth)) => u64::try_from(*depth).unwrap_or(1),
        _ => 1,
    };
    size(args, 0).saturating_mul(depth).saturating_add(11)
}

/// Each with each.
fn compared(args: &[Value], _: &Value) -> u64 {
    self_compared(&args[0])
}

fn keys_compared(args: &[Value], _: &Value) -> u64 {
    self_compared(&args[1])
}

fn self_compared(values: &Value) -> u64 {
    let Value::List(values) = values else { return 11 };
    let size = u64::try_from(values.len()).unwrap_or(u64::MAX);
    let is_long = values.first().is_some_and(|value| value.as_text().is_some() || matches!(value, Value::Bytes(_)));
    let pairs = size.saturating_mul(size);
    11 + pairs.saturating_mul(2).saturating_add(if is_long { pairs / 10 } else { 0 })
}

/// Going through all that is in it.
pub(crate) fn traversal(args: &[Value], _: &Value) -> u64 {
    fn of(value: &Value, parts: &mut usize) -> u64 {
        let Some(rest) = parts.checked_sub(1) else { return MAX_COST + 1 };
        *parts = rest;
        let bytes = |length: usize| u64::try_from(length / 10).unwrap_or(u64::MAX);
        match value {
            Value::Bytes(value) => bytes(value.len()),
            Value::List(values) => sum(&mut values.iter().map(|value| of(value, parts))),
            Value::Map(map) => {
                sum(&mut map.entries().iter().map(|(key, value)| of(&key.to_value(), parts) + of(value, parts)))
            }
            _ => value.as_text().map_or(1, |text| bytes(text.len())),
        }
    }
    /// Until it is more than may be paid.
    fn sum(costs: &mut dyn Iterator<Item = u64>) -> u64 {
        let mut sum = 0;
        while sum <= MAX_COST
            && let Some(cost) = costs.next()
        {
            sum += cost;
        }
        sum
    }
    args.first().map_or(0, |value| of(value, &mut { MAX_PARTS }))
}

fn set_once(args: &[Value], _: &Value) -> u64 {
    1 + size(args, 0) * size(args, 1)
}

fn set_twice(args: &[Value], _: &Value) -> u64 {
    1 + size(args, 0) * size(args, 1) * 2
}

fn list(args: &[Value], at: usize) -> Result<&Arc<Vec<Value>>, EvaluationError> {
    match args.get(at) {
        Some(Value::List(values)) => Ok(values),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn map(value: &Value) -> Result<Arc<Map>, EvaluationError> {
    match value {
        Value::Map(map) => Ok(map.clone()),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn insert(map: &mut Map, key: &Value, value: &Value) -> Result<(), EvaluationError> {
    let found = map.stored(key)?.is_some();
    let key = Key::any(key)?;
    if found {
        return Err(EvaluationError::text(format!("insert failed: key {key} already exists")));
    }
    map.put(key, value.clone());
    Ok(())
}

fn position<'a>(mut values: impl Iterator<Item = &'a Value>, wanted: &Value) -> Option<usize> {
    values.position(|value| value.equals(wanted) == Ok(true))
}

fn contains_all(args: &[Value], within: usize, wanted: usize) -> Outcome {
    let (within, wanted) = (list(args, within)?, list(args, wanted)?);
    Ok(Value::Bool(wanted.iter().all(|value| position(within.iter(), value).is_some())))
}

fn flatten(args: &[Value], depth: i64) -> Outcome {
    fn collect(values: &[Value], depth: i64, into: &mut Vec<Value>) -> Result<(), EvaluationError> {
        for value in values {
            match value {
                Value::List(inner) if depth > 0 => collect(inner, depth - 1, into)?,
                _ if into.len() >= MAX_PARTS => return Err(EvaluationError::TOO_LARGE),
                other => into.push(other.clone()),
            }
        }
        Ok(())
    }
    if depth < 0 {
        return Err(EvaluationError::fixed("level must be non-negative"));
    }
    let mut flat = Vec::new();
    collect(list(args, 0)?, depth, &mut flat)?;
    Ok(Value::list(flat))
}

/// A list of what is in an order at all; nothing else is sorted, or has a first or last.
fn comparable(args: &[Value]) -> Result<&Arc<Vec<Value>>, EvaluationError> {
    let values = list(args, 0)?;
    let is_comparable = |value: &Value| value.order(value) != Err(EvaluationError::NO_OVERLOAD);
    if values.iter().all(is_comparable) { Ok(values) } else { Err(EvaluationError::NO_OVERLOAD) }
}

fn is_sorted(args: &[Value]) -> Outcome {
    for pair in comparable(args)?.windows(2) {
        if pair[0].order(&pair[1]) == Ok(Ordering::Greater) {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

fn extreme(args: &[Value], wanted: Ordering) -> Outcome {
    let mut best: Option<&Value> = None;
    for value in comparable(args)?.iter() {
        if best.is_none_or(|best| value.order(best) == Ok(wanted)) {
            best = Some(value);
        }
    }
    best.cloned().ok_or(EvaluationError::fixed("the list is empty"))
}

fn sort(args: &[Value], keys: usize) -> Outcome {
    let (values, keys) = (list(args, 0)?, list(args, keys)?);
    if values.len() != keys.len() {
        return Err(EvaluationError::fixed("as many keys as elements are needed"));
    }
    let Some(first) = keys.first() else { return Ok(args[0].clone()) };
    if keys.iter().any(|key| key.type_name() != first.type_name()) {
        return Err(EvaluationError::fixed("list elements must have the same type"));
    }
    first.order(first)?;
    let mut both: Vec<(&Value, &Value)> = keys.iter().zip(values.iter()).collect();
    both.sort_by(|(a, _), (b, _)| a.order(b).unwrap_or(Ordering::Equal));
    Ok(Value::list(both.into_iter().map(|(_, value)| value.clone()).collect()))
}

fn sum(args: &[Value], zero: Value) -> Outcome {
    let mut sum = zero;
    for value in list(args, 0)?.iter() {
        sum = match (&sum, value) {
            (Value::Int(a), Value::Int(b)) => a.checked_add(*b).map(Value::Int),
            (Value::Uint(a), Value::Uint(b)) => a.checked_add(*b).map(Value::Uint),
            (Value::Double(a), Value::Double(b)) => Some(Value::Double(a + b)),
            (Value::Duration(a), Value::Duration(b)) => a.checked_add(*b).map(Value::Duration),
            _ => return Err(EvaluationError::NO_OVERLOAD),
        }
        .ok_or(EvaluationError::OVERFLOW)?;
    }
    Ok(sum)
}

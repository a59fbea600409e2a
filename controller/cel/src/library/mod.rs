//! The functions of expressions, by what they are about, as tables.
//!
//! What Kubernetes has for requests (authorizer and paths) is left out: a selector has nothing to ask them.

use crate::functions::Row;
use crate::value::Value;

pub(crate) mod format;
mod kubernetes;
mod lists;
pub(crate) mod net;
pub(crate) mod numbers;
mod optionals;
pub(crate) mod printf;
pub(crate) mod strings;
pub(crate) mod time;
pub(crate) mod url;

/// All lines of all tables.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    let tables: [&'static [Row]; 10] = [
        numbers::ROWS,
        strings::ROWS,
        printf::ROWS,
        lists::ROWS,
        optionals::ROWS,
        time::ROWS,
        kubernetes::ROWS,
        net::ROWS,
        url::ROWS,
        format::ROWS,
    ];
    tables.into_iter().flatten()
}

/// A tenth of a size: what going through a text costs.
pub(crate) fn tenth(size: u64) -> u64 {
    size.div_ceil(10)
}

pub(crate) fn size(args: &[Value], at: usize) -> u64 {
    args.get(at).map_or(0, Value::size)
}

/// Going through the first argument.
pub(crate) fn scan(args: &[Value], _: &Value) -> u64 {
    tenth(size(args, 0))
}

/// Going through the first argument, and writing as much.
pub(crate) fn rewrite(args: &[Value], _: &Value) -> u64 {
    tenth(size(args, 0) * 2)
}

/// Whichever of two arguments ends first.
pub(crate) fn shorter(args: &[Value], _: &Value) -> u64 {
    tenth(size(args, 0).min(size(args, 1)))
}

/// Both arguments.
pub(crate) fn both(args: &[Value], _: &Value) -> u64 {
    tenth(size(args, 0) + size(args, 1))
}

/// A text and a pattern of this size.
pub(crate) fn pattern_cost(text: u64, pattern: u64) -> u64 {
    tenth(text + 1) * pattern.div_ceil(4)
}

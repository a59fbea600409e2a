//! The functions that expressions can call, from the tables in `library`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::error::EvaluationError;
use crate::library;
use crate::types::{self, Type};
use crate::value::Value;

/// What carries a function out.
pub(crate) type Call = fn(&[Value]) -> Result<Value, EvaluationError>;

/// The costs of a call by its arguments and result.
#[derive(Clone, Copy)]
pub(crate) enum Cost {
    /// One, whatever the arguments.
    One,
    /// Known by the function's name.
    Name(fn(&[Value], &Value) -> u64),
    /// Known by the name, and better where the types say which of a name's functions it is.
    Better(fn(&[Value], &Value) -> u64, fn(&[Value], &Value) -> u64),
    /// Known only where the types say which of a name's functions it is.
    Id(fn(&[Value], &Value) -> u64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Global,
    Member,
}

/// A line of a table: name, style, signature, costs, what it does.
pub(crate) struct Row(
    pub(crate) &'static str,
    pub(crate) Style,
    pub(crate) &'static str,
    pub(crate) Cost,
    pub(crate) Call,
);

pub(crate) struct Overload {
    pub(crate) name: &'static str,
    pub(crate) style: Style,
    pub(crate) params: Vec<Type>,
    pub(crate) result: Type,
    pub(crate) cost: Cost,
    pub(crate) call: Call,
}

impl Overload {
    /// Whether it takes these values.
    pub(crate) fn takes(&self, args: &[Value]) -> bool {
        // Kubernetes leaves it to this one to look at what it is given.
        let is_unguarded = self.name == "flatten";
        let fits = |(param, arg): (&Type, &Value)| is_unguarded || arg.is_a(param);
        self.params.len() == args.len() && self.params.iter().zip(args).all(fits)
    }
}

impl Overload {
    fn is_operator(&self) -> bool {
        self.name.starts_with(['_', '@', '-'])
    }

    /// Whether Kubernetes stops at the first argument that fails: of a function that it doesn't know better than by its name.
    pub(crate) fn stops_early(candidates: &[&'static Self]) -> bool {
        match candidates {
            [one] => one.name == "format",
            [first, ..] => !first.is_operator(),
            [] => false,
        }
    }

    /// Another one of an operator, that takes these values.
    pub(crate) fn like(&self, args: &[Value]) -> Option<&'static Self> {
        let is_found = self.is_operator() || matches!(self.name, "size" | "sort");
        let all = overloads(self.name).filter(|_| is_found).unwrap_or_default();
        all.iter().find(|overload| overload.style == self.style && overload.takes(args))
    }
}

static FUNCTIONS: LazyLock<BTreeMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let mut functions: BTreeMap<&'static str, Vec<Overload>> = BTreeMap::new();
    for Row(name, style, signature, cost, call) in library::rows() {
        // A test holds that every signature can be read.
        let Some((params, result)) = types::signature(signature) else { continue };
        let overload = Overload { name, style: *style, params, result, cost: *cost, call: *call };
        functions.entry(name).or_default().push(overload);
    }
    functions
});

/// All functions of a name.
pub(crate) fn overloads(name: &str) -> Option<&'static [Overload]> {
    FUNCTIONS.get(name).map(Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_signatures_can_be_read() {
        for Row(name, _, signature, ..) in library::rows() {
            assert!(types::signature(signature).is_some(), "{name} {signature}");
        }
    }
}

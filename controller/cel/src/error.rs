//! What can go wrong with an expression.

use std::borrow::Cow;

use crate::MAX_COST;

/// Why an expression can't be used with any device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// Longer than Kubernetes takes.
    #[error("the expression has {length} bytes, {max} are allowed")]
    TooLong {
        /// In bytes.
        length: usize,
        /// The most that are allowed.
        max: usize,
    },
    /// Nested deeper than anything useful is.
    #[error("the expression is nested too deep")]
    TooDeep,
    /// Not in the form of an expression.
    #[error("at byte {at}: {what}")]
    Syntax {
        /// Where, in bytes.
        at: usize,
        /// What is wrong there.
        what: String,
    },
    /// A name that means nothing.
    #[error("at byte {at}: {name:?} is not known")]
    Undeclared {
        /// Where, in bytes.
        at: usize,
        /// The name.
        name: String,
    },
    /// Types that don't fit together.
    #[error("at byte {at}: {what}")]
    Type {
        /// Where, in bytes.
        at: usize,
        /// What is wrong there.
        what: String,
    },
    /// A call with constants that can only fail.
    #[error("{function}(): {what}")]
    Constant {
        /// What is called.
        function: String,
        /// What is wrong with its arguments.
        what: String,
    },
    /// The value is of no use where the expression stands.
    #[error("the expression gives {found}, not {wanted}")]
    Result {
        /// What was wanted.
        wanted: &'static str,
        /// The type that it has.
        found: String,
    },
}

/// Why an expression has no value for a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// More work than Kubernetes allows.
    #[error("the expression costs more than {0}")]
    Cost(u64),
    /// A key that Kubernetes' evaluator breaks down over.
    #[error("{0} can't be a key")]
    Crash(&'static str),
    /// The device has an attribute that can't be read.
    #[error("attribute {name}: {what}")]
    Attribute {
        /// The attribute.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// A selector that is neither true nor false.
    #[error("the expression gives {0}, not true or false")]
    NotBool(String),
    /// A derived attribute of a type that attributes can't have.
    #[error("the expression gives {0}, which no attribute can be")]
    NotAttribute(String),
    /// The expression itself failed.
    #[error("{0}")]
    Failed(Cow<'static, str>),
}

impl EvaluationError {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Failed(Cow::Owned(text.into()))
    }

    pub(crate) const fn fixed(text: &'static str) -> Self {
        Self::Failed(Cow::Borrowed(text))
    }

    /// Whether `||` and its like can't do without the value.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Cost(_) | Self::Crash(_))
    }

    /// More than there is room for, whatever it costs.
    pub(crate) const TOO_LARGE: Self = Self::Cost(MAX_COST);
    pub(crate) const OVERFLOW: Self = Self::fixed("the number is too large");
    pub(crate) const NO_OVERLOAD: Self = Self::fixed("no such overload");
}

//! Device selectors, as Kubernetes 1.37 evaluates them. No IO.
//!
//! A selector is an expression of CEL over one `device`. What the scheduler refuses is refused here, where it fails it fails
//! here, and what it costs is the same: a table of what Kubernetes' own code says of some hundred expressions is the test.
//! There are no switches for features: the scheduler compiles what is stored with everything that it knows.
//!
//! ```text
//! text → lexer → parser (macros taken apart) → check (types) → fold (constants) → node (evaluated per device)
//! ```
//!
//! Left out is what no selector can use: the functions about requests, and messages of protocol buffers.

mod ast;
mod check;
mod device;
mod error;
mod fold;
mod functions;
mod lexer;
mod library;
mod node;
mod parser;
mod semver;
mod types;
mod value;

pub use device::Device;
pub use error::{CompileError, EvaluationError};
pub use library::time::Timestamp;
pub use semver::Version;
pub use value::{Key, Map, OddKey, Other, QuantityValue, TypeValue, Value};

use crate::node::{Evaluator, Node};
use crate::types::{SEMVER, Type};

/// The longest expression, in bytes.
pub const MAX_LENGTH: usize = 10 * 1024;
/// What an evaluation may cost.
pub const MAX_COST: u64 = 1_000_000;

/// What expressions are compiled in.
#[derive(Debug, Clone, Copy, Default)]
pub struct Environment;

/// An expression that can be evaluated for any device.
pub struct Program {
    node: Node,
    slots: usize,
}

impl Environment {
    /// Compiles a selector, which is true or false.
    pub fn compile(&self, expression: &str) -> Result<Program, CompileError> {
        compile(expression, "true or false", |of| matches!(of, Type::Bool | Type::Dyn))
    }

    /// Compiles a derived attribute: a value that an attribute can have, or a list of such.
    pub fn compile_attribute(&self, expression: &str) -> Result<Program, CompileError> {
        let is_scalar = |of: &Type| matches!(of, Type::Bool | Type::Int | Type::String | Type::Dyn) || *of == SEMVER;
        compile(expression, "a value of an attribute", |of| match of {
            Type::List(element) => is_scalar(element),
            other => is_scalar(other),
        })
    }
}

fn compile(expression: &str, wanted: &'static str, fits: impl Fn(&Type) -> bool) -> Result<Program, CompileError> {
    if expression.len() > MAX_LENGTH {
        return Err(CompileError::TooLong { length: expression.len(), max: MAX_LENGTH });
    }
    let checked = check::check(&parser::parse(expression)?)?;
    if !fits(&checked.of) {
        return Err(CompileError::Result { wanted, found: checked.of.to_string() });
    }
    Ok(Program { node: fold::constants(checked.node)?, slots: checked.slots })
}

impl Program {
    /// Whether the selector takes the device.
    pub fn matches(&self, device: &Device) -> Result<bool, EvaluationError> {
        match self.evaluate(device)? {
            Value::Bool(value) => Ok(value),
            other => Err(EvaluationError::NotBool(other.type_name().to_owned())),
        }
    }

    /// The expression's value for the device.
    pub fn evaluate(&self, device: &Device) -> Result<Value, EvaluationError> {
        self.evaluate_with_cost(device).0
    }

    /// The same, and what it cost.
    pub fn evaluate_with_cost(&self, device: &Device) -> (Result<Value, EvaluationError>, u64) {
        let value = match device.value() {
            Ok(value) => value,
            Err(error) => return (Err(error), 0),
        };
        let mut evaluator = Evaluator::new(value, self.slots, MAX_COST);
        (evaluator.value(&self.node), evaluator.cost)
    }
}

//! Compiled expressions, each compiled once.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use aliquot_cel::{CompileError, Environment, Program};

type Compiled = Arc<Result<Program, CompileError>>;

/// The expressions of classes and claims; a clone has the same ones. Clusters have few different ones, so none is forgotten.
#[derive(Clone, Default)]
pub struct Programs(Arc<Kinds>);

#[derive(Default)]
struct Kinds {
    selectors: RwLock<HashMap<String, Compiled>>,
    attributes: RwLock<HashMap<String, Compiled>>,
}

impl Programs {
    pub(crate) fn selector(&self, expression: &str) -> Compiled {
        compiled(&self.0.selectors, expression, |text| Environment.compile(text))
    }

    pub(crate) fn attribute(&self, expression: &str) -> Compiled {
        compiled(&self.0.attributes, expression, |text| Environment.compile_attribute(text))
    }
}

fn compiled(
    all: &RwLock<HashMap<String, Compiled>>,
    expression: &str,
    compile: impl Fn(&str) -> Result<Program, CompileError>,
) -> Compiled {
    if let Some(known) = all.read().unwrap_or_else(PoisonError::into_inner).get(expression) {
        return Arc::clone(known);
    }
    let new = Arc::new(compile(expression));
    all.write().unwrap_or_else(PoisonError::into_inner).insert(expression.to_owned(), Arc::clone(&new));
    new
}

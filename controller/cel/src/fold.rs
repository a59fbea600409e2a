//! What doesn't depend on the device is done once: constants such as `quantity("40Gi")` and patterns.
//!
//! It costs what it would have cost each time, since that is what Kubernetes counts. What fails is left to fail when it runs,
//! except where Kubernetes looks at constants at once, too: conversions and patterns.

use std::sync::Arc;

use crate::MAX_COST;
use crate::ast::op;
use crate::error::{CompileError, EvaluationError};
use crate::functions::Overload;
use crate::library::strings::compiled;
use crate::node::{Evaluator, Node};
use crate::value::{Key, Map, Opaque, Other, Value};

/// Functions whose constant calls cost nothing and must not fail.
const CONVERSIONS: [&str; 10] =
    ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];

pub(crate) fn constants(node: Node) -> Result<Node, CompileError> {
    Ok(match node {
        Node::Constant(_) | Node::Folded(..) | Node::Device | Node::Slot(_) => node,
        Node::Select { operand, field, optional, is_path } => {
            Node::Select { operand: boxed(operand)?, field, optional, is_path }
        }
        Node::Has { operand, field, is_path } => Node::Has { operand: boxed(operand)?, field, is_path },
        Node::Index { operand, index, optional, is_path } => {
            let index = boxed(index)?;
            if let Node::Constant(value) = &*index
                && !matches!(value, Value::Double(_))
                && Key::usual(value).is_none()
            {
                return Err(fails(op::INDEX, &EvaluationError::fixed("this can't be an index or key")));
            }
            Node::Index { operand: boxed(operand)?, index, optional, is_path }
        }
        Node::Logical { until, terms } => Node::Logical { until, terms: all(terms)? },
        Node::Conditional(parts) => {
            let [condition, yes, no] = *parts;
            Node::Conditional(Box::new([constants(condition)?, constants(yes)?, constants(no)?]))
        }
        Node::NotStrictlyFalse(operand) => Node::NotStrictlyFalse(boxed(operand)?),
        Node::Equals { sides, wanted } => Node::Equals { sides: pair(*sides)?, wanted },
        Node::Otherwise { sides, unwraps } => Node::Otherwise { sides: pair(*sides)?, unwraps },
        Node::Call { overloads, args } => call(overloads, all(args)?)?,
        Node::List(elements) => {
            let elements = elements.into_iter().map(|(node, optional)| Ok((constants(node)?, optional)));
            let elements = elements.collect::<Result<Vec<_>, CompileError>>()?;
            let values: Option<Vec<Value>> = elements
                .iter()
                .map(|(node, optional)| match node {
                    Node::Constant(value) if !optional => Some(value.clone()),
                    _ => None,
                })
                .collect();
            match values {
                Some(values) => Node::Constant(Value::list(values)),
                None => Node::List(elements),
            }
        }
        Node::Map(entries) => {
            let entries = entries
                .into_iter()
                .map(|(key, value, optional)| Ok((constants(key)?, constants(value)?, optional)))
                .collect::<Result<Vec<_>, CompileError>>()?;
            match constant_map(&entries)? {
                Some(map) => Node::Constant(Value::map(map)),
                None => Node::Map(entries),
            }
        }
        Node::Among { value, list } => Node::Among { value: boxed(value)?, list },
        Node::Append { slot, element } => Node::Append { slot, element: boxed(element)? },
        Node::Fold(mut fold) => {
            let take = |node: &mut Node| constants(std::mem::replace(node, Node::Device));
            for part in [&mut fold.range, &mut fold.init, &mut fold.condition, &mut fold.step, &mut fold.result] {
                *part = take(part)?;
            }
            Node::Fold(fold)
        }
    })
}

#[allow(clippy::boxed_local)]
fn boxed(node: Box<Node>) -> Result<Box<Node>, CompileError> {
    constants(*node).map(Box::new)
}

fn all(nodes: Vec<Node>) -> Result<Vec<Node>, CompileError> {
    nodes.into_iter().map(constants).collect()
}

fn pair([first, second]: [Node; 2]) -> Result<Box<[Node; 2]>, CompileError> {
    Ok(Box::new([constants(first)?, constants(second)?]))
}

/// Go makes it when it compiles, and breaks down there over keys that can't be any.
fn constant_map(entries: &[(Node, Node, bool)]) -> Result<Option<Map>, CompileError> {
    let mut map = Map::default();
    for entry in entries {
        let (Node::Constant(key), Node::Constant(value), false) = entry else { return Ok(None) };
        map.put(Key::any(key).map_err(|error| fails("map", &error))?, value.clone());
    }
    Ok(Some(map))
}

fn call(overloads: Vec<&'static Overload>, mut args: Vec<Node>) -> Result<Node, CompileError> {
    let Some(name) = overloads.first().map(|overload| overload.name) else {
        return Ok(Node::Call { overloads, args });
    };
    if matches!(name, "matches" | "find" | "findAll")
        && let Some(pattern @ Node::Constant(_)) = args.get_mut(1)
        && let Node::Constant(Value::String(text)) = pattern
    {
        let compiled = compiled(text).map_err(|error| fails(name, &error))?;
        *pattern = Node::Constant(Value::Other(Other(Opaque::Pattern(text.clone(), Arc::clone(&compiled)))));
    }
    if name == op::IN
        && overloads.len() == 1
        && let [_, Node::Constant(Value::List(list))] = args.as_slice()
        && list.iter().all(is_plain)
    {
        if list.is_empty() {
            return Ok(Node::Constant(Value::Bool(false)));
        }
        let list = list.clone();
        args.truncate(1);
        return Ok(match args.pop() {
            Some(value) => Node::Among { value: Box::new(value), list },
            None => Node::Call { overloads, args },
        });
    }
    let is_constant = args.iter().all(|arg| matches!(arg, Node::Constant(_) | Node::Folded(..)));
    let node = Node::Call { overloads, args };
    if !is_constant {
        return Ok(node);
    }
    let is_free = CONVERSIONS.contains(&name)
        && matches!(&node, Node::Call { args, .. } if matches!(args.as_slice(), [Node::Constant(_)]));
    let mut evaluator = Evaluator::new(&Value::Null, 0, MAX_COST);
    match evaluator.value(&node) {
        Ok(value) if is_free => Ok(Node::Constant(value)),
        Ok(value) => Ok(Node::Folded(value, evaluator.cost)),
        Err(error) if is_free => Err(fails(name, &error)),
        Err(_) => Ok(node),
    }
}

fn is_plain(value: &Value) -> bool {
    matches!(value, Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::String(_))
}

fn fails(name: &str, error: &EvaluationError) -> CompileError {
    CompileError::Constant { function: name.to_owned(), what: error.to_string() }
}

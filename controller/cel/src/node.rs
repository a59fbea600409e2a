//! Checked expressions, and what they give for a device.
//!
//! Errors are values as long as `&&`, `||` or a macro may still do without them; only going beyond the costs ends everything.
//! The costs are those of Kubernetes, step by step, so that what it refuses to finish isn't finished here either.

use std::borrow::Cow;
use std::sync::Arc;

use crate::ast::op;
use crate::error::EvaluationError;
use crate::functions::{Cost, Overload};
use crate::library::numbers;
use crate::value::{Key, Map, Opaque, Other, Value};

pub(crate) enum Node {
    Constant(Value),
    /// What a call of constants gives, and what that costs.
    Folded(Value, u64),
    Device,
    Slot(usize),
    Select {
        operand: Box<Self>,
        field: Arc<str>,
        optional: bool,
        is_path: bool,
    },
    Has {
        operand: Box<Self>,
        field: Arc<str>,
        is_path: bool,
    },
    Index {
        operand: Box<Self>,
        index: Box<Self>,
        optional: bool,
        is_path: bool,
    },
    /// `&&` or `||`: until a term is this.
    Logical {
        until: bool,
        terms: Vec<Self>,
    },
    Conditional(Box<[Self; 3]>),
    NotStrictlyFalse(Box<Self>),
    Equals {
        sides: Box<[Self; 2]>,
        wanted: bool,
    },
    /// `or` and `orValue` of optional values: the second is evaluated if it's needed.
    Otherwise {
        sides: Box<[Self; 2]>,
        unwraps: bool,
    },
    Call {
        overloads: Vec<&'static Overload>,
        args: Vec<Self>,
    },
    List(Vec<(Self, bool)>),
    Map(Vec<(Self, Self, bool)>),
    /// `in` with a constant list, for which nothing is charged.
    Among {
        value: Box<Self>,
        list: Arc<Vec<Value>>,
    },
    /// Adds to what a macro collects.
    Append {
        slot: usize,
        element: Box<Self>,
    },
    Fold(Box<FoldNode>),
}

pub(crate) struct FoldNode {
    pub(crate) range: Node,
    pub(crate) var: usize,
    pub(crate) var2: Option<usize>,
    pub(crate) accu: usize,
    pub(crate) init: Node,
    pub(crate) condition: Node,
    pub(crate) step: Node,
    pub(crate) result: Node,
}

impl Node {
    /// A call, or what stands for it where the tree knows more than a function does.
    pub(crate) fn call(name: &str, overloads: Vec<&'static Overload>, args: Vec<Self>, is_path: bool) -> Self {
        let call = |args| Self::Call { overloads, args };
        match name {
            op::CONDITIONAL => match args.try_into() {
                Ok(parts) => Self::Conditional(Box::new(parts)),
                Err(args) => call(args),
            },
            op::NOT_STRICTLY_FALSE => match <[Self; 1]>::try_from(args) {
                Ok([operand]) => Self::NotStrictlyFalse(Box::new(operand)),
                Err(args) => call(args),
            },
            op::INDEX | op::OPT_INDEX | op::EQUALS | op::DIFFERS | "or" | "orValue" => {
                match <[Self; 2]>::try_from(args) {
                    Ok([operand, index]) if matches!(name, op::INDEX | op::OPT_INDEX) => {
                        let (operand, index) = (Box::new(operand), Box::new(index));
                        Self::Index { operand, index, optional: name == op::OPT_INDEX, is_path }
                    }
                    Ok(sides) if matches!(name, op::EQUALS | op::DIFFERS) => {
                        Self::Equals { sides: Box::new(sides), wanted: name == op::EQUALS }
                    }
                    Ok(sides) => Self::Otherwise { sides: Box::new(sides), unwraps: name == "orValue" },
                    Err(args) => call(args),
                }
            }
            _ => call(args),
        }
    }
}

impl Node {
    /// Whether a path has an optional step, or begins with what is optional if its value is.
    fn may_be_missing(&self) -> bool {
        match self {
            Self::Select { operand, optional, .. } | Self::Index { operand, optional, .. } => {
                *optional || matches!(**operand, Self::Select { .. } | Self::Index { .. }) && operand.may_be_missing()
            }
            _ => true,
        }
    }

    fn begins_with_condition(&self) -> bool {
        match self {
            Self::Conditional(_) => true,
            Self::Select { operand, .. } | Self::Index { operand, .. } | Self::Has { operand, .. } => {
                operand.begins_with_condition()
            }
            _ => false,
        }
    }

    /// Whether Kubernetes makes the value anew each time, where here there is one for all times.
    fn makes_anew(&self, value: &Value) -> bool {
        match self {
            Self::Folded(..) | Self::Fold(_) => true,
            Self::Device => matches!(value, Value::List(_)),
            Self::Select { operand, .. } | Self::Index { operand, .. } => operand.makes_anew(value),
            _ => false,
        }
    }
}

/// A variable. What `cel.bind` gives a name is evaluated when it's needed.
#[derive(Clone)]
enum Slot<'p> {
    Value(Outcome),
    Later(&'p Node),
}

/// One evaluation.
pub(crate) struct Evaluator<'p> {
    device: &'p Value,
    slots: Vec<Slot<'p>>,
    pub(crate) cost: u64,
    limit: u64,
}

type Outcome = Result<Value, EvaluationError>;

impl<'p> Evaluator<'p> {
    pub(crate) fn new(device: &'p Value, slots: usize, limit: u64) -> Self {
        Self { device, slots: vec![Slot::Value(Ok(Value::Null)); slots], cost: 0, limit }
    }

    fn pay(&mut self, cost: u64) -> Result<(), EvaluationError> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(EvaluationError::Cost(self.limit)) } else { Ok(()) }
    }

    pub(crate) fn value(&mut self, node: &'p Node) -> Outcome {
        match node {
            Node::Constant(_) | Node::Folded(..) | Node::Device | Node::Select { .. } | Node::Index { .. } => {
                Ok(self.path(node)?.into_owned())
            }
            Node::Slot(slot) => {
                self.pay(1)?;
                self.slot(*slot)
            }
            Node::Has { operand, field, is_path } => self.has(operand, field, *is_path, false),
            Node::Logical { until, terms } => self.logical(*until, terms),
            Node::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                match self.value(condition)? {
                    Value::Bool(true) => self.part(yes).map(Cow::into_owned),
                    Value::Bool(false) => self.part(no).map(Cow::into_owned),
                    _ => Err(EvaluationError::NO_OVERLOAD),
                }
            }
            Node::NotStrictlyFalse(operand) => {
                let result = match self.value(operand) {
                    Err(error) if error.is_final() => return Err(error),
                    Ok(Value::Bool(value)) => value,
                    Ok(_) | Err(_) => true,
                };
                self.pay(1)?;
                Ok(Value::Bool(result))
            }
            Node::Equals { sides, wanted } => {
                let [left, right] = &**sides;
                let left = self.path(left);
                let right = self.path(right);
                let (left, right) = self.both(left, right)?;
                let size = left.size().min(right.size());
                let is_own = matches!(&*left, Value::Quantity(_) | Value::Semver(_))
                    || matches!(&*left, Value::Other(Other(opaque)) if !matches!(opaque, Opaque::Pattern(..)));
                self.pay(if is_own && *wanted { 1 } else { size.div_ceil(10) })?;
                // What can't be compared isn't equal, but only `!=` says so.
                match left.equals(&right) {
                    Err(_) if !wanted => Ok(Value::Bool(true)),
                    equal => Ok(Value::Bool(equal? == *wanted)),
                }
            }
            Node::Otherwise { sides, unwraps } => self.otherwise(sides, *unwraps),
            Node::Call { overloads, args } => match args.as_slice() {
                [a] => {
                    let a = self.value(a);
                    self.call_with(overloads, [a])
                }
                [a, b] if !Overload::stops_early(overloads) => {
                    let a = self.value(a);
                    let b = self.value(b);
                    self.call_with(overloads, [a, b])
                }
                all => {
                    let mut args = Vec::with_capacity(all.len());
                    for arg in all {
                        match self.value(arg) {
                            Ok(value) => args.push(value),
                            Err(error) => return self.failed(overloads, args, all.len(), error),
                        }
                    }
                    self.call(overloads, &args)
                }
            },
            Node::List(elements) => self.list(elements),
            Node::Map(entries) => self.map(entries),
            Node::Append { slot, element } => {
                self.pay(if matches!(**element, Node::Constant(_)) { 2 } else { 12 })?;
                let element = self.value(element)?;
                self.slot(*slot)?;
                let Some(accu) = self.slots.get_mut(*slot) else { return Err(EvaluationError::NO_OVERLOAD) };
                match std::mem::replace(accu, Slot::Value(Err(EvaluationError::NO_OVERLOAD))) {
                    Slot::Value(Ok(Value::List(mut list))) => {
                        Arc::make_mut(&mut list).push(element);
                        Ok(Value::List(list))
                    }
                    Slot::Value(Err(error)) => Err(error),
                    _ => Err(EvaluationError::NO_OVERLOAD),
                }
            }
            Node::Among { value, list } => {
                let value = self.path(value)?;
                // Go can't look these up.
                if matches!(*value, Value::Semver(_) | Value::Bytes(_)) {
                    return Err(EvaluationError::NO_OVERLOAD);
                }
                Ok(Value::Bool(list.iter().any(|other| value.equals(other) == Ok(true))))
            }
            Node::Fold(fold) => self.fold(fold),
        }
    }

    /// The last step costs nothing, and neither does the first if a later one fails.
    fn has(&mut self, node: &'p Node, field: &Arc<str>, is_path: bool, is_part: bool) -> Outcome {
        let operand = self.path(node);
        let found = match &operand {
            Ok(operand) => has(operand, field),
            Err(error) => Err(error.clone()),
        };
        let is_optional = matches!(operand.as_deref(), Ok(Value::Optional(_)));
        match (is_path, &operand, &found) {
            (true, Err(_), _) | (true, _, Ok(false)) if operand.is_err() || is_optional => {
                self.cost = self.cost.saturating_sub(1);
            }
            (false, Ok(_), found) if !(is_optional && *found == Ok(false)) => self.pay(1)?,
            _ => {}
        }
        // As a part, what is there of a path with an optional step is the path's value.
        if let Ok(operand) = &operand
            && is_part
            && is_optional
            && node.may_be_missing()
        {
            let value = self::found(operand, &Value::String(field.clone())).unwrap_or_default();
            return Ok(Value::Optional(value.map(Arc::new)));
        }
        found.map(Value::Bool)
    }

    fn otherwise(&mut self, [first, second]: &'p [Node; 2], unwraps: bool) -> Outcome {
        match self.value(first)? {
            Value::Optional(Some(value)) if unwraps => Ok((*value).clone()),
            found @ Value::Optional(Some(_)) => Ok(found),
            Value::Optional(None) => self.value(second),
            _ => Err(EvaluationError::NO_OVERLOAD),
        }
    }

    fn slot(&mut self, slot: usize) -> Outcome {
        match self.slots.get(slot).cloned() {
            Some(Slot::Value(value)) => value,
            Some(Slot::Later(node)) => {
                let value = self.value(node);
                self.set(slot, value.clone());
                value
            }
            None => Err(EvaluationError::NO_OVERLOAD),
        }
    }

    /// Two sides of a comparison, which is paid for even if one of them failed.
    fn both(
        &mut self,
        a: Result<Cow<'p, Value>, EvaluationError>,
        b: Result<Cow<'p, Value>, EvaluationError>,
    ) -> Result<(Cow<'p, Value>, Cow<'p, Value>), EvaluationError> {
        let is_empty = [&a, &b].iter().any(|side| side.as_ref().is_ok_and(|value| value.size() == 0));
        match (a, b) {
            (Ok(a), Ok(b)) => Ok((a, b)),
            (Err(error), _) | (_, Err(error)) if error.is_final() => Err(error),
            (Err(error), _) | (_, Err(error)) => {
                self.pay(u64::from(!is_empty))?;
                Err(error)
            }
        }
    }

    /// What a path begins with; it is paid for even if that failed.
    fn begin(&mut self, operand: &'p Node, is_path: bool) -> Result<Cow<'p, Value>, EvaluationError> {
        let value = self.path(operand);
        if !matches!(&value, Err(error) if error.is_final()) {
            self.pay(u64::from(!is_path))?;
        }
        value
    }

    /// A path inside of a path or condition; its first step is free, unless that is a condition.
    fn part(&mut self, node: &'p Node) -> Result<Cow<'p, Value>, EvaluationError> {
        let value = match node {
            Node::Has { operand, field, is_path } => self.has(operand, field, *is_path, true).map(Cow::Owned),
            node => self.path(node),
        };
        match node {
            Node::Has { .. } if node.begins_with_condition() => self.pay(1)?,
            Node::Slot(_) | Node::Device | Node::Select { .. } | Node::Index { .. }
                if !node.begins_with_condition() =>
            {
                self.cost = self.cost.saturating_sub(1);
            }
            _ => {}
        }
        value
    }

    /// The same as `value`, without a copy of what the device or the program has.
    fn path(&mut self, node: &'p Node) -> Result<Cow<'p, Value>, EvaluationError> {
        match node {
            Node::Constant(value) => Ok(Cow::Borrowed(value)),
            Node::Folded(value, cost) => {
                self.pay(*cost)?;
                Ok(Cow::Borrowed(value))
            }
            Node::Device => {
                self.pay(1)?;
                Ok(Cow::Borrowed(self.device))
            }
            Node::Select { operand, field, optional, is_path } => {
                let operand = self.begin(operand, *is_path)?;
                if !optional && let Cow::Borrowed(Value::Map(map)) = operand {
                    self.pay(1)?;
                    return map.get_text(field).map(Cow::Borrowed).ok_or_else(|| no_key(field));
                }
                let key = Value::String(field.clone());
                self.step(&operand, &key, *optional)
            }
            Node::Index { operand, index, optional, is_path } => {
                let operand = self.begin(operand, *is_path)?;
                if matches!(*operand, Value::Optional(None)) {
                    return Ok(operand);
                }
                let index = match self.part(index) {
                    Err(error) if !error.is_final() => {
                        // The step is paid for all the same.
                        self.pay(1)?;
                        return Err(error);
                    }
                    index => index?,
                };
                if !optional && let Cow::Borrowed(Value::Map(map)) = operand {
                    self.pay(1)?;
                    return map.get(&index)?.map(Cow::Borrowed).ok_or_else(|| no_key(&display(&index)));
                }
                self.step(&operand, &index, *optional)
            }
            _ => self.value(node).map(Cow::Owned),
        }
    }

    fn logical(&mut self, until: bool, terms: &'p [Node]) -> Outcome {
        let mut failure = None;
        for term in terms {
            match self.value(term) {
                Ok(Value::Bool(value)) if value == until => return Ok(Value::Bool(value)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failure = failure.or(Some(EvaluationError::NO_OVERLOAD)),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(Value::Bool(!until)), Err)
    }

    /// A call is paid for even if one of its arguments failed.
    fn call_with<const N: usize>(&mut self, overloads: &[&'static Overload], args: [Outcome; N]) -> Outcome {
        let mut failure: Option<EvaluationError> = None;
        let args = args.map(|arg| {
            arg.unwrap_or_else(|error| {
                let is_final = error.is_final();
                if failure.is_none() || is_final {
                    failure = Some(error);
                }
                Value::Null
            })
        });
        match failure {
            None => self.call(overloads, &args),
            // Kubernetes compiled the pattern before, and looks at nothing more here.
            Some(error) if matches!(args.last(), Some(Value::Other(Other(Opaque::Pattern(..))))) => Err(error),
            Some(error) => {
                self.pay(cost_of(overloads, overloads.first().copied(), &args, &Value::Null))?;
                Err(error)
            }
        }
    }

    /// With three arguments or more, or where it stops early, a call is paid for only if none is left.
    fn failed(
        &mut self,
        overloads: &[&'static Overload],
        mut args: Vec<Value>,
        wanted: usize,
        error: EvaluationError,
    ) -> Outcome {
        args.push(Value::Null);
        if args.len() == wanted && !error.is_final() {
            self.pay(cost_of(overloads, overloads.first().copied(), &args, &Value::Null))?;
        }
        Err(error)
    }

    fn call(&mut self, overloads: &[&'static Overload], args: &[Value]) -> Outcome {
        let overload = overloads.iter().copied().find(|overload| overload.takes(args));
        // Operators are found by what they are given, whatever the types were thought to be.
        let overload = overload.or_else(|| overloads.first().and_then(|overload| overload.like(args)));
        let result = overload.map_or(Err(EvaluationError::NO_OVERLOAD), |overload| (overload.call)(args));
        let given = result.as_ref().unwrap_or(&Value::Null);
        self.pay(cost_of(overloads, overload.or(overloads.first().copied()), args, given))?;
        result
    }

    fn list(&mut self, elements: &'p [(Node, bool)]) -> Outcome {
        self.pay(10)?;
        let mut values = Vec::with_capacity(elements.len());
        for (node, optional) in elements {
            match (self.value(node)?, optional) {
                (Value::Optional(value), true) => values.extend(value.map(|value| (*value).clone())),
                (_, true) => return Err(EvaluationError::fixed("the element isn't optional")),
                (value, false) => values.push(value),
            }
        }
        Ok(Value::list(values))
    }

    fn map(&mut self, entries: &'p [(Node, Node, bool)]) -> Outcome {
        self.pay(30)?;
        let mut map = Map::default();
        for (node, value, optional) in entries {
            let key = self.value(node)?;
            let key = if node.makes_anew(&key) { key.anew() } else { key };
            let value = match (self.value(value)?, optional) {
                (Value::Optional(None), true) => {
                    map.remove(&Key::any(&key)?);
                    continue;
                }
                (Value::Optional(Some(value)), true) => (*value).clone(),
                (_, true) => return Err(EvaluationError::fixed("the entry isn't optional")),
                (value, false) => value,
            };
            map.put(Key::any(&key)?, value);
        }
        Ok(Value::map(map))
    }

    fn fold(&mut self, fold: &'p FoldNode) -> Outcome {
        let range = self.value(&fold.range)?;
        if let Some(place) = self.slots.get_mut(fold.accu) {
            *place = Slot::Later(&fold.init);
        }
        match &range {
            Value::List(values) => {
                for (index, value) in values.iter().enumerate() {
                    let (first, second) = match fold.var2 {
                        Some(_) => (Value::size_of(index), Some(value.clone())),
                        None => (value.clone(), None),
                    };
                    if !self.turn(fold, first, second)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for (key, value) in map.entries() {
                    if !self.turn(fold, key.to_value(), Some(value.clone()))? {
                        break;
                    }
                }
            }
            _ => return Err(EvaluationError::NO_OVERLOAD),
        }
        self.value(&fold.result)
    }

    /// False if that was enough.
    fn turn(&mut self, fold: &'p FoldNode, first: Value, second: Option<Value>) -> Result<bool, EvaluationError> {
        self.set(fold.var, Ok(first));
        if let (Some(slot), Some(value)) = (fold.var2, second) {
            self.set(slot, Ok(value));
        }
        match self.value(&fold.condition) {
            Err(error) if error.is_final() => return Err(error),
            Ok(Value::Bool(false)) => return Ok(false),
            Ok(_) | Err(_) => {}
        }
        let step = self.value(&fold.step);
        if let Err(error) = &step
            && error.is_final()
        {
            return Err(error.clone());
        }
        self.set(fold.accu, step);
        Ok(true)
    }

    fn set(&mut self, slot: usize, value: Outcome) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Slot::Value(value);
        }
    }

    /// One step of a path: by a field or an index. Behind an optional step, all others are, too. One that leads nowhere is
    /// free then.
    fn step(&mut self, operand: &Value, key: &Value, optional: bool) -> Result<Cow<'p, Value>, EvaluationError> {
        let is_optional = optional || matches!(operand, Value::Optional(_));
        let found = found(operand, key);
        if !is_optional || matches!(found, Ok(Some(_))) {
            self.pay(1)?;
        }
        match found {
            Ok(value) if is_optional => Ok(Cow::Owned(Value::Optional(value.map(Arc::new)))),
            Ok(Some(value)) => Ok(Cow::Owned(value)),
            Ok(None) if matches!(operand, Value::List(_)) => {
                Err(EvaluationError::text(format!("index out of bounds: {}", display(key))))
            }
            Ok(None) => Err(no_key(&display(key))),
            Err(error) if is_optional && error == EvaluationError::NO_OVERLOAD => Ok(Cow::Owned(Value::NONE)),
            Err(error) => Err(error),
        }
    }
}

fn cost_of(candidates: &[&'static Overload], of: Option<&'static Overload>, args: &[Value], result: &Value) -> u64 {
    match of.map(|overload| overload.cost) {
        Some(Cost::Name(cost)) => cost(args, result),
        Some(Cost::Id(cost) | Cost::Better(_, cost)) if candidates.len() == 1 => cost(args, result),
        Some(Cost::Better(cost, _)) => cost(args, result),
        _ => 1,
    }
}

fn no_key(key: &str) -> EvaluationError {
    EvaluationError::text(format!("no such key: {key}"))
}

fn display(value: &Value) -> String {
    Key::usual(value).map_or_else(|| value.type_name().to_owned(), |key| key.to_string())
}

/// What an optional value holds, at any depth.
fn has(operand: &Value, field: &str) -> Result<bool, EvaluationError> {
    match operand {
        Value::Map(map) => Ok(map.get_text(field).is_some()),
        Value::List(_) => Err(BAD_INDEX),
        Value::Optional(Some(value)) => has(value, field),
        _ => Ok(false),
    }
}

const BAD_INDEX: EvaluationError = EvaluationError::fixed("this can't be an index or key");

/// What is at a key or index, if anything is.
fn found(operand: &Value, key: &Value) -> Result<Option<Value>, EvaluationError> {
    let is_key = matches!(key, Value::Double(_)) || Key::usual(key).is_some();
    match operand {
        _ if !is_key => Err(BAD_INDEX),
        Value::Map(map) => Ok(map.get(key)?.cloned()),
        Value::List(values) => {
            let index = numbers::index(key).ok_or(BAD_INDEX)?;
            Ok(usize::try_from(index).ok().and_then(|index| values.get(index)).cloned())
        }
        Value::Optional(Some(value)) => found(value, key),
        Value::Optional(None) => Ok(None),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

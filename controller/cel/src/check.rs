//! The checks before anything runs: every name is known and the types fit. What passes becomes a tree that can be evaluated.
//!
//! The rules are those of CEL's own checker. An operand of unknown type (an attribute's value) fits everywhere; which function
//! it is called with is then found when it runs.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ast::{ACCU, Element, Entry, Expr, Fold, Kind, Literal, op};
use crate::error::CompileError;
use crate::functions::{self, Overload, Style};
use crate::library::printf;
use crate::node::{FoldNode, Node};
use crate::types::{self, Known, Type};
use crate::value::{Value, named_type};

/// The largest type, in types that it is made of.
const MAX_TYPE: usize = 1000;

struct Variable {
    name: String,
    of: Type,
    slot: usize,
}

struct Checker {
    known: Known,
    variables: Vec<Variable>,
    /// Types that must be one when all variables are known: of a literal's elements.
    alike: Vec<(usize, Vec<Type>)>,
    slots: usize,
    /// Variables that may turn out to be types.
    used: Vec<(usize, String, Type)>,
    /// How many calls of `format` there are around; what they take may be of any types.
    formats: usize,
    /// The types inside of calls of `format`, by the places of the expressions in memory.
    seen: HashMap<*const Expr, Type>,
    /// Constant patterns with what they are given; looked at when all variables are known.
    patterns: Vec<(usize, String, Vec<Shown>)>,
}

/// An expression that is ready to be evaluated.
pub(crate) struct Checked {
    pub(crate) node: Node,
    pub(crate) of: Type,
    /// How many variables it needs.
    pub(crate) slots: usize,
}

pub(crate) fn check(expr: &Expr) -> Result<Checked, CompileError> {
    let mut checker = Checker {
        known: Known::default(),
        variables: Vec::new(),
        alike: Vec::new(),
        slots: 0,
        used: Vec::new(),
        formats: 0,
        seen: HashMap::new(),
        patterns: Vec::new(),
    };
    let (node, of) = checker.expr(expr)?;
    for (at, all) in &checker.alike {
        let mut names = all.iter().map(|of| checker.known.resolved(of).to_string());
        let first = names.next().unwrap_or_default();
        if let Some(other) = names.find(|name| *name != first) {
            return Err(mismatch(*at, &first, &other));
        }
    }
    for (at, pattern, given) in &checker.patterns {
        let types: Vec<Type> = given.iter().map(|given| given.of(&checker.known)).collect();
        printf::check(pattern, &types).map_err(|what| CompileError::Type { at: *at, what })?;
    }
    // What Kubernetes knows to be a type it looks for among the types.
    let mut used = checker.used.iter();
    if let Some((at, name, _)) = used.find(|(_, _, of)| matches!(checker.known.resolved(of), Type::Meta(_))) {
        return Err(CompileError::Undeclared { at: *at, name: name.clone() });
    }
    let of = match checker.known.resolved(&of) {
        Type::Var(_) => Type::Dyn,
        Type::List(element) if matches!(*element, Type::Var(_)) => Type::list(Type::Dyn),
        of => of,
    };
    Ok(Checked { node, of, slots: checker.slots })
}

/// The type of what a format is given, and of the parts of literals in it.
struct Shown {
    own: Type,
    parts: Vec<Self>,
}

impl Shown {
    /// Of a list or map with parts that no text can be made of, the type of the first such.
    fn of(&self, known: &Known) -> Type {
        let mut parts = self.parts.iter().map(|part| part.of(known));
        parts.find(|of| !printf::is_text(of)).unwrap_or_else(|| known.resolved(&self.own))
    }
}

fn mismatch(at: usize, wanted: &str, found: &str) -> CompileError {
    CompileError::Type { at, what: format!("{wanted} is wanted, this is {found}") }
}

/// The value of an optional's type, and whether it is one.
fn unwrapped(of: Type) -> (Type, bool) {
    match of {
        Type::Optional(value) => (*value, true),
        other => (other, false),
    }
}

impl Checker {
    fn expr(&mut self, expr: &Expr) -> Result<(Node, Type), CompileError> {
        let (node, of) = self.any_expr(expr)?;
        if self.formats > 0 {
            self.seen.insert(std::ptr::from_ref(expr), of.clone());
        }
        Ok((node, of))
    }

    fn any_expr(&mut self, expr: &Expr) -> Result<(Node, Type), CompileError> {
        match &expr.kind {
            Kind::Literal(literal) => Ok(constant(literal)),
            Kind::Ident(name) => self.ident(expr.at, name),
            Kind::Select { operand, field, optional, test } => self.select(expr, operand, field, *optional, *test),
            Kind::Call { function, target, args } => self.call(expr.at, function, target.as_deref(), args),
            Kind::List(elements) => self.list(expr.at, elements),
            Kind::Map(entries) => self.map(expr.at, entries),
            Kind::Fold(fold) => self.fold(fold),
        }
    }

    fn ident(&mut self, at: usize, name: &str) -> Result<(Node, Type), CompileError> {
        if let Some(variable) = self.variables.iter().rev().find(|variable| variable.name == name) {
            self.used.push((at, name.to_owned(), variable.of.clone()));
            return Ok((Node::Slot(variable.slot), variable.of.clone()));
        }
        let name = name.strip_prefix('.').unwrap_or(name);
        if name == "device" {
            return Ok((Node::Device, Type::Device));
        }
        match named_type(name) {
            Some(value) => Ok((Node::Constant(Value::Type(value)), types::of_name(name))),
            None => Err(CompileError::Undeclared { at, name: name.to_owned() }),
        }
    }

    fn select(
        &mut self,
        expr: &Expr,
        operand: &Expr,
        field: &str,
        optional: bool,
        test: bool,
    ) -> Result<(Node, Type), CompileError> {
        if let Some(name) = expr.qualified().filter(|_| !test)
            && let Some(value) = named_type(&name)
        {
            return Ok((Node::Constant(Value::Type(value)), types::of_name(&name)));
        }
        let is_path = is_path(operand);
        let (node, of) = self.expr(operand)?;
        let (of, was_optional) = unwrapped(self.known.resolved(&of));
        let result = match &of {
            Type::Map(_, value) => (**value).clone(),
            Type::Device => match field {
                "driver" => Type::String,
                "allowMultipleAllocations" => Type::Bool,
                "attributes" => Type::map(Type::String, Type::map(Type::String, Type::Dyn)),
                "capacity" => Type::map(Type::String, Type::map(Type::String, types::QUANTITY)),
                _ => return Err(CompileError::Undeclared { at: expr.at, name: field.to_owned() }),
            },
            Type::Var(_) => {
                self.known.fits(&Type::Dyn, &of);
                Type::Dyn
            }
            Type::Dyn => Type::Dyn,
            other => {
                return Err(CompileError::Type {
                    at: expr.at,
                    what: format!("{other} has no fields such as {field:?}"),
                });
            }
        };
        let operand = Box::new(node);
        let field: Arc<str> = Arc::from(field);
        if test {
            return Ok((Node::Has { operand, field, is_path }, Type::Bool));
        }
        let result = if optional || was_optional { Type::optional(result) } else { result };
        Ok((Node::Select { operand, field, optional, is_path }, self.known.resolved(&result)))
    }

    fn call(
        &mut self,
        at: usize,
        function: &str,
        target: Option<&Expr>,
        args: &[Expr],
    ) -> Result<(Node, Type), CompileError> {
        if let Some(target) = target {
            let qualified = target.qualified().map(|prefix| format!("{prefix}.{function}"));
            if let Some(all) = qualified.as_deref().and_then(functions::overloads) {
                return self.resolve(at, function, all, None, args);
            }
        }
        let name = function.strip_prefix('.').unwrap_or(function);
        match functions::overloads(name) {
            Some(all) => self.resolve(at, name, all, target, args),
            None => Err(CompileError::Undeclared { at, name: name.to_owned() }),
        }
    }

    fn resolve(
        &mut self,
        at: usize,
        name: &str,
        all: &'static [Overload],
        target: Option<&Expr>,
        args: &[Expr],
    ) -> Result<(Node, Type), CompileError> {
        let is_path = target.or(args.first()).is_some_and(is_path);
        let (mut nodes, mut given) = (Vec::new(), Vec::new());
        self.formats += usize::from(name == "format");
        for arg in args {
            let (node, of) = self.expr(arg)?;
            nodes.push(node);
            given.push(of);
        }
        // What is learned of variables depends on the order.
        if let Some(target) = target {
            let (node, of) = self.expr(target)?;
            nodes.insert(0, node);
            given.insert(0, of);
        }
        if name == "format"
            && let Some(Kind::Literal(Literal::String(pattern))) = target.map(|target| &target.kind)
            && let [Expr { kind: Kind::List(elements), .. }] = args
        {
            let given = elements.iter().map(|element| self.shown(&element.value)).collect();
            self.patterns.push((at, pattern.clone(), given));
        }
        self.formats -= usize::from(name == "format");
        if name == op::AND || name == op::OR {
            for (arg, of) in args.iter().zip(&given) {
                if !self.known.fits(of, &Type::Bool) {
                    return Err(mismatch(arg.at, "bool", &self.known.resolved(of).to_string()));
                }
            }
            return Ok((Node::Logical { until: name == op::OR, terms: nodes }, Type::Bool));
        }
        let style = if target.is_some() { Style::Member } else { Style::Global };
        let mut found: Vec<&'static Overload> = Vec::new();
        let mut result: Option<Type> = None;
        for overload in all.iter().filter(|overload| overload.style == style) {
            let offset = self.known.reserve(2);
            let params: Vec<Type> = overload.params.iter().map(|param| param.fresh(offset)).collect();
            let (wanted, given): (Vec<&Type>, Vec<&Type>) = (params.iter().collect(), given.iter().collect());
            if self.known.all_fit(&given, &wanted) {
                found.push(overload);
                let of = self.known.resolved(&overload.result.fresh(offset));
                result = Some(match result {
                    None => of,
                    Some(before) if before == Type::Dyn || before == of => before,
                    Some(_) => Type::Dyn,
                });
            }
        }
        let Some(result) = result else {
            let given: Vec<String> = given.iter().map(|of| self.known.resolved(of).to_string()).collect();
            return Err(CompileError::Type { at, what: format!("{name} doesn't take ({})", given.join(", ")) });
        };
        if name == op::ADD
            && args.first().and_then(Expr::as_ident) == Some(ACCU)
            && let [Node::Slot(slot), Node::List(elements)] = nodes.as_mut_slice()
            && let Some((element, _)) = elements.pop()
        {
            return Ok((Node::Append { slot: *slot, element: Box::new(element) }, result));
        }
        Ok((Node::call(name, found, nodes, is_path), result))
    }

    fn shown(&self, expr: &Expr) -> Shown {
        let parts: Vec<&Expr> = match &expr.kind {
            Kind::List(elements) => elements.iter().map(|element| &element.value).collect(),
            Kind::Map(entries) => entries.iter().flat_map(|entry| [&entry.key, &entry.value]).collect(),
            _ => Vec::new(),
        };
        let own = self.seen.get(&std::ptr::from_ref(expr)).cloned().unwrap_or(Type::Dyn);
        Shown { own, parts: parts.into_iter().map(|part| self.shown(part)).collect() }
    }

    fn list(&mut self, at: usize, elements: &[Element]) -> Result<(Node, Type), CompileError> {
        let (mut nodes, mut all, mut joined) = (Vec::new(), Vec::new(), None);
        for Element { value, optional } in elements {
            let (node, of) = self.element(value, *optional)?;
            joined = Some(self.join(value.at, joined, of.clone())?);
            all.push(of);
            nodes.push((node, *optional));
        }
        self.must_be_alike(at, all);
        let of = joined.unwrap_or_else(|| self.known.variable());
        Ok((Node::List(nodes), Type::list(of)))
    }

    fn element(&mut self, value: &Expr, optional: bool) -> Result<(Node, Type), CompileError> {
        let (node, of) = self.expr(value)?;
        if !optional {
            return Ok((node, of));
        }
        match unwrapped(self.known.resolved(&of)) {
            (of, true) => Ok((node, of)),
            // Elsewhere Kubernetes breaks down over it.
            (Type::Dyn, _) if self.formats > 0 => Ok((node, Type::Dyn)),
            (of, _) => Err(mismatch(value.at, "an optional value", &of.to_string())),
        }
    }

    fn join(&mut self, at: usize, before: Option<Type>, of: Type) -> Result<Type, CompileError> {
        let wanted = before.clone();
        if self.formats > 0 {
            return Ok(self.known.joined(before, of).unwrap_or(Type::Dyn));
        }
        self.known.joined(before, of.clone()).ok_or_else(|| {
            let wanted = wanted.map(|of| self.known.resolved(&of).to_string()).unwrap_or_default();
            mismatch(at, &wanted, &self.known.resolved(&of).to_string())
        })
    }

    fn map(&mut self, at: usize, entries: &[Entry]) -> Result<(Node, Type), CompileError> {
        let (mut nodes, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let (mut key_type, mut value_type) = (None, None);
        for Entry { key, value, optional } in entries {
            let (key_node, of) = self.expr(key)?;
            key_type = Some(self.join(key.at, key_type, of.clone())?);
            keys.push(of);
            let (node, of) = self.element(value, *optional)?;
            value_type = Some(self.join(value.at, value_type, of.clone())?);
            values.push(of);
            nodes.push((key_node, node, *optional));
        }
        self.must_be_alike(at, keys);
        self.must_be_alike(at, values);
        let key = key_type.unwrap_or_else(|| self.known.variable());
        let value = value_type.unwrap_or_else(|| self.known.variable());
        let of = Type::map(key, value);
        // Of maps of maps in their keys and values the type doubles each time.
        if self.known.resolved(&of).size() > MAX_TYPE {
            return Err(CompileError::TooDeep);
        }
        Ok((Node::Map(nodes), of))
    }

    fn must_be_alike(&mut self, at: usize, all: Vec<Type>) {
        if self.formats == 0 {
            self.alike.push((at, all));
        }
    }

    fn declare(&mut self, name: &str, of: Type) -> usize {
        // Never used twice: what a variable is may be found out later.
        let slot = self.slots;
        self.slots += 1;
        self.variables.push(Variable { name: name.to_owned(), of, slot });
        slot
    }

    fn fold(&mut self, fold: &Fold) -> Result<(Node, Type), CompileError> {
        let (range, range_type) = self.expr(&fold.range)?;
        let (init, accu_type) = self.expr(&fold.init)?;
        let range_type = self.known.resolved(&range_type);
        let before = self.variables.len();
        let accu = self.declare(&fold.accu, accu_type.clone());
        let (first, second) = match &range_type {
            Type::List(element) if fold.var2.is_some() => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Dyn),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Var(_) => {
                self.known.fits(&Type::Dyn, &range_type);
                (Type::Dyn, Type::Dyn)
            }
            other => return Err(mismatch(fold.range.at, "a list or map", &other.to_string())),
        };
        let var = self.declare(&fold.var, first);
        let var2 = fold.var2.as_ref().map(|name| self.declare(name, second));
        let (condition, of) = self.expr(&fold.condition)?;
        self.must_fit(fold.condition.at, &Type::Bool, &of)?;
        let (step, of) = self.expr(&fold.step)?;
        self.must_fit(fold.step.at, &accu_type, &of)?;
        self.variables.truncate(before + 1);
        let (result, of) = self.expr(&fold.result)?;
        self.variables.truncate(before);
        let of = self.known.resolved(&of);
        let node = FoldNode { range, var, var2, accu, init, condition, step, result };
        Ok((Node::Fold(Box::new(node)), of))
    }

    fn must_fit(&mut self, at: usize, wanted: &Type, given: &Type) -> Result<(), CompileError> {
        if self.known.fits(wanted, given) {
            return Ok(());
        }
        Err(mismatch(at, &self.known.resolved(wanted).to_string(), &self.known.resolved(given).to_string()))
    }
}

/// Whether it is looked up along a path, so that one more step costs one and no more.
fn is_path(expr: &Expr) -> bool {
    match &expr.kind {
        Kind::Ident(_) | Kind::Select { test: false, .. } => true,
        Kind::Call { function, .. } => matches!(function.as_str(), op::INDEX | op::OPT_INDEX | op::CONDITIONAL),
        _ => false,
    }
}

fn constant(literal: &Literal) -> (Node, Type) {
    let (value, of) = match literal {
        Literal::Null => (Value::Null, Type::Null),
        Literal::Bool(value) => (Value::Bool(*value), Type::Bool),
        Literal::Int(value) => (Value::Int(*value), Type::Int),
        Literal::Uint(value) => (Value::Uint(*value), Type::Uint),
        Literal::Double(value) => (Value::Double(*value), Type::Double),
        Literal::String(value) => (Value::text(value), Type::String),
        Literal::Bytes(value) => (Value::Bytes(value.as_slice().into()), Type::Bytes),
    };
    (Node::Constant(value), of)
}

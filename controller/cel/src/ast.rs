//! What an expression says, macros taken apart.

/// A part of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expr {
    pub(crate) kind: Kind,
    /// Where it begins, in bytes.
    pub(crate) at: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Literal(Literal),
    Ident(String),
    Select { operand: Box<Expr>, field: String, optional: bool, test: bool },
    Call { function: String, target: Option<Box<Expr>>, args: Vec<Expr> },
    List(Vec<Element>),
    Map(Vec<Entry>),
    Fold(Box<Fold>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Element {
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: Expr,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// What all macros that go through a list or map become.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fold {
    pub(crate) range: Expr,
    pub(crate) var: String,
    pub(crate) var2: Option<String>,
    pub(crate) accu: String,
    pub(crate) init: Expr,
    pub(crate) condition: Expr,
    pub(crate) step: Expr,
    pub(crate) result: Expr,
}

/// The variable in which a macro collects; no expression can name it.
pub(crate) const ACCU: &str = "@result";

/// Functions that have a sign instead of a name.
pub(crate) mod op {
    pub(crate) const AND: &str = "_&&_";
    pub(crate) const OR: &str = "_||_";
    pub(crate) const NOT: &str = "!_";
    pub(crate) const NEGATE: &str = "-_";
    pub(crate) const CONDITIONAL: &str = "_?_:_";
    pub(crate) const INDEX: &str = "_[_]";
    pub(crate) const OPT_INDEX: &str = "_[?_]";
    pub(crate) const EQUALS: &str = "_==_";
    pub(crate) const DIFFERS: &str = "_!=_";
    pub(crate) const ADD: &str = "_+_";
    pub(crate) const IN: &str = "@in";
    pub(crate) const NOT_STRICTLY_FALSE: &str = "@not_strictly_false";
    pub(crate) const MAP_INSERT: &str = "cel.@mapInsert";
    pub(crate) const SORT_BY: &str = "@sortByAssociatedKeys";
}

impl Expr {
    pub(crate) fn literal(at: usize, literal: Literal) -> Self {
        Self { kind: Kind::Literal(literal), at }
    }

    pub(crate) fn ident(at: usize, name: &str) -> Self {
        Self { kind: Kind::Ident(name.to_owned()), at }
    }

    pub(crate) fn call(at: usize, function: &str, args: Vec<Self>) -> Self {
        Self { kind: Kind::Call { function: function.to_owned(), target: None, args }, at }
    }

    pub(crate) fn member_call(at: usize, function: &str, target: Self, args: Vec<Self>) -> Self {
        Self { kind: Kind::Call { function: function.to_owned(), target: Some(Box::new(target)), args }, at }
    }

    pub(crate) fn list(at: usize, values: Vec<Self>) -> Self {
        let elements = values.into_iter().map(|value| Element { value, optional: false }).collect();
        Self { kind: Kind::List(elements), at }
    }

    pub(crate) fn as_ident(&self) -> Option<&str> {
        match &self.kind {
            Kind::Ident(name) => Some(name),
            _ => None,
        }
    }

    /// `a.b.c`, if it is nothing but names.
    pub(crate) fn qualified(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.clone()),
            Kind::Select { operand, field, optional: false, test: false } => {
                Some(format!("{}.{field}", operand.qualified()?))
            }
            _ => None,
        }
    }
}

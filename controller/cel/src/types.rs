//! The types of expressions, and how they are made to fit together.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Type {
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    List(Box<Self>),
    Map(Box<Self>, Box<Self>),
    Optional(Box<Self>),
    /// A type itself, and which. It fits where any type does, but a list is of one.
    Meta(Box<Self>),
    /// What `device` is.
    Device,
    /// One of Kubernetes' own.
    Object(&'static str),
    /// A type that isn't known yet; in a signature, a parameter.
    Var(u32),
}

pub(crate) const QUANTITY: Type = Type::Object("kubernetes.Quantity");
pub(crate) const SEMVER: Type = Type::Object("kubernetes.Semver");
pub(crate) const URL: Type = Type::Object("kubernetes.URL");
pub(crate) const IP: Type = Type::Object("net.IP");
pub(crate) const CIDR: Type = Type::Object("net.CIDR");
pub(crate) const FORMAT: Type = Type::Object("kubernetes.NamedFormat");

impl Type {
    pub(crate) fn list(element: Self) -> Self {
        Self::List(Box::new(element))
    }

    pub(crate) fn map(key: Self, value: Self) -> Self {
        Self::Map(Box::new(key), Box::new(value))
    }

    pub(crate) fn meta(of: Self) -> Self {
        Self::Meta(Box::new(of))
    }

    pub(crate) fn optional(value: Self) -> Self {
        Self::Optional(Box::new(value))
    }

    /// How many types it is made of.
    pub(crate) fn size(&self) -> usize {
        let own = if let Self::Meta(of) = self { of.size() } else { 0 };
        1 + own + self.parameters().into_iter().map(Self::size).sum::<usize>()
    }

    fn parameters(&self) -> Vec<&Self> {
        match self {
            Self::List(a) | Self::Optional(a) => vec![a],
            Self::Map(a, b) => vec![a, b],
            _ => Vec::new(),
        }
    }

    fn same_shape(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object(a), Self::Object(b)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    fn is_nullable(&self) -> bool {
        use Type::{Device, Duration, Null, Object, Optional, Timestamp};
        matches!(self, Null | Optional(_) | Object(_) | Device | Timestamp | Duration)
    }

    /// The same with other variables: `offset` is added to each.
    pub(crate) fn fresh(&self, offset: u32) -> Self {
        match self {
            Self::Var(var) => Self::Var(var + offset),
            Self::List(a) => Self::list(a.fresh(offset)),
            Self::Map(a, b) => Self::map(a.fresh(offset), b.fresh(offset)),
            Self::Optional(a) => Self::optional(a.fresh(offset)),
            Self::Meta(a) => Self::meta(a.fresh(offset)),
            other => other.clone(),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Dyn | Self::Var(_) => "dyn",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::Duration => "google.protobuf.Duration",
            Self::List(a) => return write!(formatter, "list({a})"),
            Self::Map(a, b) => return write!(formatter, "map({a}, {b})"),
            Self::Optional(a) => return write!(formatter, "optional_type({a})"),
            Self::Meta(of) => return write!(formatter, "type({of})"),
            Self::Device => "kubernetes.DRADevice",
            Self::Object(name) => name,
        };
        formatter.write_str(name)
    }
}

/// What is known of the variables.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    types: BTreeMap<u32, Type>,
    next: u32,
}

impl Known {
    /// Numbers for as many new variables, from this one on.
    pub(crate) fn reserve(&mut self, count: u32) -> u32 {
        self.next += count;
        self.next - count
    }

    pub(crate) fn variable(&mut self) -> Type {
        Type::Var(self.reserve(1))
    }

    /// With all variables that are known replaced.
    pub(crate) fn resolved(&self, of: &Type) -> Type {
        match of {
            Type::Var(var) => self.types.get(var).map_or_else(|| of.clone(), |known| self.resolved(known)),
            Type::List(a) => Type::list(self.resolved(a)),
            Type::Map(a, b) => Type::map(self.resolved(a), self.resolved(b)),
            Type::Optional(a) => Type::optional(self.resolved(a)),
            Type::Meta(a) => Type::meta(self.resolved(a)),
            other => other.clone(),
        }
    }

    /// Whether a value of the second type may stand where the first is wanted. Learns of variables if so.
    pub(crate) fn fits(&mut self, wanted: &Type, given: &Type) -> bool {
        self.all_fit(&[wanted], &[given])
    }

    pub(crate) fn all_fit(&mut self, wanted: &[&Type], given: &[&Type]) -> bool {
        let mut changed = self.types.clone();
        let fit = wanted.len() == given.len() && wanted.iter().zip(given).all(|(a, b)| unify(&mut changed, a, b));
        if fit {
            self.types = changed;
        }
        fit
    }

    /// The one type for both, if there is one.
    pub(crate) fn joined(&mut self, first: Option<Type>, second: Type) -> Option<Type> {
        let Some(first) = first else { return Some(second) };
        self.fits(&first, &second).then(|| most_general(first, second))
    }
}

fn most_general(a: Type, b: Type) -> Type {
    if is_less_specific(&a, &b) { a } else { b }
}

fn is_less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Var(_), _) => true,
        (_, Type::Dyn | Type::Var(_)) => false,
        _ => a.same_shape(b) && a.parameters().into_iter().zip(b.parameters()).all(|(a, b)| is_less_specific(a, b)),
    }
}

fn unify(known: &mut BTreeMap<u32, Type>, a: &Type, b: &Type) -> bool {
    if let Type::Var(var) = b {
        match substitute(known, a, *var) {
            (true, _) => return true,
            (false, true) => return false,
            (false, false) => {}
        }
    }
    if let Type::Var(var) = a {
        return substitute(known, b, *var).0;
    }
    match (a, b) {
        (Type::Dyn, _) | (_, Type::Dyn) => true,
        (Type::Null, other) | (other, Type::Null) => other.is_nullable(),
        _ => a.same_shape(b) && a.parameters().into_iter().zip(b.parameters()).all(|(a, b)| unify(known, a, b)),
    }
}

/// Whether the variable can be the type, and whether it was known before.
fn substitute(known: &mut BTreeMap<u32, Type>, of: &Type, var: u32) -> (bool, bool) {
    if *of == Type::Var(var) {
        return (true, true);
    }
    if let Some(before) = known.get(&var).cloned() {
        if before == *of {
            return (true, true);
        }
        if unify(known, of, &before) {
            let general = most_general(of.clone(), before);
            if !occurs(known, var, &general) {
                known.insert(var, general);
            }
            return (true, true);
        }
        return (false, true);
    }
    if occurs(known, var, of) {
        return (false, false);
    }
    known.insert(var, of.clone());
    (true, false)
}

fn occurs(known: &BTreeMap<u32, Type>, var: u32, within: &Type) -> bool {
    match within {
        Type::Var(other) => *other == var || known.get(other).is_some_and(|within| occurs(known, var, within)),
        _ => within.parameters().into_iter().any(|within| occurs(known, var, within)),
    }
}

/// The type of a type's name.
pub(crate) fn of_name(name: &str) -> Type {
    Type::meta(match name {
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "null_type" => Type::Null,
        "optional_type" => Type::optional(Type::Dyn),
        "google.protobuf.Timestamp" => Type::Timestamp,
        "google.protobuf.Duration" => Type::Duration,
        "net.IP" => IP,
        "net.CIDR" => CIDR,
        "type" => Type::Object("type"),
        other => parse(other).unwrap_or(Type::Dyn),
    })
}

/// A signature as the tables have it: `[A] int -> ?A`.
pub(crate) fn signature(text: &str) -> Option<(Vec<Type>, Type)> {
    let (arguments, result) = text.split_once("->")?;
    let arguments: Option<Vec<Type>> = arguments.split_whitespace().map(parse).collect();
    Some((arguments?, parse(result.trim())?))
}

fn parse(text: &str) -> Option<Type> {
    Some(match text {
        "dyn" => Type::Dyn,
        "null" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "type(A)" => Type::meta(Type::Var(0)),
        "quantity" => QUANTITY,
        "semver" => SEMVER,
        "url" => URL,
        "ip" => IP,
        "cidr" => CIDR,
        "format" => FORMAT,
        "A" => Type::Var(0),
        "B" => Type::Var(1),
        _ => {
            if let Some(value) = text.strip_prefix('?') {
                return parse(value).map(Type::optional);
            }
            if let Some(map) = text.strip_prefix('{') {
                let (key, value) = map.strip_suffix('}')?.split_once(':')?;
                return Some(Type::map(parse(key)?, parse(value)?));
            }
            return parse(text.strip_prefix('[')?.strip_suffix(']')?).map(Type::list);
        }
    })
}

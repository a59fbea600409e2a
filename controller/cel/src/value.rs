//! The values of expressions.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use aliquot_api::quantity::Quantity;
use regex::Regex;

use crate::error::EvaluationError;
use crate::library::format::NamedFormat;
use crate::library::net::{Cidr, Ip};
use crate::library::time::Timestamp;
use crate::library::url::Url;
use crate::semver::Version;
use crate::types::Type;

/// How many parts of a value are looked at, made or written at once. With lists of the same list of the same list there would
/// be no end, and Kubernetes counts one for them.
pub(crate) const MAX_PARTS: usize = 1_000_000;

/// What an expression gives.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Value {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number that can't be negative.
    Uint(u64),
    /// A number near one.
    Double(f64),
    /// A text.
    String(Arc<str>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A time.
    Timestamp(Timestamp),
    /// A time span in nanoseconds.
    Duration(i64),
    /// Several values.
    List(Arc<Vec<Self>>),
    /// Values by key.
    Map(Arc<Map>),
    /// A value or none.
    Optional(Option<Arc<Self>>),
    /// A type itself.
    Type(TypeValue),
    /// A quantity.
    Quantity(QuantityValue),
    /// A semantic version.
    Semver(Arc<Version>),
    /// One of the types that have no use outside of expressions.
    Other(Other),
}

/// The types that have no use outside of expressions.
#[derive(Debug, Clone)]
pub struct Other(pub(crate) Opaque);

#[derive(Debug, Clone)]
pub(crate) enum Opaque {
    Ip(Ip),
    Cidr(Cidr),
    Url(Arc<Url>),
    Format(&'static NamedFormat),
    /// A constant text that is used as a pattern, and the pattern.
    Pattern(Arc<str>, Arc<Regex>),
}

/// A quantity in an expression.
#[derive(Debug, Clone)]
pub struct QuantityValue {
    pub(crate) quantity: Arc<Quantity>,
    /// The result of `add` or `sub`: Kubernetes fails where such a one is on the right of `==`.
    pub(crate) computed: bool,
}

impl QuantityValue {
    /// The quantity.
    pub fn get(&self) -> &Quantity {
        &self.quantity
    }
}

/// A type as a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeValue(pub(crate) Arc<str>);

/// A key of a map.
#[derive(Debug, Clone)]
pub enum Key {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number that can't be negative; another key than the same as an `Int`.
    Uint(u64),
    /// A text.
    String(Arc<str>),
    /// What CEL knows no keys of, and Kubernetes takes all the same.
    Odd(OddKey),
}

/// A key of any other type, compared as Go does: some by their values, some by whether they are the very same one.
#[derive(Debug, Clone)]
pub struct OddKey(Value);

impl PartialEq for OddKey {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Value::Null, Value::Null) | (Value::Optional(None), Value::Optional(None)) => true,
            (Value::Double(a), Value::Double(b)) => a == b,
            (Value::Duration(a), Value::Duration(b)) => a == b,
            // To Go two offsets are never the same, even if they are equal; nobody can have meant that.
            (Value::Timestamp(a), Value::Timestamp(b)) => a == b && a.offset == b.offset,
            (Value::Type(a), Value::Type(b)) => a == b,
            (Value::List(a), Value::List(b)) => Arc::ptr_eq(a, b),
            (Value::Map(a), Value::Map(b)) => Arc::ptr_eq(a, b),
            (Value::Optional(Some(a)), Value::Optional(Some(b))) => Arc::ptr_eq(a, b),
            (Value::Quantity(a), Value::Quantity(b)) => Arc::ptr_eq(&a.quantity, &b.quantity),
            (Value::Other(Other(a)), Value::Other(Other(b))) => match (a, b) {
                (Opaque::Ip(a), Opaque::Ip(b)) => a == b,
                (Opaque::Cidr(a), Opaque::Cidr(b)) => a == b,
                (Opaque::Url(a), Opaque::Url(b)) => Arc::ptr_eq(a, b),
                _ => false,
            },
            _ => false,
        }
    }
}

/// Values by key, in the order of their keys; odd ones are behind the others, as they came.
#[derive(Debug, Clone, Default)]
pub struct Map {
    entries: Vec<(Key, Value)>,
    /// How many entries have no odd keys.
    usual: usize,
    /// From Go, where it has texts as keys: nothing else is looked up.
    of_texts: bool,
    /// What there is at all other keys, too: of a device's domains.
    default: Option<Value>,
}

impl Key {
    /// What a key is made of in CEL.
    pub(crate) fn usual(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(Self::Bool(*value)),
            Value::Int(value) => Some(Self::Int(*value)),
            Value::Uint(value) => Some(Self::Uint(*value)),
            _ => value.as_text().map(|text| Self::String(text.clone())),
        }
    }

    /// What a key is made of in Go, which breaks down over some.
    pub(crate) fn any(value: &Value) -> Result<Self, EvaluationError> {
        let cant_be = match value {
            Value::Bytes(_) | Value::Semver(_) => true,
            Value::Other(Other(opaque)) => matches!(opaque, Opaque::Format(_)),
            _ => false,
        };
        if cant_be {
            return Err(EvaluationError::Crash(value.type_name()));
        }
        Ok(Self::usual(value).unwrap_or_else(|| Self::Odd(OddKey(value.clone()))))
    }

    pub(crate) fn to_value(&self) -> Value {
        match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::Int(*value),
            Self::Uint(value) => Value::Uint(*value),
            Self::String(value) => Value::String(value.clone()),
            Self::Odd(OddKey(value)) => value.clone(),
        }
    }

    /// The same number as a key of the other type.
    fn alike(&self) -> Option<Self> {
        match self {
            Self::Int(value) => u64::try_from(*value).ok().map(Self::Uint),
            Self::Uint(value) => i64::try_from(*value).ok().map(Self::Int),
            _ => None,
        }
    }

    /// Of keys that aren't odd.
    fn order(&self, other: &Self) -> Ordering {
        let rank = |key: &Self| match key {
            Self::Bool(_) => 0,
            Self::Int(_) => 1,
            Self::Uint(_) => 2,
            Self::String(_) => 3,
            Self::Odd(_) => 4,
        };
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b)) => a.cmp(b),
            (Self::Uint(a), Self::Uint(b)) => a.cmp(b),
            (Self::String(a), Self::String(b)) => a.cmp(b),
            _ => rank(self).cmp(&rank(other)),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(formatter),
            Self::Int(value) => value.fmt(formatter),
            Self::Uint(value) => value.fmt(formatter),
            Self::String(value) => value.fmt(formatter),
            Self::Odd(OddKey(value)) => write!(formatter, "of type {}", value.type_name()),
        }
    }
}

impl Map {
    /// Of entries with texts as keys, in any order. The default is what there is at all other keys.
    pub(crate) fn of_texts(entries: impl IntoIterator<Item = (Arc<str>, Value)>, default: Option<Value>) -> Self {
        let mut entries: Vec<_> = entries.into_iter().map(|(key, value)| (Key::String(key), value)).collect();
        entries.sort_by(|(a, _), (b, _)| a.order(b));
        Self { usual: entries.len(), entries, of_texts: true, default }
    }

    /// The entries, in the order of their keys.
    pub fn entries(&self) -> &[(Key, Value)] {
        &self.entries
    }

    /// Where the key is, or where it belongs.
    fn place(&self, key: &Key) -> Result<usize, usize> {
        let (usual, odd) = self.entries.split_at(self.usual);
        match key {
            Key::Odd(key) => {
                let found = odd.iter().position(|(other, _)| matches!(other, Key::Odd(other) if other == key));
                found.map(|at| at + usual.len()).ok_or(self.entries.len())
            }
            key => usual.binary_search_by(|(other, _)| other.order(key)),
        }
    }

    /// What was there before is replaced.
    pub(crate) fn put(&mut self, key: Key, value: Value) {
        match self.place(&key) {
            Ok(at) => self.entries[at].1 = value,
            Err(at) => {
                self.usual += usize::from(!matches!(key, Key::Odd(_)));
                self.entries.insert(at, (key, value));
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        if let Ok(at) = self.place(key) {
            self.usual -= usize::from(at < self.usual);
            self.entries.remove(at);
        }
    }

    pub(crate) fn get_text(&self, key: &str) -> Option<&Value> {
        let found = self.entries[..self.usual].binary_search_by(|(other, _)| match other {
            Key::String(other) => (**other).cmp(key),
            _ => Ordering::Less,
        });
        found.ok().map(|at| &self.entries[at].1).or(self.default.as_ref())
    }

    /// The value at a key; the default is at keys of CEL's types only.
    pub(crate) fn get(&self, key: &Value) -> Result<Option<&Value>, EvaluationError> {
        if let Value::String(text) = key {
            return Ok(self.get_text(text));
        }
        let is_key = matches!(key, Value::Double(_)) || Key::usual(key).is_some();
        Ok(self.stored(key)?.or(self.default.as_ref().filter(|_| is_key)))
    }

    /// Of numbers any type finds the key, but its own finds it first.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
    pub(crate) fn stored(&self, key: &Value) -> Result<Option<&Value>, EvaluationError> {
        if self.entries.is_empty() || self.of_texts && key.as_text().is_none() {
            return Ok(None);
        }
        let number = match key {
            Value::Double(value) if value.fract() == 0.0 => *value,
            _ => f64::NAN,
        };
        let key = Key::any(key)?;
        let whole = (number.abs() <= i64::MAX as f64).then_some(Key::Int(number as i64));
        let natural = (0.0..=u64::MAX as f64).contains(&number).then_some(Key::Uint(number as u64));
        let alike = key.alike();
        let mut all = [Some(key), alike, whole, natural].into_iter().flatten();
        Ok(all.find_map(|key| self.place(&key).ok()).map(|at| &self.entries[at].1))
    }
}

impl Value {
    pub(crate) fn text(text: impl AsRef<str>) -> Self {
        Self::String(Arc::from(text.as_ref()))
    }

    pub(crate) fn list(values: Vec<Self>) -> Self {
        Self::List(Arc::new(values))
    }

    pub(crate) fn map(map: Map) -> Self {
        Self::Map(Arc::new(map))
    }

    pub(crate) fn some(value: Self) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    pub(crate) const NONE: Self = Self::Optional(None);

    pub(crate) fn quantity(quantity: Quantity, computed: bool) -> Self {
        Self::Quantity(QuantityValue { quantity: Arc::new(quantity), computed })
    }

    /// An equal one that isn't the very same.
    pub(crate) fn anew(self) -> Self {
        match self {
            Self::List(values) => Self::list(values.to_vec()),
            Self::Map(map) => Self::map((*map).clone()),
            Self::Optional(Some(value)) => Self::some((*value).clone()),
            Self::Quantity(QuantityValue { quantity, computed }) => Self::quantity((*quantity).clone(), computed),
            Self::Other(Other(Opaque::Url(url))) => Self::Other(Other(Opaque::Url(Arc::new((*url).clone())))),
            other => other,
        }
    }

    pub(crate) fn size_of(size: usize) -> Self {
        Self::Int(i64::try_from(size).unwrap_or(i64::MAX))
    }

    /// Its type's name.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) | Self::Other(Other(Opaque::Pattern(..))) => "string",
            Self::Bytes(_) => "bytes",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Type(_) => "type",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Other(Other(Opaque::Ip(_))) => "net.IP",
            Self::Other(Other(Opaque::Cidr(_))) => "net.CIDR",
            Self::Other(Other(Opaque::Url(_))) => "kubernetes.URL",
            Self::Other(Other(Opaque::Format(_))) => "kubernetes.NamedFormat",
        }
    }

    /// Whether a function that wants the type takes it. Of a list or map, what comes first counts.
    pub(crate) fn is_a(&self, wanted: &Type) -> bool {
        match wanted {
            Type::Dyn | Type::Var(_) => true,
            Type::List(element) => {
                matches!(self, Self::List(values) if values.first().is_none_or(|value| value.is_a(element)))
            }
            Type::Map(key, value) => matches!(self, Self::Map(map) if map.entries.first().is_none_or(|(k, v)| {
                k.to_value().is_a(key) && v.is_a(value)
            })),
            Type::Device => matches!(self, Self::Map(_)),
            Type::Optional(_) => matches!(self, Self::Optional(_)),
            Type::Null => matches!(self, Self::Null),
            Type::Bool => matches!(self, Self::Bool(_)),
            Type::Int => matches!(self, Self::Int(_)),
            Type::Uint => matches!(self, Self::Uint(_)),
            Type::Double => matches!(self, Self::Double(_)),
            Type::String => self.as_text().is_some(),
            Type::Bytes => matches!(self, Self::Bytes(_)),
            Type::Timestamp => matches!(self, Self::Timestamp(_)),
            Type::Duration => matches!(self, Self::Duration(_)),
            Type::Meta(_) => matches!(self, Self::Type(_)),
            Type::Object(name) => self.type_name() == *name,
        }
    }

    pub(crate) fn as_text(&self) -> Option<&Arc<str>> {
        match self {
            Self::String(text) | Self::Other(Other(Opaque::Pattern(text, _))) => Some(text),
            _ => None,
        }
    }

    /// What counts as its size for costs: of a text its characters, of most other things one.
    pub(crate) fn size(&self) -> u64 {
        let size = match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::List(values) => values.len(),
            Self::Map(map) => map.entries.len(),
            Self::Optional(Some(value)) => return value.size(),
            Self::Other(Other(Opaque::Ip(ip))) => ip.size(),
            Self::Other(Other(Opaque::Cidr(cidr))) => cidr.size(),
            _ => match self.as_text() {
                Some(text) => text.chars().count(),
                None => 1,
            },
        };
        u64::try_from(size).unwrap_or(u64::MAX)
    }

    /// `==`.
    pub(crate) fn equals(&self, other: &Self) -> Result<bool, EvaluationError> {
        self.equals_within(other, &mut { MAX_PARTS })
    }

    fn equals_within(&self, other: &Self, parts: &mut usize) -> Result<bool, EvaluationError> {
        *parts = parts.checked_sub(1).ok_or(EvaluationError::TOO_LARGE)?;
        Ok(match (self, other) {
            (Self::Null, _) | (_, Self::Null) => matches!((self, other), (Self::Null, Self::Null)),
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(_) | Self::Uint(_) | Self::Double(_), Self::Int(_) | Self::Uint(_) | Self::Double(_)) => {
                self.number_order(other) == Some(Ordering::Equal)
            }
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Timestamp(a), Self::Timestamp(b)) => a == b,
            (Self::Duration(a), Self::Duration(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::List(a), Self::List(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                // Elements that can't be compared count as equal; so it is in CEL for Go.
                for (a, b) in a.iter().zip(b.iter()) {
                    match a.equals_within(b, parts) {
                        Ok(false) => return Ok(false),
                        Err(error) if error.is_final() => return Err(error),
                        Ok(true) | Err(_) => {}
                    }
                }
                true
            }
            (Self::Map(a), Self::Map(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    let Some(other) = b.stored(&key.to_value())? else { return Ok(false) };
                    match value.equals_within(other, parts) {
                        Ok(false) => return Ok(false),
                        Err(error) if error.is_final() => return Err(error),
                        Ok(true) | Err(_) => {}
                    }
                }
                true
            }
            (Self::Optional(a), Self::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => return a.equals_within(b, parts),
                (None, None) => true,
                _ => false,
            },
            (Self::Quantity(_), Self::Quantity(b)) if b.computed => return Err(EvaluationError::NO_OVERLOAD),
            (Self::Quantity(a), Self::Quantity(b)) => a.quantity == b.quantity,
            (Self::Semver(a), Self::Semver(b)) => a.precedence(b) == Ordering::Equal,
            (Self::Other(Other(Opaque::Ip(a))), Self::Other(Other(Opaque::Ip(b)))) => a == b,
            (Self::Other(Other(Opaque::Cidr(a))), Self::Other(Other(Opaque::Cidr(b)))) => a == b,
            (Self::Other(Other(Opaque::Url(a))), Self::Other(Other(Opaque::Url(b)))) => a == b,
            (Self::Other(Other(Opaque::Format(a))), Self::Other(Other(Opaque::Format(b)))) => std::ptr::eq(*a, *b),
            // Kubernetes' own types fail where those of CEL are just different.
            (Self::Quantity(_) | Self::Semver(_), _) => return Err(EvaluationError::NO_OVERLOAD),
            (Self::Other(Other(opaque)), _) if !matches!(opaque, Opaque::Pattern(..)) => {
                return Err(EvaluationError::NO_OVERLOAD);
            }
            _ => match (self.as_text(), other.as_text()) {
                (Some(a), Some(b)) => a == b,
                _ => false,
            },
        })
    }

    /// Of two numbers of any type. None with a NaN.
    pub(crate) fn number_order(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Double(a), Self::Double(b)) => a.partial_cmp(b),
            (Self::Double(a), b) => double_order(*a, b.whole()?),
            (a, Self::Double(b)) => double_order(*b, a.whole()?).map(Ordering::reverse),
            (a, b) => Some(a.whole()?.cmp(&b.whole()?)),
        }
    }

    fn whole(&self) -> Option<i128> {
        match self {
            Self::Int(value) => Some((*value).into()),
            Self::Uint(value) => Some((*value).into()),
            _ => None,
        }
    }

    /// `<` and its like, and the order of a sort.
    pub(crate) fn order(&self, other: &Self) -> Result<Ordering, EvaluationError> {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Ok(a.cmp(b)),
            (Self::Bytes(a), Self::Bytes(b)) => Ok(a.cmp(b)),
            (Self::Timestamp(a), Self::Timestamp(b)) => Ok(a.cmp(b)),
            (Self::Duration(a), Self::Duration(b)) => Ok(a.cmp(b)),
            (Self::Int(_) | Self::Uint(_) | Self::Double(_), Self::Int(_) | Self::Uint(_) | Self::Double(_)) => {
                self.number_order(other).ok_or(EvaluationError::fixed("NaN values cannot be ordered"))
            }
            _ => match (self.as_text(), other.as_text()) {
                (Some(a), Some(b)) => Ok(a.cmp(b)),
                _ => Err(EvaluationError::NO_OVERLOAD),
            },
        }
    }

    /// What `type()` gives.
    pub(crate) fn type_value(&self) -> TypeValue {
        TypeValue(Arc::from(self.type_name()))
    }
}

/// Not exact where a double isn't; so it is in CEL for Go.
#[allow(clippy::cast_precision_loss)]
fn double_order(a: f64, b: i128) -> Option<Ordering> {
    a.partial_cmp(&(b as f64))
}

/// The types that have a name in expressions.
pub(crate) fn named_type(name: &str) -> Option<TypeValue> {
    let known = [
        "bool",
        "bytes",
        "double",
        "int",
        "list",
        "map",
        "null_type",
        "string",
        "type",
        "uint",
        "optional_type",
        "google.protobuf.Timestamp",
        "google.protobuf.Duration",
        "net.IP",
        "net.CIDR",
    ];
    known.contains(&name).then(|| TypeValue(Arc::from(name)))
}

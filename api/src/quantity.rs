//! Kubernetes' quantities, exactly: `40Gi`, `1500m`, `1e3`.
//!
//! What fits in a small machine number (nearly all there is) is kept as one; the rest is a number of any size, as in Kubernetes.
//! Which of the two a quantity is can be seen from outside ([`Quantity::as_i64`] of a long number is none), so the border is
//! Kubernetes' too. Two things are not: an exponent beyond ±10 000 is refused, since one addition could then fill the memory,
//! and a number above the largest suffix is printed with all its digits where Kubernetes prints it without its zeros.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use num_bigint::{BigInt, Sign};

/// Nothing is finer than this power of ten; what is gets rounded away from zero.
const NANO: i32 = -9;
/// As many decimal digits always fit in an `i64`.
const SMALL_DIGITS: usize = 18;
/// The largest exponent that is taken.
const MAX_EXPONENT: i32 = 10_000;

const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// The index is the power of 1024.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// How a quantity is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// `12M`, `500m`.
    DecimalSi,
    /// `12Mi`.
    BinarySi,
    /// `12e6`.
    DecimalExponent,
}

/// Why a text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// No number, or something behind its suffix.
    #[error("{0:?} is not a quantity: a number and a suffix such as Gi, M, m or e3 are")]
    Form(String),
    /// The number has no digit.
    #[error("the number of quantity {0:?} has no digits")]
    Number(String),
    /// There is no such suffix.
    #[error("quantity {0:?} has an unknown suffix; Ki to Ei, n to E and e3 are known")]
    Suffix(String),
    /// Allowed by Kubernetes, and of no use to anybody.
    #[error("the exponent of quantity {0:?} is beyond {MAX_EXPONENT}")]
    Exponent(String),
}

/// An amount of something. Equal and ordered by value, whatever the format.
#[derive(Debug, Clone)]
pub struct Quantity {
    amount: Amount,
    format: Format,
}

/// A number times a power of ten.
#[derive(Debug, Clone)]
enum Amount {
    Small { value: i64, scale: i32 },
    Big { value: BigInt, scale: i32 },
}

impl Amount {
    fn sign(&self) -> Ordering {
        match self {
            Self::Small { value, .. } => value.cmp(&0),
            Self::Big { value, .. } => match value.sign() {
                Sign::Minus => Ordering::Less,
                Sign::NoSign => Ordering::Equal,
                Sign::Plus => Ordering::Greater,
            },
        }
    }

    fn scale(&self) -> i32 {
        match self {
            Self::Small { scale, .. } | Self::Big { scale, .. } => *scale,
        }
    }

    /// The number at a finer or equal scale.
    fn at(&self, scale: i32) -> BigInt {
        let value = match self {
            Self::Small { value, .. } => BigInt::from(*value),
            Self::Big { value, .. } => value.clone(),
        };
        value * pow10(self.scale().abs_diff(scale))
    }

    /// The number at any scale, rounded away from zero, and whether it is exact.
    fn rounded(&self, scale: i32) -> (BigInt, bool) {
        if self.scale() >= scale {
            return (self.at(scale), true);
        }
        let divisor = pow10(self.scale().abs_diff(scale));
        let value = self.at(self.scale());
        let quotient = &value / &divisor;
        if &quotient * &divisor == value {
            return (quotient, true);
        }
        (if self.sign() == Ordering::Less { quotient - 1 } else { quotient + 1 }, false)
    }

    /// The sum in small numbers, where it fits.
    fn small_sum(&self, other: &Self) -> Option<Self> {
        let (Self::Small { value: a, scale: a_scale }, Self::Small { value: b, scale: b_scale }) = (self, other) else {
            return None;
        };
        if *b == 0 {
            return Some(self.clone());
        }
        if *a == 0 {
            return Some(other.clone());
        }
        let scale = *a_scale.min(b_scale);
        let value = scaled(*a, a_scale.abs_diff(scale))?.checked_add(scaled(*b, b_scale.abs_diff(scale))?)?;
        Some(Self::Small { value, scale })
    }

    fn sum(&self, other: &Self) -> Self {
        self.small_sum(other).unwrap_or_else(|| {
            let scale = self.scale().min(other.scale());
            Self::Big { value: self.at(scale) + other.at(scale), scale }
        })
    }

    fn negated(&self) -> Self {
        match self {
            Self::Small { value, scale } => match value.checked_neg() {
                Some(value) => Self::Small { value, scale: *scale },
                None => Self::Big { value: -BigInt::from(*value), scale: *scale },
            },
            Self::Big { value, scale } => Self::Big { value: -value, scale: *scale },
        }
    }
}

impl Ord for Amount {
    fn cmp(&self, other: &Self) -> Ordering {
        if let (Self::Small { value: a, scale: a_scale }, Self::Small { value: b, scale: b_scale }) = (self, other) {
            // Nineteen digits more than the other has: larger than any of its numbers, but for zero.
            let at = |value: i64, places: u32| i128::from(value) * 10_i128.pow(places);
            return match (a_scale.cmp(b_scale), a_scale.abs_diff(*b_scale)) {
                (Ordering::Equal, _) => a.cmp(b),
                (Ordering::Greater, places @ ..=19) => at(*a, places).cmp(&(*b).into()),
                (Ordering::Less, places @ ..=19) => i128::from(*a).cmp(&at(*b, places)),
                (Ordering::Greater, _) => a.cmp(&0).then(0.cmp(b)),
                (Ordering::Less, _) => 0.cmp(b).then(a.cmp(&0)),
            };
        }
        let scale = self.scale().min(other.scale());
        self.sign().cmp(&other.sign()).then_with(|| self.at(scale).cmp(&other.at(scale)))
    }
}

impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Amount {}

fn pow10(exponent: u32) -> BigInt {
    BigInt::from(10).pow(exponent)
}

fn scaled(value: i64, places: u32) -> Option<i64> {
    if value == 0 { Some(0) } else { value.checked_mul(10_i64.checked_pow(places)?) }
}

impl Quantity {
    /// A whole number.
    pub fn new(value: i64, format: Format) -> Self {
        Self { amount: Amount::Small { value, scale: 0 }, format }
    }

    /// A number of thousandths.
    pub fn from_milli(value: i64, format: Format) -> Self {
        Self { amount: Amount::Small { value, scale: -3 }, format }
    }

    /// How it is written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Less than, equal to or greater than zero.
    pub fn sign(&self) -> Ordering {
        self.amount.sign()
    }

    /// Whether it is nothing.
    pub fn is_zero(&self) -> bool {
        self.sign() == Ordering::Equal
    }

    /// Adds another. Zero takes over the format of what is added.
    pub fn add(&mut self, other: &Self) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.sum(&other.amount);
    }

    /// Takes another away; below zero, too. Zero takes over the format of what is taken.
    pub fn sub(&mut self, other: &Self) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.sum(&other.amount.negated());
    }

    /// The whole number that it is. None for a fraction, and for what Kubernetes keeps as a long number.
    pub fn as_i64(&self) -> Option<i64> {
        match self.amount {
            Amount::Small { value, scale } => scaled(value, u32::try_from(scale).ok()?),
            Amount::Big { .. } => None,
        }
    }

    /// The nearest whole number away from zero; the smallest or largest one of what is beyond them.
    pub fn value(&self) -> i64 {
        self.value_at(0)
    }

    /// The same, in thousandths.
    pub fn milli_value(&self) -> i64 {
        self.value_at(-3)
    }

    /// In billionths, which is always exact. None for what is too large.
    pub fn nanos(&self) -> Option<i128> {
        match &self.amount {
            Amount::Small { value, scale } => {
                let places = u32::try_from(scale.checked_sub(NANO)?).ok()?;
                if *value == 0 { Some(0) } else { i128::from(*value).checked_mul(10_i128.checked_pow(places)?) }
            }
            Amount::Big { .. } => i128::try_from(self.amount.rounded(NANO).0).ok(),
        }
    }

    fn value_at(&self, scale: i32) -> i64 {
        if let Amount::Small { value, scale: own } = self.amount
            && own >= scale
            && let Some(value) = scaled(value, own.abs_diff(scale))
        {
            return value;
        }
        let (value, _) = self.amount.rounded(scale);
        let limit = if value.sign() == Sign::Minus { i64::MIN } else { i64::MAX };
        i64::try_from(value).unwrap_or(limit)
    }

    /// A number near it.
    pub fn approximate(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)]
        let base = match &self.amount {
            Amount::Small { value, .. } => *value as f64,
            // The text is the one conversion that rounds to the nearest.
            Amount::Big { value, .. } => value.to_string().parse().unwrap_or(f64::NAN),
        };
        match self.amount.scale() {
            0 => base,
            scale => base * power_of_ten(scale),
        }
    }

    fn write_decimal(&self, formatter: &mut fmt::Formatter<'_>, format: Format) -> fmt::Result {
        let all = self.amount.at(self.amount.scale()).to_string();
        let digits = all.trim_end_matches('0');
        let mut exponent = self.amount.scale() + i32::try_from(all.len() - digits.len()).map_err(|_| fmt::Error)?;
        let mut zeros = exponent.rem_euclid(3);
        if format == Format::DecimalSi && exponent > 18 {
            zeros = exponent - 18;
        }
        exponent -= zeros;
        formatter.write_str(digits)?;
        for _ in 0..zeros {
            formatter.write_str("0")?;
        }
        match (format, DECIMAL.iter().find(|(_, power)| *power == exponent)) {
            (Format::DecimalExponent, _) if exponent == 0 => Ok(()),
            (Format::DecimalExponent, _) | (_, None) => write!(formatter, "e{exponent}"),
            (_, Some((suffix, _))) => formatter.write_str(suffix),
        }
    }
}

/// The same roundings as Go's: a product of two table entries.
fn power_of_ten(exponent: i32) -> f64 {
    let entry = |power: u32| format!("1e{power}").parse::<f64>().unwrap_or(f64::INFINITY);
    let (high, low) = (exponent.unsigned_abs() / 32 * 32, exponent.unsigned_abs() % 32);
    match exponent {
        0..=308 => entry(high) * entry(low),
        -323..0 => format!("1e-{high}").parse::<f64>().unwrap_or(0.0) / entry(low),
        309.. => f64::INFINITY,
        _ => 0.0,
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.amount == other.amount
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.amount.cmp(&other.amount)
    }
}

/// The canonical form: the largest suffix that needs no fraction, and binary ones only for whole numbers from 1024.
impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return formatter.write_str("0");
        }
        if self.format != Format::BinarySi {
            return self.write_decimal(formatter, self.format);
        }
        let (mut value, exact) = self.amount.rounded(0);
        if !exact || value.magnitude() < &1024_u32.into() {
            return self.write_decimal(formatter, Format::DecimalSi);
        }
        let mut suffix = 0;
        while suffix + 1 < BINARY.len() && (&value % 1024_u32).sign() == Sign::NoSign {
            value /= 1024_u32;
            suffix += 1;
        }
        write!(formatter, "{value}{}", BINARY[suffix])
    }
}

/// A text, taken apart.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
    has_digits: bool,
}

fn split(text: &str) -> Option<Parts<'_>> {
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, mut rest) = unsigned.split_at(digits(unsigned));
    let mut fraction = "";
    if let Some(behind) = rest.strip_prefix('.') {
        (fraction, rest) = behind.split_at(digits(behind));
    }
    let letters = rest.bytes().take_while(|c| b"eEinumkKMGTP".contains(c)).count();
    let exponent = rest.get(letters..)?;
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    // A sign alone is zero to Kubernetes, as is a point.
    let has_digits = !number.is_empty() || !fraction.is_empty();
    (digits(exponent) == exponent.len()).then_some(Parts {
        negative,
        whole: number.trim_start_matches('0'),
        fraction,
        suffix: rest,
        has_digits,
    })
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let parts = split(text).filter(|_| !text.is_empty()).ok_or_else(|| QuantityError::Form(text.to_owned()))?;
        let suffix = parts.suffix;
        let (format, exponent) = if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
            (Format::DecimalSi, *exponent)
        } else if let Some(power) = BINARY.iter().position(|name| *name == suffix) {
            (Format::BinarySi, i32::try_from(power * 10).unwrap_or(0))
        } else {
            let power = suffix.strip_prefix(['e', 'E']).and_then(|power| power.parse::<i64>().ok());
            let power = power.ok_or_else(|| QuantityError::Suffix(text.to_owned()))?;
            let power = i32::try_from(power).ok().filter(|power| power.abs() <= MAX_EXPONENT);
            (Format::DecimalExponent, power.ok_or_else(|| QuantityError::Exponent(text.to_owned()))?)
        };
        // A number without digits in front of its point has a zero there.
        let digits = parts.whole.len().max(1) + parts.fraction.len();
        let is_small = match format {
            Format::BinarySi => {
                let digits = parts.whole.len().max(1) + usize::try_from(exponent).unwrap_or(0) * 3 / 10;
                parts.fraction.is_empty() && digits <= 14
            }
            _ => digits <= SMALL_DIGITS,
        };
        let places = i32::try_from(parts.fraction.len()).map_err(|_| QuantityError::Form(text.to_owned()))?;
        let (binary, scale) = if format == Format::BinarySi { (exponent, -places) } else { (0, exponent - places) };
        if is_small && scale >= NANO {
            let shifted = format!("0{}{}", parts.whole, parts.fraction);
            let value: i64 = shifted.parse().map_err(|_| QuantityError::Number(text.to_owned()))?;
            if let Some(value) = value.checked_mul(1 << binary) {
                let value = if parts.negative { -value } else { value };
                return Ok(Self { amount: Amount::Small { value, scale }, format });
            }
        }
        if !parts.has_digits {
            return Err(QuantityError::Number(text.to_owned()));
        }
        big(&parts, format, binary, scale).ok_or_else(|| QuantityError::Number(text.to_owned()))
    }
}

/// What needs more than a small number: rounded to nano, and a binary one at most the largest `i64`.
fn big(parts: &Parts<'_>, format: Format, binary: i32, scale: i32) -> Option<Quantity> {
    let value = BigInt::parse_bytes(format!("0{}{}", parts.whole, parts.fraction).as_bytes(), 10)? << binary;
    let exact = Amount::Big { value, scale };
    let mut amount =
        if exact.sign() == Ordering::Equal { exact } else { Amount::Big { value: exact.rounded(NANO).0, scale: NANO } };
    let mut format = format;
    if format == Format::BinarySi {
        let (one, max) = (Amount::Small { value: 1, scale: 0 }, Amount::Small { value: i64::MAX, scale: 0 });
        if amount > max {
            amount = Amount::Big { value: i64::MAX.into(), scale: 0 };
        } else if amount < one && amount.sign() == Ordering::Greater {
            format = Format::DecimalSi;
        }
    }
    let amount = if parts.negative { amount.negated() } else { amount };
    Some(Quantity { amount, format })
}

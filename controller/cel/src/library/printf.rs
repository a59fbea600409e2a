//! `'%s has %d'.format(['x', 1])`.

use std::fmt::Write as _;

use super::numbers::to_text;
use super::scan;
use super::strings::{MAX_TEXT, escaped, text};
use crate::error::EvaluationError;
use crate::functions::Cost::Id;
use crate::functions::Row;
use crate::functions::Style::Member;
use crate::types::Type;
use crate::value::{Key, Value};

pub(crate) const ROWS: &[Row] = &[Row("format", Member, "string [dyn] -> string", Id(scan), |args| {
    let Value::List(values) = &args[1] else { return Err(EvaluationError::NO_OVERLOAD) };
    format(text(args, 0)?, values).map(Value::text)
})];

/// Digits behind the point where none are asked for.
const PRECISION: usize = 6;
const MAX_PRECISION: usize = 1000;

fn bad(verb: char, value: &Value) -> EvaluationError {
    EvaluationError::text(format!("%{verb} can't be {}", value.type_name()))
}

fn format(pattern: &str, values: &[Value]) -> Result<String, EvaluationError> {
    let (mut out, mut rest, mut values) = (String::new(), pattern, values.iter());
    while let Some((before, behind)) = rest.split_once('%') {
        out.push_str(before);
        if let Some(behind) = behind.strip_prefix('%') {
            out.push('%');
            rest = behind;
            continue;
        }
        let mut precision = PRECISION;
        let mut behind = behind;
        if let Some(digits) = behind.strip_prefix('.') {
            let end = digits.bytes().take_while(u8::is_ascii_digit).count();
            let given = digits[..end].parse().ok().filter(|given| *given <= MAX_PRECISION);
            precision = given.ok_or(EvaluationError::fixed("this precision is no number up to 1000"))?;
            behind = &digits[end..];
        }
        let verb = behind.chars().next().ok_or(EvaluationError::fixed("unexpected end of string"))?;
        let value = values.next().ok_or(EvaluationError::fixed("there are fewer arguments than in the text"))?;
        one(&mut out, verb, precision, value)?;
        if out.len() > MAX_TEXT {
            return Err(EvaluationError::TOO_LARGE);
        }
        rest = &behind[verb.len_utf8()..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Whether values of this type have a text.
pub(crate) fn is_text(of: &Type) -> bool {
    !matches!(of, Type::Object(_) | Type::Optional(_) | Type::Device)
}

/// What is wrong with constant arguments of these types, before anything runs.
pub(crate) fn check(pattern: &str, types: &[Type]) -> Result<(), String> {
    use Type::{Bool, Bytes, Double, Dyn, Int, String as Text, Uint, Var};
    let (mut rest, mut types) = (pattern, types.iter());
    while let Some((_, behind)) = rest.split_once('%') {
        if let Some(behind) = behind.strip_prefix('%') {
            rest = behind;
            continue;
        }
        let behind =
            behind.strip_prefix('.').map_or(behind, |digits| digits.trim_start_matches(|c: char| c.is_ascii_digit()));
        let verb = behind.chars().next().ok_or("the text ends with a %")?;
        let of = types.next().ok_or("there are fewer arguments than in the text")?;
        let fits = match verb {
            's' => is_text(of),
            'd' | 'o' => matches!(of, Int | Uint | Dyn | Var(_)),
            'b' => matches!(of, Int | Uint | Bool | Dyn | Var(_)),
            'x' | 'X' => matches!(of, Int | Uint | Text | Bytes | Dyn | Var(_)),
            'f' | 'e' => matches!(of, Double | Text | Dyn | Var(_)),
            _ => false,
        };
        if !fits {
            return Err(format!("%{verb} can't be {of}"));
        }
        rest = &behind[verb.len_utf8()..];
    }
    if types.next().is_some() { Err("there are more arguments than in the text".to_owned()) } else { Ok(()) }
}

/// As Go quotes texts.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        let code = u32::from(c);
        match c {
            c if let Some(escape) = escaped(c) => out.push_str(escape),
            c if c.is_ascii_control() => out.extend([format!("\\x{code:02x}")]),
            c if c.is_control() => out.extend([format!("\\u{code:04x}")]),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn one(out: &mut String, verb: char, precision: usize, value: &Value) -> Result<(), EvaluationError> {
    let written = match (verb, value) {
        ('s', value) => {
            out.push_str(&shown(value, false, &mut { MAX_TEXT })?);
            Ok(())
        }
        ('d' | 'b' | 'x' | 'X' | 'o', Value::Int(number)) => {
            let sign = if *number < 0 { "-" } else { "" };
            write!(out, "{sign}{}", in_base(verb, number.unsigned_abs()))
        }
        ('d' | 'b' | 'x' | 'X' | 'o', Value::Uint(number)) => write!(out, "{}", in_base(verb, *number)),
        ('b', Value::Bool(value)) => write!(out, "{}", u8::from(*value)),
        ('x' | 'X', value) => {
            let bytes = match value {
                Value::Bytes(bytes) => bytes,
                other => other.as_text().ok_or_else(|| bad(verb, value))?.as_bytes(),
            };
            bytes
                .iter()
                .try_for_each(|byte| if verb == 'x' { write!(out, "{byte:02x}") } else { write!(out, "{byte:02X}") })
        }
        ('f' | 'e', value) => {
            let number = match (value, value.as_text().map(|text| &**text)) {
                (Value::Double(number), _) => *number,
                (_, Some("NaN")) => f64::NAN,
                (_, Some("Infinity")) => f64::INFINITY,
                (_, Some("-Infinity")) => f64::NEG_INFINITY,
                _ => return Err(bad(verb, value)),
            };
            out.push_str(&grouped(verb, precision, number));
            Ok(())
        }
        _ => return Err(bad(verb, value)),
    };
    written.map_err(|_| bad(verb, value))
}

fn in_base(verb: char, number: u64) -> String {
    match verb {
        'b' => format!("{number:b}"),
        'x' => format!("{number:x}"),
        'X' => format!("{number:X}"),
        'o' => format!("{number:o}"),
        _ => number.to_string(),
    }
}

/// As an American reads numbers.
fn grouped(verb: char, precision: usize, number: f64) -> String {
    if verb == 'e' {
        // A width is what Go makes of the precision here.
        return format!("{:>precision$}", scientific(number));
    }
    if let Some(text) = special(number) {
        return text.to_owned();
    }
    let number = if number == 0.0 { 0.0 } else { number };
    let text = format!("{number:.precision$}");
    let (sign, unsigned) = text.strip_prefix('-').map_or(("", text.as_str()), |unsigned| ("-", unsigned));
    let (whole, fraction) = unsigned.split_once('.').map_or((unsigned, None), |(a, b)| (a, Some(b)));
    let mut grouped = String::from(sign);
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if let Some(fraction) = fraction {
        grouped.push('.');
        grouped.push_str(fraction);
    }
    grouped
}

fn special(number: f64) -> Option<&'static str> {
    match number {
        number if number.is_nan() => Some("NaN"),
        f64::INFINITY => Some("∞"),
        f64::NEG_INFINITY => Some("-∞"),
        _ => None,
    }
}

fn scientific(number: f64) -> String {
    if let Some(text) = special(number) {
        return text.to_owned();
    }
    let number = if number == 0.0 { 0.0 } else { number };
    let text = format!("{number:.PRECISION$e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let (sign, digits) = exponent.strip_prefix('-').map_or(("", exponent), |digits| ("\u{207B}", digits));
    let raised: String = format!("{digits:0>2}").chars().map(superscript).collect();
    format!("{mantissa}\u{D7}10{sign}{raised}")
}

fn superscript(digit: char) -> char {
    match digit {
        '1' => '\u{B9}',
        '2' => '\u{B2}',
        '3' => '\u{B3}',
        _ => digit.to_digit(10).and_then(|digit| char::from_u32(0x2070 + digit)).unwrap_or(digit),
    }
}

/// A value's text; inside of a list or map as an expression would have it.
fn shown(value: &Value, inside: bool, left: &mut usize) -> Result<String, EvaluationError> {
    // Commas and brackets, too.
    let length = 16 + value.as_text().map_or(0, |text| text.len());
    *left = left.checked_sub(length).ok_or(EvaluationError::TOO_LARGE)?;
    Ok(match value {
        Value::Null => "null".to_owned(),
        Value::List(values) => {
            let shown: Vec<String> = values.iter().map(|value| shown(value, true, left)).collect::<Result<_, _>>()?;
            format!("[{}]", shown.join(", "))
        }
        Value::Map(map) => {
            let mut pairs = Vec::new();
            for (key, value) in map.entries() {
                let key = match key {
                    Key::String(text) => quoted(text),
                    Key::Odd(_) => return Err(bad('s', &key.to_value())),
                    other => other.to_string(),
                };
                pairs.push((key, shown(value, true, left)?));
            }
            // Two numbers of different types can be one key here.
            pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
            let pairs: Vec<String> = pairs.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Value::Double(number) if inside && number.is_finite() => format!("{number:.PRECISION$}"),
        value => {
            let text = to_text(value).ok_or_else(|| bad('s', value))?;
            match value {
                Value::String(_) if inside => quoted(&text),
                Value::Bytes(_) if inside => format!("b{}", quoted(&text)),
                Value::Timestamp(_) if inside => format!("timestamp({text:?})"),
                Value::Duration(_) if inside => format!("duration({text:?})"),
                _ => text,
            }
        }
    })
}

//! Named formats: `format.dns1123Label().validate('x')`. What they say of a wrong text is worded otherwise than in Kubernetes.

use super::pattern_cost;
use super::strings::text;
use crate::error::EvaluationError;
use crate::functions::Cost::{Name, One};
use crate::functions::Row;
use crate::functions::Style::{Global, Member};
use crate::library::{time, url};
use crate::value::{Opaque, Other, Value};

type Outcome = Result<Value, EvaluationError>;

#[derive(Debug)]
pub(crate) struct NamedFormat {
    name: &'static str,
    check: fn(&str) -> bool,
    /// As long as its pattern is taken to be.
    pattern: u64,
}

static NAMED: [NamedFormat; 13] = [
    NamedFormat { name: "dns1123Label", check: |text| is_label(text, false), pattern: 30 },
    NamedFormat { name: "dns1123Subdomain", check: |text| is_subdomain(text, false), pattern: 60 },
    NamedFormat { name: "dns1035Label", check: |text| is_old_label(text, false), pattern: 30 },
    NamedFormat { name: "qualifiedName", check: is_qualified_name, pattern: 60 },
    NamedFormat { name: "dns1123LabelPrefix", check: |text| is_label(text, true), pattern: 30 },
    NamedFormat { name: "dns1123SubdomainPrefix", check: |text| is_subdomain(text, true), pattern: 60 },
    NamedFormat { name: "dns1035LabelPrefix", check: |text| is_old_label(text, true), pattern: 30 },
    NamedFormat { name: "labelValue", check: |text| text.is_empty() || is_name(text), pattern: 40 },
    NamedFormat { name: "uri", check: |text| url::Url::parse(text).is_some(), pattern: 1103 },
    NamedFormat { name: "uuid", check: is_uuid, pattern: 72 },
    NamedFormat { name: "byte", check: is_base64, pattern: 84 },
    NamedFormat { name: "date", check: |text| time::is_time(&format!("{text}T00:00:00Z")), pattern: 72 },
    NamedFormat { name: "datetime", check: time::is_time, pattern: 72 },
];

pub(crate) const ROWS: &[Row] = &[
    Row("format.named", Global, "string -> ?format", One, |args| {
        let name = text(args, 0)?;
        let found = NAMED.iter().find(|format| format.name == &**name);
        Ok(found.map_or(Value::NONE, |format| Value::some(Value::Other(Other(Opaque::Format(format))))))
    }),
    Row("validate", Member, "format string -> ?[string]", Name(validate_cost), validate),
    Row("format.dns1123Label", Global, "-> format", One, |_| named(0)),
    Row("format.dns1123Subdomain", Global, "-> format", One, |_| named(1)),
    Row("format.dns1035Label", Global, "-> format", One, |_| named(2)),
    Row("format.qualifiedName", Global, "-> format", One, |_| named(3)),
    Row("format.dns1123LabelPrefix", Global, "-> format", One, |_| named(4)),
    Row("format.dns1123SubdomainPrefix", Global, "-> format", One, |_| named(5)),
    Row("format.dns1035LabelPrefix", Global, "-> format", One, |_| named(6)),
    Row("format.labelValue", Global, "-> format", One, |_| named(7)),
    Row("format.uri", Global, "-> format", One, |_| named(8)),
    Row("format.uuid", Global, "-> format", One, |_| named(9)),
    Row("format.byte", Global, "-> format", One, |_| named(10)),
    Row("format.date", Global, "-> format", One, |_| named(11)),
    Row("format.datetime", Global, "-> format", One, |_| named(12)),
];

// Of the form of all functions.
#[allow(clippy::unnecessary_wraps)]
fn named(index: usize) -> Outcome {
    Ok(Value::Other(Other(Opaque::Format(&NAMED[index]))))
}

fn validate_cost(args: &[Value], _: &Value) -> u64 {
    match (&args[0], args.get(1)) {
        (Value::Other(Other(Opaque::Format(format))), Some(text)) => pattern_cost(text.size(), format.pattern),
        _ => 1,
    }
}

fn validate(args: &[Value]) -> Outcome {
    let Value::Other(Other(Opaque::Format(format))) = &args[0] else { return Err(EvaluationError::NO_OVERLOAD) };
    if (format.check)(text(args, 1)?) {
        return Ok(Value::NONE);
    }
    Ok(Value::some(Value::list(vec![Value::text(format!("this is no {}", format.name))])))
}

/// A prefix may end with a dash.
fn is_dashed(text: &str, first: fn(char) -> bool, prefix: bool) -> bool {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(first)
        && text.chars().all(|c| inside(c) || c == '-')
        && (text.ends_with(inside) || (prefix && text.len() > 1))
}

fn is_label(text: &str, prefix: bool) -> bool {
    text.len() <= 63 && is_dashed(text, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), prefix)
}

fn is_old_label(text: &str, prefix: bool) -> bool {
    text.len() <= 63 && is_dashed(text, |c| c.is_ascii_lowercase(), prefix)
}

fn is_subdomain(text: &str, prefix: bool) -> bool {
    // Kubernetes puts a letter in the place of a last dash.
    let whole = match text.strip_suffix('-') {
        Some(before) if prefix && text.len() > 1 => format!("{before}a"),
        _ => text.to_owned(),
    };
    let part = |part: &str| is_dashed(part, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), false);
    whole.len() <= 253 && whole.split('.').all(part)
}

fn is_name(text: &str) -> bool {
    let end = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63
        && text.starts_with(end)
        && text.ends_with(end)
        && text.chars().all(|c| end(c) || matches!(c, '-' | '_' | '.'))
}

fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_subdomain(domain, false) && is_name(name),
        None => is_name(text),
    }
}

fn is_uuid(text: &str) -> bool {
    let digits = text.replace('-', "");
    let at_right_places =
        text.match_indices('-').all(|(at, _)| matches!(at, 8 | 12 | 13 | 16 | 17 | 18 | 20 | 21 | 22 | 23));
    digits.len() == 32 && at_right_places && digits.bytes().all(|c| c.is_ascii_hexdigit())
}

fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    text.len().is_multiple_of(4)
        && text.len() - body.len() <= 2
        && !text.is_empty()
        && body.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'+' || c == b'/')
}

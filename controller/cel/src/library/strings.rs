//! Texts and patterns. Positions count characters.
//!
//! Patterns are RE2's, as they are for Go; the crate `regex` is near enough to it for all but a few signs.

use std::sync::Arc;

use regex::Regex;

use super::{pattern_cost, rewrite, scan, size, tenth};
use crate::error::EvaluationError;
use crate::functions::Cost::{Id, Name, One};
use crate::functions::Row;
use crate::functions::Style::{Global, Member};
use crate::value::{Opaque, Other, Value};

type Outcome = Result<Value, EvaluationError>;

/// The longest text in bytes that is made of parts. What it costs is known afterwards only.
pub(crate) const MAX_TEXT: usize = 16 << 20;

pub(crate) const ROWS: &[Row] = &[
    Row("contains", Member, "string string -> bool", Id(contains_cost), |args| {
        Ok(Value::Bool(text(args, 0)?.contains(&**text(args, 1)?)))
    }),
    Row("startsWith", Member, "string string -> bool", Id(affix), |args| {
        Ok(Value::Bool(text(args, 0)?.starts_with(&**text(args, 1)?)))
    }),
    Row("endsWith", Member, "string string -> bool", Id(affix), |args| {
        Ok(Value::Bool(text(args, 0)?.ends_with(&**text(args, 1)?)))
    }),
    Row("matches", Global, "string string -> bool", Id(matched), matches),
    Row("matches", Member, "string string -> bool", Id(matched), matches),
    Row("find", Member, "string string -> string", Name(matched), |args| {
        let found = pattern(args)?.find(text(args, 0)?).map_or("", |found| found.as_str());
        Ok(Value::text(found))
    }),
    Row("findAll", Member, "string string -> [string]", Name(matched), |args| find_all(args, -1)),
    Row("findAll", Member, "string string int -> [string]", Name(matched), |args| find_all(args, int(args, 2)?)),
    Row("charAt", Member, "string int -> string", One, |args| {
        let (text, at) = (text(args, 0)?, int(args, 1)?);
        let found = usize::try_from(at).ok().filter(|at| *at <= text.chars().count());
        let at = found.ok_or_else(|| out_of_range(at))?;
        Ok(Value::String(text.chars().skip(at).take(1).collect::<String>().into()))
    }),
    Row("indexOf", Member, "string string -> int", Name(floor), |args| index_of(args, 0)),
    Row("indexOf", Member, "string string int -> int", Name(floor), |args| index_of(args, int(args, 2)?)),
    Row("lastIndexOf", Member, "string string -> int", Name(floor), |args| last_index_of(args, None)),
    Row("lastIndexOf", Member, "string string int -> int", Name(floor), |args| {
        last_index_of(args, Some(int(args, 2)?))
    }),
    Row("lowerAscii", Member, "string -> string", Name(scan), |args| {
        Ok(Value::text(text(args, 0)?.to_ascii_lowercase()))
    }),
    Row("upperAscii", Member, "string -> string", Name(scan), |args| {
        Ok(Value::text(text(args, 0)?.to_ascii_uppercase()))
    }),
    Row("trim", Member, "string -> string", Name(scan), |args| {
        // What Go takes for blanks.
        Ok(Value::text(text(args, 0)?.trim_matches(|c: char| c.is_whitespace() || c == '\u{85}')))
    }),
    Row("replace", Member, "string string string -> string", Name(rewrite), |args| replace(args, -1)),
    Row("replace", Member, "string string string int -> string", Name(rewrite), |args| replace(args, int(args, 3)?)),
    Row("split", Member, "string string -> [string]", Name(rewrite), |args| split(args, -1)),
    Row("split", Member, "string string int -> [string]", Name(rewrite), |args| split(args, int(args, 2)?)),
    Row("substring", Member, "string int -> string", Name(scan), |args| {
        let end = i64::try_from(text(args, 0)?.chars().count()).unwrap_or(i64::MAX);
        let start = int(args, 1)?;
        if start > end { Err(out_of_range(start)) } else { substring(args, start, end) }
    }),
    Row("substring", Member, "string int int -> string", Name(scan), |args| {
        substring(args, int(args, 1)?, int(args, 2)?)
    }),
    Row("join", Member, "[string] -> string", Name(joined), |args| join(args, "")),
    Row("join", Member, "[string] string -> string", Name(joined), |args| join(args, text(args, 1)?)),
    Row("strings.quote", Global, "string -> string", Id(scan), |args| {
        let mut quoted = String::from("\"");
        for c in text(args, 0)?.chars() {
            match escaped(c) {
                Some(escape) => quoted.push_str(escape),
                None => quoted.push(c),
            }
        }
        quoted.push('"');
        Ok(Value::text(quoted))
    }),
];

/// What stands for a character inside of quotes, if it can't itself.
pub(crate) fn escaped(c: char) -> Option<&'static str> {
    Some(match c {
        '\u{7}' => "\\a",
        '\u{8}' => "\\b",
        '\u{c}' => "\\f",
        '\n' => "\\n",
        '\r' => "\\r",
        '\t' => "\\t",
        '\u{b}' => "\\v",
        '\\' => "\\\\",
        '"' => "\\\"",
        _ => return None,
    })
}

fn contains_cost(args: &[Value], _: &Value) -> u64 {
    tenth(size(args, 0)) * tenth(size(args, 1))
}

fn affix(args: &[Value], _: &Value) -> u64 {
    tenth(size(args, 1))
}

fn matched(args: &[Value], _: &Value) -> u64 {
    pattern_cost(size(args, 0), size(args, 1))
}

fn joined(_: &[Value], result: &Value) -> u64 {
    tenth(result.size() * 2)
}

fn floor(args: &[Value], _: &Value) -> u64 {
    args[0].as_text().map_or(1, |text| u64::try_from(text.len() / 10).unwrap_or(u64::MAX))
}

pub(crate) fn text(args: &[Value], at: usize) -> Result<&Arc<str>, EvaluationError> {
    args.get(at).and_then(Value::as_text).ok_or(EvaluationError::NO_OVERLOAD)
}

pub(crate) fn int(args: &[Value], at: usize) -> Result<i64, EvaluationError> {
    match args.get(at) {
        Some(Value::Int(value)) => Ok(*value),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

fn out_of_range(at: i64) -> EvaluationError {
    EvaluationError::text(format!("index out of range: {at}"))
}

/// Compiled before, if the pattern is a constant.
fn pattern(args: &[Value]) -> Result<Arc<Regex>, EvaluationError> {
    match args.get(1) {
        Some(Value::Other(Other(Opaque::Pattern(_, pattern)))) => Ok(pattern.clone()),
        _ => compiled(text(args, 1)?),
    }
}

/// A pattern of RE2 for the crate `regex`: `\w` and its like are about ASCII only, a bracket or two signs in a class are just
/// that, and nothing is repeated more than a thousand times.
fn translated(pattern: &str) -> Option<String> {
    let (mut out, mut rest, mut in_class) = (String::new(), pattern.chars(), false);
    // How many signs of a repetition came before: `a**` isn't one, `a*?` is.
    let mut repeated = 0;
    while let Some(c) = rest.next() {
        let is_repetition = !in_class && (matches!(c, '*' | '+' | '?') || (c == '{' && is_count(rest.as_str())));
        if is_repetition && (repeated > 1 || (repeated == 1 && c != '?')) {
            return None;
        }
        repeated = if is_repetition { repeated + 1 } else { 0 };
        match c {
            '\\' => match rest.next()? {
                'w' => out.push_str(if in_class { "0-9A-Za-z_" } else { "[0-9A-Za-z_]" }),
                'd' => out.push_str(if in_class { "0-9" } else { "[0-9]" }),
                's' => out.push_str(if in_class { "\\t\\n\\f\\r " } else { "[\\t\\n\\f\\r ]" }),
                'W' => out.push_str("[^0-9A-Za-z_]"),
                'D' => out.push_str("[^0-9]"),
                'S' => out.push_str("[^\\t\\n\\f\\r ]"),
                'b' if !in_class => out.push_str("(?-u:\\b)"),
                '<' => out.push('<'),
                '>' => out.push('>'),
                'Q' => {
                    let (quoted, behind) = rest.as_str().split_once("\\E").unwrap_or((rest.as_str(), ""));
                    out.push_str(&regex::escape(quoted));
                    rest = behind.chars();
                }
                // With what is in braces, if anything.
                kind @ ('p' | 'P' | 'x') => {
                    let behind = rest.as_str();
                    let braces =
                        if behind.starts_with('{') { behind.find('}').map_or(behind.len(), |end| end + 1) } else { 0 };
                    out.extend(['\\', kind]);
                    out.push_str(&behind[..braces]);
                    rest = behind[braces..].chars();
                }
                other => out.extend(['\\', other]),
            },
            '[' if in_class && !rest.as_str().starts_with(':') => out.push_str("\\["),
            '[' if in_class => {
                let (name, _) = rest.as_str().split_once(":]")?;
                let length = name.len() + 2;
                out.push('[');
                out.push_str(&rest.as_str()[..length]);
                rest = rest.as_str()[length..].chars();
            }
            '[' => {
                in_class = true;
                out.push('[');
                if let Some(behind) = rest.as_str().strip_prefix('^') {
                    out.push('^');
                    rest = behind.chars();
                }
                // The first one is no end.
                if let Some(behind) = rest.as_str().strip_prefix(']') {
                    out.push_str("\\]");
                    rest = behind.chars();
                }
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => out.extend(['\\', c]),
            '{' if is_repetition => {
                let counts = rest.as_str().split('}').next().unwrap_or_default();
                if counts
                    .split(',')
                    .any(|count| !count.is_empty() && count.parse().is_ok_and(|count: u32| count > 1000))
                {
                    return None;
                }
                out.push('{');
            }
            // Anything else in braces is just text.
            '{' if !in_class => out.push_str("\\{"),
            c => out.push(c),
        }
    }
    Some(out)
}

/// Whether a text begins with what makes a brace in front of it a repetition.
fn is_count(text: &str) -> bool {
    let counts = text.split_once('}').map_or("", |(counts, _)| counts);
    let is_number = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
    let (low, high) = counts.split_once(',').unwrap_or((counts, ""));
    !low.is_empty() && is_number(low) && is_number(high)
}

/// A pattern, compiled.
pub(crate) fn compiled(pattern: &str) -> Result<Arc<Regex>, EvaluationError> {
    let translated = translated(pattern)
        .ok_or(EvaluationError::fixed("no pattern: a repetition is too large, or of a repetition"))?;
    Regex::new(&translated).map(Arc::new).map_err(|error| EvaluationError::text(format!("no pattern: {error}")))
}

fn matches(args: &[Value]) -> Outcome {
    Ok(Value::Bool(pattern(args)?.is_match(text(args, 0)?)))
}

fn find_all(args: &[Value], limit: i64) -> Outcome {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = pattern(args)?.find_iter(text(args, 0)?).take(limit).map(|found| Value::text(found.as_str())).collect();
    Ok(Value::list(found))
}

fn chars(args: &[Value], at: usize) -> Result<Vec<char>, EvaluationError> {
    Ok(text(args, at)?.chars().collect())
}

fn index_of(args: &[Value], from: i64) -> Outcome {
    let (text, wanted) = (chars(args, 0)?, chars(args, 1)?);
    let start = usize::try_from(from).map_err(|_| out_of_range(from))?;
    if wanted.is_empty() {
        return Ok(Value::size_of(start.min(text.len())));
    }
    let found = (start..text.len()).find(|at| text[*at..].starts_with(&wanted));
    Ok(found.map_or(Value::Int(-1), Value::size_of))
}

fn last_index_of(args: &[Value], from: Option<i64>) -> Outcome {
    let (text, wanted) = (chars(args, 0)?, chars(args, 1)?);
    let from = match from {
        Some(from) => usize::try_from(from).map_err(|_| out_of_range(from))?,
        None if wanted.is_empty() => text.len(),
        None if text.len() < wanted.len() => return Ok(Value::Int(-1)),
        None => text.len() - 1,
    };
    if wanted.is_empty() {
        return Ok(Value::size_of(from.min(text.len())));
    }
    if from >= text.len() {
        return Ok(Value::Int(-1));
    }
    let found = (0..=from).rev().find(|at| text[*at..].starts_with(&wanted));
    Ok(found.map_or(Value::Int(-1), Value::size_of))
}

fn replace(args: &[Value], limit: i64) -> Outcome {
    let (whole, old, new) = (text(args, 0)?, text(args, 1)?, text(args, 2)?);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if limit.min(whole.len() + 1).saturating_mul(new.len()) > MAX_TEXT {
        return Err(EvaluationError::TOO_LARGE);
    }
    Ok(Value::text(whole.replacen(&**old, new, limit)))
}

fn split(args: &[Value], limit: i64) -> Outcome {
    let (whole, separator) = (text(args, 0)?, text(args, 1)?);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if limit == 0 {
        return Ok(Value::list(Vec::new()));
    }
    let parts = if separator.is_empty() {
        let mut rest: &str = whole;
        let mut parts = Vec::new();
        while parts.len() + 1 < limit
            && let Some(c) = rest.chars().next()
        {
            parts.push(Value::text(&rest[..c.len_utf8()]));
            rest = &rest[c.len_utf8()..];
        }
        if !rest.is_empty() {
            parts.push(Value::text(rest));
        }
        parts
    } else {
        whole.splitn(limit, &**separator).map(Value::text).collect()
    };
    Ok(Value::list(parts))
}

fn substring(args: &[Value], start: i64, end: i64) -> Outcome {
    let text = chars(args, 0)?;
    if start > end {
        return Err(EvaluationError::text(format!("invalid substring range: {start} to {end}")));
    }
    let position = |at: i64| usize::try_from(at).ok().filter(|at| *at <= text.len()).ok_or_else(|| out_of_range(at));
    let part = &text[position(start)?..position(end)?];
    Ok(Value::String(part.iter().collect::<String>().into()))
}

fn join(args: &[Value], separator: &str) -> Outcome {
    let Some(Value::List(values)) = args.first() else { return Err(EvaluationError::NO_OVERLOAD) };
    let texts: Option<Vec<&str>> = values.iter().map(|value| value.as_text().map(|text| &**text)).collect();
    let texts = texts.ok_or(EvaluationError::fixed("join: an element is no string"))?;
    let length = texts.iter().fold(0, |sum: usize, text| sum.saturating_add(text.len() + separator.len()));
    if length > MAX_TEXT { Err(EvaluationError::TOO_LARGE) } else { Ok(Value::text(texts.join(separator))) }
}

//! URLs, as far as a selector could ask about one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::scan;
use super::strings::text;
use crate::error::EvaluationError;
use crate::functions::Cost::{Name, One};
use crate::functions::Row;
use crate::functions::Style::{Global, Member};
use crate::value::{Map, Opaque, Other, Value};

/// Taken apart; all as Go has it after parsing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    scheme: String,
    host: String,
    path: String,
    query: String,
    rest: String,
}

pub(crate) const ROWS: &[Row] = &[
    Row("url", Global, "string -> url", Name(scan), |args| {
        let url = Url::parse(text(args, 0)?).ok_or(EvaluationError::fixed("this is no URL"))?;
        Ok(Value::Other(Other(Opaque::Url(Arc::new(url)))))
    }),
    Row("isURL", Global, "string -> bool", One, |args| Ok(Value::Bool(Url::parse(text(args, 0)?).is_some()))),
    Row("getScheme", Member, "url -> string", One, |args| Ok(Value::text(&url(args)?.scheme))),
    Row("getHost", Member, "url -> string", One, |args| Ok(Value::text(&url(args)?.host))),
    Row("getHostname", Member, "url -> string", One, |args| Ok(Value::text(url(args)?.host_and_port().0))),
    Row("getPort", Member, "url -> string", One, |args| Ok(Value::text(url(args)?.host_and_port().1))),
    Row("getEscapedPath", Member, "url -> string", One, |args| Ok(Value::text(&url(args)?.path))),
    Row("getQuery", Member, "url -> {string:[string]}", One, |args| Ok(Value::map(url(args)?.query()))),
];

fn url(args: &[Value]) -> Result<&Url, EvaluationError> {
    match args.first() {
        Some(Value::Other(Other(Opaque::Url(url)))) => Ok(url),
        _ => Err(EvaluationError::NO_OVERLOAD),
    }
}

impl Url {
    /// Absolute ones only: with a scheme, or a path from the root.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || text.bytes().any(|c| c < 0x20 || c == 0x7f) {
            return None;
        }
        let (before, fragment) = text.split_once('#').map_or((text, None), |(before, behind)| (before, Some(behind)));
        let scheme_end = before.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '+' | '-' | '.'));
        let (scheme, rest) = match scheme_end {
            Some(0) if before.starts_with(':') => return None,
            Some(end) if before[end..].starts_with(':') => {
                if !before.starts_with(|c: char| c.is_ascii_alphabetic()) {
                    return None;
                }
                (before[..end].to_ascii_lowercase(), &before[end + 1..])
            }
            _ => (String::new(), before),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !rest.starts_with('/') {
            // Opaque, such as mailto:x; without a scheme it is relative.
            return (!scheme.is_empty()).then(|| Self {
                scheme,
                host: String::new(),
                path: String::new(),
                query: query.to_owned(),
                rest: rest.to_owned(),
            });
        }
        let (authority, path) = match rest.strip_prefix("//") {
            Some(behind) if !scheme.is_empty() || !behind.starts_with('/') => {
                behind.split_at(behind.find('/').unwrap_or(behind.len()))
            }
            _ => ("", rest),
        };
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        if !is_host(host) || !is_escaped(path) {
            return None;
        }
        let rest = format!("{user}#{}", fragment.unwrap_or_default());
        Some(Self { scheme, host: host.to_owned(), path: escaped(path), query: query.to_owned(), rest })
    }

    fn host_and_port(&self) -> (&str, &str) {
        let (host, port) = match self.host.rfind(':') {
            Some(at) if !self.host[at..].contains(']') => (&self.host[..at], &self.host[at + 1..]),
            _ => (self.host.as_str(), ""),
        };
        (host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), port)
    }

    fn query(&self) -> Map {
        let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let (Some(key), Some(value)) = (unescaped(key), unescaped(value)) {
                all.entry(key).or_default().push(Value::text(value));
            }
        }
        Map::of_texts(all.into_iter().map(|(key, values)| (key.into(), Value::list(values))), None)
    }
}

fn is_host(host: &str) -> bool {
    let (name, port) = if let Some(behind) = host.strip_prefix('[') {
        let Some((name, port)) = behind.split_once(']') else { return false };
        (name, port)
    } else {
        host.find(':').map_or((host, ""), |at| host.split_at(at))
    };
    let is_port =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|c| c.is_ascii_digit()));
    is_port && is_escaped(name) && !name.contains([' ', '<', '>', '"', '\\', '^', '`', '{', '|', '}'])
}

/// Every percent sign has two digits behind it.
fn is_escaped(text: &str) -> bool {
    text.split('%').skip(1).all(|part| part.len() >= 2 && part.bytes().take(2).all(|c| c.is_ascii_hexdigit()))
}

fn escaped(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@%!'()*[]".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.extend([format!("%{byte:02X}")]);
        }
    }
    out
}

fn unescaped(text: &str) -> Option<String> {
    if !is_escaped(text) {
        return None;
    }
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

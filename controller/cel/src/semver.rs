//! Semantic versions as the Go library that Kubernetes uses reads and orders them. What is built makes no difference.

use std::cmp::Ordering;
use std::fmt;

/// A version such as `1.2.3-rc.1+build`.
#[derive(Debug, Clone)]
pub struct Version {
    pub(crate) numbers: [u64; 3],
    pre: Vec<Part>,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64),
    Text(String),
}

fn number(text: &str) -> Option<u64> {
    let leading_zero = text.len() > 1 && text.starts_with('0');
    (!leading_zero && text.bytes().all(|c| c.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
}

impl Version {
    /// None if the text is no version.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let (major, minor, rest) = (parts.next()?, parts.next()?, parts.next()?);
        let (rest, build) = rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
        let (patch, pre) = rest.split_once('-').map_or((rest, None), |(patch, pre)| (patch, Some(pre)));
        let part = |text: &str| {
            if text.bytes().all(|c| c.is_ascii_digit()) {
                number(text).map(Part::Number)
            } else {
                is_word(text).then(|| Part::Text(text.to_owned()))
            }
        };
        let pre = pre.map_or(Some(Vec::new()), |pre| pre.split('.').map(part).collect())?;
        if build.is_some_and(|build| !build.split('.').all(is_word)) {
            return None;
        }
        Some(Self { numbers: [number(major)?, number(minor)?, number(patch)?], pre, text: text.to_owned() })
    }

    /// The same after the usual repairs: a `v` in front, leading zeros, and numbers that aren't there.
    pub(crate) fn parse_loosely(text: &str) -> Option<Self> {
        let mut parts: Vec<String> = text.strip_prefix('v').unwrap_or(text).splitn(3, '.').map(str::to_owned).collect();
        for part in &mut parts {
            if part.len() > 1 {
                let rest = part.trim_start_matches('0');
                *part =
                    if rest.starts_with(|c: char| c.is_ascii_digit()) { rest.to_owned() } else { format!("0{rest}") };
            }
        }
        if parts.len() < 3 && parts.last().is_some_and(|part| part.contains(['+', '-'])) {
            return None;
        }
        parts.resize(3, "0".to_owned());
        Self::parse(&parts.join("."))
    }

    /// Which of two is newer.
    pub fn precedence(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.pre.cmp(&other.pre),
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

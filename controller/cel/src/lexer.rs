//! An expression's text in tokens.

use crate::error::CompileError;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    Int(i64),
    /// 2⁶³, which is an integer behind a minus only.
    MinInt,
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
    Ident(String),
    /// A sign or one of the words `in`, `true`, `false` and `null`.
    Sign(&'static str),
    End,
}

/// Longer ones first.
const SIGNS: [&str; 25] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*",
    "/", "%", "=",
];
const WORDS: [&str; 4] = ["in", "true", "false", "null"];

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

/// All tokens, each with the byte at which it begins.
pub(crate) fn tokens(text: &str) -> Result<Vec<(Token, usize)>, CompileError> {
    let mut lexer = Lexer { text, at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blanks();
        let at = lexer.at;
        let token = lexer.token()?;
        let is_end = token == Token::End;
        tokens.push((token, at));
        if is_end {
            return Ok(tokens);
        }
    }
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn error(&self, what: impl Into<String>) -> CompileError {
        CompileError::Syntax { at: self.at, what: what.into() }
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest();
            let blanks = rest.len() - rest.trim_start_matches(['\t', ' ', '\r', '\n', '\u{c}']).len();
            let comment = if rest.starts_with("//") { rest.find('\n').unwrap_or(rest.len()) } else { 0 };
            if blanks + comment == 0 {
                return;
            }
            self.at += blanks.max(comment);
        }
    }

    fn token(&mut self) -> Result<Token, CompileError> {
        let rest = self.rest();
        let Some(first) = rest.bytes().next() else { return Ok(Token::End) };
        if first.is_ascii_digit() || (first == b'.' && rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit)) {
            return self.number();
        }
        if let Some(token) = self.quoted()? {
            return Ok(token);
        }
        let rest = self.rest();
        if first.is_ascii_alphabetic() || first == b'_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let name = &rest[..end];
            let token = WORDS
                .iter()
                .find(|word| **word == name)
                .map_or_else(|| Token::Ident(name.to_owned()), |word| Token::Sign(word));
            self.at += end;
            return Ok(token);
        }
        match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            Some(sign) => {
                self.at += sign.len();
                Ok(Token::Sign(sign))
            }
            None => Err(self.error(format!("{:?} has no meaning", rest.chars().next().unwrap_or_default()))),
        }
    }

    fn number(&mut self) -> Result<Token, CompileError> {
        let rest = self.rest().to_owned();
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        if let Some(hex) = rest.strip_prefix("0x") {
            let length = hex.bytes().take_while(u8::is_ascii_hexdigit).count();
            if length > 0 {
                self.at += 2 + length;
                return self.integer(&hex[..length], 16, &hex[length..]);
            }
        }
        let whole = digits(&rest);
        let mut end = whole;
        let mut is_double = false;
        if rest[end..].starts_with('.') {
            let fraction = digits(&rest[end + 1..]);
            if fraction > 0 {
                end += 1 + fraction;
                is_double = true;
            }
        }
        if rest[end..].starts_with(['e', 'E']) {
            let sign = usize::from(rest[end + 1..].starts_with(['+', '-']));
            let exponent = digits(&rest[end + 1 + sign..]);
            if exponent > 0 {
                end += 1 + sign + exponent;
                is_double = true;
            }
        }
        self.at += end;
        if is_double {
            let value: f64 = rest[..end].parse().map_err(|_| self.error("this is no number"))?;
            return if value.is_finite() {
                Ok(Token::Double(value))
            } else {
                Err(self.error("this number is too large"))
            };
        }
        self.integer(&rest[..whole], 10, &rest[whole..])
    }

    fn integer(&mut self, digits: &str, radix: u32, behind: &str) -> Result<Token, CompileError> {
        let value = u64::from_str_radix(digits, radix).map_err(|_| self.error("this number is too large"))?;
        if behind.starts_with(['u', 'U']) {
            self.at += 1;
            return Ok(Token::Uint(value));
        }
        match i64::try_from(value) {
            Ok(value) => Ok(Token::Int(value)),
            Err(_) if value == 1 << 63 => Ok(Token::MinInt),
            Err(_) => Err(self.error("this number is too large")),
        }
    }

    /// A string or bytes, if one begins here.
    fn quoted(&mut self) -> Result<Option<Token>, CompileError> {
        let rest = self.rest();
        let prefix = rest.bytes().take_while(|c| b"bBrR".contains(c)).count();
        let (is_bytes, is_raw) = match rest[..prefix].to_ascii_lowercase().as_str() {
            "" => (false, false),
            "b" => (true, false),
            "r" => (false, true),
            "br" => (true, true),
            _ => return Ok(None),
        };
        let Some(quote) = ["\"\"\"", "'''", "\"", "'"].iter().find(|quote| rest[prefix..].starts_with(**quote)) else {
            return Ok(None);
        };
        let begin = prefix + quote.len();
        let mut end = begin;
        loop {
            let rest = &rest[end..];
            match rest.chars().next() {
                _ if rest.starts_with(quote) => break,
                Some('\n' | '\r') if quote.len() == 1 => return Err(self.error("this string has no end")),
                Some('\\') if !is_raw => end += 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
                Some(c) => end += c.len_utf8(),
                None => return Err(self.error("this string has no end")),
            }
        }
        let body = rest[begin..end].to_owned();
        let bytes = if is_raw { body.into_bytes() } else { self.unescaped(&body, is_bytes)? };
        self.at += end + quote.len();
        if is_bytes {
            return Ok(Some(Token::Bytes(bytes)));
        }
        String::from_utf8(bytes)
            .map(|text| Some(Token::String(text)))
            .map_err(|_| self.error("this string isn't UTF-8"))
    }

    fn unescaped(&self, body: &str, is_bytes: bool) -> Result<Vec<u8>, CompileError> {
        let mut bytes = Vec::with_capacity(body.len());
        let mut rest = body;
        let bad = || self.error("this string has an escape that isn't one");
        while let Some((before, behind)) = rest.split_once('\\') {
            bytes.extend_from_slice(before.as_bytes());
            let kind = behind.bytes().next().ok_or_else(bad)?;
            let simple = match kind {
                b'a' => Some(7),
                b'b' => Some(8),
                b'f' => Some(12),
                b'n' => Some(b'\n'),
                b'r' => Some(b'\r'),
                b't' => Some(b'\t'),
                b'v' => Some(11),
                b'"' | b'\'' | b'\\' | b'?' | b'`' => Some(kind),
                _ => None,
            };
            if let Some(byte) = simple {
                bytes.push(byte);
                rest = &behind[1..];
                continue;
            }
            let (skip, length, radix) = match kind {
                b'x' | b'X' => (1, 2, 16),
                b'u' if !is_bytes => (1, 4, 16),
                b'U' if !is_bytes => (1, 8, 16),
                b'0'..=b'3' => (0, 3, 8),
                _ => return Err(bad()),
            };
            let digits = behind.get(skip..skip + length).filter(|digits| digits.chars().all(|c| c.is_digit(radix)));
            let code = u32::from_str_radix(digits.ok_or_else(bad)?, radix).map_err(|_| bad())?;
            if is_bytes {
                bytes.push(u8::try_from(code).map_err(|_| bad())?);
            } else {
                let c = char::from_u32(code).ok_or_else(bad)?;
                bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
            rest = &behind[skip + length..];
        }
        bytes.extend_from_slice(rest.as_bytes());
        Ok(bytes)
    }
}

//! Parses JSON documents. It accepts what Go's encoding/json accepts, and it does not recurse.

use std::borrow::Cow;
use std::iter;

use super::{Json, Number};
use crate::error::{Code, Error, Result};

/// Arrays and objects below this level become `Json::Raw`. All other code recurses over a `Json`, and the stack of a
/// thread may have only 64 KiB.
pub const LEVELS_MAX: usize = 64;

/// Go refuses documents with more levels.
const DEPTH_MAX: usize = 10_000;

const END: &str = "unexpected end of JSON input";

/// The error is the reason; the position of the parser is the place.
type Parsed<T> = Result<T, &'static str>;

pub fn parse(bytes: &[u8]) -> Result<Json> {
    let text = decode(bytes);
    let mut parser = Parser { text: &text, at: 0, open: Vec::new() };
    parser.document().map_err(|reason| parser.error(reason))
}

/// The same. The error is the place in bytes of the text that `decode` gives, and the reason.
#[cfg(feature = "tool")]
pub fn parse_with_place(bytes: &[u8]) -> Result<Json, (usize, &'static str)> {
    let text = decode(bytes);
    let mut parser = Parser { text: &text, at: 0, open: Vec::new() };
    parser.document().map_err(|reason| (parser.at, reason))
}

/// The text with U+FFFD in the place of each byte that is not part of valid UTF-8.
pub fn decode(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(bytes) {
        return text.into();
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(iter::repeat_n(char::REPLACEMENT_CHARACTER, chunk.invalid().len()));
    }
    text.into()
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// The arrays and objects around the position, the outermost first.
    open: Vec<Open>,
}

/// An unfinished array or object.
enum Open {
    Array(Vec<Json>),
    /// The last entry is `Null` until its value is known.
    Object(Vec<(String, Json)>),
    /// Below `LEVELS_MAX`: the start of the text, and the bracket that ends it.
    Raw {
        start: usize,
        close: u8,
    },
}

impl Open {
    fn close(&self) -> u8 {
        match self {
            Self::Array(_) => b']',
            Self::Object(_) => b'}',
            Self::Raw { close, .. } => *close,
        }
    }

    fn add(&mut self, value: Json) {
        match self {
            Self::Array(values) => values.push(value),
            Self::Object(entries) => {
                if let Some((_, last)) = entries.last_mut() {
                    *last = value;
                }
            }
            Self::Raw { .. } => {}
        }
    }
}

impl Parser<'_> {
    fn document(&mut self) -> Parsed<Json> {
        loop {
            if let Some(value) = self.begin()?
                && let Some(document) = self.add(value)?
            {
                return Ok(document);
            }
        }
    }

    /// The value at the position, or None after the start of an array or object that is not empty.
    fn begin(&mut self) -> Parsed<Option<Json>> {
        let close = match self.next()? {
            b'[' => b']',
            b'{' => b'}',
            first => return self.scalar(first).map(Some),
        };
        let (start, depth) = (self.at, self.open.len());
        if depth >= DEPTH_MAX {
            return Err("exceeded max depth");
        }
        self.at += 1;
        self.open.push(match close {
            _ if depth >= LEVELS_MAX => Open::Raw { start, close },
            b']' => Open::Array(Vec::new()),
            _ => Open::Object(Vec::new()),
        });
        if self.next()? == close {
            self.at += 1;
            return Ok(Some(self.end()));
        }
        if close == b'}' {
            self.key()?;
        }
        Ok(None)
    }

    /// Adds a value to the array or object around it. If that ends here, adds it to the next one, and so on. The result
    /// is the document if the document ends here.
    fn add(&mut self, mut value: Json) -> Parsed<Option<Json>> {
        while let Some(open) = self.open.last_mut() {
            open.add(value);
            let close = open.close();
            match self.next()? {
                b',' => {
                    self.at += 1;
                    if close == b'}' {
                        self.key()?;
                    }
                    return Ok(None);
                }
                byte if byte == close => {
                    self.at += 1;
                    value = self.end();
                }
                _ if close == b'}' => return Err("expected `,` or `}`"),
                _ => return Err("expected `,` or `]`"),
            }
        }
        match self.next() {
            Ok(_) => Err("trailing characters"),
            Err(_) => Ok(Some(value)),
        }
    }

    /// The array or object that ends before the position.
    fn end(&mut self) -> Json {
        match self.open.pop() {
            Some(Open::Array(values)) => Json::Array(values),
            Some(Open::Object(entries)) => Json::Object(entries),
            // A raw value inside another one is part of its text.
            Some(Open::Raw { start, .. }) if self.open.len() == LEVELS_MAX => {
                Json::Raw(compacted(&self.text[start..self.at]))
            }
            Some(Open::Raw { .. }) | None => Json::Null,
        }
    }

    /// Reads a key and its colon.
    fn key(&mut self) -> Parsed<()> {
        if self.next()? != b'"' {
            return Err("key must be a string");
        }
        let key = self.string()?;
        if self.next()? != b':' {
            return Err("expected `:`");
        }
        self.at += 1;
        if let Some(Open::Object(entries)) = self.open.last_mut() {
            entries.push((key, Json::Null));
        }
        Ok(())
    }

    fn scalar(&mut self, first: u8) -> Parsed<Json> {
        let (word, value) = match first {
            b'"' => return self.string().map(Json::String),
            b'-' | b'0'..=b'9' => return self.number().map(Json::Number),
            b't' => ("true", Json::Bool(true)),
            b'f' => ("false", Json::Bool(false)),
            b'n' => ("null", Json::Null),
            _ => return Err("expected value"),
        };
        if !self.text[self.at..].starts_with(word) {
            return Err("expected value");
        }
        self.at += word.len();
        Ok(value)
    }

    fn number(&mut self) -> Parsed<Number> {
        let start = self.at;
        self.skip(|byte| byte == b'-');
        if !self.skip(|byte| byte == b'0') {
            self.digits()?;
        }
        if self.skip(|byte| byte == b'.') {
            self.digits()?;
        }
        if self.skip(|byte| matches!(byte, b'e' | b'E')) {
            self.skip(|byte| matches!(byte, b'+' | b'-'));
            self.digits()?;
        }
        Ok(Number::new(&self.text[start..self.at]))
    }

    /// Skips one digit or more.
    fn digits(&mut self) -> Parsed<()> {
        let start = self.at;
        while self.skip(|byte| byte.is_ascii_digit()) {}
        if self.at == start { Err("invalid number") } else { Ok(()) }
    }

    /// Reads a string; the position is at its first quote.
    fn string(&mut self) -> Parsed<String> {
        self.at += 1;
        let mut unescaped = String::new();
        loop {
            let rest = &self.text[self.at..];
            let is_special = |byte| matches!(byte, b'"' | b'\\' | 0..=0x1f);
            let length = rest.bytes().position(is_special).unwrap_or(rest.len());
            let plain = &rest[..length];
            self.at += length;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    unescaped.push_str(plain);
                    return Ok(unescaped);
                }
                Some(b'\\') => {
                    self.at += 1;
                    unescaped.push_str(plain);
                    unescaped.push(self.escape()?);
                }
                Some(_) => return Err("control character in a string"),
                None => return Err(END),
            }
        }
    }

    /// Reads an escape; the position is behind its backslash.
    fn escape(&mut self) -> Parsed<char> {
        let c = match self.peek().ok_or(END)? {
            byte @ (b'"' | b'\\' | b'/') => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode(),
            _ => return Err("invalid escape"),
        };
        self.at += 1;
        Ok(c)
    }

    /// Reads `u` and four hexadecimal digits. A pair of surrogates is one character; Go reads any other surrogate as U+FFFD.
    fn unicode(&mut self) -> Parsed<char> {
        let first = self.code_unit()?;
        let after_first = self.at;
        if self.text[self.at..].starts_with("\\u") {
            self.at += 1;
            let pair = [first, self.code_unit()?];
            if let Some(Ok(c)) = char::decode_utf16(pair).next()
                && c.len_utf16() == 2
            {
                return Ok(c);
            }
            self.at = after_first;
        }
        Ok(char::from_u32(first.into()).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    /// Reads `u` and four hexadecimal digits as a number.
    fn code_unit(&mut self) -> Parsed<u16> {
        self.at += 1;
        let mut value = 0_u32;
        for _ in 0..4 {
            let digit = char::from(self.peek().ok_or(END)?).to_digit(16).ok_or("invalid escape")?;
            value = value << 4 | digit;
            self.at += 1;
        }
        u16::try_from(value).map_err(|_| "invalid escape")
    }

    /// Skips the next byte if it matches.
    fn skip(&mut self, matches: impl Fn(u8) -> bool) -> bool {
        let found = self.peek().is_some_and(matches);
        self.at += usize::from(found);
        found
    }

    /// Skips white space; the result is the byte at the position.
    fn next(&mut self) -> Parsed<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        match rest.iter().position(|byte| !is_white(*byte)) {
            Some(length) => {
                self.at += length;
                Ok(rest[length])
            }
            None => {
                self.at = self.text.len();
                Err(END)
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[cold]
    fn error(&self, reason: &str) -> Error {
        let text = self.text.as_bytes();
        let lines = || text[..self.at].split(|byte| *byte == b'\n');
        // The column counts the byte at the position, too, unless the document ends before it.
        let before = lines().next_back().map_or(0, <[u8]>::len);
        let column = before + usize::from(self.at < text.len());
        Error::new(Code::DECODE, "cannot read JSON")
            .with_details(format_args!("{reason} at line {} column {column}", lines().count()))
    }
}

fn is_white(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// A valid document without the white space between its tokens.
fn compacted(text: &str) -> Box<str> {
    let (mut in_string, mut is_escaped) = (false, false);
    let is_kept = |c: &char| {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
        in_string || !matches!(c, ' ' | '\t' | '\n' | '\r')
    };
    text.chars().filter(is_kept).collect()
}

#[cfg(test)]
mod tests;

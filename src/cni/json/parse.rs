//! Parses JSON documents with serde_json, and accepts what Go's encoding/json accepts and serde_json does not: invalid UTF-8,
//! lone surrogates, and repeated keys, which are all kept.
//!
//! One pass over the whole text finds every syntax error without recursion. Then each value is parsed from its part of the
//! text.

use std::borrow::Cow;
use std::fmt;
use std::iter;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::from_str;
use serde_json::value::RawValue;

use super::{Json, Number};
use crate::error::{Code, Error, Result};

/// The maximum depth of arrays and objects. Deeper ones become `Json::Raw`, because all other code recurses over a `Json`.
pub const LEVELS_MAX: usize = 64;

pub fn parse(bytes: &[u8]) -> Result<Json> {
    document(&decode(bytes)).map_err(|error| {
        let is_empty = bytes.iter().all(u8::is_ascii_whitespace);
        let reason = if is_empty { "it is empty".into() } else { error.to_string() };
        Error::new(Code::DECODE, "cannot read JSON").with_details(reason)
    })
}

/// Parses a document of valid UTF-8 without lone surrogates.
pub fn document(text: &str) -> serde_json::Result<Json> {
    value(from_str(text)?, 0)
}

/// The text of a document. Each byte that is not part of valid UTF-8, and each escaped lone surrogate, is replaced by U+FFFD.
pub fn decode(bytes: &[u8]) -> Cow<'_, str> {
    let mut text: Cow<'_, str> = match str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => replaced(bytes).into(),
    };
    for at in lone_surrogates(&text) {
        text.to_mut().replace_range(at..at + SURROGATE.len(), "\\ufffd");
    }
    text
}

fn replaced(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(iter::repeat_n(char::REPLACEMENT_CHARACTER, chunk.invalid().len()));
    }
    text
}

/// An example of an escaped UTF-16 code unit. Only its length is used.
const SURROGATE: &str = "\\ud800";

/// The positions of escaped surrogates that are not part of a pair.
fn lone_surrogates(text: &str) -> Vec<usize> {
    let unit = |at: usize| {
        let digits = text.get(at..at + SURROGATE.len())?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut lone, mut at) = (Vec::new(), 0);
    while let Some(next) = text.get(at..).and_then(|rest| rest.find('\\')) {
        at += next;
        match (unit(at), unit(at + SURROGATE.len())) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => at += 2 * SURROGATE.len(),
            (Some(0xd800..=0xdfff), _) => {
                lone.push(at);
                at += SURROGATE.len();
            }
            _ => at += 2,
        }
    }
    lone
}

/// Parses the text of a value, which serde_json has validated. `level` is the number of arrays and objects around the value.
fn value(raw: &RawValue, level: usize) -> serde_json::Result<Json> {
    let text = raw.get();
    Ok(match text.as_bytes().first() {
        Some(b'[' | b'{') if level == LEVELS_MAX => Json::Raw(text.into()),
        Some(b'[') => {
            let mut values = Vec::new();
            for item in from_str::<Vec<&RawValue>>(text)? {
                values.push(value(item, level + 1)?);
            }
            Json::Array(values)
        }
        Some(b'{') => {
            let mut entries = Vec::new();
            for (key, item) in from_str::<Entries<'_>>(text)?.0 {
                entries.push((from_str(key.get())?, value(item, level + 1)?));
            }
            Json::Object(entries)
        }
        Some(b'"') => Json::String(from_str(text)?),
        Some(b'n') => Json::Null,
        Some(b't' | b'f') => Json::Bool(text == "true"),
        _ => Json::Number(Number::new(text)),
    })
}

/// The texts of the keys and values of an object, including repeated keys.
pub struct Entries<'a>(pub Vec<(&'a RawValue, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfObject;

        impl<'de> Visitor<'de> for OfObject {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(OfObject)
    }
}

#[cfg(test)]
mod tests;

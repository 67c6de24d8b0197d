//! JSON as Go's encoding/json reads it, since that is what every runtime was tested against: keys match without
//! regard to case, the last of several equal keys wins, `null` is the same as nothing. Errors name the key.

mod de;

use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde::{Deserialize, Deserializer};
use serde_json::Number;
use serde_json::ser::PrettyFormatter;

use crate::error::{Code, Error, Result};

/// Any JSON value; objects keep the order of their keys, which older results need when they are printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Json {
    #[default]
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl Json {
    /// Parses one document; anything but white space after it is an error (code 6).
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        serde_json::from_str(&String::from_utf8_lossy(bytes)).map_err(|error| {
            Error::new(Code::DECODE, "cannot read JSON").with_details(error.to_string())
        })
    }

    /// Reads the value as a type; `what` names the whole document in errors (code 6).
    pub fn read<T: DeserializeOwned>(&self, what: &str) -> Result<T> {
        T::deserialize(self).map_err(|error: de::Error| {
            Error::new(Code::DECODE, format!("cannot read {what}: {error}"))
        })
    }

    /// The value of a key of an object, found as Go finds it; `null` is nothing.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(entries) = self else { return None };
        let found = entries.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case(key));
        found.map(|(_, value)| value).filter(|value| **value != Self::Null)
    }

    /// An object of those entries that have a value.
    pub fn object<const N: usize>(entries: [(&str, Option<Self>); N]) -> Self {
        let present = entries.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Self::Object(present.collect())
    }

    /// The same with the keys of all objects in order, as Go prints its maps.
    pub fn sorted(self) -> Self {
        match self {
            Self::Array(values) => Self::Array(values.into_iter().map(Self::sorted).collect()),
            Self::Object(mut entries) => {
                entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                let sorted = entries.into_iter().map(|(key, value)| (key, value.sorted()));
                Self::Object(sorted.collect())
            }
            other => other,
        }
    }

    /// The document indented by four spaces without a newline at the end, as results are printed.
    pub fn to_pretty(&self) -> String {
        self.indented_by(b"    ")
    }

    /// The same with another indentation for each level.
    pub fn indented_by(&self, indent: &[u8]) -> String {
        let mut out = Vec::new();
        let formatter = PrettyFormatter::with_indent(indent);
        self.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter))
            .expect("writing into memory cannot fail");
        escape_as_go(String::from_utf8(out).expect("JSON is text"))
    }

    /// The document on one line.
    pub fn to_compact(&self) -> String {
        escape_as_go(serde_json::to_string(self).expect("writing into memory cannot fail"))
    }
}

/// These characters stand only inside strings, and Go escapes them so that JSON can be put into HTML.
fn escape_as_go(text: String) -> String {
    // The last two begin with 0xe2.
    if !text.bytes().any(|byte| matches!(byte, b'<' | b'>' | b'&' | 0xe2)) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            _ => escaped.push(c),
        }
    }
    escaped
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<u32> for Json {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(value) => value.serialize(serializer),
            Self::String(value) => serializer.serialize_str(value),
            Self::Array(values) => {
                let mut list = serializer.serialize_seq(Some(values.len()))?;
                values.iter().try_for_each(|value| list.serialize_element(value))?;
                list.end()
            }
            Self::Object(entries) => {
                let mut object = serializer.serialize_map(Some(entries.len()))?;
                entries.iter().try_for_each(|(key, value)| object.serialize_entry(key, value))?;
                object.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Json::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Json, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = object.next_entry()? {
            entries.push(entry);
        }
        Ok(Json::Object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_go_escapes() {
        let json = Json::parse(br#"{"z":1,"a":"<&>"}"#).unwrap();
        assert_eq!(json.to_compact(), r#"{"z":1,"a":"\u003c\u0026\u003e"}"#);
        assert_eq!(json.to_pretty(), "{\n    \"z\": 1,\n    \"a\": \"\\u003c\\u0026\\u003e\"\n}");
    }

    #[test]
    fn the_last_of_equal_keys_is_found_whatever_its_case() {
        let json = Json::parse(br#"{"name":"a","NAME":"b","x":null}"#).unwrap();
        assert_eq!(json.get("Name"), Some(&"b".into()));
        assert_eq!(json.get("x"), None);
    }

    #[test]
    fn broken_documents_are_refused() {
        for text in ["", "{", "{} x", "{\"a\":}", "nope"] {
            assert_eq!(Json::parse(text.as_bytes()).unwrap_err().code, Code::DECODE, "{text}");
        }
    }
}

//! Prints JSON as Go's encoding/json does: it also escapes the special characters of HTML.

use serde::Serialize;
use serde::ser::{Error as _, Serializer};
use serde_json::ser::PrettyFormatter;
use serde_json::value::RawValue;

use super::Json;

/// Characters that Go escapes and serde_json does not. In JSON they occur only in strings.
const ESCAPED: [(char, &str); 5] = [
    ('<', "\\u003c"),
    ('>', "\\u003e"),
    ('&', "\\u0026"),
    ('\u{2028}', "\\u2028"),
    ('\u{2029}', "\\u2029"),
];

/// Prints a document on one line, or with this indentation for each level.
pub fn print(document: &impl Serialize, indent: Option<&str>) -> String {
    let mut bytes = Vec::new();
    let printed = match indent {
        None => document.serialize(&mut serde_json::Serializer::new(&mut bytes)),
        Some(indent) => {
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            document.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter))
        }
    };
    printed.expect("all keys are strings, and a vector takes all bytes");
    let mut text = String::from_utf8(bytes).expect("serde_json writes UTF-8");
    for (c, escape) in ESCAPED {
        if text.contains(c) {
            text = text.replace(c, escape);
        }
    }
    text
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw = |text: String| RawValue::from_string(text).map_err(S::Error::custom);
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(number) => raw(number.to_string())?.serialize(serializer),
            Self::String(text) => serializer.serialize_str(text),
            Self::Raw(text) => raw(text.to_string())?.serialize(serializer),
            Self::Array(values) => serializer.collect_seq(values),
            Self::Object(entries) => serializer.collect_map(entries.iter().map(|(k, v)| (k, v))),
        }
    }
}

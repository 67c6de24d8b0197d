//! JSON with the rules of Go's encoding/json, with which the runtimes were tested. A key in another case also counts, unless
//! the object has the key in exactly the expected case. If a key is repeated, the last value counts. `null` is the same as a
//! missing key, and in a list of strings the empty string. Errors name the key.

mod error;
mod number;
mod parse;
mod print;
mod read;
mod tolerant;

use std::collections::BTreeMap;
use std::mem;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use error::Error as ReadError;
pub use number::Number;
#[cfg(feature = "tool")]
pub use parse::Entries;
pub(crate) use read::keys;
pub use read::{Map, Read, read_list, read_object};

use crate::error::Result;

/// A JSON value. Objects keep the order of their keys, for results.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Json {
    #[default]
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Self>),
    Object(Vec<(String, Self)>),
    /// The text of an array or object that is nested more than `parse::LEVELS_MAX` levels deep. It can only be printed.
    Raw(Box<str>),
}

/// Reads a document that cnibox wrote. Unlike `Json::parse` it is strict: a repeated key or a missing key is an error.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    // from_str in place of from_slice: the executable contains from_str already.
    serde_json::from_str(&parse::decode(bytes))
}

/// Prints a document on one line.
pub fn compact(document: &impl Serialize) -> String {
    print::print(document, None)
}

/// Prints a document as CNI results are printed: indented by four spaces, and without a newline at the end.
pub fn pretty(document: &impl Serialize) -> String {
    print::print(document, Some("    "))
}

impl Json {
    /// Parses one document. Only white space may follow it (code 6).
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        parse::parse(bytes)
    }

    /// Whether the text ends before its document does, as that of a killed writer.
    pub fn is_incomplete(bytes: &[u8]) -> bool {
        parse::document(&parse::decode(bytes)).is_err_and(|error| error.is_eof())
    }

    /// The text of a document as the parser reads it: each byte that is not part of valid UTF-8, and each lone surrogate, is
    /// replaced by U+FFFD.
    #[cfg(feature = "tool")]
    pub fn text_of(bytes: &[u8]) -> String {
        parse::decode(bytes).into_owned()
    }

    /// Parses a text that `text_of` returned. The error is that of serde_json, with its line and column.
    #[cfg(feature = "tool")]
    pub fn of_text(text: &str) -> serde_json::Result<Self> {
        parse::document(text)
    }

    /// Converts the value to a type. `what` names the document in errors (code 6).
    pub fn read<T: Read + Default>(&self, what: &str) -> Result<T> {
        self.converted().map_err(|error| error.in_document(what))
    }

    fn converted<T: Read + Default>(&self) -> Result<T, ReadError> {
        let mut value = T::default();
        value.read(self).map(|()| value)
    }

    /// The value of a key of an object. `null` is None.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(entries) = self else { return None };
        position(entries, key).map(|index| &entries[index].1)
    }

    /// The value of a key of an object, to change it.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Self::Object(entries) = self else { return None };
        position(entries, key).map(|index| &mut entries[index].1)
    }

    /// Sets a key of an object, in place of each that the readers take for the same.
    pub fn set(&mut self, key: &str, value: Self) {
        if let Self::Object(entries) = self {
            entries.retain(|(name, _)| !is_key(name, key));
            entries.push((key.into(), value));
        }
    }

    /// The value of a key of an object, if it is a string.
    pub fn text_at(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(Self::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Merges the objects under a repeated key into one object, as Go does when it reads them into one struct.
    /// Repeated keys in the merged object stay, so the last one counts.
    pub fn merge_repeated(&mut self) {
        match self {
            Self::Array(values) => values.iter_mut().for_each(Self::merge_repeated),
            Self::Object(entries) => {
                if entries.iter().filter(|(_, value)| value.is_object()).count() > 1 {
                    *entries = merged(mem::take(entries));
                }
                entries.iter_mut().for_each(|(_, value)| value.merge_repeated());
            }
            _ => {}
        }
    }

    pub fn is_null(&self) -> bool {
        *self == Self::Null
    }

    fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    /// Makes an object from the entries that have a value.
    pub fn object<const N: usize>(entries: [(&str, Option<Self>); N]) -> Self {
        let present = entries.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Self::Object(present.collect())
    }

    /// Sorts the keys of all objects, as Go prints maps.
    pub fn sorted(self) -> Self {
        match self {
            Self::Array(values) => Self::Array(values.into_iter().map(Self::sorted).collect()),
            Self::Object(mut entries) => {
                entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
                let sorted = entries.into_iter().map(|(key, value)| (key, value.sorted()));
                Self::Object(sorted.collect())
            }
            other => other,
        }
    }

    /// Prints the document like `pretty`.
    pub fn to_pretty(&self) -> String {
        pretty(self)
    }

    /// Prints the document with this indentation for each level.
    pub fn indented_by(&self, indent: &str) -> String {
        print::print(self, Some(indent))
    }

    /// Prints the document on one line.
    pub fn to_compact(&self) -> String {
        print::print(self, None)
    }
}

/// The entries with one object for each key that is repeated with objects. Keys that differ in case only are the same key.
fn merged(entries: Vec<(String, Json)>) -> Vec<(String, Json)> {
    let mut merged: Vec<(String, Json)> = Vec::with_capacity(entries.len());
    let mut positions = BTreeMap::new();
    for (key, value) in entries {
        if let Json::Object(more) = value {
            let position =
                *positions.entry(key.chars().map(fold).collect::<String>()).or_insert(merged.len());
            match merged.get_mut(position) {
                Some((_, Json::Object(first))) => first.extend(more),
                _ => merged.push((key, Json::Object(more))),
            }
        } else {
            merged.push((key, value));
        }
    }
    merged
}

/// The index of the entry that counts for a key: the last entry with exactly this key, or else the last entry with the key in
/// another case; entries with `null` do not count. (Go prints one struct with two fields, `address` and `Address`, of
/// different types.)
fn position(entries: &[(String, Json)], key: &str) -> Option<usize> {
    let last = |is_key: fn(&str, &str) -> bool| {
        entries.iter().rposition(|(name, value)| is_key(name, key) && !value.is_null())
    };
    last(|name, key| name == key).or_else(|| last(is_key))
}

/// Whether a key of a document is a key of ours, in any case.
pub fn is_key(name: &str, key: &str) -> bool {
    name.eq_ignore_ascii_case(key)
        || !name.is_ascii() && name.chars().map(fold).eq(key.chars().map(fold))
}

/// A character of a key in the case in which keys are compared. Go folds the case of Unicode: besides the letters of ASCII, two
/// characters become one of them, the long s (U+017F) and the sign of Kelvin (U+212A). Other characters are in no key of ours.
pub fn fold(character: char) -> char {
    match character {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    }
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
        u64::from(number).into()
    }
}

impl From<u64> for Json {
    fn from(number: u64) -> Self {
        Self::Number(Number::new(&number.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::ser::PrettyFormatter;
    use serde_json::{Serializer, Value};

    use super::*;
    use crate::error::Code;

    /// Texts with characters that JSON or Go escapes, and others.
    fn texts() -> impl Strategy<Value = String> {
        let special = [
            '"', '\\', '/', '\0', '\u{1f}', '\u{7f}', '<', '>', '&', '\u{2027}', '\u{2028}',
            '\u{2029}',
        ];
        let chars = prop_oneof![
            prop::sample::select(special.to_vec()),
            any::<char>(),
            prop::char::range('\0', 'z')
        ];
        vec(chars, 0..12).prop_map(String::from_iter)
    }

    fn documents() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i32>().prop_map(|number| Value::from(f64::from(number) / 8.0)),
            texts().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..5).prop_map(Value::from),
                vec((texts(), inner), 0..5).prop_map(Value::from_iter),
            ]
        })
    }

    fn escaped_for_html(text: &str) -> String {
        ['<', '>', '&', '\u{2028}', '\u{2029}']
            .into_iter()
            .fold(text.into(), |text, c| text.replace(c, &format!("\\u{:04x}", u32::from(c))))
    }

    proptest! {
        #[test]
        fn documents_are_printed_as_by_serde_json_with_the_escapes_of_go(value in documents()) {
            let compact = value.to_string();
            let mut pretty = Vec::new();
            let formatter = PrettyFormatter::with_indent(b"    ");
            serde::Serialize::serialize(&value, &mut Serializer::with_formatter(&mut pretty, formatter)).unwrap();
            let pretty = String::from_utf8(pretty).unwrap();
            let json = Json::parse(compact.as_bytes()).unwrap();
            prop_assert_eq!(json.to_compact(), escaped_for_html(&compact));
            prop_assert_eq!(json.to_pretty(), escaped_for_html(&pretty));
        }
    }

    #[test]
    fn keys_keep_their_order_and_text_has_the_escapes_of_go() {
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
    fn objects_under_equal_keys_become_one_as_in_go() {
        let cases = [
            (r#"{"a":{"x":1},"b":2,"A":{"y":3}}"#, r#"{"a":{"x":1,"y":3},"b":2}"#),
            (r#"{"a":{"b":{"x":1}},"a":{"b":{"x":2}}}"#, r#"{"a":{"b":{"x":1,"x":2}}}"#),
            (r#"[{"a":{"x":1},"a":{},"a":5}]"#, r#"[{"a":{"x":1},"a":5}]"#),
            (
                r#"{"a":[{"x":1}],"a":[{"y":2}],"b":1,"b":2}"#,
                r#"{"a":[{"x":1}],"a":[{"y":2}],"b":1,"b":2}"#,
            ),
        ];
        for (text, expected) in cases {
            let mut json = Json::parse(text.as_bytes()).unwrap();
            json.merge_repeated();
            assert_eq!(json.to_compact(), expected, "{text}");
        }
        let many: Vec<String> = (0..100_000).map(|n| format!("\"{}\":{{}}", n % 50_000)).collect();
        let mut json = Json::parse(format!("{{{}}}", many.join(",")).as_bytes()).unwrap();
        json.merge_repeated();
        assert!(matches!(json, Json::Object(entries) if entries.len() == 50_000));
    }

    #[test]
    fn broken_documents_are_refused() {
        for text in ["", "{", "{} x", "{\"a\":}", "nope"] {
            assert_eq!(Json::parse(text.as_bytes()).unwrap_err().code, Code::DECODE, "{text}");
        }
    }

    /// A quarter of the default stack of a thread.
    const STACK_BYTES: usize = 512 << 10;

    keys! {
        #[derive(Debug)]
        struct Nested {
            "a" => a: Vec<Self>,
        }

        struct Empty {}
    }

    fn use_all_of_a_deep_document() {
        let levels = 5_000;
        let text = [&*"[{\"b\":1,\"a\":".repeat(levels), "0", &*"}]".repeat(levels)].concat();
        let json = Json::parse(text.as_bytes()).unwrap();
        assert_eq!(json.to_compact(), text);
        let sorted = json.clone().sorted();
        assert!(json == json.clone() && json != sorted && sorted.to_pretty().len() > text.len());
        assert!(format!("{json:?}").len() > text.len());
        assert!(json.read::<Vec<Empty>>("it").is_ok());
        let error = json.read::<Vec<Nested>>("it").unwrap_err();
        let found = "invalid type: value with too many levels, expected a list";
        assert!(error.msg.ends_with(found), "{error}");
        let json = Json::object([("a", Some(json))]);
        let (nested, errors) = json.read_or_drop::<Nested>("it").unwrap();
        assert_eq!((nested.a.len(), errors.len()), (1, 1));
    }

    #[test]
    fn deep_documents_need_little_stack() {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        thread.spawn(use_all_of_a_deep_document).unwrap().join().unwrap();
    }
}

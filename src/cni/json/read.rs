//! Converts a `Json` value to a Rust type with the rules of Go. Errors have the path in the document.

use super::error::Error;
use super::{Json, is_key};

/// A type to which a `Json` value can be converted.
pub trait Read {
    /// Replaces `self`, which must be the default value. After an error, a part of `self` can be replaced.
    fn read(&mut self, json: &Json) -> Result<(), Error>;
}

/// Defines structs that implement `Read` for JSON objects. Each line has a key, a field, and the default value if it is not the
/// default of the type: `"dataDir" => data_dir: String = "/run".into()`. For `struct Ip requires "address"`, a missing
/// `address` is an error. The keys of a struct must differ in more than their case.
///
/// A key in another case also counts, unless the object has the key in exactly this case. `null` is the same as a missing key,
/// the last of repeated keys counts, and unknown keys are ignored.
macro_rules! keys {
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    ($(
        $(#[$of_struct:meta])*
        $vis:vis struct $name:ident $(requires $required:literal)? {
            $(
                $(#[$of_field:meta])*
                $key:literal => $access:vis $field:ident: $type:ty $(= $default:expr)?
            ),* $(,)?
        }
    )+) => {$(
        $(#[$of_struct])*
        $vis struct $name {
            $($(#[$of_field])* $access $field: $type,)*
        }

        #[allow(dead_code, reason = "few readers list the keys that they know")]
        impl $name {
            /// All keys of the object.
            pub const KEYS: &'static [&'static str] = &[$($key),*];
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $crate::cni::json::keys!(@default $($default)?),)* }
            }
        }

        impl $crate::cni::json::Read for $name {
            fn read(
                &mut self,
                json: &$crate::cni::json::Json,
            ) -> Result<(), $crate::cni::json::ReadError> {
                $crate::cni::json::read_object(
                    json,
                    [$($required)?].first().copied(),
                    &mut [$(($key, &mut self.$field)),*],
                )
            }
        }
    )+};
}
pub(crate) use keys;

/// Converts an object to the fields of a struct.
pub fn read_object(
    json: &Json,
    required: Option<&str>,
    fields: &mut [(&str, &mut dyn Read)],
) -> Result<(), Error> {
    let Json::Object(entries) = json else { return Err(json.wrong_type("an object")) };
    let keys: Vec<&str> = fields.iter().map(|(key, _)| *key).collect();
    let found = positions(entries, &keys);
    // In the order of the document: the first mistake in it is the one that is reported.
    for (index, field) in &found {
        let (name, value) = &entries[*index];
        fields[*field].1.read(value).map_err(|error| error.under_key(name, *index))?;
    }
    let is_found = |key: &str| found.iter().any(|(_, field)| keys[*field] == key);
    match required {
        Some(key) if !is_found(key) => Err(Error::new(format!("missing key `{key}`"))),
        _ => Ok(()),
    }
}

/// The entries that count for these keys, as `super::position` has them, in one pass over the entries: a document can repeat a
/// key hundreds of thousands of times. Returns the index of each entry with the index of its key, in the order of the entries.
fn positions(entries: &[(String, Json)], keys: &[&str]) -> Vec<(usize, usize)> {
    let mut last: Vec<Option<usize>> = vec![None; keys.len()];
    for (index, (name, value)) in entries.iter().enumerate() {
        if value.is_null() {
            continue;
        }
        let Some(key) = keys.iter().position(|key| is_key(name, key)) else { continue };
        match last[key] {
            // A key in exactly its case counts before the same key in another case.
            Some(earlier) if entries[earlier].0 == keys[key] && name != keys[key] => {}
            _ => last[key] = Some(index),
        }
    }
    let found = last.iter().enumerate().filter_map(|(key, index)| Some(((*index)?, key)));
    let mut found: Vec<_> = found.collect();
    found.sort_unstable();
    found
}

impl Json {
    /// The text of a string. `expected` describes the expected type in the error.
    pub fn text(&self, expected: &str) -> Result<&str, Error> {
        match self {
            Self::String(text) => Ok(text),
            _ => Err(self.wrong_type(expected)),
        }
    }

    /// The error for a value of a type other than `expected`.
    pub fn wrong_type(&self, expected: &str) -> Error {
        self.invalid("type", expected)
    }

    fn invalid(&self, part: &str, expected: &str) -> Error {
        let found = match self {
            Self::Null => "null".into(),
            Self::Bool(value) => format!("boolean `{value}`"),
            Self::Number(value) => {
                let digits = value.to_string();
                let is_integer = !digits.contains(['.', 'e', 'E']);
                let kind = if is_integer { "integer" } else { "floating point" };
                format!("{kind} `{digits}`")
            }
            Self::String(value) => format!("string {value:?}"),
            Self::Array(_) => "list".into(),
            Self::Object(_) => "object".into(),
            Self::Raw(_) => "value with too many levels".into(),
        };
        Error::new(format!("invalid {part}: {found}, expected {expected}"))
    }

    /// The value as an integer of at most 64 bits. Go refuses `-0` for an unsigned type. The only u8 is the scope of a route,
    /// for which Go has a signed type, so `-0` is accepted there.
    fn integer(&self, min: i128, max: i128) -> Result<i128, Error> {
        let expected = || format!("an integer from {min} to {max}");
        let value = match self {
            Self::Number(value) if min < 0 || max == u8::MAX.into() || !value.is_minus_zero() => {
                value.as_i128()
            }
            _ => None,
        };
        match value {
            None => Err(self.wrong_type(&expected())),
            Some(value) if value < min || value > max => Err(self.invalid("value", &expected())),
            Some(value) => Ok(value),
        }
    }
}

impl Read for bool {
    fn read(&mut self, json: &Json) -> Result<(), Error> {
        let Json::Bool(value) = json else { return Err(json.wrong_type("a boolean")) };
        *self = *value;
        Ok(())
    }
}

macro_rules! integers {
    ($($type:ident)+) => {$(
        impl Read for $type {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the value is in the range")]
            fn read(&mut self, json: &Json) -> Result<(), Error> {
                *self = json.integer(Self::MIN.into(), Self::MAX.into())? as Self;
                Ok(())
            }
        }
    )+};
}
integers!(u8 u16 u32 u64 i32 i64);

impl Read for Json {
    fn read(&mut self, json: &Json) -> Result<(), Error> {
        self.clone_from(json);
        Ok(())
    }
}

/// `null` in a list of strings is the empty string, as in Go.
impl Read for String {
    fn read(&mut self, json: &Json) -> Result<(), Error> {
        if json.is_null() {
            return Ok(());
        }
        *self = json.text("a string")?.to_owned();
        Ok(())
    }
}

impl<T: Read + Default> Read for Option<T> {
    fn read(&mut self, json: &Json) -> Result<(), Error> {
        match json {
            Json::Null => Ok(()),
            _ => self.get_or_insert_default().read(json),
        }
    }
}

impl<T: Read + Default> Read for Vec<T> {
    fn read(&mut self, json: &Json) -> Result<(), Error> {
        read_list(json, &mut |value| self.push_mut(T::default()).read(value))
    }
}

/// Calls `read_next` for each element of an array.
pub fn read_list(
    json: &Json,
    read_next: &mut dyn FnMut(&Json) -> Result<(), Error>,
) -> Result<(), Error> {
    let Json::Array(values) = json else { return Err(json.wrong_type("a list")) };
    for (index, value) in values.iter().enumerate() {
        read_next(value).map_err(|error| error.under_index(index))?;
    }
    Ok(())
}

/// The entries of an object with any keys. Repeated keys are all kept.
#[derive(Debug, Default, PartialEq)]
pub struct Map<T>(pub Vec<(String, T)>);

impl<T: Read + Default> Read for Map<T> {
    fn read(&mut self, json: &Json) -> Result<(), Error> {
        let Json::Object(entries) = json else { return Err(json.wrong_type("an object")) };
        for (index, (name, value)) in entries.iter().enumerate() {
            let (_, read) = self.0.push_mut((name.clone(), T::default()));
            read.read(value).map_err(|error| error.under_key(name, index))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    keys! {
        #[derive(Debug, PartialEq)]
        struct Sample {
            "hostPort" => host_port: u16,
            "name" => name: String,
            "list" => list: Vec<Self>,
            "flags" => flags: Map<bool>,
            "maybe" => maybe: Option<i32>,
        }
    }

    fn read(text: &str) -> Result<Sample, String> {
        let json = Json::parse(text.as_bytes()).map_err(|error| error.to_string())?;
        json.read("it").map_err(|error| error.msg.clone())
    }

    #[test]
    fn keys_match_without_regard_to_case() {
        let sample = read(r#"{"HOSTPORT":80,"Name":"x","unknown":[1]}"#).unwrap();
        assert_eq!((sample.host_port, sample.name.as_str()), (80, "x"));
    }

    #[test]
    fn null_is_absent_and_the_last_key_counts() {
        let sample =
            read(r#"{"hostPort":null,"list":null,"maybe":null,"NAME":"a","Name":"b","name":null}"#);
        assert_eq!(sample.unwrap(), Sample { name: "b".into(), ..Sample::default() });
    }

    #[test]
    fn a_key_in_its_own_case_counts_before_others() {
        let name = |text: &str| read(text).map(|sample| sample.name);
        assert_eq!(name(r#"{"name": "own", "Name": 7}"#).as_deref(), Ok("own"));
        assert_eq!(name(r#"{"Name": {}, "name": "a", "NAME": "b"}"#).as_deref(), Ok("a"));
        assert_eq!(name(r#"{"name": null, "Name": "other"}"#).as_deref(), Ok("other"));
        assert!(name(r#"{"name": 7, "Name": "other"}"#).is_err());
    }

    #[test]
    fn keys_match_with_the_case_folding_of_go() {
        let sample = read("{\"ho\u{17f}tPort\":80,\"name\":\"a\",\"NAME\":\"b\"}").unwrap();
        assert_eq!((sample.host_port, sample.name.as_str()), (80, "a"));
        // Only the two characters whose simple case folding is an ASCII letter.
        assert_eq!(read("{\"ma\u{131}be\":1,\"\u{ff4e}ame\":\"x\"}").unwrap(), Sample::default());
    }

    #[test]
    fn null_in_a_list_of_strings_is_the_empty_string() {
        let read = |text: &str| Json::parse(text.as_bytes()).unwrap().read::<Vec<String>>("it");
        assert_eq!(read(r#"["a",null,""]"#).unwrap(), ["a", "", ""]);
        assert!(read("null").is_err());
        let json = Json::parse(br#"{"a":null}"#).unwrap();
        assert_eq!(json.read::<Map<String>>("it").unwrap().0, [("a".into(), String::new())]);
    }

    /// `name` once, then other entries up to 4 MiB, the maximum of a document in a call.
    fn long(entry: &str) -> String {
        let rest = entry.repeat((4 << 20) / entry.len());
        format!(r#"{{"name":"own"{rest}}}"#)
    }

    #[test]
    fn keys_that_are_repeated_all_over_a_document_of_4_mib_are_read_in_one_pass() {
        for entry in [r#","name":null"#, r#","NAME":"x""#, r#","x":1"#] {
            assert_eq!(read(&long(entry)).unwrap().name, "own", "{entry}");
        }
        let last = format!(r#"{},"name":"last"}}"#, long(r#","name":"x""#).trim_end_matches('}'));
        assert_eq!(read(&last).unwrap().name, "last");
    }

    #[test]
    fn minus_zero_is_a_signed_number() {
        assert_eq!(read(r#"{"maybe":-0}"#).unwrap().maybe, Some(0));
        let error = "cannot read it: hostPort: invalid type: integer `-0`, expected an integer from 0 to 65535";
        assert_eq!(read(r#"{"hostPort":-0}"#), Err(error.into()));
    }

    #[test]
    fn keys_of_maps_keep_their_case() {
        let flags = read(r#"{"flags":{"Mac":true}}"#).unwrap().flags;
        assert_eq!(flags, Map(vec![("Mac".into(), true)]));
    }

    #[test]
    fn errors_name_the_key() {
        let cases = [
            ("[]", "cannot read it: invalid type: list, expected an object"),
            (
                r#"{"hostPort":"80"}"#,
                "cannot read it: hostPort: invalid type: string \"80\", expected an integer from 0 to 65535",
            ),
            (
                r#"{"hostPort":70000}"#,
                "cannot read it: hostPort: invalid value: integer `70000`, expected an integer from 0 to 65535",
            ),
            (
                r#"{"hostPort":1.0}"#,
                "cannot read it: hostPort: invalid type: floating point `1.0`, expected an integer from 0 to 65535",
            ),
            (
                r#"{"list":[{},{"NAME":5}]}"#,
                "cannot read it: list[1].NAME: invalid type: integer `5`, expected a string",
            ),
            (
                r#"{"list":[null]}"#,
                "cannot read it: list[0]: invalid type: null, expected an object",
            ),
            (
                r#"{"flags":{"a":1}}"#,
                "cannot read it: flags.a: invalid type: integer `1`, expected a boolean",
            ),
            ("[]x", "cannot read JSON: trailing characters at line 1 column 3"),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text).unwrap_err(), expected, "{text}");
        }
    }
}

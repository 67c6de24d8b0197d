//! Reads types from a `Json` value with the rules of Go. Errors have the path in the document.

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::forward_to_deserialize_any;

use super::Json;
use super::error::Error;

impl<'de> Deserializer<'de> for &'de Json {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Json::Null => visitor.visit_unit(),
            Json::Bool(value) => visitor.visit_bool(*value),
            Json::Number(_) => self.deserialize_i64(visitor),
            Json::Raw(_) => Err(self.wrong_type(&visitor)),
            Json::String(value) => visitor.visit_borrowed_str(value),
            Json::Array(values) => visitor.visit_seq(List { rest: values, index: 0 }),
            Json::Object(entries) => visitor.visit_map(Object { entries, at: 0, fields: None }),
        }
    }

    // Each method accepts its own type only. With `deserialize_any` each visitor would contain the code for all types, and
    // for a struct that of its fields in a list.

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Json::Bool(value) => visitor.visit_bool(*value),
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            // Go takes it for a negative number.
            Json::Number(value) if value.is_minus_zero() => Err(self.wrong_type(&visitor)),
            _ => self.deserialize_i64(visitor),
        }
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Json::Number(value) => match (value.as_u64(), value.as_i64()) {
                (Some(value), _) => visitor.visit_u64(value),
                (_, Some(value)) => visitor.visit_i64(value),
                _ => Err(self.wrong_type(&visitor)),
            },
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_u64(visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_i64(visitor)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_u64(visitor)
    }

    /// `deserialize_any` does not call it: no type needs fractions today, and the code that parses them takes 17 KB.
    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Json::Number(value) = self else { return Err(self.wrong_type(&visitor)) };
        match value.as_f64() {
            Some(value) => visitor.visit_f64(value),
            None => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Json::String(value) => visitor.visit_borrowed_str(value),
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Json::Array(values) => visitor.visit_seq(List { rest: values, index: 0 }),
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Json::Object(entries) => visitor.visit_map(Object { entries, at: 0, fields: None }),
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Json::Object(entries) => {
                visitor.visit_map(Object { entries, at: 0, fields: Some(fields) })
            }
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Json::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u8 u128 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
    }
}

impl Json {
    /// The error that the value has another type.
    #[cold]
    fn wrong_type(&self, expected: &dyn de::Expected) -> Error {
        let text;
        let unexpected = match self {
            Self::Null => Unexpected::Unit,
            Self::Bool(value) => Unexpected::Bool(*value),
            Self::Number(value) => {
                let digits = value.to_string();
                let is_integer = !digits.contains(['.', 'e', 'E']);
                let kind = if is_integer { "integer" } else { "floating point" };
                text = format!("{kind} `{digits}`");
                Unexpected::Other(&text)
            }
            Self::String(value) => Unexpected::Str(value),
            Self::Array(_) => Unexpected::Seq,
            Self::Object(_) => Unexpected::Map,
            Self::Raw(_) => Unexpected::Other("value with too many levels"),
        };
        de::Error::invalid_type(unexpected, expected)
    }
}

struct List<'de> {
    rest: &'de [Json],
    index: usize,
}

impl<'de> SeqAccess<'de> for List<'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some((first, rest)) = self.rest.split_first() else { return Ok(None) };
        let index = self.index;
        (self.rest, self.index) = (rest, index + 1);
        seed.deserialize(first).map(Some).map_err(|error| error.under_index(index))
    }
}

/// The entries of an object. For a struct, `fields` are its keys. Then an entry is skipped if it matches no field, if it is
/// `null`, or if a later entry has the same field (serde refuses duplicates).
struct Object<'de> {
    entries: &'de [(String, Json)],
    at: usize,
    fields: Option<&'static [&'static str]>,
}

impl<'de> Object<'de> {
    /// The number of a struct's field with this name.
    fn field_of(&self, name: &str) -> Option<usize> {
        let fields = self.fields?;
        let exact = fields.iter().position(|field| *field == name);
        exact.or_else(|| fields.iter().position(|field| field.eq_ignore_ascii_case(name)))
    }

    /// The key of the next entry that is not skipped; `at` is its position. The method is not generic, so the executable has
    /// it once.
    fn next_key(&mut self) -> Option<Key<'de>> {
        while let Some(((name, value), later)) = self.entries.get(self.at..)?.split_first() {
            let field = self.field_of(name);
            let overridden = || {
                let set_again = |(name, value): &(String, Json)| {
                    *value != Json::Null && self.field_of(name) == field
                };
                *value == Json::Null || later.iter().any(set_again)
            };
            if self.fields.is_none() || field.is_some() && !overridden() {
                return Some(Key { name, field });
            }
            self.at += 1;
        }
        None
    }
}

impl<'de> MapAccess<'de> for Object<'de> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        self.next_key().map(|key| seed.deserialize(key)).transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let index = self.at;
        let (name, value) = self.entries.get(index).expect("serde requests a value after its key");
        self.at += 1;
        seed.deserialize(value).map_err(|error| error.under_key(name, index))
    }
}

/// A key. For a struct it has the number of the field, so that the names are compared once.
struct Key<'de> {
    name: &'de str,
    field: Option<usize>,
}

impl<'de> Deserializer<'de> for Key<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(self.name)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(self.field.map_or(u64::MAX, |field| field as u64))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default, rename_all = "camelCase")]
    struct Sample {
        host_port: u16,
        name: String,
        list: Vec<Self>,
        flags: BTreeMap<String, bool>,
        maybe: Option<i32>,
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
            read(r#"{"hostPort":null,"list":null,"maybe":null,"name":"a","NAME":"b","name":null}"#);
        assert_eq!(sample.unwrap(), Sample { name: "b".into(), ..Sample::default() });
    }

    #[test]
    fn minus_zero_is_a_signed_number() {
        assert_eq!(read(r#"{"maybe":-0}"#).unwrap().maybe, Some(0));
        let error = "cannot read it: hostPort: invalid type: integer `-0`, expected u16";
        assert_eq!(read(r#"{"hostPort":-0}"#), Err(error.into()));
    }

    #[test]
    fn keys_of_maps_keep_their_case() {
        assert!(read(r#"{"flags":{"Mac":true}}"#).unwrap().flags["Mac"]);
    }

    #[test]
    fn a_fraction_is_read_where_it_is_expected() {
        let json = Json::parse(b"[1, -0.5e1, 1e400]").unwrap();
        let Json::Array(values) = &json else { panic!("{json:?}") };
        let read =
            |index: usize| values[index].read::<f64>("it").map_err(|error| error.to_string());
        assert_eq!((read(0), read(1)), (Ok(1.0), Ok(-5.0)));
        let found = "cannot read it: invalid type: floating point `1e400`, expected f64";
        assert_eq!(read(2), Err(found.into()));
    }

    #[test]
    fn errors_name_the_key() {
        let cases = [
            ("[]", "cannot read it: invalid type: sequence, expected struct Sample"),
            (
                r#"{"hostPort":"80"}"#,
                "cannot read it: hostPort: invalid type: string \"80\", expected u16",
            ),
            (
                r#"{"hostPort":70000}"#,
                "cannot read it: hostPort: invalid value: integer `70000`, expected u16",
            ),
            (
                r#"{"hostPort":1.0}"#,
                "cannot read it: hostPort: invalid type: floating point `1.0`, expected u16",
            ),
            (
                r#"{"list":[{},{"NAME":5}]}"#,
                "cannot read it: list[1].NAME: invalid type: integer `5`, expected a string",
            ),
            (
                r#"{"list":[null]}"#,
                "cannot read it: list[0]: invalid type: null, expected struct Sample",
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

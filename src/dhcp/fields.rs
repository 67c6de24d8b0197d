//! The values of a JSON object by their keys. An error names the key.

use std::time::Duration;

use crate::cni::json::Json;
use crate::error::{Code, Error, Result};

/// An object with required keys. A value that is no object has no keys.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a Json);

impl<'a> Fields<'a> {
    pub(super) fn text(self, key: &str) -> Result<&'a str> {
        match self.0.get(key) {
            Some(Json::String(text)) => Ok(text),
            _ => Err(cannot(key, "it is not a string")),
        }
    }

    pub(super) fn number(self, key: &str) -> Result<u64> {
        number(self.0.get(key), key)
    }

    /// A number of a smaller type.
    pub(super) fn small<T: TryFrom<u64>>(self, key: &str) -> Result<T> {
        T::try_from(self.number(key)?).map_err(|_| cannot(key, OUT_OF_RANGE))
    }

    /// The same of an item of the list `key`.
    pub(super) fn small_of<T: TryFrom<u64>>(item: &Json, key: &str) -> Result<T> {
        T::try_from(number(Some(item), key)?).map_err(|_| cannot(key, OUT_OF_RANGE))
    }

    pub(super) fn switch(self, key: &str) -> Result<bool> {
        match self.0.get(key) {
            Some(Json::Bool(value)) => Ok(*value),
            _ => Err(cannot(key, "it is not true or false")),
        }
    }

    pub(super) fn list(self, key: &str) -> Result<&'a [Json]> {
        match self.0.get(key) {
            Some(Json::Array(items)) => Ok(items),
            _ => Err(cannot(key, "it is not a list")),
        }
    }

    pub(super) fn texts(self, key: &str) -> Result<Vec<String>> {
        let text = |item: &Json| match item {
            Json::String(text) => Ok(text.clone()),
            _ => Err(cannot(key, "an item is not a string")),
        };
        self.list(key)?.iter().map(text).collect()
    }

    /// A value of any type. `None` if it is null; an error if the key is missing.
    pub(super) fn object(self, key: &str) -> Result<Option<&'a Json>> {
        match self.0 {
            Json::Object(entries) if entries.iter().any(|(name, _)| name == key) => {
                Ok(self.0.get(key))
            }
            _ => Err(cannot(key, "it is missing")),
        }
    }

    /// A value that is read by `FromStr`.
    pub(super) fn parsed<T: std::str::FromStr>(self, key: &str) -> Result<T> {
        self.text(key)?.parse().map_err(|_| cannot(key, "it is invalid"))
    }

    /// The items of a list that are read by `FromStr`.
    pub(super) fn all_parsed<T: std::str::FromStr>(self, key: &str) -> Result<Vec<T>> {
        let parse = |text: String| text.parse().map_err(|_| cannot(key, "an item is invalid"));
        self.texts(key)?.into_iter().map(parse).collect()
    }

    /// A time in milliseconds.
    pub(super) fn time(self, key: &str) -> Result<Duration> {
        self.number(key).map(Duration::from_millis)
    }

    /// The same; None if the key is missing.
    pub(super) fn optional_time(self, key: &str) -> Result<Option<Duration>> {
        self.0.get(key).map(|_| self.time(key)).transpose()
    }
}

/// A time in milliseconds, as `Fields::time` reads it.
pub(super) fn milliseconds(time: Duration) -> Json {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).into()
}

const OUT_OF_RANGE: &str = "it is out of range";

fn number(value: Option<&Json>, key: &str) -> Result<u64> {
    let number = match value {
        Some(Json::Number(number)) => number.as_u64(),
        _ => None,
    };
    number.ok_or_else(|| cannot(key, "it is not a number"))
}

#[cold]
fn cannot(key: &str, reason: &str) -> Error {
    Error::new(Code::DECODE, format!("cannot read {key}: {reason}"))
}

//! JSON objects that grow key by key.

use std::fmt::Display;

use super::Json;

/// An object that grows key by key. No function is generic: the commands print many keys.
#[derive(Default)]
pub struct Object(Vec<(String, Json)>);

impl Object {
    /// Adds a value.
    #[inline(never)]
    pub fn put(&mut self, key: &str, value: Json) -> &mut Self {
        self.0.push((key.to_owned(), value));
        self
    }

    /// Adds a value if there is one.
    #[inline(never)]
    pub fn put_any(&mut self, key: &str, value: Option<Json>) -> &mut Self {
        if let Some(value) = value {
            self.put(key, value);
        }
        self
    }

    /// Adds a string.
    #[inline(never)]
    pub fn text(&mut self, key: &str, text: &dyn Display) -> &mut Self {
        self.put(key, Json::String(text.to_string()))
    }

    /// Adds true if it is true, and nothing otherwise.
    #[inline(never)]
    pub fn flag(&mut self, key: &str, is_true: bool) -> &mut Self {
        if is_true {
            self.put(key, Json::Bool(true));
        }
        self
    }

    /// Adds a number.
    #[inline(never)]
    pub fn number(&mut self, key: &str, number: u64) -> &mut Self {
        self.put(key, number.into())
    }

    /// Adds an array.
    #[inline(never)]
    pub fn list(&mut self, key: &str, values: Vec<Json>) -> &mut Self {
        self.put(key, Json::Array(values))
    }

    /// Adds an array of strings.
    #[inline(never)]
    pub fn texts(&mut self, key: &str, texts: &[String]) -> &mut Self {
        let mut values = Vec::with_capacity(texts.len());
        for text in texts {
            values.push(Json::String(text.clone()));
        }
        self.list(key, values)
    }

    /// The object, which is empty then.
    pub fn json(&mut self) -> Json {
        Json::Object(std::mem::take(&mut self.0))
    }
}

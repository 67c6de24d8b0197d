//! JSON objects that the commands print.

use std::fmt::Display;

use crate::cni::json::Json;

/// An object that grows key by key. No function is generic: the commands have many keys.
#[derive(Default)]
pub(super) struct Object(Vec<(String, Json)>);

impl Object {
    #[inline(never)]
    pub(super) fn put(&mut self, key: &str, value: Json) -> &mut Self {
        self.0.push((key.to_owned(), value));
        self
    }

    /// Nothing, if there is no value.
    #[inline(never)]
    pub(super) fn put_any(&mut self, key: &str, value: Option<Json>) -> &mut Self {
        if let Some(value) = value {
            self.put(key, value);
        }
        self
    }

    #[inline(never)]
    pub(super) fn text(&mut self, key: &str, text: &dyn Display) -> &mut Self {
        self.put(key, Json::String(text.to_string()))
    }

    #[inline(never)]
    pub(super) fn number(&mut self, key: &str, number: u64) -> &mut Self {
        self.put(key, number.into())
    }

    #[inline(never)]
    pub(super) fn list(&mut self, key: &str, values: Vec<Json>) -> &mut Self {
        self.put(key, Json::Array(values))
    }

    #[inline(never)]
    pub(super) fn texts(&mut self, key: &str, texts: &[String]) -> &mut Self {
        let mut values = Vec::with_capacity(texts.len());
        for text in texts {
            values.push(Json::String(text.clone()));
        }
        self.list(key, values)
    }

    pub(super) fn json(&mut self) -> Json {
        Json::Object(std::mem::take(&mut self.0))
    }

    /// Prints the object as a document.
    #[inline(never)]
    pub(super) fn say(&mut self) {
        super::say(&self.json().to_pretty());
    }
}

//! The fields of a JSON object. `Fields` reads them or writes them, so each type has one list of its fields for both.

use crate::dhcp::time::Time;
use std::fmt::Display;
use std::str::FromStr;

use crate::cni::json::Json;
use crate::error::{Code, Error, Result};

/// A value in text form.
pub(super) trait Text {
    fn print(&self) -> String;
    /// False if the text is invalid.
    fn read(&mut self, text: &str) -> bool;
}

impl<T: Display + FromStr> Text for T {
    fn print(&self) -> String {
        self.to_string()
    }

    fn read(&mut self, text: &str) -> bool {
        text.parse().map(|value| *self = value).is_ok()
    }
}

/// Reads the fields of an object, or writes them in their order. After an error nothing is read.
pub(super) struct Fields<'a> {
    /// The object that is read; `None` while one is written. A value that is no object has no keys.
    from: Option<&'a Json>,
    entries: Vec<(String, Json)>,
    error: Option<Error>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(json: &'a Json) -> Self {
        Self { from: Some(json), entries: Vec::new(), error: None }
    }

    /// Writes an object.
    pub(super) fn written(write: &mut dyn FnMut(&mut Self)) -> Json {
        let mut fields = Self { from: None, entries: Vec::new(), error: None };
        write(&mut fields);
        Json::Object(fields.entries)
    }

    /// Fails with the first error.
    pub(super) fn end(self) -> Result<()> {
        self.error.map_or(Ok(()), Err)
    }

    /// Whether an optional field is read or written. `is_some`: there is a value to write.
    pub(super) fn has(&self, key: &str, is_some: bool) -> bool {
        self.from.map_or(is_some, |json| json.get(key).is_some())
    }

    pub(super) fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    fn put(&mut self, key: &str, value: Json) {
        self.entries.push((key.to_owned(), value));
    }

    /// The value that is read. `None` while an object is written, and after an error.
    fn next(&self, key: &str) -> Option<Option<&'a Json>> {
        self.from.filter(|_| self.error.is_none()).map(|json| json.get(key))
    }

    pub(super) fn string(&mut self, key: &str, value: &mut String) {
        if self.from.is_none() {
            return self.put(key, value.as_str().into());
        }
        match self.next(key) {
            Some(Some(Json::String(text))) => value.clone_from(text),
            Some(_) => self.fail(cannot(key, "it is not a string")),
            None => {}
        }
    }

    pub(super) fn text(&mut self, key: &str, value: &mut dyn Text) {
        let mut text = value.print();
        self.string(key, &mut text);
        if self.next(key).is_some() && !value.read(&text) {
            self.fail(cannot(key, "it is invalid"));
        }
    }

    pub(super) fn u64(&mut self, key: &str, value: &mut u64) {
        if self.from.is_none() {
            return self.put(key, (*value).into());
        }
        if let Some(found) = self.next(key) {
            self.set(key, found, value);
        }
    }

    fn set(&mut self, key: &str, found: Option<&Json>, value: &mut u64) {
        let number = match found {
            Some(Json::Number(number)) => number.as_u64(),
            _ => None,
        };
        match number {
            Some(number) => *value = number,
            None => self.fail(cannot(key, "it is not a number")),
        }
    }

    /// A number of a smaller type.
    pub(super) fn number<T: Copy + Into<u64> + TryFrom<u64>>(&mut self, key: &str, value: &mut T) {
        let mut number = (*value).into();
        self.u64(key, &mut number);
        match T::try_from(number) {
            Ok(number) => *value = number,
            Err(_) => self.fail(cannot(key, OUT_OF_RANGE)),
        }
    }

    pub(super) fn switch(&mut self, key: &str, value: &mut bool) {
        if self.from.is_none() {
            return self.put(key, Json::Bool(*value));
        }
        match self.next(key) {
            Some(Some(Json::Bool(found))) => *value = *found,
            Some(_) => self.fail(cannot(key, "it is not true or false")),
            None => {}
        }
    }

    /// A time in milliseconds.
    pub(super) fn time(&mut self, key: &str, value: &mut Time) {
        let mut number = value.as_millis();
        self.u64(key, &mut number);
        *value = Time::from_millis(number);
    }

    /// The same; without a value the key is missing.
    pub(super) fn optional_time(&mut self, key: &str, value: &mut Option<Time>) {
        if self.has(key, value.is_some()) {
            self.time(key, value.get_or_insert_default());
        }
    }

    /// The items of a list. `None` while an object is written, and after an error.
    fn items(&mut self, key: &str) -> Option<&'a [Json]> {
        match self.next(key)? {
            Some(Json::Array(items)) => Some(items),
            _ => {
                self.fail(cannot(key, "it is not a list"));
                None
            }
        }
    }

    pub(super) fn strings(&mut self, key: &str, values: &mut Vec<String>) {
        if self.from.is_none() {
            let items = values.iter().map(|text| text.as_str().into()).collect();
            return self.put(key, Json::Array(items));
        }
        let Some(items) = self.items(key) else { return };
        values.clear();
        for item in items {
            match item {
                Json::String(text) => values.push(text.clone()),
                _ => return self.fail(cannot(key, "an item is not a string")),
            }
        }
    }

    /// A list of values in text form.
    pub(super) fn texts<T: Display + FromStr>(&mut self, key: &str, values: &mut Vec<T>) {
        let mut texts = Vec::new();
        for value in values.iter() {
            texts.push(value.to_string());
        }
        self.strings(key, &mut texts);
        if self.from.is_none() {
            return;
        }
        for text in texts {
            match text.parse() {
                Ok(parsed) => values.push(parsed),
                Err(_) => return self.fail(cannot(key, "an item is invalid")),
            }
        }
    }

    pub(super) fn numbers(&mut self, key: &str, values: &mut Vec<u64>) {
        if self.from.is_none() {
            return self.put(key, Json::Array(values.iter().map(|it| (*it).into()).collect()));
        }
        let Some(items) = self.items(key) else { return };
        values.clear();
        for item in items {
            let mut number = 0;
            self.set(key, Some(item), &mut number);
            values.push(number);
        }
    }

    pub(super) fn bytes(&mut self, key: &str, values: &mut Vec<u8>) {
        let mut numbers = values.iter().copied().map(u64::from).collect();
        self.numbers(key, &mut numbers);
        values.clear();
        for number in numbers {
            match u8::try_from(number) {
                Ok(byte) => values.push(byte),
                Err(_) => self.fail(cannot(key, OUT_OF_RANGE)),
            }
        }
    }

    /// An object.
    pub(super) fn object(&mut self, key: &str, pass: &mut dyn FnMut(&mut Fields<'_>)) {
        if self.from.is_none() {
            return self.put(key, Fields::written(pass));
        }
        if let Some(found) = self.next(key) {
            self.read(found.unwrap_or(&Json::Null), pass);
        }
    }

    /// A list of objects: `pass` gets the index of each. `count`: how many are written.
    pub(super) fn objects(
        &mut self,
        key: &str,
        count: usize,
        pass: &mut dyn FnMut(&mut Fields<'_>, usize),
    ) {
        if self.from.is_none() {
            let write = |index| Fields::written(&mut |fields| pass(fields, index));
            return self.put(key, Json::Array((0..count).map(write).collect()));
        }
        for (index, item) in self.items(key).unwrap_or_default().iter().enumerate() {
            self.read(item, &mut |fields| pass(fields, index));
        }
    }

    fn read(&mut self, json: &Json, pass: &mut dyn FnMut(&mut Fields<'_>)) {
        let mut fields = Fields::of(json);
        pass(&mut fields);
        if let Err(error) = fields.end() {
            self.fail(error);
        }
    }
}

const OUT_OF_RANGE: &str = "it is out of range";

#[cold]
pub(super) fn cannot(key: &str, reason: &str) -> Error {
    let mut msg = String::from("cannot read ");
    for part in [key, ": ", reason] {
        msg.push_str(part);
    }
    Error::new(Code::DECODE, msg)
}

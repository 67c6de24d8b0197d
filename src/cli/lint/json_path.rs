//! Paths to keys and items of a JSON document, and their positions in its text.

use serde_json::value::RawValue;

use crate::cni::json::{Entries, is_key};

/// The path from the root of a document to a key or to an item of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonPath<'a>(Vec<Segment<'a>>);

#[derive(Clone, Copy, Debug)]
enum Segment<'a> {
    Key(&'a str),
    Item(usize),
}

impl<'a> JsonPath<'a> {
    pub(super) fn key(&self, key: &'a str) -> Self {
        self.with(Segment::Key(key))
    }

    pub(super) fn item(&self, index: usize) -> Self {
        self.with(Segment::Item(index))
    }

    fn with(&self, segment: Segment<'a>) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment);
        Self(segments)
    }

    /// The offset of the key or item in the text of a valid document, in bytes. If it does not exist: the offset of the last
    /// segment that exists.
    pub(super) fn offset_in(&self, text: &str) -> usize {
        let Ok(mut value) = serde_json::from_str::<&RawValue>(text) else { return 0 };
        let mut start = value;
        for segment in &self.0 {
            match segment.enter(value) {
                Some(found) => (start, value) = found,
                None => break,
            }
        }
        // serde_json returns slices of the text.
        start.get().as_ptr().addr() - text.as_ptr().addr()
    }
}

impl Segment<'_> {
    /// Finds this segment in a value: returns a key and its value, or an item twice. Keys are compared without regard to case;
    /// of equal keys the last counts.
    fn enter<'t>(&self, value: &'t RawValue) -> Option<(&'t RawValue, &'t RawValue)> {
        match self {
            Self::Key(key) => {
                let Entries(entries) = serde_json::from_str(value.get()).ok()?;
                entries.into_iter().rfind(|(name, _)| {
                    let name: String = serde_json::from_str(name.get()).unwrap_or_default();
                    is_key(&name, key)
                })
            }
            Self::Item(index) => {
                let items: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
                items.get(*index).map(|item| (*item, *item))
            }
        }
    }
}

/// The offset of a parse error in bytes, and its reason.
pub(super) fn offset_and_reason(text: &str, error: &serde_json::Error) -> (usize, String) {
    let before = text.split_inclusive('\n').take(error.line().saturating_sub(1));
    let line_start: usize = before.map(str::len).sum();
    let at = (line_start + error.column().saturating_sub(1)).min(text.len());
    let error = error.to_string();
    let reason = match text.trim().is_empty() {
        true => "it is empty",
        false => error.split(" at line ").next().unwrap_or_default(),
    };
    (at, reason.to_owned())
}

/// Line and column of a byte, counted from 1; the column counts characters.
pub(super) fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#" {"a": [1, {"b\u0062": "x]", "c" : {}}, "y"],
  "A": {"z": [[], [true]]} }"#;

    fn at<'a>(path: &JsonPath<'a>) -> &'a str {
        &TEXT[path.offset_in(TEXT)..]
    }

    #[test]
    fn a_path_leads_to_the_key_or_the_item() {
        let root = JsonPath::default();
        assert!(at(&root).starts_with("{\"a\""));
        // Of equal keys the last, in any case.
        assert!(at(&root.key("a")).starts_with("\"A\": {"));
        let z = root.key("a").key("z");
        assert!(at(&z).starts_with("\"z\": ["));
        assert!(at(&z.item(1)).starts_with("[true]"));
        assert!(at(&z.item(1).item(0)).starts_with("true]"));
        assert!(at(&z.item(5)).starts_with("\"z\""), "the last place that exists");
        let text = r#"{"l": [1, {"b\u0062": "x]", "c" : {}}, "y"]}"#;
        let second = root.key("l").item(1);
        assert!(text[second.key("bb").offset_in(text)..].starts_with("\"b\\u0062\""));
        assert!(text[second.key("c").offset_in(text)..].starts_with("\"c\" : {}"));
        assert!(text[root.key("l").item(2).offset_in(text)..].starts_with("\"y\"]"));
    }

    #[test]
    fn lines_and_columns_count_from_one() {
        assert_eq!(line_and_column("ab\ncd", 0), (1, 1));
        assert_eq!(line_and_column("ä\ncd", 4), (2, 2));
        assert_eq!(line_and_column("ab", 9), (1, 3));
    }
}

//! Places in the text of a JSON document.

use crate::cni::json::Json;

/// The way from the root of a document to a key or to an item of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct Path<'a>(Vec<Step<'a>>);

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Key(&'a str),
    Item(usize),
}

impl<'a> Path<'a> {
    pub(super) fn key(&self, key: &'a str) -> Self {
        self.with(Step::Key(key))
    }

    pub(super) fn item(&self, index: usize) -> Self {
        self.with(Step::Item(index))
    }

    fn with(&self, step: Step<'a>) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    /// Where the last step begins in the text of a valid document, in bytes: at the key, or at the item. If the way ends
    /// early, the last place that exists.
    pub(super) fn place_in(&self, text: &str) -> usize {
        let mut scanner = Scanner { text: text.as_bytes(), at: 0 };
        scanner.skip_white();
        let mut place = scanner.at;
        for step in &self.0 {
            match scanner.enter(step) {
                Some(found) => place = found,
                None => break,
            }
        }
        place
    }
}

/// Line and column of a byte, counted from 1; the column counts characters.
pub(super) fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// A position in a valid document.
#[derive(Clone, Copy)]
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn byte(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or_default()
    }

    fn skip_white(&mut self) {
        while matches!(self.byte(), b' ' | b'\t' | b'\r' | b'\n') {
            self.at += 1;
        }
    }

    /// Goes from the start of a container to a value in it. Returns where its key or item begins; of equal keys the last.
    fn enter(&mut self, step: &Step<'_>) -> Option<usize> {
        let (open, close) = match step {
            Step::Key(_) => (b'{', b'}'),
            Step::Item(_) => (b'[', b']'),
        };
        if self.byte() != open {
            return None;
        }
        self.at += 1;
        let (mut found, mut index) = (None, 0);
        loop {
            self.skip_white();
            if self.byte() == close || self.at >= self.text.len() {
                break;
            }
            let start = self.at;
            let is_wanted = match step {
                Step::Item(wanted) => index == *wanted,
                Step::Key(wanted) => {
                    self.skip_value();
                    let is_equal = is_key(&self.text[start..self.at], wanted);
                    self.skip_white();
                    // The colon.
                    self.at += 1;
                    self.skip_white();
                    is_equal
                }
            };
            if is_wanted {
                found = Some((start, *self));
            }
            self.skip_value();
            self.skip_white();
            if self.byte() == b',' {
                self.at += 1;
            }
            index += 1;
        }
        let (start, inside) = found?;
        *self = inside;
        Some(start)
    }

    /// Skips a value, or a key.
    fn skip_value(&mut self) {
        let mut depth = 0;
        loop {
            match self.byte() {
                b'"' => self.skip_string(),
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth == 0 => return,
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => return,
                _ if self.at >= self.text.len() => return,
                _ => self.at += 1,
            }
            if depth == 0 && matches!(self.text.get(self.at - 1), Some(b'"' | b'}' | b']')) {
                return;
            }
        }
    }

    fn skip_string(&mut self) {
        self.at += 1;
        while self.at < self.text.len() && self.byte() != b'"' {
            self.at += if self.byte() == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
    }
}

/// Whether a string in the text, with its quotes, is a key, in any case.
fn is_key(quoted: &[u8], key: &str) -> bool {
    match Json::parse(quoted) {
        Ok(Json::String(text)) => text.eq_ignore_ascii_case(key),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#" {"a": [1, {"b\u0062": "x]", "c" : {}}, "y"],
  "A": {"z": [[], [true]]} }"#;

    fn at<'a>(path: &Path<'a>) -> &'a str {
        &TEXT[path.place_in(TEXT)..]
    }

    #[test]
    fn a_path_leads_to_the_key_or_the_item() {
        let root = Path::default();
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
        assert!(text[second.key("bb").place_in(text)..].starts_with("\"b\\u0062\""));
        assert!(text[second.key("c").place_in(text)..].starts_with("\"c\" : {}"));
        assert!(text[root.key("l").item(2).place_in(text)..].starts_with("\"y\"]"));
    }

    #[test]
    fn lines_and_columns_count_from_one() {
        assert_eq!(line_and_column("ab\ncd", 0), (1, 1));
        assert_eq!(line_and_column("ä\ncd", 4), (2, 2));
        assert_eq!(line_and_column("ab", 9), (1, 3));
    }
}

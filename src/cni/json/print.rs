//! Prints JSON as Go's encoding/json does.

use super::Json;

/// The document on one line, or with this indentation for each level.
pub fn print(json: &Json, indent: Option<&str>) -> String {
    let mut writer = Writer { out: String::with_capacity(OUT_BYTES), indent, margin: "\n".into() };
    writer.value(json);
    writer.out
}

/// Room for a usual result.
const OUT_BYTES: usize = 1024;

/// Prints as Go does, which also escapes the special characters of HTML.
struct Writer<'a> {
    out: String,
    /// The indentation of a level. `None` prints one line.
    indent: Option<&'a str>,
    /// A newline and the indentation of the current level.
    margin: String,
}

impl Writer<'_> {
    fn value(&mut self, json: &Json) {
        match json {
            Json::Null => self.out.push_str("null"),
            Json::Bool(value) => self.out.push_str(if *value { "true" } else { "false" }),
            Json::Number(number) => self.out.push_str(&number.to_string()),
            Json::String(text) => self.text(text),
            Json::Raw(text) => self.out.push_str(text),
            Json::Array(values) => self.list('[', ']', values, Self::value),
            Json::Object(entries) => self.list('{', '}', entries, |this, (key, value)| {
                this.text(key);
                this.out.push_str(if this.indent.is_some() { ": " } else { ":" });
                this.value(value);
            }),
        }
    }

    fn list<T>(&mut self, open: char, close: char, items: &[T], item: impl Fn(&mut Self, &T)) {
        self.out.push(open);
        let outside = self.margin.len();
        self.margin.push_str(self.indent.unwrap_or_default());
        for (index, it) in items.iter().enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            self.begin_line();
            item(self, it);
        }
        self.margin.truncate(outside);
        if !items.is_empty() {
            self.begin_line();
        }
        self.out.push(close);
    }

    fn begin_line(&mut self) {
        if self.indent.is_some() {
            self.out.push_str(&self.margin);
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        let mut rest = text;
        while let Some(at) = rest.bytes().position(|byte| !is_plain(byte)) {
            self.out.push_str(&rest[..at]);
            let mut chars = rest[at..].chars();
            if let Some(c) = chars.next() {
                self.push(c);
            }
            rest = chars.as_str();
        }
        self.out.push_str(rest);
        self.out.push('"');
    }

    fn push(&mut self, c: char) {
        let short = match c {
            '"' | '\\' => c,
            '\u{8}' => 'b',
            '\u{c}' => 'f',
            '\n' => 'n',
            '\r' => 'r',
            '\t' => 't',
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                return self.out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            _ => return self.out.push(c),
        };
        self.out.extend(['\\', short]);
    }
}

/// Not the first byte of a character that is escaped, which is no byte within a character either.
fn is_plain(byte: u8) -> bool {
    !matches!(byte, b'"' | b'\\' | 0..=0x1f | b'<' | b'>' | b'&' | 0xe2)
}

//! A number of a JSON document. It keeps its text, so that a number of any size is accepted and printed unchanged.

use std::fmt::{self, Display};

/// The text of a number. Numbers are compared as texts: `1.0` and `1` differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Number(Box<str>);

impl Number {
    /// `text` is a number by the grammar of JSON.
    pub(super) fn new(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_u64(&self) -> Option<u64> {
        self.0.parse().ok()
    }

    pub fn as_i64(&self) -> Option<i64> {
        self.0.parse().ok()
    }

    /// The value as a signed or unsigned integer of 64 bits.
    pub(super) fn as_i128(&self) -> Option<i128> {
        self.as_i64().map(i128::from).or_else(|| self.as_u64().map(i128::from))
    }

    pub(super) fn is_minus_zero(&self) -> bool {
        *self.0 == *"-0"
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_keeps_its_text() {
        let cases = [
            ("0", Some(0), Some(0)),
            ("-0", None, Some(0)),
            ("-5", None, Some(-5)),
            ("4294967296", Some(4_294_967_296), Some(4_294_967_296)),
            ("-9223372036854775808", None, Some(i64::MIN)),
            ("9223372036854775808", Some(1 << 63), None),
            ("18446744073709551615", Some(u64::MAX), None),
            ("18446744073709551616", None, None),
            ("1.0", None, None),
            ("1e2", None, None),
            ("1E400", None, None),
        ];
        for (text, unsigned, signed) in cases {
            let number = Number::new(text);
            assert_eq!((number.as_u64(), number.as_i64()), (unsigned, signed), "{text}");
            assert_eq!(number.to_string(), text);
        }
    }
}

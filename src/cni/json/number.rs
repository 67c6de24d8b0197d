//! A number of a JSON document. It keeps its text, so that a number of any size is accepted and printed unchanged.

use std::fmt::{self, Display};

/// Equal numbers have the same text: `1.0` and `1` differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Number(Repr);

#[derive(Clone, Debug, PartialEq)]
enum Repr {
    Int(i64),
    /// Any number that `Int` would print differently.
    Text(Box<str>),
}

impl Number {
    /// `text` is a number by the grammar of JSON.
    pub(super) fn new(text: &str) -> Self {
        match text.parse() {
            // An `Int` would print `-0` as `0`.
            Ok(value) if text != "-0" => Self(Repr::Int(value)),
            _ => Self(Repr::Text(text.into())),
        }
    }

    pub fn as_u64(&self) -> Option<u64> {
        match &self.0 {
            Repr::Int(value) => u64::try_from(*value).ok(),
            Repr::Text(text) => text.parse().ok(),
        }
    }

    pub fn as_i64(&self) -> Option<i64> {
        match &self.0 {
            Repr::Int(value) => Some(*value),
            Repr::Text(text) => text.parse().ok(),
        }
    }

    /// The value of `as_u64` or `as_i64`.
    pub(super) fn as_i128(&self) -> Option<i128> {
        self.as_i64().map(i128::from).or_else(|| self.as_u64().map(i128::from))
    }

    pub(super) fn is_minus_zero(&self) -> bool {
        matches!(&self.0, Repr::Text(text) if **text == *"-0")
    }

    /// The nearest float; None if the number is too large.
    pub fn as_f64(&self) -> Option<f64> {
        self.to_string().parse().ok().filter(|value: &f64| value.is_finite())
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Int(value) => value.fmt(f),
            Repr::Text(text) => f.write_str(text),
        }
    }
}

impl From<u32> for Number {
    fn from(value: u32) -> Self {
        Self(Repr::Int(value.into()))
    }
}

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        match i64::try_from(value) {
            Ok(value) => Self(Repr::Int(value)),
            Err(_) => Self(Repr::Text(value.to_string().into())),
        }
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

    #[test]
    fn floats_are_the_nearest_ones() {
        let cases = [("3", Some(3.0)), ("-1.5e3", Some(-1500.0)), ("1e400", None)];
        for (text, float) in cases {
            assert_eq!(Number::new(text).as_f64(), float, "{text}");
        }
    }
}

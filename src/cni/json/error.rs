//! The error of a read from a `Json` value: the reason, and the path in the document.

use std::fmt::{self, Display};

use serde::de::{self, Unexpected};

/// Prints as `ipam.ranges[0][1].subnet: invalid type: integer `5`, expected a string`.
#[derive(Debug)]
pub struct Error(Box<Parts>);

#[derive(Debug)]
struct Parts {
    /// The innermost step first.
    path: Vec<Step>,
    what: String,
}

/// One level of the path to the error.
#[derive(Debug)]
pub enum Step {
    /// An entry of an object: its key, and its position since keys may repeat.
    Key(String, usize),
    /// An element of an array.
    Index(usize),
}

impl Error {
    /// The path to the error, the innermost step first.
    pub fn path(&self) -> &[Step] {
        &self.0.path
    }

    /// Adds the key of the object that contains the error.
    #[cold]
    #[inline(never)]
    pub fn under_key(mut self, key: &str, index: usize) -> Self {
        self.0.path.push(Step::Key(key.into(), index));
        self
    }

    /// Adds the index in the array that contains the error.
    #[cold]
    #[inline(never)]
    pub fn under_index(mut self, index: usize) -> Self {
        self.0.path.push(Step::Index(index));
        self
    }

    /// The text of serde. Its own implementation would add the code that prints fractions.
    fn invalid(what: &str, unexpected: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let found = match unexpected {
            Unexpected::Unit => "null".into(),
            Unexpected::Bool(value) => format!("boolean `{value}`"),
            Unexpected::Unsigned(value) => format!("integer `{value}`"),
            Unexpected::Signed(value) => format!("integer `{value}`"),
            Unexpected::Float(_) => "floating point number".into(),
            Unexpected::Str(value) => format!("string {value:?}"),
            Unexpected::Seq => "sequence".into(),
            Unexpected::Map => "map".into(),
            Unexpected::Other(value) => value.into(),
            _ => "something else".into(),
        };
        de::Error::custom(format_args!("invalid {what}: {found}, expected {expected}"))
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { path, what } = &*self.0;
        for (depth, step) in path.iter().rev().enumerate() {
            match step {
                Step::Key(key, _) => write!(f, "{}{key}", if depth > 0 { "." } else { "" })?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        write!(f, "{}{what}", if path.is_empty() { "" } else { ": " })
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    #[cold]
    #[inline(never)]
    fn custom<T: Display>(what: T) -> Self {
        Self(Box::new(Parts { path: Vec::new(), what: what.to_string() }))
    }

    fn duplicate_field(_: &'static str) -> Self {
        unreachable!() // see `Object` in `de`
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::invalid("type", unexpected, expected)
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::invalid("value", unexpected, expected)
    }
}

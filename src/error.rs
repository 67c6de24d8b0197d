//! The one error type: a CNI error code, and what we were doing, outermost first. Knows nothing of where it is printed.

use std::fmt::{self, Display};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A CNI error code. A number rather than a closed list, since a delegated plugin's own codes (100 and up) pass
/// through us unchanged.
///
/// Source: CNI specification 1.1.0, section 5, "Error".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    pub const INCOMPATIBLE_VERSION: Self = Self(1);
    pub const UNSUPPORTED_FIELD: Self = Self(2);
    pub const UNKNOWN_CONTAINER: Self = Self(3);
    pub const INVALID_ENVIRONMENT: Self = Self(4);
    pub const IO: Self = Self(5);
    pub const DECODE: Self = Self(6);
    pub const INVALID_CONFIG: Self = Self(7);
    /// The container's namespace is the one that the plugin itself runs in.
    pub const SAME_NETNS: Self = Self(8);
    pub const TRY_AGAIN_LATER: Self = Self(11);
    /// STATUS: ADD would fail.
    pub const NOT_AVAILABLE: Self = Self(50);
    /// Something inside failed, as the reference numbers it.
    pub const INTERNAL: Self = Self(999);
}

/// What went wrong. `Display` gives the whole chain on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub code: Code,
    /// One sentence for people and for programs that match on texts: `cannot <verb> <object>: <reason>`.
    pub msg: String,
    /// What led to it, may be empty.
    pub details: String,
}

impl Error {
    pub fn new(code: Code, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new() }
    }

    pub fn internal(msg: impl Into<String>) -> Self {
        Self::new(Code::INTERNAL, msg)
    }

    /// A key of the configuration has a value that cannot be meant.
    pub fn config(msg: impl Into<String>) -> Self {
        Self::new(Code::INVALID_CONFIG, msg)
    }

    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// The same error, with another one that came on top of it in the details.
    pub fn also(mut self, another: &Self) -> Self {
        let separator = if self.details.is_empty() { "" } else { "; " };
        self.details.push_str(&format!("{separator}also: {another}"));
        self
    }

    /// For STATUS: whatever stands in the way of an ADD makes it unavailable (code 50).
    pub fn into_not_available(self) -> Self {
        Self { code: Code::NOT_AVAILABLE, ..self }
    }

    /// Puts what we were doing in front; what was the message becomes the first of the details.
    pub fn context(self, doing: impl Display) -> Self {
        let details = match self.details.as_str() {
            "" => self.msg,
            deeper => format!("{}: {deeper}", self.msg),
        };
        Self { code: self.code, msg: doing.to_string(), details }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.msg)?;
        if self.details.is_empty() { Ok(()) } else { write!(f, ": {}", self.details) }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_moves_the_message_into_the_details() {
        let error = Error::config("c").context("b").context("a");
        assert_eq!((error.msg.as_str(), error.details.as_str()), ("a", "b: c"));
        assert_eq!((error.code, error.to_string()), (Code::INVALID_CONFIG, "a: b: c".into()));
    }
}

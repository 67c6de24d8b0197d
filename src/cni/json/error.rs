//! The error of a conversion from a `Json` value: the reason, and the path in the document.

use std::fmt::{self, Display};

use crate::error::{self, Code};

/// The error of a conversion. Its text is `ipam.ranges[0][1].subnet: invalid type: integer `5`, expected a string`.
#[derive(Debug)]
pub struct Error {
    /// The innermost step first.
    path: Vec<Step>,
    reason: String,
}

/// One level of the path to the error.
#[derive(Debug)]
pub enum Step {
    /// An entry of an object: its key, and its index, because keys can be repeated.
    Key(String, usize),
    /// An element of an array.
    Index(usize),
}

impl Error {
    /// Makes an error with this reason and an empty path.
    pub fn new(reason: String) -> Self {
        Self { path: Vec::new(), reason }
    }

    /// The error of a document (code 6). `what` names the document.
    pub fn in_document(&self, what: &str) -> error::Error {
        error::Error::new(Code::DECODE, format_args!("cannot read {what}: {self}"))
    }

    /// Like `in_document`, but the message is only the reason, as in the IPAM plugins of the reference; the path is in the
    /// details.
    pub fn reason_first(&self, what: &str) -> error::Error {
        let path = fmt::from_fn(|f| self.write_path(f));
        let details = format_args!("cannot read {what}: {path}");
        error::Error::new(Code::DECODE, self.reason.as_str()).with_details(details)
    }

    fn write_path(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.path.iter().rev().enumerate() {
            match step {
                Step::Key(key, _) => write!(f, "{}{key}", if depth > 0 { "." } else { "" })?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }

    /// The path to the error, the innermost step first.
    pub fn path(&self) -> &[Step] {
        &self.path
    }

    /// Adds the key of the object that contains the error.
    pub fn under_key(mut self, key: &str, index: usize) -> Self {
        self.path.push(Step::Key(key.into(), index));
        self
    }

    /// Adds the index in the array that contains the error.
    pub fn under_index(mut self, index: usize) -> Self {
        self.path.push(Step::Index(index));
        self
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_path(f)?;
        write!(f, "{}{}", if self.path.is_empty() { "" } else { ": " }, self.reason)
    }
}

impl std::error::Error for Error {}

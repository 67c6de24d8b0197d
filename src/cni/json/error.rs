//! The error of a conversion from a `Json` value: the reason, and the path in the document.

use std::fmt::{self, Display};

/// The error of a conversion. Its text is `ipam.ranges[0][1].subnet: invalid type: integer `5`, expected a string`.
#[derive(Debug)]
pub struct Error(Box<Content>);

#[derive(Debug)]
struct Content {
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
    #[cold]
    #[inline(never)]
    pub fn new(reason: String) -> Self {
        Self(Box::new(Content { path: Vec::new(), reason }))
    }

    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// The path to the error as text, such as `ipam.ranges[0]`.
    pub fn path_text(&self) -> impl Display {
        fmt::from_fn(|f| self.write_path(f))
    }

    fn write_path(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.0.path.iter().rev().enumerate() {
            match step {
                Step::Key(key, _) => write!(f, "{}{key}", if depth > 0 { "." } else { "" })?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }

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
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_path(f)?;
        let Content { path, reason } = &*self.0;
        write!(f, "{}{reason}", if path.is_empty() { "" } else { ": " })
    }
}

impl std::error::Error for Error {}

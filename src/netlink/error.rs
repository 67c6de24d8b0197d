//! The error of a netlink request.

use std::fmt::{self, Display};
use std::io;
use std::ops::Deref;

use nix::errno::Errno;
use nix::libc;

/// A request that failed. It is one pointer wide, as `crate::error::Error` is, and for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Fields>);

/// The fields of an `Error`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The request that failed: `cannot add link eth0`.
    pub doing: String,
    pub errno: i32,
    /// The text of the extended acknowledgement.
    pub hint: Option<String>,
}

impl Error {
    /// The object exists already.
    pub fn is_exists(&self) -> bool {
        self.errno == libc::EEXIST
    }

    /// The object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno, libc::ENODEV | libc::ENOENT)
    }

    /// The object is in use.
    pub fn is_busy(&self) -> bool {
        self.errno == libc::EBUSY
    }

    /// Another interface has the address.
    pub fn is_address_in_use(&self) -> bool {
        self.errno == libc::EADDRINUSE
    }

    /// The process lacks a capability.
    pub fn is_not_permitted(&self) -> bool {
        self.errno == libc::EPERM
    }

    /// The kernel lacks an option, or a module is missing.
    pub fn is_unsupported(&self) -> bool {
        self.errno == libc::EOPNOTSUPP
    }

    /// No route leads to the destination, or a route forbids it.
    pub fn is_unreachable(&self) -> bool {
        matches!(self.errno, libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL)
    }

    pub fn new(doing: String, errno: i32, hint: Option<String>) -> Self {
        Self(Box::new(Fields { doing, errno, hint }))
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    pub(super) fn of(doing: &str, error: &io::Error) -> Self {
        Self::new(doing.into(), error.raw_os_error().unwrap_or(libc::EIO), None)
    }
}

impl Deref for Error {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.0
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, Errno::from_raw(self.errno).desc())?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

impl std::error::Error for Error {}

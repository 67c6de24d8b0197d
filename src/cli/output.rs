//! Lines and documents on stdout, and the words that all commands use.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;

use serde::Serialize;

use crate::cni::json;
use crate::error::{Code, Error, Text};
use crate::kernel::sys::{self, warn};
use crate::kernel::terminal::printable;

pub(super) const NAME: &str = "cnibox";

/// Marks an error in the arguments, which has an exit code of its own.
pub(super) const USAGE_ERROR: Code = Code(u32::MAX);

#[cfg(any(feature = "runtime", feature = "install"))]
pub(super) fn usage_error(msg: impl Text) -> Error {
    Error::new(USAGE_ERROR, msg)
}

/// The usual directory of plugins.
pub(super) const PLUGIN_DIRECTORY: &str = "/opt/cni/bin";

#[cfg(feature = "runtime")]
pub(super) fn cannot_write(error: &io::Error) -> Error {
    Error::new(Code::IO, "cannot write to stdout").with_details(error.to_string())
}

/// Prints a document.
pub(super) fn print_json(document: &impl Serialize) {
    print_text(&json::pretty(document));
}

/// Prints a document that has only a list.
pub(super) fn print_json_list<T: Serialize>(key: &str, list: &[T]) {
    print_json(&BTreeMap::from([(key, list)]));
}

/// Prints a line: it stays one line, whatever is in it. If it cannot be written, the program ends with exit code 1.
pub(super) fn print_line(line: &str) {
    print_text(&printable(line.trim_end()));
}

/// The same for a document or a manual, which has several lines and no text of others as it is.
#[expect(clippy::disallowed_methods, reason = "no caller could do more")]
pub(super) fn print_text(text: &str) {
    let text = [text.trim_end(), "\n"].concat();
    if let Err(error) = sys::write_all(io::stdout().as_fd(), text.as_bytes()) {
        warn(format_args!("{NAME}: cannot write to stdout: {}", sys::reason(&error)));
        std::process::exit(1);
    }
}

/// The same for a line that is formatted, which takes less code than a `String`.
#[inline(never)]
pub(super) fn print_args(line: fmt::Arguments<'_>) {
    print_line(&line.to_string());
}

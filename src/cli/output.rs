//! Prints lines and JSON documents on stdout. Names, paths and errors that all commands use.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;

use serde::Serialize;

use crate::cni::json;
use crate::error::{Code, Error};
use crate::kernel::sys::{self, warn};
use crate::kernel::terminal::printable;

pub(super) const NAME: &str = "cnibox";

/// The internal code of a usage error: the process exits with 2. It is not a code of the CNI specification.
pub(super) const USAGE_ERROR: Code = Code(u32::MAX);

#[cfg(any(feature = "runtime", feature = "install"))]
pub(super) fn usage_error(msg: impl fmt::Display) -> Error {
    Error::new(USAGE_ERROR, msg)
}

/// The usual directory of plugins.
pub(super) const PLUGIN_DIRECTORY: &str = "/opt/cni/bin";

#[cfg(feature = "runtime")]
pub(super) fn cannot_write(error: &io::Error) -> Error {
    Error::new(Code::IO, "cannot write to stdout").with_details(error.to_string())
}

/// Prints a JSON document.
pub(super) fn print_json(document: &impl Serialize) {
    print_text(&json::pretty(document));
}

/// Prints a JSON object with one key, whose value is a list.
pub(super) fn print_json_list<T: Serialize>(key: &str, list: &[T]) {
    print_json(&BTreeMap::from([(key, list)]));
}

/// Prints one line: control characters in the text, newlines included, are replaced. If the write fails, the process exits with
/// 1.
pub(super) fn print_line(line: &str) {
    print_text(&printable(line.trim_end()));
}

/// Prints a text of several lines, such as a JSON document or a manual, without replacing characters: the caller escapes names
/// and other foreign text. If the write fails, the process exits with 1.
#[expect(clippy::disallowed_methods, reason = "no caller could do more")]
pub(super) fn print_text(text: &str) {
    let text = [text.trim_end(), "\n"].concat();
    if let Err(error) = sys::write_all(io::stdout().as_fd(), text.as_bytes()) {
        warn(format_args!("{NAME}: cannot write to stdout: {}", sys::reason(&error)));
        std::process::exit(1);
    }
}

/// `print_line` for `format_args!`, which compiles to less code than `format!`.
#[inline(never)]
pub(super) fn print_args(line: fmt::Arguments<'_>) {
    print_line(&line.to_string());
}

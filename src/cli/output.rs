//! Prints lines and JSON documents on stdout. Names, paths and errors that all commands use.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io;
use std::os::fd::AsFd;

use serde::Serialize;

use crate::cni::json;
use crate::error::{Code, Error};
use crate::kernel::sys::{self, warn};
use crate::kernel::terminal::printable;

pub(super) const NAME: &str = "cnibox";

/// The usual directory of plugins.
pub(super) const PLUGIN_DIRECTORY: &str = "/opt/cni/bin";

/// The internal code of a usage error: the process exits with 2. It is not a code of the CNI specification.
pub(super) const USAGE_ERROR: Code = Code(u32::MAX);

pub(super) fn usage_error(msg: impl Display) -> Error {
    Error::new(USAGE_ERROR, msg)
}

/// Prints a JSON document.
pub(super) fn print_json(document: &impl Serialize) {
    print_text(&json::pretty(document));
}

/// The output of --json of a command that has --dry-run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Done<T> {
    pub(super) dry_run: bool,
    #[serde(flatten)]
    pub(super) done: T,
}

/// Prints a JSON object with one key, whose value is a list.
pub(super) fn print_json_list<T: Serialize>(key: &str, list: &[T]) {
    print_json(&BTreeMap::from([(key, list)]));
}

/// Prints one line: control characters in the text, newlines included, are replaced. If the write fails, the process exits with
/// 1.
pub(super) fn print_line(line: impl Display) {
    print_text(&printable(line.to_string().trim_end()));
}

/// Prints a line of a finding: a fault on stdout, a note on stderr.
pub(super) fn print_finding(is_fault: bool, line: fmt::Arguments<'_>) {
    if is_fault { print_line(line) } else { warn(line) }
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

//! Prints the changes of `install` and `uninstall`, as lines or as JSON.

use std::borrow::Cow;
use std::ops::Not;
use std::path::Path;

use serde::Serialize;

use crate::cli;
use crate::kernel::sys::warn;
use crate::plugin::VERSION;

use super::existing::ExistingFile;

/// The change of one name.
#[derive(Serialize)]
pub(super) struct Change {
    pub(super) name: String,
    pub(super) action: &'static str,
    /// The action in the past tense.
    #[serde(skip)]
    pub(super) done: &'static str,
    /// The kind of the new file. Empty without a new file.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) kind: &'static str,
    /// The replaced file in words. Empty if no file is replaced.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) replaced: &'static str,
    #[serde(rename = "backup", skip_serializing_if = "Not::not")]
    pub(super) has_backup: bool,
}

impl Change {
    pub(super) fn of([action, done]: [&'static str; 2], name: &str) -> Self {
        Self { action, done, name: name.into(), kind: "", replaced: "", has_backup: false }
    }

    /// A new file in place of the existing one.
    pub(super) fn to(
        name: &str,
        kind: &'static str,
        found: Option<&ExistingFile>,
        has_backup: bool,
    ) -> Self {
        let replaced = found.map_or("", ExistingFile::noun);
        let is_new = replaced.is_empty();
        let verb = if is_new { ["create", "created"] } else { ["replace", "replaced"] };
        Self { kind, replaced, has_backup, ..Self::of(verb, name) }
    }
}

/// The changes that a command makes, or would make.
#[derive(Default, Serialize)]
pub(super) struct Report {
    pub(super) changes: Vec<Change>,
    pub(super) left: Vec<Left>,
}

/// A file that is not removed or replaced, and the reason.
#[derive(Serialize)]
pub(super) struct Left {
    pub(super) name: String,
    pub(super) reason: &'static str,
}

/// The output of --json.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonOutput<'a> {
    directory: Cow<'a, str>,
    dry_run: bool,
    version: &'static str,
    #[serde(flatten)]
    report: &'a Report,
}

impl Report {
    pub(super) fn print(&self, directory: &Path, is_dry_run: bool, is_json: bool) {
        for Left { name, reason } in &self.left {
            warn(format_args!("note: {name} stays: {reason}"));
        }
        if is_json {
            let (version, directory) = (VERSION, directory.to_string_lossy());
            let document = JsonOutput { directory, dry_run: is_dry_run, version, report: self };
            return cli::output::print_json(&document);
        }
        for Change { name, action, done, kind, replaced, has_backup } in &self.changes {
            let [would, verb] = if is_dry_run { ["would ", action] } else { ["", done] };
            let colon = if kind.is_empty() { "" } else { ": " };
            let of = if replaced.is_empty() { "" } else { ", in place of " };
            let backup = if *has_backup { ", with a backup" } else { "" };
            cli::output::print_line(format_args!(
                "{would}{verb} {name}{colon}{kind}{of}{replaced}{backup}"
            ));
        }
    }
}

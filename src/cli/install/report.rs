//! Makes the changes of `install` and `uninstall`, unless the command has --dry-run, and prints them, as lines or as JSON.

use std::ops::Not;
use std::path::Path;

use serde::Serialize;

use crate::cli::output::{print_json, print_line};
use crate::error::Result;
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
        Self { name: name.into(), action, done, kind: "", replaced: "", has_backup: false }
    }

    /// A new file in place of the existing one.
    pub(super) fn to(name: &str, kind: &'static str, found: Option<&ExistingFile>) -> Self {
        let verb = found.map_or(["create", "created"], |_| ["replace", "replaced"]);
        Self { kind, replaced: found.map_or("", ExistingFile::noun), ..Self::of(verb, name) }
    }

    pub(super) fn remove(name: &str) -> Self {
        Self::of(["remove", "removed"], name)
    }
}

/// A file that is not removed or replaced, and the reason.
#[derive(Serialize)]
struct Left {
    name: String,
    reason: &'static str,
}

/// The changes that a command makes, or would make. It is also the output of --json.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    directory: String,
    #[serde(rename = "dryRun")]
    pub(super) is_dry_run: bool,
    version: &'static str,
    pub(super) changes: Vec<Change>,
    left: Vec<Left>,
}

impl Report {
    pub(super) fn new(directory: &Path, is_dry_run: bool) -> Self {
        let (directory, version) = (directory.to_string_lossy().into(), VERSION);
        Self { directory, is_dry_run, version, changes: Vec::new(), left: Vec::new() }
    }

    /// Makes a change and adds it. A dry run only adds it.
    pub(super) fn make(&mut self, change: Change, make: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.is_dry_run {
            make()?;
        }
        self.changes.push(change);
        Ok(())
    }

    /// Adds a file that stays.
    pub(super) fn leave(&mut self, name: &str, reason: &'static str) {
        self.left.push(Left { name: name.into(), reason });
    }

    pub(super) fn print(&self, is_json: bool) {
        for Left { name, reason } in &self.left {
            warn(format_args!("note: {name} stays: {reason}"));
        }
        if is_json {
            return print_json(self);
        }
        for Change { name, action, done, kind, replaced, has_backup } in &self.changes {
            let [would, verb] = if self.is_dry_run { ["would ", action] } else { ["", done] };
            let colon = if kind.is_empty() { "" } else { ": " };
            let of = if replaced.is_empty() { "" } else { ", in place of " };
            let backup = if *has_backup { ", with a backup" } else { "" };
            print_line(format_args!("{would}{verb} {name}{colon}{kind}{of}{replaced}{backup}"));
        }
    }
}

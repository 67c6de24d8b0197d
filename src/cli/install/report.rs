//! Prints the changes of `install` and `uninstall`, as lines or as JSON.

use std::borrow::Cow;
use std::ops::Not;
use std::path::Path;

use serde::{Serialize, Serializer};

use crate::cli;
use crate::kernel::sys::warn;
use crate::plugin::VERSION;

/// The change of one name.
#[derive(Serialize)]
pub(super) struct Change {
    pub(super) name: String,
    /// The verb in the infinitive and in the past tense.
    #[serde(rename = "action", serialize_with = "infinitive")]
    pub(super) verb: [&'static str; 2],
    /// The kind of the new file. Empty without a new file.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) kind: &'static str,
    /// The replaced file in words. Empty if no file is replaced.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) replaced: &'static str,
    #[serde(rename = "backup", skip_serializing_if = "Not::not")]
    pub(super) has_backup: bool,
}

fn infinitive<S: Serializer>(verb: &[&str; 2], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(verb[0])
}

impl Change {
    pub(super) fn of(verb: [&'static str; 2], name: &str) -> Self {
        Self { verb, name: name.into(), kind: "", replaced: "", has_backup: false }
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
        for Change { verb: [infinitive, past], name, kind, replaced, has_backup } in &self.changes {
            let [would, verb] = if is_dry_run { ["would ", infinitive] } else { ["", past] };
            let colon = if kind.is_empty() { "" } else { ": " };
            let of = if replaced.is_empty() { "" } else { ", in place of " };
            let backup = if *has_backup { ", with a backup" } else { "" };
            cli::output::print_args(format_args!(
                "{would}{verb} {name}{colon}{kind}{of}{replaced}{backup}"
            ));
        }
    }
}

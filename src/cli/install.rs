//! `cnibox install` and `cnibox uninstall`: put this executable and its names into a plugin directory, and take them away.
//!
//! Each change is a rename, so a name is at any time either the old file or the new one. A killed command is completed by its
//! repetition.

mod change;
mod choice;
mod directory;
mod manifest;
mod plan;
mod removal;
mod stage;

use std::fmt::Write;
use std::path::Path;

use argh::FromArgs;

use crate::cni::json::{Json, Object};
use crate::error::{Error, Result};
use crate::kernel::sys::{self, warn};
use crate::plugin::{Entry, VERSION};

use super::{NOT_UNDERSTOOD, not_understood};
use directory::Directory;
#[cfg(feature = "tool")]
pub(in crate::cli) use directory::Looks;
#[cfg(feature = "tool")]
pub(in crate::cli) use manifest::{Installed, Manifest};
use plan::Plan;

/// Put this executable and a link for every plugin into a directory, or bring those of an earlier build up to this one.
/// Other plugins stay as they are; without --force they are an error.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "install",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --force --backup /opt/cni/bin",
    example = "{command_name} --only bridge,host-local,portmap /usr/lib/cni",
    example = "{command_name} --prefix buildkit-cni- /usr/local/bin",
    note = "A file system without hard links gets symbolic links, one without these gets copies. An alias has the prefix buildkit-cni- or cnv-, or is a symbolic link."
)]
pub(super) struct Install {
    /// symbolic links within the directory instead of hard links
    #[argh(switch, short = 's')]
    symbolic: bool,
    /// a copy of the executable under each name
    #[argh(switch)]
    copy: bool,
    /// these plugins, separated by commas
    #[argh(option)]
    only: Vec<String>,
    /// all plugins except these
    #[argh(option)]
    exclude: Vec<String>,
    /// another name of a plugin, as in cnv-bridge=bridge; may be repeated
    #[argh(option)]
    alias: Vec<String>,
    /// the beginning of each name: buildkit-cni- or cnv-
    #[argh(option, default = "String::new()")]
    prefix: String,
    /// replace plugins of others, and allow a directory on PATH
    #[argh(switch)]
    force: bool,
    /// with --force: keep the replaced plugins, for uninstall
    #[argh(switch)]
    backup: bool,
    /// print the changes, and make none
    #[argh(switch)]
    dry_run: bool,
    /// after that, wait for SIGTERM or SIGINT
    #[argh(switch)]
    wait: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// where to; /opt/cni/bin if not given
    #[argh(positional)]
    directory: Option<String>,
}

/// Remove from a directory what install put there, and put back the plugins that it replaced.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "uninstall",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --dry-run /opt/cni/bin",
    note = "A file that another program has put there since stays, and is named on stderr."
)]
pub(super) struct Uninstall {
    /// print the changes, and make none
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// where from; /opt/cni/bin if not given
    #[argh(positional)]
    directory: Option<String>,
}

/// The change of one name.
struct Change {
    /// In the infinitive, then in the past tense.
    verb: [&'static str; 2],
    name: String,
    /// The kind of the new file. Empty without a new file.
    kind: &'static str,
    /// The replaced file in words. Empty without such a file.
    replaced: &'static str,
    has_backup: bool,
}

impl Change {
    fn of(verb: [&'static str; 2], name: &str) -> Self {
        Self { verb, name: name.into(), kind: "", replaced: "", has_backup: false }
    }
}

const REMOVE: [&str; 2] = ["remove", "removed"];

/// The changes that a command makes, or would make.
#[derive(Default)]
struct Report {
    changes: Vec<Change>,
    /// Names that stay, and why.
    left: Vec<(String, &'static str)>,
}

impl Install {
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let signals = self.wait.then(sys::block_interrupts);
        let path = directory::path(&self.directory);
        let report = self.install(path, plugins).map_err(|error| in_directory(error, path, ""))?;
        report.print(path, self.dry_run, self.json);
        if let Some(signals) = signals {
            sys::wait_for_interrupt(&signals);
        }
        Ok(0)
    }

    fn install(&self, path: &Path, plugins: &'static [Entry]) -> Result<Report> {
        if self.symbolic && self.copy {
            return Err(not_understood(format_args!("--symbolic and --copy exclude each other")));
        }
        if self.backup && !self.force {
            return Err(not_understood(format_args!("--backup needs --force")));
        }
        let names = self.names(plugins)?;
        if !self.force && self.prefix.is_empty() {
            directory::refuse_path(path)?;
        }
        let directory = match self.dry_run {
            true => Directory::open(path)?,
            false => Some(Directory::make(path)?),
        };
        let is_made = directory.as_ref().is_some_and(|it| it.is_made);
        let done = Plan::new(self, names, path, is_made, plugins)
            .and_then(|plan| self.carry_out(plan, directory.as_ref()));
        if let (Err(_), Some(Directory { path, is_made: true, .. })) = (&done, &directory) {
            // Another program may have put files there.
            let _ = std::fs::remove_dir(path);
        }
        done
    }

    fn carry_out(&self, mut plan: Plan<'_>, directory: Option<&Directory>) -> Result<Report> {
        plan.refuse(self.force)?;
        if let Some(directory) = directory
            && !self.dry_run
        {
            directory.remove_staging()?;
            change::carry_out(&mut plan, directory)?;
        }
        Ok(Report { changes: plan.changes(), left: Vec::new() })
    }
}

impl Uninstall {
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let path = directory::path(&self.directory);
        let report = removal::uninstall(path, self.dry_run, plugins)
            .map_err(|error| in_directory(error, path, "un"))?;
        for (name, reason) in &report.left {
            warn(format_args!("note: {name} stays: {reason}"));
        }
        report.print(path, self.dry_run, self.json);
        Ok(0)
    }
}

/// The error of a command, with its directory in front.
fn in_directory(error: Error, path: &Path, un: &str) -> Error {
    if error.code == NOT_UNDERSTOOD {
        return error;
    }
    let from = if un.is_empty() { "into" } else { "from" };
    error.context(format_args!("cannot {un}install {from} {}", path.display()))
}

impl Report {
    fn print(&self, directory: &Path, is_dry_run: bool, is_json: bool) {
        let mut text = match is_json {
            true => self.document(directory, is_dry_run).to_pretty(),
            false => String::new(),
        };
        let lines = if is_json { &[] } else { self.changes.as_slice() };
        for Change { verb: [infinitive, past], name, kind, replaced, has_backup } in lines {
            let [would, verb] = if is_dry_run { ["would ", infinitive] } else { ["", past] };
            let colon = if kind.is_empty() { "" } else { ": " };
            let of = if replaced.is_empty() { "" } else { ", in place of " };
            let backup = if *has_backup { ", with a backup" } else { "" };
            let _ = // a String takes all text
                writeln!(text, "{would}{verb} {name}{colon}{kind}{of}{replaced}{backup}");
        }
        if !text.is_empty() {
            super::say(&text);
        }
    }

    fn document(&self, directory: &Path, is_dry_run: bool) -> Json {
        let mut object = Object::default();
        let mut changes = Vec::new();
        for Change { verb: [action, _], name, kind, replaced, has_backup } in &self.changes {
            object.text("name", name).text("action", action);
            for (key, text) in [("kind", kind), ("replaced", replaced)] {
                if !text.is_empty() {
                    object.text(key, text);
                }
            }
            changes.push(object.flag("backup", *has_backup).json());
        }
        let mut left = Vec::new();
        for (name, reason) in &self.left {
            left.push(object.text("name", name).text("reason", reason).json());
        }
        object.text("directory", &directory.display()).put("dryRun", Json::Bool(is_dry_run));
        object.text("version", &VERSION).list("changes", changes).list("left", left).json()
    }
}

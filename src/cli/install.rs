//! `cnibox install` and `cnibox uninstall`: put this executable and its names into a plugin directory, and take them away.
//!
//! Each change is a rename, so a name is at any time either the old file or the new one. A killed command is completed by its
//! repetition.

mod directory;
mod existing;
mod manifest;
mod plan;
mod removal;
mod report;
mod selection;
mod stage;
#[cfg(feature = "runtime")]
mod timer;

use std::path::Path;

use argh::FromArgs;

use crate::error::{Error, Result};
use crate::kernel::sys;
use crate::plugin::Entry;

use super::output::{USAGE_ERROR, usage_error};
use directory::Directory;
#[cfg(feature = "tool")]
pub(in crate::cli) use existing::ExistingFile;
#[cfg(feature = "tool")]
pub(in crate::cli) use manifest::{Installed, Manifest};
use plan::{LinkMethod, Plan};
use report::Report;
use selection::Selection;
#[cfg(feature = "runtime")]
use timer::Timer;

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
    note = "A file system without hard links gets copies. An alias has the prefix buildkit-cni- or cnv-."
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
    /// also enable a timer for gc --confirm on the host with this root directory, / or /host, by units of systemd
    #[cfg(feature = "runtime")]
    #[argh(option)]
    timer: Option<String>,
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
    /// also remove the timer that install --timer enabled on the host with this root directory
    #[cfg(feature = "runtime")]
    #[argh(option)]
    timer: Option<String>,
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

impl Install {
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let signals = self.wait.then(sys::block_interrupts);
        let path = directory::path(&self.directory);
        #[cfg(feature = "runtime")]
        let timer = self.timer.as_ref().map(|root| Timer::new(root, path)).transpose()?;
        #[cfg_attr(not(feature = "runtime"), expect(unused_mut))]
        let mut report =
            self.install(path, plugins).map_err(|error| in_directory(error, path, ""))?;
        #[cfg(feature = "runtime")]
        let enabled = timer.map_or(Ok(()), |timer| timer.enable(self.dry_run, &mut report));
        report.print(path, self.dry_run, self.json);
        #[cfg(feature = "runtime")]
        enabled.map_err(|error| timer::context(error, "enable"))?;
        if let Some(signals) = signals {
            sys::wait_for_interrupt(&signals);
        }
        Ok(0)
    }

    fn install(&self, path: &Path, plugins: &'static [Entry]) -> Result<Report> {
        if self.symbolic && self.copy {
            return Err(usage_error(format_args!("--symbolic and --copy exclude each other")));
        }
        if self.backup && !self.force {
            return Err(usage_error(format_args!("--backup needs --force")));
        }
        let names = self.selection().names(plugins)?;
        if !self.force && self.prefix.is_empty() {
            directory::refuse_path(path)?;
        }
        let directory = if self.dry_run { None } else { Some(Directory::make(path)?) };
        let mut plan = Plan::new(path, self.method(), self.backup, names)?;
        plan.refuse(self.force)?;
        if let Some(directory) = &directory {
            stage::carry_out(&mut plan, directory)?;
        }
        Ok(Report { changes: plan.changes(), left: Vec::new() })
    }

    fn selection(&self) -> Selection<'_> {
        Selection {
            only: &self.only,
            exclude: &self.exclude,
            aliases: &self.alias,
            prefix: &self.prefix,
        }
    }

    fn method(&self) -> LinkMethod {
        match () {
            () if self.symbolic => LinkMethod::Symbolic,
            () if self.copy => LinkMethod::Copy,
            () => LinkMethod::Hard,
        }
    }
}

impl Uninstall {
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let path = directory::path(&self.directory);
        #[cfg(feature = "runtime")]
        let timer = self.timer.as_ref().map(|root| Timer::new(root, path)).transpose()?;
        #[cfg_attr(not(feature = "runtime"), expect(unused_mut))]
        let mut report = removal::uninstall(path, self.dry_run, plugins)
            .map_err(|error| in_directory(error, path, "un"))?;
        #[cfg(feature = "runtime")]
        let disabled = timer.map_or(Ok(()), |timer| timer.disable(self.dry_run, &mut report));
        report.print(path, self.dry_run, self.json);
        #[cfg(feature = "runtime")]
        disabled.map_err(|error| timer::context(error, "disable"))?;
        Ok(0)
    }
}

/// The error of a command, with its directory in front.
fn in_directory(error: Error, path: &Path, un: &str) -> Error {
    if error.code == USAGE_ERROR {
        return error;
    }
    let from = if un.is_empty() { "into" } else { "from" };
    error.context(format_args!("cannot {un}install {from} {}", path.display()))
}

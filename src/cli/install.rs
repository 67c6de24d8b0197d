//! `cnibox install` and `cnibox uninstall`: copy this executable and a link for each plugin into a plugin directory, and remove
//! them.
//!
//! Each change is a rename, so at any time a name is either the old file or the new one. If a command is killed, running it
//! again completes it.

mod directory;
#[cfg(feature = "netavark")]
mod driver;
mod existing;
mod manifest;
mod plan;
mod removal;
mod report;
mod stage;
#[cfg(feature = "runtime")]
mod timer;

use std::path::Path;

use argh::{ArgsInfo, FromArgs};

use crate::error::{Error, Result};
use crate::kernel::sys;
use crate::plugin::Entry;
use crate::plugins::{self, PLUGINS};

use super::output::usage_error;
use directory::Directory;
pub(in crate::cli) use directory::failed;
#[cfg(feature = "netavark")]
use driver::Driver;
pub(in crate::cli) use existing::ExistingFile;
use manifest::is_plain;
pub(in crate::cli) use manifest::{Installed, Manifest};
use plan::{LinkMethod, Plan};
use report::Report;
#[cfg(feature = "runtime")]
use timer::Timer;

/// Put this executable and a link for every plugin into a directory, or upgrade an installation of another build.
/// Other files stay. A file of another program with one of the names is an error; --force replaces it.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "install",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --force --backup /opt/cni/bin",
    example = "{command_name} --only bridge,host-local,portmap /usr/lib/cni",
    example = "{command_name} --prefix buildkit-cni- /usr/local/bin",
    example = "{command_name} --netavark /usr/local/libexec/netavark",
    note = "On a file system without hard links, each name is a copy. An alias has the prefix buildkit-cni- or cnv-."
)]
pub(super) struct Install {
    /// make symbolic links within the directory in place of hard links
    #[argh(switch, short = 's')]
    symbolic: bool,
    /// make a copy of the executable under each name
    #[argh(switch)]
    copy: bool,
    /// only these plugins, separated by commas
    #[argh(option)]
    only: Vec<String>,
    /// all plugins except these
    #[argh(option)]
    exclude: Vec<String>,
    /// also these plugins, which get a link only on request: dnsname
    #[argh(option)]
    with: Vec<String>,
    /// another name of a plugin, as in cnv-bridge=bridge; may be repeated
    #[argh(option)]
    alias: Vec<String>,
    /// the prefix of each name: buildkit-cni- or cnv-
    #[argh(option, default = "String::new()")]
    prefix: String,
    /// replace files of other programs, and allow plugins that hide a program on PATH
    #[argh(switch)]
    force: bool,
    /// with --force: keep the replaced files, so that uninstall restores them
    #[argh(switch)]
    backup: bool,
    /// also enable a systemd timer for gc --confirm on the host with this root directory, such as / or /host
    #[cfg(feature = "runtime")]
    #[argh(option)]
    timer: Option<String>,
    /// also put a link `cnibox` into this directory of netavark's drivers, such as /usr/local/libexec/netavark
    #[cfg(feature = "netavark")]
    #[argh(option)]
    netavark: Option<String>,
    /// print the changes, and make none
    #[argh(switch, short = 'n')]
    dry_run: bool,
    /// after the installation, wait for SIGTERM or SIGINT
    #[argh(switch)]
    wait: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// the plugin directory; /opt/cni/bin if not given
    #[argh(positional)]
    directory: Option<String>,
}

/// Remove the files of install from a directory, and restore the files that it replaced.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "uninstall",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --dry-run /opt/cni/bin",
    note = "A file that another program has put there since stays. A note on stderr names it."
)]
pub(super) struct Uninstall {
    /// also remove the timer that install --timer enabled on the host with this root directory
    #[cfg(feature = "runtime")]
    #[argh(option)]
    timer: Option<String>,
    /// also remove the link that install --netavark made in this directory
    #[cfg(feature = "netavark")]
    #[argh(option)]
    netavark: Option<String>,
    /// print the changes, and make none
    #[argh(switch, short = 'n')]
    dry_run: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// the plugin directory; /opt/cni/bin if not given
    #[argh(positional)]
    directory: Option<String>,
}

/// Files outside of the plugin directory that belong to an installation.
trait Outside {
    fn place(&self, report: &mut Report) -> Result<()>;
    fn remove(&self, report: &mut Report) -> Result<()>;
}

impl Install {
    pub(super) fn run(&self) -> Result<u8> {
        let signals = self.wait.then(sys::block_interrupts);
        let path = directory::path(&self.directory);
        let outside = given([
            #[cfg(feature = "runtime")]
            self.timer.as_ref().map(|root| Timer::of(root, path)),
            #[cfg(feature = "netavark")]
            self.netavark.as_ref().map(|drivers| Driver::of(drivers, path)),
        ])?;
        let method = self.method()?;
        let names = self.names()?;
        // A failure that is known before the first change makes none.
        place(&outside, &mut Report::new(path, true))?;
        let mut report = Report::new(path, self.dry_run);
        self.install(path, method, names, &mut report).map_err(|error| {
            error.context(format_args!("cannot install into {}", path.display()))
        })?;
        let placed = place(&outside, &mut report);
        report.print(self.json);
        placed?;
        if let Some(signals) = signals {
            sys::wait_for_interrupt(&signals);
        }
        Ok(0)
    }

    fn install(
        &self,
        path: &Path,
        method: LinkMethod,
        names: Vec<(String, &'static str)>,
        report: &mut Report,
    ) -> Result<()> {
        if !self.force && self.prefix.is_empty() {
            directory::refuse_path(path, names.iter().map(|(name, _)| name.as_str()))?;
        }
        let directory = if self.dry_run { None } else { Some(Directory::make(path)?) };
        let mut plan = Plan::new(path, method, self.backup, names)?;
        plan.refuse(self.force)?;
        if let Some(directory) = &directory {
            stage::carry_out(&mut plan, directory)?;
        }
        report.changes.extend(plan.changes());
        Ok(())
    }

    fn method(&self) -> Result<LinkMethod> {
        if self.backup && !self.force {
            return Err(usage_error("--backup needs --force"));
        }
        match (self.symbolic, self.copy) {
            (true, true) => Err(usage_error("--symbolic and --copy exclude each other")),
            (true, false) => Ok(LinkMethod::Symbolic),
            (false, true) => Ok(LinkMethod::Copy),
            (false, false) => Ok(LinkMethod::Hard),
        }
    }

    /// The names that the arguments select, each with the plugin that a call under it runs. The aliases are the last.
    fn names(&self) -> Result<Vec<(String, &'static str)>> {
        let only = split("--only", &self.only)?;
        let exclude = split("--exclude", &self.exclude)?;
        let with = split("--with", &self.with)?;
        let prefix = &self.prefix;
        let is_chosen = |plugin: &&Entry| {
            let is_asked_for = match only.is_empty() {
                true => !plugin.is_linked_on_request,
                false => only.contains(&plugin.name),
            };
            (is_asked_for || with.contains(&plugin.name)) && !exclude.contains(&plugin.name)
        };
        let chosen = PLUGINS.iter().filter(is_chosen).map(|plugin| plugin.name);
        let mut names: Vec<_> =
            chosen.map(|plugin| (format!("{prefix}{plugin}"), plugin)).collect();
        let runs = |(name, plugin): &(String, &str)| {
            plugins::called(name).is_some_and(|found| found.name == *plugin)
        };
        if !names.iter().all(runs) {
            return Err(usage_error(format_args!("--prefix {prefix}: not buildkit-cni- or cnv-")));
        }
        for alias in &self.alias {
            let refused = |why: &str| Err(usage_error(format_args!("--alias {alias}: {why}")));
            let Some((name, plugin)) = alias.split_once('=') else {
                return refused("it is not ALIAS=PLUGIN");
            };
            match plugins::called(name).filter(|_| is_plain(name)) {
                Some(entry) if entry.name == plugin => names.push((name.into(), entry.name)),
                Some(entry) => {
                    return refused(&format!("a call under this name runs {}", entry.name));
                }
                None => return refused("the alias is not buildkit-cni-PLUGIN or cnv-PLUGIN"),
            }
        }
        match names.is_empty() {
            true => Err(usage_error("no plugin is chosen")),
            false => Ok(names),
        }
    }
}

impl Uninstall {
    pub(super) fn run(&self) -> Result<u8> {
        let path = directory::path(&self.directory);
        let outside = given([
            #[cfg(feature = "runtime")]
            self.timer.as_ref().map(|root| Timer::of(root, path)),
            #[cfg(feature = "netavark")]
            self.netavark.as_ref().map(|drivers| Driver::of(drivers, path)),
        ])?;
        let mut report = Report::new(path, self.dry_run);
        removal::uninstall(path, &mut report).map_err(|error| {
            error.context(format_args!("cannot uninstall from {}", path.display()))
        })?;
        let removed = outside.iter().filter_map(|part| part.remove(&mut report).err()).collect();
        report.print(self.json);
        Error::joined(removed)?;
        Ok(0)
    }
}

/// The parts of the options that are given.
fn given<const COUNT: usize>(
    parts: [Option<Result<Box<dyn Outside>>>; COUNT],
) -> Result<Vec<Box<dyn Outside>>> {
    parts.into_iter().flatten().collect()
}

/// Places all parts, also after an error.
fn place(outside: &[Box<dyn Outside>], report: &mut Report) -> Result<()> {
    Error::joined(outside.iter().filter_map(|part| part.place(report).err()).collect())
}

/// Splits the arguments of an option into plugin names, which are separated by commas. Fails if there is no such plugin.
fn split<'a>(option: &str, lists: &'a [String]) -> Result<Vec<&'a str>> {
    let names: Vec<&str> = lists.iter().flat_map(|list| list.split(',')).collect();
    match names.iter().find(|name| plugins::named(name).is_none()) {
        Some(name) => {
            Err(usage_error(format_args!("{option} {name}: cnibox has no plugin of that name")))
        }
        None => Ok(names),
    }
}

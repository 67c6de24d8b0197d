//! `cnibox reconcile`: restores rules, routes, queueing disciplines and sysctls that other programs removed from living
//! attachments.

use argh::FromArgs;

use crate::error::{Error, Result};
use crate::plugin::parts::Parts;
use crate::runtime::lifecycle::Choice;
use crate::runtime::reconcile::{Reconciled, Restored, Skipped};

use super::output::{Done, print_json, print_line};
use super::parameters::{self, TIMEOUT_S};

/// Restore rules, routes, queueing disciplines and forwarding that another program removed from living attachments.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "reconcile",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --dry-run",
    note = "The exit code is 1 if something cannot be restored. Links, connections and plugins of others are not changed."
)]
pub(super) struct Reconcile {
    /// the network's name or the path of its file, all networks if not given
    #[argh(positional)]
    network: Option<String>,
    /// also restore addresses, routes and settings in the containers; a container can have changed them on purpose
    #[argh(switch)]
    inside: bool,
    /// print what would be restored, and change nothing
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
}

impl Reconcile {
    pub(super) fn run(&self) -> Result<u8> {
        // The timeout has no effect, because no plugin is executed.
        let runtime = parameters::runtime(TIMEOUT_S);
        let choice = self.network.as_deref().map(parameters::choice).transpose()?;
        let name = choice.as_ref().map(Choice::name);
        let parts = || Parts::to_restore(self.dry_run, self.inside);
        let reconciled = runtime.reconcile(name, &parts)?;
        if self.json {
            print_json(&Done { dry_run: self.dry_run, done: &reconciled });
        } else {
            self.print(&reconciled);
        }
        Error::joined(reconciled.errors).map(|()| 0)
    }

    fn print(&self, reconciled: &Reconciled) {
        let done = if self.dry_run { "would restore" } else { "restored" };
        for Restored { network, at, plugin, difference } in &reconciled.restored {
            let title = at.title(network);
            print_line(format_args!("{done} {title}: {plugin}: {difference}"));
        }
        let mut lines: Vec<String> = Vec::new();
        for Skipped { network, at, plugin, reason } in &reconciled.skipped {
            let line = match plugin {
                // The line is the same for all attachments with the plugin, so it is printed once.
                Some(_) => format!("left in network {network}: {reason}"),
                None => format!("left {}: {reason}", at.title(network)),
            };
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        for line in lines {
            print_line(line);
        }
    }
}

//! `cnibox reconcile`: restores rules, routes, queueing disciplines and sysctls that other programs removed from living
//! attachments.

use argh::{ArgsInfo, FromArgs};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::kernel::sys::{reason, warn};
use crate::kernel::unix;
use crate::plugin::parts::{InContainer, Parts};
use crate::runtime::Runtime;
use crate::runtime::lifecycle::Choice;
use crate::runtime::reconcile::{Busy, Difference, Reconciled};
use crate::runtime::watch::{Left, PAUSE_MAX_S};

use super::output::{Done, print_json, print_line, usage_error};
use super::parameters::{self, TIMEOUT_S};
use super::podman;

/// Restore rules, routes, queueing disciplines and forwarding that another program removed from living attachments.
#[derive(ArgsInfo, FromArgs)]
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
    #[argh(switch, short = 'n')]
    dry_run: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// for a service: restore all networks now and after each change of rules, routes, links or forwarding, until SIGTERM
    #[argh(switch)]
    watch: bool,
    /// SECONDS: make --watch wait that long, at most a day, while you change rules yourself; 0 ends the wait and restores at once
    #[argh(option, arg_name = "seconds")]
    pause: Option<u64>,
}

/// The output of --json.
#[derive(Serialize)]
struct JsonOutput<'a> {
    #[serde(flatten)]
    reconciled: &'a Reconciled,
    /// The objects that the watcher leaves at the moment.
    left: Vec<Left>,
}

impl Reconcile {
    pub(super) fn run(&self) -> Result<u8> {
        // The timeout has no effect, because no plugin is executed.
        let runtime = parameters::runtime(TIMEOUT_S);
        let is_plain = self.network.is_none() && !self.dry_run && !self.inside && !self.json;
        match (self.watch, self.pause) {
            (false, None) => self.reconcile(&runtime),
            (true, None) if is_plain => runtime.watch(notify_ready).map(|()| 0),
            (false, Some(0)) if is_plain => {
                runtime.end_pause()?;
                // The watcher sleeps until its next event. What changed during the pause is restored here.
                self.reconcile(&runtime)
            }
            (false, Some(seconds)) if is_plain && seconds <= PAUSE_MAX_S => {
                runtime.pause(seconds).map(|()| 0)
            }
            (false, Some(_)) if is_plain => {
                Err(usage_error(format!("--pause: at most {PAUSE_MAX_S} seconds")))
            }
            _ => Err(usage_error("--watch and --pause take no NETWORK and no other option")),
        }
    }

    fn reconcile(&self, runtime: &Runtime) -> Result<u8> {
        let choice = self.network.as_deref().map(parameters::choice).transpose()?;
        podman::require_known(choice.as_ref())?;
        let name = choice.as_ref().map(Choice::name);
        let is_chosen = |network: &_, _: &_| name.is_none_or(|name| network == name);
        let inside = if self.inside { InContainer::Ensure } else { InContainer::List };
        let parts = |_: &_, _: &_, _: &str| Parts::to_restore(self.dry_run, inside);
        let left = runtime.left_by_watcher();
        let reconciled = runtime.reconcile(Busy::Wait, &parts, is_chosen)?;
        reconciled.errors.iter().for_each(|error| warn(format_args!("warning: {error}")));
        let left = left.unwrap_or_else(|error| {
            warn(format_args!("warning: {error}"));
            Vec::new()
        });
        if self.json {
            let done = JsonOutput { reconciled: &reconciled, left };
            print_json(&Done { dry_run: self.dry_run, done });
        } else {
            self.print(&reconciled);
            left.iter().for_each(print_line);
        }
        Error::joined(reconciled.failed.into_iter().map(|failed| failed.error).collect())
            .map(|()| 0)
    }

    fn print(&self, reconciled: &Reconciled) {
        print(if self.dry_run { "would restore" } else { "restored" }, &reconciled.restored);
        print("not restored inside", &reconciled.left_inside);
        if !reconciled.left_inside.is_empty() {
            warn(format_args!(
                "--inside restores what is left in containers; an interface that is gone needs a new ADD"
            ));
        }
        reconciled.reasons().iter().for_each(print_line);
    }
}

/// Prints each attachment once, and below it what differs.
fn print(verb: &str, differences: &[Difference]) {
    let of = |one: &Difference| one.at.title(&one.network);
    for of_one in differences.chunk_by(|one, next| of(one) == of(next)) {
        print_line(format_args!("{verb} {}:", of(&of_one[0])));
        for Difference { plugin, title, .. } in of_one {
            print_line(format_args!("    {plugin}: {title}"));
        }
    }
}

/// Tells the service manager that the watcher is ready, if it asked for that: sd_notify(3).
fn notify_ready() {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = unix::notify(&socket, b"READY=1") {
        warn(format_args!("cannot notify the service manager: {}", reason(&error)));
    }
}

//! `cnibox gc`: removes attachments that are provably dead.

use argh::FromArgs;

use crate::cni::json::Json;
use crate::error::Result;
use crate::plugin::Entry;
use crate::runtime::gc::{Options, Removed};

use super::parameters::{self, TIMEOUT_S};

/// Remove the attachments without a namespace, and the remains of an interrupted add or del.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "gc",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --dry-run"
)]
pub(super) struct Gc {
    /// the network's name or the path of its file, all networks if not given; a namespace, which cnitool takes, is ignored
    #[argh(positional, arg_name = "network netns")]
    operands: Vec<String>,
    /// tell what is dead, and remove nothing
    #[argh(switch)]
    dry_run: bool,
    /// let the plugins remove what the cache does not know, too: containers of runtimes with another cache lose their
    /// networks
    #[argh(switch)]
    uncached: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// the seconds that an executed plugin may take; 180 if not given
    #[argh(option, default = "TIMEOUT_S")]
    timeout: u64,
}

impl Gc {
    pub(super) fn run(self, plugins: &'static [Entry]) -> Result<()> {
        let runtime = parameters::runtime(plugins, self.timeout);
        let (network, _) = parameters::network_and_netns(&self.operands)?;
        let choice = network.map(parameters::choice).transpose()?;
        let options = Options { is_dry_run: self.dry_run, uncached: self.uncached };
        let collected = runtime.gc(choice.as_ref(), options)?;
        if self.json {
            let removed = Json::Array(collected.removed.iter().map(object).collect());
            let document = Json::object([
                ("dryRun", Some(Json::Bool(self.dry_run))),
                ("removed", Some(removed)),
            ]);
            super::say(&document.to_pretty());
        } else {
            let done = if self.dry_run { "would remove" } else { "removed" };
            for Removed { network, at, reason } in &collected.removed {
                let at = format!("{} of container {}", at.ifname, at.container_id);
                super::say(&format!("{done} {at} from network {network}: {reason}"));
            }
        }
        let errors = collected.errors.into_iter();
        errors.reduce(|first, error| first.also(&error)).map_or(Ok(()), Err)
    }
}

fn object(removed: &Removed) -> Json {
    Json::object([
        ("network", Some(removed.network.to_string().into())),
        ("containerID", Some(removed.at.container_id.to_string().into())),
        ("ifname", Some(removed.at.ifname.to_string().into())),
        ("reason", Some(removed.reason.as_str().into())),
    ])
}

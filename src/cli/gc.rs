//! `cnibox gc`: removes attachments that are provably dead.

use argh::FromArgs;

use crate::cni::json::{Json, Object};
use crate::error::{Error, Result};
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
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let runtime = parameters::runtime(plugins, self.timeout);
        let (network, _) = parameters::network_and_netns(&self.operands)?;
        let choice = network.map(parameters::choice).transpose()?;
        let options = Options { is_dry_run: self.dry_run, uncached: self.uncached };
        let collected = runtime.gc(choice.as_ref(), options)?;
        let mut objects = Vec::new();
        for removed in &collected.removed {
            let Removed { network, at, reason } = removed;
            if self.json {
                let mut object = Object::default();
                object.text("network", network).text("containerID", &at.container_id);
                objects.push(object.text("ifname", &at.ifname).text("reason", reason).json());
            } else {
                let done = if self.dry_run { "would remove" } else { "removed" };
                let at = format!("{} of container {}", at.ifname, at.container_id);
                super::tell(format_args!("{done} {at} from network {network}: {reason}"));
            }
        }
        if self.json {
            let mut document = Object::default();
            document.put("dryRun", Json::Bool(self.dry_run)).list("removed", objects);
            super::say_json(&mut document);
        }
        Error::joined(collected.errors).map(|()| 0)
    }
}

//! `cnibox gc`: removes attachments that are provably dead.

use argh::FromArgs;

use crate::cni::json::{Json, Object};
use crate::error::{Error, Result};
use crate::names::{Attachment, ContainerId, IfName, NetworkName};
use crate::plugin::Entry;
use crate::runtime::gc::{Collected, Options, Removed};
use crate::runtime::lifecycle::Runtime;

use super::{not_understood, parameters};

/// Less than that of an ADD or DEL: a timer calls gc, and the next one tries again.
const TIMEOUT_S: u64 = 30;

/// Remove the attachments that have provably ended, and the remains of an interrupted add or del.
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
    /// remove one attachment for which it is unknown whether it lives: NETWORK/CONTAINER/IFNAME; nothing else is removed
    #[argh(option)]
    unknown: Option<String>,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// the seconds that an executed plugin may take; 30 if not given
    #[argh(option, default = "TIMEOUT_S")]
    timeout: u64,
}

impl Gc {
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let runtime = parameters::runtime(plugins, self.timeout);
        let collected = self.collect(&runtime)?;
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

    fn collect(&self, runtime: &Runtime) -> Result<Collected> {
        if let Some(name) = &self.unknown {
            if !self.operands.is_empty() || self.uncached {
                return Err(not_understood("--unknown names the only attachment to remove"));
            }
            let (network, at) = attachment(name)?;
            let removed = vec![runtime.remove_unknown(&network, &at, self.dry_run)?];
            return Ok(Collected { removed, errors: Vec::new() });
        }
        let (network, _) = parameters::network_and_netns(&self.operands)?;
        let choice = network.map(parameters::choice).transpose()?;
        let options = Options { is_dry_run: self.dry_run, uncached: self.uncached };
        runtime.gc(choice.as_ref(), options)
    }
}

fn attachment(name: &str) -> Result<(NetworkName, Attachment)> {
    let parts: Vec<&str> = name.split('/').collect();
    let [network, container_id, ifname] = parts[..] else {
        return Err(not_understood(format!("{name:?} is not NETWORK/CONTAINER/IFNAME")));
    };
    let read = || -> Result<_> {
        let (container_id, ifname) = (ContainerId::new(container_id)?, IfName::new(ifname)?);
        Ok((NetworkName::new(network)?, Attachment { container_id, ifname }))
    };
    read().map_err(|error| not_understood(error.to_string()))
}

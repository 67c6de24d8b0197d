//! `cnibox gc`: removes the attachments, reservations, rules and links of containers that have provably ended.

use argh::{ArgsInfo, FromArgs};

use crate::error::{Error, Result};
use crate::names::{Attachment, ContainerId, IfName, NetworkName};
use crate::runtime::Runtime;
use crate::runtime::gc::{Collected, Options};

use super::output::{Done, print_json, print_line, usage_error};
use super::{parameters, podman};

/// The timeout of an executed plugin, in seconds. It is shorter than that of `add` and `del`: a timer calls gc, and the
/// next run retries.
const TIMEOUT_S: u64 = 30;

/// Remove what belongs to containers that have provably ended: attachments, and reservations, rules and links without a cache
/// entry. Also remove the remains of interrupted adds and dels.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "gc",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --dry-run"
)]
pub(super) struct Gc {
    /// NETWORK: the network's name or the path of its file, all networks if not given; NETNS: ignored, cnitool has this
    /// argument
    #[argh(positional, arg_name = "network netns")]
    operands: Vec<String>,
    /// print what would be removed, and remove nothing
    #[argh(switch, short = 'n')]
    dry_run: bool,
    /// for a timer: remove only what an earlier run with --confirm, at least 10 minutes ago, has also found
    #[argh(switch)]
    confirm: bool,
    /// also call GC of the plugins: it removes all that has no cache entry; containers of runtimes with another cache lose
    /// their networks
    #[argh(switch)]
    uncached: bool,
    /// remove one attachment whose state is unknown: NETWORK/CONTAINER/IFNAME; nothing else is removed
    #[argh(option)]
    unknown: Option<String>,
    /// remove all attachments: you state that no container is alive, as after the restart of a node that is itself a container;
    /// refused if one is alive
    #[argh(switch)]
    none_alive: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// the seconds that an executed plugin may take; 30 if not given
    #[argh(option, default = "TIMEOUT_S")]
    timeout: u64,
}

impl Gc {
    pub(super) fn run(&self) -> Result<u8> {
        let runtime = parameters::runtime(self.timeout);
        let mut print = |line: &str| {
            if !self.json {
                print_line(line);
            }
        };
        let collected = self.collect(&runtime, &mut print)?;
        if self.json {
            print_json(&Done { dry_run: self.dry_run, done: &collected });
        }
        Error::joined(collected.errors).map(|()| 0)
    }

    fn collect(&self, runtime: &Runtime, print: &mut dyn FnMut(&str)) -> Result<Collected> {
        if self.confirm && (self.uncached || self.unknown.is_some() || self.none_alive) {
            let msg = "--confirm excludes --uncached, --unknown and --none-alive: they remove without proof";
            return Err(usage_error(msg));
        }
        if self.none_alive {
            if !self.operands.is_empty() || self.uncached || self.unknown.is_some() {
                return Err(usage_error(
                    "--none-alive removes all attachments: it takes no NETWORK, --uncached or --unknown",
                ));
            }
            return runtime.remove_all(self.dry_run, print);
        }
        if let Some(name) = &self.unknown {
            if !self.operands.is_empty() || self.uncached {
                return Err(usage_error(
                    "--unknown removes one attachment: it takes no NETWORK or --uncached",
                ));
            }
            let (network, at) = attachment(name)?;
            let removed = runtime.remove_unknown(&network, &at, self.dry_run)?;
            print(&removed.line(self.dry_run));
            return Ok(Collected { removed: vec![removed], ..Collected::default() });
        }
        let (network, _) = parameters::network_and_netns(&self.operands)?;
        let choice = network.map(parameters::choice).transpose()?;
        let options =
            Options { is_dry_run: self.dry_run, uncached: self.uncached, confirm: self.confirm };
        let known = podman::require_known(choice.as_ref());
        let collected = runtime.gc(choice.as_ref(), options, print)?;
        // What has no record can remain of a network that nobody knows.
        if collected.removed.is_empty() && collected.remains.is_empty() {
            known?;
        }
        Ok(collected)
    }
}

fn attachment(name: &str) -> Result<(NetworkName, Attachment)> {
    let parts: Vec<&str> = name.split('/').collect();
    let [network, container_id, ifname] = parts[..] else {
        return Err(usage_error(format!("{name:?} is not NETWORK/CONTAINER/IFNAME")));
    };
    let read = || -> Result<_> {
        let (container_id, ifname) = (ContainerId::new(container_id)?, IfName::new(ifname)?);
        Ok((NetworkName::new(network)?, Attachment { container_id, ifname }))
    };
    read().map_err(usage_error)
}

//! `cnibox add`, `check`, `del` and `status`: a container runtime by hand, with cnitool's words.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use argh::FromArgs;

use crate::error::{Error, Result};
use crate::kernel::sandbox;
use crate::kernel::sys;
use crate::names::{Attachment, ContainerId, IfName};
use crate::plugin::Entry;
use crate::runtime::conf::Network;
use crate::runtime::container_id_of;
use crate::runtime::lifecycle::{Choice, Runtime, Target};
use crate::runtime::named::Purpose;

use super::parameters::{self, TIMEOUT_S, Wishes, not_understood};

const IFNAME: &str = "eth0";

/// A command with the options that ADD, CHECK and DEL share, since argh cannot take them from another struct.
macro_rules! of_attachment {
    ($(#[$head:meta])* struct $name:ident { $($own:tt)* }) => {
        $(#[$head])*
        pub(super) struct $name {
            $($own)*
            /// the interface's name in the container; eth0 if not given
            #[argh(option, short = 'i')]
            ifname: Option<String>,
            /// the container's id; made of the path if not given
            #[argh(option)]
            container_id: Option<String>,
            /// the seconds that an executed plugin may take; 180 if not given
            #[argh(option, default = "TIMEOUT_S")]
            timeout: u64,
        }
    };
}

of_attachment! {
    /// Attach a network namespace to a network, and print the result.
    #[derive(FromArgs)]
    #[argh(
        subcommand,
        name = "add",
        help_triggers("-h", "--help", "help"),
        example = "{command_name} mynet web --create -p 8080:80",
        note = "NETCONFPATH, CNI_PATH, CNI_ARGS, CAP_ARGS and CNI_IFNAME mean what they mean to cnitool."
    )]
    struct Add {
        /// the network's name, or the path of its file
        #[argh(positional)]
        network: String,
        /// a path, a name under /run/netns, or the id of a process
        #[argh(positional)]
        netns: String,
        /// publish a port: [IP:]HOST:CONTAINER[/PROTO]; may be repeated
        #[argh(option, short = 'p')]
        publish: Vec<String>,
        /// the address that the container is to have; may be repeated
        #[argh(option)]
        ip: Vec<String>,
        /// the MAC address that the interface is to have
        #[argh(option)]
        mac: Option<String>,
        /// make the network namespace of that name
        #[argh(switch)]
        create: bool,
    }
}

of_attachment! {
    /// Check that an attachment is as it was made.
    #[derive(FromArgs)]
    #[argh(
        subcommand,
        name = "check",
        help_triggers("-h", "--help", "help"),
        example = "{command_name} mynet web"
    )]
    struct Check {
        /// the network's name, or the path of its file
        #[argh(positional)]
        network: String,
        /// a path, a name under /run/netns, or the id of a process
        #[argh(positional)]
        netns: String,
    }
}

of_attachment! {
    /// Detach a network namespace from a network; with --container-id, from the networks that the cache knows.
    #[derive(FromArgs)]
    #[argh(
        subcommand,
        name = "del",
        help_triggers("-h", "--help", "help"),
        example = "{command_name} mynet web --delete",
        example = "{command_name} --container-id 3f2a"
    )]
    struct Del {
        /// the network's name or the path of its file; a path, a name under /run/netns, or the id of a process
        #[argh(positional, arg_name = "network netns")]
        operands: Vec<String>,
        /// remove the network namespace of that name
        #[argh(switch)]
        delete: bool,
    }
}

/// Ask whether a network could be attached now.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "status",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} mynet"
)]
pub(super) struct Status {
    /// the network's name, or the path of its file
    #[argh(positional)]
    network: String,
    /// ignored: cnitool takes one
    #[argh(positional)]
    _netns: Option<String>,
    /// the seconds that an executed plugin may take; 180 if not given
    #[argh(option, default = "TIMEOUT_S")]
    timeout: u64,
}

impl Add {
    pub(super) fn run(self, plugins: &'static [Entry]) -> Result<()> {
        let runtime = parameters::runtime(plugins, self.timeout);
        let path = match self.create {
            true => parameters::named(&self.netns)?,
            false => parameters::netns(&self.netns)?,
        };
        let at = attachment(self.container_id, self.ifname, &path)?;
        let mut args = parameters::cni_args()?;
        let mut capability_args = parameters::capability_args()?;
        let network = find(&runtime, &self.network)?;
        let wishes = Wishes { publish: &self.publish, ip: &self.ip, mac: self.mac.as_deref() };
        wishes.apply(&network, &mut args, &mut capability_args)?;
        let made = self.create.then(|| runtime.make_namespace(&path, Purpose::Attachment));
        // The namespace stays when this value is dropped.
        let made = made.transpose()?;
        let target =
            Target { at: &at, netns: Some(&path), args: &args, capability_args: &capability_args };
        let added = runtime.add(&network, &target).and_then(|added| {
            match sys::write_all(io::stdout().as_fd(), (added.result.to_pretty() + "\n").as_bytes())
            {
                Ok(()) => added.keep(),
                Err(error) => Err(added.undo_after(super::cannot_write(&error))),
            }
        });
        added.map_err(|error| match made {
            Some(_) => error.and(sandbox::remove_namespace(&path)),
            None => error,
        })
    }
}

impl Check {
    pub(super) fn run(self, plugins: &'static [Entry]) -> Result<()> {
        let runtime = parameters::runtime(plugins, self.timeout);
        let path = parameters::netns(&self.netns)?;
        let at = attachment(self.container_id, self.ifname, &path)?;
        let (args, capability_args) = (parameters::cni_args()?, parameters::capability_args()?);
        let target =
            Target { at: &at, netns: Some(&path), args: &args, capability_args: &capability_args };
        runtime.check(&parameters::choice(&self.network)?, &target)
    }
}

impl Del {
    pub(super) fn run(self, plugins: &'static [Entry]) -> Result<()> {
        let runtime = parameters::runtime(plugins, self.timeout);
        let (network, netns) = parameters::network_and_netns(&self.operands)?;
        let path: Option<PathBuf> = match (netns, self.delete) {
            (Some(netns), true) => Some(parameters::named(netns)?),
            (Some(netns), false) => Some(parameters::netns(netns)?),
            (None, true) => return Err(not_understood("--delete needs NETNS")),
            (None, false) => None,
        };
        let (args, capability_args) = (parameters::cni_args()?, parameters::capability_args()?);
        let choice = network.map(parameters::choice).transpose()?;
        let attached = match (self.container_id, &choice, &path) {
            (Some(id), choice, None) => {
                let id = container_id(id)?;
                let ifname = parameters::ifname(self.ifname)?.map(ifname).transpose()?;
                runtime.attachments_of(&id, choice.as_ref(), ifname.as_ref())?
            }
            (id, Some(choice), Some(path)) => {
                vec![(choice.name().clone(), attachment(id, self.ifname, path)?)]
            }
            _ => return Err(not_understood("NETWORK and NETNS, or --container-id, are missing")),
        };
        let mut failed: Option<Error> = None;
        for (name, at) in attached {
            let target = Target {
                at: &at,
                netns: path.as_deref(),
                args: &args,
                capability_args: &capability_args,
            };
            let named = Choice::Named(name);
            if let Err(error) = runtime.del(choice.as_ref().unwrap_or(&named), &target) {
                failed = Some(match failed.take() {
                    None => error,
                    Some(first) => first.also(&error),
                });
            }
        }
        match (failed, path) {
            (Some(error), _) => Err(error),
            (None, Some(path)) if self.delete => sandbox::remove_namespace(&path),
            _ => Ok(()),
        }
    }
}

impl Status {
    pub(super) fn run(self, plugins: &'static [Entry]) -> Result<()> {
        let runtime = parameters::runtime(plugins, self.timeout);
        runtime.status(&find(&runtime, &self.network)?)
    }
}

/// The network of an argument. Each broken file in front of it is a line on stderr.
pub(super) fn find(runtime: &Runtime, network: &str) -> Result<Network> {
    match parameters::choice(network)? {
        Choice::Given(network) => Ok(network),
        Choice::Named(name) => {
            let warn = &mut |error: &Error| sys::warn(&format!("warning: {error}"));
            Network::find(&name, &runtime.configurations, warn)
        }
    }
}

fn attachment(id: Option<String>, name: Option<String>, path: &Path) -> Result<Attachment> {
    let name = parameters::ifname(name)?.unwrap_or_else(|| IFNAME.into());
    let container_id = match id {
        Some(id) => container_id(id)?,
        None => container_id_of(path)?,
    };
    Ok(Attachment { container_id, ifname: ifname(name)? })
}

fn container_id(id: String) -> Result<ContainerId> {
    ContainerId::new(id).map_err(|error| not_understood(error.to_string()))
}

fn ifname(name: String) -> Result<IfName> {
    IfName::new(name).map_err(|error| not_understood(error.to_string()))
}

//! `cnibox add`, `check`, `del` and `status`: attach and detach containers by hand. The arguments are those of cnitool.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use argh::FromArgs;

use crate::error::{Code, Error, Result};
use crate::kernel::sandbox;
use crate::kernel::sys;
use crate::names::{Attachment, ContainerId, IfName};
use crate::runtime::Runtime;
use crate::runtime::conf::Network;
use crate::runtime::container_id_of;
use crate::runtime::lifecycle::{Choice, NewAttachment, Target};
use crate::runtime::netns_lock::Purpose;

use super::output::usage_error;
use super::parameters::{self, AddOptions, TIMEOUT_S};

const IFNAME: &str = "eth0";

/// Declares a command with the options that ADD, CHECK and DEL share. argh cannot take options from another struct.
macro_rules! of_attachment {
    ($(#[$head:meta])* struct $name:ident { $($own:tt)* }) => {
        $(#[$head])*
        pub(super) struct $name {
            $($own)*
            /// the name of the interface in the container; eth0 if not given
            #[argh(option, short = 'i')]
            ifname: Option<String>,
            /// the container id; derived from the path of the namespace if not given
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
        note = "NETCONFPATH, CNI_PATH, CNI_ARGS, CAP_ARGS and CNI_IFNAME have the same meaning as in cnitool."
    )]
    struct Add {
        /// the network's name, or the path of its file
        #[argh(positional)]
        network: String,
        /// the network namespace: a path, a name under /run/netns, or the id of a process
        #[argh(positional)]
        netns: String,
        /// publish a port: [IP:]HOST:CONTAINER[/PROTO]; may be repeated
        #[argh(option, short = 'p')]
        publish: Vec<String>,
        /// the address to request for the container; may be repeated
        #[argh(option)]
        ip: Vec<String>,
        /// the MAC address to request for the interface
        #[argh(option)]
        mac: Option<String>,
        /// create the network namespace first; NETNS must be a name
        #[argh(switch)]
        create: bool,
    }
}

of_attachment! {
    /// Check that an attachment is as ADD made it.
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
        /// the network namespace: a path, a name under /run/netns, or the id of a process
        #[argh(positional)]
        netns: String,
    }
}

of_attachment! {
    /// Detach a network namespace from a network; with --container-id, from all networks that the cache has for the container.
    #[derive(FromArgs)]
    #[argh(
        subcommand,
        name = "del",
        help_triggers("-h", "--help", "help"),
        example = "{command_name} mynet web --delete",
        example = "{command_name} --container-id 3f2a"
    )]
    struct Del {
        /// NETWORK: the network's name or the path of its file; NETNS: a path, a name under /run/netns, or the id of a process
        #[argh(positional, arg_name = "network netns")]
        operands: Vec<String>,
        /// remove the network namespace afterwards; NETNS must be a name
        #[argh(switch)]
        delete: bool,
    }
}

/// Check whether the plugins of a network can do an ADD (STATUS).
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
    /// ignored; cnitool has this argument
    #[argh(positional)]
    _netns: Option<String>,
    /// the seconds that an executed plugin may take; 180 if not given
    #[argh(option, default = "TIMEOUT_S")]
    timeout: u64,
}

/// The path of a namespace. A namespace that the command creates or removes must have a name.
fn path_of(netns: &str, must_be_named: bool) -> Result<PathBuf> {
    if must_be_named { parameters::named_netns(netns) } else { parameters::netns(netns) }
}

impl Add {
    pub(super) fn run(&self) -> Result<u8> {
        let path = path_of(&self.netns, self.create)?;
        let at = attachment(&self.container_id, &self.ifname, &path)?;
        let runtime = parameters::runtime(self.timeout);
        let mut new = parameters::new_attachment(find(&runtime, &self.network)?, at)?;
        let options = AddOptions { publish: &self.publish, ip: &self.ip, mac: self.mac.as_deref() };
        options.apply(&mut new)?;
        // The namespace stays when this value is dropped.
        let _made = match self.create {
            true => Some(runtime.make_namespace(&path, Purpose::Attachment)?),
            false => None,
        };
        match add_and_print(&runtime, &new, &path) {
            Ok(()) => Ok(0),
            Err(error) if self.create => Err(error.and(sandbox::remove_namespace(&path))),
            Err(error) => Err(error),
        }
    }
}

fn add_and_print(runtime: &Runtime, new: &NewAttachment, netns: &Path) -> Result<()> {
    let added = runtime.add(new, netns)?;
    match sys::write_all(io::stdout().as_fd(), (added.result().to_pretty() + "\n").as_bytes()) {
        Ok(()) => added.keep(),
        Err(error) => {
            let failed = Error::new(Code::IO, "cannot write to stdout").with_details(error);
            Err(added.undo_after(failed))
        }
    }
}

impl Check {
    pub(super) fn run(&self) -> Result<u8> {
        let path = parameters::netns(&self.netns)?;
        let at = attachment(&self.container_id, &self.ifname, &path)?;
        let runtime = parameters::runtime(self.timeout);
        let (args, capability_args) = &(parameters::cni_args()?, parameters::capability_args()?);
        let choice = parameters::choice(&self.network)?;
        let target = Target { at: &at, netns: Some(&path), args, capability_args };
        runtime.check(&choice, &target).map(|()| 0)
    }
}

impl Del {
    pub(super) fn run(&self) -> Result<u8> {
        let (network, netns) = parameters::network_and_netns(&self.operands)?;
        if self.delete && netns.is_none() {
            return Err(usage_error("--delete needs NETNS"));
        }
        let path = netns.map(|netns| path_of(netns, self.delete)).transpose()?;
        let runtime = parameters::runtime(self.timeout);
        let (args, capability_args) = &(parameters::cni_args()?, parameters::capability_args()?);
        let choice = network.map(parameters::choice).transpose()?;
        let attached = match (&self.container_id, &choice, &path) {
            (Some(id), choice, None) => {
                let ifname = parameters::ifname(&self.ifname)?;
                runtime.attachments_of(&container_id(id)?, choice.as_ref(), ifname.as_ref())?
            }
            (_, Some(choice), Some(path)) => {
                vec![(choice.name().clone(), attachment(&self.container_id, &self.ifname, path)?)]
            }
            _ => return Err(usage_error("NETWORK and NETNS, or --container-id, are missing")),
        };
        let mut errors = Vec::new();
        for (name, at) in attached {
            let target = Target { at: &at, netns: path.as_deref(), args, capability_args };
            let named = Choice::Named(name);
            let choice = choice.as_ref().unwrap_or(&named);
            // Without a path, the attachments are those of the cache.
            let deleted = match path {
                Some(_) => runtime.del(choice, &target),
                None => runtime.del_listed(choice, &target),
            };
            errors.extend(deleted.err());
        }
        Error::joined(errors)?;
        match path {
            Some(path) if self.delete => sandbox::remove_namespace(&path)?,
            _ => {}
        }
        Ok(0)
    }
}

impl Status {
    pub(super) fn run(&self) -> Result<u8> {
        let runtime = parameters::runtime(self.timeout);
        let network = find(&runtime, &self.network)?;
        if !runtime.status(&network)? {
            let (name, version) = (&network.name, network.version.text());
            sys::warn(format_args!(
                "note: no plugin of {name} was asked: cniVersion {version} has no STATUS"
            ));
        }
        Ok(0)
    }
}

/// The network that an argument names. Each unreadable file before it in the directory is a warning on stderr.
pub(super) fn find(runtime: &Runtime, network: &str) -> Result<Network> {
    match parameters::choice(network)? {
        Choice::Configuration(network) => Ok(network),
        Choice::Named(name) => {
            let warn = &mut |error: &Error| sys::warn(format_args!("warning: {error}"));
            Network::find(&name, &runtime.configurations, warn)
        }
    }
}

pub(super) fn attachment(
    id: &Option<String>,
    name: &Option<String>,
    path: &Path,
) -> Result<Attachment> {
    let ifname = parameters::ifname(name)?.map_or_else(|| IfName::new(IFNAME), Ok)?;
    let container_id = match id {
        Some(id) => container_id(id)?,
        None => container_id_of(path)?,
    };
    Ok(Attachment { container_id, ifname })
}

fn container_id(id: &str) -> Result<ContainerId> {
    ContainerId::new(id).map_err(usage_error)
}

//! `cnibox add`, `check`, `del` and `status`: attach and detach containers by hand. The arguments are those of cnitool.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use argh::{ArgsInfo, FromArgs};

use crate::error::{Code, Error, Result};
use crate::kernel::sandbox;
use crate::kernel::sys;
use crate::names::{Attachment, ContainerId, IfName, NetworkName};
use crate::runtime::Runtime;
use crate::runtime::conf::Network;
use crate::runtime::container_id_of;
use crate::runtime::life::container_of;
use crate::runtime::lifecycle::{Choice, NewAttachment, Target};
use crate::runtime::netns_lock::Purpose;

use super::output::{print_line, usage_error};
use super::parameters::{self, AddOptions, TIMEOUT_S};
use super::podman;

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
            /// the container id, or for check and del its beginning; derived from the path of the namespace if not given
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
    #[derive(ArgsInfo, FromArgs)]
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
        /// publish also a port that a program of the host uses
        #[cfg(feature = "tool")]
        #[argh(switch)]
        force: bool,
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
    /// Check that an attachment, or each attachment of a container, is as ADD made it.
    #[derive(ArgsInfo, FromArgs)]
    #[argh(
        subcommand,
        name = "check",
        help_triggers("-h", "--help", "help"),
        example = "{command_name} mynet web",
        example = "{command_name} web"
    )]
    struct Check {
        /// NETWORK: the network's name or the path of its file, all networks of the container if not given; CONTAINER: the
        /// network namespace as a path, as a name under /run/netns or as the id of a process, or the beginning of a container id
        #[argh(positional, arg_name = "network container")]
        operands: Vec<String>,
    }
}

of_attachment! {
    /// Detach a container from a network, or from all networks that the cache has for it.
    #[derive(ArgsInfo, FromArgs)]
    #[argh(
        subcommand,
        name = "del",
        help_triggers("-h", "--help", "help"),
        example = "{command_name} mynet web --delete",
        example = "{command_name} web",
        example = "{command_name} --container-id 3f2a",
        note = "The exit code is 1 if there was no such attachment; with --ignore it is 0."
    )]
    struct Del {
        /// NETWORK: the network's name or the path of its file, all networks of the container if not given; CONTAINER: the
        /// network namespace as a path, as a name under /run/netns or as the id of a process, or the beginning of a container id
        #[argh(positional, arg_name = "network container")]
        operands: Vec<String>,
        /// remove the network namespace afterwards; CONTAINER must be its name
        #[argh(switch)]
        delete: bool,
        /// succeed if there is no such attachment
        #[argh(switch)]
        ignore: bool,
    }
}

/// Check whether the plugins of a network, or of each network, can do an ADD (STATUS).
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "status",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} mynet",
    example = "{command_name}"
)]
pub(super) struct Status {
    /// NETWORK: the network's name or the path of its file; all networks, with a line for each, if not given. NETNS, an argument
    /// of cnitool, is ignored
    #[argh(positional, arg_name = "network netns")]
    operands: Vec<String>,
    /// the seconds that an executed plugin may take; 180 if not given
    #[argh(option, default = "TIMEOUT_S")]
    timeout: u64,
}

impl Add {
    pub(super) fn run(&self) -> Result<u8> {
        let path = match self.create {
            true => parameters::named_netns(&self.netns)?,
            false => parameters::netns(&self.netns)?,
        };
        let at = attachment(&self.container_id, &self.ifname, &path)?;
        let runtime = parameters::runtime(self.timeout);
        let mut new = parameters::new_attachment(parameters::find(&runtime, &self.network)?, at)?;
        let options = AddOptions { publish: &self.publish, ip: &self.ip, mac: self.mac.as_deref() };
        options.apply(&mut new)?;
        #[cfg(feature = "tool")]
        if !self.force {
            parameters::refuse_shadowed(&self.publish)?;
        }
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

/// The attachments that the operands of `check` and `del` name.
struct Named {
    /// The words of the operator for them.
    title: String,
    choice: Option<Choice>,
    attached: Vec<(NetworkName, Attachment)>,
    /// `None`: the attachments are those of the cache, each with its own namespace.
    netns: Option<PathBuf>,
}

impl Named {
    fn find(
        runtime: &Runtime,
        operands: &[String],
        id: &Option<String>,
        ifname: &Option<String>,
    ) -> Result<Self> {
        let (network, container) = match (parameters::network_and_netns(operands)?, id) {
            // The only operand is the container.
            ((Some(container), None), None) => (None, Some(container)),
            (both, _) => both,
        };
        let choice = network.map(parameters::choice).transpose()?;
        let netns = container.map(parameters::netns).transpose()?;
        if let (Some(choice), Some(netns)) = (&choice, &netns) {
            let at = attachment(id, ifname, netns)?;
            let is_known = id.is_some() || runtime.has_entry(choice.name(), &at);
            if is_known || of_word(runtime, Some(choice), container, Some(netns))?.is_none() {
                let title = at.title(choice.name());
                let (attached, netns) = (vec![(choice.name().clone(), at)], Some(netns.clone()));
                return Ok(Self { title, attached, netns, choice: Some(choice.clone()) });
            }
        }
        let ifname = parameters::ifname(ifname)?;
        let word = id.as_deref().or(container);
        let found = of_word(runtime, choice.as_ref(), word, netns.as_deref())?;
        let id = match (found, id) {
            (Some(id), _) => id,
            (None, Some(id)) => container_id(id)?,
            (None, None) => {
                let msg = "NETWORK and CONTAINER, or --container-id, are missing";
                return match word {
                    None => Err(usage_error(msg)),
                    Some(word) if podman::is_network(word) => {
                        Err(usage_error(format!("{msg}; no container is {word}")))
                    }
                    Some(word) => {
                        let title = format!("container {word}");
                        Ok(Self { title, choice, attached: Vec::new(), netns: None })
                    }
                };
            }
        };
        let attached = runtime.attachments_of(&id, choice.as_ref(), ifname.as_ref())?;
        let of = choice.as_ref().map(|choice| format!(" in network {}", choice.name()));
        let title = format!("container {id}{}", of.unwrap_or_default());
        Ok(Self { title, choice, attached, netns: None })
    }

    fn absent(&self, verb: &str) -> Error {
        let msg = format!("cannot {verb} {}: no such attachment", self.title);
        Error::new(Code::UNKNOWN_CONTAINER, msg)
    }

    /// Calls `act` for each attachment, and returns all errors.
    fn each(&self, act: impl Fn(&Choice, &Target<'_>) -> Result<()>) -> Result<()> {
        let (args, capability_args) = &(parameters::cni_args()?, parameters::capability_args()?);
        let mut errors = Vec::new();
        for (name, at) in &self.attached {
            let target = Target { at, netns: self.netns.as_deref(), args, capability_args };
            let named = Choice::Named(name.clone());
            errors.extend(act(self.choice.as_ref().unwrap_or(&named), &target).err());
        }
        Error::joined(errors)
    }
}

/// The id of the container that a word names among the attachments of a network, or of all.
fn of_word(
    runtime: &Runtime,
    choice: Option<&Choice>,
    word: Option<&str>,
    netns: Option<&Path>,
) -> Result<Option<ContainerId>> {
    let Some(word) = word else { return Ok(None) };
    let mut entries = runtime.entries()?;
    entries.retain(|entry| choice.is_none_or(|choice| *choice.name() == entry.network));
    container_of(word, netns, &entries)
}

impl Check {
    pub(super) fn run(&self) -> Result<u8> {
        let runtime = parameters::runtime(self.timeout);
        let named = Named::find(&runtime, &self.operands, &self.container_id, &self.ifname)?;
        if named.attached.is_empty() {
            return Err(named.absent("check"));
        }
        named.each(|choice, target| runtime.check(choice, target)).map(|()| 0)
    }
}

impl Del {
    pub(super) fn run(&self) -> Result<u8> {
        let (first, second) = parameters::network_and_netns(&self.operands)?;
        let path =
            match (self.delete, second.or_else(|| first.filter(|_| self.container_id.is_none()))) {
                (true, None) => return Err(usage_error("--delete needs CONTAINER")),
                (true, Some(name)) => Some(parameters::named_netns(name)?),
                (false, _) => None,
            };
        let runtime = parameters::runtime(self.timeout);
        let named = Named::find(&runtime, &self.operands, &self.container_id, &self.ifname)?;
        let is_there = named.attached.iter().any(|(name, at)| runtime.is_known(name, at))
            || path.as_ref().is_some_and(|path| path.exists());
        named.each(|choice, target| match target.netns {
            Some(_) => runtime.del(choice, target),
            None => runtime.del_listed(choice, target),
        })?;
        if let Some(path) = path {
            sandbox::remove_namespace(&path)?;
        }
        if is_there || self.ignore { Ok(0) } else { Err(named.absent("detach")) }
    }
}

impl Status {
    pub(super) fn run(&self) -> Result<u8> {
        let runtime = parameters::runtime(self.timeout);
        let (Some(network), _) = parameters::network_and_netns(&self.operands)? else {
            return all(&runtime);
        };
        let network = parameters::find(&runtime, network)?;
        if !runtime.status(&network)? {
            sys::warn(format_args!("note: {}", not_asked(&network)));
        }
        Ok(0)
    }
}

/// Prints the answer of each network. The exit code is 1 if one cannot be used.
fn all(runtime: &Runtime) -> Result<u8> {
    let mut code = 0;
    for network in Network::all(&runtime.configurations)? {
        let asked = network.and_then(|network| {
            let is_asked = runtime.status(&network);
            Ok(match is_asked.map_err(|error| error.context(&network.name))? {
                true => format!("{}: ready", network.name),
                false => not_asked(&network),
            })
        });
        if asked.is_err() {
            code = 1;
        }
        print_line(asked.unwrap_or_else(|error| error.to_string()));
    }
    Ok(code)
}

fn not_asked(network: &Network) -> String {
    let (name, version) = (&network.name, network.version.text());
    format!("no plugin of {name} was asked: cniVersion {version} has no STATUS")
}

/// The network that an argument names, also one without a file.
#[cfg(feature = "tool")]
pub(super) fn find_any(runtime: &Runtime, network: &str) -> Result<Network> {
    parameters::find(runtime, network).or_else(|error| {
        let mut others = runtime.others.iter();
        others.find(|other| *other.name == *network).cloned().ok_or(error)
    })
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

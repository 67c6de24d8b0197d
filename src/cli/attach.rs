//! `cnibox add`, `check`, `del` and `status`: attach and detach containers by hand. The arguments are those of cnitool.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use argh::{ArgsInfo, FromArgs};

use crate::error::{Code, Error, Result};
use crate::kernel::sandbox;
use crate::kernel::sys;
use crate::names::{Attachment, ContainerId, IfName, Mac, NetworkName};
use crate::runtime::NAMED_NAMESPACES;
use crate::runtime::Runtime;
use crate::runtime::attachments::{container_like, container_of, ids_with_beginning};
use crate::runtime::cache::Entries;
use crate::runtime::conf::Network;
use crate::runtime::container_id_of;
use crate::runtime::lifecycle::{AttachmentsOf, Choice, NewAttachment, Target};
use crate::runtime::netns_lock::Purpose;

use super::output::{print_line, usage_error};
use super::parameters::{self, AddOptions, ContainerNames, Published, RequestedIp, TIMEOUT_S};
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
            /// the container id, or for check its beginning; derived from the path of the namespace if not given
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
        publish: Vec<Published>,
        /// publish also a port that a program of the host uses
        #[cfg(feature = "tool")]
        #[argh(switch)]
        force: bool,
        /// the address to request for the container; may be repeated
        #[argh(option)]
        ip: Vec<RequestedIp>,
        /// the MAC address to request for the interface
        #[argh(option)]
        mac: Option<Mac>,
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
        example = "{command_name} --container-id 3f2a7c09",
        note = "The exit code is 1 if there was no such attachment; with --ignore it is 0."
    )]
    struct Del {
        /// NETWORK: the network's name or the path of its file, all networks of the container if not given; CONTAINER: the
        /// network namespace as a path, as a name under /run/netns or as the id of a process, or the whole container id
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
        let options = AddOptions { publish: &self.publish, ip: &self.ip, mac: self.mac };
        options.apply(&mut new)?;
        // The name of the namespace is that of the container.
        let name = path.strip_prefix(NAMED_NAMESPACES).ok().and_then(Path::to_str);
        ContainerNames { name, aliases: &[] }.apply(&mut new);
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

/// What `check` and `del` do to attachments.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    /// Changes nothing, so the beginning of an id names a container.
    Check,
    Detach,
}

/// The attachments that the operands of `check` and `del` name.
struct Named {
    act: Act,
    /// The words of the operator for them.
    title: String,
    choice: Option<Choice>,
    attached: Vec<(NetworkName, Attachment)>,
    /// `None`: the attachments are those of the cache, each with its own namespace.
    netns: Option<PathBuf>,
    /// An error for each file that can be the entry of such an attachment and cannot be read.
    unreadable: Vec<Error>,
    /// The reason if nothing is attached: nothing has this name, but something similar.
    similar: Option<String>,
}

impl Named {
    fn find(
        runtime: &Runtime,
        act: Act,
        operands: &[String],
        (id, ifname): (&Option<String>, &Option<String>),
    ) -> Result<Self> {
        let (network, container) = match (parameters::network_and_netns(operands)?, id) {
            // The only operand is the container.
            ((Some(container), None), None) => (None, Some(container)),
            (both, _) => both,
        };
        let choice = network.map(parameters::choice).transpose()?;
        let netns = container.map(parameters::netns).transpose()?;
        let title = format!("container {}", id.as_deref().or(container).unwrap_or_default());
        let both = match (&choice, &netns) {
            (Some(choice), Some(netns)) => {
                Some((choice.name().clone(), attachment(id, ifname, netns)?))
            }
            _ => None,
        };
        let is_known =
            both.as_ref().is_some_and(|(name, at)| id.is_some() || runtime.has_entry(name, at));
        let word = match id.as_deref().or(container) {
            None => return Err(usage_error(MISSING)),
            Some(_) if is_known => Word::default(),
            Some(word) => Word::find(runtime, act, choice.as_ref(), word, netns.as_deref())?,
        };
        let Word { id: of_word, unreadable, similar } = word;
        let named = Self { act, title, choice, attached: Vec::new(), netns, unreadable, similar };
        if let (Some((name, at)), None) = (both, &of_word) {
            named.unreadable.iter().for_each(|error| sys::warn(format_args!("warning: {error}")));
            return Ok(Self { title: at.title(&name), attached: vec![(name, at)], ..named });
        }
        let named = Self { netns: None, ..named };
        let id = match (of_word, id, container) {
            (Some(id), _, _) => id,
            (None, Some(id), _) => container_id(id)?,
            (None, None, Some(word)) if named.unreadable.is_empty() && podman::is_network(word) => {
                return Err(usage_error(format!("{MISSING}; no container is {word}")));
            }
            (None, None, _) => return Ok(named),
        };
        let ifname = parameters::ifname(ifname)?;
        let AttachmentsOf { attached, unreadable } =
            runtime.attachments_of(&id, named.choice.as_ref(), ifname.as_ref())?;
        let of = named.choice.as_ref().map(|choice| format!(" in network {}", choice.name()));
        let title = format!("container {id}{}", of.unwrap_or_default());
        Ok(Self { title, attached, unreadable, ..named })
    }

    fn cannot(&self) -> String {
        let verb = if self.act == Act::Check { "check" } else { "detach" };
        format!("cannot {verb} {}", self.title)
    }

    fn absent(&self) -> Error {
        let reason = self.similar.as_deref().unwrap_or("no such attachment");
        Error::new(Code::UNKNOWN_CONTAINER, format_args!("{}: {reason}", self.cannot()))
    }

    /// The errors of the files that can be entries of such attachments.
    fn unknown(&self) -> impl Iterator<Item = Error> {
        self.unreadable.iter().map(|error| error.clone().context(self.cannot()))
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
        // With NETWORK and CONTAINER, an attachment needs no entry.
        if self.netns.is_none() {
            errors.extend(self.unknown());
        }
        Error::joined(errors)
    }
}

const MISSING: &str = "NETWORK and CONTAINER, or --container-id, are missing";

/// What the cache has of a word of the operator.
#[derive(Default)]
struct Word {
    /// The container that the word names.
    id: Option<ContainerId>,
    /// If it names none: an error for each entry that cannot be read, and the reason if a similar word names one.
    unreadable: Vec<Error>,
    similar: Option<String>,
}

impl Word {
    /// Looks a word up among the attachments of a network, or of all.
    fn find(
        runtime: &Runtime,
        act: Act,
        choice: Option<&Choice>,
        word: &str,
        netns: Option<&Path>,
    ) -> Result<Self> {
        let Entries { mut entries, damaged } = runtime.entries_and_damaged()?;
        entries.retain(|entry| choice.is_none_or(|choice| *choice.name() == entry.network));
        let id = match act {
            Act::Check => container_like(word, netns, &entries)?,
            Act::Detach => container_of(word, netns, &entries)?,
        };
        let begun = ids_with_beginning(word, &entries);
        let similar = begun.first().filter(|_| id.is_none());
        let similar = similar.map(|id| format!("no container is {word}; did you mean {id}?"));
        let damaged = damaged.into_iter().map(|file| file.error);
        let unreadable = damaged.filter(|_| id.is_none()).collect();
        Ok(Self { id, unreadable, similar })
    }
}

impl Check {
    pub(super) fn run(&self) -> Result<u8> {
        let runtime = parameters::runtime(self.timeout);
        let options = (&self.container_id, &self.ifname);
        let named = Named::find(&runtime, Act::Check, &self.operands, options)?;
        named.each(|choice, target| runtime.check(choice, target))?;
        if named.attached.is_empty() { Err(named.absent()) } else { Ok(0) }
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
        let options = (&self.container_id, &self.ifname);
        let named = Named::find(&runtime, Act::Detach, &self.operands, options)?;
        let is_known = named.attached.iter().any(|(name, at)| runtime.is_known(name, at));
        let is_there = is_known || path.as_ref().is_some_and(|path| path.exists());
        named.each(|choice, target| match target.netns {
            Some(_) => runtime.del(choice, target),
            None => runtime.del_listed(choice, target),
        })?;
        if let Some(path) = path {
            // The namespace can be that of an attachment whose entry cannot be read.
            if !is_known {
                named.unknown().next().map_or(Ok(()), Err)?;
            }
            sandbox::remove_namespace(&path)?;
        }
        match (is_there, self.ignore, &named.similar) {
            (true, _, _) => Ok(0),
            (false, false, _) => Err(named.absent()),
            (false, true, similar) => {
                similar.iter().for_each(|similar| sys::warn(format_args!("note: {similar}")));
                Ok(0)
            }
        }
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

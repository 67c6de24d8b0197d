//! `cnibox networks`: lists the configured networks; `create` and `rm` have the options of `podman network`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::str::FromStr;

use argh::{ArgsInfo, FromArgs};
use ipnet::IpNet;

use crate::error::{Error, Result};
use crate::kernel::sandbox;
use crate::kernel::sys::warn;
use crate::names::{IfName, NetworkName};
use crate::netlink::rtnl::Rtnl;
use crate::plugins::dnsname;
use crate::runtime::Runtime;
use crate::runtime::networks::ListedNetwork;
use crate::runtime::new_network::{Kind, NewNetwork};

#[cfg(feature = "tool")]
use super::attach;
#[cfg(feature = "tool")]
use super::output::print_text;
use super::output::{print_json_list, print_line, usage_error};
use super::parameters::{self, TIMEOUT_S};
use super::podman;
use super::table::Table;

/// List the configured networks, and the order in which each runtime reads them.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "networks",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --json",
    note = "NETCONFPATH is the directory of the configurations. containerd and CRI-O use the first network in their order; podman uses a network by its name."
)]
pub(super) struct Networks {
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// print only the names
    #[argh(switch, short = 'q')]
    quiet: bool,
    #[argh(subcommand)]
    action: Option<Action>,
}

#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand)]
enum Action {
    Create(Create),
    Remove(Remove),
    #[cfg(feature = "tool")]
    Inspect(Inspect),
    #[cfg(feature = "netavark")]
    Export(Export),
}

/// Write the configuration of a network.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "create",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} mynet",
    example = "{command_name} mynet --subnet 10.5.0.0/24 --subnet fd00:5::/64",
    example = "{command_name} lan --type macvlan --parent eth0 --subnet 192.168.1.0/24 --gateway 192.168.1.1",
    example = "{command_name} --podman mynet"
)]
struct Create {
    /// the network's name
    #[argh(positional)]
    name: String,
    /// a subnet for the containers, IPv4 or IPv6; may be repeated; the first free one from 10.89.0.0/24 on if not given
    #[argh(option)]
    subnet: Vec<String>,
    /// the gateway of a subnet; the first address of the subnet if not given; may be repeated
    #[argh(option)]
    gateway: Vec<String>,
    /// the part of a subnet from which containers get addresses; may be repeated
    #[argh(option)]
    ip_range: Vec<String>,
    /// bridge, veth, ptp, macvlan, ipvlan or vlan; bridge if not given
    #[argh(option, long = "type", default = "\"bridge\".into()")]
    kind: String,
    /// the bridge, or the link of the host below a macvlan, ipvlan or vlan
    #[argh(option)]
    interface_name: Option<String>,
    /// the same as -o parent=LINK
    #[argh(option)]
    parent: Option<String>,
    /// KEY=VALUE: parent, mode, mtu, vlan or isolate; may be repeated
    #[argh(option, short = 'o', long = "opt")]
    options: Vec<String>,
    /// the containers of the bridge reach only each other and the host
    #[argh(switch)]
    internal: bool,
    /// containers find each other by name: aardvark-dns answers, podman's program
    #[argh(switch)]
    names: bool,
    /// with --names: the domain of the names; dns.podman if not given
    #[argh(option)]
    domain: Option<String>,
    /// write nothing, and print the command that creates the same network with podman's driver
    #[cfg(feature = "netavark")]
    #[argh(switch)]
    podman: bool,
}

/// Remove the configurations of networks, and their bridges.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "rm",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} mynet"
)]
struct Remove {
    /// the names of networks
    #[argh(positional)]
    names: Vec<String>,
    /// also remove networks that containers use
    #[argh(switch, short = 'f')]
    force: bool,
}

/// Print the configurations of networks.
#[cfg(feature = "tool")]
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "inspect",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} mynet"
)]
struct Inspect {
    /// the names of networks
    #[argh(positional)]
    names: Vec<String>,
}

/// Print the commands that create the configured networks with podman's driver.
#[cfg(feature = "netavark")]
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "export",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --podman",
    example = "{command_name} --podman mynet",
    note = "podman then uses the network of the file. Nothing is executed or written."
)]
struct Export {
    /// the names of networks; all if not given
    #[argh(positional)]
    names: Vec<String>,
    /// print `podman network create` for each
    #[argh(switch)]
    podman: bool,
}

impl Networks {
    pub(super) fn run(&self) -> Result<u8> {
        let runtime = parameters::runtime(TIMEOUT_S);
        match &self.action {
            None => self.list(&podman::runtime(TIMEOUT_S))?,
            Some(Action::Create(create)) => create.run(&runtime)?,
            Some(Action::Remove(remove)) => remove.run(&runtime)?,
            #[cfg(feature = "tool")]
            Some(Action::Inspect(inspect)) => inspect.run(&podman::runtime(TIMEOUT_S))?,
            #[cfg(feature = "netavark")]
            Some(Action::Export(export)) => export.run(&runtime)?,
        }
        Ok(0)
    }

    fn list(&self, runtime: &Runtime) -> Result<()> {
        let (listed, broken) = runtime.networks()?;
        match (self.json, self.quiet) {
            (true, _) => print_json_list("networks", &listed),
            (false, true) => listed.iter().for_each(|listed| print_line(&listed.name)),
            (false, false) => print(&listed),
        }
        for error in &broken {
            warn(format_args!("warning: {error}"));
        }
        let built_in: BTreeSet<&str> =
            listed.iter().flat_map(|network| &network.built_in).map(String::as_str).collect();
        if !built_in.is_empty() {
            let kinds = Vec::from_iter(built_in).join(", ");
            warn(format_args!(
                "note: only cnibox finds {kinds}: no directory of CNI_PATH has such a file"
            ));
        }
        Ok(())
    }
}

fn print(networks: &[ListedNetwork]) {
    let mut table = Table::new("NETWORK SUBNETS PLUGINS MISSING CONTAINERD CRI-O PODMAN FILE");
    for listed in networks {
        let subnets: Vec<String> = listed.subnets.iter().map(IpNet::to_string).collect();
        let position = |at: Option<usize>| at.map_or_else(String::new, |at| at.to_string());
        table.row(&[
            &listed.name,
            &subnets.join(","),
            &listed.plugins.join(","),
            &listed.missing.join(","),
            &position(listed.order.containerd),
            &position(listed.order.crio),
            &position(listed.order.podman),
            &listed.file.display(),
        ]);
    }
    table.print();
}

impl Create {
    fn run(&self, runtime: &Runtime) -> Result<()> {
        let new = self.network()?;
        let name = NetworkName::new(&*self.name).map_err(usage_error)?;
        #[cfg(feature = "netavark")]
        if self.podman {
            let command = self.command(runtime, &name, &new);
            let cannot = |error: Error| error.context(format!("cannot create network {name}"));
            print_line(command.map_err(cannot)?);
            return Ok(());
        }
        let missing = sandbox::missing_capabilities();
        if !new.kind.has_parent() && !missing.is_empty() {
            let msg = format!("cannot create network {name}: it needs root");
            return Err(Error::internal(msg).with_details(missing.join(" and ")));
        }
        runtime.create_network(&name, &new)?;
        print_line(&name);
        if self.names
            && let Err(error) = dnsname::require_engine(&runtime.settings.path)
        {
            warn(format_args!("warning: {error}; an ADD fails until it is there"));
        }
        // The link can appear later. This user may not be allowed to look.
        if let Some(parent) = &new.parent
            && let Ok(None) = Rtnl::open().and_then(|host| host.link(parent))
        {
            warn(format_args!("warning: the host has no link {parent}: an ADD fails until it has"));
        }
        let (listed, _) = runtime.networks()?;
        match listed.as_slice() {
            [first, _, ..] if first.name == name && first.order.containerd.is_some() => {
                warn(format_args!(
                    "note: its file is now the first: containerd and CRI-O use this network"
                ));
            }
            _ => {}
        }
        Ok(())
    }

    /// The command of podman. Fails for what would be refused without `--podman`, and chooses no subnet.
    #[cfg(feature = "netavark")]
    fn command(&self, runtime: &Runtime, name: &NetworkName, new: &NewNetwork) -> Result<String> {
        if !new.leases.is_empty() {
            return Err(usage_error("--ip-range: not with --podman; podman has the same option"));
        }
        if new.subnets.is_empty() && !new.gateways.is_empty() {
            return Err(Error::config("podman needs the subnet of a gateway"));
        }
        new.list(name, &runtime.free_subnets(new, &[])?, "")?;
        let options =
            self.options.iter().map(|option| option.split_once('=').unwrap_or((option, "")));
        let others = options.filter(|(key, _)| *key != "parent");
        let others = others.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let domain = self.domain.clone().map(|domain| ("dnsname.domainName".to_owned(), domain));
        Ok(super::netavark::command::of_new(name, new, others.chain(domain).collect()))
    }

    fn network(&self) -> Result<NewNetwork> {
        let requested = &self.kind;
        let Some((_, kind)) = Kind::ALL.into_iter().find(|(name, _)| name == requested) else {
            let all = Kind::ALL.map(|(name, _)| name).join(", ");
            return Err(usage_error(format!("--type {requested}: not one of {all}")));
        };
        if self.internal && kind != Kind::Bridge {
            return Err(usage_error("--internal: only a bridge has it"));
        }
        if self.domain.is_some() && !self.names {
            return Err(usage_error("--domain needs --names"));
        }
        let mut new = NewNetwork {
            kind,
            is_internal: self.internal,
            has_names: self.names,
            domain: self.domain.clone(),
            ..NewNetwork::default()
        };
        if let Some(why) = new.obstacle_to_names().filter(|_| self.names) {
            return Err(usage_error(format!("--names: {why}")));
        }
        for subnet in &self.subnet {
            new.subnets.push(parse::<IpNet>("--subnet", subnet, "a subnet")?.trunc());
        }
        for gateway in &self.gateway {
            new.gateways.push(parse("--gateway", gateway, "an IP address")?);
        }
        for range in &self.ip_range {
            new.leases.push(leases(range, &new.subnets)?);
        }
        for option in &self.options {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            set(&mut new, key, value)?;
        }
        if let Some(parent) = &self.parent {
            set(&mut new, "parent", parent)?;
        }
        match &self.interface_name {
            Some(bridge) if kind == Kind::Bridge => {
                let name = IfName::new(bridge.as_str());
                new.bridge =
                    Some(name.map_err(|error| usage_error(format!("--interface-name: {error}")))?);
            }
            Some(parent) => set(&mut new, "parent", parent)?,
            None => {}
        }
        match kind {
            Kind::Vlan if new.parent.is_none() || new.vlan.is_none() => {
                Err(usage_error("a vlan needs --parent and -o vlan=ID"))
            }
            _ => Ok(new),
        }
    }
}

fn set(new: &mut NewNetwork, key: &str, value: &str) -> Result<()> {
    match new.set_option(key, value) {
        Ok(true) => Ok(()),
        Ok(false) => Err(usage_error(format!("-o {key}={value}: not an option of this type"))),
        Err(reason) => Err(usage_error(format!("-o {reason}"))),
    }
}

/// The subnet of a range of addresses, and the first and the last address for containers.
fn leases(range: &str, subnets: &[IpNet]) -> Result<(IpNet, [Option<IpAddr>; 2])> {
    let net = parse::<IpNet>("--ip-range", range, "a subnet")?;
    let subnet = subnets.iter().find(|subnet| subnet.contains(&net)).ok_or_else(|| {
        usage_error(format_args!("--ip-range: {range} is in no subnet of --subnet"))
    })?;
    let mut hosts = net.hosts();
    let first = hosts.next();
    Ok((*subnet, [first, hosts.next_back().or(first)]))
}

fn parse<T: FromStr>(option: &str, value: &str, what: &str) -> Result<T> {
    value.parse().map_err(|_| usage_error(format!("{option}: {value:?} is not {what}")))
}

#[cfg(feature = "netavark")]
impl Export {
    fn run(&self, runtime: &Runtime) -> Result<()> {
        if !self.podman {
            return Err(usage_error("--podman is missing"));
        }
        let names = self.names.iter().map(|name| NetworkName::new(name.as_str()));
        let names: Vec<NetworkName> = names.collect::<Result<_, _>>().map_err(usage_error)?;
        let (lines, missing) = super::netavark::command::of_files(runtime, &names)?;
        lines.iter().for_each(print_line);
        Error::joined(missing)
    }
}

#[cfg(feature = "tool")]
impl Inspect {
    /// Prints an object for each network. The text of a list includes the plugins of other files.
    fn run(&self, runtime: &Runtime) -> Result<()> {
        if self.names.is_empty() {
            return Err(usage_error("NAME is missing"));
        }
        for name in &self.names {
            print_text(&attach::find_any(runtime, name)?.list.to_pretty());
        }
        Ok(())
    }
}

impl Remove {
    fn run(&self, runtime: &Runtime) -> Result<()> {
        if self.names.is_empty() {
            return Err(usage_error("NAME is missing"));
        }
        let mut errors = Vec::new();
        for name in &self.names {
            let name = NetworkName::new(name.as_str()).map_err(usage_error)?;
            match runtime.remove_network(&name, self.force) {
                Ok(()) => print_line(&name),
                Err(error) => errors.push(error),
            }
        }
        Error::joined(errors)
    }
}

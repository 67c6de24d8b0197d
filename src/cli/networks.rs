//! `cnibox networks`: what is configured, and `create` and `rm` with podman's words.

use std::str::FromStr;

use argh::FromArgs;
use ipnet::IpNet;

use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::names::{IfName, NetworkName};
use crate::plugin::Entry;
use crate::runtime::conf;
use crate::runtime::lifecycle::Runtime;
use crate::runtime::networks::Listed;
use crate::runtime::new_network::{Kind, NewNetwork};

use super::parameters::{self, TIMEOUT_S, not_understood};
use super::{say, table};

/// List the networks that are configured, and the order in which each runtime takes them.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "networks",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} --json",
    note = "NETCONFPATH is the directory of the configurations. containerd and CRI-O use the network that is their first; podman uses each by its name."
)]
pub(super) struct Networks {
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    #[argh(subcommand)]
    change: Option<Change>,
}

#[derive(FromArgs)]
#[argh(subcommand)]
enum Change {
    Create(Create),
    Remove(Remove),
}

/// Write the configuration of a network.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "create",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} mynet",
    example = "{command_name} mynet --subnet 10.5.0.0/24 --subnet fd00:5::/64",
    example = "{command_name} lan --type macvlan --parent eth0 --subnet 192.168.1.0/24 --gateway 192.168.1.1"
)]
struct Create {
    /// the network's name
    #[argh(positional)]
    name: String,
    /// addresses of the containers, IPv4 or IPv6; may be repeated; a free one of 10.89.0.0/24 and up if not given
    #[argh(option)]
    subnet: Vec<String>,
    /// the router of a subnet, its first address if not given; may be repeated
    #[argh(option)]
    gateway: Vec<String>,
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
}

/// Remove the configurations of networks, and their bridges.
#[derive(FromArgs)]
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
    /// remove a network that containers use, too
    #[argh(switch, short = 'f')]
    force: bool,
}

impl Networks {
    pub(super) fn run(self, plugins: &'static [Entry]) -> Result<()> {
        let runtime = parameters::runtime(plugins, TIMEOUT_S);
        match self.change {
            None => list(&runtime, self.json),
            Some(Change::Create(create)) => create.run(&runtime),
            Some(Change::Remove(remove)) => remove.run(&runtime),
        }
    }
}

fn list(runtime: &Runtime, is_json: bool) -> Result<()> {
    let (listed, broken) = runtime.networks()?;
    if is_json {
        let networks = Json::Array(listed.iter().map(object).collect());
        say(&Json::object([("networks", Some(networks))]).to_pretty());
    } else {
        let header =
            ["NETWORK", "SUBNETS", "PLUGINS", "MISSING", "CONTAINERD", "CRI-O", "PODMAN", "FILE"];
        table::print(header, listed.iter().map(row));
    }
    broken.iter().for_each(|error| warn(&format!("warning: {error}")));
    let mut built_in: Vec<&str> =
        listed.iter().flat_map(|it| &it.built_in).map(String::as_str).collect();
    built_in.sort_unstable();
    built_in.dedup();
    if !built_in.is_empty() {
        let kinds = built_in.join(", ");
        warn(&format!("note: only cnibox finds {kinds}: no directory of CNI_PATH has such a file"));
    }
    Ok(())
}

fn row(listed: &Listed) -> [String; 8] {
    let order = |order: Option<u32>| order.map(|it| it.to_string()).unwrap_or_default();
    let subnets: Vec<String> = listed.subnets.iter().map(ToString::to_string).collect();
    [
        listed.network.name.to_string(),
        subnets.join(","),
        listed.network.plugins.iter().map(conf::kind).collect::<Vec<_>>().join(","),
        listed.missing.join(","),
        order(listed.containerd),
        order(listed.crio),
        order(listed.podman),
        listed.network.file.display().to_string(),
    ]
}

fn object(listed: &Listed) -> Json {
    fn texts(texts: impl Iterator<Item = String>) -> Option<Json> {
        Some(Json::Array(texts.map(Json::from).collect()))
    }
    let network = &listed.network;
    let order = Json::object([
        ("containerd", listed.containerd.map(Json::from)),
        ("cri-o", listed.crio.map(Json::from)),
        ("podman", listed.podman.map(Json::from)),
    ]);
    Json::object([
        ("name", Some(network.name.to_string().into())),
        ("file", Some(network.file.to_string_lossy().into_owned().into())),
        ("cniVersion", Some(network.version.text().into())),
        ("subnets", texts(listed.subnets.iter().map(ToString::to_string))),
        ("plugins", texts(network.plugins.iter().map(|plugin| conf::kind(plugin).into()))),
        ("missing", texts(listed.missing.iter().cloned())),
        ("builtIn", texts(listed.built_in.iter().cloned())),
        ("order", Some(order)),
    ])
}

impl Create {
    fn run(self, runtime: &Runtime) -> Result<()> {
        let new = self.network()?;
        runtime.create_network(&new)?;
        say(&new.name);
        let (listed, _) = runtime.networks()?;
        match listed.as_slice() {
            [first, _, ..] if first.network.name == new.name && first.containerd.is_some() => {
                warn("note: its file is the first now: containerd and CRI-O take this network");
            }
            _ => {}
        }
        Ok(())
    }

    fn network(self) -> Result<NewNetwork> {
        let kind = Kind::ALL.iter().find(|(name, _)| *name == self.kind);
        let kind = kind.map(|(_, kind)| *kind).ok_or_else(|| {
            let all = Kind::ALL.map(|(name, _)| name).join(", ");
            not_understood(format!("--type {}: not one of {all}", self.kind))
        })?;
        let mut new = NewNetwork {
            name: NetworkName::new(self.name).map_err(|error| not_understood(error.to_string()))?,
            kind,
            subnets: Vec::new(),
            gateways: Vec::new(),
            bridge: None,
            parent: None,
            mode: None,
            mtu: None,
            vlan: None,
            isolate: false,
        };
        for subnet in &self.subnet {
            new.subnets.push(parse::<IpNet>("--subnet", subnet, "a subnet")?.trunc());
        }
        for gateway in &self.gateway {
            new.gateways.push(parse("--gateway", gateway, "an IP address")?);
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
                new.bridge = Some(ifname("--interface-name", bridge)?)
            }
            Some(parent) => set(&mut new, "parent", parent)?,
            None => {}
        }
        match kind {
            Kind::Vlan if new.parent.is_none() || new.vlan.is_none() => {
                Err(not_understood("a vlan needs --parent and -o vlan=ID"))
            }
            _ => Ok(new),
        }
    }
}

/// Sets an option of podman. An option that the type does not have is an error.
fn set(new: &mut NewNetwork, key: &str, value: &str) -> Result<()> {
    let option = format!("-o {key}");
    match (key, new.kind) {
        ("mtu", _) => new.mtu = Some(parse(&option, value, "a number")?),
        ("parent", kind) if kind.has_parent() => new.parent = Some(ifname(&option, value)?),
        ("mode", Kind::Macvlan | Kind::Ipvlan) if !value.is_empty() => {
            new.mode = Some(value.into())
        }
        ("vlan", Kind::Bridge | Kind::Vlan) => {
            new.vlan = Some(parse::<u16>(&option, value, "the number of a VLAN")?.into());
        }
        ("isolate", Kind::Bridge) => new.isolate = parse(&option, value, "true or false")?,
        _ => return Err(not_understood(format!("-o {key}={value}: not an option of this type"))),
    }
    Ok(())
}

fn ifname(option: &str, name: &str) -> Result<IfName> {
    IfName::new(name).map_err(|error| not_understood(format!("{option}: {error}")))
}

fn parse<T: FromStr>(option: &str, value: &str, what: &str) -> Result<T> {
    value.parse().map_err(|_| not_understood(format!("{option}: {value:?} is not {what}")))
}

impl Remove {
    fn run(self, runtime: &Runtime) -> Result<()> {
        if self.names.is_empty() {
            return Err(not_understood("NAME is missing"));
        }
        let mut failed: Option<Error> = None;
        for name in self.names {
            let name = NetworkName::new(name).map_err(|error| not_understood(error.to_string()))?;
            match runtime.remove_network(&name, self.force) {
                Ok(()) => say(&name),
                Err(error) => {
                    failed = Some(match failed.take() {
                        None => error,
                        Some(first) => first.also(&error),
                    });
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

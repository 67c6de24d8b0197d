//! The state of the host that several checks use, and the check of the DHCP daemon.

use std::path::{Path, PathBuf};

use ipnet::IpNet;

use crate::attachments::life::Life;
use crate::attachments::owner::Owner;
use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::kernel::netns::NetNs;
use crate::names::{IpFamily, NetworkName};
use crate::netlink::rtnl::{Address, Link, Rtnl};
use crate::plugins::firewall::passage::Passage;
use crate::runtime::Runtime;
use crate::runtime::cache::CacheEntry;
use crate::runtime::conf::{self, Network};
use crate::runtime::networks;
use crate::runtime::reservations::Survey;

use super::finding::{Findings, Harm, quoted};
use super::options::ExamineOptions;
use super::published::Published;

/// A snapshot of the host, read once.
pub(super) struct Host<'a> {
    pub(super) runtime: &'a Runtime,
    /// The networks without a file in NETCONFPATH, such as those of podman, then the usable networks, in the order of their files.
    pub(super) networks: Vec<ConfiguredNetwork>,
    pub(super) home: NetNs,
    pub(super) rtnl: Rtnl,
    pub(super) links: Vec<Link>,
    /// The addresses of all links, each with the index of its link.
    addresses: Vec<(u32, Address)>,
    pub(super) options: ExamineOptions,
    pub(super) survey: Result<Survey>,
}

/// A network with a usable configuration on the host.
pub(super) struct ConfiguredNetwork {
    pub(super) network: Network,
    /// The bridge on the host that the network makes or uses.
    pub(super) bridge: Option<String>,
    /// The bridge has gateway addresses: it routes for the containers.
    pub(super) is_gateway: bool,
    /// The host forwards the packets of the containers.
    pub(super) is_routed: bool,
    /// The configured subnets, and those of the bridge.
    pub(super) subnets: Vec<IpNet>,
    /// The network is in use: its bridge exists, or it has living attachments, or links on the host name it as their owner.
    pub(super) is_used: bool,
    /// How the plugin `firewall` of the network accepts packets. `None` without the plugin, an error if the system bus does not
    /// answer.
    pub(super) passage: Result<Option<Passage>>,
    /// The ports that living containers publish. `None` if that is unknown: the cache has none of them, or does not tell.
    pub(super) published: Option<Vec<Published>>,
}

impl<'a> Host<'a> {
    pub(super) fn read(
        runtime: &'a Runtime,
        survey: Result<Survey>,
        options: ExamineOptions,
    ) -> Result<Self> {
        let home = NetNs::own()?;
        let rtnl = Rtnl::open()?;
        let links = rtnl.links()?;
        let addresses = rtnl.addresses_by_link()?;
        // The check `leaks` reports the error.
        let attachments = survey.as_ref().map_or(&[][..], |survey| &survey.attachments);
        let mut networks = Vec::new();
        let others = runtime.others.iter().cloned().map(Ok);
        for network in others.chain(Network::all(&runtime.configurations)?) {
            // The check `conflicts` reports unusable configurations.
            let Ok(network) = network else { continue };
            if !options.concerns_network(&network.name) {
                continue;
            }
            networks.push(ConfiguredNetwork::new(network, (&links, &addresses), attachments));
        }
        Ok(Self { runtime, networks, home, rtnl, links, addresses, options, survey })
    }

    /// The addresses of a link.
    pub(super) fn addresses(&self, index: u32) -> impl Iterator<Item = &Address> {
        of_link(&self.addresses, index)
    }

    /// Whether what was read of an attachment is its state: no ADD or DEL of it ran meanwhile, and it lives. True if that is
    /// unknown.
    pub(super) fn is_at_rest(&self, entry: &CacheEntry) -> bool {
        self.runtime.is_at_rest(entry).unwrap_or(true)
    }

    /// CNI_PATH.
    pub(super) fn path(&self) -> &[PathBuf] {
        &self.runtime.settings.path
    }

    /// Whether a network uses a plugin. If `key` is not empty: whether a network uses the plugin and sets this key.
    pub(super) fn uses(&self, kind: &str, key: &str) -> bool {
        let mut plugins = self.networks.iter().flat_map(|net| &net.network.plugins);
        plugins.any(|plugin| conf::kind(plugin) == kind && (key.is_empty() || is_set(plugin, key)))
    }
}

impl ConfiguredNetwork {
    fn new(
        network: Network,
        (links, addresses): (&[Link], &[(u32, Address)]),
        attachments: &[(CacheEntry, Life)],
    ) -> Self {
        // A network of flannel has a bridge that is the gateway, unless `delegate` configures another type or isGateway=false.
        let flannel = network.plugin("flannel");
        let flannel = flannel.map(|plugin| plugin.get("delegate").unwrap_or(&Json::Null));
        let delegates_to_bridge = |delegate: &&Json| matches!(conf::kind(delegate), "" | "bridge");
        let flannel = flannel.filter(delegates_to_bridge);
        let bridge = match flannel {
            Some(delegate) => Some(networks::bridge_of(delegate)),
            None => networks::bridge(&network),
        };
        let bridge = bridge.map(str::to_owned);
        let is_gateway = match (flannel, network.plugin("bridge")) {
            (Some(delegate), _) => delegate.get("isGateway") != Some(&Json::Bool(false)),
            (None, Some(plugin)) => {
                is_set(plugin, "isGateway") || is_set(plugin, "isDefaultGateway")
            }
            _ => false,
        };
        let has_addresses = |plugin: &Json| !conf::ipam_kind(plugin).is_empty();
        let is_routed_pair = |plugin: &&Json| matches!(conf::kind(plugin), "ptp" | "veth");
        let pair = network.plugins.iter().find(is_routed_pair);
        let is_routed = is_gateway || pair.is_some_and(has_addresses);

        let link = links.iter().find(|link| bridge.as_ref() == Some(&link.name));
        let mut subnets = networks::subnets(&network);
        if let Some(link) = link {
            subnets.extend(of_link(addresses, link.index).map(|address| address.net.trunc()));
        }
        subnets.retain(|net| !matches!(net, IpNet::V6(net) if net.addr().is_unicast_link_local()));
        let is_alive = |(entry, life): &(CacheEntry, Life)| {
            entry.network == network.name && matches!(life, Life::Alive)
        };
        let is_used = link.is_some()
            || attachments.iter().any(is_alive)
            || links.iter().any(|link| is_owned(link, &network.name));
        let of_network = attachments.iter().filter(|attachment| is_alive(attachment));
        let is_unknown = of_network.clone().count() == 0 && network.plugin("portmap").is_some();
        let of_network: Result<Vec<_>> =
            of_network.map(|(entry, _)| Published::of(entry)).collect();
        let published =
            of_network.ok().filter(|_| !is_unknown).map(|all| all.into_iter().flatten().collect());
        let bus = std::env::var_os("DBUS_SYSTEM_BUS_ADDRESS").filter(|bus| !bus.is_empty());
        let passage = match network.plugin("firewall") {
            Some(plugin) => Passage::of(plugin, bus.as_deref()),
            None => Ok(None),
        };
        Self { network, bridge, is_gateway, is_routed, subnets, is_used, passage, published }
    }

    /// The ports of the host that living containers are known to publish.
    pub(super) fn host_ports(&self) -> impl Iterator<Item = u16> {
        self.published.iter().flatten().map(|published| published.mapping.host_port)
    }

    pub(super) fn passage(&self) -> Option<&Passage> {
        self.passage.as_ref().ok().and_then(Option::as_ref)
    }

    /// Whether a plugin made the link on the host for a container of the network.
    pub(super) fn owns(&self, link: &Link) -> bool {
        is_owned(link, &self.network.name)
    }

    /// Whether the network has addresses of a family. Without a known subnet, IPv4 is assumed.
    pub(super) fn has_family(&self, family: IpFamily) -> bool {
        match self.subnets.as_slice() {
            [] => family == IpFamily::V4,
            subnets => subnets.iter().any(|net| family.has(net.addr())),
        }
    }
}

fn of_link(all: &[(u32, Address)], index: u32) -> impl Iterator<Item = &Address> {
    all.iter().filter(move |(link, _)| *link == index).map(|(_, address)| address)
}

fn is_owned(link: &Link, network: &NetworkName) -> bool {
    let owner = link.alias.as_deref().and_then(Owner::in_alias);
    owner.is_some_and(|owner| owner.starts_with(&Owner::prefix(network)))
}

/// Whether a key has a value other than false and null.
pub(super) fn is_set(plugin: &Json, key: &str) -> bool {
    plugin.get(key).is_some_and(|value| !matches!(value, Json::Bool(false) | Json::Null))
}

/// Finds networks with the IPAM plugin `dhcp` but without its daemon. Reads the kernel's list of sockets: a connection would
/// start the daemon by socket activation.
pub(super) fn dhcp_daemon(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    for network in &host.networks {
        for plugin in &network.network.plugins {
            let Some(ipam) = plugin.get("ipam") else { continue };
            if conf::kind(ipam) != "dhcp" || ipam.get("daemon") == Some(&"auto".into()) {
                continue;
            }
            let path = ipam.text_at("daemonSocketPath").filter(|path| !path.is_empty());
            let path = path.unwrap_or(DHCP_SOCKET);
            if !has_socket(path)? {
                found.add(
                    Harm::Broken,
                    format_args!("no dhcp daemon listens at {path}, for {}", network.network.name),
                    "Each ADD in the network fails.",
                    start_of_dhcp(host, path),
                );
            }
        }
    }
    Ok(())
}

pub(super) fn runs_systemd() -> bool {
    Path::new("/run/systemd/system").exists()
}

/// Whether a unit of systemd is installed.
pub(super) fn has_unit(unit: &str) -> bool {
    let roots = ["/etc", "/run", "/usr/lib", "/lib"];
    roots.iter().any(|root| Path::new(&format!("{root}/systemd/system/{unit}")).exists())
}

/// The command that starts the daemon on this host. The units and scripts start it with the default socket.
fn start_of_dhcp(host: &Host<'_>, socket: &str) -> String {
    let is_default = socket == DHCP_SOCKET;
    if is_default && runs_systemd() && has_unit("cnibox-dhcp.socket") {
        return "systemctl enable --now cnibox-dhcp.socket".into();
    }
    for script in ["/etc/init.d/cnibox-dhcp", "/etc/init.d/S50cnibox-dhcp"] {
        if is_default && Path::new(script).exists() {
            return format!("{script} start");
        }
    }
    let mut plugins = host.path().iter().map(|directory| directory.join("dhcp"));
    let program = match plugins.find(|file| file.exists()) {
        Some(plugin) => quoted(plugin.display()),
        None => "cnibox dhcp".into(),
    };
    format!("{program} daemon -socketpath {} &", quoted(socket))
}

/// Whether a unix socket has the path. Each user can open many sockets and so make the list longer than the limit of reads:
/// then this returns an error.
fn has_socket(path: &str) -> Result<bool> {
    const SOCKETS: &str = "/proc/thread-self/net/unix";
    let list = file::read_lossy(SOCKETS)
        .map_err(|error| Error::internal(format_args!("cannot read {SOCKETS}: {error}")))?;
    // The path is the last of the fields. The directory /var/run can be a link to /run.
    let path_in_run = path.strip_prefix("/var").unwrap_or(path);
    Ok(list.lines().any(|line| {
        let socket = line.rsplit(' ').next().unwrap_or_default();
        socket == path || socket == path_in_run
    }))
}

/// The default path of the daemon's socket, as in the reference.
const DHCP_SOCKET: &str = "/run/cni/dhcp.sock";

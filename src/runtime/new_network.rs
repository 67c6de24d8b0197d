//! Writes and removes the configuration file of a network, as `podman network create` and `rm` do. The file appears atomically,
//! because other runtimes read the directory at any time.
//!
//! It also makes the list of a network without a file, for the driver of netavark.
//!
//! The directory is locked during a call, so concurrent calls choose different subnets.

mod list;

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;

use crate::cni::success::Route;
use crate::error::{Code, Error, Result};
use crate::fault;
use crate::kernel::file::{self, Aside};
use crate::kernel::flock;
use crate::kernel::netns::NetNs;
use crate::kernel::sys::warn;
use crate::names::reserved::{Reserved, reserved};
use crate::names::{IfName, IpFamily, LinkName, NetworkName};
use crate::netlink::rtnl::Rtnl;
use crate::runtime::Runtime;
use crate::runtime::conf::Network;
use crate::runtime::networks::{bridge, subnets};
use crate::runtime::podman::{self, OfPodman};

/// The subnets to choose from, by their first three bytes: first those of podman, 10.89.0.0/24 to 10.255.255.0/24, then those
/// of 172.16.0.0/12 and 192.168.0.0/16, because a VPN can have all of 10.0.0.0/8.
const CANDIDATES: [std::ops::Range<u32>; 3] =
    [0x0a_59_00..0x0b_00_00, 0xac_10_00..0xac_20_00, 0xc0_a8_00..0xc0_a9_00];
const PREFIX_LENGTH: u8 = 24;
/// The prefix of chosen bridge names.
const BRIDGE: &str = "cnibox";
/// The maximum wait for the lock of the directory, and for that of the host's namespace.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The parameters of a network to create.
#[derive(Clone, Debug, Default)]
pub struct NewNetwork {
    pub kind: Kind,
    /// The subnets of the network. If empty, a free subnet is chosen.
    pub subnets: Vec<IpNet>,
    /// The gateways; each is in one of `subnets`. A subnet for which this has no gateway gets its first address as gateway.
    pub gateways: Vec<IpAddr>,
    /// The name of the bridge. `None`: a free name is chosen.
    pub bridge: Option<IfName>,
    /// The link of the host below a macvlan, ipvlan or vlan.
    pub parent: Option<LinkName>,
    pub mode: Option<String>,
    pub mtu: Option<u32>,
    pub vlan: Option<u32>,
    /// `ingressPolicy`: containers of other bridges cannot reach those of this bridge.
    pub isolate: Option<&'static str>,
    /// The first and the last address that containers get, for a subnet. Without, they get all but the gateway.
    pub leases: Vec<(IpNet, [Option<IpAddr>; 2])>,
    /// Containers have no default route, and reach only each other and the host.
    pub is_internal: bool,
    /// The metric of the default routes. `None`: that of the kernel.
    pub metric: Option<u32>,
    /// More routes.
    pub routes: Vec<Route>,
    /// The DNS servers in the result; with `names`, those that are asked for other names.
    pub dns: Vec<IpAddr>,
    /// Containers find each other by name.
    pub has_names: bool,
    /// The domain of the names. `None`: that of `dnsname`.
    pub domain: Option<String>,
    /// The chained plugins. `None`: those of podman, without a parent.
    pub chained: Option<Vec<String>>,
    pub addresses: Addresses,
}

impl NewNetwork {
    /// Why containers cannot find each other by name. `None` if they can.
    pub fn obstacle_to_names(&self) -> Option<String> {
        match self.kind {
            kind if kind.has_parent() => {
                Some(format!("this host is no gateway of a {}", kind.text()))
            }
            _ if self.addresses != Addresses::HostLocal => {
                Some("this host is no gateway of the network".into())
            }
            _ => None,
        }
    }

    /// Sets an option of `podman network create`: `mtu`, `parent`, `mode`, `vlan` or `isolate`. Returns false if networks of this type
    /// do not have the option. An error is `KEY=VALUE` and what is wrong with the value.
    pub fn set_option(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match (key, self.kind) {
            ("mtu", _) => self.mtu = Some(parse(key, value, "a number")?),
            ("parent", kind) if kind.has_parent() => {
                let name =
                    LinkName::new(value).map_err(|error| format!("{key}={value}: {error}"))?;
                self.parent = Some(name);
            }
            ("mode", Kind::Macvlan | Kind::Ipvlan) if !value.is_empty() => {
                self.mode = Some(value.into());
            }
            ("vlan", Kind::Bridge | Kind::Vlan) => {
                self.vlan = Some(parse::<u16>(key, value, "the number of a VLAN")?.into());
            }
            ("isolate", Kind::Bridge) => {
                self.isolate = match value {
                    "strict" => Some("strict"),
                    _ => {
                        parse::<bool>(key, value, "true, false or strict")?.then_some("same-bridge")
                    }
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The value of an option. An error says that it is not `what`.
pub fn parse<T: FromStr>(key: &str, value: &str, what: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{key}={value}: not {what}"))
}

/// Who chooses the addresses of containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    #[default]
    HostLocal,
    Dhcp,
    /// Containers get no addresses.
    Nobody,
}

/// The interface plugin of a new network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Bridge,
    Veth,
    Ptp,
    Macvlan,
    Ipvlan,
    Vlan,
}

impl Kind {
    pub const ALL: [(&'static str, Self); 6] = [
        ("bridge", Self::Bridge),
        ("veth", Self::Veth),
        ("ptp", Self::Ptp),
        ("macvlan", Self::Macvlan),
        ("ipvlan", Self::Ipvlan),
        ("vlan", Self::Vlan),
    ];

    /// The name of the plugin.
    pub fn text(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(text, _)| text)
    }

    /// Whether the containers are in the network of a link of the host. Otherwise the host is their router.
    pub fn has_parent(self) -> bool {
        matches!(self, Self::Macvlan | Self::Ipvlan | Self::Vlan)
    }
}

impl Runtime {
    /// Writes the file of a network.
    pub fn create_network(&self, name: &NetworkName, new: &NewNetwork) -> Result<()> {
        let _lock = lock(&self.configurations)?;
        self.create_file(name, new)
            .map_err(|error| error.context(format!("cannot create network {name}")))
    }

    fn create_file(&self, name: &NetworkName, new: &NewNetwork) -> Result<()> {
        let directory = &self.configurations;
        let networks = self.usable_networks()?;
        if let Some(other) = networks.iter().find(|other| other.name == *name) {
            let file = other.file.display();
            return Err(Error::config(format_args!("{file} configures a network of this name")));
        }
        let of_podman = podman::networks(&self.of_podman);
        if of_podman.iter().any(|other| other.is_only_here() && other.name == **name) {
            return Err(Error::config("podman has a network of this name"));
        }
        new.refuse_taken(&of_podman)?;
        let taken: Vec<IpNet> = of_podman.iter().flat_map(OfPodman::nets).collect();
        let subnets = new.free_subnets(&networks, &taken)?;
        let bridge = match &new.bridge {
            Some(bridge) => bridge.to_string(),
            None => free_bridge(&networks, &of_podman)?,
        };
        new.refuse_unusable()?;
        let text = new.list(name, &subnets, &bridge)?.to_pretty() + "\n";
        let file = directory.join(format!("{name}.conflist"));
        publish(directory, &file, text.as_bytes()).map_err(Error::of_file("write", &file))
    }

    /// Removes the file of a network, and its bridge if it is unused. Unless `is_forced`, fails if an attachment of the network
    /// may be alive. A DEL does not need the file.
    pub fn remove_network(&self, name: &NetworkName, is_forced: bool) -> Result<()> {
        let _lock = lock(&self.configurations)?;
        let (others, network) = self
            .remove_file(name, is_forced)
            .map_err(|error| error.context(format!("cannot remove network {name}")))?;
        remove_bridge(&network, &others)
    }

    /// Removes the file of a network. Returns the other networks, and the removed one.
    fn remove_file(&self, name: &NetworkName, is_forced: bool) -> Result<(Vec<Network>, Network)> {
        let (mut others, mut of_name) = (Vec::new(), Vec::new());
        for network in self.usable_networks()? {
            if network.name == *name { of_name.push(network) } else { others.push(network) }
        }
        if let [one, other, ..] = of_name.as_slice() {
            let both = format!("{} and {}", one.file.display(), other.file.display());
            return Err(Error::config(format_args!("{both} configure it")));
        }
        let Some(network) = of_name.pop() else {
            return Err(Error::config("no file configures it"));
        };
        if !is_forced {
            if let Some(file) = self.entries_and_damaged()?.damaged.first() {
                let why = format_args!("a container may use it: {}", file.error);
                return Err(Error::config(why));
            }
            for (entry, life) in self.attachments()? {
                if entry.network == *name && !life.is_ended() {
                    return Err(Error::config(format_args!("{} uses it", entry.title())));
                }
            }
        }
        let remove = || {
            fault::file_operation()?;
            fs::remove_file(&network.file)?;
            File::open(&self.configurations)?.sync_all()
        };
        remove().map_err(Error::of_file("remove", &network.file))?;
        Ok((others, network))
    }

    /// The subnets of a new network that has no file: those that it names, or a free one. `others` are taken, too.
    pub fn free_subnets(&self, new: &NewNetwork, others: &[IpNet]) -> Result<Vec<IpNet>> {
        new.free_subnets(&self.usable_networks()?, others)
    }

    fn usable_networks(&self) -> Result<Vec<Network>> {
        let mut networks = Vec::new();
        for network in Network::all(&self.configurations)? {
            match network {
                Ok(network) => networks.push(network),
                Err(error) => warn(format_args!("warning: {error}")),
            }
        }
        Ok(networks)
    }
}

impl NewNetwork {
    /// The requested subnets, or a chosen one. Fails if one is reserved, overlaps with another network, or, without a
    /// parent, contains an address of the host.
    fn free_subnets(&self, networks: &[Network], others: &[IpNet]) -> Result<Vec<IpNet>> {
        for subnet in &self.subnets {
            if let Some(Reserved { net, reason }) = reserved(subnet) {
                let msg = format!("subnet {subnet} overlaps with {net}: {reason}");
                return Err(Error::config(msg));
            }
        }
        let mut taken = others.to_vec();
        for network in networks {
            for other in subnets(network) {
                for subnet in &self.subnets {
                    if overlap(subnet, &other) {
                        let of = &network.name;
                        let msg = format!("subnet {subnet} overlaps with {other} of network {of}");
                        let file = network.file.display().to_string();
                        return Err(Error::config(msg).with_details(file));
                    }
                }
                taken.push(other);
            }
        }
        if self.kind.has_parent() {
            return match self.subnets.as_slice() {
                [] => Err(Error::config("a network on a link of the host needs a subnet")),
                given => Ok(given.to_vec()),
            };
        }
        let host = Rtnl::open()?;
        let addresses = host.all_addresses()?;
        if self.subnets.is_empty() {
            return Ok(vec![choose(taken, &host, &addresses)?]);
        }
        for subnet in &self.subnets {
            if let Some(address) = addresses.iter().find(|address| subnet.contains(*address)) {
                let msg = format!("subnet {subnet} is in use: the host has the address {address}");
                return Err(Error::config(msg));
            }
        }
        Ok(self.subnets.clone())
    }

    /// Fails if a network of podman has the bridge, or a part of a subnet.
    pub fn refuse_taken(&self, others: &[OfPodman]) -> Result<()> {
        for other in others {
            let (bridge, name) = (&other.interface, &other.name);
            if self.bridge.as_deref() == Some(&**bridge) {
                return Err(Error::config(format_args!("network {name} has the bridge {bridge}")));
            }
            // Networks on a link of the host can share its subnet.
            for own in self.subnets.iter().filter(|_| !self.kind.has_parent()) {
                if let Some(net) = other.nets().find(|net| overlap(net, own)) {
                    let msg = format!("subnet {own} overlaps with {net} of network {name}");
                    return Err(Error::config(msg));
                }
            }
        }
        Ok(())
    }

    /// Fails if the bridge is another link of the host, or if no router can have a gateway's address.
    pub fn refuse_unusable(&self) -> Result<()> {
        if let Some(bridge) = &self.bridge
            && let Some(link) = Rtnl::open()?.link(bridge)?
            && link.kind.as_deref() != Some("bridge")
        {
            return Err(Error::config(format_args!(
                "bridge {bridge}: the host has a link of this name that is no bridge"
            )));
        }
        for gateway in &self.gateways {
            for subnet in self.subnets.iter().filter(|subnet| subnet.contains(gateway)) {
                let is_v4 = matches!(subnet, IpNet::V4(_));
                let what = match *gateway {
                    first if first == subnet.network() => "the address of the network itself",
                    last if is_v4 && last == subnet.broadcast() => "the broadcast address",
                    _ => continue,
                };
                let msg = format!("gateway {gateway} is {what} in subnet {subnet}");
                return Err(Error::config(msg));
            }
        }
        Ok(())
    }
}

/// Whether two subnets have addresses in common.
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// The first private subnet that overlaps with no network, route or address of the host.
fn choose(mut taken: Vec<IpNet>, host: &Rtnl, addresses: &[IpAddr]) -> Result<IpNet> {
    // A VPN that replaces the default route adds 0.0.0.0/1 and 128.0.0.0/1. They do not count as taken.
    let routes = host.routes(IpFamily::V4)?.into_iter().map(|route| route.dst);
    taken.extend(routes.filter(|net| net.prefix_len() > 1));
    for address in addresses {
        taken.push(IpNet::from(*address));
    }
    first_free(&taken).ok_or_else(|| {
        taken.sort_unstable_by_key(IpNet::prefix_len);
        let largest: Vec<String> = taken.iter().take(3).map(ToString::to_string).collect();
        let msg =
            format!("no private subnet is free: networks and routes have {}", largest.join(", "));
        Error::config(msg).with_details("--subnet names one")
    })
}

fn first_free(taken: &[IpNet]) -> Option<IpNet> {
    for bytes in CANDIDATES.into_iter().flatten() {
        let subnet = IpNet::new(Ipv4Addr::from(bytes << 8).into(), PREFIX_LENGTH).ok()?;
        if !taken.iter().any(|taken| overlap(&subnet, taken)) {
            return Some(subnet);
        }
    }
    None
}

/// The first bridge name that no link and no network has.
fn free_bridge(networks: &[Network], of_podman: &[OfPodman]) -> Result<String> {
    let links = NetNs::own()?.rtnl()?.links()?;
    for number in 0..10_000 {
        let name = format!("{BRIDGE}{number}");
        let has_name = |network: &Network| bridge(network) == Some(&name);
        if !networks.iter().any(has_name)
            && of_podman.iter().all(|other| other.interface != name)
            && !links.iter().any(|link| link.name == name || link.alt_names.contains(&name))
        {
            return Ok(name);
        }
    }
    Err(Error::internal("cannot find a free name for the bridge"))
}

/// Removes the bridge of a removed network. The bridge stays if it has a port or an address of another subnet, or if another
/// network uses it.
fn remove_bridge(network: &Network, others: &[Network]) -> Result<()> {
    let Some(name) = bridge(network) else { return Ok(()) };
    if others.iter().any(|other| bridge(other) == Some(name)) {
        return Ok(());
    }
    let home = NetNs::own()?;
    let Some(_lock) = home.lock_exclusive(WAIT_MAX)? else { return Ok(()) };
    let host = home.rtnl()?;
    let link = match host.link(name)? {
        Some(link) if link.name == *name && link.kind.as_deref() == Some("bridge") => link,
        _ => return Ok(()),
    };
    let own = subnets(network);
    for address in host.addresses(link.index)? {
        if !address.scope_link && !own.iter().any(|own| own.contains(&address.net)) {
            return Ok(());
        }
    }
    match host.links_with_master(link.index)?.is_empty() {
        true => host.del_link(link.index),
        false => Ok(()),
    }
}

/// Locks a directory, and creates it if it is missing. The kernel releases the lock when the descriptor is closed.
fn lock(directory: &Path) -> Result<File> {
    let locked = flock::lock_directory(directory, 0o755, WAIT_MAX);
    let (file, is_locked) = locked.map_err(Error::of_file("lock", directory))?;
    if is_locked {
        return Ok(file);
    }
    let msg = format!("cannot lock {}", directory.display());
    Err(Error::new(Code::TRY_AGAIN_LATER, msg).with_details(file::holder(&file)))
}

/// Writes a temporary file and links it to `path`. Unlike rename(2), link(2) never replaces a file. Runtimes ignore the
/// extension of the temporary file; containerd reads the directory again when that file is removed.
fn publish(directory: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    file::sweep(directory);
    let aside = Aside::write(path, content, 0o644)?;
    aside.file().sync_all()?;
    aside.link(path).map(drop)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_subnet_that_nothing_overlaps_is_free() {
        let free = |taken: &[&str]| {
            let taken: Vec<IpNet> = taken.iter().map(|net| net.parse().unwrap()).collect();
            first_free(&taken).map(|net| net.to_string())
        };
        assert_eq!(free(&[]).unwrap(), "10.89.0.0/24");
        assert_eq!(free(&["10.89.1.0/24", "fd00::/8"]).unwrap(), "10.89.0.0/24");
        assert_eq!(free(&["10.89.0.7/32", "10.89.1.0/25"]).unwrap(), "10.89.2.0/24");
        assert_eq!(free(&["10.64.0.0/10"]).unwrap(), "10.128.0.0/24");
        assert_eq!(free(&["10.0.0.0/8"]).unwrap(), "172.16.0.0/24");
        assert_eq!(free(&["10.0.0.0/8", "172.16.0.0/12"]).unwrap(), "192.168.0.0/24");
        assert_eq!(free(&["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]), None);
    }
}

//! Writes and removes the file of a network, as `podman network create` and `rm` do. Other runtimes read the directory at
//! any time, so they find a whole file or none.
//!
//! The directory is locked meanwhile: two calls at the same time choose different subnets.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};

use crate::cni::json::Json;
use crate::error::{Code, Error, Result};
use crate::fault;
use crate::ipam::range::{self, RangeConf};
use crate::kernel::flock::{self, Mode};
use crate::kernel::netns::NetNs;
use crate::kernel::rtnl::Rtnl;
use crate::kernel::sys::warn;
use crate::names::{IfName, IpFamily, NetworkName};
use crate::runtime::conf::Network;
use crate::runtime::life::Life;
use crate::runtime::lifecycle::Runtime;
use crate::runtime::networks::{bridge, subnets};

/// Old runtimes read the first key, new ones take the highest of the second.
const VERSION: &str = "0.4.0";
const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", "1.1.0"];
/// The subnets that podman chooses from, by their first three bytes: 10.89.0.0/24 to 10.255.255.0/24.
const FREE: std::ops::Range<u32> = 0x0a_59_00..0x0b_00_00;
const FREE_PREFIX: u8 = 24;
const BRIDGE: &str = "cnibox";
/// How long others may work on the directory, or on the links of the host.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A network that is to be.
#[derive(Clone, Debug)]
pub struct NewNetwork {
    pub name: NetworkName,
    pub kind: Kind,
    /// If empty, a free one is chosen.
    pub subnets: Vec<IpNet>,
    /// Each is in one of the subnets. A subnet without one has its first address.
    pub gateways: Vec<IpAddr>,
    /// The bridge; a free name if not given.
    pub bridge: Option<IfName>,
    /// The link of the host below a macvlan, ipvlan or vlan.
    pub parent: Option<IfName>,
    pub mode: Option<String>,
    pub mtu: Option<u32>,
    pub vlan: Option<u32>,
    /// Containers of other bridges do not reach those of this one.
    pub isolate: bool,
}

/// The types of plugins that networks can be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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

    fn text(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(text, _)| text)
    }

    /// The containers are in the network of a link of the host. Otherwise the host is their router.
    pub fn has_parent(self) -> bool {
        matches!(self, Self::Macvlan | Self::Ipvlan | Self::Vlan)
    }
}

impl Runtime {
    /// Writes the file of a network, and returns its path.
    pub fn create_network(&self, new: &NewNetwork) -> Result<PathBuf> {
        let directory = &self.configurations;
        let name = &new.name;
        let cannot = |error: Error| error.context(format!("cannot create network {name}"));
        let _lock = lock(directory)?;
        let networks = self.usable_networks()?;
        if let Some(other) = networks.iter().find(|other| other.name == *name) {
            let file = other.file.display();
            return Err(cannot(Error::config(format!("{file} configures a network of this name"))));
        }
        let subnets = new.free_subnets(&networks).map_err(cannot)?;
        let bridge = match &new.bridge {
            Some(bridge) => bridge.to_string(),
            None => free_bridge(&networks)?,
        };
        let text = new.list(&subnets, &bridge).map_err(cannot)?.to_pretty() + "\n";
        let file = directory.join(format!("{name}.conflist"));
        publish(directory, &file, text.as_bytes()).map_err(|error| {
            cannot(io_error(&format!("cannot write {}", file.display()), &error))
        })?;
        Ok(file)
    }

    /// Removes the file of a network, and its bridge when nothing uses it any more. With containers in it, only by force:
    /// they can be deleted without the file.
    pub fn remove_network(&self, name: &NetworkName, is_forced: bool) -> Result<()> {
        let cannot = |error: Error| error.context(format!("cannot remove network {name}"));
        let _lock = lock(&self.configurations)?;
        let networks = self.usable_networks()?;
        let (of_name, others): (Vec<_>, Vec<_>) =
            networks.into_iter().partition(|network| network.name == *name);
        let network = match of_name.as_slice() {
            [network] => network,
            [] => return Err(cannot(Error::config("no file configures it"))),
            [one, other, ..] => {
                let both = format!("{} and {}", one.file.display(), other.file.display());
                return Err(cannot(Error::config(format!("{both} configure it"))));
            }
        };
        if !is_forced {
            let attached = self.attachments()?;
            let mut lives = attached.iter().filter(|(_, life)| !matches!(life, Life::Stale(_)));
            if let Some((entry, _)) = lives.find(|(entry, _)| entry.network == *name) {
                return Err(cannot(Error::config(format!("{} uses it", entry.title()))));
            }
        }
        let removed = fault::file_operation()
            .and_then(|()| fs::remove_file(&network.file))
            .and_then(|()| File::open(&self.configurations)?.sync_all());
        removed.map_err(|error| {
            cannot(io_error(&format!("cannot remove {}", network.file.display()), &error))
        })?;
        remove_bridge(network, &others)
    }

    fn usable_networks(&self) -> Result<Vec<Network>> {
        let mut networks = Vec::new();
        for (_, network) in Network::all(&self.configurations)? {
            match network {
                Ok(network) => networks.push(network),
                Err(error) => warn(&format!("warning: {error}")),
            }
        }
        Ok(networks)
    }
}

impl NewNetwork {
    /// The subnets, none of which another network has.
    fn free_subnets(&self, networks: &[Network]) -> Result<Vec<IpNet>> {
        for subnet in &self.subnets {
            let mut others = networks.iter().flat_map(|network| {
                subnets(network).into_iter().map(move |subnet| (subnet, network))
            });
            if let Some((other, network)) = others.find(|(other, _)| overlap(subnet, other)) {
                let of = &network.name;
                let msg = format!("subnet {subnet} overlaps with {other} of network {of}");
                return Err(Error::config(msg).with_details(network.file.display().to_string()));
            }
        }
        if self.kind.has_parent() {
            return match self.subnets.as_slice() {
                [] => Err(Error::config("a network on a link of the host needs a subnet")),
                given => Ok(given.to_vec()),
            };
        }
        let host = NetNs::own()?.rtnl()?;
        let addresses = host.all_addresses()?;
        if self.subnets.is_empty() {
            return Ok(vec![choose(networks, &host, addresses)?]);
        }
        for subnet in &self.subnets {
            if let Some(address) = addresses.iter().find(|address| subnet.contains(*address)) {
                let msg = format!("subnet {subnet} is in use: the host has the address {address}");
                return Err(Error::config(msg));
            }
        }
        Ok(self.subnets.clone())
    }

    /// The document of the file.
    fn list(&self, subnets: &[IpNet], bridge: &str) -> Result<Json> {
        let mut plugins = vec![self.interface(bridge, self.ipam(subnets)?)];
        if !self.kind.has_parent() {
            let can_publish = Json::object([("portMappings", Some(Json::Bool(true)))]);
            plugins.push(Json::object([
                ("type", Some("portmap".into())),
                ("capabilities", Some(can_publish)),
            ]));
            plugins.push(Json::object([
                ("type", Some("firewall".into())),
                ("ingressPolicy", self.isolate.then(|| "same-bridge".into())),
            ]));
            plugins.push(Json::object([("type", Some("tuning".into()))]));
        }
        let versions = VERSIONS.map(Json::from).to_vec();
        Ok(Json::object([
            ("cniVersion", Some(VERSION.into())),
            ("cniVersions", Some(Json::Array(versions))),
            ("name", Some(self.name.to_string().into())),
            ("plugins", Some(Json::Array(plugins))),
        ]))
    }

    /// The plugin that makes the interface.
    fn interface(&self, bridge: &str, ipam: Json) -> Json {
        let yes = |it: bool| it.then_some(Json::Bool(true));
        let is_bridge = self.kind == Kind::Bridge;
        // An ipvlan and a vlan have the MAC address of their parent.
        let has_mac = !matches!(self.kind, Kind::Ipvlan | Kind::Vlan);
        let capabilities = Json::object([("ips", yes(true)), ("mac", yes(has_mac))]);
        Json::object([
            ("type", Some(self.kind.text().into())),
            ("bridge", is_bridge.then(|| bridge.into())),
            ("master", self.parent.as_ref().map(|parent| parent.to_string().into())),
            ("isGateway", yes(is_bridge)),
            ("ipMasq", yes(!self.kind.has_parent())),
            ("hairpinMode", yes(is_bridge)),
            ("mode", self.mode.as_deref().map(Json::from)),
            ("mtu", self.mtu.map(Json::from)),
            (if is_bridge { "vlan" } else { "vlanId" }, self.vlan.map(Json::from)),
            ("capabilities", Some(capabilities)),
            ("ipam", Some(ipam)),
        ])
    }

    /// host-local with a set of ranges per subnet, and a default route per family.
    fn ipam(&self, subnets: &[IpNet]) -> Result<Json> {
        if let Some(gateway) =
            self.gateways.iter().find(|&gateway| !subnets.iter().any(|it| it.contains(gateway)))
        {
            return Err(Error::config(format!("gateway {gateway} is in none of the subnets")));
        }
        let gateways_of = |subnet: &IpNet| -> Vec<IpAddr> {
            self.gateways.iter().copied().filter(|gateway| subnet.contains(gateway)).collect()
        };
        if let Some(subnet) = subnets.iter().find(|&it| gateways_of(it).len() > 1) {
            return Err(Error::config(format!("subnet {subnet} has several gateways")));
        }
        let configured = subnets.iter().map(|subnet| {
            let gateway = gateways_of(subnet).first().copied();
            vec![RangeConf { subnet: subnet.to_string(), gateway, ..RangeConf::default() }]
        });
        let sets = range::parse(&configured.collect::<Vec<_>>(), &[])?;
        let ranges = sets.iter().flat_map(|set| set.spans(None)).map(|span| {
            Json::Array(vec![Json::object([
                ("subnet", Some(span.range.subnet.to_string().into())),
                ("gateway", Some(span.range.gateway.to_string().into())),
            ])])
        });
        let routes =
            ["0.0.0.0/0", "::/0"].into_iter().zip([true, false]).filter_map(|(dst, v4)| {
                let is_needed = sets.iter().any(|set| set.is_ipv4() == v4);
                is_needed.then(|| Json::object([("dst", Some(dst.into()))]))
            });
        Ok(Json::object([
            ("type", Some("host-local".into())),
            ("ranges", Some(Json::Array(ranges.collect()))),
            ("routes", Some(Json::Array(routes.collect()))),
        ]))
    }
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// The first subnet that no network and no route of the host leads to.
fn choose(networks: &[Network], host: &Rtnl, addresses: Vec<IpAddr>) -> Result<IpNet> {
    let routes = host.routes(IpFamily::V4)?.into_iter().map(|route| route.dst);
    let mut taken: Vec<IpNet> = routes.filter(|dst| dst.prefix_len() > 0).collect();
    taken.extend(addresses.into_iter().map(IpNet::from));
    taken.extend(networks.iter().flat_map(subnets));
    first_free(&taken).ok_or_else(|| Error::config("no subnet is free: --subnet names one"))
}

fn first_free(taken: &[IpNet]) -> Option<IpNet> {
    let subnets =
        FREE.filter_map(|bytes| Ipv4Net::new(Ipv4Addr::from(bytes << 8), FREE_PREFIX).ok());
    subnets.map(IpNet::V4).find(|subnet| !taken.iter().any(|taken| overlap(subnet, taken)))
}

/// The first name that neither a link nor a network has.
fn free_bridge(networks: &[Network]) -> Result<String> {
    let host = NetNs::own()?.rtnl()?;
    let links = host.links()?;
    let is_free = |name: &String| {
        !networks.iter().any(|network| bridge(network) == Some(name))
            && !links.iter().any(|link| link.name == *name || link.alt_names.contains(name))
    };
    let mut names = (0..10_000).map(|number| format!("{BRIDGE}{number}"));
    names.find(is_free).ok_or_else(|| Error::internal("cannot find a free name for the bridge"))
}

/// Removes the bridge of a network that is gone. One with a port, with another address or of another network stays.
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
    let is_foreign = |net: &IpNet| !own.iter().any(|own| own.contains(net));
    let mut addresses = host.addresses(link.index)?.into_iter();
    let is_in_use = !host.links_with_master(link.index)?.is_empty()
        || addresses.any(|address| !address.scope_link && is_foreign(&address.net));
    if is_in_use { Ok(()) } else { host.del_link(link.index) }
}

/// Locks a directory, and creates it if needed. The kernel releases the lock when the descriptor is closed.
fn lock(directory: &Path) -> Result<File> {
    let take = || {
        fault::file_operation()?;
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        let file = File::open(directory)?;
        Ok((flock::lock(&file, Mode::Exclusive, WAIT_MAX)?, file))
    };
    let title = format!("cannot lock {}", directory.display());
    match take().map_err(|error| io_error(&title, &error))? {
        (true, file) => Ok(file),
        (false, file) => {
            let holder = flock::holder(&file);
            Err(Error::new(Code::TRY_AGAIN_LATER, title).with_details(holder))
        }
    }
}

/// Gives a complete file its name, which no other file has: a link, unlike a renaming, replaces nothing. The file aside
/// has no extension that a runtime would read; containerd notices its removal, and reads the directory again.
fn publish(directory: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = directory.join(format!(".{name}.new"));
    let write = || {
        fault::file_operation()?;
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o644).open(&aside)?;
        fault::file_operation()?;
        file.write_all(content)?;
        file.sync_all()?;
        fault::file_operation()?;
        fs::hard_link(&aside, path)
    };
    let written = write();
    let removed = fs::remove_file(&aside);
    written.and(removed)?;
    File::open(directory)?.sync_all()
}

fn io_error(doing: &str, error: &io::Error) -> Error {
    Error::internal(doing).with_details(error.to_string())
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
        assert_eq!(free(&["10.0.0.0/8"]), None);
    }
}

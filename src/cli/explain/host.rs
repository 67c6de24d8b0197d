//! The part of the host that an ADD reads: links, addresses, default routes and parameters. It is read on the host, and made again
//! in another network namespace.

use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::kernel::sysctl;
use crate::netlink::nft::Nft;
use crate::netlink::rtnl::{
    Address, Batch, Link, LinkChange, LinkProperty, NewAddress, NewLink, RT_TABLE_MAIN, Route,
    Rtnl, VETH,
};

use super::objects::{FORWARDING, OF_LINK, families, is_link_local, of_nft};

pub(super) struct Host {
    links: Vec<NamedLink>,
    default_routes: Vec<Route>,
    /// Paths and values, in the order in which they are set.
    sysctls: Vec<(String, String)>,
    /// The tables, chains and elements of nf_tables.
    pub(super) tables: Vec<String>,
}

struct NamedLink {
    link: Link,
    addresses: Vec<Address>,
    sysctls: Vec<(String, String)>,
}

impl Host {
    /// Reads the host. `names` can be names or MAC addresses of links; the links of default routes are read, too.
    pub(super) fn read(names: &[String]) -> Result<Self> {
        let rtnl = Rtnl::open()?;
        let mut default_routes = Vec::new();
        for family in families() {
            let is_default =
                |route: &Route| route.dst.prefix_len() == 0 && route.table == Some(RT_TABLE_MAIN);
            default_routes.extend(rtnl.routes(family)?.into_iter().filter(is_default));
        }
        let is_named = |link: &Link| {
            let mac = link.mac.map(|mac| mac.to_string());
            names.iter().any(|name| {
                *name == link.name || mac.as_ref().is_some_and(|mac| mac.eq_ignore_ascii_case(name))
            })
        };
        let mut links = Vec::new();
        for link in rtnl.links()? {
            let has_route = default_routes.iter().any(|route| route.dev == Some(link.index));
            if link.name != "lo" && (is_named(&link) || has_route) {
                let addresses = rtnl.addresses(link.index)?;
                let paths = OF_LINK.map(|(family, key)| sysctl::of_link(family, &link.name, key));
                links.push(NamedLink { link, addresses, sysctls: values(paths) });
            }
        }
        // A write to ip_forward changes the default.
        let paths = DISABLED_V6.into_iter().chain(FORWARDING).chain([DEFAULT_FORWARDING]);
        let sysctls = values(paths.map(Into::into));
        let tables = match Nft::open_if_supported()? {
            Some(nft) => of_nft(&nft)?,
            None => Vec::new(),
        };
        Ok(Self { links, default_routes, sysctls, tables })
    }

    /// Makes the links, addresses, routes and parameters in the namespace of this process. A bridge becomes a bridge. Each other
    /// link becomes a veth, because each kernel for containers has that kind. Their peers are in the returned namespace.
    pub(super) fn make(&self) -> Result<(Rtnl, NetNs)> {
        let (rtnl, beyond) = (Rtnl::open()?, NetNs::own()?.make()?);
        rtnl.raise_loopback()?;
        set(&self.sysctls)?;
        let mut batch = Batch::new();
        for NamedLink { link, addresses, sysctls } in &self.links {
            let index = make_link(&rtnl, link, &beyond)?;
            set(sysctls)?;
            for address in addresses.iter().filter(|address| !is_link_local(address)) {
                let Address { net, no_prefix_route, .. } = *address;
                let new = NewAddress { net, no_dad: true, no_prefix_route, may_exist: true };
                batch.add_address(index, &link.name, &new);
            }
            for route in self.default_routes.iter().filter(|route| route.dev == Some(link.index)) {
                let Route { via, metric, .. } = *route;
                batch.add_route(&Route {
                    via,
                    metric,
                    dev: Some(index),
                    onlink: via.is_some(),
                    ..Route::to(route.dst)
                });
            }
        }
        rtnl.commit(batch)?;
        Ok((rtnl, beyond))
    }
}

/// Makes a link with the name, the MAC address and the MTU of `link`, and with a carrier. Returns its index.
fn make_link(rtnl: &Rtnl, link: &Link, beyond: &NetNs) -> Result<u32> {
    let Link { mac, up, .. } = *link;
    let new = NewLink { name: &link.name, mtu: Some(link.mtu), mac, up, ..NewLink::default() };
    // A kernel without VLAN filtering refuses the property, even with the value false.
    let filtering = [LinkProperty::BridgeVlanFiltering(true)];
    let made = match link.kind.as_deref() {
        Some("bridge") if link.filters_vlans() => rtnl.add_link(&new, "bridge", &filtering)?,
        Some("bridge") => rtnl.add_link(&new, "bridge", &[])?,
        _ => {
            let peer = NewLink {
                name: &link.name,
                mtu: new.mtu,
                netns: Some(beyond),
                ..NewLink::default()
            };
            let made = rtnl.add_link(&new, VETH, &[LinkProperty::VethPeer(peer)])?;
            let (others, mut batch) = (beyond.rtnl()?, Batch::new());
            if let Some(peer) = others.link(&link.name)? {
                let up = LinkChange { up: Some(true), ..LinkChange::default() };
                batch.change_link(peer.index, &peer.name, &up);
            }
            others.commit(batch)?;
            made
        }
    };
    Ok(made.index)
}

/// The parameters that exist, with their values.
fn values(paths: impl IntoIterator<Item = String>) -> Vec<(String, String)> {
    let value = |path: String| sysctl::get(&path).ok().flatten().map(|value| (path, value));
    paths.into_iter().filter_map(value).collect()
}

fn set(sysctls: &[(String, String)]) -> Result<()> {
    sysctls.iter().try_for_each(|(path, value)| sysctl::set_if_possible(path, value))
}

const DEFAULT_FORWARDING: &str = "net/ipv4/conf/default/forwarding";
const DISABLED_V6: [&str; 2] =
    ["net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/default/disable_ipv6"];

//! The links that packets of containers pass on the host.

use crate::attachments::owner::Owner;
use crate::cni::json::Json;
use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::rtnl::{Link, RT_TABLE_MAIN};

use super::host::{ConfiguredNetwork, Host};

/// The links by which the host reaches other networks: those of the default routes. Without a default route: the links that are
/// not of containers and have an address of more than link scope.
pub(super) fn uplinks(host: &Host<'_>) -> Result<Vec<Link>> {
    let mut found = Vec::new();
    for family in IpFamily::ALL {
        let of_routes = default_links(host, family)?;
        for link in &host.links {
            let mut nets = host.addresses(link.index);
            let has_address =
                nets.any(|address| !address.scope_link && family.has(address.net.addr()));
            let is_uplink = match of_routes.is_empty() {
                true => has_address && !is_of_containers(host, link),
                false => of_routes.contains(&link.index),
            };
            if is_uplink && !found.contains(link) {
                found.push(link.clone());
            }
        }
    }
    Ok(found)
}

/// The links of the default routes with the lowest metric.
fn default_links(host: &Host<'_>, family: IpFamily) -> Result<Vec<u32>> {
    let mut routes = host.rtnl.routes(family)?;
    routes.retain(|route| {
        route.dst.prefix_len() == 0 && matches!(route.table, None | Some(RT_TABLE_MAIN))
    });
    let best = routes.iter().map(|route| route.metric).min();
    let mut links = Vec::new();
    for route in routes.iter().filter(|route| Some(route.metric) == best) {
        links.extend(route.dev);
        links.extend(route.nexthops.iter().map(|hop| hop.dev));
    }
    Ok(links)
}

/// Whether a link belongs to containers or to loopback: lo, a bridge of a network, the port of a master, or a link that a
/// plugin made.
fn is_of_containers(host: &Host<'_>, link: &Link) -> bool {
    let is_gateway =
        |net: &ConfiguredNetwork| gateway_link(net).as_deref() == Some(link.name.as_str());
    link.mac.is_none()
        || link.name == "lo"
        || link.master.is_some()
        || link.alias.as_deref().and_then(Owner::in_alias).is_some()
        || host.networks.iter().any(is_gateway)
}

/// The link of the host that packets from all containers of a network enter by: the bridge, or its VLAN link. `None` without a
/// bridge: each container has its own link.
fn gateway_link(net: &ConfiguredNetwork) -> Option<String> {
    let bridge = net.bridge.as_ref()?;
    Some(match net.network.plugin("bridge").and_then(|plugin| plugin.get("vlan")) {
        Some(Json::Number(vlan)) if net.is_gateway && vlan.as_u64() != Some(0) => {
            format!("{bridge}.{}", vlan.as_u64()?)
        }
        _ => bridge.clone(),
    })
}

/// The links of the host that packets from the containers of a network enter by.
pub(super) fn of_network<'a>(host: &'a Host<'_>, net: &ConfiguredNetwork) -> Vec<&'a Link> {
    let gateway = gateway_link(net);
    let is_of_network = |link: &&Link| match &gateway {
        Some(name) => link.name == *name,
        None => net.owns(link),
    };
    host.links.iter().filter(is_of_network).collect()
}

/// The ports of a network's bridge.
pub(super) fn ports<'a>(host: &'a Host<'_>, net: &ConfiguredNetwork) -> Vec<&'a Link> {
    let bridge = host.links.iter().find(|link| net.bridge.as_ref() == Some(&link.name));
    let index = bridge.map(|bridge| bridge.index);
    let is_port = |link: &&Link| index.is_some() && link.master == index;
    host.links.iter().filter(is_port).collect()
}

//! CHECK: compares the interface with the previous result. Additional addresses and routes are allowed, because the container
//! and later plugins may add them.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::success::{self, Success};
use crate::error::{Error, Result};
use crate::names::{Attachment, IpFamily, Mac, RouteType};
use crate::netlink::rtnl::{Link, Route, Rtnl};
use crate::plugin::Context;
use crate::steps::link::{host_link, routing_tables};

/// The index of the container's interface in the result, and the interface in the kernel. Fails if one of them is missing, or
/// if their MAC addresses differ.
pub fn interface(
    cx: &Context<'_>,
    at: &Attachment,
    rtnl: &Rtnl,
    result: &Success,
) -> Result<(usize, Link)> {
    let ifname = &at.ifname;
    let index = cx.interface_index(at, result).ok_or_else(|| {
        let sandbox = cx.request.sandbox();
        Error::config(format_args!("prevResult has no interface {ifname} with sandbox {sandbox}"))
    })?;
    let link = host_link::in_container(rtnl, at)?;
    let expected = &result.interfaces[index].mac;
    if !expected.is_empty() && expected.parse().ok() != link.mac {
        let mac = link.mac.map_or_else(|| "none".into(), |mac| mac.to_string());
        return Err(Error::internal(format_args!(
            "interface {ifname} has MAC address {mac}, not {expected}"
        )));
    }
    Ok((index, link))
}

/// Fails if the link is down.
pub fn check_up(link: &Link) -> Result<()> {
    if link.up {
        Ok(())
    } else {
        Err(Error::difference(format_args!("interface {} is down", link.name)))
    }
}

/// Fails if the container lacks a route of the result.
pub fn routes(rtnl: &Rtnl, expected: &[success::Route]) -> Result<()> {
    match first_missing(rtnl, expected, |route| (route.dst, route.kind), matches)? {
        Some(route) => {
            let via = route.gw.map_or_else(String::new, |gw| format!(" via {gw}"));
            let table = route.table.map_or_else(String::new, |table| format!(" in table {table}"));
            let dst = route.dst.trunc();
            let msg = format!("route to {dst}{via}{table} not found in the container");
            Err(Error::difference(msg))
        }
        None => Ok(()),
    }
}

/// Fails if a route that the plugin made itself is missing or changed.
pub fn kernel_routes(rtnl: &Rtnl, expected: &[Route]) -> Result<()> {
    let is_route = |route: &Route, found: &Route| {
        let has_nexthop = |via, dev| (via, dev) == (route.via, route.dev);
        // The kernel merges IPv6 routes to one destination over several interfaces into a multipath route.
        found.dst == route.dst
            && (has_nexthop(found.via, found.dev)
                || found.nexthops.iter().any(|hop| has_nexthop(hop.via, Some(hop.dev))))
    };
    match first_missing(rtnl, expected, |route| (route.dst, route.kind), is_route)? {
        Some(route) => Err(Error::difference(format_args!("route to {} not found", route.dst))),
        None => Ok(()),
    }
}

/// The first expected route that the namespace lacks, IPv4 before IPv6. Reads only the families that are expected.
fn first_missing<'a, T>(
    rtnl: &Rtnl,
    expected: &'a [T],
    key: fn(&T) -> (IpNet, RouteType),
    is_route: impl Fn(&T, &Route) -> bool,
) -> Result<Option<&'a T>> {
    for family in IpFamily::ALL {
        let mut expected =
            expected.iter().filter(|route| family.has(key(route).0.addr())).peekable();
        if expected.peek().is_none() {
            continue;
        }
        let mut present = rtnl.routes(family)?;
        if expected.clone().any(|route| key(route).1.rejects()) {
            present.extend(rtnl.rejecting_routes(family)?);
        }
        let is_missing = |route: &&T| !present.iter().any(|found| is_route(route, found));
        if let Some(missing) = expected.find(is_missing) {
            return Ok(Some(missing));
        }
    }
    Ok(None)
}

/// Fails if a link lacks one of these addresses.
pub fn has_addresses(rtnl: &Rtnl, link: &Link, expected: &[IpNet]) -> Result<()> {
    let present = rtnl.addresses(link.index)?;
    match expected.iter().find(|net| !present.iter().any(|address| address.net == **net)) {
        Some(net) => {
            Err(Error::difference(format_args!("address {net} is not on interface {}", link.name)))
        }
        None => Ok(()),
    }
}

/// Fails if a link lacks this permanent IPv4 neighbour.
pub fn has_neighbour(rtnl: &Rtnl, link: &Link, expected: &(IpAddr, Mac)) -> Result<()> {
    if rtnl.permanent_neighbours(link.index, IpFamily::V4)?.contains(expected) {
        return Ok(());
    }
    let ((ip, mac), name) = (expected, &link.name);
    Err(Error::difference(format_args!("neighbour {ip} with MAC address {mac} is not on {name}")))
}

fn matches(expected: &success::Route, found: &Route) -> bool {
    let table = found.table.unwrap_or(routing_tables::MAIN);
    let is_in_table = match expected.table {
        Some(wanted) if wanted != 0 => table == wanted,
        // A later plugin may have moved the route to another table, as sbr does.
        _ => table != routing_tables::LOCAL,
    };
    is_in_table && is_equivalent(expected, found)
}

/// Whether a route of the kernel, in any table, has the destination, gateway and metric of the expected route.
pub fn is_equivalent(expected: &success::Route, found: &Route) -> bool {
    if expected.kind != found.kind {
        return false;
    }
    // A later plugin or a VPN in the container may have replaced the default route.
    let any_gateway = expected.dst.prefix_len() == 0 || expected.kind.rejects();
    // As the reference does, `dhcp` writes the gateway 0.0.0.0 into a route without a gateway.
    let is_gateway = |gw: IpAddr, via| gw.is_unspecified() || via == Some(gw);
    let has_gateway = |via| any_gateway || expected.gw.is_none_or(|gw| is_gateway(gw, via));
    let has_priority = expected.priority == 0 || found.metric == Some(expected.priority);
    has_priority
        && found.dst.trunc() == expected.dst.trunc()
        && (has_gateway(found.via) || found.nexthops.iter().any(|hop| has_gateway(hop.via)))
}

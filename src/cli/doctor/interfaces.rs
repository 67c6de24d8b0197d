//! Finds living attachments whose interface, address or default route is gone in the container, or whose link or bridge on the
//! host is gone, down, or connected to another link.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::attachments::life::Life;
use crate::cni::success::Success;
use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::names::IpFamily;
use crate::netlink::rtnl::{Address, Link, Route, Rtnl};
use crate::runtime::cache::CacheEntry;
use crate::runtime::conf::Network;
use crate::runtime::networks;

use super::finding::{Findings, Harm, quoted};
use super::host::{Host, is_set};

/// Returns the titles of the attachments with a finding.
pub(super) fn interfaces(host: &Host<'_>, found: &mut Findings) -> Result<BTreeSet<String>> {
    let mut titles = BTreeSet::new();
    // The check `leaks` reports this error.
    let Ok(survey) = &host.survey else { return Ok(titles) };
    for (entry, life) in &survey.attachments {
        let Ok(Some(result)) = entry.success() else { continue };
        if *life != Life::Alive {
            continue;
        }
        let mut own = Findings::default();
        let mut is_found = on_host(host, entry, &result, &mut own);
        let examined = match host.runtime.namespace_of_living(entry) {
            Ok(Some(netns)) => in_container(host, entry, (&result, &netns), &mut own),
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        is_found |= examined.as_ref().is_ok_and(|is_found| *is_found);
        if (is_found || examined.is_err()) && host.is_at_rest(entry) {
            found.add_each(own);
            if is_found {
                titles.insert(entry.title());
            }
            examined?;
        }
    }
    Ok(titles)
}

const WHY: &str = "The container does not reach its network, or other networks.";
pub(super) const AGAIN: &str = "start the container again: it needs a new ADD";

/// Compares the interface in the container with the result of the ADD. Returns whether it differs.
fn in_container(
    host: &Host<'_>,
    entry: &CacheEntry,
    (result, netns): (&Success, &NetNs),
    found: &mut Findings,
) -> Result<bool> {
    let of_container = |interface: &&crate::cni::success::Interface| {
        interface.name == *entry.at.ifname
            && !interface.sandbox.is_empty()
            && interface.socket_path.is_empty()
    };
    let Some(interface) = result.interfaces.iter().find(of_container) else { return Ok(false) };
    let index = result.interface_index(&interface.name, &interface.sandbox).unwrap_or_default();
    let mut add = |fact: &str, fix: &str| {
        let what = format_args!("{}: {fact}", entry.title());
        found.add_one_of(Harm::Broken, what, WHY, fix);
    };
    let rtnl = netns.rtnl()?;
    let Some(link) = rtnl.link(&interface.name)? else {
        add("the interface is gone", AGAIN);
        return Ok(true);
    };
    let (at, name) = (quoted(entry.netns.display()), quoted(&interface.name));
    let restore = format!("cnibox reconcile --inside {}", entry.network);
    if let Some(parent) = parent_that_is_down(host, &rtnl, &link)? {
        let up = format!("ip link set {} up", quoted(&parent.name));
        add(&format!("{}, the parent of its interface, is down", parent.name), &up);
        return Ok(true);
    }
    if !link.up {
        let up = format!("nsenter --net={at} ip link set {name} up && {restore}");
        add("the interface is down", &up);
        return Ok(true);
    }
    let present = rtnl.addresses_by_link()?;
    for ip in result.ips_of(index) {
        let is_it = |(index, address): &(u32, Address)| {
            *index == link.index && address.net.addr() == ip.address.addr()
        };
        if !present.iter().any(is_it) {
            let add_address =
                format!("nsenter --net={at} ip address add {} dev {name} && {restore}", ip.address);
            add(&format!("its address {} is gone", ip.address), &add_address);
            return Ok(true);
        }
    }
    let mut is_found = false;
    for family in IpFamily::ALL {
        let is_default = |route: &&crate::cni::success::Route| {
            route.dst == family.everything() && !route.kind.rejects() && route.table.is_none()
        };
        let Some(made) = result.routes.iter().find(is_default) else { continue };
        let text = if family == IpFamily::V4 { "IPv4" } else { "IPv6" };
        let mut present = rtnl.routes(family)?;
        present.retain(|route| route.dst == family.everything());
        if present.is_empty() {
            add(&format!("its default route of {text} is gone"), &restore);
            is_found = true;
        }
        let mut ips = result.ips_of(index).filter(|ip| family.has(ip.address.addr()));
        let gateway = made.gw.or_else(|| ips.find_map(|ip| ip.gateway));
        let (Some(gateway), Some(other)) = (gateway, other_gateway(&present, &link, gateway))
        else {
            continue;
        };
        let replace =
            format!("nsenter --net={at} ip route replace default via {gateway} dev {name}");
        add(&format!("its default route of {text} is via {other}, not via {gateway}"), &replace);
        is_found = true;
    }
    Ok(is_found)
}

/// The gateway of the default route by a link, if none of them is by the gateway of the ADD. `present`: the default routes of the
/// container. Another interface, as of a VPN, can have one on purpose.
fn other_gateway(present: &[Route], link: &Link, gateway: Option<IpAddr>) -> Option<IpAddr> {
    let by_link = present.iter().filter(|route| route.dev == Some(link.index));
    let gateways: Vec<IpAddr> = by_link.filter_map(|route| route.via).collect();
    if gateways.iter().any(|via| Some(*via) == gateway) {
        return None;
    }
    gateways.first().copied()
}

/// The parent of a macvlan, ipvlan or VLAN link, if it is on the host and down.
fn parent_that_is_down<'h>(
    host: &'h Host<'_>,
    container: &Rtnl,
    link: &Link,
) -> Result<Option<&'h Link>> {
    let has_parent =
        matches!(link.kind.as_deref(), Some("macvlan" | "ipvlan" | "macvtap" | "vlan"));
    if !has_parent
        || link.peer_netns.is_none()
        || link.peer_netns != container.nsid_of(&host.home)?
    {
        return Ok(None);
    }
    Ok(host.links.iter().find(|parent| Some(parent.index) == link.peer && !parent.up))
}

/// Compares the bridge, and the link of the container on the host, with the result of the ADD. Returns whether they differ.
fn on_host(host: &Host<'_>, entry: &CacheEntry, result: &Success, found: &mut Findings) -> bool {
    let Ok(network) = Network::from_cache(&entry.config) else { return false };
    let bridge = networks::bridge(&network);
    let link = |name: &str| host.links.iter().find(|link| link.name == name);
    if let Some(name) = bridge {
        let what = match link(name) {
            None => Some(("gone", AGAIN.to_owned())),
            Some(bridge) if !bridge.up => {
                Some(("down", format!("ip link set {} up", quoted(name))))
            }
            Some(_) => None,
        };
        if let Some((state, fix)) = what {
            let what = format_args!("bridge {name} of network {} is {state}", entry.network);
            found.add_one_of(Harm::Broken, what, "No container reaches the network.", fix);
            return true;
        }
    }
    let is_main = ["bridge", "ptp", "veth"].iter().any(|kind| network.plugin(kind).is_some());
    let on_host = result.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    let mut ends = on_host.filter(|interface| Some(interface.name.as_str()) != bridge);
    // The first one is of the main plugin. Other plugins add theirs after it.
    let Some(end) = ends.next().filter(|_| is_main) else { return false };
    let name = quoted(&end.name);
    let (fact, fix) = match (link(&end.name), bridge.and_then(link)) {
        (None, _) => ("is gone".into(), AGAIN.to_owned()),
        (Some(end), Some(bridge)) if end.master != Some(bridge.index) => {
            let has =
                |key: &str| network.plugin("bridge").is_some_and(|plugin| is_set(plugin, key));
            let mut fix = format!("ip link set {name} master {}", quoted(&bridge.name));
            for (key, flag) in [("hairpinMode", "hairpin"), ("portIsolation", "isolated")] {
                if has(key) {
                    fix.push_str(&format!(" && ip link set {name} type bridge_slave {flag} on"));
                }
            }
            if has("vlan") || has("vlanTrunk") {
                fix = AGAIN.to_owned();
            }
            (not_in(host, end, bridge), fix)
        }
        (Some(end), _) if !end.up => ("is down".into(), format!("ip link set {name} up")),
        (Some(_), _) => return false,
    };
    let what = format_args!("{}: its link {} on the host {fact}", entry.title(), end.name);
    found.add_one_of(Harm::Broken, what, WHY, fix);
    true
}

fn not_in(host: &Host<'_>, end: &Link, bridge: &Link) -> String {
    let other = host.links.iter().find(|link| Some(link.index) == end.master);
    match other {
        Some(other) => format!("is in {}, not in bridge {}", other.name, bridge.name),
        None => format!("is not in bridge {}", bridge.name),
    }
}

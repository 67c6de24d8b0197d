//! Finds living containers that the host sends packets to through another link than that of their network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::attachments::life::Life;
use crate::cni::success::Success;
use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::rtnl::Link;
use crate::runtime::cache::CacheEntry;
use crate::runtime::conf::Network;
use crate::runtime::networks;

use super::finding::{Findings, Harm, quoted};
use super::host::Host;

/// `explained` are the titles of attachments with a finding about their links. `restored` are those with a finding whose command
/// restores what is missing, such as the route of ptp.
pub(super) fn misrouted(
    host: &Host<'_>,
    (explained, restored): (&BTreeSet<String>, &BTreeSet<String>),
    found: &mut Findings,
) -> Result<()> {
    // The check `leaks` reports this error.
    let Ok(survey) = &host.survey else { return Ok(()) };
    // All containers with one wrong route are one finding.
    let mut fixes: BTreeMap<(u32, Option<u32>, bool), String> = BTreeMap::new();
    for (entry, life) in &survey.attachments {
        let Ok(Some(result)) = entry.success() else { continue };
        if *life != Life::Alive || explained.contains(&entry.title()) {
            continue;
        }
        let Some((link, is_bridge)) = link_of(host, entry, &result) else { continue };
        if !is_bridge && restored.contains(&entry.title()) {
            continue;
        }
        for ip in &result.ips {
            let address = ip.address.addr();
            let Some(gateway) = ip.gateway else { continue };
            let Some(towards) = elsewhere(host, link, gateway, address)? else { continue };
            if !host.is_at_rest(entry) {
                continue;
            }
            let other = host.links.iter().find(|other| Some(other.index) == towards);
            let through =
                other.map_or_else(|| "nowhere".into(), |link| format!("through {}", link.name));
            let key = (link.index, towards, address.is_ipv4());
            let fix = match fixes.get(&key) {
                Some(fix) => fix.clone(),
                None => fix(host, link, address)?,
            };
            let what = format_args!(
                "{}: the host sends packets for its address {address} {through}, not through {}: ip route get {address}",
                entry.title(),
                link.name
            );
            let why = "No answer and no other packet of the host reaches the container.";
            found.add_one_of(Harm::Broken, what, why, &fix);
            fixes.insert(key, fix);
        }
    }
    Ok(())
}

/// The link of the host to a container of bridge, ptp or veth, and whether it is a bridge. `None` for other networks, for a link that
/// is not there or not up.
fn link_of<'h>(
    host: &'h Host<'_>,
    entry: &CacheEntry,
    result: &Success,
) -> Option<(&'h Link, bool)> {
    let network = Network::from_cache(&entry.config).ok()?;
    if !["bridge", "ptp", "veth"].iter().any(|kind| network.plugin(kind).is_some()) {
        return None;
    }
    let end = result.interfaces.iter().find(|interface| interface.sandbox.is_empty());
    let bridge = networks::bridge(&network);
    let name = bridge.or_else(|| end.map(|end| end.name.as_str()))?;
    let link = host.links.iter().find(|link| link.name == name)?;
    (link.up && link.has_carrier).then_some((link, bridge.is_some()))
}

/// The link through which the host sends packets for an address of a container, `None` for nowhere, if that is not `link`, which has
/// the gateway of the container. Two links can have its address. In a VRF another table has the route.
pub(super) fn elsewhere(
    host: &Host<'_>,
    link: &Link,
    gateway: IpAddr,
    address: IpAddr,
) -> Result<Option<Option<u32>>> {
    let has_gateway = host.addresses(link.index).any(|own| own.net.addr() == gateway);
    if !has_gateway || link.master.is_some() {
        return Ok(None);
    }
    let towards = host.rtnl.link_towards(address, None)?;
    Ok((towards != Some(link.index)).then_some(towards))
}

/// What to type: the command that restores the route of the link, or how to find the route that takes precedence.
fn fix(host: &Host<'_>, link: &Link, address: IpAddr) -> Result<String> {
    let is_it = |dev, dst: ipnet::IpNet| dev == Some(link.index) && dst.contains(&address);
    let routes = host.rtnl.routes(IpFamily::of(address))?;
    let has_route = routes.iter().any(|route| is_it(route.dev, route.dst));
    let nets = host.addresses(link.index).map(|own| own.net);
    let net = nets.into_iter().find(|net| net.contains(&address));
    Ok(match net.filter(|_| !has_route) {
        Some(net) => {
            format!(
                "ip route replace {} dev {} src {}",
                net.trunc(),
                quoted(&link.name),
                net.addr()
            )
        }
        None => format!(
            "remove the route that this shows, or use another subnet: ip route get {address}"
        ),
    })
}

//! Rules for the ranges of host-local: within one network, between networks, and beside the routes of the host.

use std::net::IpAddr;

use crate::cni::json::Json;
use crate::error::Result;
use crate::ipam::range::{self, RangeConf, RangeSet};
use crate::kernel::netns::NetNs;
use crate::names::IpFamily;
use crate::names::reserved::{Reserved, reserved};
use crate::netlink::rtnl::RT_TABLE_MAIN;
use crate::plugin::Entry;
use crate::runtime::{conf, networks};

use super::document::{Document, name};
use super::json_path::JsonPath;

/// The addresses of a range of a network.
pub(super) struct Claim {
    /// The number of the document.
    document: usize,
    /// The place of the range in its text.
    offset: usize,
    network: String,
    /// As written, for messages.
    subnet: String,
    first: IpAddr,
    last: IpAddr,
    /// The bridge that has the subnet's route. `None`: the network makes no bridge.
    bridge: Option<String>,
    /// The plugin puts containers into a network that exists, so the host may have its route.
    is_shared: bool,
}

impl Claim {
    fn overlaps(&self, first: IpAddr, last: IpAddr) -> bool {
        self.first.is_ipv4() == first.is_ipv4() && self.first <= last && first <= self.last
    }
}

/// Collects the ranges of a plugin, and compares them with those of the same network.
pub(super) fn examine(
    document: &mut Document,
    path: &JsonPath<'_>,
    plugin: &Json,
    network: &str,
    claims: &mut Vec<Claim>,
    index: usize,
    plugins: &[Entry],
) {
    let Some(ipam) = plugin.get("ipam").filter(|ipam| conf::kind(ipam) == "host-local") else {
        return;
    };
    let kind = conf::kind(plugin);
    let entry = plugins.iter().find(|entry| entry.name == kind);
    let bridge = (kind == "bridge").then(|| networks::bridge_of(plugin).to_owned());
    let path = path.key("ipam");
    for (place, json) in configured(&path, ipam) {
        let Ok(configured) = json.read::<RangeConf>("range") else { continue };
        let (subnet, gateway) = (configured.subnet.clone(), configured.gateway);
        let parsed = range::parse(&[vec![configured]], &[]);
        let sets = match parsed {
            Ok(sets) => sets,
            Err(error) => {
                // The number of the set is that of a list with this one.
                let text = error.to_string();
                document.fault(&place, text.strip_prefix("invalid range set 0: ").unwrap_or(&text));
                continue;
            }
        };
        // One set of one range.
        for range in sets.iter().flat_map(RangeSet::ranges) {
            if let Some(gateway) = gateway
                && !range.subnet.contains(&gateway)
            {
                document.fault(&place, format!("gateway {gateway} is outside of subnet {subnet}"));
            }
            if let Some(Reserved { net, reason }) = reserved(&range.subnet) {
                document.note(&place, format!("{subnet} overlaps with {net}: {reason}"));
            }
            let claim = Claim {
                document: index,
                offset: place.offset_in(&document.text),
                network: network.to_owned(),
                subnet: subnet.clone(),
                first: range.first,
                last: range.last,
                bridge: bridge.clone(),
                is_shared: !entry.is_some_and(|entry| entry.facts.has_own_subnets),
            };
            let is_same =
                |other: &&Claim| other.document == index && other.overlaps(claim.first, claim.last);
            if let Some(other) = claims.iter().find(is_same) {
                document.fault(
                    &place,
                    format!("{subnet} overlaps the range {} of this network", other.subnet),
                );
            }
            claims.push(claim);
        }
    }
}

/// The ranges of `ipam`, with their places.
fn configured<'a>(path: &JsonPath<'a>, ipam: &'a Json) -> Vec<(JsonPath<'a>, &'a Json)> {
    let mut found = Vec::new();
    if ipam.get("subnet").is_some() {
        found.push((path.key("subnet"), ipam));
    }
    let key = path.key("ranges");
    let Some(Json::Array(sets)) = ipam.get("ranges") else { return found };
    for (at, set) in sets.iter().enumerate() {
        let Json::Array(ranges) = set else { continue };
        let set = key.item(at);
        for (at, range) in ranges.iter().enumerate() {
            found.push((set.item(at), range));
        }
    }
    found
}

/// Two networks that would give out the same addresses. The later one gets the finding.
pub(super) fn compare_networks(claims: &[Claim], documents: &mut [Document]) {
    for (index, claim) in claims.iter().enumerate() {
        let is_other = |other: &&Claim| {
            other.network != claim.network && other.overlaps(claim.first, claim.last)
        };
        if let Some(other) = claims.get(..index).and_then(|before| before.iter().find(is_other))
            && let Some(file) = documents.get(other.document).map(|document| name(&document.file))
            && let Some(document) = documents.get_mut(claim.document)
        {
            let text = format!(
                "{} overlaps the range {} of network {} in {file}",
                claim.subnet, other.subnet, other.network
            );
            document.insert(claim.offset, true, text);
        }
    }
}

/// Routes of the host to other links into a range.
pub(super) fn compare_routes(claims: &[Claim], documents: &mut [Document]) -> Result<()> {
    if claims.is_empty() {
        return Ok(());
    }
    let host = NetNs::own()?.rtnl()?;
    for family in [IpFamily::V4, IpFamily::V6] {
        for route in host.routes(family)? {
            let (dst, dev) = (route.dst, route.dev.unwrap_or_default());
            let is_container = dst.prefix_len() == dst.max_prefix_len();
            let is_local = dst.addr().is_loopback()
                || matches!(dst.addr(), IpAddr::V6(ip) if ip.is_unicast_link_local() || ip.is_multicast());
            if route.table != Some(RT_TABLE_MAIN)
                || dst.prefix_len() == 0
                || is_container
                || is_local
            {
                continue;
            }
            let link = host.link_at(dev)?.map_or_else(String::new, |link| link.0.name);
            for claim in
                claims.iter().filter(|claim| claim.overlaps(dst.network(), dst.broadcast()))
            {
                let is_own =
                    claim.is_shared || claim.bridge.as_ref().is_some_and(|bridge| *bridge == link);
                let Some(document) = documents.get_mut(claim.document).filter(|_| !is_own) else {
                    continue;
                };
                let text =
                    format!("{} overlaps the route of this host to {dst} by {link}", claim.subnet);
                document.insert(claim.offset, false, text);
            }
        }
    }
    Ok(())
}

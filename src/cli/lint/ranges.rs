//! Finds ranges of host-local that overlap: within one network, between networks, and with the routes of the host.

use crate::cni::json::Json;
use crate::ipam::range::{self, RangeConf, RangeSet};
use crate::names::reserved::{Reserved, reserved};
use crate::plugins;
use crate::runtime::{conf, networks};

use super::document::{Claim, Document, Finding, name};
use super::json_path::JsonPath;

/// Collects the ranges of a plugin, and compares them with those of the same network.
pub(super) fn examine(document: &mut Document, path: &JsonPath<'_>, plugin: &Json, network: &str) {
    let Some(ipam) = plugin.get("ipam").filter(|ipam| conf::kind(ipam) == "host-local") else {
        return;
    };
    let kind = conf::kind(plugin);
    let entry = plugins::named(kind);
    let bridge = (kind == "bridge").then(|| networks::bridge_of(plugin).to_owned());
    let is_set = |key| plugin.get(key) == Some(&Json::Bool(true));
    let is_gateway = kind == "bridge" && (is_set("isGateway") || is_set("isDefaultGateway"));
    let path = path.key("ipam");
    for (path, json) in configured(&path, ipam) {
        let Ok(configured) = json.read::<RangeConf>("range") else { continue };
        let (subnet, gateway) = (configured.subnet.clone(), configured.gateway);
        let parsed = range::parse(&[vec![configured]], &[]);
        let sets = match parsed {
            Ok(sets) => sets,
            Err(error) => {
                // Remove the beginning of the text: each range is parsed alone, so the index of the set is always 0.
                let text = error.to_string();
                document.fault(&path, text.strip_prefix("invalid range set 0: ").unwrap_or(&text));
                continue;
            }
        };
        // `sets` has one set with one range.
        for range in sets.iter().flat_map(RangeSet::ranges) {
            // A gateway on another machine may be outside of the subnet. The bridge itself would have no route to the subnet.
            if let Some(gateway) = gateway.filter(|_| is_gateway)
                && !range.subnet.contains(&gateway)
            {
                document.fault(&path, format!("gateway {gateway} is outside of subnet {subnet}"));
            }
            if let Some(Reserved { net, reason }) = reserved(&range.subnet) {
                document.note(&path, format!("{subnet} overlaps with {net}: {reason}"));
            }
            let claim = Claim {
                offset: path.offset_in(&document.text),
                network: network.to_owned(),
                subnet: subnet.clone(),
                first: range.first,
                last: range.last,
                bridge: bridge.clone(),
                is_shared: !entry.is_some_and(|entry| entry.has_own_subnets),
            };
            let overlaps = |other: &&Claim| other.overlaps(claim.first, claim.last);
            if let Some(other) = document.claims.iter().find(overlaps) {
                let text = format!("{subnet} overlaps the range {} of this network", other.subnet);
                document.fault(&path, text);
            }
            document.claims.push(claim);
        }
    }
}

/// The ranges of `ipam`, with their paths.
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

/// Finds two networks whose ranges overlap. The finding is in the document of the later one.
pub(super) fn compare_networks(documents: &mut [Document]) {
    for index in 1..documents.len() {
        let (before, [Document { claims, findings, .. }, ..]) = documents.split_at_mut(index)
        else {
            return;
        };
        for claim in claims.iter() {
            let is_other = |(_, other): &(&Document, &Claim)| {
                other.network != claim.network && other.overlaps(claim.first, claim.last)
            };
            let mut others = before
                .iter()
                .flat_map(|other| other.claims.iter().map(move |claim| (other, claim)));
            if let Some((document, other)) = others.find(is_other) {
                let (subnet, file) = (&claim.subnet, name(&document.file));
                let Claim { subnet: range, network, .. } = other;
                let text =
                    format!("{subnet} overlaps the range {range} of network {network} in {file}");
                findings.push(Finding { offset: claim.offset, is_fault: true, text });
            }
        }
    }
}

//! Compares configurations with the links and routes of this host. What differs is a note: the file may be for another host.

use std::net::IpAddr;

use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::names::IpFamily;
use crate::netlink::rtnl::{RT_TABLE_MAIN, Rtnl};

use super::document::{Claim, Document, Finding};

pub(super) fn compare(documents: &mut [Document]) -> Result<()> {
    let is_about_host =
        |document: &Document| !document.claims.is_empty() || !document.parents.is_empty();
    if !documents.iter().any(is_about_host) {
        return Ok(());
    }
    let host = NetNs::own()?.rtnl()?;
    documents.iter_mut().for_each(|document| find_parents(&host, document));
    compare_routes(&host, documents)
}

/// Finds parents of networks that the host does not have. The kernel refuses the question about a name that no link can have.
fn find_parents(host: &Rtnl, document: &mut Document) {
    for (offset, parent) in std::mem::take(&mut document.parents) {
        if let Ok(None) = host.link(&parent) {
            let text = format!("this host has no link {parent}: an ADD fails until it has");
            document.add(offset, false, text);
        }
    }
}

/// Finds ranges that overlap a route of the host by another link than that of the network.
fn compare_routes(host: &Rtnl, documents: &mut [Document]) -> Result<()> {
    for family in IpFamily::ALL {
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
            let link = host.link_at(dev)?.map_or_else(String::new, |link| link.name);
            for Document { claims, findings, .. } in documents.iter_mut() {
                let other = claims.iter().filter(|claim| {
                    let is_own = claim.is_shared || claim.bridge.as_ref() == Some(&link);
                    !is_own && claim.overlaps(dst.network(), dst.broadcast())
                });
                findings.extend(other.map(|Claim { subnet, offset, .. }| Finding {
                    offset: *offset,
                    is_fault: false,
                    text: format!("{subnet} overlaps the route of this host to {dst} by {link}"),
                }));
            }
        }
    }
    Ok(())
}

//! Takes the addresses of an ADD from the rules of attachments without a record, see `record::orphans`.

use std::net::IpAddr;

use crate::attachments::owner::Owners;
use crate::attachments::record::Records;
use crate::attachments::record::orphans::{self, Orphan};
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::sys;
use crate::kernel::who_has::{self, Answer};
use crate::names::Attachment;
use crate::netlink::rtnl::Link;
use crate::plugin::{Context, Scope};
use crate::rules::masquerade;

/// Removes the rules of other attachments of the network that lead to an address of this ADD, if these have no record. The IPAM plugin
/// says that the address is free, so this first asks the link (empty: the routes of the host), and fails if somebody answers for it or
/// if nobody can be asked.
pub fn take_over(cx: &Context<'_>, at: &Attachment, link: &str, success: &Success) -> Result<()> {
    let network = &cx.request.network;
    let addresses: Vec<_> = success.ips.iter().map(|ip| ip.address.addr()).collect();
    let is_unlisted = cx.session.is_unlisted.get();
    let found = orphans::of_addresses(network, &addresses, is_unlisted)?;
    if found.is_empty() {
        return Ok(());
    }
    for address in addresses {
        if found.iter().any(|other| other.address == address && other.at != *at) {
            ask(cx, link, address)?;
        }
    }
    let records = Records::of_host();
    let mut orphans = Vec::new();
    for orphan in found {
        // The record of a later attachment of the name is proof enough.
        if orphan.at == *at || records.read(network, &orphan.at)?.is_none() {
            orphans.push(orphan);
        }
    }
    for Orphan { at: of, address, .. } in orphans.iter().filter(|orphan| orphan.at != *at) {
        cx.remove_rules(network, of)?;
        let owners = Owners::of(network, Scope::One(of));
        if let Some(nft) = cx.session.nft_if_supported()? {
            nft.transact(|nft, batch| masquerade::remove(nft, batch, &owners))?;
        }
        let title = of.title(network);
        cx.warn(format_args!(
            "removed the rules of {title}: it has no record, and {address} is free"
        ));
    }
    cx.or_warn(orphans::forget(&orphans));
    Ok(())
}

/// Fails if somebody on the link has an address, or if a container that has it would not be heard: nobody on the link can be asked, or
/// the link is a master, which a macvlan does not hear.
fn ask(cx: &Context<'_>, link: &str, address: IpAddr) -> Result<()> {
    let host = cx.session.host()?;
    let (found, kind) = match link {
        "" => match host.link_towards(address, None)? {
            Some(index) => (host.link_at(index)?, "veth"),
            None => return Ok(()),
        },
        name => (host.link(name)?, "bridge"),
    };
    let refused = |why: String| Err(Error::internal(format!("cannot use {address}: {why}")));
    let not_asked = |name: &str| {
        refused(format!(
            "nobody on link {name} can be asked, and a container without a record has rules for it; if no container \
             of this node lives, cnibox gc --none-alive removes all such"
        ))
    };
    let Some(Link { index, name, mac: Some(own), kind: found, operstate_up, .. }) = found else {
        return not_asked(link);
    };
    match (found.as_deref() == Some(kind), link.is_empty()) {
        (true, _) => {}
        // The host has no route of its own to the address, only one to other hosts.
        (false, true) => return Ok(()),
        (false, false) => return not_asked(&name),
    }
    // Without carrier no port of the bridge is up.
    if !operstate_up {
        return Ok(());
    }
    let answer = who_has::who_has(index, own, address);
    match answer.map_err(sys::failed(format_args!("cannot ask for {address} on {name}")))? {
        Answer::Nobody => Ok(()),
        Answer::NotAsked => not_asked(&name),
        Answer::Has(mac) => refused(format!("{mac} on link {name} has it")),
    }
}

//! Takes the addresses of an ADD from the rules of attachments without a record, see `record::orphans`.

use std::net::IpAddr;

use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::sys;
use crate::kernel::who_has::{self, Answer};
use crate::names::Attachment;
use crate::netlink::rtnl::Link;
use crate::plugin::owner::Owners;
use crate::plugin::record::Records;
use crate::plugin::record::orphans::{self, Orphan};
use crate::plugin::{Context, Scope};
use crate::steps::nft::masquerade;

/// Removes the rules of other attachments of the network that lead to an address of this ADD, if these have no record. The IPAM plugin
/// says that the address is free, so this first asks the link (empty: the routes of the host), and fails if somebody answers for it. If
/// the link cannot be asked, the rules stay.
pub fn take_over(cx: &Context<'_>, at: &Attachment, link: &str, success: &Success) -> Result<()> {
    let network = &cx.request.network;
    let addresses: Vec<_> = success.ips.iter().map(|ip| ip.address.addr()).collect();
    let mut orphans = cx.or_warn(orphans::of_addresses(network, &addresses));
    if orphans.is_empty() {
        return Ok(());
    }
    let mut free = Vec::new();
    for address in addresses {
        let has_others = orphans.iter().any(|other| other.address == address && other.at != *at);
        if has_others && is_free(cx, link, address)? {
            free.push(address);
        }
    }
    let records = Records::of_host();
    // The record of a later attachment of the name is proof enough.
    orphans.retain(|orphan| {
        orphan.at == *at
            || free.contains(&orphan.address) && records.read(network, &orphan.at) == Ok(None)
    });
    for Orphan { at: of, address, .. } in orphans.iter().filter(|orphan| orphan.at != *at) {
        cx.remove_rules(network, of)?;
        let owners = Owners::in_network(network, Scope::One(of));
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

/// Whether nobody on the link has an address. Fails if somebody answers for it. False if the question cannot be asked, or if a
/// container would not hear it: a macvlan does not hear its master.
fn is_free(cx: &Context<'_>, link: &str, address: IpAddr) -> Result<bool> {
    let host = cx.session.host()?;
    let (found, kind) = match link {
        "" => match host.link_towards(address, None)? {
            Some(index) => (host.link_at(index)?, "veth"),
            None => return Ok(true),
        },
        name => (host.link(name)?, "bridge"),
    };
    let Some(Link { index, name, mac: Some(own), kind: found, operstate_up, .. }) = found else {
        return Ok(false);
    };
    if found.as_deref() != Some(kind) {
        // The host has no route of its own to the address, only one to other hosts.
        return Ok(link.is_empty());
    }
    if !operstate_up {
        return Ok(true);
    }
    let answer = who_has::who_has(index, own, address);
    let answer = answer.map_err(sys::failed(format_args!("cannot ask for {address} on {name}")));
    match answer {
        Ok(Answer::Nobody) => Ok(true),
        Ok(Answer::NotAsked) => Ok(false),
        Ok(Answer::Has(mac)) => {
            Err(Error::internal(format!("cannot use {address}: {mac} on link {name} has it")))
        }
        Err(error) => {
            cx.warn(error);
            Ok(false)
        }
    }
}

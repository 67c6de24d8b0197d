//! Takes the addresses of an ADD from the rules of attachments without a record, see `record::orphans`.

use std::net::IpAddr;

use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::{sys, who_has};
use crate::names::Attachment;
use crate::netlink::rtnl::Link;
use crate::plugin::owner::Owners;
use crate::plugin::record::Records;
use crate::plugin::record::orphans::{self, Orphan};
use crate::plugin::{Context, Scope};
use crate::steps::nft::masquerade;

/// Removes the rules of other attachments of the network that lead to an address of this ADD, if these have no record. The IPAM plugin
/// says that the address is free, so this first asks the link (empty: the routes of the host), and fails if somebody answers for it.
pub fn take_over(cx: &Context<'_>, at: &Attachment, link: &str, success: &Success) -> Result<()> {
    let network = &cx.request.network;
    let addresses: Vec<_> = success.ips.iter().map(|ip| ip.address.addr()).collect();
    let mut orphans = cx.or_warn(orphans::of_addresses(network, &addresses));
    if orphans.is_empty() {
        return Ok(());
    }
    for address in addresses {
        if orphans.iter().any(|orphan| orphan.address == address && orphan.at != *at) {
            ask(cx, link, address)?;
        }
    }
    let records = Records::of_host();
    // The record of a later attachment of the name is proof enough.
    orphans.retain(|orphan| orphan.at == *at || records.read(network, &orphan.at) == Ok(None));
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

/// Fails if somebody on the link has an address.
fn ask(cx: &Context<'_>, link: &str, address: IpAddr) -> Result<()> {
    let host = cx.session.host()?;
    let found = match link {
        "" => host.link_towards(address, None)?.map_or(Ok(None), |index| host.link_at(index))?,
        name => host.link(name)?,
    };
    let Some(Link { index, name, mac: Some(own), .. }) = found.filter(|link| link.operstate_up)
    else {
        return Ok(());
    };
    let answer = who_has::who_has(index, own, address);
    let answer = answer.map_err(sys::failed(format_args!("cannot ask for {address} on {name}")));
    match cx.or_warn(answer) {
        None => Ok(()),
        Some(mac) => {
            Err(Error::internal(format!("cannot use {address}: {mac} on link {name} has it")))
        }
    }
}

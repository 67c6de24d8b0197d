//! `loopback`: brings the interface `lo` of the container up.
//!
//! ```json
//! { "cniVersion": "1.1.0", "name": "lo", "type": "loopback" }
//! ```
//!
//! The plugin has no keys except those of every plugin, and ignores CNI_IFNAME.
//!
//! - **ADD** brings `lo` up, and names its owner in the alias if `lo` has none. It returns `prevResult` if there is one,
//!   else `lo` with its first loopback address of each family. Other addresses of `lo`, as those of a virtual service, stay.
//! - **CHECK** fails if `lo` is down.
//! - **DEL** brings `lo` down, if the namespace exists, no link in it belongs to another container, the alias of `lo`
//!   names no other network, and `lo` has loopback addresses only.
//! - **GC** has nothing to do: the kernel removes `lo` with the namespace.
//! - **STATUS** always succeeds.

use crate::attachments::owner::Owner;
use crate::cni::json::keys;
use crate::cni::success::{Ip, Success};
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::{Attachment, IpFamily, Mac};
use crate::netlink::rtnl::{Link, LinkChange, Rtnl};
use crate::plugin::{Context, Entry, Plugin, Scope};
use crate::steps::link::{host_link, veth};

const LO: &str = "lo";

pub const ENTRY: Entry = Entry {
    is_in_container: true,
    unreadable: Some("failed to parse network config"),
    ..Entry::plugin::<Loopback>("loopback", "brings the interface lo of the container up")
};

keys! {
    pub struct Loopback {}
}
impl Plugin for Loopback {
    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        cx.request.prev_result().map(drop)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<Success> {
        let prev_result = cx.request.prev_result()?;
        let rtnl = cx.session.container()?;
        let lo = find_lo(rtnl)?;
        let alias = Owner::new(&cx.request.network, at).alias();
        // Another network or the administrator can have set the alias.
        let alias = Some(alias.as_str()).filter(|_| lo.alias.is_none());
        set(rtnl, &lo, true, alias)?;
        let result = match prev_result {
            Some(result) => Ok(result),
            None => describe(cx, rtnl, &lo),
        };
        if result.is_err() {
            set(rtnl, &lo, lo.up, alias.map(|_| ""))?;
        }
        result
    }

    fn check(&self, cx: &Context<'_>, _: &Attachment, _: &NetNs) -> Result<()> {
        match find_lo(cx.session.container()?)? {
            lo if lo.up => Ok(()),
            _ => Err(Error::difference("loopback interface is down")),
        }
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        let (Some(at), Some(_)) = (scope.one(), netns) else { return Ok(()) };
        let (host, rtnl) = (cx.session.host()?, cx.session.container()?);
        let owner = Owner::new(&cx.request.network, at);
        let is_elsewhere = |link: &Link| host_link::is_of_another_container(link, &owner);
        for link in rtnl.links()? {
            if veth::either_end(host, &link, is_elsewhere)? {
                return Ok(());
            }
        }
        let lo = find_lo(rtnl)?;
        if host_link::is_of_another(&lo, &owner) {
            return Ok(());
        }
        // A service uses the addresses that are not loopback addresses. The kernel deletes IPv6 addresses of a link that goes
        // down.
        let is_needed = rtnl.addresses(lo.index)?.iter().any(|own| !own.net.addr().is_loopback());
        set(rtnl, &lo, is_needed && lo.up, host_link::owner_of(&lo).map(|_| ""))
    }

    fn status(&self, _: &Context<'_>) -> Result<()> {
        Ok(())
    }
}

fn find_lo(rtnl: &Rtnl) -> Result<Link> {
    rtnl.link(LO)?.ok_or_else(|| Error::internal("interface lo not found in the container"))
}

fn set(rtnl: &Rtnl, lo: &Link, up: bool, alias: Option<&str>) -> Result<()> {
    rtnl.change_link(lo.index, LO, &LinkChange { up: Some(up), alias, ..LinkChange::default() })
}

/// The result for `lo`, with its first loopback address of each family.
fn describe(cx: &Context<'_>, rtnl: &Rtnl, lo: &Link) -> Result<Success> {
    let addresses = rtnl.addresses(lo.index)?;
    let first = |family: IpFamily| {
        let mut nets = addresses.iter().map(|address| address.net);
        let is_own = |net: &ipnet::IpNet| family.has(net.addr()) && net.addr().is_loopback();
        Some(Ip { address: nets.find(is_own)?, gateway: None, interface: Some(0) })
    };
    Ok(Success {
        interfaces: vec![host_link::interface(LO, Some(Mac([0; 6])), cx.request.sandbox())],
        ips: IpFamily::ALL.into_iter().filter_map(first).collect(),
        ..Success::default()
    })
}

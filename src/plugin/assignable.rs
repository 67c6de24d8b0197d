//! Decides which addresses a container on a link with broadcast cannot use: an IPAM plugin does not choose them, and warns if they
//! are requested.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::json::{Json, keys};
use crate::error::Result;
use crate::names::reserved;
use crate::netlink::rtnl::Rtnl;
use crate::plugin::Context;

/// The plugins whose interface is on a link with broadcast. The host routes the packets of the others, such as `ptp`.
const KINDS: [&str; 5] = ["bridge", "macvlan", "ipvlan", "vlan", "host-device"];

keys! {
    struct LinkKeys {
        "type" => kind: String,
        "mode" => mode: String,
        "bridge" => bridge: String = "cni0".into(),
        "master" => master: String,
    }
}

impl LinkKeys {
    fn read(plugin: &Json) -> Self {
        plugin.read("network configuration").unwrap_or_default()
    }

    fn has_broadcast(&self) -> bool {
        // An ipvlan in the modes l3 and l3s has no broadcast.
        KINDS.contains(&self.kind.as_str())
            && (self.kind != "ipvlan" || !self.mode.starts_with("l3"))
    }

    /// Whether the host has an address on the link of the network. Without `master`, the link is unknown, so all links count.
    fn is_of_host(&self, host: &Rtnl, ip: IpAddr) -> Result<bool> {
        let name = match self.kind.as_str() {
            _ if !self.has_broadcast() => return Ok(false),
            // The device is not on the host any more.
            "host-device" => return Ok(false),
            "bridge" => &self.bridge,
            _ => &self.master,
        };
        let Some(index) = host.link_with_address(ip)? else { return Ok(false) };
        Ok(name.is_empty() || host.link(name)?.is_some_and(|link| link.index == index))
    }
}

/// Whether the containers of a network are on a link with broadcast.
pub fn has_broadcast(plugin: &Json) -> bool {
    LinkKeys::read(plugin).has_broadcast()
}

/// Whether the host has an address on the link of the network. Without an answer of the kernel, warns.
pub fn is_of_host<'a>(cx: &'a Context<'a>) -> impl Fn(IpAddr) -> bool + 'a {
    let keys = LinkKeys::read(&cx.request.json);
    move |ip| cx.or_warn(cx.session.host().and_then(|host| keys.is_of_host(host, ip)))
}

/// Warns of requested addresses that a container cannot use. The prefix length of an address is that of its subnet.
pub fn warn_of_requested(cx: &Context<'_>, addresses: impl Iterator<Item = IpNet>) {
    let keys = LinkKeys::read(&cx.request.json);
    if !keys.has_broadcast() {
        return;
    }
    for address in addresses {
        let is_of_host =
            || cx.session.host().and_then(|host| keys.is_of_host(host, address.addr()));
        let reason = match reserved::in_subnet(&address) {
            None => cx.or_warn(is_of_host()).then_some("it is an address of this host"),
            reason => reason,
        };
        if let Some(reason) = reason {
            cx.warn(format_args!("{address} is requested, although {reason}"));
        }
    }
}

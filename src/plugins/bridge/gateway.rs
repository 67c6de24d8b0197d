//! The gateway of the containers: addresses on the bridge.

use std::net::IpAddr;

use ipnet::IpNet;

use super::host::if_unused;
use super::{Bridge, CONTAINER};
use crate::cni::success::{Route, Success};
use crate::error::{Error, Result};
use crate::kernel::netns::Lock;
use crate::kernel::rtnl::{Batch, Link, LinkChange, NewAddress, Rtnl};
use crate::steps::undo::Undo;

impl Bridge {
    fn is_gateway(&self) -> bool {
        self.is_gateway || self.is_default_gateway
    }

    /// Completes the result of IPAM: whose the addresses are, the gateways, the default routes. Returns what the bridge
    /// is to have.
    pub(super) fn plan_gateways(&self, success: &mut Success) -> Vec<IpNet> {
        let mut on_bridge = Vec::new();
        for ip in &mut success.ips {
            ip.interface = Some(CONTAINER);
            if !self.is_gateway() {
                continue;
            }
            let gateway = *ip.gateway.get_or_insert_with(|| first_host(ip.address));
            let net = IpNet::new(gateway, ip.address.prefix_len());
            on_bridge.extend(net.ok().filter(|net| !on_bridge.contains(net)));
            let has_default = success.routes.iter().any(|route| {
                route.dst.prefix_len() == 0 && route.dst.addr().is_ipv4() == gateway.is_ipv4()
            });
            if self.is_default_gateway && !has_default {
                success.routes.push(Route::default_via(gateway));
            }
        }
        on_bridge
    }
}

/// The gateway of a subnet where nobody says: the first address after the network's own.
fn first_host(net: IpNet) -> IpAddr {
    match net.network() {
        IpAddr::V4(network) => IpAddr::V4(u32::from(network).wrapping_add(1).into()),
        IpAddr::V6(network) => IpAddr::V6(u128::from(network).wrapping_add(1).into()),
    }
}

/// Gives the bridge the gateways' addresses. Where it has others of the same family (for IPv6: that overlap) they make
/// way if `force`, else it is an error.
pub(super) fn ensure_addresses<'a>(
    host: &'a Rtnl,
    in_use: Option<&'a Lock>,
    bridge: &Link,
    gateways: &[IpNet],
    force: bool,
    undo: &mut Undo<'a>,
) -> Result<()> {
    if gateways.is_empty() {
        return Ok(());
    }
    let (index, name) = (bridge.index, bridge.name.as_str());
    let present: Vec<IpNet> =
        host.addresses(index)?.into_iter().map(|address| address.net).collect();
    let missing: Vec<IpNet> =
        gateways.iter().filter(|net| !present.contains(net)).copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let in_the_way = |other: &&IpNet| {
        !gateways.contains(other) && missing.iter().any(|net| conflicts(**other, *net))
    };
    let replaced: Vec<IpNet> = present.iter().filter(in_the_way).copied().collect();
    if let (Some(other), false) = (replaced.first(), force) {
        return Err(Error::internal(format!(
            "{name:?} already has an IP address different from {}",
            missing[0]
        ))
        .with_details(format!("it has {other}; forceAddress would replace it")));
    }
    let mut batch = replace_addresses(bridge, &replaced, &missing);
    // A bridge that somebody else made may still change its MAC address with its ports: setting it makes it stay.
    batch.change_link(index, name, &LinkChange { mac: bridge.mac, ..LinkChange::default() });
    let bridge = bridge.clone();
    undo.push("give the bridge the addresses that it had", move || {
        let take_back = || host.commit(replace_addresses(&bridge, &missing, &replaced));
        if_unused(host, in_use, bridge.index, take_back)
    });
    host.commit(batch)
}

fn replace_addresses(bridge: &Link, old: &[IpNet], new: &[IpNet]) -> Batch {
    let mut batch = Batch::new();
    for net in old {
        batch.del_address(bridge.index, &bridge.name, *net);
    }
    for net in new {
        // Another ADD may be giving it the same one right now.
        let address =
            NewAddress { net: *net, no_dad: true, no_prefix_route: false, may_exist: true };
        batch.add_address(bridge.index, &bridge.name, &address);
    }
    batch
}

/// As the reference sees it: an interface has one IPv4 network, and any number of IPv6 ones that do not overlap.
fn conflicts(present: IpNet, wanted: IpNet) -> bool {
    match (present, wanted) {
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(a), IpNet::V6(b)) => a.contains(&b.network()) || b.contains(&a.network()),
        _ => false,
    }
}

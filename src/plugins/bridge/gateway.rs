//! The gateway of the containers: addresses on the bridge, or for those in a VLAN on a link of the VLAN's own.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Bridge, CONTAINER, LOCK_LIMIT, OnHost, gateway_link, host};
use crate::cni::success::{Route, Success};
use crate::error::{Error, Result};
use crate::kernel::rtnl::{Batch, Link, LinkChange, NewAddress, Rtnl};
use crate::names::IfName;
use crate::plugin::Context;
use crate::steps::flow::undo::Undo;

impl Bridge {
    pub(super) fn is_gateway(&self) -> bool {
        self.is_gateway || self.is_default_gateway
    }

    /// The name of the link that has the gateway's addresses; None when it is the bridge, or when there is no gateway.
    pub(super) fn vlan_gateway(&self, has_addresses: bool) -> Result<Option<IfName>> {
        if self.vlan == 0 || !has_addresses || !self.is_gateway() {
            return Ok(None);
        }
        let name = IfName::new(format!("{}.{}", self.bridge, self.vlan)).map_err(|error| {
            Error::config(format!("bridge and vlan: the name of the gateway's link: {error}"))
        })?;
        Ok(Some(name))
    }

    /// Gives the gateways' addresses to the bridge, or to the link of the VLAN, which is returned.
    pub(super) fn ensure_gateway<'a>(
        &self,
        on: &OnHost<'a>,
        bridge: &Link,
        gateways: &[IpNet],
        undo: &mut Undo<'a>,
    ) -> Result<Option<Link>> {
        let OnHost { host, in_use, sound } = *on;
        if let Some(name) = &sound.vlan_gateway {
            let named = sound.vlans.access.map(|vlan| (&**name, vlan));
            undo.push_shared("remove the gateway's link", move || {
                gateway_link::remove_unused(host, in_use, named)
            });
            let link = gateway_link::ensure(host, bridge, name, &sound.vlans)?;
            // The addresses end with the link. While others use it, nobody takes them back: those may need the new ones
            // by now.
            if let Some(change) = AddressChange::plan(host, &link, gateways, self.force_address)? {
                change.make(host)?;
            }
            return Ok(Some(link));
        }
        if let Some(change) = AddressChange::plan(host, bridge, gateways, self.force_address)? {
            let result = change.make(host);
            undo.push_shared("give the bridge the addresses that it had", move || {
                let bridge = change.link.index;
                host::if_unused(host, in_use, bridge, || change.take_back(host))
            });
            result?;
        }
        Ok(None)
    }

    /// For DEL and GC: removes the links of gateways that no container needs any more, whatever VLAN the configuration
    /// has now.
    pub(super) fn collect_unused_gateways(&self, cx: &Context<'_>) -> Result<()> {
        let host = cx.session.host()?;
        // Where the configuration makes no sense, it names no link.
        let name = self.vlan_gateway(true).ok().flatten();
        let named = name.as_deref().zip(u16::try_from(self.vlan).ok());
        let in_use = cx.session.host_netns()?.lock_shared(LOCK_LIMIT)?;
        gateway_link::remove_unused(host, in_use.as_ref(), named)
    }

    /// Completes the result of IPAM: whose the addresses are, the gateways, the default routes. Returns the gateways'
    /// addresses.
    pub(super) fn plan_gateways(&self, success: &mut Success) -> Vec<IpNet> {
        let mut gateways = Vec::new();
        for ip in &mut success.ips {
            ip.interface = Some(CONTAINER);
            if !self.is_gateway() {
                continue;
            }
            let gateway = *ip.gateway.get_or_insert_with(|| first_host(ip.address));
            let net = IpNet::new(gateway, ip.address.prefix_len());
            gateways.extend(net.ok().filter(|net| !gateways.contains(net)));
            let has_default = success.routes.iter().any(|route| {
                route.dst.prefix_len() == 0 && route.dst.addr().is_ipv4() == gateway.is_ipv4()
            });
            if self.is_default_gateway && !has_default {
                success.routes.push(Route::default_via(gateway));
            }
        }
        gateways
    }
}

/// The gateway of a subnet where nobody says: the first address after the network's own.
fn first_host(net: IpNet) -> IpAddr {
    match net.network() {
        IpAddr::V4(network) => IpAddr::V4(u32::from(network).wrapping_add(1).into()),
        IpAddr::V6(network) => IpAddr::V6(u128::from(network).wrapping_add(1).into()),
    }
}

/// What has to be done for a link to have the gateways' addresses.
struct AddressChange {
    link: Link,
    missing: Vec<IpNet>,
    replaced: Vec<IpNet>,
}

impl AddressChange {
    /// Where the link has other addresses of the same family (for IPv6: that overlap) they make way if `force`, else it
    /// is an error. None when there is nothing to do.
    fn plan(host: &Rtnl, link: &Link, gateways: &[IpNet], force: bool) -> Result<Option<Self>> {
        if gateways.is_empty() {
            return Ok(None);
        }
        let present: Vec<IpNet> =
            host.addresses(link.index)?.into_iter().map(|address| address.net).collect();
        let missing: Vec<IpNet> =
            gateways.iter().filter(|net| !present.contains(net)).copied().collect();
        if missing.is_empty() {
            return Ok(None);
        }
        let in_the_way = |other: &&IpNet| {
            !gateways.contains(other) && missing.iter().any(|net| conflicts(**other, *net))
        };
        let replaced: Vec<IpNet> = present.iter().filter(in_the_way).copied().collect();
        if let (Some(other), false) = (replaced.first(), force) {
            return Err(Error::internal(format!(
                "{:?} already has an IP address different from {}",
                link.name, missing[0]
            ))
            .with_details(format!("it has {other}; forceAddress would replace it")));
        }
        Ok(Some(Self { link: link.clone(), missing, replaced }))
    }

    fn make(&self, host: &Rtnl) -> Result<()> {
        let mut batch = replace_addresses(&self.link, &self.replaced, &self.missing);
        // A bridge that somebody else made may still change its MAC address with its ports: setting it makes it stay.
        let change = LinkChange { mac: self.link.mac, ..LinkChange::default() };
        batch.change_link(self.link.index, &self.link.name, &change);
        host.commit(batch)
    }

    fn take_back(&self, host: &Rtnl) -> Result<()> {
        host.commit(replace_addresses(&self.link, &self.missing, &self.replaced))
    }
}

fn replace_addresses(link: &Link, old: &[IpNet], new: &[IpNet]) -> Batch {
    let mut batch = Batch::new();
    for net in old {
        batch.del_address(link.index, &link.name, *net);
    }
    for net in new {
        // Another ADD may be giving it the same one right now.
        let address =
            NewAddress { net: *net, no_dad: true, no_prefix_route: false, may_exist: true };
        batch.add_address(link.index, &link.name, &address);
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

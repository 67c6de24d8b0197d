//! The gateway of the containers: its addresses are on the bridge, or on the link of a VLAN gateway.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Bridge, CONTAINER, HostState, LOCK_TIMEOUT, device, vlan_gateway};
use crate::cni::success::{Ip, Route, Success};
use crate::error::{Error, Result};
use crate::kernel::sys;
use crate::kernel::who_has::{self, Answer};
use crate::names::{IfName, IpFamily};
use crate::netlink::rtnl::{Batch, Link, LinkChange, NewAddress, Rtnl};
use crate::plugin::Context;
use crate::steps::delegate;
use crate::steps::link::{forwarding, gateway, host_link, mtu, uplinks};
use crate::steps::undo::Undo;

impl Bridge {
    pub(super) fn is_gateway(&self) -> bool {
        self.is_gateway || self.is_default_gateway
    }

    /// The name of the link that gets the gateway addresses. `None` if the bridge gets them, or if there is no gateway.
    pub(super) fn vlan_gateway(&self, has_addresses: bool) -> Result<Option<IfName>> {
        if self.vlan == 0 || !has_addresses || !self.is_gateway() {
            return Ok(None);
        }
        let name = IfName::new(format!("{}.{}", self.bridge, self.vlan)).map_err(|error| {
            Error::config(format_args!("bridge, vlan: cannot name the VLAN gateway: {error}"))
        })?;
        Ok(Some(name))
    }

    /// Sets the gateway addresses on the bridge, or on the VLAN gateway. Returns the VLAN gateway.
    pub(super) fn ensure_gateway<'a>(
        &self,
        state: &HostState<'a>,
        bridge: &Link,
        gateways: &[IpNet],
        undo: &mut Undo<'a>,
    ) -> Result<Option<Link>> {
        let HostState { host, lock, validated } = *state;
        if let Some(name) = &validated.vlan_gateway {
            let configured = validated.vlans.access.map(|vlan| (&**name, vlan));
            undo.push_shared("remove the VLAN gateway", move || {
                vlan_gateway::remove_unused(host, lock, configured)
            });
            let link = vlan_gateway::ensure(host, bridge, name, &validated.vlans)?;
            let change = AddressChange::plan(host, &link, gateways, self.force_address)?;
            change.iter().try_for_each(|change| change.refuse_answered(host, bridge))?;
            enable_ipv6(&link, gateways)?;
            // No undo step removes the addresses: the kernel removes them with the link, and other containers may already use
            // them.
            change.map_or(Ok(()), |change| change.make(host))?;
            return Ok(Some(link));
        }
        let change = AddressChange::plan(host, bridge, gateways, self.force_address)?;
        change.iter().try_for_each(|change| change.refuse_answered(host, bridge))?;
        enable_ipv6(bridge, gateways)?;
        if let Some(change) = change {
            let result = change.make(host);
            undo.push_shared("restore the addresses of the bridge", move || {
                let bridge = change.link.index;
                device::if_unused(host, lock, bridge, || change.revert(host))
            });
            result?;
        }
        Ok(None)
    }

    /// Lets the host and the link with the gateway addresses forward packets. For the end of ADD: it has no undo step.
    pub(super) fn enable_forwarding(
        &self,
        host: &Rtnl,
        link: &Link,
        gateways: &[IpNet],
    ) -> Result<()> {
        if self.internal {
            return Ok(());
        }
        forwarding::enable(host, gateways.iter().map(IpNet::addr))?;
        let has_v4 = gateways.iter().any(|net| net.addr().is_ipv4());
        if has_v4 { forwarding::enable_ipv4_on(host, link) } else { Ok(()) }
    }

    /// For STATUS: fails if the host cannot have a gateway address that the IPAM plugin may choose, or cannot forward packets.
    /// `bridge` is `None` if it does not exist yet.
    pub(super) fn check_gateway(
        &self,
        cx: &Context<'_>,
        bridge: Option<&Link>,
        vlan_gateway: Option<&IfName>,
    ) -> Result<()> {
        let expected = delegate::expected(cx)?.choices;
        let is_needed = self.is_gateway() && !expected.is_empty();
        let is_possible = || {
            host_link::check_accept_ra_settable()?;
            if !is_needed {
                return Ok(());
            }
            let host = cx.session.host()?;
            let link = match vlan_gateway {
                Some(name) => host.link(name)?,
                None => bridge.cloned(),
            };
            let nets =
                |choices: &Vec<Ip>| choices.iter().cloned().filter_map(gateway_net).collect();
            let expected: Vec<Vec<IpNet>> = expected.iter().map(nets).collect();
            let addresses: Vec<IpAddr> = expected.iter().flatten().map(IpNet::addr).collect();
            if addresses.iter().any(IpAddr::is_ipv6) {
                bridge.map_or(Ok(()), mtu::require_ipv6)?;
            }
            gateway::check_possible(link.as_ref(), &addresses)?;
            match link {
                Some(link) if !self.force_address => check_addresses(host, &link, &expected),
                _ => Ok(()),
            }
        };
        is_possible().map_err(Error::into_not_available)
    }

    /// For DEL and GC: removes every VLAN gateway without containers, in each VLAN, because the configuration may have had
    /// another VLAN at ADD.
    pub(super) fn remove_unused_gateways(&self, cx: &Context<'_>) -> Result<()> {
        let host = cx.session.host()?;
        // An invalid configuration names no VLAN gateway.
        let name = self.vlan_gateway(true).ok().flatten();
        let configured = name.as_deref().zip(u16::try_from(self.vlan).ok());
        let lock = cx.session.host_netns()?.lock_shared(LOCK_TIMEOUT)?;
        vlan_gateway::remove_unused(host, lock.as_ref(), configured)
    }

    /// Adds to the result of the IPAM plugin: the index of the interface, missing gateways, and default routes. Returns the
    /// gateway addresses with their prefix lengths.
    pub(super) fn complete_result(&self, success: &mut Success) -> Vec<IpNet> {
        let mut gateways = Vec::new();
        for ip in &mut success.ips {
            ip.interface = Some(CONTAINER);
            if !self.is_gateway() {
                continue;
            }
            let gateway = *ip.gateway.get_or_insert_with(|| first_host(ip.address));
            gateways.extend(gateway_net(ip.clone()).filter(|net| !gateways.contains(net)));
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

/// Enables IPv6 on a link that gets an IPv6 gateway address.
fn enable_ipv6(link: &Link, gateways: &[IpNet]) -> Result<()> {
    let has_v6 = gateways.iter().any(|net| net.addr().is_ipv6());
    if has_v6 { forwarding::enable_ipv6(link) } else { Ok(()) }
}

/// The gateway of an address, with the prefix length of the subnet. The default is the first address of the subnet.
fn gateway_net(ip: Ip) -> Option<IpNet> {
    let gateway = ip.gateway.unwrap_or_else(|| first_host(ip.address));
    IpNet::new(gateway, ip.address.prefix_len()).ok()
}

/// `expected` has the choices for each gateway address. Fails if all choices for one of the addresses conflict with another
/// address of the link.
fn check_addresses(host: &Rtnl, link: &Link, expected: &[Vec<IpNet>]) -> Result<()> {
    let present: Vec<IpNet> =
        host.addresses(link.index)?.iter().map(|address| address.net).collect();
    let gateways = expected.concat();
    for choices in expected {
        let mut errors = Vec::new();
        for net in choices.iter().filter(|net| !present.contains(net)) {
            let other = conflicting(&present, &gateways, &[*net]);
            errors.extend(other.first().map(|other| conflict_error(host, link, *other, *net)));
        }
        if errors.len() == choices.len()
            && let Some(error) = errors.into_iter().next()
        {
            return Err(error);
        }
    }
    Ok(())
}

/// The present addresses of a link that conflict with a missing gateway address.
fn conflicting(present: &[IpNet], gateways: &[IpNet], missing: &[IpNet]) -> Vec<IpNet> {
    let has_conflict = |other: &&IpNet| {
        !gateways.contains(other) && missing.iter().any(|net| conflicts(**other, *net))
    };
    present.iter().filter(has_conflict).copied().collect()
}

/// The error names `forceAddress` only where it does not cut the host off.
fn conflict_error(host: &Rtnl, link: &Link, other: IpNet, wanted: IpNet) -> Error {
    let name = &link.name;
    let is_uplink = uplinks::uplinks(host)
        .map_or(true, |uplinks| uplinks.iter().any(|uplink| uplink.index == link.index));
    let advice = match is_uplink {
        true => "through which the host reaches others: choose another bridge, or no isGateway",
        false => "which forceAddress replaces",
    };
    Error::internal(format_args!("{name:?} already has an IP address different from {wanted}"))
        .with_details(format_args!("it has {other}, {advice}"))
}

/// The default gateway address of a subnet.
fn first_host(net: IpNet) -> IpAddr {
    match net.network() {
        IpAddr::V4(network) => IpAddr::V4(u32::from(network).wrapping_add(1).into()),
        IpAddr::V6(network) => IpAddr::V6(u128::from(network).wrapping_add(1).into()),
    }
}

/// The changes that give a link the gateway addresses.
struct AddressChange {
    link: Link,
    missing: Vec<IpNet>,
    replaced: Vec<IpNet>,
}

impl AddressChange {
    /// Compares the addresses of the link with the gateway addresses. An address that conflicts is replaced if `force` is set;
    /// otherwise it is an error. `None` means that no change is needed.
    fn plan(host: &Rtnl, link: &Link, gateways: &[IpNet], force: bool) -> Result<Option<Self>> {
        if gateways.is_empty() {
            return Ok(None);
        }
        let mut present: Vec<IpNet> = Vec::new();
        for family in [IpFamily::V4, IpFamily::V6] {
            if gateways.iter().any(|net| family.has(net.addr())) {
                let addresses = host.addresses_of(link.index, family)?;
                present.extend(addresses.iter().map(|address| address.net));
            }
        }
        let missing: Vec<IpNet> =
            gateways.iter().filter(|net| !present.contains(net)).copied().collect();
        if missing.is_empty() {
            return Ok(None);
        }
        let replaced = conflicting(&present, gateways, &missing);
        if let (Some(other), false) = (replaced.first(), force) {
            return Err(conflict_error(host, link, *other, missing[0]));
        }
        Ok(Some(Self { link: link.clone(), missing, replaced }))
    }

    /// Fails if another machine answers for a missing address: the host would take its connections. Without a port that is up,
    /// nobody can answer.
    fn refuse_answered(&self, host: &Rtnl, bridge: &Link) -> Result<()> {
        let (index, name) = (self.link.index, &self.link.name);
        let Some(own) = self.link.mac.filter(|_| bridge.operstate_up) else { return Ok(()) };
        for address in self.missing.iter().map(IpNet::addr) {
            let asked = who_has::who_has(index, own, address);
            let asked =
                asked.map_err(sys::failed(format_args!("cannot ask for {address} on {name}")))?;
            let Answer::Has(mac) = asked else { continue };
            // A link of this host can be connected to the bridge.
            if host.links()?.iter().all(|link| link.mac != Some(mac)) {
                let msg = format!("cannot set gateway {address} on {name}: {mac} answers for it");
                let advice = "another machine is the gateway: the network needs no isGateway";
                return Err(Error::config(msg).with_details(advice));
            }
        }
        Ok(())
    }

    fn make(&self, host: &Rtnl) -> Result<()> {
        let mut batch = replace_addresses(&self.link, &self.replaced, &self.missing);
        // The MAC address of a bridge that another program made may change with its ports, until it is set.
        let change = LinkChange { mac: self.link.mac, ..LinkChange::default() };
        batch.change_link(self.link.index, &self.link.name, &change);
        host.commit(batch).map_err(|error| {
            let has_v6 = self.missing.iter().any(|net| net.addr().is_ipv6());
            if has_v6 { mtu::explain(error, host, self.link.index) } else { error }
        })
    }

    fn revert(&self, host: &Rtnl) -> Result<()> {
        host.commit(replace_addresses(&self.link, &self.missing, &self.replaced))
    }
}

fn replace_addresses(link: &Link, old: &[IpNet], new: &[IpNet]) -> Batch {
    let mut batch = Batch::new();
    for net in old {
        batch.del_address(link.index, &link.name, *net);
    }
    for net in new {
        // may_exist: another ADD may set the same address at the same time.
        let address =
            NewAddress { net: *net, no_dad: true, no_prefix_route: false, may_exist: true };
        batch.add_address(link.index, &link.name, &address);
    }
    batch
}

/// Whether a link cannot have both addresses. The rule is that of the reference: a link has one IPv4 subnet, and any number of
/// IPv6 subnets that do not overlap. Link-local addresses do not conflict, because each link has one.
fn conflicts(present: IpNet, wanted: IpNet) -> bool {
    match (present, wanted) {
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(a), IpNet::V6(_)) if a.addr().is_unicast_link_local() => false,
        (IpNet::V6(a), IpNet::V6(b)) => a.contains(&b.network()) || b.contains(&a.network()),
        _ => false,
    }
}

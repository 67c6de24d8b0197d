//! Sets the addresses and routes of a result on an interface in a container, and brings the interface up. The kernel removes
//! addresses and routes with the interface, except routes that reject packets.

use std::net::IpAddr;
use std::time::Duration;

use crate::cni::success::Success;
use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::kernel::sysctl;
use crate::names::{IpFamily, Mac};
use crate::netlink::rtnl::{Batch, LinkChange, NewAddress, Route, Rtnl};
use crate::steps::link::routes::Routes;
use crate::steps::link::{mtu, routing_tables};

/// The longest wait for duplicate address detection.
const DAD_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait for the routes to the IPv6 addresses of the interface.
const LOCAL_LIMIT: Duration = Duration::from_secs(1);

/// An interface in a container.
pub struct Interface<'a> {
    pub netns: &'a NetNs,
    /// An rtnetlink socket in `netns`.
    pub rtnl: &'a Rtnl,
    pub name: &'a str,
    pub index: u32,
}

/// Options of `apply`.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// Do the duplicate address detection of IPv6, and wait for its end.
    pub detect_duplicates: bool,
    pub announce: Announce,
    /// The alias of the interface.
    pub alias: Option<&'a str>,
    /// The neighbours whose MAC addresses are known.
    pub neighbours: &'a [(IpAddr, Mac)],
}

/// When the addresses are announced to neighbours. Without an announcement, a neighbour can send packets for the address to an
/// earlier interface for ten seconds.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Announce {
    #[default]
    Never,
    /// When the interface comes up.
    WhenUp,
    /// Later, by a call of `announce`: at the moment the interface comes up, frames are lost.
    Later,
}

/// Sets the addresses of the result, brings the interface up, and adds `routes`, in one datagram.
pub fn apply(
    interface: &Interface<'_>,
    success: &Success,
    routes: &Routes,
    options: Options<'_>,
) -> Result<()> {
    if has_family(success, IpFamily::V6) {
        interface.netns.run(|| {
            allow_ipv6(interface.name)?;
            if options.announce == Announce::WhenUp {
                announce_ipv6(interface.name)
            } else {
                Ok(())
            }
        })?;
    }
    let announces = |when| options.announce == when && has_family(success, IpFamily::V4);
    let mut batch = Batch::new();
    if announces(Announce::WhenUp) {
        let change = LinkChange { announce_ipv4: true, ..LinkChange::default() };
        batch.change_link(interface.index, interface.name, &change);
    }
    for ip in &success.ips {
        batch.add_address(
            interface.index,
            interface.name,
            &NewAddress {
                net: ip.address,
                no_dad: !options.detect_duplicates,
                no_prefix_route: routes.replace_prefixes,
                // The kernel can have added the address after a router advertisement.
                may_exist: ip.address.addr().is_ipv6(),
            },
        );
    }
    let up = LinkChange {
        up: Some(true),
        alias: options.alias,
        announce_ipv4: announces(Announce::Later),
        ..LinkChange::default()
    };
    batch.change_link(interface.index, interface.name, &up);
    routes.in_order().for_each(|route| batch.add_route(route));
    for neighbour in options.neighbours {
        batch.set_permanent_neighbour(interface.index, *neighbour);
    }
    interface.rtnl.commit(batch).map_err(|error| match has_family(success, IpFamily::V6) {
        true => mtu::explain(error, interface.rtnl, interface.index),
        false => error,
    })?;
    if options.detect_duplicates {
        interface.rtnl.wait_for_dad(interface.index, interface.name, DAD_LIMIT)?;
    }
    let v6 = success.ips.iter().map(|ip| ip.address.addr()).filter(IpAddr::is_ipv6);
    let v6: Vec<IpAddr> = v6.collect();
    if !v6.is_empty() {
        // A worker of the kernel adds the local routes. Until then the container drops packets to its addresses. On timeout, go
        // on: the routes appear later.
        interface.rtnl.wait_for_local(routing_tables::LOCAL, &v6, LOCAL_LIMIT)?;
    }
    Ok(())
}

/// Adds routes in one datagram.
pub fn add_routes(rtnl: &Rtnl, routes: &[Route]) -> Result<()> {
    let mut batch = Batch::new();
    routes.iter().for_each(|route| batch.add_route(route));
    rtnl.commit(batch)
}

/// Announces the addresses of an interface that is up and has this MAC address.
pub fn announce(interface: &Interface<'_>, success: &Success, mac: Mac) -> Result<()> {
    if success.ips.is_empty() {
        return Ok(());
    }
    if has_family(success, IpFamily::V6) {
        interface.netns.run(|| announce_ipv6(interface.name))?;
    }
    // The kernel announces IPv4 addresses when the MAC address is set, even to the same value.
    let same = LinkChange { mac: Some(mac), ..LinkChange::default() };
    interface.rtnl.change_link(interface.index, interface.name, &same)
}

fn has_family(success: &Success, family: IpFamily) -> bool {
    success.ips.iter().any(|ip| family.has(ip.address.addr()))
}

/// Enables IPv6. Must run in the container's namespace. On a kernel without IPv6, the later request for the address fails.
fn allow_ipv6(name: &str) -> Result<()> {
    set_ipv6("lo", "disable_ipv6", "0")?;
    set_ipv6(name, "disable_ipv6", "0")?;
    set_ipv6(name, "keep_addr_on_down", "1")
}

/// Sets ndisc_notify=1: the kernel announces IPv6 addresses. Must run in the container's namespace.
fn announce_ipv6(name: &str) -> Result<()> {
    set_ipv6(name, "ndisc_notify", "1")
}

fn set_ipv6(name: &str, key: &str, value: &str) -> Result<()> {
    sysctl::set_if_possible(&sysctl::of_link(IpFamily::V6, name, key), value)
}

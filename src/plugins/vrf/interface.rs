//! The interface that joins or leaves a VRF, and the addresses and routes that the kernel removes from it then.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::cni::success::{self, Success};
use crate::error::{Error, Result};
use crate::names::Attachment;
use crate::netlink::rtnl::{Address, Batch, Link, LinkChange, NewAddress, Route, Rtnl};
use crate::steps::link::routing_tables::{MAIN, RoutingTables, link_routes_first};
use crate::steps::link::{chained, verify};

/// The protocols of routes that are not saved: RTPROT_REDIRECT, RTPROT_KERNEL and RTPROT_RA (linux/rtnetlink.h). The kernel
/// restores these routes itself.
const KERNEL_PROTOCOLS: [u8; 3] = [1, 2, 9];

/// The routes and IPv6 addresses of an interface. The kernel removes them when the master changes. IPv4 addresses stay.
pub struct SavedRoutes {
    addresses: Vec<Address>,
    routes: Vec<Route>,
}

impl SavedRoutes {
    pub fn of(rtnl: &Rtnl, link: &Link, routing_tables: &RoutingTables) -> Result<Self> {
        let is_kept = |address: &Address| {
            address.net.addr().is_ipv6() && address.permanent && !address.dad_failed
        };
        let addresses = rtnl.addresses(link.index)?.into_iter().filter(is_kept).collect();
        let is_own = |route: &&Route| {
            let by_kernel =
                route.protocol.is_some_and(|protocol| KERNEL_PROTOCOLS.contains(&protocol));
            route.dev == Some(link.index) && !by_kernel
        };
        let routes = routing_tables.routes.iter().filter(is_own).cloned().collect();
        Ok(Self { addresses, routes })
    }

    /// Drops the routes of the VRF's table that another interface now has in the main table.
    pub fn without_conflicts(mut self, routing_tables: &RoutingTables, table: u32) -> Self {
        self.routes.retain(|own| {
            let has_conflict = |route: &Route| {
                route.table == Some(MAIN) && (route.dst, route.metric) == (own.dst, own.metric)
            };
            own.table != Some(table) || !routing_tables.routes.iter().any(has_conflict)
        });
        self
    }

    /// Adds the addresses and routes again. Routes of the table `from` go into the table `to`.
    pub fn restore(&self, batch: &mut Batch, link: &Link, from: u32, to: u32) {
        for address in &self.addresses {
            let new = NewAddress {
                net: address.net,
                no_dad: !address.tentative,
                no_prefix_route: address.no_prefix_route,
                // With net.ipv6.conf.*.keep_addr_on_down the addresses are still there.
                may_exist: true,
            };
            batch.add_address(link.index, &link.name, &new);
        }
        // The kernel refuses routes of a link that is down.
        for route in link_routes_first(&self.routes).filter(|_| link.up) {
            let table = route.table.map(|table| if table == from { to } else { table });
            batch.add_route(&Route { table, ..route.clone() });
        }
    }

    /// The IPv6 addresses without pending duplicate address detection, except link-local addresses.
    pub fn usable_v6(&self) -> Vec<IpAddr> {
        let usable =
            self.addresses.iter().filter(|address| !address.tentative && !address.scope_link);
        usable.map(|address| address.net.addr()).collect()
    }
}

/// Sets the master of a link. 0 means no master.
pub fn set_master(batch: &mut Batch, link: &Link, master: u32) {
    let change = LinkChange { master: Some(master), ..LinkChange::default() };
    batch.change_link(link.index, &link.name, &change);
}

/// Called after the timeout of `wait_for_local`: fails if the link has a carrier. Without a carrier the addresses cannot be
/// used in any case.
pub fn require_no_carrier(rtnl: &Rtnl, link: &Link, timeout: Duration) -> Result<()> {
    if rtnl.link_at(link.index)?.is_some_and(|link| link.operstate_up) {
        let (name, timeout_ms) = (&link.name, timeout.as_millis());
        return Err(Error::internal(format_args!(
            "cannot use the IPv6 addresses of {name} after {timeout_ms} ms"
        )));
    }
    Ok(())
}

/// For CHECK: fails if an address of the result is missing, or a route of the result in the VRF's table. Routes are not
/// compared if the interface is down, or if they belong to another interface of the result: ADD does not set them.
pub fn check(
    rtnl: &Rtnl,
    link: &Link,
    vrf: &Link,
    result: &Success,
    at: &Attachment,
) -> Result<()> {
    let nets: Vec<IpNet> = chained::ips(result, at).map(|ip| ip.address).collect();
    verify::has_addresses(rtnl, link, &nets)?;
    if !link.up {
        return Ok(());
    }
    let routing_tables = RoutingTables::read(rtnl)?;
    let table = vrf.vrf_table().unwrap_or_default();
    let is_moved =
        |route: &&success::Route| !route.kind.rejects() && !is_of_another(route, result, at);
    for route in result.routes.iter().filter(is_moved) {
        let table = route.table.filter(|table| ![0, MAIN].contains(table)).unwrap_or(table);
        let dst = route.dst.trunc();
        let is_route = |found: &Route| {
            (found.dev, found.table) == (Some(link.index), Some(table))
                && verify::is_equivalent(route, found)
        };
        if !routing_tables.routes.iter().any(is_route) {
            return Err(Error::difference(format_args!(
                "route to {dst} in table {table} not found in the container"
            )));
        }
    }
    Ok(())
}

/// Whether the gateway of a route is in the subnet of another interface of the result only.
fn is_of_another(route: &success::Route, result: &Success, at: &Attachment) -> bool {
    let Some(gateway) = route.gw else { return false };
    result.ips.iter().any(|ip| ip.address.contains(&gateway))
        && !chained::ips(result, at).any(|ip| ip.address.contains(&gateway))
}

//! CHECK: compares the routes of the tables with those that ADD made.

use ipnet::IpNet;

use super::plan::{default_routes, has_subnet, hint_of, is_copied, is_same};
use crate::cni::success::Ip;
use crate::error::{Error, Result};
use crate::netlink::rtnl::{Address, Link, Route};
use crate::steps::link::routing_tables::{MAIN, RoutingTables};

/// Fails if the table lacks the default route of the address, the route to its gateway, or its subnet route if the kernel made one.
pub fn table(
    routing_tables: &RoutingTables,
    table: u32,
    link: &Link,
    (ip, ips): (&Ip, &[Ip]),
    addresses: &[Address],
) -> Result<()> {
    for wanted in default_routes(ip, ips, link, table) {
        if !routing_tables.routes.iter().any(|route| is_same(route, &wanted)) {
            return Err(missing(wanted.dst, table));
        }
    }
    let has_route = |address: &Address| address.net == ip.address && !address.no_prefix_route;
    if has_subnet(ip) && addresses.iter().any(has_route) {
        find(routing_tables, table, link, ip.address.trunc())?;
    }
    Ok(())
}

/// Fails if the table lacks one of `routes` that ADD copies into it.
pub fn routes(
    routing_tables: &RoutingTables,
    table: u32,
    link: &Link,
    ips: &[Ip],
    ip: &Ip,
    routes: &[Route],
) -> Result<()> {
    let mut copied = routes.iter().filter(|route| is_copied(route, ip, ips));
    copied.try_for_each(|route| find(routing_tables, table, link, route.dst))
}

/// Fails if the main table lacks the subnet route of the address with a preferred source.
pub fn hint(routing_tables: &RoutingTables, link: &Link, ip: &Ip) -> Result<()> {
    match hint_of(routing_tables, link, ip) {
        None if has_subnet(ip) => Err(missing(ip.address.trunc(), MAIN)),
        _ => Ok(()),
    }
}

fn find(routing_tables: &RoutingTables, table: u32, link: &Link, dst: IpNet) -> Result<()> {
    let is_route =
        |route: &Route| (route.dst, route.dev, route.table) == (dst, Some(link.index), Some(table));
    if routing_tables.routes.iter().any(is_route) { Ok(()) } else { Err(missing(dst, table)) }
}

fn missing(dst: IpNet, table: u32) -> Error {
    Error::difference(format_args!("route to {dst} in table {table} not found in the container"))
}

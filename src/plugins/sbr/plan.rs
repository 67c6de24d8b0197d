//! Which rules and routes there are to be for the addresses of an interface, and whether they are there.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::cni::success::Ip;
use crate::error::{Error, Result};
use crate::kernel::rtnl::{Address, Batch, Link, Route, Rule};
use crate::steps::link::routing_tables::{MAIN, OF_KERNEL, RoutingTables, near_first};

/// RTPROT_*: by this number the rules say that they are ours, and that their table was chosen by us. Nobody else has it
/// (linux/rtnetlink.h, iproute2's rt_protos).
pub const PROTOCOL: u8 = 203;

/// RT_SCOPE_LINK (linux/rtnetlink.h).
const SCOPE_LINK: u8 = 253;
/// Where the reference begins to look for a table.
const FIRST_TABLE: u32 = 100;

/// What to change. What is there already is not in it.
#[derive(Default)]
pub struct Plan {
    rules: Vec<Rule>,
    /// For the tables that the rules lead to.
    routes: Vec<Route>,
    /// To be deleted from the main table.
    moved: Vec<Route>,
    /// For the main table instead.
    hints: Vec<Route>,
}

impl Plan {
    pub fn of_rules(routing_tables: &RoutingTables, ips: &[Ip], table: u32) -> Self {
        let sources = ips.iter().map(|ip| ip.address.addr());
        let missing =
            sources.filter(|source| rule_of(routing_tables, *source, Some(table)).is_none());
        Self { rules: missing.map(|source| rule(source, table, None)).collect(), ..Self::default() }
    }

    pub fn of_tables(
        routing_tables: &mut RoutingTables,
        link: &Link,
        ips: &[Ip],
        has_hints: bool,
    ) -> Self {
        let own = own_routes(routing_tables, link, ips);
        let mut plan = Self::default();
        for ip in ips {
            let source = ip.address.addr();
            let table = rule_of(routing_tables, source, None).map(|rule| rule.table);
            let table = table.unwrap_or_else(|| {
                let table = routing_tables.take(FIRST_TABLE);
                plan.rules.push(rule(source, table, Some(PROTOCOL)));
                table
            });
            let copies = own.iter().filter(|route| is_about(route, ip, ips)).cloned();
            plan.routes.extend(copies.map(|route| Route { table: Some(table), ..route }));
            plan.routes.extend(default_route(ip, link, table));
        }
        let stays = |route: &Route| is_link_local(route) || has_hints && is_on_link(route);
        plan.moved = own.into_iter().filter(|route| !stays(route)).collect();
        if has_hints {
            plan.add_hints(routing_tables, link, ips);
        }
        plan
    }

    /// The routes to the subnets in the main table, each with a source.
    fn add_hints(&mut self, routing_tables: &RoutingTables, link: &Link, ips: &[Ip]) {
        for ip in ips.iter().filter(|ip| has_subnet(ip)) {
            let dst = ip.address.trunc();
            if self.hints.iter().any(|hint| hint.dst == dst)
                || hint_of(routing_tables, link, ip).is_some()
            {
                continue;
            }
            // The kernel's own for IPv6 has no source.
            let is_it =
                |it: &&Route| it.table == Some(MAIN) && it.dev == Some(link.index) && it.dst == dst;
            let plain = routing_tables.routes.iter().find(|it| is_it(it) && is_on_link(it));
            self.moved.extend(plain.cloned());
            self.hints.push(Route {
                dev: Some(link.index),
                src: Some(ip.address.addr()),
                scope: Some(SCOPE_LINK).filter(|_| dst.addr().is_ipv4()),
                metric: plain.and_then(|route| route.metric),
                ..Route::to(dst)
            });
        }
    }

    /// First where packets may go, then the rules that send them there.
    pub fn forward(&self) -> Batch {
        let mut batch = Batch::new();
        near_first(&self.routes).for_each(|route| batch.add_route(route));
        self.rules.iter().for_each(|rule| batch.add_rule(rule));
        self.moved.iter().for_each(|route| batch.del_route(route));
        self.hints.iter().for_each(|route| batch.add_route(route));
        batch
    }

    pub fn backward(&self) -> Batch {
        let mut batch = Batch::new();
        self.hints.iter().for_each(|route| batch.del_route(route));
        near_first(&self.moved).for_each(|route| batch.add_route(route));
        self.rules.iter().for_each(|rule| batch.del_rule(rule));
        self.routes.iter().for_each(|route| batch.del_route(route));
        batch
    }
}

fn rule(source: IpAddr, table: u32, protocol: Option<u8>) -> Rule {
    Rule { source: Some(source), table, priority: None, protocol, is_for_vrfs: false }
}

/// The interface's routes in the main table, in the families of the addresses.
fn own_routes(routing_tables: &RoutingTables, link: &Link, ips: &[Ip]) -> Vec<Route> {
    let has_family = |route: &Route| {
        ips.iter().any(|ip| ip.address.addr().is_ipv4() == route.dst.addr().is_ipv4())
    };
    let is_own = |route: &&Route| {
        route.table == Some(MAIN) && route.dev == Some(link.index) && has_family(route)
    };
    routing_tables.routes.iter().filter(is_own).cloned().collect()
}

/// Whether a route is of use to what comes from the address: neither its source nor its gateway is another one's. The
/// address's own gateway takes the place of any other.
fn is_about(route: &Route, ip: &Ip, ips: &[Ip]) -> bool {
    let is_others = |address: IpAddr| {
        !ip.address.contains(&address) && ips.iter().any(|other| other.address.contains(&address))
    };
    route.dst.addr().is_ipv4() == ip.address.addr().is_ipv4()
        && ![route.src, route.via].into_iter().flatten().any(is_others)
        && !(route.dst.prefix_len() == 0 && ip.gateway.is_some())
}

fn default_route(ip: &Ip, link: &Link, table: u32) -> Option<Route> {
    let gateway = ip.gateway?;
    let everything: IpNet = match ip.address {
        IpNet::V4(_) => Ipv4Net::default().into(),
        IpNet::V6(_) => Ipv6Net::default().into(),
    };
    let dev = Some(link.index);
    Some(Route { via: Some(gateway), dev, table: Some(table), ..Route::to(everything) })
}

fn is_link_local(route: &Route) -> bool {
    matches!(route.dst.addr(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn is_on_link(route: &Route) -> bool {
    // In IPv6 there are no scopes.
    route.via.is_none() && (!route.dst.addr().is_ipv4() || route.scope == Some(SCOPE_LINK))
}

fn has_subnet(ip: &Ip) -> bool {
    ip.address.prefix_len() < ip.address.max_prefix_len()
}

fn hint_of<'a>(routing_tables: &'a RoutingTables, link: &Link, ip: &Ip) -> Option<&'a Route> {
    routing_tables.routes.iter().find(|route| {
        (route.table, route.dev) == (Some(MAIN), Some(link.index))
            && route.dst == ip.address.trunc()
            && is_on_link(route)
            && route.src.is_some()
    })
}

/// The rule of an address that leads to this table, or to any but the kernel's.
pub fn rule_of(
    routing_tables: &RoutingTables,
    source: IpAddr,
    table: Option<u32>,
) -> Option<&Rule> {
    let leads_there = |rule: &&Rule| match table {
        Some(table) => rule.table == table,
        None => !OF_KERNEL.contains(&rule.table),
    };
    routing_tables.rules.iter().filter(leads_there).find(|rule| rule.source == Some(source))
}

/// The address's default route and, where the kernel has made one, the route to its subnet.
pub fn check_table(
    routing_tables: &RoutingTables,
    table: u32,
    link: &Link,
    ip: &Ip,
    addresses: &[Address],
) -> Result<()> {
    if let Some(wanted) = default_route(ip, link, table) {
        let is_it = |it: &Route| {
            (it.dst, it.via, it.dev, it.table) == (wanted.dst, wanted.via, wanted.dev, wanted.table)
        };
        if !routing_tables.routes.iter().any(is_it) {
            return Err(missing(wanted.dst, table));
        }
    }
    let has_route = |it: &Address| it.net == ip.address && !it.no_prefix_route;
    if has_subnet(ip) && addresses.iter().any(has_route) {
        find(routing_tables, table, link, ip.address.trunc())?;
    }
    Ok(())
}

/// Those of the routes that are of use to the address.
pub fn check_routes(
    routing_tables: &RoutingTables,
    table: u32,
    link: &Link,
    ips: &[Ip],
    ip: &Ip,
    routes: &[Route],
) -> Result<()> {
    let mut of_use = routes.iter().filter(|route| is_about(route, ip, ips));
    of_use.try_for_each(|route| find(routing_tables, table, link, route.dst))
}

pub fn check_hint(routing_tables: &RoutingTables, link: &Link, ip: &Ip) -> Result<()> {
    match hint_of(routing_tables, link, ip) {
        None if has_subnet(ip) => Err(missing(ip.address.trunc(), MAIN)),
        _ => Ok(()),
    }
}

fn find(routing_tables: &RoutingTables, table: u32, link: &Link, dst: IpNet) -> Result<()> {
    let is_it = |it: &Route| (it.dst, it.dev, it.table) == (dst, Some(link.index), Some(table));
    if routing_tables.routes.iter().any(is_it) { Ok(()) } else { Err(missing(dst, table)) }
}

fn missing(dst: IpNet, table: u32) -> Error {
    Error::internal(format!("route to {dst} in table {table} not found in the container"))
}

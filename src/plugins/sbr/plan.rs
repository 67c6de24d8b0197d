//! The rules and routes that ADD makes for the addresses of an interface.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::success::{self, Ip};
use crate::names::IpFamily;
use crate::netlink::rtnl::{Batch, Link, Route, Rule};
use crate::steps::link::routes;
use crate::steps::link::routing_tables::{
    KERNEL_TABLES, MAIN, RoutingTables, SCOPE_LINK, link_routes_first,
};

/// The routing protocol number (RTPROT_*) of rules with a table that this plugin chose. It is unused in
/// linux/rtnetlink.h and in iproute2's rt_protos.
pub const PROTOCOL: u8 = 203;

/// The first table in the search for an unused table. The reference begins its search at the same table.
const FIRST_TABLE: u32 = 100;

/// The changes that ADD makes. Rules, routes and hints that exist are not part of the plan.
#[derive(Default)]
pub struct Plan {
    rules: Vec<Rule>,
    /// The routes that are added to the tables of the rules.
    routes: Vec<Route>,
    /// The routes that are deleted from the main table.
    moved: Vec<Route>,
    /// The subnet routes with a preferred source that are added to the main table.
    hints: Vec<Route>,
}

impl Plan {
    /// The plan for a configured table: rules only.
    pub fn with_rules(routing_tables: &RoutingTables, ips: &[Ip], table: u32) -> Self {
        let sources = ips.iter().map(|ip| ip.address.addr());
        let missing =
            sources.filter(|source| rule_of(routing_tables, *source, Some(table)).is_none());
        Self { rules: missing.map(|source| rule(source, table, None)).collect(), ..Self::default() }
    }

    /// The plan without a configured table: a new table for each address without a rule, with its routes.
    pub fn with_tables(
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
                let table = routing_tables.reserve(FIRST_TABLE);
                plan.rules.push(rule(source, table, Some(PROTOCOL)));
                table
            });
            let copies = own.iter().filter(|route| is_copied(route, ip, ips)).cloned();
            let copies = copies.map(|route| Route { table: Some(table), ..route });
            for route in copies.chain(default_routes(ip, ips, link, table)) {
                let mut present = routing_tables.routes.iter().chain(&plan.routes);
                if !present.any(|other| is_same(other, &route)) {
                    plan.routes.push(route);
                }
            }
        }
        let stays = |route: &Route| {
            route.table != Some(MAIN)
                || is_link_local(route.dst.addr())
                || has_hints && is_on_link(route)
        };
        plan.moved = own.into_iter().filter(|route| !stays(route)).collect();
        if has_hints {
            plan.add_hints(routing_tables, link, ips);
        }
        plan
    }

    /// Adds a subnet route with a preferred source for each address.
    fn add_hints(&mut self, routing_tables: &RoutingTables, link: &Link, ips: &[Ip]) {
        for ip in ips.iter().filter(|ip| has_subnet(ip)) {
            let dst = ip.address.trunc();
            if self.hints.iter().any(|hint| hint.dst == dst)
                || hint_of(routing_tables, link, ip).is_some()
            {
                continue;
            }
            // The kernel's IPv6 subnet route has no preferred source.
            let is_route = |route: &&Route| {
                route.table == Some(MAIN) && route.dev == Some(link.index) && route.dst == dst
            };
            let plain =
                routing_tables.routes.iter().find(|route| is_route(route) && is_on_link(route));
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

    /// The requests that make the changes. The routes come before the rules, so that every packet has a route.
    pub fn apply(&self) -> Batch {
        let mut batch = Batch::new();
        link_routes_first(&self.routes).for_each(|route| batch.add_route(route));
        self.rules.iter().for_each(|rule| batch.add_rule(rule));
        self.moved.iter().for_each(|route| batch.del_route(route));
        self.hints.iter().for_each(|route| batch.add_route(route));
        batch
    }

    /// The requests that revert the changes.
    pub fn revert(&self) -> Batch {
        let mut batch = Batch::new();
        self.hints.iter().for_each(|route| batch.del_route(route));
        link_routes_first(&self.moved).for_each(|route| batch.add_route(route));
        self.rules.iter().for_each(|rule| batch.del_rule(rule));
        self.routes.iter().for_each(|route| batch.del_route(route));
        batch
    }
}

/// Whether two routes have the same destination, next hop and table.
pub fn is_same(one: &Route, other: &Route) -> bool {
    let key = |route: &Route| (route.dst, route.via, route.dev, route.table);
    key(one) == key(other)
}

fn rule(source: IpAddr, table: u32, protocol: Option<u8>) -> Rule {
    Rule { source: Some(source), table, priority: None, protocol, is_for_vrfs: false }
}

/// The rules of addresses whose table an earlier ADD filled, and to which no rule leads any more. The tables of `routes`, those of the
/// result, are not of an ADD of this plugin.
pub fn lost_rules(
    mut routing_tables: RoutingTables,
    link: &Link,
    ips: &[Ip],
    routes: &[success::Route],
) -> Vec<Rule> {
    let mut lost = Vec::new();
    for ip in ips {
        let source = ip.address.addr();
        if rule_of(&routing_tables, source, None).is_some() {
            continue;
        }
        let everything = IpFamily::of(source).everything();
        let dst = if ip.gateway.is_some() { everything } else { ip.address.trunc() };
        let is_led_to = |table: u32| routing_tables.rules.iter().any(|rule| rule.table == table);
        let is_of_result = |table: u32| routes.iter().any(|route| route.table == Some(table));
        let is_of = |route: &&Route| {
            (route.dev, route.dst, route.via) == (Some(link.index), dst, ip.gateway)
        };
        let mut tables = routing_tables.routes.iter().filter(is_of).filter_map(|route| route.table);
        let table = tables.find(|table| {
            !KERNEL_TABLES.contains(table) && !is_led_to(*table) && !is_of_result(*table)
        });
        if let Some(table) = table {
            let rule = rule(source, table, Some(PROTOCOL));
            routing_tables.rules.push(rule.clone());
            lost.push(rule);
        }
    }
    lost
}

/// The interface's routes in the main table, in the families of the addresses. An earlier ADD moved some to the tables of its
/// addresses: those come after the others.
fn own_routes(routing_tables: &RoutingTables, link: &Link, ips: &[Ip]) -> Vec<Route> {
    let has_family = |route: &Route| {
        ips.iter().any(|ip| ip.address.addr().is_ipv4() == route.dst.addr().is_ipv4())
    };
    let rules = ips.iter().filter_map(|ip| rule_of(routing_tables, ip.address.addr(), None));
    let earlier: Vec<u32> = rules.map(|rule| rule.table).collect();
    let is_of = |route: &&Route| route.dev == Some(link.index) && has_family(route);
    let of_link = routing_tables.routes.iter().filter(is_of);
    let in_main = of_link.clone().filter(|route| route.table == Some(MAIN));
    let moved = of_link.filter(|route| route.table.is_some_and(|table| earlier.contains(&table)));
    in_main.chain(moved).cloned().collect()
}

/// Whether the table of an address gets a copy of the route: if neither the preferred source nor the gateway of the route is in
/// the subnet of another address. A default route is not copied if the address has a gateway, because the table
/// gets a default route via that gateway.
pub fn is_copied(route: &Route, ip: &Ip, ips: &[Ip]) -> bool {
    let is_of_another = |address: IpAddr| {
        !ip.address.contains(&address) && ips.iter().any(|other| other.address.contains(&address))
    };
    route.dst.addr().is_ipv4() == ip.address.addr().is_ipv4()
        && ![route.src, route.via].into_iter().flatten().any(is_of_another)
        && !(route.dst.prefix_len() == 0 && ip.gateway.is_some())
}

/// The default route via the gateway of the address, after the route to the gateway, if the gateway is in no subnet.
pub fn default_routes(ip: &Ip, ips: &[Ip], link: &Link, table: u32) -> Vec<Route> {
    let everything = IpFamily::of(ip.address.addr()).everything();
    let (dev, table) = (Some(link.index), Some(table));
    let via = |via| Route { via: Some(via), dev, table, ..Route::to(everything) };
    let default: Vec<Route> = ip.gateway.map(via).into_iter().collect();
    let subnets: Vec<IpNet> = ips.iter().map(|ip| ip.address).collect();
    [routes::to_gateways(&default, &subnets), default].concat()
}

/// Whether the address is an IPv6 link-local address, which the kernel itself sets on an interface.
pub fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn is_on_link(route: &Route) -> bool {
    // IPv6 routes have no scope.
    route.via.is_none() && (!route.dst.addr().is_ipv4() || route.scope == Some(SCOPE_LINK))
}

pub fn has_subnet(ip: &Ip) -> bool {
    ip.address.prefix_len() < ip.address.max_prefix_len()
}

pub fn hint_of<'a>(routing_tables: &'a RoutingTables, link: &Link, ip: &Ip) -> Option<&'a Route> {
    routing_tables.routes.iter().find(|route| {
        (route.table, route.dev) == (Some(MAIN), Some(link.index))
            && route.dst == ip.address.trunc()
            && is_on_link(route)
            && route.src.is_some()
    })
}

/// The rule of an address that leads to `table`, or if `table` is `None`, to any table except those of the kernel.
pub fn rule_of(
    routing_tables: &RoutingTables,
    source: IpAddr,
    table: Option<u32>,
) -> Option<&Rule> {
    let is_lookup = |rule: &&Rule| match table {
        Some(table) => rule.table == table,
        None => !KERNEL_TABLES.contains(&rule.table),
    };
    routing_tables.rules.iter().filter(is_lookup).find(|rule| rule.source == Some(source))
}

//! Changes the routing rules of an address in the container, as `sbr` makes them, to the new address, with the routes of
//! their tables. The kernel deletes these routes with the last address of a link.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::dhcp::journal::LeaseRecord;
use crate::error::Result;
use crate::netlink::rtnl::{Batch, Route, Rtnl, Rule};
use crate::steps::link::routing_tables::{
    KERNEL_TABLES, MAIN, RoutingTables, SCOPE_LINK, link_routes_first,
};

/// The rules and routes to change.
#[derive(Default)]
pub struct SourceRouting {
    old: Vec<Rule>,
    new: Vec<Rule>,
    routes: Vec<Route>,
    /// The routes of the link are in a separate table, not in the main table.
    pub has_table: bool,
    /// The main table has the subnet route of a former address, as with `addSourceHints`.
    has_subnet: bool,
}

impl SourceRouting {
    /// Reads the rules of former addresses, and computes the rules and the routes of the current ones. `index` is that of the
    /// link.
    pub fn read(
        rtnl: &Rtnl,
        record: &LeaseRecord,
        index: u32,
        lease_routes: &[Route],
    ) -> Result<Self> {
        let (v4, v6) = (record.leases.v4_net(), record.leases.v6_net());
        let new = |from: IpAddr| if from.is_ipv4() { v4 } else { v6 };
        let moves: Vec<(IpAddr, IpNet)> = record
            .former_nets()
            .filter_map(|net| Some((net.addr(), new(net.addr())?)))
            .filter(|(from, to)| *from != to.addr())
            .collect();
        let mut changes = Self::default();
        if moves.is_empty() {
            return Ok(changes);
        }
        let RoutingTables { rules, routes, .. } = RoutingTables::read(rtnl)?;
        let is_subnet = |route: &Route| {
            let is_main = (route.table, route.dev) == (Some(MAIN), Some(index));
            is_main && moves.iter().any(|(from, _)| route.src == Some(*from))
        };
        changes.has_subnet = routes.iter().any(is_subnet);
        for rule in &rules {
            // An interrupted attempt can have changed the rule already.
            let is_of = |(from, to): &&(IpAddr, IpNet)| {
                rule.source == Some(*from) || rule.source == Some(to.addr())
            };
            let Some((_, to)) = moves.iter().find(is_of) else { continue };
            if to.addr().is_ipv4() && !KERNEL_TABLES.contains(&rule.table) {
                changes.has_table = true;
                let table = Some(rule.table);
                changes.routes.push(Route {
                    dev: Some(index),
                    src: Some(to.addr()),
                    scope: Some(SCOPE_LINK),
                    table,
                    ..Route::to(to.trunc())
                });
                changes
                    .routes
                    .extend(lease_routes.iter().map(|route| Route { table, ..route.clone() }));
            }
            let new = Rule { source: Some(to.addr()), ..rule.clone() };
            if new == *rule {
                continue;
            }
            changes.old.push(rule.clone());
            let is_there = |other: &Rule| (other.source, other.table) == (new.source, new.table);
            if !rules.iter().chain(&changes.new).any(is_there) {
                changes.new.push(new);
            }
        }
        Ok(changes)
    }

    /// Whether the kernel must not add the subnet route to the main table.
    pub fn hides_subnet(&self) -> bool {
        self.has_table && !self.has_subnet
    }

    /// Adds the changes to a batch. The batch must already have the changes of the addresses.
    pub fn put(&self, batch: &mut Batch) {
        link_routes_first(&self.routes).for_each(|route| batch.add_route(route));
        self.old.iter().for_each(|rule| batch.del_rule(rule));
        self.new.iter().for_each(|rule| batch.add_rule(rule));
    }
}

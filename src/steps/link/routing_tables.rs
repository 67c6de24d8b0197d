//! Routing tables that nobody uses, for plugins that need one of their own.

use std::time::Duration;

use crate::error::Result;
use crate::kernel::netns::{Lock, NetNs};
use crate::kernel::rtnl::{Link, NextHop, Route, Rtnl, Rule};
use crate::names::IpFamily;

/// RT_TABLE_MAIN (linux/rtnetlink.h).
pub const MAIN: u32 = 254;
/// RT_TABLE_DEFAULT, RT_TABLE_MAIN and RT_TABLE_LOCAL (linux/rtnetlink.h).
pub const OF_KERNEL: std::ops::RangeInclusive<u32> = 253..=255;

/// How long a plugin waits for another one that chooses a table in the same namespace.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// What there is of rules and routes in a namespace, and which tables are taken by it.
pub struct RoutingTables {
    pub rules: Vec<Rule>,
    pub routes: Vec<Route>,
    taken: Vec<u32>,
}

/// Keeps others, the reference's `sbr` among them, from choosing a table in the namespace. Whoever is kept waiting for too
/// long goes on without: any process in the container could hold this lock.
pub fn lock(netns: &NetNs) -> Result<Option<Lock>> {
    netns.lock_exclusive(LOCK_LIMIT)
}

impl RoutingTables {
    /// Of both families, although their tables are different ones: a person who looks at them would be misled.
    pub fn read(rtnl: &Rtnl) -> Result<Self> {
        let (mut rules, mut routes) = (Vec::new(), Vec::new());
        for family in IpFamily::ALL {
            rules.extend(rtnl.rules(family)?);
            routes.extend(rtnl.routes(family)?.into_iter().flat_map(single));
        }
        let vrfs = rtnl.links_of_kind("vrf")?;
        let taken = rules.iter().map(|rule| rule.table);
        let taken = taken.chain(routes.iter().filter_map(|route: &Route| route.table));
        let taken = taken.chain(vrfs.iter().filter_map(Link::vrf_table)).collect();
        Ok(Self { rules, routes, taken })
    }

    /// The first table from a number on that nobody uses; from then on it is taken.
    pub fn take(&mut self, first: u32) -> u32 {
        let is_free = |table: &u32| !OF_KERNEL.contains(table) && !self.taken.contains(table);
        let table = (first..=u32::MAX).find(is_free).unwrap_or(u32::MAX);
        self.taken.push(table);
        table
    }
}

/// The kernel shows routes of IPv6 that differ only in their gateways as one with several ways, but each can be added and
/// deleted by itself. Those of IPv4 are one.
fn single(route: Route) -> Vec<Route> {
    if route.nexthops.is_empty() || route.dst.addr().is_ipv4() {
        return vec![route];
    }
    let alone = |hop: &NextHop| Route {
        via: hop.via,
        dev: Some(hop.dev),
        nexthops: Vec::new(),
        ..route.clone()
    };
    route.nexthops.iter().map(alone).collect()
}

/// Those without a gateway come first: the kernel asks whether there is a way to it.
pub fn near_first(routes: &[Route]) -> impl Iterator<Item = &Route> {
    let with = |has_gateway| routes.iter().filter(move |it| it.via.is_some() == has_gateway);
    with(false).chain(with(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_of_ipv6_are_routes_of_their_own() {
        let hop = |dev| NextHop { via: Some("fe80::1".parse().unwrap()), dev };
        let route = |dst: &str| {
            let nexthops = vec![hop(2), hop(3)];
            Route { nexthops, table: Some(7), ..Route::to(dst.parse().unwrap()) }
        };
        let ways = single(route("fd00::/64"));
        let found: Vec<_> = ways.iter().map(|way| (way.via, way.dev, way.table)).collect();
        assert_eq!(found, [2, 3].map(|dev| (hop(0).via, Some(dev), Some(7))));
        assert!(ways.iter().all(|way| way.nexthops.is_empty()));
        assert_eq!(single(route("10.1.0.0/24")), [route("10.1.0.0/24")]);
    }

    #[test]
    fn tables_of_others_and_of_the_kernel_are_left_out() {
        let taken = vec![100, 102, 252];
        let mut routing_tables = RoutingTables { rules: Vec::new(), routes: Vec::new(), taken };
        assert_eq!([(); 3].map(|()| routing_tables.take(100)), [101, 103, 104]);
        assert_eq!([(); 2].map(|()| routing_tables.take(252)), [256, 257]);
    }
}

//! Finds unused routing tables, for plugins that need one.

use std::time::Duration;

use crate::error::Result;
use crate::kernel::netns::{Lock, NetNs};
use crate::names::IpFamily;
use crate::netlink::rtnl::{Link, NextHop, RT_TABLE_MAIN, Route, Rtnl, Rule};

pub const MAIN: u32 = RT_TABLE_MAIN;
/// RT_TABLE_LOCAL (linux/rtnetlink.h): the routing table in which the kernel lists the local addresses.
pub const LOCAL: u32 = 255;
/// RT_SCOPE_LINK (linux/rtnetlink.h): the destination is on the link.
pub const SCOPE_LINK: u8 = 253;
/// The tables that the kernel defines: RT_TABLE_DEFAULT, RT_TABLE_MAIN and RT_TABLE_LOCAL (linux/rtnetlink.h).
pub const KERNEL_TABLES: std::ops::RangeInclusive<u32> = 253..=LOCAL;

/// The longest wait for another process that chooses a table in the same namespace.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// The rules and routes of a namespace, and the tables that they and the VRFs use.
pub struct RoutingTables {
    pub rules: Vec<Rule>,
    pub routes: Vec<Route>,
    used: Vec<u32>,
}

/// Locks the namespace while a plugin chooses a table. The reference's `sbr` uses the same lock. After the timeout the plugin
/// goes on without the lock, because any process in the container can hold it.
pub fn lock(netns: &NetNs) -> Result<Option<Lock>> {
    netns.lock_exclusive(LOCK_LIMIT)
}

impl RoutingTables {
    /// Reads both families. IPv4 and IPv6 have separate tables, but a number that only one family uses would be misleading.
    pub fn read(rtnl: &Rtnl) -> Result<Self> {
        let (mut rules, mut routes) = (Vec::new(), Vec::new());
        for family in IpFamily::ALL {
            rules.extend(rtnl.rules(family)?);
            routes.extend(rtnl.routes(family)?.into_iter().flat_map(split_ipv6));
        }
        let vrfs = rtnl.links_of_kind("vrf")?;
        let used = rules.iter().map(|rule| rule.table);
        let used = used.chain(routes.iter().filter_map(|route: &Route| route.table));
        let used = used.chain(vrfs.iter().filter_map(Link::vrf_table)).collect();
        Ok(Self { rules, routes, used })
    }

    /// Returns the first unused table from a number on, and marks it as used.
    pub fn reserve(&mut self, first: u32) -> u32 {
        let is_free = |table: &u32| !KERNEL_TABLES.contains(table) && !self.used.contains(table);
        let table = (first..=u32::MAX).find(is_free).unwrap_or(u32::MAX);
        self.used.push(table);
        table
    }
}

/// Splits an IPv6 multipath route into one route per next hop, because the kernel adds and deletes these separately. An IPv4
/// multipath route is one route.
fn split_ipv6(route: Route) -> Vec<Route> {
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

/// Returns the routes in an order in which they can be added: those without a gateway first, because the kernel refuses a
/// route with an unreachable gateway.
pub fn link_routes_first<'a>(
    routes: impl IntoIterator<Item = &'a Route, IntoIter: Clone>,
) -> impl Iterator<Item = &'a Route> {
    let routes = routes.into_iter();
    let with = |has_gateway| {
        routes.clone().filter(move |route: &&Route| route.via.is_some() == has_gateway)
    };
    with(false).chain(with(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_multipath_route_is_split() {
        let hop = |dev| NextHop { via: Some("fe80::1".parse().unwrap()), dev };
        let route = |dst: &str| {
            let nexthops = vec![hop(2), hop(3)];
            Route { nexthops, table: Some(7), ..Route::to(dst.parse().unwrap()) }
        };
        let split = split_ipv6(route("fd00::/64"));
        let found: Vec<_> = split.iter().map(|route| (route.via, route.dev, route.table)).collect();
        assert_eq!(found, [2, 3].map(|dev| (hop(0).via, Some(dev), Some(7))));
        assert!(split.iter().all(|route| route.nexthops.is_empty()));
        assert_eq!(split_ipv6(route("10.1.0.0/24")), [route("10.1.0.0/24")]);
    }

    #[test]
    fn used_tables_and_those_of_the_kernel_are_skipped() {
        let used = vec![100, 102, 252];
        let mut routing_tables = RoutingTables { rules: Vec::new(), routes: Vec::new(), used };
        assert_eq!([(); 3].map(|()| routing_tables.reserve(100)), [101, 103, 104]);
        assert_eq!([(); 2].map(|()| routing_tables.reserve(252)), [256, 257]);
    }
}

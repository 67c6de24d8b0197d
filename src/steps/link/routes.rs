//! The routes of an interface in a container: those of the result, and those to its gateways.
//!
//! The kernel refuses a route via a gateway that it cannot reach on the link. Hosters give a container the address
//! 198.51.100.7/32 and the gateway 203.0.113.1, so such a gateway gets a route of its own.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::success::{self, Success};
use crate::error::Result;
use crate::names::{Attachment, IpFamily};
use crate::netlink::rtnl::{Batch, Link, Route, Rtnl};
use crate::plugin::Context;
use crate::steps::link::routing_tables::{MAIN, SCOPE_LINK, link_routes_first};
use crate::steps::undo::Undo;

/// RT_SCOPE_UNIVERSE (linux/rtnetlink.h): destinations behind a gateway.
const SCOPE_UNIVERSE: u8 = 0;
/// The metric of an IPv6 route that is added without one: IP6_RT_PRIO_USER (linux/ipv6_route.h).
const USER_METRIC: u32 = 1024;
/// The index of the loopback interface in each network namespace (LOOPBACK_IFINDEX, net/net_namespace.h).
const LO: u32 = 1;

/// The routes that ADD makes for an interface.
pub struct Routes {
    /// Those that the result does not list.
    pub implied: Vec<Route>,
    /// Those of the result, in its order.
    pub listed: Vec<Route>,
    /// The kernel adds no routes to the prefixes of the addresses: `implied` has others.
    pub replace_prefixes: bool,
}

impl Routes {
    /// For an interface whose prefixes are on the link.
    pub fn on_link(success: &Success, index: u32) -> Self {
        let listed = listed(success, index);
        let implied = to_gateways(&listed, &success.nets());
        Self { implied, listed, replace_prefixes: false }
    }

    /// For an interface that reaches each prefix via its gateway: `GW dev IF scope link src IP` and `NET/len via GW src IP` replace
    /// the kernel's routes to the prefixes. Several addresses of one prefix share these routes.
    pub fn via_gateways(success: &Success, index: u32) -> Self {
        let mut listed = listed(success, index);
        // The kernel refuses a route via an address behind a gateway unless the route is `onlink`.
        let is_behind_gateway = |via: IpAddr| {
            success.ips.iter().any(|ip| ip.address.contains(&via))
                && success.ips.iter().all(|ip| ip.gateway != Some(via))
        };
        listed.iter_mut().for_each(|route| route.onlink = route.via.is_some_and(is_behind_gateway));
        let mut implied = to_prefixes(success, index);
        let all = [implied.as_slice(), &listed].concat();
        implied.extend(to_gateways(&all, &[]));
        Self { implied, listed, replace_prefixes: true }
    }

    /// All routes, in an order in which the kernel accepts them.
    pub fn in_order(&self) -> impl Iterator<Item = &Route> {
        link_routes_first(self.implied.iter().chain(&self.listed))
    }
}

/// The routes on the link to the gateways of `routes` that are neither in `prefixes`, those of the addresses, nor in a destination
/// on the link. A link-local IPv6 gateway is always on the link.
pub fn to_gateways(routes: &[Route], prefixes: &[IpNet]) -> Vec<Route> {
    let mut missing: Vec<Route> = Vec::new();
    for route in routes.iter().filter(|route| !route.onlink) {
        let Some(via) = route.via else { continue };
        let is_link_local = matches!(via, IpAddr::V6(via) if via.is_unicast_link_local());
        let table = |route: &Route| route.table.unwrap_or(MAIN);
        // The kernel looks for the gateway in the table of the route first, then in the main table.
        let leads_to_gateway = |other: &Route| {
            other.via.is_none()
                && !other.kind.rejects()
                && other.dst.contains(&via)
                && [table(route), MAIN].contains(&table(other))
        };
        if is_link_local
            || prefixes.iter().any(|net| net.contains(&via))
            || routes.iter().chain(&missing).any(leads_to_gateway)
        {
            continue;
        }
        let Route { dev, metric, table, .. } = *route;
        let scope = via.is_ipv4().then_some(SCOPE_LINK);
        missing.push(Route { dev, metric, table, scope, ..Route::to(via.into()) });
    }
    missing
}

/// The routes of the result. A route without a gateway gets the first gateway of its family, unless its scope puts its
/// destination on the link, or its destination is this gateway. A route that rejects packets has neither gateway nor link.
fn listed(success: &Success, index: u32) -> Vec<Route> {
    let kernel_route = |route: &success::Route| {
        let dst = route.dst.trunc();
        let is_beyond_link = route.scope.is_none_or(|scope| scope == SCOPE_UNIVERSE);
        let default = default_gateway(success, IpFamily::of(dst.addr()));
        let default = default.filter(|gateway| is_beyond_link && IpNet::from(*gateway) != dst);
        // As the reference does, `dhcp` writes the gateway 0.0.0.0 into a route without a gateway.
        let rejects = route.kind.rejects();
        let via = route.gw.or(default).filter(|via| !via.is_unspecified() && !rejects);
        // The kernel does not use an IPv4 route of another scope to reach a gateway.
        let on_link = (via.is_none() && dst.addr().is_ipv4() && !rejects).then_some(SCOPE_LINK);
        Route {
            kind: route.kind,
            via,
            dev: Some(index).filter(|_| !rejects),
            metric: non_zero(route.priority),
            table: route.table,
            scope: route.scope.or(on_link),
            mtu: non_zero(route.mtu),
            advmss: non_zero(route.advmss),
            ..Route::to(dst)
        }
    };
    success.routes.iter().map(kernel_route).collect()
}

/// The routes that replace the kernel's routes to the prefixes.
fn to_prefixes(success: &Success, index: u32) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    for ip in &success.ips {
        let (address, Some(gateway)) = (ip.address, ip.gateway) else { continue };
        let src = Some(address.addr());
        let to_gateway = Route {
            dev: Some(index),
            src,
            scope: Some(SCOPE_LINK),
            ..Route::to(IpNet::from(gateway))
        };
        let to_prefix =
            Route { dev: Some(index), src, via: Some(gateway), ..Route::to(address.trunc()) };
        for route in [to_gateway, to_prefix] {
            let is_self = route.dst == IpNet::from(address.addr());
            if !is_self && !routes.iter().any(|known| known.dst == route.dst) {
                routes.push(route);
            }
        }
    }
    routes
}

/// The routes of a result that reject packets, to remove them: the kernel does not remove them with the interface.
fn rejecting_routes(success: &Success) -> Vec<Route> {
    let route = |route: &success::Route| {
        // Without its metric and link, the kernel would also take an IPv6 route of another type to this destination.
        let is_v6 = route.dst.addr().is_ipv6();
        Route {
            kind: route.kind,
            metric: non_zero(route.priority).or_else(|| is_v6.then_some(USER_METRIC)),
            table: route.table,
            scope: route.scope,
            dev: is_v6.then_some(LO),
            ..Route::to(route.dst.trunc())
        }
    };
    success.routes.iter().filter(|route| route.kind.rejects()).map(route).collect()
}

/// Deletes routes in one datagram. A missing route is no error.
pub fn delete(rtnl: &Rtnl, routes: &[Route]) -> Result<()> {
    let mut batch = Batch::new();
    routes.iter().for_each(|route| batch.del_route(route));
    rtnl.commit(batch)
}

/// Lets `undo` remove the rejecting routes that this ADD adds. Such a route has no interface, so an equal one can be that of
/// another attachment of the container. Call this before `apply`.
pub fn undo_rejecting<'a>(
    cx: &'a Context<'a>,
    success: &Success,
    undo: &mut Undo<'a>,
) -> Result<()> {
    let mut routes = rejecting_routes(success);
    for family in IpFamily::ALL {
        if routes.iter().any(|route| family.has(route.dst.addr())) {
            let present = cx.session.container()?.rejecting_routes(family)?;
            routes.retain(|route| !present.iter().any(|found| is_same(route, found)));
        }
    }
    if !routes.is_empty() {
        undo.push("remove routes", move || delete(cx.session.container()?, &routes));
    }
    Ok(())
}

/// Whether a rejecting route that was read is the one that `wanted` adds.
fn is_same(wanted: &Route, found: &Route) -> bool {
    let key = |route: &Route| (route.dst, route.kind, route.metric, route.table.unwrap_or(MAIN));
    key(wanted) == key(found)
}

/// DEL: removes the rejecting routes, which the kernel does not remove with the interface. They stay while the container has
/// another interface, because they can be those of its attachment, too: packets must not pass where that one blocks them.
pub fn remove_rejecting(cx: &Context<'_>, at: &Attachment) -> Result<()> {
    let result = cx.request.prev_result().ok().flatten().unwrap_or_default();
    let routes = rejecting_routes(&result);
    if routes.is_empty() || cx.session.netns_of_del().0.is_none() {
        return Ok(());
    }
    let container = cx.session.container()?;
    let is_another = |link: &Link| link.up && link.index != LO && link.name != *at.ifname;
    if container.links()?.iter().any(is_another) {
        return Ok(());
    }
    delete(container, &routes)
}

/// The first gateway of a family among the addresses.
fn default_gateway(success: &Success, family: IpFamily) -> Option<IpAddr> {
    success.ips.iter().filter_map(|ip| ip.gateway).find(|gateway| family.has(*gateway))
}

fn non_zero(value: u32) -> Option<u32> {
    Some(value).filter(|value| *value != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The routes, as `DST via GW table N`, of a result with one address.
    fn shown(
        via_gateways: bool,
        address: &str,
        gateway: &str,
        routes: &[[&str; 3]],
    ) -> Vec<String> {
        let gateway = gateway.parse().ok();
        let ip = success::Ip { address: address.parse().unwrap(), gateway, interface: None };
        let route = |[dst, gw, table]: &[&str; 3]| success::Route {
            dst: dst.parse().unwrap(),
            gw: gw.parse().ok(),
            table: table.parse().ok(),
            ..success::Route::default_via([0; 4].into())
        };
        let routes = routes.iter().map(route).collect();
        let success = Success { ips: vec![ip], routes, ..Success::default() };
        let routes = if via_gateways {
            Routes::via_gateways(&success, 7)
        } else {
            Routes::on_link(&success, 7)
        };
        let show = |route: &Route| {
            assert_eq!(route.dev, Some(7));
            let via = route.via.map_or_else(String::new, |via| format!(" via {via}"));
            let table = route.table.map_or_else(String::new, |table| format!(" table {table}"));
            format!("{}{via}{table}{}", route.dst, if route.onlink { " onlink" } else { "" })
        };
        routes.in_order().map(show).collect()
    }

    #[test]
    fn a_gateway_outside_of_the_prefix_gets_a_route() {
        let (hosted, far) = ("198.51.100.7/32", "203.0.113.1");
        let everything = ["0.0.0.0/0", "", ""];
        for (address, gateway, routes, expected) in [
            (hosted, far, &[everything][..], &["203.0.113.1/32", "0.0.0.0/0 via 203.0.113.1"][..]),
            // The order of the result does not matter, and no route is made twice.
            (
                hosted,
                far,
                &[everything, ["203.0.113.1/32", "", ""]],
                &["203.0.113.1/32", "0.0.0.0/0 via 203.0.113.1"],
            ),
            (
                hosted,
                "",
                &[["0.0.0.0/0", far, ""], ["203.0.113.0/24", "0.0.0.0", ""]],
                &["203.0.113.0/24", "0.0.0.0/0 via 203.0.113.1"],
            ),
            ("10.1.0.2/24", "10.1.0.1", &[everything], &["0.0.0.0/0 via 10.1.0.1"]),
            (
                "2001:db8::7/128",
                "2001:db8:1::1",
                &[["::/0", "", "9"]],
                &["2001:db8:1::1/128 table 9", "::/0 via 2001:db8:1::1 table 9"],
            ),
            ("2001:db8::7/128", "fe80::1", &[["::/0", "", ""]], &["::/0 via fe80::1"]),
            // A destination on the link of another table does not count.
            (
                hosted,
                "",
                &[["0.0.0.0/0", far, ""], ["203.0.113.0/24", "0.0.0.0", "9"]],
                &["203.0.113.1/32", "203.0.113.0/24 table 9", "0.0.0.0/0 via 203.0.113.1"],
            ),
        ] {
            assert_eq!(shown(false, address, gateway, routes), expected, "{address} {routes:?}");
        }
    }

    #[test]
    fn prefixes_behind_their_gateway() {
        let routes = [
            ["0.0.0.0/0", "", ""],
            ["10.8.0.0/16", "10.1.0.3", ""],
            ["10.9.0.0/16", "10.2.0.1", ""],
        ];
        let expected = [
            "10.1.0.1/32",
            "10.2.0.1/32",
            "10.1.0.0/24 via 10.1.0.1",
            "0.0.0.0/0 via 10.1.0.1",
            "10.8.0.0/16 via 10.1.0.3 onlink",
            "10.9.0.0/16 via 10.2.0.1",
        ];
        assert_eq!(shown(true, "10.1.0.2/24", "10.1.0.1", &routes), expected);
    }
}

//! The routes of the host to containers whose gateway is outside of their subnet. Of other containers the host has the subnet, by the
//! address of the gateway.
//!
//! Their protocol tells these routes from those of an administrator. The claim of the address tells which attachment needs a route.

use super::{Addressing, Bridge, REMOVAL_TIMEOUT};
use crate::attachments::record::{Records, claims};
use crate::cni::success::{Ip, Success};
use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::rtnl::{Link, Route, Rtnl};
use crate::plugin::Context;
use crate::plugin::parts::Parts;
use crate::steps::delegate;
use crate::steps::link::routing_tables::{MAIN, SCOPE_LINK};
use crate::steps::link::{configure, routes, verify};
use crate::steps::undo::Undo;

/// The protocol (rtm_protocol) of these routes. Neither linux/rtnetlink.h, rt_protos of iproute2 nor zebra/rt_netlink.h of FRR, which
/// deletes routes of its own protocols, has this number.
const PROTOCOL: u8 = 205;

impl Bridge {
    /// Adds the routes by the link with the gateway addresses.
    pub(super) fn add_host_routes<'a>(
        &self,
        host: &'a Rtnl,
        bridge: &Link,
        addressing: &Addressing,
        undo: &mut Undo<'a>,
    ) -> Result<()> {
        let link = addressing.vlan_gateway.as_ref().unwrap_or(bridge);
        let mut routes = self.host_routes(&addressing.success, link.index);
        if routes.is_empty() {
            return Ok(());
        }
        let mut present = host.routes(IpFamily::V4)?;
        present.extend(host.routes(IpFamily::V6)?);
        // A failing ADD leaves a route that was there before.
        let key = |route: &Route| (route.dst, route.dev, route.via, route.table.unwrap_or(MAIN));
        routes.retain(|route| present.iter().all(|found| key(found) != key(route)));
        let result = configure::add_routes(host, &routes);
        undo.push("remove the routes to the container", move || routes::delete(host, &routes));
        result
    }

    /// CHECK does not compare these routes: earlier releases and the reference do not add them.
    pub(super) fn reconcile_host_routes(
        &self,
        host: &Rtnl,
        name: &str,
        own: &Success,
        parts: &mut Parts,
    ) -> Result<()> {
        if parts.is_check() || self.host_routes(own, 0).is_empty() {
            return Ok(());
        }
        let Some(link) = host.link(name)? else { return Ok(()) };
        self.host_routes(own, link.index).chunks(1).try_for_each(|route| {
            parts.ensure(&|| verify::kernel_routes(host, route), &mut || {
                configure::add_routes(host, route)
            })
        })
    }

    /// For DEL and GC, after they released the claims: removes the routes to addresses that no attachment has.
    pub(super) fn remove_host_routes(&self, cx: &Context<'_>) -> Result<()> {
        // `veth::clean` has warned of a result that cannot be read.
        let result = cx.request.prev_result().ok().flatten().unwrap_or_default();
        let is_expected = || {
            delegate::expected(cx).map_or(true, |of| of.choices.iter().flatten().any(is_outside))
        };
        if !result.ips.iter().any(is_outside) && !is_expected() {
            return Ok(());
        }
        let host = cx.session.host()?;
        if unused(host)?.is_empty() {
            return Ok(());
        }
        // An ADD that finds a route holds the lock. After a timeout the routes stay until the next DEL or GC.
        let Some(_lock) = cx.session.host_netns()?.lock_exclusive(REMOVAL_TIMEOUT)? else {
            return Ok(());
        };
        routes::delete(host, &unused(host)?)
    }

    fn host_routes(&self, success: &Success, index: u32) -> Vec<Route> {
        let outside = success.ips.iter().filter(|ip| self.is_gateway() && is_outside(ip));
        let route = |ip: &Ip| {
            let (address, protocol) = (ip.address.addr(), Some(PROTOCOL));
            let scope = address.is_ipv4().then_some(SCOPE_LINK);
            Route { dev: Some(index), scope, protocol, ..Route::to(address.into()) }
        };
        outside.map(route).collect()
    }
}

fn is_outside(ip: &Ip) -> bool {
    ip.gateway.is_some_and(|gateway| !ip.address.contains(&gateway))
}

/// The routes of this plugin to addresses that no attachment has on the link.
fn unused(host: &Rtnl) -> Result<Vec<Route>> {
    let mut unused = Vec::new();
    for family in IpFamily::ALL {
        for route in host.routes(family)? {
            if route.protocol == Some(PROTOCOL)
                && let Some(index) = route.dev
                && let Some(link) = host.link_at(index)?
                && is_unclaimed(host, &link, &route)?
            {
                unused.push(route);
            }
        }
    }
    Ok(unused)
}

fn is_unclaimed(host: &Rtnl, link: &Link, route: &Route) -> Result<bool> {
    let mut names = vec![link.name.clone()];
    // The gateway of a VLAN can have an alternative name of the bridge, but the claims always have its name.
    if let Some((bridge, vlan)) = link.name.rsplit_once('.')
        && let Some(bridge) = host.link(bridge)?
    {
        names.push(format!("{}.{vlan}", bridge.name));
    }
    let (records, address) = (Records::of_host(), route.dst.addr());
    let is_free = |link: &String| records.holder(&claims::name(address, link)) == Ok(None);
    Ok(names.iter().all(is_free))
}

//! The container's side of an attachment: the interface is up, and has the addresses and routes of the result. CHECK compares it,
//! and `reconcile --inside` makes what is missing.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::names::{Attachment, Mac};
use crate::netlink::rtnl::{Batch, Link, LinkChange, NewAddress, Route, Rtnl};
use crate::plugin::Context;
use crate::plugin::parts::Parts;
use crate::steps::link::routes::Routes;
use crate::steps::link::routing_tables::{RoutingTables, SCOPE_LINK};
use crate::steps::link::{configure, verify};

/// The metric of the kernel's IPv6 routes to prefixes: IP6_RT_PRIO_ADDRCONF (linux/ipv6_route.h).
const PREFIX_METRIC: u32 = 256;

/// The interface of an attachment in the container.
pub struct Inside<'a> {
    rtnl: &'a Rtnl,
    pub link: Link,
    result: &'a Success,
    nets: Vec<IpNet>,
    /// Whether ADD brings the interface up.
    pub is_up: bool,
    pub routes: Routes,
    /// The IPv4 neighbours whose MAC addresses ADD sets.
    pub neighbours: Vec<(IpAddr, Mac)>,
}

impl<'a> Inside<'a> {
    /// The interface of the result. Fails if it is missing, or has another MAC address: only a new ADD makes an interface.
    pub fn find(cx: &'a Context<'_>, at: &Attachment, result: &'a Success) -> Result<Self> {
        let rtnl = cx.session.container()?;
        let (index, link) = verify::interface(cx, at, rtnl, result)?;
        let nets = result.ips_of(index).map(|ip| ip.address).collect();
        let routes = Routes::on_link(result, link.index);
        Ok(Self { rtnl, link, result, nets, is_up: true, routes, neighbours: Vec::new() })
    }

    pub fn reconcile(&self, parts: &mut Parts) -> Result<()> {
        let (rtnl, Link { index, name, .. }) = (self.rtnl, &self.link);
        let is_check = parts.is_check();
        let check_up = || match is_check {
            true => verify::check_up(&self.link),
            false => verify::check_up(&self.now()?),
        };
        let up = LinkChange { up: Some(true), ..LinkChange::default() };
        if self.is_up {
            parts.ensure(&check_up, &mut || rtnl.change_link(*index, name, &up))?;
        }
        parts.ensure(&|| verify::has_addresses(rtnl, &self.link, &self.nets), &mut || {
            let mut batch = Batch::new();
            for net in &self.nets {
                let no_prefix_route = self.routes.replace_prefixes;
                let new = NewAddress { net: *net, no_dad: true, no_prefix_route, may_exist: true };
                batch.add_address(*index, name, &new);
            }
            rtnl.commit(batch)
        })?;
        parts.ensure(&|| verify::kernel_routes(rtnl, &self.routes.implied), &mut || {
            configure::add_routes(rtnl, &self.routes.implied)
        })?;
        if is_check {
            return verify::routes(rtnl, &self.result.routes);
        }
        for neighbour in &self.neighbours {
            parts.ensure(&|| verify::has_neighbour(rtnl, &self.link, neighbour), &mut || {
                let mut batch = Batch::new();
                batch.set_permanent_neighbour(*index, *neighbour);
                rtnl.commit(batch)
            })?;
        }
        for (expected, route) in self.result.routes.iter().zip(&self.routes.listed) {
            let compare = || verify::routes(rtnl, std::slice::from_ref(expected));
            parts.ensure(&compare, &mut || {
                // Without the kernel's routes to the prefixes, a gateway cannot be reached.
                let mut all = self.missing_prefix_routes()?;
                all.push(route.clone());
                configure::add_routes(rtnl, &all)
            })?;
        }
        Ok(())
    }

    /// The routes that the kernel makes for the prefixes of the addresses, and that no table has.
    fn missing_prefix_routes(&self) -> Result<Vec<Route>> {
        if self.routes.replace_prefixes {
            return Ok(Vec::new());
        }
        let present = RoutingTables::read(self.rtnl)?.routes;
        let is_there = |route: &Route| {
            present.iter().any(|found| (found.dst, found.dev) == (route.dst, route.dev))
        };
        let has_prefix = |net: &&IpNet| net.prefix_len() < net.max_prefix_len();
        let route = |net: &IpNet| {
            let v4 = Some(net.addr()).filter(IpAddr::is_ipv4);
            Route {
                dev: Some(self.link.index),
                src: v4,
                scope: v4.map(|_| SCOPE_LINK),
                metric: if v4.is_some() { None } else { Some(PREFIX_METRIC) },
                ..Route::to(net.trunc())
            }
        };
        let routes = self.nets.iter().filter(has_prefix).map(route);
        Ok(routes.filter(|route| !is_there(route)).collect())
    }

    fn now(&self) -> Result<Link> {
        let missing = || Error::internal(format_args!("interface {} was removed", self.link.name));
        self.rtnl.link_at(self.link.index)?.ok_or_else(missing)
    }
}

/// For a plugin whose objects are all in the container.
pub fn reconcile(cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
    parts.in_container(|parts| {
        Inside::find(cx, at, &cx.request.required_prev_result()?)?.reconcile(parts)
    })
}

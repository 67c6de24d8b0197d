//! The routes of the host to containers whose gateway is outside of their subnet. Of other containers the host has the subnet, by the
//! address of the gateway.

use super::{Addressing, Bridge};
use crate::cni::success::{Ip, Success};
use crate::error::Result;
use crate::netlink::rtnl::{Batch, Link, Route, Rtnl};
use crate::plugin::Context;
use crate::plugin::parts::Parts;
use crate::steps::link::routing_tables::SCOPE_LINK;
use crate::steps::link::{configure, verify};
use crate::steps::undo::Undo;

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
        let routes = self.host_routes(&addressing.success, link.index);
        if routes.is_empty() {
            return Ok(());
        }
        let result = configure::add_routes(host, &routes);
        undo.push("remove the routes to the container", move || delete(host, &routes));
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

    /// For DEL: removes the routes by the links of the result.
    pub(super) fn remove_host_routes(&self, cx: &Context<'_>) -> Result<()> {
        // `veth::clean` has warned of a result that cannot be read.
        let result = cx.request.prev_result().ok().flatten().unwrap_or_default();
        if to_containers(&result, 0).is_empty() {
            return Ok(());
        }
        let host = cx.session.host()?;
        for interface in result.interfaces.iter().filter(|interface| interface.sandbox.is_empty()) {
            if let Some(link) = host.link(&interface.name)? {
                delete(host, &to_containers(&result, link.index))?;
            }
        }
        Ok(())
    }

    fn host_routes(&self, success: &Success, index: u32) -> Vec<Route> {
        if self.is_gateway() { to_containers(success, index) } else { Vec::new() }
    }
}

fn to_containers(success: &Success, index: u32) -> Vec<Route> {
    let is_outside = |ip: &&Ip| ip.gateway.is_some_and(|gateway| !ip.address.contains(&gateway));
    let route = |ip: &Ip| {
        let address = ip.address.addr();
        let scope = address.is_ipv4().then_some(SCOPE_LINK);
        Route { dev: Some(index), scope, ..Route::to(address.into()) }
    };
    success.ips.iter().filter(is_outside).map(route).collect()
}

fn delete(host: &Rtnl, routes: &[Route]) -> Result<()> {
    let mut batch = Batch::new();
    routes.iter().for_each(|route| batch.del_route(route));
    host.commit(batch)
}

//! For a chained plugin: the previous result with its addresses, and the interface of a DEL.

use ipnet::IpNet;

use crate::attachments::owner::Owner;
use crate::cni::success::{Ip, Success};
use crate::error::{Error, Result};
use crate::names::{Attachment, IpFamily};
use crate::netlink::rtnl::{Link, Route, Rtnl};
use crate::plugin::Context;
use crate::steps::link::routing_tables::MAIN;
use crate::steps::link::{host_link, veth};

/// The previous result, which ADD requires. `without` is the reference's error message if the result is missing.
pub fn prev_result(cx: &Context<'_>, without: &str) -> Result<Success> {
    cx.request.prev_result()?.ok_or_else(|| {
        let kind = &cx.request.conf.kind;
        let missing =
            format!("required prevResult missing: {kind} must be called as chained plugin");
        Error::config(without).with_details(missing)
    })
}

/// For DEL: whether the interface belongs to another attachment, because another network made it, or because the path now leads
/// to the namespace of another container. Then DEL must not change it. A link without an owner counts as this attachment's.
pub fn is_of_another(cx: &Context<'_>, at: &Attachment, link: &Link) -> Result<bool> {
    let owner = Owner::new(&cx.request.network, at);
    let is_of_another = |link: &Link| host_link::is_of_another(link, &owner);
    veth::either_end(cx.session.host()?, link, is_of_another)
}

/// The interface of a DEL, unless it belongs to another attachment.
pub fn interface_of_del(cx: &Context<'_>, at: &Attachment) -> Result<Option<Link>> {
    match cx.session.container()?.link(&at.ifname)? {
        Some(link) if is_of_another(cx, at, &link)? => Ok(None),
        found => Ok(found),
    }
}

/// Fails if a route of the result is in the container's main table and rejects packets, for a plugin whose rules let packets pass
/// by the main table. The kernel has the types of the routes: libcni does not pass them.
pub fn refuse_rejecting(rtnl: &Rtnl, result: &Success) -> Result<()> {
    let direct = result.routes.iter().filter(|route| route.gw.is_none());
    let direct: Vec<IpNet> = direct.map(|route| route.dst.trunc()).collect();
    for family in IpFamily::ALL.into_iter().filter(|family| has_family(&direct, *family)) {
        let rejecting = rtnl.rejecting_routes(family)?;
        let is_found = |route: &&Route| route.table == Some(MAIN) && direct.contains(&route.dst);
        if let Some(Route { kind, dst, .. }) = rejecting.iter().find(is_found) {
            let kind = kind.text();
            let msg = format!("packets of the interface would pass by the {kind} route to {dst}");
            return Err(Error::config(msg).with_details("it is in the main table"));
        }
    }
    Ok(())
}

fn has_family(nets: &[IpNet], family: IpFamily) -> bool {
    nets.iter().any(|net| family.has(net.addr()))
}

/// The addresses of the interface: those with its index, those without an index, and those with an index that the result lacks.
pub fn ips<'a>(result: &'a Success, at: &Attachment) -> impl Iterator<Item = &'a Ip> {
    let is_ours = |index: u32| match result.interfaces.get(index as usize) {
        Some(interface) => interface.name == *at.ifname && !interface.sandbox.is_empty(),
        None => true,
    };
    result.ips.iter().filter(move |ip| ip.interface.is_none_or(is_ours))
}

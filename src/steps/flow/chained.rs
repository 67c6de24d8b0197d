//! What plugins need to know that come after another one in a chain, and hand its result on.

use crate::cni::success::{Ip, Success};
use crate::error::{Error, Result};
use crate::kernel::rtnl::{Link, Rtnl};
use crate::names::Attachment;
use crate::plugin::Context;
use crate::plugin::owner::Owner;
use crate::steps::link::{host_link, veth};

/// The result of the plugin before this one. `without` is the reference's message where there is none.
pub fn prev_result(cx: &Context<'_>, without: &str) -> Result<Success> {
    cx.request.prev_result()?.ok_or_else(|| {
        let kind = &cx.request.conf.kind;
        let missing =
            format!("required prevResult missing: {kind} must be called as chained plugin");
        Error::config(without).with_details(missing)
    })
}

/// The result that a DEL brings. One that cannot be read costs no more than what only it can tell.
pub fn prev_result_of_del(cx: &Context<'_>) -> Success {
    cx.request
        .prev_result()
        .unwrap_or_else(|error| {
            cx.warn(error);
            None
        })
        .unwrap_or_default()
}

/// The interface that the plugin before has made.
pub fn interface(rtnl: &Rtnl, at: &Attachment) -> Result<Link> {
    let ifname = &at.ifname;
    let missing = || Error::internal(format!("interface {ifname} not found in the container"));
    rtnl.link(ifname)?.ok_or_else(missing)
}

/// For DEL: whether the path of the namespace is another container's by now, and so nothing in it is ours. Its interface
/// tells; one that names no owner is taken for ours.
pub fn is_in_another_container(
    cx: &Context<'_>,
    at: &Attachment,
    link: Option<&Link>,
) -> Result<bool> {
    let Some(link) = link else { return Ok(false) };
    let owner = Owner::new(&cx.request.network, at);
    let is_of_another = |link: &Link| host_link::is_of_another_container(link, &owner);
    veth::either_end(cx.session.host()?, link, is_of_another)
}

/// The addresses of our interface: those that are said to be its, and those of which nothing is said.
pub fn ips<'a>(result: &'a Success, at: &Attachment) -> impl Iterator<Item = &'a Ip> {
    let is_ours = |index: u32| match result.interfaces.get(index as usize) {
        Some(interface) => interface.name == *at.ifname && !interface.sandbox.is_empty(),
        None => true,
    };
    result.ips.iter().filter(move |ip| ip.interface.is_none_or(is_ours))
}

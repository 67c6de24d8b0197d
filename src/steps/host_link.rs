//! Links on the host that belong to containers: whose they are, and how they treat IPv6.

use crate::error::Result;
use crate::kernel::rtnl::{Link, Rtnl};
use crate::kernel::sysctl;
use crate::names::Attachment;
use crate::plugin::Context;
use crate::steps::owner::Owner;
use crate::steps::undo::Failures;

const ALIAS_PREFIX: &str = "cnibox ";

/// The alias by which a link says whose it is.
pub fn alias(owner: &Owner) -> String {
    format!("{ALIAS_PREFIX}{owner}")
}

/// For GC: removes the links of a kind that say that they are of this network, and of none of `keep`.
pub fn remove_stale(cx: &Context<'_>, kind: &str, keep: &[Attachment]) -> Result<()> {
    let host = Rtnl::open()?;
    let network = &cx.request.network;
    let prefix = format!("{ALIAS_PREFIX}{}", Owner::prefix(network));
    let kept: Vec<String> = keep.iter().map(|at| alias(&Owner::new(network, at))).collect();
    let is_stale = |link: &&Link| {
        let alias = link.alias.as_ref();
        alias.is_some_and(|alias| alias.starts_with(&prefix) && !kept.contains(alias))
    };
    let mut failures = Failures::default();
    for link in host.links_of_kind(kind)?.iter().filter(is_stale) {
        failures.note(host.del_link(link.index));
    }
    failures.into_result()
}

/// Makes it deaf to router advertisements, which a container could send to become the host's default gateway
/// (CVE-2020-10749). Has to be said before the link is up.
pub fn refuse_router_advertisements(link: &Link) -> Result<()> {
    if link.accept_ra == Some(0) {
        return Ok(());
    }
    sysctl::set_if_possible(&format!("net/ipv6/conf/{}/accept_ra", link.name), "0")
}

/// Lets it use its link-local address at once; to be said before it is up, too. The kernel needs that address to find a
/// container that it forwards packets to; while it looked for duplicates, for a second or two, all of them would be lost.
pub fn skip_duplicate_detection(name: &str) -> Result<()> {
    sysctl::set_if_possible(&format!("net/ipv6/conf/{name}/accept_dad"), "0")
}

//! Links that belong to containers: their owners, and how those on the host treat IPv6.

use crate::error::Result;
use crate::kernel::rtnl::{Link, Rtnl};
use crate::kernel::sysctl;
use crate::names::IpFamily;
use crate::plugin::owner::{Owner, Owners};

const ALIAS_PREFIX: &str = "cnibox ";

/// The alias by which a link names its owner.
pub fn alias(owner: &Owner) -> String {
    format!("{ALIAS_PREFIX}{owner}")
}

/// Whether a link says that it belongs to one of the owners.
pub fn is_of(link: &Link, owners: &Owners) -> bool {
    owner_of(link).is_some_and(|owner| owners.contain(owner))
}

/// Whether a link names another owner.
pub fn is_of_another(link: &Link, owners: &Owners) -> bool {
    owner_of(link).is_some_and(|owner| !owners.contain(owner))
}

/// Whether a link names another container than the owner's, in whatever network.
pub fn is_of_another_container(link: &Link, owner: &Owner) -> bool {
    let container = |text| Owner::parts(text).map(|[_, container, _]| container);
    owner_of(link).is_some_and(|text| container(text) != container(owner.as_str()))
}

fn owner_of(link: &Link) -> Option<&str> {
    let text = link.alias.as_deref()?.strip_prefix(ALIAS_PREFIX)?;
    // An owner is three words. What follows is the link's own, see `parent`.
    let end = text.match_indices(' ').nth(2).map_or(text.len(), |(end, _)| end);
    Some(&text[..end])
}

/// The links of a kind that say that they belong to the owners.
pub fn all_of(host: &Rtnl, kind: &str, owners: &Owners) -> Result<Vec<Link>> {
    let mut links = host.links_of_kind(kind)?;
    links.retain(|link| is_of(link, owners));
    Ok(links)
}

/// Makes it deaf to router advertisements, which a container could send to become the host's default gateway
/// (CVE-2020-10749). Has to be said before the link is up.
pub fn refuse_router_advertisements(link: &Link) -> Result<()> {
    let path = sysctl::of_link(IpFamily::V6, &link.name, "accept_ra");
    match link.accept_ra {
        Some(0) => Ok(()),
        Some(_) => sysctl::change_if_possible(&path, "0"),
        None => sysctl::set_if_possible(&path, "0"),
    }
}

/// Lets it use its link-local address at once; to be said before it is up, too. The kernel needs that address to find a
/// container that it forwards packets to; while it looked for duplicates, for a second or two, all of them would be lost.
pub fn skip_duplicate_detection(name: &str) -> Result<()> {
    sysctl::set_if_possible(&sysctl::of_link(IpFamily::V6, name, "accept_dad"), "0")
}

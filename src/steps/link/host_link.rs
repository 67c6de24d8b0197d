//! Links of attachments: the owner in the alias, and the IPv6 settings of links on the host.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::kernel::rtnl::{Batch, Link, Rtnl};
use crate::kernel::{sys, sysctl};
use crate::names::IpFamily;
use crate::plugin::owner::{Owner, Owners};
use crate::steps::flow::undo::Failures;

const ALIAS_PREFIX: &str = "cnibox ";

/// Up to this number, links are deleted one by one: a group takes three requests.
const DELETED_ONE_BY_ONE_MAX: usize = 2;

/// The longest wait for another process that deletes a group. After it the links go one by one.
const GROUP_LOCK_LIMIT: Duration = Duration::from_secs(5);

/// The number of attempts to find an unused number for a group. One attempt is nearly always enough.
const GROUP_ATTEMPTS_MAX: u32 = 8;

/// The alias by which a link names its owner.
pub fn alias(owner: &Owner) -> String {
    format!("{ALIAS_PREFIX}{owner}")
}

/// Whether the alias of a link names one of the owners.
pub fn is_of(link: &Link, owners: &Owners) -> bool {
    owner_of(link).is_some_and(|owner| owners.contain(owner))
}

/// Whether the alias of a link names another owner.
pub fn is_of_another(link: &Link, owners: &Owners) -> bool {
    owner_of(link).is_some_and(|owner| !owners.contain(owner))
}

/// Whether the alias of a link names another container, in any network.
pub fn is_of_another_container(link: &Link, owner: &Owner) -> bool {
    let container = |text| Owner::parts(text).map(|[_, container, _]| container);
    owner_of(link).is_some_and(|text| container(text) != container(owner.as_str()))
}

fn owner_of(link: &Link) -> Option<&str> {
    let text = link.alias.as_deref()?.strip_prefix(ALIAS_PREFIX)?;
    // An owner has three words. `steps::link::parent` adds more.
    let end = text.match_indices(' ').nth(2).map_or(text.len(), |(end, _)| end);
    Some(&text[..end])
}

/// The links of a kind with aliases that name one of the owners.
pub fn all_of(host: &Rtnl, kind: &str, owners: &Owners) -> Result<Vec<Link>> {
    let mut links = host.links_of_kind(kind)?;
    links.retain(|link| is_of(link, owners));
    Ok(links)
}

/// Deletes links of the host; a link that is gone is fine. The kernel waits 20 ms for each request, so many links go as one
/// group. If that fails, each link is deleted by its own request, and that request has the error to report.
pub fn delete_all(host: &Rtnl, links: &[Link]) -> Result<()> {
    if links.len() > DELETED_ONE_BY_ONE_MAX && delete_as_group(host, links).is_ok() {
        return Ok(());
    }
    let mut failures = Failures::default();
    links.iter().for_each(|link| failures.note(host.del_link(link.index)));
    failures.into_result()
}

/// The kernel deletes every link of the group, so the number must be one that no other link has. Other processes of cnibox wait
/// for the lock of the namespace. Another program would have to choose the same of 2^31 numbers between the list and the
/// deletion.
///
/// If this process is killed, links stay in the group. DEL and GC find them by their aliases.
fn delete_as_group(host: &Rtnl, links: &[Link]) -> Result<()> {
    let home = host.netns()?;
    let Some(_lock) = home.lock_exclusive(GROUP_LOCK_LIMIT)? else {
        return Err(Error::internal(
            "cannot lock the host's namespace: another process holds the lock",
        ));
    };
    let group = unused_group(&host.links()?)?;
    let mut batch = Batch::new();
    links.iter().for_each(|link| batch.set_group(link.index, &link.name, group));
    host.commit(batch)?;
    host.del_group(group)
}

/// A number that none of the links has. 0 is the default of all links.
fn unused_group(links: &[Link]) -> Result<u32> {
    for _ in 0..GROUP_ATTEMPTS_MAX {
        let group = u32::from_ne_bytes(sys::random_bytes()?) >> 1;
        if group != 0 && links.iter().all(|link| link.group != group) {
            return Ok(group);
        }
    }
    Err(Error::internal("cannot find an unused group of links"))
}

/// Sets accept_ra=0. Otherwise a container can become the host's default gateway with router advertisements (CVE-2020-10749).
/// Must run before the link goes up.
pub fn refuse_router_advertisements(link: &Link) -> Result<()> {
    let path = sysctl::of_link(IpFamily::V6, &link.name, "accept_ra");
    match link.accept_ra {
        Some(0) => Ok(()),
        Some(_) => sysctl::change_if_possible(&path, "0"),
        None => sysctl::set_if_possible(&path, "0"),
    }
}

/// Sets accept_dad=0, so that the link has its link-local address without delay. Must run before the link goes up. The kernel
/// needs this address for neighbour discovery. Duplicate address detection would delay it by one to two seconds.
pub fn skip_duplicate_detection(name: &str) -> Result<()> {
    sysctl::set_if_possible(&sysctl::of_link(IpFamily::V6, name, "accept_dad"), "0")
}

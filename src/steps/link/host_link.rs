//! Links of attachments: their entry in a result, their owner in the alias, and IPv6 settings of links on the host.

use crate::attachments::owner::{Owner, Owners, hash};
use crate::cni::success::Interface;
use crate::error::{Error, Result};
use crate::kernel::sysctl;
use crate::names::{Attachment, IpFamily, Mac};
use crate::netlink::rtnl::{Link, Rtnl};
use crate::plugin::parts::Parts;

/// A link of the host, as a result lists it.
pub fn result_interface(link: &Link) -> Interface {
    interface(&link.name, link.mac, String::new())
}

/// An interface of a result. `sandbox` is empty on the host.
pub fn interface(name: &str, mac: Option<Mac>, sandbox: String) -> Interface {
    let mac = mac.map_or_else(String::new, |mac| mac.to_string());
    Interface { name: name.into(), mac, sandbox, ..Interface::default() }
}

/// The interface of an attachment in its container. Fails if it does not exist.
pub fn in_container(container: &Rtnl, at: &Attachment) -> Result<Link> {
    let ifname = &at.ifname;
    let missing = || Error::internal(format_args!("interface {ifname} not found in the container"));
    container.link(ifname)?.ok_or_else(missing)
}

/// The prefix of the alternative name (altname) that `host-device` gives to a device in a container. `host-device` uses the
/// alias as the reference does, so the alias cannot name the owner. The part after the next `.` is the hash of the owner.
pub const MARK: &str = "cnibox.";

/// Whether the alias of a link names one of the owners.
pub fn is_of(link: &Link, owners: &Owners) -> bool {
    owner_of(link).is_some_and(|owner| owners.contain(owner))
}

/// Whether a link names another owner: another network, container or interface. DEL leaves such a link, and the rules and
/// routes of its addresses. A link of the reference names no owner.
pub fn is_of_another(link: &Link, owner: &Owner) -> bool {
    if let Some(found) = owner_of(link) {
        return found != owner.as_str();
    }
    let own = hash(owner.as_str());
    let marks: Vec<u64> = link.alt_names.iter().filter_map(|name| marked_owner(name)).collect();
    !marks.is_empty() && !marks.contains(&own)
}

/// The hash of the owner in an alternative name. `None` if the name does not begin with `MARK`, or has no hash.
fn marked_owner(alt_name: &str) -> Option<u64> {
    u64::from_str_radix(alt_name.strip_prefix(MARK)?.split('.').nth(1)?, 16).ok()
}

/// Whether the alias of a link names another container, in any network.
pub fn is_of_another_container(link: &Link, owner: &Owner) -> bool {
    let container = |text| Owner::parts(text).map(|[_, container, _]| container);
    owner_of(link).is_some_and(|text| container(text) != container(owner.as_str()))
}

/// The owner that the alias of a link names.
pub fn owner_of(link: &Link) -> Option<&str> {
    Owner::in_alias(link.alias.as_deref()?)
}

/// The links of a kind with aliases that name one of the owners.
pub fn all_of(host: &Rtnl, kind: &str, owners: &Owners) -> Result<Vec<Link>> {
    let mut links = host.links_of_kind(kind)?;
    links.retain(|link| is_of(link, owners));
    Ok(links)
}

/// Sets accept_ra=0 on a link of the host. Otherwise a container can become the host's default gateway with router
/// advertisements (CVE-2020-10749). Must run before the link goes up. Fails if the host does not allow the change.
pub fn refuse_router_advertisements(link: &Link) -> Result<()> {
    let path = sysctl::of_link(IpFamily::V6, &link.name, "accept_ra");
    match link.accept_ra {
        Some(0) => Ok(()),
        Some(_) => sysctl::change_if_exists(&path, "0"),
        None => sysctl::set_if_exists(&path, "0"),
    }
}

/// For STATUS: fails if new links of the host neither have nor can get accept_ra=0.
pub fn check_accept_ra_settable() -> Result<()> {
    let path = sysctl::of_link(IpFamily::V6, "default", "accept_ra");
    if sysctl::exists(&path) { sysctl::check_settable(&path, "0") } else { Ok(()) }
}

/// accept_ra=0 on a link of the host. CHECK does not compare it: earlier releases and other plugins did not set it on each link.
pub fn reconcile_accept_ra(host: &Rtnl, name: &str, parts: &mut Parts) -> Result<()> {
    if parts.is_check() {
        return Ok(());
    }
    let compare = || match host.link(name)?.and_then(|link| link.accept_ra) {
        Some(0) | None => Ok(()),
        Some(_) => {
            Err(Error::difference(format_args!("interface {name} accepts router advertisements")))
        }
    };
    let path = sysctl::of_link(IpFamily::V6, name, "accept_ra");
    parts.ensure(&compare, &mut || sysctl::set_if_exists(&path, "0"))
}

/// Sets accept_dad=0, so that the link has its link-local address without delay. Must run before the link goes up. The kernel
/// needs this address for neighbour discovery. Duplicate address detection would delay it by one to two seconds.
pub fn skip_duplicate_detection(name: &str) -> Result<()> {
    sysctl::set_if_possible(&sysctl::of_link(IpFamily::V6, name, "accept_dad"), "0")
}

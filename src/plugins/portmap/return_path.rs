//! Checks whether the replies of published ports pass the reverse path filters. A container with two networks answers other
//! hosts through its default route. If the ports are published on its other interface, a strict filter (`rp_filter` 1) drops
//! the request in the container, or the reply on the host: the packet arrives by one link, and the route to its source leads to
//! another. IPv6 has no such filter.

use std::net::{IpAddr, Ipv4Addr};

use super::config::{Portmap, Snat};
use super::container_address;
use crate::cni::json::Json;
use crate::cni::success::Success;
use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::kernel::sysctl;
use crate::names::{Attachment, IpFamily};
use crate::netlink::rtnl::Rtnl;

/// The reason why other hosts get no reply from the published ports of a configuration. `None` if they get a reply, or if no
/// port is published. `host` is a socket on the host, in the namespace of the calling thread.
pub fn fault(
    host: &Rtnl,
    netns: &NetNs,
    config: &Json,
    at: &Attachment,
    result: &Success,
) -> Result<Option<String>> {
    let settings = config.read::<Portmap>("the plugin portmap")?.settings()?;
    let is_published = settings.mappings.iter().any(|mapping| mapping.host_ip.is_in(IpFamily::V4));
    // With masqAll, the source of requests is the host, so replies return through the host.
    if !is_published || settings.snat == Snat::All {
        return Ok(None);
    }
    let Some(address) = container_address(IpFamily::V4, at, result) else { return Ok(None) };
    fault_of_address(host, netns, at, address.addr())
}

/// The reason why other hosts get no reply from this address of the container's interface. If no filter is strict, only sysctls
/// are read.
pub(super) fn fault_of_address(
    host: &Rtnl,
    netns: &NetNs,
    at: &Attachment,
    address: IpAddr,
) -> Result<Option<String>> {
    let is_strict_inside = netns.run(|| Ok(is_strict(&at.ifname)))?;
    // A new link on the host has the value of `default`.
    if !is_strict_inside && !is_strict("default") {
        return Ok(None);
    }
    let container = netns.rtnl()?;
    let (Some(own), Some(index)) =
        (container.link(&at.ifname)?, container.link_towards(OTHER_HOST, Some(address))?)
    else {
        return Ok(None);
    };
    if index == own.index {
        return Ok(None);
    }
    let Some(other) = container.link_at(index)? else { return Ok(None) };
    let filter = if is_strict_inside {
        Some(format!("{} in the container", at.ifname))
    } else {
        let sources = container.addresses_of(index, IpFamily::V4)?;
        let link = match sources.first() {
            Some(source) => host.link_towards(source.net.addr(), None)?,
            None => None,
        };
        let link = link.map_or(Ok(None), |index| host.link_at(index))?;
        link.filter(|link| is_strict(&link.name)).map(|link| format!("{} on the host", link.name))
    };
    Ok(filter.map(|filter| {
        format!(
            "published ports do not answer other hosts: replies of {} leave by {}, and rp_filter of {filter} is 1",
            at.ifname, other.name
        )
    }))
}

/// Whether the reverse path filter of a link is strict, in the namespace of the calling thread. The kernel uses the larger
/// value of `all` and of the link. 2 is less strict than 1.
fn is_strict(link: &str) -> bool {
    let value =
        |link: &str| sysctl::get(&sysctl::of_link(IpFamily::V4, link, "rp_filter")).ok().flatten();
    value("all").max(value(link)).as_deref() == Some("1")
}

/// A documentation address (RFC 5737): no network of a host has it, so the route to it is the route to other hosts.
const OTHER_HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));

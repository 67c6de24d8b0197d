//! The bridges through which the host reaches other hosts.

use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::rtnl::{Link, Rtnl};

/// The kinds of ports that lead to containers and virtual machines of this host.
const PORTS_OF_HOST: [&str; 3] = ["veth", "tun", "dummy"];

/// The bridges with another port than `PORTS_OF_HOST`, and those of default routes.
pub fn uplinks(host: &Rtnl) -> Result<Vec<Link>> {
    let mut links = host.links()?;
    let mut leading: Vec<u32> = Vec::new();
    for family in IpFamily::ALL {
        for route in host.routes(family)?.iter().filter(|route| route.dst.prefix_len() == 0) {
            leading.extend(route.nexthops.iter().map(|hop| hop.dev).chain(route.dev));
        }
    }
    let leads_out =
        |port: &&Link| port.kind.as_deref().is_none_or(|kind| !PORTS_OF_HOST.contains(&kind));
    leading.extend(links.iter().filter(leads_out).filter_map(|port| port.master));
    links.retain(|link| link.kind.as_deref() == Some("bridge") && leading.contains(&link.index));
    Ok(links)
}

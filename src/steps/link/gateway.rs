//! For STATUS: checks whether the host can be a gateway of containers.

use std::net::IpAddr;

use crate::error::{Error, Result};
use crate::kernel::sysctl;
use crate::names::IpFamily;
use crate::netlink::rtnl::Link;
use crate::steps::link::{forwarding, mtu};

/// Fails if the host cannot have these addresses on `link`, or cannot forward packets. `link` is `None` if ADD makes the link.
pub fn check_possible(link: Option<&Link>, addresses: &[IpAddr]) -> Result<()> {
    if addresses.iter().any(IpAddr::is_ipv6) {
        link.map_or(Ok(()), mtu::require_ipv6)?;
        require_ipv6(link.map_or("default", |link| &link.name))?;
    }
    forwarding::check_possible(addresses.iter().copied())
}

/// Fails if IPv6 is disabled on a link and cannot be enabled. For a link that ADD makes, `link` is `default`, whose value the new
/// link gets.
fn require_ipv6(link: &str) -> Result<()> {
    let path = sysctl::of_link(IpFamily::V6, link, "disable_ipv6");
    if sysctl::exists(&path) {
        return sysctl::check_settable(&path, "0");
    }
    Err(Error::internal("cannot use an IPv6 gateway: the kernel has no IPv6"))
}

//! Enables IP forwarding of the host, which a gateway needs. DEL leaves it enabled, as the reference does, because other
//! software may need it.
//!
//! With IPv6 forwarding the kernel ignores router advertisements on links with `accept_ra` 1, and deletes the default routes
//! that came from them: the first ADD would disconnect a host that advertisements configure. With `accept_ra` 2 a link also
//! accepts them while it forwards.

use std::net::IpAddr;

use crate::error::{Error, Result};
use crate::kernel::sysctl;
use crate::names::IpFamily;
use crate::netlink::rtnl::Rtnl;
use crate::plugin::parts::Parts;

/// Enables forwarding for the families of the addresses.
pub fn enable(host: &Rtnl, addresses: impl IntoIterator<Item = IpAddr>) -> Result<()> {
    for key in keys(addresses) {
        if key == ALL_V6 && sysctl::get(key)?.as_deref() == Some("0") {
            keep_advertisements(host)?;
        }
        sysctl::set(key, "1")?;
    }
    Ok(())
}

/// Sets accept_ra=2 on each link that accepts router advertisements now. The links of containers have accept_ra=0. The kernel
/// ignores accept_ra of `all`; that of `default` would make later links accept advertisements, such as the links of other
/// containers.
fn keep_advertisements(host: &Rtnl) -> Result<()> {
    for link in host.links()?.iter().filter(|link| link.accept_ra == Some(1)) {
        let key = |key: &str| sysctl::of_link(IpFamily::V6, &link.name, key);
        // An error means that the link was removed.
        if sysctl::get(&key("forwarding")).ok().flatten().as_deref() == Some("0") {
            sysctl::set_if_exists(&key("accept_ra"), "2")?;
        }
    }
    Ok(())
}

/// For STATUS: fails if forwarding is disabled and cannot be enabled.
pub fn check_possible(addresses: impl IntoIterator<Item = IpAddr>) -> Result<()> {
    keys(addresses).try_for_each(|key| sysctl::check_settable(key, "1"))
}

/// Fails if forwarding is disabled.
fn check(addresses: impl IntoIterator<Item = IpAddr>) -> Result<()> {
    for key in keys(addresses) {
        if sysctl::get(key)?.as_deref() == Some("0") {
            let key = sysctl::dotted(key);
            return Err(Error::difference(format_args!("IP forwarding is disabled: {key} is 0")));
        }
    }
    Ok(())
}

/// Forwarding for the families of the addresses.
pub fn reconcile(host: &Rtnl, addresses: &[IpAddr], parts: &mut Parts) -> Result<()> {
    IpFamily::ALL.into_iter().try_for_each(|family| {
        let own = || addresses.iter().copied().filter(|address| family.has(*address));
        parts.ensure(&|| check(own()), &mut || enable(host, own()))
    })
}

const ALL_V6: &str = "net/ipv6/conf/all/forwarding";

/// The sysctls that enable forwarding for the families of the addresses, each once.
fn keys(addresses: impl IntoIterator<Item = IpAddr>) -> impl Iterator<Item = &'static str> {
    let (mut v4, mut v6) = (None, None);
    for address in addresses {
        match address {
            IpAddr::V4(_) => v4 = Some("net/ipv4/ip_forward"),
            IpAddr::V6(_) => v6 = Some(ALL_V6),
        }
    }
    v4.into_iter().chain(v6)
}

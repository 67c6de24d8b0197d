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
use crate::netlink::rtnl::{Link, LinkChange, Rtnl};
use crate::plugin::parts::Parts;

/// Enables forwarding for the families of the addresses.
pub fn enable(host: &Rtnl, addresses: impl IntoIterator<Item = IpAddr>) -> Result<()> {
    families(addresses).try_for_each(|family| enable_family(host, family))
}

/// Enables forwarding of the IPv4 packets that arrive on a link of the host, if the host's defaults for new links lack it. (Whether
/// the host forwards IPv6 packets does not depend on the link.)
pub fn enable_ipv4_on(host: &Rtnl, link: &Link) -> Result<()> {
    if link.forwards_ipv4 != Some(false) {
        return Ok(());
    }
    let change = LinkChange { forward_ipv4: true, ..LinkChange::default() };
    host.change_link(link.index, &link.name, &change)
}

/// Enables IPv6 on a link of the host. On a kernel without IPv6, the later request for the address fails.
pub fn enable_ipv6(link: &Link) -> Result<()> {
    match link.disables_ipv6 {
        Some(false) => Ok(()),
        Some(true) | None => {
            sysctl::set_if_exists(&sysctl::of_link(IpFamily::V6, &link.name, "disable_ipv6"), "0")
        }
    }
}

/// Fails if a link of the host lacks what it needs to route for containers.
fn check_on(link: &Link, family: IpFamily) -> Result<()> {
    let (key, value) = match family {
        IpFamily::V4 if link.forwards_ipv4 == Some(false) => ("forwarding", 0),
        IpFamily::V6 if link.disables_ipv6 == Some(true) => ("disable_ipv6", 1),
        _ => return Ok(()),
    };
    let key = sysctl::dotted(&sysctl::of_link(family, &link.name, key));
    let msg = format!("{} does not forward packets of containers: {key} is {value}", link.name);
    Err(Error::difference(msg).of_shared(format_args!("sysctl {key}")))
}

/// Enables forwarding if it is disabled. The host keeps its routes from router advertisements.
fn enable_family(host: &Rtnl, family: IpFamily) -> Result<()> {
    match host.forwarding(family)? {
        Some(true) => return Ok(()),
        Some(false) if family == IpFamily::V6 => keep_advertisements(host)?,
        _ => {}
    }
    sysctl::set(key(family), "1").map(drop)
}

/// Sets accept_ra=2 on each link that accepts router advertisements now. The links of containers have accept_ra=0. The kernel
/// ignores accept_ra of `all`; that of `default` would make later links accept advertisements, such as the links of other
/// containers.
fn keep_advertisements(host: &Rtnl) -> Result<()> {
    for link in host.links()?.iter().filter(|link| link.accept_ra == Some(1)) {
        let key = |key: &str| sysctl::of_link(IpFamily::V6, &link.name, key);
        let forwarding = key("forwarding");
        match sysctl::get(&forwarding) {
            Ok(Some(value)) if value == "0" => sysctl::set_if_exists(&key("accept_ra"), "2")?,
            Ok(Some(_)) => {}
            Ok(None) => {
                let key = sysctl::dotted(&forwarding);
                return Err(Error::internal(format_args!("cannot read {key}"))
                    .with_details("the host would lose the routes that its router advertises"));
            }
            // The link was removed.
            Err(_) if host.link(&link.name)?.is_none() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// For STATUS: fails if forwarding is disabled and cannot be enabled.
pub fn check_possible(addresses: impl IntoIterator<Item = IpAddr>) -> Result<()> {
    families(addresses).try_for_each(|family| sysctl::check_settable(key(family), "1"))
}

/// Fails if forwarding is disabled.
fn check(host: &Rtnl, family: IpFamily) -> Result<()> {
    if host.forwarding(family)? == Some(false) {
        let key = sysctl::dotted(key(family));
        let msg = format!("IP forwarding is disabled: {key} is 0");
        return Err(Error::difference(msg).of_shared(format_args!("sysctl {key}")));
    }
    Ok(())
}

/// Forwarding for the families of the addresses, of the host and of the link `name`, which has the addresses.
pub fn reconcile(host: &Rtnl, name: &str, addresses: &[IpAddr], parts: &mut Parts) -> Result<()> {
    families(addresses.iter().copied()).try_for_each(|family| {
        parts.ensure(&|| check(host, family), &mut || enable_family(host, family))?;
        // The caller compares whether the link exists.
        let compare = || host.link(name)?.map_or(Ok(()), |link| check_on(&link, family));
        parts.ensure(&compare, &mut || {
            let link = host.link(name)?;
            link.map_or(Ok(()), |link| match family {
                IpFamily::V4 => enable_ipv4_on(host, &link),
                IpFamily::V6 => enable_ipv6(&link),
            })
        })
    })
}

/// The families of the addresses, each once.
fn families(addresses: impl IntoIterator<Item = IpAddr>) -> impl Iterator<Item = IpFamily> {
    let addresses: Vec<IpAddr> = addresses.into_iter().collect();
    let is_used = move |family: &IpFamily| addresses.iter().any(|address| family.has(*address));
    IpFamily::ALL.into_iter().filter(is_used)
}

/// The sysctl that enables forwarding.
fn key(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "net/ipv4/ip_forward",
        IpFamily::V6 => "net/ipv6/conf/all/forwarding",
    }
}

//! IP forwarding of the host, which a gateway needs. It stays enabled, as with the reference, because other software may need
//! it.

use std::net::IpAddr;

use crate::error::{Error, Result};
use crate::kernel::sysctl;
use crate::names::IpFamily;
use crate::plugin::restore::Parts;

/// Enables forwarding for the families of the addresses.
pub fn enable(addresses: impl IntoIterator<Item = IpAddr>) -> Result<()> {
    keys(addresses).try_for_each(|key| sysctl::set(key, "1").map(drop))
}

/// For STATUS: forwarding is enabled, or can be.
pub fn is_possible(addresses: impl IntoIterator<Item = IpAddr>) -> Result<()> {
    keys(addresses).try_for_each(|key| sysctl::check_settable(key, "1"))
}

/// For CHECK: forwarding is enabled.
pub fn check(addresses: impl IntoIterator<Item = IpAddr>) -> Result<()> {
    for key in keys(addresses) {
        if sysctl::get(key)?.as_deref() == Some("0") {
            let key = key.replace('/', ".");
            return Err(Error::internal(format_args!("IP forwarding is disabled: {key} is 0")));
        }
    }
    Ok(())
}

/// Restores forwarding for the families of the addresses.
pub fn restore(addresses: &[IpAddr], parts: &mut Parts) {
    for family in IpFamily::ALL {
        let own = || addresses.iter().copied().filter(|address| family.has(*address));
        parts.ensure(&|| check(own()), &mut || enable(own()));
    }
}

/// The sysctls of the families, each once.
fn keys(addresses: impl IntoIterator<Item = IpAddr>) -> impl Iterator<Item = &'static str> {
    let (mut v4, mut v6) = (None, None);
    for address in addresses {
        match address {
            IpAddr::V4(_) => v4 = Some("net/ipv4/ip_forward"),
            IpAddr::V6(_) => v6 = Some("net/ipv6/conf/all/forwarding"),
        }
    }
    v4.into_iter().chain(v6)
}

//! Makes the host forward packets, which it must as somebody's gateway. Nobody turns it off again: other software may
//! have come to need it, and the reference leaves it on, too.

use std::net::IpAddr;

use crate::error::Result;
use crate::kernel::sysctl;

/// Turns forwarding on for the families of the addresses.
pub fn enable(addresses: impl IntoIterator<Item = IpAddr>) -> Result<()> {
    let (mut v4, mut v6) = (false, false);
    for address in addresses {
        let (is_done, key) = match address {
            IpAddr::V4(_) => (&mut v4, "net/ipv4/ip_forward"),
            IpAddr::V6(_) => (&mut v6, "net/ipv6/conf/all/forwarding"),
        };
        if !*is_done {
            sysctl::set(key, "1")?;
            *is_done = true;
        }
    }
    Ok(())
}

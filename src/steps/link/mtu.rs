//! Checks the MTU of an interface: the range of the kernel, and the minimum of IPv6.

use std::ops::RangeInclusive;

use crate::error::{Error, Result};
use crate::netlink::rtnl::{Link, Rtnl};
use crate::plugin::Context;
use crate::steps::delegate;

/// The MTUs of an Ethernet link (ETH_MIN_MTU and ETH_MAX_MTU in linux/if_ether.h).
pub const ETHERNET: RangeInclusive<u32> = 68..=65_535;

/// IPV6_MIN_MTU (linux/ipv6.h). A link with a smaller MTU has no IPv6: the kernel removes the addresses without an error.
pub const IPV6_MIN: u32 = 1280;

/// The error of a configured MTU that the kernel does not accept.
pub fn invalid(mtu: i64, range: &RangeInclusive<u32>) -> Error {
    let (min, max) = (range.start(), range.end());
    Error::config(format_args!("invalid MTU {mtu}, must be [{min}, {max}]")).with_details("mtu")
}

/// Fails if the configured MTU is too small for the addresses that the IPAM plugin gives to every container.
pub fn check_ipv6(cx: &Context<'_>, mtu: Option<u32>) -> Result<()> {
    match mtu {
        Some(mtu) if is_too_small(mtu) && delegate::expected(cx)?.has_v6 => Err(too_small(mtu)),
        _ => Ok(()),
    }
}

/// Fails if the MTU of a link, which the interface inherits, is too small for the addresses from the IPAM plugin.
pub fn check_ipv6_of(cx: &Context<'_>, link: &Link) -> Result<()> {
    match require_ipv6(link) {
        Err(error) if delegate::expected(cx)?.has_v6 => Err(error),
        _ => Ok(()),
    }
}

/// Whether an MTU is below the minimum of IPv6.
pub fn is_too_small(mtu: u32) -> bool {
    mtu < IPV6_MIN
}

/// The error of a configured MTU that is too small for IPv6.
pub fn too_small(mtu: u32) -> Error {
    Error::config(format_args!(
        "cannot use mtu {mtu} with IPv6 addresses: the minimum is {IPV6_MIN}"
    ))
}

/// Fails if the MTU of the link is too small for IPv6.
pub fn require_ipv6(link: &Link) -> Result<()> {
    let (name, mtu) = (&link.name, link.mtu);
    if !is_too_small(mtu) {
        return Ok(());
    }
    let msg = format_args!("{name} cannot have IPv6 addresses: its mtu {mtu} is below {IPV6_MIN}");
    Err(Error::internal(msg))
}

/// Adds the reason to the kernel's error about an IPv6 address, if the reason is the MTU of the link.
pub fn explain(error: Error, rtnl: &Rtnl, index: u32) -> Error {
    match rtnl.link_at(index).map(|link| link.map(|link| require_ipv6(&link))) {
        Ok(Some(Err(reason))) => error.with_details(reason.to_string()),
        _ => error,
    }
}

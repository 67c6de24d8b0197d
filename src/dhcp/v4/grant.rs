//! Makes a lease from a reply of a server. Every value is validated before it is used.

use crate::dhcp::time::Time;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::option::{DNS, LEASE_TIME, REBINDING_TIME, RENEWAL_TIME, is_host};
use super::packet::Reply;
use crate::dhcp::lease::v4::Lease;
use crate::dhcp::random::Random;
use crate::names::reserved;

/// The lease time if the server sends none, in seconds, as in the reference.
const LEASE_SECS: u32 = 3600;
/// A shorter lease is refused: its renewals would flood the network.
const LEASE_SECS_MIN: u32 = 2;
/// The lease time that means forever (RFC 2131, section 3.3).
const INFINITE: u32 = u32::MAX;

/// Validates a DHCPOFFER or DHCPACK. Returns its address and its server, or the reason why the client cannot use it.
pub fn check(reply: &Reply) -> Result<(Ipv4Net, Ipv4Addr), &'static str> {
    let server = reply.options.server().ok_or("the server did not send its identifier")?;
    // The text is the reference's.
    let bits = reply.options.prefix_len().ok_or("DHCP option Subnet Mask not found in DHCPACK")?;
    let net = Ipv4Net::new_assert(reply.yiaddr, bits);
    if !is_host(net.addr()) || reserved::in_subnet(&net.into()).is_some() {
        return Err("the server offered an address that no interface can have");
    }
    if reply.options.u32(LEASE_TIME).is_some_and(|secs| secs < LEASE_SECS_MIN) {
        return Err("the server offered a lease of less than 2 s");
    }
    Ok((net, server))
}

/// The lease of a DHCPACK. The client sent the DHCPREQUEST at `since`.
pub fn lease(reply: &Reply, since: Time, random: &mut Random) -> Result<Lease, &'static str> {
    let (address, server) = check(reply)?;
    let options = &reply.options;
    let secs = options.u32(LEASE_TIME).unwrap_or(LEASE_SECS);
    let (renew, rebind) = times(secs, options.u32(RENEWAL_TIME), options.u32(REBINDING_TIME));
    Ok(Lease {
        address,
        server,
        gateway: options.gateway(address),
        routes: options.routes(address),
        mtu: options.mtu(),
        dns: options.hosts(DNS),
        domain: options.domain(),
        search: options.search(),
        since,
        // Clients that started together renew at different times.
        renew_at: since + renew - random.up_to(renew / 20),
        rebind_at: since + rebind,
        ends_at: (secs != INFINITE).then(|| since + Time::from_secs(secs.into())),
    })
}

/// T1 and T2 for a lease time. The defaults are half and 85 % of it. The server's values are used if 1 s <= T1 < T2 < lease
/// time.
fn times(lease: u32, t1: Option<u32>, t2: Option<u32>) -> (Time, Time) {
    let secs = |secs: u32| Time::from_secs(secs.into());
    let default = (secs(lease) / 2, secs(lease) * 17 / 20);
    if lease == INFINITE {
        return (secs(lease), secs(lease));
    }
    let is_consistent = |(t1, t2)| secs(1) <= t1 && t1 < t2 && t2 < secs(lease);
    let of_server = (t1.map_or(default.0, secs), t2.map_or(default.1, secs));
    if is_consistent(of_server) { of_server } else { default }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_server_are_used_if_they_are_in_order() {
        let ms = |t1, t2| {
            let (renew, rebind) = times(100, t1, t2);
            (renew.as_millis(), rebind.as_millis())
        };
        assert_eq!(ms(None, None), (50_000, 85_000));
        assert_eq!(ms(Some(10), Some(20)), (10_000, 20_000));
        assert_eq!(ms(Some(10), None), (10_000, 85_000));
        assert_eq!(ms(None, Some(60)), (50_000, 60_000));
        for (t1, t2) in [(20, 10), (0, 10), (10, 10), (50, 100), (u32::MAX, u32::MAX)] {
            assert_eq!(ms(Some(t1), Some(t2)), (50_000, 85_000), "{t1} {t2}");
        }
        let forever = Time::from_secs(u32::MAX.into());
        assert_eq!(times(INFINITE, Some(1), Some(2)), (forever, forever));
        assert_eq!(times(2, None, None).0, Time::from_secs(1));
    }
}

//! Makes a lease from a reply of a server. Every value is validated before it is used.

use std::net::Ipv6Addr;

use super::packet::{Address, Ia, Reply, Status};
use crate::dhcp::lease::v6::Lease;
use crate::dhcp::random::Random;
use crate::dhcp::time::Time;

/// A shorter valid lifetime is refused: its renewals would flood the network.
pub const VALID_SECS_MIN: u32 = 2;
const INFINITE: u32 = u32::MAX;

/// The best address of a reply: the address that the client holds, else the first usable address. The error is the reason why
/// the reply has no usable address.
pub fn choose(reply: &Reply, held: Option<Ipv6Addr>) -> Result<(&Ia, Address), &'static str> {
    const NONE: &str = "the server has no address (NoAddrsAvail)";
    let ia = reply.ia.as_ref().ok_or(match reply.status {
        Status::NO_ADDRS_AVAIL => NONE,
        _ => "the server offered no address",
    })?;
    match (ia.status, reply.status) {
        (Status::SUCCESS, Status::SUCCESS) => {}
        (Status::NO_ADDRS_AVAIL, _) | (_, Status::NO_ADDRS_AVAIL) => return Err(NONE),
        (Status::NOT_ON_LINK, _) | (_, Status::NOT_ON_LINK) => {
            return Err("the server refused the link of the address (NotOnLink)");
        }
        _ => return Err("the server failed"),
    }
    let usable = || ia.addresses.iter().filter(|address| address.valid >= VALID_SECS_MIN);
    let best = usable().find(|address| Some(address.address) == held).or_else(|| usable().next());
    best.map(|address| (ia, *address)).ok_or("the server offered no address")
}

/// The lease of a REPLY. The client sent the message at `since`.
pub fn lease(
    reply: Reply,
    held: Option<Ipv6Addr>,
    since: Time,
    random: &mut Random,
) -> Result<Lease, &'static str> {
    let (ia, address) = choose(&reply, held)?;
    let end = |secs: u32| (secs != INFINITE).then(|| since + Time::from_secs(secs.into()));
    let (renew, rebind) = times(ia, &address);
    Ok(Lease {
        address: address.address,
        server: reply.server,
        dns: reply.dns,
        search: reply.search,
        since,
        // Clients that started together renew at different times.
        renew_at: since + renew - random.up_to(renew / 20),
        rebind_at: since + rebind,
        preferred_until: end(address.preferred),
        ends_at: end(address.valid),
    })
}

/// T1 and T2. The defaults are half and 80 % of the preferred lifetime (RFC 8415, section 21.4), or of the valid lifetime if
/// the address is deprecated. A value of 0 is replaced by its default. The server's values are used if 1 s <= T1 < T2 < valid
/// lifetime.
fn times(ia: &Ia, address: &Address) -> (Time, Time) {
    let secs = |secs: u32| Time::from_secs(secs.into());
    if address.preferred == INFINITE && (ia.t1 == 0 || ia.t1 == INFINITE) {
        return (secs(INFINITE), secs(INFINITE));
    }
    let life = if address.preferred < VALID_SECS_MIN { address.valid } else { address.preferred };
    let default = (secs(life) / 2, secs(life) * 4 / 5);
    let of_server = |given: u32, default| if given == 0 { default } else { secs(given) };
    let (t1, t2) = (of_server(ia.t1, default.0), of_server(ia.t2, default.1));
    let is_consistent = secs(1) <= t1 && t1 < t2 && t2 < secs(address.valid);
    if is_consistent { (t1, t2) } else { default }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_server_are_used_if_they_are_in_order() {
        let check = |t1, t2, preferred, valid| {
            let ia = Ia { t1, t2, ..Ia::default() };
            let (renew, rebind) =
                times(&ia, &Address { address: Ipv6Addr::LOCALHOST, preferred, valid });
            (renew.as_millis(), rebind.as_millis())
        };
        assert_eq!(check(0, 0, 100, 200), (50_000, 80_000));
        assert_eq!(check(10, 20, 100, 200), (10_000, 20_000));
        assert_eq!(check(10, 0, 100, 200), (10_000, 80_000));
        assert_eq!(check(0, 90, 100, 200), (50_000, 90_000));
        assert_eq!(check(90, 0, 100, 200), (50_000, 80_000));
        assert_eq!(check(10, 10, 100, 200), (50_000, 80_000));
        assert_eq!(check(10, 200, 100, 200), (50_000, 80_000));
        assert_eq!(check(0, 0, 0, 200), (100_000, 160_000));
        let forever = u64::from(u32::MAX) * 1000;
        assert_eq!(check(0, 0, INFINITE, INFINITE), (forever, forever));
        assert_eq!(check(0, 0, 100, INFINITE), (50_000, 80_000));
    }
}

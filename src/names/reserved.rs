//! Address ranges that cannot be the subnet of a network, and addresses of a subnet that no host can have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// A range, and the reason why no network can have a subnet there.
#[derive(Debug)]
pub struct Reserved {
    pub net: IpNet,
    pub reason: &'static str,
}

/// Source: the IANA registries of special-purpose addresses for IPv4 and IPv6 (RFC 6890). The other ranges of the registries
/// work as subnets.
const RESERVED: [Reserved; 10] = [
    v4([0, 0, 0, 0], 8, "it is \"this network\" (RFC 1122), not an address of a host"),
    v4([127, 0, 0, 0], 8, "it is the loopback network of each host"),
    v4([169, 254, 0, 0], 16, "it is link-local: routers do not forward it"),
    v4([224, 0, 0, 0], 4, "it is multicast"),
    v4([240, 0, 0, 0], 4, "it is reserved, and ends with the broadcast address"),
    v6(0, 128, "it is the unspecified address"),
    v6(1, 128, "it is the loopback address of each host"),
    v6(0xffff_0000_0000, 96, "it is IPv4-mapped: no packet has such an address"),
    v6(0xfe80 << 112, 10, "it is link-local: routers do not forward it"),
    v6(0xff00 << 112, 8, "it is multicast"),
];

const fn v4([a, b, c, d]: [u8; 4], prefix: u8, reason: &'static str) -> Reserved {
    let net = IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix);
    Reserved { net, reason }
}

const fn v6(bits: u128, prefix: u8, reason: &'static str) -> Reserved {
    Reserved { net: IpNet::new_assert(IpAddr::V6(Ipv6Addr::from_bits(bits)), prefix), reason }
}

/// The reserved range that contains the subnet, or that the subnet contains.
pub fn reserved(subnet: &IpNet) -> Option<&'static Reserved> {
    RESERVED.iter().find(|Reserved { net, .. }| net.contains(subnet) || subnet.contains(net))
}

/// Why no host can have an address on a link with broadcast. The prefix length is that of the subnet. Subnets of one or two
/// addresses consist of addresses of hosts (RFC 3021, RFC 6164).
pub fn in_subnet(address: &IpNet) -> Option<&'static str> {
    let ip = address.addr();
    match ip {
        _ if address.prefix_len() + 1 >= address.max_prefix_len() => None,
        IpAddr::V4(_) if ip == address.network() => Some("it is the network address of its subnet"),
        IpAddr::V4(_) if ip == address.broadcast() => {
            Some("it is the broadcast address of its subnet")
        }
        // RFC 4291, section 2.6.1
        IpAddr::V6(_) if ip == address.network() => {
            Some("it is the anycast address of the routers of its subnet")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_within_a_reserved_range_or_around_it_is_reserved() {
        for (subnet, expected) in [
            ("0.1.0.0/16", "0.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/8"),
            ("127.5.0.0/24", "127.0.0.0/8"),
            ("126.0.0.0/7", "127.0.0.0/8"),
            ("169.254.7.0/24", "169.254.0.0/16"),
            ("169.0.0.0/8", "169.254.0.0/16"),
            ("224.0.0.0/24", "224.0.0.0/4"),
            ("239.255.0.0/16", "224.0.0.0/4"),
            ("192.0.0.0/2", "224.0.0.0/4"),
            ("240.0.0.0/24", "240.0.0.0/4"),
            ("255.255.255.0/24", "240.0.0.0/4"),
            ("::/0", "::/128"),
            ("::/64", "::/128"),
            ("::1/128", "::1/128"),
            ("::ffff:10.5.0.0/120", "::ffff:0:0/96"),
            ("::fffe:0:0/95", "::ffff:0:0/96"),
            ("fe80::/64", "fe80::/10"),
            ("febf::/64", "fe80::/10"),
            ("ff02::/16", "ff00::/8"),
            ("f000::/4", "fe80::/10"),
        ] {
            let found = reserved(&subnet.parse().unwrap());
            let expected: IpNet = expected.parse().unwrap();
            assert_eq!(found.map(|found| found.net), Some(expected), "{subnet}");
        }
    }

    #[test]
    fn only_subnets_of_more_than_two_addresses_have_a_network_and_a_broadcast_address() {
        for (address, is_of_a_host) in [
            ("10.1.0.0/24", false),
            ("10.1.0.255/24", false),
            ("10.1.0.255/16", true),
            ("10.1.0.4/30", false),
            ("10.1.0.7/30", false),
            ("10.1.0.5/30", true),
            ("10.1.0.4/31", true),
            ("10.1.0.5/31", true),
            ("10.1.0.5/32", true),
            ("fd00::/64", false),
            ("fd00::ffff:ffff:ffff:ffff/64", true),
            ("fd00::4/126", false),
            ("fd00::4/127", true),
            ("fd00::4/128", true),
        ] {
            assert_eq!(in_subnet(&address.parse().unwrap()).is_none(), is_of_a_host, "{address}");
        }
    }

    #[test]
    fn the_neighbors_of_reserved_ranges_are_subnets() {
        for subnet in [
            "1.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "126.0.0.0/8",
            "128.0.0.0/16",
            "169.253.0.0/16",
            "169.255.0.0/16",
            "192.0.2.0/24",
            "198.18.0.0/15",
            "223.255.255.0/24",
            "0:0:0:1::/64",
            "64:ff9b::/96",
            "2001:db8::/32",
            "fd00::/8",
            "fec0::/10",
        ] {
            let found = reserved(&subnet.parse().unwrap());
            assert!(found.is_none(), "{subnet}: {found:?}");
        }
    }
}

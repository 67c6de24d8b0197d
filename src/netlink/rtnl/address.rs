//! Addresses of links: reading, adding and deleting them, and waiting for duplicate address detection.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use neli::consts::nl::NlmF;
use nix::libc;

use super::consts::AF_UNSPEC;
use super::{Batch, Rtnl};
use crate::error::{Error, Result};
use crate::names::IpFamily;
use crate::netlink::{AF_INET6, Attrs, Requests, attribute, fixed, ip_of, u32_at, u32_of};

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address with its prefix length.
    pub net: IpNet,
    /// The address is not usable yet: duplicate address detection is running.
    pub tentative: bool,
    /// Duplicate address detection found another host with the address.
    pub dad_failed: bool,
    /// Scope link: an IPv6 link-local address, or an IPv4 address with that scope.
    pub scope_link: bool,
    /// The kernel added no route to the prefix (IFA_F_NOPREFIXROUTE).
    pub no_prefix_route: bool,
    /// IFA_F_PERMANENT: set by configuration without a lifetime, not learned from router advertisements.
    pub permanent: bool,
}

/// An address to add, with scope global.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewAddress {
    pub net: IpNet,
    /// IPv6: the kernel does no duplicate address detection, so the address is usable at once.
    pub no_dad: bool,
    /// The kernel adds no route to the prefix.
    pub no_prefix_route: bool,
    /// An existing address is no error.
    pub may_exist: bool,
}

impl Rtnl {
    /// The IPv4 and IPv6 addresses of a link.
    pub fn addresses(&self, index: u32) -> Result<Vec<Address>> {
        self.list_addresses(AF_UNSPEC, index)
    }

    /// The addresses of a link in one family. For a list of all families, the kernel takes the lock of all links.
    pub fn addresses_of(&self, index: u32, family: IpFamily) -> Result<Vec<Address>> {
        self.list_addresses(family.number(), index)
    }

    /// The addresses of all links.
    pub fn all_addresses(&self) -> Result<Vec<IpAddr>> {
        self.dump_addresses(|_, address| address.net.addr())
    }

    /// The addresses of all links, each with the index of its link. A link that vanishes meanwhile is no error.
    pub fn addresses_by_link(&self) -> Result<Vec<(u32, Address)>> {
        self.dump_addresses(|index, address| (index, address))
    }

    fn dump_addresses<T>(&self, read: impl Fn(u32, Address) -> T) -> Result<Vec<T>> {
        let doing = "cannot list addresses";
        let header = header(AF_UNSPEC, 0, 0);
        let request = Requests::bare(libc::RTM_GETADDR, NlmF::empty(), doing, &header);
        let read =
            |payload: &[u8]| Address::parse(payload).map(|(index, address)| read(index, address));
        Ok(self.socket.dump(request, read)?)
    }

    /// Waits until all IPv6 addresses of the link are usable. Fails if another host has an address, and after the timeout.
    /// Without a carrier the timeout is no error, because duplicate address detection cannot run. The name is for the error
    /// message.
    pub fn wait_for_dad(&self, index: u32, name: &str, timeout: Duration) -> Result<()> {
        let (is_settled, addresses) = self.wait(libc::RTNLGRP_IPV6_IFADDR, timeout, || {
            let addresses = self.list_addresses(AF_INET6, index)?;
            let is_failed = addresses.iter().any(|address| address.dad_failed);
            let is_settled = is_failed || addresses.iter().all(|address| !address.tentative);
            Ok((is_settled, addresses))
        })?;
        let cannot_use = |address: &Address, why: &str| {
            let ip = address.net.addr();
            Err(Error::internal(format_args!("cannot use address {ip} on {name}: {why}")))
        };
        if let Some(failed) = addresses.iter().find(|address| address.dad_failed) {
            return cannot_use(failed, "another host has it");
        }
        let has_carrier =
            || -> Result<bool> { Ok(self.link_at(index)?.is_some_and(|link| link.operstate_up)) };
        match addresses.iter().find(|address| address.tentative) {
            Some(tentative) if !is_settled && has_carrier()? => {
                let timeout_ms = timeout.as_millis();
                cannot_use(
                    tentative,
                    &format!("duplicate address detection takes longer than {timeout_ms} ms"),
                )
            }
            _ => Ok(()),
        }
    }

    fn list_addresses(&self, family: u8, index: u32) -> Result<Vec<Address>> {
        let doing = format!("cannot list addresses of link {index}");
        let header = header(family, 0, index);
        let request = Requests::bare(libc::RTM_GETADDR, NlmF::empty(), doing, &header);
        let read = |payload: &[u8]| {
            let (of, address) = Address::parse(payload)?;
            (of == index).then_some(address)
        };
        Ok(self.socket.dump(request, read)?)
    }
}

impl Batch {
    /// Adds an address to a link. The name is for the error message.
    pub fn add_address(&mut self, index: u32, name: &str, new: &NewAddress) {
        let doing = format!("cannot add address {} to {name}", new.net);
        let flags = NlmF::CREATE | NlmF::EXCL;
        self.requests.push(libc::RTM_NEWADDR, flags, doing, |attrs| {
            encode_net(index, &new.net, attrs);
            if let IpNet::V4(net) = new.net
                && net.prefix_len() < 31
            {
                attrs.bytes(libc::IFA_BROADCAST, &net.broadcast().octets());
            }
            let mut flags = 0;
            if new.no_dad && matches!(new.net, IpNet::V6(_)) {
                flags |= libc::IFA_F_NODAD;
            }
            if new.no_prefix_route {
                flags |= libc::IFA_F_NOPREFIXROUTE;
            }
            if flags != 0 {
                attrs.u32(libc::IFA_FLAGS, flags);
            }
        });
        if new.may_exist {
            self.requests.tolerate(libc::EEXIST);
        }
    }

    /// Deletes an address of a link. A missing address is no error.
    pub fn del_address(&mut self, index: u32, name: &str, net: IpNet) {
        let doing = format!("cannot delete address {net} from {name}");
        let encode = |attrs: &mut Attrs| encode_net(index, &net, attrs);
        self.requests.push(libc::RTM_DELADDR, NlmF::empty(), doing, encode);
        self.requests.tolerate(libc::EADDRNOTAVAIL);
    }
}

fn encode_net(index: u32, net: &IpNet, attrs: &mut Attrs) {
    attrs.raw(&header(IpFamily::of(net.addr()).number(), net.prefix_len(), index));
    attrs.ip(libc::IFA_LOCAL, net.addr());
    attrs.ip(libc::IFA_ADDRESS, net.addr());
}

impl Address {
    /// Whether programs can use the address: no duplicate address detection is running or has failed.
    pub fn is_usable(&self) -> bool {
        !self.tentative && !self.dad_failed
    }

    /// Reads the index of the link, and the address, from the payload of a message.
    fn parse(payload: &[u8]) -> Option<(u32, Self)> {
        let [family, prefix_len, flags, scope] = fixed(payload, 0)?;
        let index = u32_at(payload, 4)?;
        let list = payload.get(HEADER_BYTES..)?;
        let flags =
            attribute(list, libc::IFA_FLAGS).and_then(u32_of).unwrap_or_else(|| flags.into());
        let ip = |kind| ip_of(family, attribute(list, kind)?);
        // On a point-to-point link IFA_ADDRESS is the address of the peer.
        let ip = ip(libc::IFA_LOCAL).or_else(|| ip(libc::IFA_ADDRESS))?;
        let net = IpNet::new(ip, prefix_len).ok()?;
        let is_optimistic = flags & libc::IFA_F_OPTIMISTIC != 0;
        let address = Self {
            net,
            tentative: flags & libc::IFA_F_TENTATIVE != 0 && !is_optimistic,
            dad_failed: flags & libc::IFA_F_DADFAILED != 0,
            scope_link: scope == libc::RT_SCOPE_LINK,
            no_prefix_route: flags & libc::IFA_F_NOPREFIXROUTE != 0,
            permanent: flags & libc::IFA_F_PERMANENT != 0,
        };
        Some((index, address))
    }
}

const HEADER_BYTES: usize = 8;

/// struct ifaddrmsg: family, prefix length, flags, scope (global), index.
fn header(family: u8, prefix_len: u8, index: u32) -> [u8; HEADER_BYTES] {
    let [a, b, c, d] = index.to_ne_bytes();
    [family, prefix_len, 0, libc::RT_SCOPE_UNIVERSE, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::rows;

    fn new(net: &str) -> NewAddress {
        let net = net.parse().unwrap();
        NewAddress { net, no_dad: true, no_prefix_route: false, may_exist: false }
    }

    #[test]
    fn added_addresses() {
        for (new, expected) in [
            (
                new("10.1.0.5/16"),
                "30000000 14000106 00000000 00000000 02100000 07000000 \
                 08000200 0a010005 08000100 0a010005 08000400 0a01ffff",
            ),
            (
                NewAddress { no_prefix_route: true, ..new("10.1.0.5/31") },
                "30000000 14000106 00000000 00000000 021f0000 07000000 \
                 08000200 0a010005 08000100 0a010005 08000800 00020000",
            ),
            (
                new("2001:db8::5/64"),
                "48000000 14000106 00000000 00000000 0a400000 07000000 \
                 14000200 20010db8 00000000 00000000 00000005 \
                 14000100 20010db8 00000000 00000000 00000005 08000800 02000000",
            ),
        ] {
            let mut batch = Batch::new();
            batch.add_address(7, "eth0", &new);
            assert_eq!(rows(&batch.requests.bytes()), expected, "{}", new.net);
        }
    }

    #[test]
    fn addresses_are_read() {
        let (v4, v6) = ([10, 1, 0, 5], "fe80::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        let link = libc::RT_SCOPE_LINK;
        let read = |header: [u8; 8], list: &[(u16, &[u8])]| {
            let mut reply = Attrs::default();
            reply.raw(&header);
            list.iter().for_each(|(kind, value)| reply.bytes(*kind, value));
            Address::parse(reply.as_slice()).map(|(index, address)| {
                let Address { net, tentative, dad_failed, scope_link, .. } = address;
                (index, net.to_string(), [tentative, dad_failed, scope_link])
            })
        };
        // Point to point: IFA_ADDRESS is the address of the peer.
        let list: [(u16, &[u8]); 2] = [(libc::IFA_ADDRESS, &[10, 9, 9, 9]), (libc::IFA_LOCAL, &v4)];
        let expected = Some((7, "10.1.0.5/16".into(), [false; 3]));
        assert_eq!(read([2, 16, 0, 0, 7, 0, 0, 0], &list), expected);

        for (flags, tentative, failed) in [
            (0x80_u32, false, false),
            (0xc0, true, false),
            (0x44, false, false),
            (0x48, true, true),
        ] {
            let flags = flags.to_ne_bytes();
            let list: [(u16, &[u8]); 2] = [(libc::IFA_ADDRESS, &v6), (libc::IFA_FLAGS, &flags)];
            let expected = Some((7, "fe80::1/64".into(), [tentative, failed, true]));
            assert_eq!(read([10, 64, 0, link, 7, 0, 0, 0], &list), expected);
        }

        for (header, list) in [
            ([2, 33, 0, 0, 7, 0, 0, 0], &[(libc::IFA_LOCAL, &v4[..])][..]), // no such prefix
            ([2, 16, 0, 0, 7, 0, 0, 0], &[(libc::IFA_LOCAL, &v4[..3])]),    // half an address
            ([10, 16, 0, 0, 7, 0, 0, 0], &[(libc::IFA_LOCAL, &v4[..])]),    // of another family
            ([28, 16, 0, 0, 7, 0, 0, 0], &[(libc::IFA_LOCAL, &v4[..])]),    // of an unknown family
            ([2, 16, 0, 0, 7, 0, 0, 0], &[]),
        ] {
            assert_eq!(read(header, list), None);
        }
        assert_eq!(Address::parse(&[2, 16, 0]), None);
    }
}

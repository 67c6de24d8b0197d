//! The packets of the probe: Ethernet frames with a UDP datagram or a TCP SYN as programs on Linux send them. Hosts have rules
//! that drop others.

use std::net::IpAddr;

use crate::kernel::packet::{ETH_P_IP, ETH_P_IPV6};
use crate::names::Mac;
use crate::netlink::fixed;
use crate::netlink::nft::Transport;

/// The first packet of a connection, or a neighbour solicitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) transport: Transport,
    pub(super) source_port: u16,
    pub(super) port: u16,
}

impl Packet {
    /// A neighbour solicitation (RFC 4861, section 4.3): the question for the Ethernet address of `to`. Its type and code, and its
    /// checksum, are in the place of ports.
    pub(super) fn solicitation(from: IpAddr, to: IpAddr, mac: Mac) -> Self {
        let (transport, source_port) = (Transport::Icmpv6, SOLICITATION);
        let packet = Self { from, to, transport, source_port, port: 0 };
        let frame = packet.frame(mac, mac);
        let checksum = frame.get(ETHERNET_BYTES + IPV6_BYTES + 2..);
        let port = checksum.and_then(|bytes| fixed(bytes, 0)).map_or(0, u16::from_be_bytes);
        Self { port, ..packet }
    }

    pub(super) fn ethertype(&self) -> u16 {
        if self.from.is_ipv4() { ETH_P_IP } else { ETH_P_IPV6 }
    }

    /// The frame from one Ethernet address to another. Both IP addresses are of one family.
    pub(super) fn frame(&self, from: Mac, to: Mac) -> Vec<u8> {
        let mut segment = [self.source_port.to_be_bytes(), self.port.to_be_bytes()].concat();
        let checksum_at = match self.transport {
            Transport::Icmpv6 => {
                segment = [self.source_port.to_be_bytes(), [0; 2], [0; 2], [0; 2]].concat();
                segment.extend(bytes(self.to));
                // The option with the Ethernet address of the sender, of 8 bytes.
                segment.extend([1, 1].iter().chain(&from.0));
                2
            }
            Transport::Tcp => {
                // The sequence number, no acknowledgement, a header of 40 bytes, SYN, the window, the checksum, no urgent data.
                segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 10 << 4, 2, 0xfa, 0xf0, 0, 0, 0, 0]);
                segment.extend(SYN_OPTIONS);
                16
            }
            Transport::Udp | Transport::Sctp => {
                let [high, low] = DNS_BYTES.to_be_bytes();
                segment.extend([high, low, 0, 0]);
                segment.extend(DNS_QUESTION);
                6
            }
        };
        let ttl = if self.transport == Transport::Icmpv6 { u8::MAX } else { TTL };
        let length = u16::try_from(segment.len()).unwrap_or_default();
        let addresses = [bytes(self.from), bytes(self.to)].concat();
        let protocol = self.transport.number();
        let [high, low] = length.to_be_bytes();
        let pseudo = [&addresses[..], &[high, low, 0, protocol], &segment].concat();
        segment[checksum_at..checksum_at + 2].copy_from_slice(&checksum(&pseudo));
        let mut packet = match self.from {
            IpAddr::V4(_) => {
                let [high, low] = (length + 20).to_be_bytes();
                let mut header = vec![0x45, 0, high, low, 0, 1, 0x40, 0, ttl, protocol, 0, 0];
                header.extend(&addresses);
                let checksum = checksum(&header);
                header[10..12].copy_from_slice(&checksum);
                header
            }
            IpAddr::V6(_) => [&[0x60, 0, 0, 0, high, low, protocol, ttl], &addresses[..]].concat(),
        };
        packet.extend(segment);
        [&to.0[..], &from.0, &self.ethertype().to_be_bytes(), &packet].concat()
    }
}

/// The bytes of an address.
fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

/// The checksum of IP, TCP and UDP (RFC 1071). UDP sends 0 as 0xffff.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let (pairs, last) = bytes.as_chunks::<2>();
    let words = pairs.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let last = last.first().map_or(0, |byte| u32::from(*byte) << 8);
    let sum = words.sum::<u32>() + last;
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or_default();
    if folded == u16::MAX { [0xff; 2] } else { (!folded).to_be_bytes() }
}

/// A question for the address (A) of `example.com`, with recursion (RFC 1035, section 4.1).
const DNS_QUESTION: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x01\0\x01";
/// The length of a UDP datagram with the question.
const DNS_BYTES: u16 = 37;
/// A maximum segment size of 1460, SACK, a time stamp, and a window scale of 7 (RFC 9293, 2018, 7323).
const SYN_OPTIONS: [u8; 20] = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
/// The type of a neighbour solicitation, 135, and its code.
const SOLICITATION: u16 = 135 << 8;
const ETHERNET_BYTES: usize = 14;
const IPV6_BYTES: usize = 40;
/// The usual TTL of Linux.
const TTL: u8 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u32 {
        let byte = |word: &[u8], at: usize| u32::from(word.get(at).copied().unwrap_or(0));
        let sum: u32 = bytes.chunks(2).map(|word| byte(word, 0) << 8 | byte(word, 1)).sum();
        (sum & 0xffff) + (sum >> 16)
    }

    #[test]
    fn a_frame_has_lengths_and_valid_checksums() {
        let (from, to) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        for (addresses, ip_bytes) in [(["10.1.0.5", "1.1.1.1"], 20), (["fd00::5", "fd00::6"], 40)] {
            for (transport, bytes) in [(Transport::Udp, 37), (Transport::Tcp, 40)] {
                let [source, destination] = addresses.map(|text| text.parse().unwrap());
                let packet = Packet {
                    from: source,
                    to: destination,
                    transport,
                    source_port: 20_001,
                    port: 443,
                };
                let frame = packet.frame(from, to);
                assert_eq!(frame.len(), 14 + ip_bytes + bytes, "{packet:?}");
                assert_eq!(frame[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
                let (header, segment) = frame[14..].split_at(ip_bytes);
                if source.is_ipv4() {
                    assert_eq!(sum(header), 0xffff);
                }
                let addresses = &header[ip_bytes - if source.is_ipv4() { 8 } else { 32 }..];
                let length = u8::try_from(segment.len()).unwrap();
                let pseudo = [addresses, &[0, length, 0, transport.number()], segment].concat();
                assert_eq!(sum(&pseudo), 0xffff, "{packet:?}");
            }
        }
    }
    #[test]
    fn a_solicitation_has_its_checksum_in_the_place_of_the_port() {
        let [from, to] = ["fd00::5", "fd00::1"].map(|text| text.parse().unwrap());
        let packet = Packet::solicitation(from, to, Mac([2, 0, 0, 0, 0, 1]));
        let frame = packet.frame(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let (header, segment) = frame[14..].split_at(40);
        assert_eq!((header[6], header[7], segment.len()), (58, 255, 32));
        assert_eq!(segment[..2], packet.source_port.to_be_bytes());
        assert_eq!(segment[2..4], packet.port.to_be_bytes());
        let pseudo = [&header[8..], &[0, 32, 0, 58], segment].concat();
        assert_eq!(sum(&pseudo), 0xffff);
    }
}

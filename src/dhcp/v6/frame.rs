//! IPv6 and UDP headers around a payload, for packet sockets (RFC 8200, RFC 768).

use std::net::Ipv6Addr;

use crate::dhcp::v4::frame;

/// The port of clients. Servers have port 547.
pub const CLIENT_PORT: u16 = 546;
pub const SERVER_PORT: u16 = 547;
/// All servers and relay agents of a link (RFC 8415, section 7.1).
pub const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

const UDP: u8 = 17;
/// No router forwards packets to the servers of a link.
const HOP_LIMIT: u8 = 1;

/// Builds the packet of a client to all servers: headers and payload. `None`: the payload is too long.
pub fn build(from: Ipv6Addr, payload: &[u8]) -> Option<Vec<u8>> {
    let udp_size = u16::try_from(8 + payload.len()).ok()?;
    let size = udp_size.to_be_bytes();
    let mut packet = vec![0x60, 0, 0, 0, size[0], size[1], UDP, HOP_LIMIT];
    packet.extend(from.octets());
    packet.extend(SERVERS.octets());
    // The pseudo header: both addresses, the length and the protocol.
    let pseudo = u32::from(UDP) + u32::from(udp_size) + frame::sum(&packet[8..]);
    packet.extend(frame::udp([CLIENT_PORT, SERVER_PORT, udp_size], pseudo, payload));
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_has_lengths_and_a_checksum() {
        let from = "fe80::1".parse().unwrap();
        let packet = build(from, &[1, 2, 3]).unwrap();
        assert_eq!(packet[..8], [0x60, 0, 0, 0, 0, 11, 17, 1]);
        assert_eq!(packet[40..46], [2, 34, 2, 35, 0, 11]);
        // The checksum: fe80 + 1 + ff02 + 1 + 2 + 17 + 11 + 546 + 547 + 11 + 0102 + 0300, folded to 16 bits and inverted.
        assert_eq!(packet[46..48], [0xfa, 0x09]);
        assert_eq!(build(from, &[0; 65528]), None);
    }
}

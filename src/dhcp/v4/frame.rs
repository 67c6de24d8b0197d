//! IPv4 and UDP headers around a payload, for packet sockets (RFC 791, RFC 768).

use std::net::Ipv4Addr;

/// The port of clients. Servers have port 67.
pub const CLIENT_PORT: u16 = 68;
pub const SERVER_PORT: u16 = 67;

const IP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;
const TTL: u8 = 64;

/// Builds the packet of a client to a server: headers and payload. `None`: the payload exceeds 65507 bytes.
pub fn build(from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Option<Vec<u8>> {
    let udp_size = u16::try_from(UDP_BYTES + payload.len()).ok()?;
    let size = udp_size.checked_add(20)?.to_be_bytes();
    let mut packet = vec![0x45, 0, size[0], size[1], 0, 0, 0, 0, TTL, UDP, 0, 0];
    packet.extend(from.octets());
    packet.extend(to.octets());
    let checksum = (!fold(sum(&packet))).to_be_bytes();
    packet[10..12].copy_from_slice(&checksum);
    let pseudo = pseudo_sum(&packet, udp_size);
    packet.extend(udp([CLIENT_PORT, SERVER_PORT, udp_size], pseudo, payload));
    Some(packet)
}

/// A UDP datagram. `fields` are both ports and the length, `pseudo` is the sum of the pseudo header.
pub fn udp(fields: [u16; 3], pseudo: u32, payload: &[u8]) -> Vec<u8> {
    let mut datagram = fields.map(u16::to_be_bytes).concat();
    datagram.extend([0; 2]);
    datagram.extend(payload);
    let checksum = match !fold(pseudo + sum(&datagram)) {
        // The value 0 means that the packet has no checksum.
        0 => u16::MAX,
        checksum => checksum,
    };
    datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
    datagram
}

/// The payload of a packet of a server to a client. `None`: the packet is of another protocol or port, is a fragment, or its
/// length or a checksum is wrong.
pub fn payload(packet: &[u8]) -> Option<&[u8]> {
    let first = packet.first()?;
    let (header, _) = packet.split_at_checked(usize::from(first & 0xf) * 4)?;
    if first >> 4 != 4 || header.len() < IP_BYTES {
        return None;
    }
    // Cut the packet to its total length: an Ethernet frame of less than 60 bytes is padded.
    let udp = packet.get(header.len()..word(header, 2)?.into())?;
    let is_fragment = word(header, 6)? & 0x3fff != 0;
    if header[9] != UDP || is_fragment || fold(sum(header)) != u16::MAX {
        return None;
    }
    let size = word(udp, 4)?;
    let udp = udp.get(..size.into())?;
    let is_ours = word(udp, 0)? == SERVER_PORT && word(udp, 2)? == CLIENT_PORT;
    if !is_ours || !is_intact(udp, pseudo_sum(header, size)) {
        return None;
    }
    udp.get(UDP_BYTES..)
}

/// Whether the UDP checksum is right, absent or partial. A server on this host leaves the checksum to the network device: the
/// field has the sum of the pseudo header only (CHECKSUM_PARTIAL), and a virtual device delivers it unchanged.
fn is_intact(udp: &[u8], pseudo: u32) -> bool {
    let field = word(udp, 6);
    field == Some(0) || field == Some(fold(pseudo)) || fold(pseudo + sum(udp)) == u16::MAX
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The sum of the 16-bit words. It cannot overflow: a datagram has at most 65535 bytes.
pub fn sum(bytes: &[u8]) -> u32 {
    let (words, last) = bytes.as_chunks();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    sum + last.first().map_or(0, |byte| u32::from(*byte) << 8)
}

fn pseudo_sum(header: &[u8], udp_size: u16) -> u32 {
    sum(&header[12..IP_BYTES]) + u32::from(UDP) + u32::from(udp_size)
}

/// Folds a sum into 16 bits (ones' complement): adds the upper bits to the lower 16 bits until no upper bits are left.
fn fold(mut sum: u32) -> u16 {
    loop {
        match u16::try_from(sum) {
            Ok(sum) => return sum,
            Err(_) => sum = (sum >> 16) + (sum & 0xffff),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A packet of the server with this payload.
    fn answer(payload: &[u8]) -> Vec<u8> {
        let mut packet = build([10, 0, 0, 1].into(), Ipv4Addr::BROADCAST, payload).unwrap();
        // The ports are exchanged, so the checksum stays right.
        packet[20..24].copy_from_slice(&[0, 67, 0, 68]);
        packet
    }

    #[test]
    fn packet_has_the_bytes_that_other_tools_compute() {
        let packet = build(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, b"abc").unwrap();
        let expected = [
            0x45, 0, 0, 31, 0, 0, 0, 0, 64, 17, 0x7a, 0xcf, 0, 0, 0, 0, 255, 255, 255,
            255, // IPv4
            0, 68, 0, 67, 0, 11, 0x3a, 0xef, // UDP
            b'a', b'b', b'c',
        ];
        assert_eq!(packet, expected);
        assert_eq!(build(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, &vec![0; 65508]), None);
        assert!(build(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, &vec![255; 65507]).is_some());
    }

    #[test]
    fn checksum_may_be_missing_or_partial() {
        let mut packet = answer(b"abc");
        packet[26..28].copy_from_slice(&[0, 0]);
        assert_eq!(payload(&packet), Some(&b"abc"[..]));
        let partial = fold(pseudo_sum(&packet[..20], 11)).to_be_bytes();
        packet[26..28].copy_from_slice(&partial);
        assert_eq!(payload(&packet), Some(&b"abc"[..]));
        packet[27] ^= 1;
        assert_eq!(payload(&packet), None);
    }

    #[test]
    fn other_packets_are_dropped() {
        let whole = answer(b"abcd");
        assert_eq!(payload(&whole), Some(&b"abcd"[..]));
        assert_eq!(payload(&[&whole[..], &[9; 20]].concat()), Some(&b"abcd"[..]), "padding");
        for size in 0..whole.len() {
            assert_eq!(payload(&whole[..size]), None, "{size}");
        }
        assert_eq!(
            payload(&build(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, b"x").unwrap()),
            None
        );
        // Every changed bit is noticed, except those that checksums do not cover.
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert_eq!(payload(&changed), None, "byte {at}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn payloads_survive_and_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..1600), first in 0x40u8..0x50) {
            let packet = answer(&bytes);
            prop_assert_eq!(payload(&packet), Some(&bytes[..]));
            let mut random = bytes;
            if let Some(byte) = random.first_mut() {
                *byte = first;
            }
            let _ = payload(&random);
        }
    }
}

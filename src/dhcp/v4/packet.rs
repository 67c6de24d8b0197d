//! Packets of DHCPv4 (RFC 2131, section 2): the client's requests and the server's replies.

use std::net::Ipv4Addr;

use super::option::{END, MESSAGE_TYPE, OVERLOAD, Options};
use crate::names::Mac;

/// A message type (RFC 2132, section 9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageType(pub u8);

impl MessageType {
    pub const DISCOVER: Self = Self(1);
    pub const OFFER: Self = Self(2);
    pub const REQUEST: Self = Self(3);
    pub const DECLINE: Self = Self(4);
    pub const ACK: Self = Self(5);
    pub const NAK: Self = Self(6);
    pub const RELEASE: Self = Self(7);
}

const BOOTREQUEST: u8 = 1;
const BOOTREPLY: u8 = 2;
const ETHERNET: u8 = 1;
const MAGIC_COOKIE: [u8; 4] = [99, 130, 83, 99];
const SNAME: std::ops::Range<usize> = 44..108;
const FILE: std::ops::Range<usize> = 108..236;
const HEADER_BYTES: usize = 240;
/// Relays of BOOTP drop shorter packets (RFC 1542, section 2.1).
const BYTES_MIN: usize = 300;

/// The fields of a message that differ from those of other messages of the client.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub kind: MessageType,
    pub xid: u32,
    /// Seconds since the client started the attempt or the renewal.
    pub secs: u16,
    /// The address that the client has, or 0.0.0.0.
    pub ciaddr: Ipv4Addr,
    /// The requested address (option 50).
    pub address: Option<Ipv4Addr>,
    /// The server identifier (option 54).
    pub server: Option<Ipv4Addr>,
}

impl Message {
    /// A message without addresses.
    pub fn new(kind: MessageType, xid: u32) -> Self {
        Self { kind, xid, secs: 0, ciaddr: Ipv4Addr::UNSPECIFIED, address: None, server: None }
    }
}

/// The payload of a UDP packet of the client (BOOTREQUEST), padded to 300 bytes. The options are sorted by code; one of more than
/// 255 bytes is split (RFC 3396).
pub fn encode(message: &Message, mac: Mac, broadcast: bool, options: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BYTES_MIN);
    bytes.extend([BOOTREQUEST, ETHERNET, 6, 0]);
    bytes.extend(message.xid.to_be_bytes());
    bytes.extend(message.secs.to_be_bytes());
    bytes.extend([if broadcast { 0x80 } else { 0 }, 0]);
    bytes.extend(message.ciaddr.octets());
    bytes.resize(28, 0);
    bytes.extend(mac.0);
    bytes.resize(FILE.end, 0);
    bytes.extend(MAGIC_COOKIE);
    for (code, value) in options {
        // `chunks` returns none for an empty value, which is an option, too.
        let parts = value.chunks(255).chain(value.is_empty().then_some(&value[..]));
        for part in parts {
            bytes.extend([*code, u8::try_from(part.len()).unwrap_or(u8::MAX)]);
            bytes.extend(part);
        }
    }
    bytes.push(END);
    bytes.resize(bytes.len().max(BYTES_MIN), 0);
    bytes
}

/// A packet of a server (BOOTREPLY).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub kind: MessageType,
    /// The address that the server assigns.
    pub yiaddr: Ipv4Addr,
    pub options: Options,
}

impl Reply {
    /// Parses a reply to the request with this xid from the interface with this MAC address. `None`: it is another packet, or
    /// is malformed.
    pub fn parse(bytes: &[u8], xid: u32, mac: Mac) -> Option<Self> {
        let (header, field) = bytes.split_at_checked(HEADER_BYTES)?;
        let is_ours = header[..3] == [BOOTREPLY, ETHERNET, 6]
            && header[4..8] == xid.to_be_bytes()
            && header[28..34] == mac.0
            && header[FILE.end..] == MAGIC_COOKIE;
        if !is_ours {
            return None;
        }
        let mut options = Options::default();
        options.read(field)?;
        // The fields are read in the order of RFC 3396, section 7: options, file, sname.
        let overload = options.u8(OVERLOAD).unwrap_or(0);
        if overload & 1 != 0 {
            options.read(&header[FILE])?;
        }
        if overload & 2 != 0 {
            options.read(&header[SNAME])?;
        }
        let yiaddr: [u8; 4] = header[16..20].try_into().ok()?;
        Some(Self { kind: MessageType(options.u8(MESSAGE_TYPE)?), yiaddr: yiaddr.into(), options })
    }
}

#[cfg(test)]
pub mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::dhcp::lease::v4::Route;
    use crate::dhcp::v4::option;

    pub const MAC: Mac = Mac([2, 0, 0x5e, 0x10, 0, 1]);

    /// A reply as a server sends it.
    pub fn reply(xid: u32, kind: MessageType, yiaddr: [u8; 4], options: &[&[u8]]) -> Vec<u8> {
        let mut bytes = encode(&Message::new(kind, xid), MAC, false, &[]);
        bytes[0] = BOOTREPLY;
        bytes[16..20].copy_from_slice(&yiaddr);
        bytes.truncate(HEADER_BYTES);
        bytes.extend([MESSAGE_TYPE, 1, kind.0]);
        bytes.extend(options.concat());
        bytes.push(END);
        bytes
    }

    #[test]
    fn request_has_the_bytes_of_the_reference() {
        // Contract 7.2: the DISCOVER of the reference for container abc in network mynet.
        let options = [
            (12, b"myhost".to_vec()),
            (53, vec![1]),
            (55, vec![121, 3, 1]),
            (57, vec![5, 220]),
            (61, b"\0abc/mynet/eth0".to_vec()),
        ];
        let bytes = encode(&Message::new(MessageType::DISCOVER, 7), MAC, false, &options);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(bytes.len(), 300);
        let expected =
            "0c066d79686f73743501013703790301390205dc3d0f006162632f6d796e65742f65746830ff";
        assert_eq!(hex(&bytes[240..240 + expected.len() / 2]), expected);
        assert_eq!(
            hex(&bytes[..44]),
            "0101060000000007".to_owned() + &"00".repeat(20) + "02005e100001" + &"00".repeat(10)
        );
        assert_eq!(hex(&bytes[236..240]), "63825363");
    }

    #[test]
    fn long_options_are_split_and_joined() {
        let options = [(43, vec![7; 600]), (80, Vec::new())];
        let request = Message { secs: 2, ..Message::new(MessageType::DISCOVER, 1) };
        let mut bytes = encode(&request, MAC, true, &options);
        bytes[0] = BOOTREPLY;
        let mut read = Options::default();
        read.read(&bytes[240..]).unwrap();
        assert_eq!(read.get(43), Some(&[7; 600][..]));
        assert_eq!(read.get(80), Some(&[][..]));
        assert_eq!(bytes[8..12], [0, 2, 0x80, 0]);
    }

    #[test]
    fn options_overload_file_and_sname() {
        let mut bytes = reply(9, MessageType::ACK, [10, 0, 0, 5], &[&[52, 1, 3, 15, 1, b'a']]);
        bytes[108..116].copy_from_slice(&[15, 2, b'.', b'b', 26, 2, 5, 120]);
        bytes[116] = END;
        bytes[44..48].copy_from_slice(&[15, 1, b'c', END]);
        let read = Reply::parse(&bytes, 9, MAC).unwrap();
        assert_eq!((read.options.domain().as_str(), read.options.mtu()), ("a.bc", Some(1400)));
        // Without option 52 (overload), the fields `file` and `sname` are names and have no options.
        bytes[245] = 0;
        assert_eq!(Reply::parse(&bytes, 9, MAC).unwrap().options.domain(), "a");
    }

    #[test]
    fn packets_for_other_clients_and_malformed_ones_are_dropped() {
        let whole = reply(9, MessageType::OFFER, [10, 0, 0, 5], &[]);
        assert_eq!(Reply::parse(&whole, 9, MAC).unwrap().yiaddr, Ipv4Addr::new(10, 0, 0, 5));
        assert_eq!(Reply::parse(&whole, 8, MAC), None);
        assert_eq!(Reply::parse(&whole, 9, Mac([2; 6])), None);
        for at in [0, 1, 2, 236, 240] {
            let mut broken = whole.clone();
            broken[at] ^= 0xff;
            assert_eq!(Reply::parse(&broken, 9, MAC), None, "{at}");
        }
        assert_eq!(Reply::parse(&whole[..239], 9, MAC), None);
        assert_eq!(Reply::parse(&whole[..241], 9, MAC), None);
    }

    /// Calls all functions that read options.
    fn read_all(options: &Options) {
        let routes = options.routes("10.0.0.5/24".parse().unwrap());
        assert!(routes.iter().all(|Route { dst, router }| {
            dst.addr() == dst.network() && (router.is_unspecified() || option::is_host(*router))
        }));
        assert!(options.prefix_len().is_none_or(|bits| (1..=32).contains(&bits)));
        assert!(options.mtu().is_none_or(|mtu| mtu >= 576));
        let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let names = [vec![options.domain()], options.search()].concat();
        assert!(
            names.len() <= 33
                && names.iter().all(|name| name.len() <= 253 && name.chars().all(is_safe))
        );
        assert!(
            options.hosts(option::DNS).into_iter().chain(options.server()).all(option::is_host)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn random_options_are_read_or_refused(field in vec(any::<u8>(), 0..600), code in any::<u8>(), parts in vec((prop::sample::select(vec![1u8, 3, 6, 15, 26, 33, 51, 52, 54, 119, 121]), vec(any::<u8>(), 0..64)), 0..12)) {
            let mut options = Options::default();
            let _ = options.read(&field);
            read_all(&options);
            let mut bytes = Vec::new();
            for (code, value) in &parts {
                bytes.extend([*code, u8::try_from(value.len()).unwrap()]);
                bytes.extend(value);
            }
            let mut options = Options::default();
            prop_assert!(options.read(&bytes).is_some());
            read_all(&options);
            prop_assert!(options.get(code).map_or(0, <[u8]>::len) <= bytes.len());
        }

        #[test]
        fn mutated_replies_do_not_panic(
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
            size in any::<prop::sample::Index>(),
        ) {
            let parts: [&[u8]; 6] = [
                &[52, 1, 3, 54, 4, 10, 0, 0, 1, 51, 4, 0, 0, 1, 0],
                &[1, 4, 255, 255, 255, 0, 3, 4, 10, 0, 0, 1, 26, 2, 5, 120],
                &[121, 13, 24, 192, 168, 5, 10, 0, 0, 9, 0, 10, 0, 0, 1],
                &[33, 8, 10, 1, 2, 3, 10, 0, 0, 9],
                b"\x77\x15\x03eng\x05apple\x03com\0\x02mk\xc0\x04\x0f\x03a.b",
                &[6, 8, 10, 0, 0, 1, 10, 0, 0, 2],
            ];
            let mut bytes = reply(9, MessageType::ACK, [10, 0, 0, 5], &parts);
            for (at, value) in changes {
                // The fields that `parse` compares stay unchanged, so that the options are parsed.
                let at = at.index(bytes.len());
                if !(0..8).contains(&at) && !(28..34).contains(&at) && !(236..240).contains(&at) {
                    bytes[at] = value;
                }
            }
            bytes.truncate(240 + size.index(bytes.len() - 240 + 1));
            if let Some(reply) = Reply::parse(&bytes, 9, MAC) {
                read_all(&reply.options);
            }
        }
    }
}

//! Keys and data of sets and maps: addresses, ports, names, and concatenations of them.

use std::net::IpAddr;

use nix::libc::c_int;

use super::Family;
use super::consts::{
    BYTEORDER_HOST_ENDIAN, TYPE_BITS, TYPE_ETHERADDR, TYPE_IFNAME, TYPE_INET_PROTOCOL,
    TYPE_INET_SERVICE, TYPE_IP6ADDR, TYPE_IPADDR, TYPE_MARK,
};
use crate::names::{IfName, Mac, hex};
use crate::netlink::octets;

/// The size of a register. The parts of a concatenation are padded to it.
pub(super) const WORD_BYTES: usize = 4;

/// A protocol with ports. ICMPv6 has its type and code, and its checksum, in their place; no name means it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Transport {
    Tcp = 6,
    Udp = 17,
    Icmpv6 = 58,
    Sctp = 132,
}

/// The type of a key, of data, or of a part of a concatenation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `ipv4_addr`
    Ipv4Addr,
    /// `ipv6_addr`
    Ipv6Addr,
    /// `inet_proto`
    InetProto,
    /// `inet_service`, a port
    InetService,
    /// `ether_addr`
    EtherAddr,
    /// `ifname`
    IfName,
    /// `mark`
    Mark,
}

/// A key or a datum, or a part of a concatenation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Address(IpAddr),
    Transport(Transport),
    Port(u16),
    Mac(Mac),
    IfName(&'a IfName),
    Mark(u32),
}

impl Transport {
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The protocol number in IP headers.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The name in lower case, as in nft: `tcp`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmpv6 => "icmpv6",
            Self::Sctp => "sctp",
        }
    }

    /// The protocol with this name, in upper or lower case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| name.eq_ignore_ascii_case(transport.name()))
    }

    /// The protocol with this number.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| transport.number() == number)
    }
}

impl Type {
    const ALL: [Self; 7] = [
        Self::Ipv4Addr,
        Self::Ipv6Addr,
        Self::InetProto,
        Self::InetService,
        Self::EtherAddr,
        Self::IfName,
        Self::Mark,
    ];

    /// The type of addresses in a table of the family ip or ip6.
    pub fn address(family: Family) -> Self {
        if family == Family::Ip6 { Self::Ipv6Addr } else { Self::Ipv4Addr }
    }

    /// The number of the type, and the length of its values in bytes.
    fn definition(self) -> (c_int, usize) {
        match self {
            Self::Ipv4Addr => (TYPE_IPADDR, 4),
            Self::Ipv6Addr => (TYPE_IP6ADDR, 16),
            Self::InetProto => (TYPE_INET_PROTOCOL, 1),
            Self::InetService => (TYPE_INET_SERVICE, 2),
            Self::EtherAddr => (TYPE_ETHERADDR, 6),
            Self::IfName => (TYPE_IFNAME, 16),
            Self::Mark => (TYPE_MARK, 4),
        }
    }

    /// The type number of a concatenation or of a single type, and the length of its values in bytes.
    pub(super) fn concatenated(types: &[Self]) -> (c_int, usize) {
        let number = types.iter().fold(0, |number, one| number << TYPE_BITS | one.definition().0);
        let bytes = match types {
            [one] => one.definition().1,
            many => many.iter().map(|one| one.definition().1.next_multiple_of(WORD_BYTES)).sum(),
        };
        (number, bytes)
    }

    /// The byte order of values of these types as an entry of user data, if nft needs it to print them: only for a single
    /// `ifname` or `mark`.
    pub(super) fn byte_order(types: &[Self], entry: u8) -> Vec<u8> {
        match types {
            [Self::IfName | Self::Mark] => {
                [&[entry, 4], &BYTEORDER_HOST_ENDIAN.to_ne_bytes()[..]].concat()
            }
            _ => Vec::new(),
        }
    }

    /// `None` if the value has another length.
    fn text(self, value: &[u8]) -> Option<String> {
        Some(match self {
            Self::Ipv4Addr => IpAddr::from(<[u8; 4]>::try_from(value).ok()?).to_string(),
            Self::Ipv6Addr => IpAddr::from(<[u8; 16]>::try_from(value).ok()?).to_string(),
            Self::InetProto => {
                let [number] = *value else { return None };
                Transport::of(number)
                    .map_or_else(|| number.to_string(), |known| known.name().into())
            }
            Self::InetService => u16::from_be_bytes(value.try_into().ok()?).to_string(),
            Self::EtherAddr => Mac(value.try_into().ok()?).to_string(),
            Self::IfName => format!("\"{}\"", crate::netlink::text(value)),
            Self::Mark => format!("{:#010x}", u32::from_ne_bytes(value.try_into().ok()?)),
        })
    }
}

/// A key or a datum of a type number, in the words of nft: `tcp . 8080`. A part of an unknown type is hexadecimal.
pub(super) fn text(mut number: c_int, bytes: &[u8]) -> String {
    let mut types = Vec::new();
    while number != 0 {
        let of_part = number & ((1 << TYPE_BITS) - 1);
        types.insert(0, Type::ALL.into_iter().find(|kind| kind.definition().0 == of_part));
        number >>= TYPE_BITS;
    }
    let Some(types) = types.into_iter().collect::<Option<Vec<_>>>() else { return hex(bytes) };
    let mut rest = bytes;
    let texts = types.into_iter().map(|kind| {
        let length = kind.definition().1;
        let value = rest.get(..length).unwrap_or(rest);
        rest = rest.get(length.next_multiple_of(WORD_BYTES)..).unwrap_or_default();
        kind.text(value).unwrap_or_else(|| hex(value))
    });
    texts.collect::<Vec<_>>().join(" . ")
}

impl Value<'_> {
    /// The bytes that the kernel compares.
    fn encoded(self) -> Vec<u8> {
        match self {
            Self::Address(address) => octets(address),
            Self::Transport(transport) => vec![transport.number()],
            Self::Port(port) => port.to_be_bytes().into(),
            Self::Mac(mac) => mac.0.into(),
            Self::IfName(name) => padded_name(name),
            Self::Mark(mark) => mark.to_ne_bytes().into(),
        }
    }
}

/// A key or a datum, from its parts: `tcp . 8080`.
pub fn pack(parts: &[Value<'_>]) -> Vec<u8> {
    if let [one] = parts {
        return one.encoded();
    }
    let mut packed = Vec::new();
    for part in parts {
        packed.extend(part.encoded());
        packed.resize(packed.len().next_multiple_of(WORD_BYTES), 0);
    }
    packed
}

/// The name of an interface in registers: 16 bytes (IFNAMSIZ).
pub(super) fn padded_name(name: &IfName) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::rows;

    #[test]
    fn single_keys_are_not_padded_and_parts_are_padded() {
        let tcp = Value::Transport(Transport::Tcp);
        let address = Value::Address([10, 1, 0, 5].into());
        let name = IfName::new("veth0").unwrap();
        for (parts, expected) in [
            (&[tcp][..], "06"),
            (&[Value::Port(8080)], "1f90"),
            (&[tcp, Value::Port(8080)], "06000000 1f900000"),
            (&[address, tcp, Value::Port(80)], "0a010005 06000000 00500000"),
            (&[Value::Mac(Mac([2, 0, 0, 0, 0, 1]))], "02000000 0001"),
            (&[Value::IfName(&name)], "76657468 30000000 00000000 00000000"),
        ] {
            assert_eq!(rows(&pack(parts)), expected);
        }
    }

    #[test]
    fn a_key_is_printed_as_nft_prints_it() {
        let (tcp, web) = (Value::Transport(Transport::Tcp), Value::Port(80));
        let name = IfName::new("veth0").unwrap();
        let of =
            |types: &[Type], parts: &[Value<'_>]| text(Type::concatenated(types).0, &pack(parts));
        assert_eq!(of(&[Type::InetProto, Type::InetService], &[tcp, web]), "tcp . 80");
        let address = Value::Address([10, 1, 0, 5].into());
        assert_eq!(of(&[Type::Ipv4Addr, Type::InetService], &[address, web]), "10.1.0.5 . 80");
        assert_eq!(of(&[Type::IfName], &[Value::IfName(&name)]), "\"veth0\"");
        assert_eq!(of(&[Type::Mark], &[Value::Mark(16)]), "0x00000010");
        assert_eq!(text(63, &[1, 2]), "0102");
    }

    #[test]
    fn the_length_of_a_type_is_that_of_its_values() {
        let name = IfName::new("veth0").unwrap();
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        for (kind, value) in [
            (Type::Ipv4Addr, Value::Address([10, 1, 0, 5].into())),
            (Type::Ipv6Addr, Value::Address([0_u16; 8].into())),
            (Type::InetProto, Value::Transport(Transport::Sctp)),
            (Type::InetService, Value::Port(1)),
            (Type::EtherAddr, Value::Mac(mac)),
            (Type::IfName, Value::IfName(&name)),
            (Type::Mark, Value::Mark(1)),
        ] {
            assert_eq!(Type::concatenated(&[kind]).1, pack(&[value]).len());
            assert_eq!(Type::concatenated(&[kind, kind]).1, pack(&[value, value]).len());
        }
        // The type number that nft 1.0.6 has for `inet_proto . inet_service`.
        assert_eq!(Type::concatenated(&[Type::InetProto, Type::InetService]).0, 0x30d);
    }
}

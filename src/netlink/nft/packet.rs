//! A model of packets that the host forwards: each bit of a field is 0, 1 or unknown.

use ipnet::IpNet;
use nix::libc::{self, c_int};

use super::Family;
use super::condition::{CtState, IPS_DST_NAT};
use super::consts::{NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR};
use super::field::FieldSource;
use super::value::{Transport, padded_name};
use crate::kernel::packet::{ETH_P_IP, ETH_P_IPV6};
use crate::names::{IfName, IpFamily};
use crate::netlink::octets;

/// A TCP segment that the host forwards.
#[derive(Clone, Debug)]
pub struct Packet {
    pub family: IpFamily,
    pub from: Side,
    pub to: Side,
    pub state: CtState,
    /// The destination of the connection was translated.
    pub is_dnat: bool,
}

/// A link and the addresses behind it. `None` is unknown.
#[derive(Clone, Debug, Default)]
pub struct Side {
    pub name: Option<IfName>,
    /// The beginning of the name, if `name` is `None`.
    pub prefix: &'static str,
    pub index: Option<u32>,
    pub group: Option<u32>,
    pub net: Option<IpNet>,
}

/// A byte of which some bits can be unknown. An unknown bit is 0 in `known` and in `value`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Byte {
    known: u8,
    value: u8,
}

/// Whether a condition holds. `Maybe`: it holds for some packets, or it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    Yes,
    No,
    Maybe,
}

impl Fit {
    pub(super) fn of(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }

    /// `for_all`: the condition holds for all packets. `for_any`: it holds for at least one of them.
    fn of_some(for_all: bool, for_any: bool) -> Self {
        if for_any && !for_all { Self::Maybe } else { Self::of(for_all) }
    }

    pub(super) fn not(self) -> Self {
        match self {
            Self::Yes => Self::No,
            Self::No => Self::Yes,
            Self::Maybe => Self::Maybe,
        }
    }

    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Yes, Self::Yes) => Self::Yes,
            _ => Self::Maybe,
        }
    }

    pub(super) fn or(self, other: Self) -> Self {
        self.not().and(other.not()).not()
    }
}

impl Byte {
    pub(super) const UNKNOWN: Self = Self { known: 0, value: 0 };

    pub(super) fn known(value: u8) -> Self {
        Self::partly(0xff, value)
    }

    fn partly(known: u8, value: u8) -> Self {
        Self { known, value: value & known }
    }

    pub(super) fn masked(self, mask: u8, xor: u8) -> Self {
        let known = self.known | !mask;
        Self::partly(known, (self.value & mask) ^ xor)
    }
}

pub(super) fn equal(bytes: &[Byte], value: &[u8]) -> Fit {
    let mut fit = Fit::of(bytes.len() == value.len());
    for (byte, value) in bytes.iter().zip(value) {
        let can_be_equal = (byte.value ^ value) & byte.known == 0;
        fit = fit.and(Fit::of_some(can_be_equal && byte.known == 0xff, can_be_equal));
    }
    fit
}

pub(super) fn at_least(bytes: &[Byte], value: &[u8]) -> Fit {
    let [least, most] = bounds(bytes);
    Fit::of_some(least.as_slice() >= value, most.as_slice() >= value)
}

pub(super) fn at_most(bytes: &[Byte], value: &[u8]) -> Fit {
    let [least, most] = bounds(bytes);
    Fit::of_some(most.as_slice() <= value, least.as_slice() <= value)
}

/// The least and the greatest value that the bytes can have. The kernel compares with memcmp(3), as slices are compared.
fn bounds(bytes: &[Byte]) -> [Vec<u8>; 2] {
    let least = bytes.iter().map(|byte| byte.value).collect();
    [least, bytes.iter().map(|byte| byte.value | !byte.known).collect()]
}

impl Packet {
    /// Loads the bytes of a field.
    pub(super) fn load(&self, source: FieldSource, bytes: u8) -> Vec<Byte> {
        let count = usize::from(bytes);
        let mut loaded = match source {
            FieldSource::Payload(header, offset) => {
                let header = match header {
                    libc::NFT_PAYLOAD_NETWORK_HEADER => self.network_header(),
                    libc::NFT_PAYLOAD_TRANSPORT_HEADER => self.transport_header(),
                    _ => Vec::new(),
                };
                header.into_iter().skip(offset as usize).take(count).collect()
            }
            FieldSource::Meta(key) => self.meta(key),
            FieldSource::Ct(libc::NFT_CT_STATE) => number(Some(self.state.0.into())),
            FieldSource::Ct(libc::NFT_CT_STATUS) => {
                let value = if self.is_dnat { IPS_DST_NAT } else { 0 };
                let known = IPS_DST_NAT.to_ne_bytes().into_iter();
                known
                    .zip(value.to_ne_bytes())
                    .map(|(known, byte)| Byte::partly(known, byte))
                    .collect()
            }
            // The route of a forwarded packet is unicast.
            FieldSource::Fib(NFTA_FIB_F_DADDR, NFT_FIB_RESULT_ADDRTYPE) => {
                number(Some(libc::RTN_UNICAST.into()))
            }
            FieldSource::Ct(_) | FieldSource::Fib(..) => Vec::new(),
        };
        loaded.resize(count, Byte::UNKNOWN);
        loaded
    }

    fn meta(&self, key: c_int) -> Vec<Byte> {
        let ether_type = match self.family {
            IpFamily::V4 => ETH_P_IP,
            IpFamily::V6 => ETH_P_IPV6,
        };
        let name = |side: &Side| match &side.name {
            Some(name) => known(&padded_name(name)),
            None => known(side.prefix.as_bytes()),
        };
        match key {
            libc::NFT_META_NFPROTO => known(&[Family::from(self.family).number()]),
            libc::NFT_META_PROTOCOL => known(&ether_type.to_be_bytes()),
            libc::NFT_META_L4PROTO => known(&[Transport::Tcp.number()]),
            libc::NFT_META_PKTTYPE => known(&[libc::PACKET_HOST]),
            libc::NFT_META_IIFNAME => name(&self.from),
            libc::NFT_META_OIFNAME => name(&self.to),
            libc::NFT_META_IIF => number(self.from.index),
            libc::NFT_META_OIF => number(self.to.index),
            libc::NFT_META_IIFGROUP => number(self.from.group),
            libc::NFT_META_OIFGROUP => number(self.to.group),
            _ => Vec::new(),
        }
    }

    /// The IP header of the packet, which is not a fragment. Source: linux/ip.h, `struct iphdr`; linux/ipv6.h, `struct
    /// ipv6hdr`.
    fn network_header(&self) -> Vec<Byte> {
        let mut header = vec![Byte::UNKNOWN; if self.family == IpFamily::V4 { 20 } else { 40 }];
        let (addresses, bytes) = match self.family {
            IpFamily::V4 => {
                header[0] = Byte::known(0x45);
                header[6] = Byte::partly(!IP_DF, 0);
                header[7] = Byte::known(0);
                header[9] = Byte::known(Transport::Tcp.number());
                (12, 4)
            }
            IpFamily::V6 => {
                header[0] = Byte::partly(0xf0, 0x60);
                header[6] = Byte::known(Transport::Tcp.number());
                (8, 16)
            }
        };
        for (index, side) in [&self.from, &self.to].into_iter().enumerate() {
            let Some(net) = side.net.filter(|net| IpFamily::of(net.addr()) == self.family) else {
                continue;
            };
            let (network, mask) = (octets(net.network()), octets(net.netmask()));
            let address = &mut header[addresses + index * bytes..][..bytes];
            for (byte, (value, known)) in address.iter_mut().zip(network.into_iter().zip(mask)) {
                *byte = Byte::partly(known, value);
            }
        }
        header
    }

    /// The TCP header, up to the flags. Source: linux/tcp.h, `struct tcphdr`. A connection begins with SYN alone; all further
    /// segments have ACK.
    fn transport_header(&self) -> Vec<Byte> {
        let mut header = vec![Byte::UNKNOWN; TCP_FLAGS_AT + 1];
        header[TCP_FLAGS_AT] = match self.state {
            CtState::NEW => Byte::partly(0x3f, TCP_SYN),
            _ => Byte::partly(TCP_ACK, TCP_ACK),
        };
        header
    }

    /// The byte of the TCP header with the flags.
    pub(super) fn tcp_flags(&self) -> Byte {
        self.transport_header()[TCP_FLAGS_AT]
    }
}

fn known(bytes: &[u8]) -> Vec<Byte> {
    bytes.iter().copied().map(Byte::known).collect()
}

fn number(value: Option<u32>) -> Vec<Byte> {
    value.map_or_else(Vec::new, |value| known(&value.to_ne_bytes()))
}

/// "Do not fragment", in the byte of the flags.
const IP_DF: u8 = 0x40;
const TCP_FLAGS_AT: usize = 13;
const TCP_SYN: u8 = 0x02;
const TCP_ACK: u8 = 0x10;

#[cfg(test)]
mod tests {
    use super::*;

    /// An address in 10.1.0.0/16: the first two bytes are known, the last two are not.
    fn in_net() -> Vec<Byte> {
        [known(&[10, 1]), vec![Byte::UNKNOWN; 2]].concat()
    }

    #[test]
    fn comparisons_with_unknown_bits_may_hold() {
        let net = in_net();
        assert_eq!(equal(&net[..2], &[10, 1]), Fit::Yes);
        assert_eq!(equal(&net, &[10, 1, 0, 5]), Fit::Maybe);
        assert_eq!(equal(&net, &[10, 2, 0, 5]), Fit::No);
        for (value, least, most) in [
            ([10, 1, 0, 0], Fit::Yes, Fit::Maybe),
            ([10, 1, 255, 255], Fit::Maybe, Fit::Yes),
            ([10, 2, 0, 0], Fit::No, Fit::Yes),
            ([10, 0, 9, 9], Fit::Yes, Fit::No),
        ] {
            assert_eq!((at_least(&net, &value), at_most(&net, &value)), (least, most), "{value:?}");
        }
    }

    #[test]
    fn a_mask_makes_bits_known() {
        let byte = Byte::UNKNOWN.masked(0x0f, 0);
        assert_eq!(equal(&[byte], &[0x10]), Fit::No);
        assert_eq!(equal(&[byte], &[0x01]), Fit::Maybe);
        assert_eq!(equal(&[Byte::known(0xab).masked(0x0f, 0x01)], &[0x0a]), Fit::Yes);
    }

    #[test]
    fn conditions_are_combined_with_three_values() {
        use Fit::{Maybe, No, Yes};
        for (one, other, and, or) in [
            (Yes, Yes, Yes, Yes),
            (Yes, No, No, Yes),
            (Yes, Maybe, Maybe, Yes),
            (No, Maybe, No, Maybe),
            (Maybe, Maybe, Maybe, Maybe),
            (No, No, No, No),
        ] {
            assert_eq!((one.and(other), one.or(other)), (and, or));
            assert_eq!((other.and(one), other.or(one)), (and, or));
        }
    }
}

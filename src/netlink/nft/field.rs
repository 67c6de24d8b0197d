//! Fields that expressions load: of packet headers, and of the kernel's metadata.

use nix::libc::{self, c_int};

use super::Family;
use super::consts::{
    NFT_FIB_RESULT_ADDRTYPE, NFT_FIB_RESULT_OIF, NFT_FIB_RESULT_OIFNAME, NFT_META_IIFKIND,
    NFT_META_OIFKIND, NFTA_CT_DREG, NFTA_CT_KEY, NFTA_FIB_DREG, NFTA_FIB_F_DADDR, NFTA_FIB_F_IIF,
    NFTA_FIB_F_PRESENT, NFTA_FIB_F_SADDR, NFTA_FIB_FLAGS, NFTA_FIB_RESULT, NFTA_META_DREG,
    NFTA_META_KEY, NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_DREG, NFTA_PAYLOAD_LEN, NFTA_PAYLOAD_OFFSET,
};
use super::register::Register;
use super::wire::{attribute, be32, be32_of};
use crate::names::IpFamily;
use crate::netlink::Attrs;

/// A field that can be loaded into registers. Comments have the nft notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `ip saddr`, in tables of the families ip and, after `meta nfproto ipv4`, inet
    IpSaddr,
    /// `ip daddr`
    IpDaddr,
    /// `ip6 saddr`
    Ip6Saddr,
    /// `ip6 daddr`
    Ip6Daddr,
    /// `ether saddr`, in tables of the family bridge
    EtherSaddr,
    /// `th sport`, after a condition on the protocol
    Sport,
    /// `th dport`, after a condition on the protocol
    Dport,
    /// `tcp flags`, after a condition on the protocol
    TcpFlags,
    /// `meta l4proto`
    Protocol,
    /// `meta nfproto`, in tables of the family inet
    Nfproto,
    /// `meta protocol`, in tables of the family bridge
    EtherType,
    /// `iif`
    Iif,
    /// `oif`
    Oif,
    /// `iifname`
    Iifname,
    /// `oifname`
    Oifname,
    /// `iifgroup`
    Iifgroup,
    /// `oifgroup`
    Oifgroup,
    /// `meta iifkind`
    Iifkind,
    /// `meta oifkind`
    Oifkind,
    /// `meta mark`
    Mark,
    /// `meta pkttype`
    Pkttype,
    /// `ct state`
    CtState,
    /// `ct direction`
    CtDirection,
    /// `ct status`
    CtStatus,
    /// `ct mark`
    CtMark,
    /// `fib daddr type`
    FibDaddrType,
    /// `fib saddr . iif oif`: 1 if the route exists, 0 if it is missing
    FibSaddrIif,
    /// `fib saddr oifname`: the link of the route to the source
    FibSaddrOifname,
    /// `fib daddr . iif oif`: 1 if the route exists, 0 if it is missing
    FibDaddrIif,
    /// Bytes of a header that are not exactly one of these fields: the header, NFT_PAYLOAD_*_HEADER, and the offset in it
    Payload(c_int, u32),
}

/// The expression that loads a field, and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldSource {
    /// The header, NFT_PAYLOAD_*_HEADER, and the offset of the field in the header, in bytes.
    Payload(c_int, u32),
    Meta(c_int),
    Ct(c_int),
    /// The flags, NFTA_FIB_F_*, and the result, NFT_FIB_RESULT_*.
    Fib(c_int, c_int),
}

impl FieldSource {
    /// The name of the expression.
    pub(super) fn expression(self) -> &'static str {
        match self {
            Self::Payload(..) => "payload",
            Self::Meta(_) => "meta",
            Self::Ct(_) => "ct",
            Self::Fib(..) => "fib",
        }
    }

    /// Writes the arguments of the expression. `bytes` is less than the length of the field only in a rule that was read.
    pub(super) fn write(self, bytes: u8, to: Register, attrs: &mut Attrs) {
        match self {
            Self::Payload(header, offset) => {
                be32(attrs, NFTA_PAYLOAD_DREG, to.number());
                be32(attrs, NFTA_PAYLOAD_BASE, header);
                be32(attrs, NFTA_PAYLOAD_OFFSET, offset.cast_signed());
                be32(attrs, NFTA_PAYLOAD_LEN, bytes.into());
            }
            Self::Meta(key) => {
                be32(attrs, NFTA_META_KEY, key);
                be32(attrs, NFTA_META_DREG, to.number());
            }
            Self::Ct(key) => {
                be32(attrs, NFTA_CT_KEY, key);
                be32(attrs, NFTA_CT_DREG, to.number());
            }
            Self::Fib(flags, result) => {
                be32(attrs, NFTA_FIB_FLAGS, flags);
                be32(attrs, NFTA_FIB_RESULT, result);
                be32(attrs, NFTA_FIB_DREG, to.number());
            }
        }
    }

    /// Reads the arguments of an expression with this name: the source, the number of bytes if the expression has one, and the
    /// register.
    pub(super) fn read(name: &str, attrs: &[u8]) -> Option<(Self, Option<u8>, Register)> {
        let number = |kind| be32_of(attribute(attrs, kind)?);
        let register = |kind| Register::of(number(kind)?);
        Some(match name {
            "payload" => {
                let offset = number(NFTA_PAYLOAD_OFFSET)?.cast_unsigned();
                let source = Self::Payload(number(NFTA_PAYLOAD_BASE)?, offset);
                let bytes = u8::try_from(number(NFTA_PAYLOAD_LEN)?).ok()?;
                (source, Some(bytes), register(NFTA_PAYLOAD_DREG)?)
            }
            "meta" => (Self::Meta(number(NFTA_META_KEY)?), None, register(NFTA_META_DREG)?),
            "ct" => (Self::Ct(number(NFTA_CT_KEY)?), None, register(NFTA_CT_DREG)?),
            "fib" => {
                let source = Self::Fib(number(NFTA_FIB_FLAGS)?, number(NFTA_FIB_RESULT)?);
                (source, None, register(NFTA_FIB_DREG)?)
            }
            _ => return None,
        })
    }
}

impl Field {
    /// The header of the link layer, in `Payload`.
    pub const LINK_HEADER: c_int = libc::NFT_PAYLOAD_LL_HEADER;

    /// The source and the destination address of a packet.
    pub fn addresses(family: IpFamily) -> [Self; 2] {
        match family {
            IpFamily::V4 => [Self::IpSaddr, Self::IpDaddr],
            IpFamily::V6 => [Self::Ip6Saddr, Self::Ip6Daddr],
        }
    }

    /// The expression that loads the field, and the length of the field in bytes.
    fn definition(self) -> (FieldSource, u8) {
        if let Self::Payload(header, offset) = self {
            return (FieldSource::Payload(header, offset), u8::MAX);
        }
        let found = FIELDS.iter().find(|(field, ..)| *field == self);
        let (_, source, bytes) = *found.expect("FIELDS has every other field");
        (source, bytes)
    }

    pub(super) fn source(self) -> FieldSource {
        self.definition().0
    }

    /// The length of the field, in bytes.
    pub fn bytes(self) -> u8 {
        self.definition().1
    }

    /// Each field of a concatenation, and the register that it is loaded to.
    pub(super) fn concatenated(fields: &[Self]) -> impl Iterator<Item = (Self, Register)> {
        let mut next = Register::FIRST;
        fields.iter().map(move |field| {
            let register = next;
            next = register.after(field.bytes());
            (*field, register)
        })
    }

    /// Whether the field is the name of a link.
    pub(super) fn is_name(self) -> bool {
        matches!(self, Self::Iifname | Self::Oifname | Self::FibSaddrOifname)
    }

    /// The field that an expression loads, and the number of bytes: `bytes`, or the whole field. iptables and nft load only the
    /// bytes of an address that a prefix covers.
    pub(super) fn loaded(
        family: Family,
        source: FieldSource,
        bytes: Option<u8>,
    ) -> Option<(Self, u8)> {
        let is_loaded = |field: &Self, whole: u8| {
            field.is_in(family) && bytes.is_none_or(|bytes| (1..=whole).contains(&bytes))
        };
        let named = FIELDS.iter().find(|(_, of_field, ..)| *of_field == source);
        match (named, source) {
            (Some((field, _, whole)), _) if is_loaded(field, *whole) => {
                Some((*field, bytes.unwrap_or(*whole)))
            }
            (_, FieldSource::Payload(header, offset)) => {
                Some((Self::Payload(header, offset), bytes?))
            }
            _ => None,
        }
    }

    /// Whether tables of the family have the field. The same offset is a different field in another family.
    fn is_in(self, family: Family) -> bool {
        match self {
            Self::IpSaddr | Self::IpDaddr => family != Family::Ip6,
            Self::Ip6Saddr | Self::Ip6Daddr => family != Family::Ip,
            _ => true,
        }
    }
}

/// Each field except `Payload`, with its definition.
const FIELDS: [(Field, FieldSource, u8); 29] = {
    use FieldSource::{Ct, Fib, Meta, Payload};
    const LINK: c_int = libc::NFT_PAYLOAD_LL_HEADER;
    const NETWORK: c_int = libc::NFT_PAYLOAD_NETWORK_HEADER;
    const TRANSPORT: c_int = libc::NFT_PAYLOAD_TRANSPORT_HEADER;
    const IIF_EXISTS: c_int = NFTA_FIB_F_IIF | NFTA_FIB_F_PRESENT;
    const FROM_IIF: FieldSource = Fib(NFTA_FIB_F_SADDR | IIF_EXISTS, NFT_FIB_RESULT_OIF);
    const TO_SOURCE: FieldSource = Fib(NFTA_FIB_F_SADDR, NFT_FIB_RESULT_OIFNAME);
    const TO_IIF: FieldSource = Fib(NFTA_FIB_F_DADDR | IIF_EXISTS, NFT_FIB_RESULT_OIF);
    const TYPE: FieldSource = Fib(NFTA_FIB_F_DADDR, NFT_FIB_RESULT_ADDRTYPE);
    [
        (Field::IpSaddr, Payload(NETWORK, 12), 4),
        (Field::IpDaddr, Payload(NETWORK, 16), 4),
        (Field::Ip6Saddr, Payload(NETWORK, 8), 16),
        (Field::Ip6Daddr, Payload(NETWORK, 24), 16),
        (Field::EtherSaddr, Payload(LINK, 6), 6),
        (Field::Sport, Payload(TRANSPORT, 0), 2),
        (Field::Dport, Payload(TRANSPORT, 2), 2),
        (Field::TcpFlags, Payload(TRANSPORT, 13), 1),
        (Field::Protocol, Meta(libc::NFT_META_L4PROTO), 1),
        (Field::Nfproto, Meta(libc::NFT_META_NFPROTO), 1),
        (Field::EtherType, Meta(libc::NFT_META_PROTOCOL), 2),
        (Field::Iif, Meta(libc::NFT_META_IIF), 4),
        (Field::Oif, Meta(libc::NFT_META_OIF), 4),
        (Field::Iifname, Meta(libc::NFT_META_IIFNAME), 16),
        (Field::Oifname, Meta(libc::NFT_META_OIFNAME), 16),
        (Field::Iifgroup, Meta(libc::NFT_META_IIFGROUP), 4),
        (Field::Oifgroup, Meta(libc::NFT_META_OIFGROUP), 4),
        (Field::Iifkind, Meta(NFT_META_IIFKIND), 16),
        (Field::Oifkind, Meta(NFT_META_OIFKIND), 16),
        (Field::Mark, Meta(libc::NFT_META_MARK), 4),
        (Field::Pkttype, Meta(libc::NFT_META_PKTTYPE), 1),
        (Field::CtState, Ct(libc::NFT_CT_STATE), 4),
        (Field::CtDirection, Ct(libc::NFT_CT_DIRECTION), 1),
        (Field::CtStatus, Ct(libc::NFT_CT_STATUS), 4),
        (Field::CtMark, Ct(libc::NFT_CT_MARK), 4),
        (Field::FibDaddrType, TYPE, 4),
        (Field::FibSaddrIif, FROM_IIF, 4),
        (Field::FibSaddrOifname, TO_SOURCE, 16),
        (Field::FibDaddrIif, TO_IIF, 4),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_field_is_read() {
        for (field, ..) in FIELDS {
            for family in [Family::Ip, Family::Ip6, Family::Inet, Family::Bridge] {
                let (mut attrs, source) = (Attrs::default(), field.source());
                source.write(field.bytes(), Register::FIRST, &mut attrs);
                let read = FieldSource::read(source.expression(), attrs.as_slice());
                let Some((source, bytes, Register::FIRST)) = read else { panic!("{field:?}") };
                let expected = match source {
                    FieldSource::Payload(header, offset) if !field.is_in(family) => {
                        Some((Field::Payload(header, offset), field.bytes()))
                    }
                    _ => Some((field, field.bytes())),
                };
                assert_eq!(Field::loaded(family, source, bytes), expected, "{field:?} {family:?}");
                assert_eq!(FieldSource::read("numgen", attrs.as_slice()), None);
            }
        }
    }

    #[test]
    fn parts_are_put_into_registers_one_after_the_other() {
        let fields = [Field::Ip6Saddr, Field::Protocol, Field::Dport];
        let numbers: Vec<c_int> =
            Field::concatenated(&fields).map(|(_, register)| register.number()).collect();
        assert_eq!(numbers, [1, 2, 13]);
    }
}

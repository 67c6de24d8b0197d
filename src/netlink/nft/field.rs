//! Fields that expressions load: of packet headers, and of the kernel's metadata.

use super::Family;
use super::consts::{
    NFT_CT_DIRECTION, NFT_CT_MARK, NFT_CT_STATE, NFT_CT_STATUS, NFT_FIB_RESULT_ADDRTYPE,
    NFT_FIB_RESULT_OIF, NFT_META_IIF, NFT_META_IIFGROUP, NFT_META_IIFNAME, NFT_META_L4PROTO,
    NFT_META_MARK, NFT_META_NFPROTO, NFT_META_OIF, NFT_META_OIFGROUP, NFT_META_OIFNAME,
    NFT_META_PKTTYPE, NFT_META_PROTOCOL, NFT_PAYLOAD_LL_HEADER, NFT_PAYLOAD_NETWORK_HEADER,
    NFT_PAYLOAD_TRANSPORT_HEADER, NFTA_CT_DREG, NFTA_CT_KEY, NFTA_FIB_DREG, NFTA_FIB_F_DADDR,
    NFTA_FIB_F_IIF, NFTA_FIB_F_PRESENT, NFTA_FIB_F_SADDR, NFTA_FIB_FLAGS, NFTA_FIB_RESULT,
    NFTA_META_DREG, NFTA_META_KEY, NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_DREG, NFTA_PAYLOAD_LEN,
    NFTA_PAYLOAD_OFFSET,
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
    /// `fib daddr . iif oif`: 1 if the route exists, 0 if it is missing
    FibDaddrIif,
}

/// The expression that loads a field, and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FieldSource {
    /// The header, NFT_PAYLOAD_*_HEADER, and the offset of the field in the header, in bytes.
    Payload(u32, u32),
    Meta(u32),
    Ct(u32),
    /// The flags, NFTA_FIB_F_*, and the result, NFT_FIB_RESULT_*.
    Fib(u32, u32),
}

impl FieldSource {
    pub(super) fn write(self, bytes: u8, to: Register, attrs: &mut Attrs) {
        match self {
            Self::Payload(header, offset) => {
                be32(attrs, NFTA_PAYLOAD_DREG, to.number());
                be32(attrs, NFTA_PAYLOAD_BASE, header);
                be32(attrs, NFTA_PAYLOAD_OFFSET, offset);
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
}

impl Field {
    /// The source and the destination address of a packet.
    pub fn addresses(family: IpFamily) -> [Self; 2] {
        match family {
            IpFamily::V4 => [Self::IpSaddr, Self::IpDaddr],
            IpFamily::V6 => [Self::Ip6Saddr, Self::Ip6Daddr],
        }
    }

    const ALL: [Self; 25] = [
        Self::IpSaddr,
        Self::IpDaddr,
        Self::Ip6Saddr,
        Self::Ip6Daddr,
        Self::EtherSaddr,
        Self::Sport,
        Self::Dport,
        Self::Protocol,
        Self::Nfproto,
        Self::EtherType,
        Self::Iif,
        Self::Oif,
        Self::Iifname,
        Self::Oifname,
        Self::Iifgroup,
        Self::Oifgroup,
        Self::Mark,
        Self::Pkttype,
        Self::CtState,
        Self::CtDirection,
        Self::CtStatus,
        Self::CtMark,
        Self::FibDaddrType,
        Self::FibSaddrIif,
        Self::FibDaddrIif,
    ];

    pub(super) fn source(self) -> FieldSource {
        match self {
            Self::IpSaddr => FieldSource::Payload(NFT_PAYLOAD_NETWORK_HEADER, 12),
            Self::IpDaddr => FieldSource::Payload(NFT_PAYLOAD_NETWORK_HEADER, 16),
            Self::Ip6Saddr => FieldSource::Payload(NFT_PAYLOAD_NETWORK_HEADER, 8),
            Self::Ip6Daddr => FieldSource::Payload(NFT_PAYLOAD_NETWORK_HEADER, 24),
            Self::EtherSaddr => FieldSource::Payload(NFT_PAYLOAD_LL_HEADER, 6),
            Self::Sport => FieldSource::Payload(NFT_PAYLOAD_TRANSPORT_HEADER, 0),
            Self::Dport => FieldSource::Payload(NFT_PAYLOAD_TRANSPORT_HEADER, 2),
            Self::Protocol => FieldSource::Meta(NFT_META_L4PROTO),
            Self::Nfproto => FieldSource::Meta(NFT_META_NFPROTO),
            Self::EtherType => FieldSource::Meta(NFT_META_PROTOCOL),
            Self::Iif => FieldSource::Meta(NFT_META_IIF),
            Self::Oif => FieldSource::Meta(NFT_META_OIF),
            Self::Iifname => FieldSource::Meta(NFT_META_IIFNAME),
            Self::Oifname => FieldSource::Meta(NFT_META_OIFNAME),
            Self::Iifgroup => FieldSource::Meta(NFT_META_IIFGROUP),
            Self::Oifgroup => FieldSource::Meta(NFT_META_OIFGROUP),
            Self::Mark => FieldSource::Meta(NFT_META_MARK),
            Self::Pkttype => FieldSource::Meta(NFT_META_PKTTYPE),
            Self::CtState => FieldSource::Ct(NFT_CT_STATE),
            Self::CtDirection => FieldSource::Ct(NFT_CT_DIRECTION),
            Self::CtStatus => FieldSource::Ct(NFT_CT_STATUS),
            Self::CtMark => FieldSource::Ct(NFT_CT_MARK),
            Self::FibDaddrType => FieldSource::Fib(NFTA_FIB_F_DADDR, NFT_FIB_RESULT_ADDRTYPE),
            Self::FibSaddrIif | Self::FibDaddrIif => {
                let is_source = self == Self::FibSaddrIif;
                let address = if is_source { NFTA_FIB_F_SADDR } else { NFTA_FIB_F_DADDR };
                FieldSource::Fib(address | NFTA_FIB_F_IIF | NFTA_FIB_F_PRESENT, NFT_FIB_RESULT_OIF)
            }
        }
    }

    /// The length of the field, in bytes.
    pub fn bytes(self) -> u8 {
        match self {
            Self::Protocol | Self::Nfproto | Self::Pkttype | Self::CtDirection => 1,
            Self::Sport | Self::Dport | Self::EtherType => 2,
            Self::EtherSaddr => 6,
            Self::Ip6Saddr | Self::Ip6Daddr | Self::Iifname | Self::Oifname => 16,
            _ => 4,
        }
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

    /// The notation of nft, for messages to users.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::IpSaddr => "ip saddr",
            Self::IpDaddr => "ip daddr",
            Self::Ip6Saddr => "ip6 saddr",
            Self::Ip6Daddr => "ip6 daddr",
            Self::EtherSaddr => "ether saddr",
            Self::Sport => "sport",
            Self::Dport => "dport",
            Self::Protocol => "meta l4proto",
            Self::Nfproto => "meta nfproto",
            Self::EtherType => "meta protocol",
            Self::Iif => "iif",
            Self::Oif => "oif",
            Self::Iifname => "iifname",
            Self::Oifname => "oifname",
            Self::Iifgroup => "iifgroup",
            Self::Oifgroup => "oifgroup",
            Self::Mark => "meta mark",
            Self::Pkttype => "meta pkttype",
            Self::CtState => "ct state",
            Self::CtDirection => "ct direction",
            Self::CtStatus => "ct status",
            Self::CtMark => "ct mark",
            Self::FibDaddrType => "fib daddr type",
            Self::FibSaddrIif => "fib saddr . iif oif exists",
            Self::FibDaddrIif => "fib daddr . iif oif exists",
        }
    }

    /// Whether the field is the name of a link.
    pub(super) fn is_name(self) -> bool {
        matches!(self, Self::Iifname | Self::Oifname)
    }

    /// The name of the expression that loads the field.
    pub(super) fn expression(self) -> &'static str {
        match self.source() {
            FieldSource::Payload(..) => "payload",
            FieldSource::Meta(_) => "meta",
            FieldSource::Ct(_) => "ct",
            FieldSource::Fib(..) => "fib",
        }
    }

    /// Writes the arguments of the expression. `bytes` is less than the length of the field only in a rule that was read.
    pub(super) fn write(self, bytes: u8, to: Register, attrs: &mut Attrs) {
        self.source().write(bytes, to, attrs);
    }

    /// The field that an expression loads, the number of bytes, and the register. iptables and nft load only the bytes of an
    /// address that a prefix covers.
    pub(super) fn read(
        family: Family,
        expression: &str,
        attrs: &[u8],
    ) -> Option<(Self, u8, Register)> {
        let number = |kind| be32_of(attribute(attrs, kind)?);
        let (source, bytes, register) = match expression {
            "payload" => {
                let source =
                    FieldSource::Payload(number(NFTA_PAYLOAD_BASE)?, number(NFTA_PAYLOAD_OFFSET)?);
                (source, number(NFTA_PAYLOAD_LEN), number(NFTA_PAYLOAD_DREG)?)
            }
            "meta" => (FieldSource::Meta(number(NFTA_META_KEY)?), None, number(NFTA_META_DREG)?),
            "ct" => (FieldSource::Ct(number(NFTA_CT_KEY)?), None, number(NFTA_CT_DREG)?),
            "fib" => {
                let source = FieldSource::Fib(number(NFTA_FIB_FLAGS)?, number(NFTA_FIB_RESULT)?);
                (source, None, number(NFTA_FIB_DREG)?)
            }
            _ => return None,
        };
        let mut fields = Self::ALL.into_iter().filter(|field| field.is_in(family));
        let field = fields.find(|field| field.source() == source)?;
        let bytes = match bytes {
            Some(bytes) => u8::try_from(bytes).ok()?,
            None => field.bytes(),
        };
        let register = Register::of(register)?;
        (1..=field.bytes()).contains(&bytes).then_some((field, bytes, register))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_field_is_read() {
        for field in Field::ALL {
            for family in [Family::Ip, Family::Ip6, Family::Inet, Family::Bridge] {
                let mut attrs = Attrs::default();
                field.write(field.bytes(), Register::FIRST, &mut attrs);
                let read = Field::read(family, field.expression(), attrs.as_slice());
                let expected = (field, field.bytes(), Register::FIRST);
                assert_eq!(read, field.is_in(family).then_some(expected), "{field:?} {family:?}");
                assert_eq!(Field::read(family, "numgen", attrs.as_slice()), None);
            }
        }
    }

    #[test]
    fn parts_are_put_into_registers_one_after_the_other() {
        let fields = [Field::Ip6Saddr, Field::Protocol, Field::Dport];
        let numbers: Vec<u32> =
            Field::concatenated(&fields).map(|(_, register)| register.number()).collect();
        assert_eq!(numbers, [1, 2, 13]);
    }
}

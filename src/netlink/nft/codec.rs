//! The bytes of expressions and verdicts: written for new rules, and read from the kernel's rules. A malformed or unknown
//! expression becomes `Expr::Other`.

use nix::libc::{self, c_int};

use super::Family;
use super::consts::{
    IP_CT_DIR_ORIGINAL, NF_NAT_RANGE_PROTO_SPECIFIED, NFT_OBJECT_COUNTER, NFTA_BITWISE_DREG,
    NFTA_BITWISE_LEN, NFTA_BITWISE_MASK, NFTA_BITWISE_OP, NFTA_BITWISE_SREG, NFTA_BITWISE_XOR,
    NFTA_BYTEORDER_DREG, NFTA_BYTEORDER_LEN, NFTA_BYTEORDER_OP, NFTA_BYTEORDER_SIZE,
    NFTA_BYTEORDER_SREG, NFTA_CMP_DATA, NFTA_CMP_OP, NFTA_CMP_SREG, NFTA_CT_DIRECTION,
    NFTA_CT_DREG, NFTA_CT_KEY, NFTA_CT_SREG, NFTA_DATA_VERDICT, NFTA_EXPR_DATA, NFTA_EXPR_NAME,
    NFTA_IMMEDIATE_DATA, NFTA_IMMEDIATE_DREG, NFTA_LIST_ELEM, NFTA_LOG_GROUP, NFTA_LOOKUP_DREG,
    NFTA_LOOKUP_FLAGS, NFTA_LOOKUP_SET, NFTA_LOOKUP_SREG, NFTA_META_KEY, NFTA_META_SREG,
    NFTA_NAT_FAMILY, NFTA_NAT_FLAGS, NFTA_NAT_REG_ADDR_MIN, NFTA_NAT_REG_PROTO_MIN, NFTA_NAT_TYPE,
    NFTA_OBJREF_IMM_TYPE, NFTA_RANGE_FROM_DATA, NFTA_RANGE_OP, NFTA_RANGE_SREG, NFTA_RANGE_TO_DATA,
    NFTA_REDIR_FLAGS, NFTA_REDIR_REG_PROTO_MIN, NFTA_REJECT_ICMP_CODE, NFTA_REJECT_TYPE,
    NFTA_TARGET_INFO, NFTA_TARGET_NAME, NFTA_TARGET_REV, NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE,
};
use super::expr::{Expr, Lookup, Nat, OriginalPart, Verdict, XtExtension};
use super::field::{Field, FieldSource};
use super::register::Register;
use super::wire::{attribute, be32, be32_of, data, data_of, elements_of};
use crate::names::IpFamily;
use crate::netlink::{Attrs, text, u8_of};

impl Expr {
    pub(super) fn write(&self, attrs: &mut Attrs) {
        attrs.nested(NFTA_LIST_ELEM, |attrs| {
            attrs.string(NFTA_EXPR_NAME, self.name());
            attrs.nested(NFTA_EXPR_DATA, |attrs| self.write_arguments(attrs));
        });
    }

    fn write_arguments(&self, attrs: &mut Attrs) {
        match self {
            Self::Load { field, bytes, to } => field.source().write(*bytes, *to, attrs),
            Self::Immediate { value, to } => {
                be32(attrs, NFTA_IMMEDIATE_DREG, to.number());
                data(attrs, NFTA_IMMEDIATE_DATA, value);
            }
            Self::Verdict(verdict) => {
                be32(attrs, NFTA_IMMEDIATE_DREG, libc::NFT_REG_VERDICT);
                attrs.nested(NFTA_IMMEDIATE_DATA, |data| verdict.write(data));
            }
            Self::Bitwise { register, mask, xor } => {
                be32(attrs, NFTA_BITWISE_SREG, register.number());
                be32(attrs, NFTA_BITWISE_DREG, register.number());
                be32(attrs, NFTA_BITWISE_LEN, c_int::try_from(mask.len()).unwrap_or(c_int::MAX));
                data(attrs, NFTA_BITWISE_MASK, mask);
                data(attrs, NFTA_BITWISE_XOR, xor);
            }
            Self::SwapBytes { register, bytes, size } => {
                write_byte_order(attrs, *register, *bytes, *size);
            }
            Self::Compare { register, is_equal, value } => {
                be32(attrs, NFTA_CMP_SREG, register.number());
                be32(attrs, NFTA_CMP_OP, operation(*is_equal));
                data(attrs, NFTA_CMP_DATA, value);
            }
            Self::Range { register, is_inside, first, last } => {
                be32(attrs, NFTA_RANGE_SREG, register.number());
                be32(attrs, NFTA_RANGE_OP, operation(*is_inside));
                data(attrs, NFTA_RANGE_FROM_DATA, first);
                data(attrs, NFTA_RANGE_TO_DATA, last);
            }
            Self::Lookup { set, key, lookup } => {
                attrs.string(NFTA_LOOKUP_SET, set);
                be32(attrs, NFTA_LOOKUP_SREG, key.number());
                lookup.write(attrs);
            }
            Self::SetMark { from } => {
                be32(attrs, NFTA_META_KEY, libc::NFT_META_MARK);
                be32(attrs, NFTA_META_SREG, from.number());
            }
            Self::SetTrace { from } => {
                be32(attrs, NFTA_META_KEY, libc::NFT_META_NFTRACE);
                be32(attrs, NFTA_META_SREG, from.number());
            }
            Self::LoadOriginal { part, to } => {
                let key = match part {
                    OriginalPart::Protocol => libc::NFT_CT_PROTOCOL,
                    OriginalPart::Source(IpFamily::V4) => libc::NFT_CT_SRC_IP,
                    OriginalPart::Source(IpFamily::V6) => libc::NFT_CT_SRC_IP6,
                    OriginalPart::SourcePort => libc::NFT_CT_PROTO_SRC,
                    OriginalPart::Destination(IpFamily::V4) => libc::NFT_CT_DST_IP,
                    OriginalPart::Destination(IpFamily::V6) => libc::NFT_CT_DST_IP6,
                    OriginalPart::DestinationPort => libc::NFT_CT_PROTO_DST,
                };
                be32(attrs, NFTA_CT_KEY, key);
                be32(attrs, NFTA_CT_DREG, to.number());
                attrs.u8(NFTA_CT_DIRECTION, IP_CT_DIR_ORIGINAL);
            }
            Self::Nat { nat, family, address, port } => {
                write_nat(attrs, *nat, *family, *address, *port);
            }
            Self::Redirect { port: Some(port) } => {
                be32(attrs, NFTA_REDIR_REG_PROTO_MIN, port.number());
                be32(attrs, NFTA_REDIR_FLAGS, NF_NAT_RANGE_PROTO_SPECIFIED);
            }
            Self::Reject { kind, code } => {
                be32(attrs, NFTA_REJECT_TYPE, *kind);
                attrs.u8(NFTA_REJECT_ICMP_CODE, *code);
            }
            Self::XtMatch(extension) | Self::XtTarget(extension) => {
                let XtExtension { name, revision, info } = extension;
                attrs.string(NFTA_TARGET_NAME, name);
                be32(attrs, NFTA_TARGET_REV, revision.cast_signed());
                attrs.bytes(NFTA_TARGET_INFO, info);
            }
            Self::Redirect { port: None } | Self::Masquerade | Self::Counter | Self::Other(_) => {}
        }
    }

    /// The expressions of a rule in a table of that family.
    pub(super) fn read_all(family: Family, list: &[u8]) -> Vec<Self> {
        elements_of(list).map(|element| Self::read(family, element)).collect()
    }

    fn read(family: Family, element: &[u8]) -> Self {
        let name = attribute(element, NFTA_EXPR_NAME).map(text).unwrap_or_default();
        let arguments = Arguments(attribute(element, NFTA_EXPR_DATA).unwrap_or_default());
        Self::read_arguments(family, &name, arguments)
            .unwrap_or_else(|| Self::Other(name.into_owned()))
    }

    fn read_arguments(family: Family, name: &str, arguments: Arguments<'_>) -> Option<Self> {
        if let Some((source, bytes, to)) = FieldSource::read(name, arguments.0)
            && let Some((field, bytes)) = Field::loaded(family, source, bytes)
        {
            return Some(Self::Load { field, bytes, to });
        }
        Some(match name {
            "immediate" if arguments.number(NFTA_IMMEDIATE_DREG)? == libc::NFT_REG_VERDICT => {
                Self::Verdict(Verdict::read(arguments.bytes(NFTA_IMMEDIATE_DATA)?)?)
            }
            "immediate" => Self::Immediate {
                value: arguments.data(NFTA_IMMEDIATE_DATA)?,
                to: arguments.register(NFTA_IMMEDIATE_DREG)?,
            },
            "bitwise" => arguments.bitwise()?,
            "byteorder" => arguments.byte_order()?,
            "cmp" => arguments.comparison()?,
            "range" => Self::Range {
                register: arguments.register(NFTA_RANGE_SREG)?,
                is_inside: arguments.is_equal(NFTA_RANGE_OP)?,
                first: arguments.data(NFTA_RANGE_FROM_DATA)?,
                last: arguments.data(NFTA_RANGE_TO_DATA)?,
            },
            "lookup" => arguments.lookup()?,
            "meta"
                if arguments.number(NFTA_META_KEY)? == libc::NFT_META_MARK
                    && arguments.bytes(NFTA_META_SREG).is_some() =>
            {
                Self::SetMark { from: arguments.register(NFTA_META_SREG)? }
            }
            // These expressions set a field of the packet or of its connection.
            "meta" if arguments.bytes(NFTA_META_SREG).is_some() => Self::Other("meta set".into()),
            "ct" if arguments.bytes(NFTA_CT_SREG).is_some() => Self::Other("ct set".into()),
            // A program gets a copy.
            "log" if arguments.bytes(NFTA_LOG_GROUP).is_some() => Self::Other("log group".into()),
            "masq" => Self::Masquerade,
            "nat" => arguments.nat()?,
            "redir" => Self::Redirect { port: arguments.register(NFTA_REDIR_REG_PROTO_MIN) },
            "reject" => Self::Reject {
                kind: arguments.number(NFTA_REJECT_TYPE)?,
                code: arguments.bytes(NFTA_REJECT_ICMP_CODE).and_then(u8_of).unwrap_or_default(),
            },
            "counter" => Self::Counter,
            // A named one.
            "objref" if arguments.number(NFTA_OBJREF_IMM_TYPE) == Some(NFT_OBJECT_COUNTER) => {
                Self::Counter
            }
            "match" => Self::XtMatch(arguments.extension()?),
            "target" => Self::XtTarget(arguments.extension()?),
            _ => return None,
        })
    }
}

impl Lookup {
    fn write(self, attrs: &mut Attrs) {
        match self {
            Self::Contains => {}
            Self::Lacks => be32(attrs, NFTA_LOOKUP_FLAGS, libc::NFT_LOOKUP_F_INV),
            Self::Load(register) => be32(attrs, NFTA_LOOKUP_DREG, register.number()),
            Self::Verdict => be32(attrs, NFTA_LOOKUP_DREG, libc::NFT_REG_VERDICT),
        }
    }
}

fn write_byte_order(attrs: &mut Attrs, register: Register, bytes: u8, size: u8) {
    be32(attrs, NFTA_BYTEORDER_SREG, register.number());
    be32(attrs, NFTA_BYTEORDER_DREG, register.number());
    be32(attrs, NFTA_BYTEORDER_OP, libc::NFT_BYTEORDER_HTON);
    be32(attrs, NFTA_BYTEORDER_LEN, bytes.into());
    be32(attrs, NFTA_BYTEORDER_SIZE, size.into());
}

fn operation(is_equal: bool) -> c_int {
    if is_equal { libc::NFT_CMP_EQ } else { libc::NFT_CMP_NEQ }
}

fn write_nat(
    attrs: &mut Attrs,
    nat: Nat,
    family: Family,
    address: Option<Register>,
    port: Option<Register>,
) {
    let kind = match nat {
        Nat::Source => libc::NFT_NAT_SNAT,
        Nat::Destination => libc::NFT_NAT_DNAT,
    };
    be32(attrs, NFTA_NAT_TYPE, kind);
    be32(attrs, NFTA_NAT_FAMILY, family.number().into());
    if let Some(address) = address {
        be32(attrs, NFTA_NAT_REG_ADDR_MIN, address.number());
    }
    if let Some(port) = port {
        be32(attrs, NFTA_NAT_REG_PROTO_MIN, port.number());
        be32(attrs, NFTA_NAT_FLAGS, NF_NAT_RANGE_PROTO_SPECIFIED);
    }
}

/// The attributes of one expression.
#[derive(Clone, Copy)]
struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn bytes(self, kind: u16) -> Option<&'a [u8]> {
        attribute(self.0, kind)
    }

    fn number(self, kind: u16) -> Option<c_int> {
        self.bytes(kind).and_then(be32_of)
    }

    fn register(self, kind: u16) -> Option<Register> {
        Register::of(self.number(kind)?)
    }

    fn data(self, kind: u16) -> Option<Vec<u8>> {
        self.bytes(kind).and_then(data_of)
    }

    fn comparison(self) -> Option<Expr> {
        let (register, value) = (self.register(NFTA_CMP_SREG)?, self.data(NFTA_CMP_DATA)?);
        Some(match self.number(NFTA_CMP_OP)? {
            libc::NFT_CMP_EQ => Expr::Compare { register, is_equal: true, value },
            libc::NFT_CMP_NEQ => Expr::Compare { register, is_equal: false, value },
            libc::NFT_CMP_GTE => {
                let last = vec![0xff; value.len()];
                Expr::Range { register, is_inside: true, first: value, last }
            }
            libc::NFT_CMP_LTE => {
                let first = vec![0; value.len()];
                Expr::Range { register, is_inside: true, first, last: value }
            }
            _ => return None,
        })
    }

    fn is_equal(self, kind: u16) -> Option<bool> {
        match self.number(kind)? {
            libc::NFT_CMP_EQ => Some(true),
            libc::NFT_CMP_NEQ => Some(false),
            _ => None,
        }
    }

    fn bitwise(self) -> Option<Expr> {
        let register = self.register(NFTA_BITWISE_DREG)?;
        let is_mask_and_xor = self.register(NFTA_BITWISE_SREG)? == register
            && self.number(NFTA_BITWISE_OP).unwrap_or_default() == 0;
        let (mask, xor) = (self.data(NFTA_BITWISE_MASK)?, self.data(NFTA_BITWISE_XOR)?);
        is_mask_and_xor.then_some(Expr::Bitwise { register, mask, xor })
    }

    fn byte_order(self) -> Option<Expr> {
        let register = self.register(NFTA_BYTEORDER_DREG)?;
        let byte = |kind| u8::try_from(self.number(kind)?).ok();
        let swap = Expr::SwapBytes {
            register,
            bytes: byte(NFTA_BYTEORDER_LEN)?,
            size: byte(NFTA_BYTEORDER_SIZE)?,
        };
        (self.register(NFTA_BYTEORDER_SREG)? == register).then_some(swap)
    }

    fn lookup(self) -> Option<Expr> {
        let flags = self.number(NFTA_LOOKUP_FLAGS).unwrap_or_default();
        let lookup = match self.number(NFTA_LOOKUP_DREG) {
            Some(libc::NFT_REG_VERDICT) => Lookup::Verdict,
            Some(number) => Lookup::Load(Register::of(number)?),
            None if flags & libc::NFT_LOOKUP_F_INV != 0 => Lookup::Lacks,
            None => Lookup::Contains,
        };
        Some(Expr::Lookup {
            set: self.bytes(NFTA_LOOKUP_SET).map(text)?.into_owned(),
            key: self.register(NFTA_LOOKUP_SREG)?,
            lookup,
        })
    }

    fn nat(self) -> Option<Expr> {
        let nat = match self.number(NFTA_NAT_TYPE)? {
            libc::NFT_NAT_SNAT => Nat::Source,
            libc::NFT_NAT_DNAT => Nat::Destination,
            _ => return None,
        };
        Some(Expr::Nat {
            nat,
            family: Family::of(u8::try_from(self.number(NFTA_NAT_FAMILY)?).ok()?)?,
            address: self.register(NFTA_NAT_REG_ADDR_MIN),
            port: self.register(NFTA_NAT_REG_PROTO_MIN),
        })
    }

    fn extension(self) -> Option<XtExtension> {
        Some(XtExtension {
            name: self.bytes(NFTA_TARGET_NAME).map(text)?.into_owned(),
            revision: self.number(NFTA_TARGET_REV)?.cast_unsigned(),
            info: self.bytes(NFTA_TARGET_INFO)?.to_vec(),
        })
    }
}

impl Verdict {
    /// Writes the verdict as the data of an immediate or of an element of a verdict map.
    pub(super) fn write(&self, attrs: &mut Attrs) {
        let (code, chain) = match self {
            Self::Accept => (libc::NF_ACCEPT, None),
            Self::Drop => (libc::NF_DROP, None),
            Self::Continue => (libc::NFT_CONTINUE, None),
            Self::Return => (libc::NFT_RETURN, None),
            Self::Jump(chain) => (libc::NFT_JUMP, Some(chain)),
            Self::Goto(chain) => (libc::NFT_GOTO, Some(chain)),
        };
        attrs.nested(NFTA_DATA_VERDICT, |attrs| {
            be32(attrs, NFTA_VERDICT_CODE, code);
            if let Some(chain) = chain {
                attrs.string(NFTA_VERDICT_CHAIN, chain);
            }
        });
    }

    /// Reads the verdict in the data of an immediate or of an element of a verdict map. `None` for verdicts internal to the
    /// kernel.
    pub(super) fn read(data: &[u8]) -> Option<Self> {
        let verdict = attribute(data, NFTA_DATA_VERDICT)?;
        let code = be32_of(attribute(verdict, NFTA_VERDICT_CODE)?)?;
        let chain = || Some(attribute(verdict, NFTA_VERDICT_CHAIN).map(text)?.into_owned());
        match code {
            libc::NF_ACCEPT => Some(Self::Accept),
            libc::NF_DROP => Some(Self::Drop),
            libc::NFT_CONTINUE => Some(Self::Continue),
            libc::NFT_RETURN => Some(Self::Return),
            libc::NFT_JUMP => chain().map(Self::Jump),
            libc::NFT_GOTO => chain().map(Self::Goto),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::nft::expr::{
        dnat_to, dnat_to_map, in_range, in_set, not_in_set, redirect_to, reject_prohibited,
        verdict_map,
    };
    use crate::netlink::rows;

    fn written(exprs: &[Expr]) -> Attrs {
        let mut attrs = Attrs::default();
        exprs.iter().for_each(|expr| expr.write(&mut attrs));
        attrs
    }

    fn samples() -> Vec<Expr> {
        let extension =
            |name: &str| XtExtension { name: name.to_owned(), revision: 3, info: vec![1, 2, 3, 4] };
        let mut samples = vec![Expr::XtMatch(extension("conntrack"))];
        samples.push(Expr::XtTarget(extension("MASQUERADE")));
        samples.extend([Expr::Masquerade, Expr::Counter, Expr::Redirect { port: None }]);
        samples.extend(in_set(&[Field::Protocol, Field::Dport], "ports"));
        samples.extend(not_in_set(&[Field::Iifname], "links"));
        samples.extend(verdict_map(&[Field::IpSaddr], "networks"));
        samples.extend(dnat_to_map(Family::Ip, &[Field::Protocol, Field::Dport], "ports"));
        samples.extend(dnat_to("10.1.0.5".parse().unwrap(), 80));
        samples.extend(redirect_to(80));
        samples.extend(in_range(Field::Dport, &[0, 80], &[0, 90]));
        let register = Register::FIRST;
        samples.push(Expr::Load { field: Field::Payload(1, 12), bytes: 8, to: register });
        samples.push(Expr::SwapBytes { register, bytes: 4, size: 4 });
        samples.push(reject_prohibited(Family::Ip));
        for verdict in [
            Verdict::Accept,
            Verdict::Drop,
            Verdict::Continue,
            Verdict::Return,
            Verdict::Jump("chain".into()),
            Verdict::Goto("chain".into()),
        ] {
            samples.push(verdict.into());
        }
        samples
    }

    #[test]
    fn written_expressions_are_read() {
        let samples = samples();
        assert_eq!(Expr::read_all(Family::Ip, written(&samples).as_slice()), samples);
    }

    #[test]
    fn truncated_lists_are_read_up_to_their_end() {
        let whole = samples();
        let bytes = written(&whole).as_slice().to_vec();
        for end in 0..bytes.len() {
            let read = Expr::read_all(Family::Ip, &bytes[..end]);
            assert!(read.len() < whole.len(), "{end}");
            assert_eq!(read, whole[..read.len()]);
        }
        // A wrong byte causes no panic.
        for at in 0..bytes.len() {
            for wrong in [0, 1, 4, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = wrong;
                Expr::read_all(Family::Inet, &bytes);
            }
        }
    }

    #[test]
    fn a_comparison_with_one_bound_is_a_range() {
        let (zero, port, most) = (vec![0, 0], vec![0, 80], vec![0xff, 0xff]);
        for (operation, first, last) in
            [(libc::NFT_CMP_GTE, &port, &most), (libc::NFT_CMP_LTE, &zero, &port)]
        {
            let mut attrs = Attrs::default();
            attrs.nested(NFTA_LIST_ELEM, |attrs| {
                attrs.string(NFTA_EXPR_NAME, "cmp");
                attrs.nested(NFTA_EXPR_DATA, |attrs| {
                    be32(attrs, NFTA_CMP_SREG, Register::FIRST.number());
                    be32(attrs, NFTA_CMP_OP, operation);
                    data(attrs, NFTA_CMP_DATA, &port);
                });
            });
            let (first, last) = (first.clone(), last.clone());
            let range = Expr::Range { register: Register::FIRST, is_inside: true, first, last };
            assert_eq!(Expr::read_all(Family::Ip, attrs.as_slice()), [range]);
        }
    }

    #[test]
    fn unknown_expressions_keep_their_name() {
        for (name, arguments) in [("numgen", Attrs::default()), ("cmp", Attrs::default())] {
            let mut attrs = Attrs::default();
            attrs.nested(NFTA_LIST_ELEM, |attrs| {
                attrs.string(NFTA_EXPR_NAME, name);
                attrs.nested(NFTA_EXPR_DATA, |data| data.raw(arguments.as_slice()));
            });
            let read = Expr::read_all(Family::Ip, attrs.as_slice());
            assert_eq!(read, [Expr::Other(name.into())]);
        }
        let mut attrs = Attrs::default();
        attrs.nested(NFTA_LIST_ELEM, |_| {});
        assert_eq!(Expr::read_all(Family::Ip, attrs.as_slice()), [Expr::Other(String::new())]);
    }

    /// The bytes that nft 1.0.6 sends for the first expression of `fib daddr type local`, and for `jump net2`.
    #[test]
    fn expressions_are_those_of_nft() {
        let load = Expr::Load { field: Field::FibDaddrType, bytes: 4, to: Register::FIRST };
        assert_eq!(
            rows(written(&[load]).as_slice()),
            "28000180 08000100 66696200 1c000280 08000300 00000002 08000200 00000003 08000100 \
             00000001"
        );
        let jump = Expr::from(Verdict::Jump("net2".into()));
        assert_eq!(
            rows(written(&[jump]).as_slice()),
            "3c000180 0e000100 696d6d65 64696174 65000000 28000280 08000100 00000000 1c000280 \
             18000280 08000100 fffffffd 09000200 6e657432 00000000"
        );
    }
}

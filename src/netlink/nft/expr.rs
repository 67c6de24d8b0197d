//! Expressions: the instructions that rules are made of, as values, and their bytes.

use std::net::IpAddr;

use super::Family;
use super::consts::{
    ICMP_PKT_FILTERED, ICMPV6_ADM_PROHIBITED, NF_ACCEPT, NF_DROP, NF_NAT_RANGE_PROTO_SPECIFIED,
    NFT_BYTEORDER_HTON, NFT_CMP_EQ, NFT_CMP_GTE, NFT_CMP_LTE, NFT_CMP_NEQ, NFT_CONTINUE, NFT_GOTO,
    NFT_JUMP, NFT_LOOKUP_F_INV, NFT_META_MARK, NFT_NAT_DNAT, NFT_NAT_SNAT, NFT_REG_VERDICT,
    NFT_REJECT_ICMP_UNREACH, NFT_REJECT_ICMPX_ADMIN_PROHIBITED, NFT_REJECT_ICMPX_UNREACH,
    NFT_RETURN, NFTA_BITWISE_DREG, NFTA_BITWISE_LEN, NFTA_BITWISE_MASK, NFTA_BITWISE_SREG,
    NFTA_BITWISE_XOR, NFTA_BYTEORDER_DREG, NFTA_BYTEORDER_LEN, NFTA_BYTEORDER_OP,
    NFTA_BYTEORDER_SIZE, NFTA_BYTEORDER_SREG, NFTA_CMP_DATA, NFTA_CMP_OP, NFTA_CMP_SREG,
    NFTA_DATA_VERDICT, NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_IMMEDIATE_DATA, NFTA_IMMEDIATE_DREG,
    NFTA_LIST_ELEM, NFTA_LOOKUP_DREG, NFTA_LOOKUP_FLAGS, NFTA_LOOKUP_SET, NFTA_LOOKUP_SREG,
    NFTA_META_KEY, NFTA_META_SREG, NFTA_NAT_FAMILY, NFTA_NAT_FLAGS, NFTA_NAT_REG_ADDR_MIN,
    NFTA_NAT_REG_PROTO_MIN, NFTA_NAT_TYPE, NFTA_RANGE_FROM_DATA, NFTA_RANGE_OP, NFTA_RANGE_SREG,
    NFTA_RANGE_TO_DATA, NFTA_REDIR_FLAGS, NFTA_REDIR_REG_PROTO_MIN, NFTA_REJECT_ICMP_CODE,
    NFTA_REJECT_TYPE, NFTA_TARGET_INFO, NFTA_TARGET_NAME, NFTA_TARGET_REV, NFTA_VERDICT_CHAIN,
    NFTA_VERDICT_CODE,
};
use super::field::{Field, FieldSource};
use super::register::Register;
use super::wire::{be32, data};
use crate::netlink::Attrs;

/// One instruction of a rule. The rule ends at the first one that does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Loads a field into registers. A rule of another program can load a part of the field.
    Load {
        field: Field,
        bytes: u8,
        to: Register,
    },
    /// Loads bytes of a header that are not exactly one field.
    LoadPayload {
        header: u32,
        /// The offset in the header, in bytes.
        offset: u32,
        bytes: u8,
        to: Register,
    },
    /// Loads a constant into registers.
    Immediate {
        value: Vec<u8>,
        to: Register,
    },
    /// `register = register & mask ^ xor`
    Bitwise {
        register: Register,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    /// Converts numbers of `size` bytes each from one byte order to the other.
    SwapBytes {
        register: Register,
        /// The length of all numbers together, in bytes. A rest that is shorter than a number does not change.
        bytes: u8,
        size: u8,
    },
    /// Matches if the register has the value, or with `is_equal: false`, if it has another one.
    Compare {
        register: Register,
        is_equal: bool,
        value: Vec<u8>,
    },
    /// Matches if register >= value.
    AtLeast {
        register: Register,
        value: Vec<u8>,
    },
    /// Matches if register <= value.
    AtMost {
        register: Register,
        value: Vec<u8>,
    },
    /// Matches if first <= register <= last, or with `is_inside: false`, if not.
    Range {
        register: Register,
        is_inside: bool,
        first: Vec<u8>,
        last: Vec<u8>,
    },
    /// Looks up a key in a set or map of the table. The key is in the registers from `key` on.
    Lookup {
        set: String,
        key: Register,
        lookup: Lookup,
    },
    /// Sets the mark of the packet.
    SetMark {
        from: Register,
    },
    Verdict(Verdict),
    /// `masquerade`
    Masquerade,
    /// `snat` or `dnat` to an address, a port, or both.
    Nat {
        nat: Nat,
        family: Family,
        address: Option<Register>,
        port: Option<Register>,
    },
    /// `redirect`
    Redirect {
        port: Option<Register>,
    },
    /// `reject`: the kind of the answer, NFT_REJECT_*, and its ICMP code.
    Reject {
        kind: u32,
        code: u8,
    },
    /// `counter`
    Counter,
    /// A match of iptables. The kernel accepts it only in tables of iptables.
    XtMatch {
        name: String,
        revision: u32,
        info: Vec<u8>,
    },
    /// A target of iptables.
    XtTarget {
        name: String,
        revision: u32,
        info: Vec<u8>,
    },
    /// An expression of another kind, by its name, in a rule of another program. The arguments are not kept, so the rule cannot
    /// be written again.
    Other(String),
}

/// What a lookup does with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Matches if the set has the key.
    Contains,
    /// Matches if the set does not have the key.
    Lacks,
    /// Matches if the map has the key, and loads its data into registers.
    Load(Register),
    /// Executes the verdict that the map has for the key.
    Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nat {
    Source,
    Destination,
}

/// A verdict, as in nft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    Continue,
    Return,
    Jump(String),
    Goto(String),
}

/// The expressions that load the key of a lookup: `meta l4proto . th dport`.
fn load(fields: &[Field]) -> impl Iterator<Item = Expr> {
    Field::concatenated(fields).map(|(field, to)| Expr::Load { field, bytes: field.bytes(), to })
}

/// `iifname @links`
pub fn in_set(fields: &[Field], set: &str) -> Vec<Expr> {
    lookup(fields, set, Lookup::Contains)
}

/// `iifname != @links`
pub fn not_in_set(fields: &[Field], set: &str) -> Vec<Expr> {
    lookup(fields, set, Lookup::Lacks)
}

/// `ip saddr vmap @networks`
pub fn verdict_map(fields: &[Field], map: &str) -> Vec<Expr> {
    lookup(fields, map, Lookup::Verdict)
}

/// `dnat ip to meta l4proto . th dport map @ports`, for a map with the data `ipv4_addr . inet_service` or
/// `ipv6_addr . inet_service`
pub fn dnat_to_map(family: Family, fields: &[Field], map: &str) -> Vec<Expr> {
    let address_bytes = if family == Family::Ip6 { 16 } else { 4 };
    let mut exprs = lookup(fields, map, Lookup::Load(Register::FIRST));
    exprs.push(Expr::Nat {
        nat: Nat::Destination,
        family,
        address: Some(Register::FIRST),
        port: Some(Register::FIRST.after(address_bytes)),
    });
    exprs
}

/// `dnat to 10.1.0.5:80`
pub fn dnat_to(address: IpAddr, port: u16) -> Vec<Expr> {
    nat_to(Nat::Destination, address, Some(port))
}

/// `redirect to :8080`
pub fn redirect_to(port: u16) -> Vec<Expr> {
    let value = port.to_be_bytes().into();
    let to = Register::FIRST;
    vec![Expr::Immediate { value, to }, Expr::Redirect { port: Some(to) }]
}

/// `th dport 8000-8080`, after a condition on the protocol
pub fn in_range(field: Field, first: &[u8], last: &[u8]) -> Vec<Expr> {
    range(field, true, first, last)
}

/// `th dport != 8000-8080`, after a condition on the protocol
pub fn not_in_range(field: Field, first: &[u8], last: &[u8]) -> Vec<Expr> {
    range(field, false, first, last)
}

/// `reject with icmp admin-prohibited`, or its equivalent in the family
pub fn reject_prohibited(family: Family) -> Expr {
    let (kind, code) = match family {
        Family::Ip => (NFT_REJECT_ICMP_UNREACH, ICMP_PKT_FILTERED),
        Family::Ip6 => (NFT_REJECT_ICMP_UNREACH, ICMPV6_ADM_PROHIBITED),
        Family::Inet | Family::Bridge => {
            (NFT_REJECT_ICMPX_UNREACH, NFT_REJECT_ICMPX_ADMIN_PROHIBITED)
        }
    };
    Expr::Reject { kind, code }
}

fn lookup(fields: &[Field], set: &str, lookup: Lookup) -> Vec<Expr> {
    let lookup = Expr::Lookup { set: set.into(), key: Register::FIRST, lookup };
    load(fields).chain([lookup]).collect()
}

fn range(field: Field, is_inside: bool, first: &[u8], last: &[u8]) -> Vec<Expr> {
    let (first, last) = (first.into(), last.into());
    let range = Expr::Range { register: Register::FIRST, is_inside, first, last };
    load(&[field]).chain([range]).collect()
}

fn nat_to(nat: Nat, address: IpAddr, port: Option<u16>) -> Vec<Expr> {
    let (family, value) = match address {
        IpAddr::V4(address) => (Family::Ip, address.octets().to_vec()),
        IpAddr::V6(address) => (Family::Ip6, address.octets().to_vec()),
    };
    let address_at = Register::FIRST;
    let port_at = address_at.after(16);
    let mut exprs = vec![Expr::Immediate { value, to: address_at }];
    exprs
        .extend(port.map(|port| Expr::Immediate { value: port.to_be_bytes().into(), to: port_at }));
    exprs.push(Expr::Nat { nat, family, address: Some(address_at), port: port.map(|_| port_at) });
    exprs
}

impl Expr {
    pub(super) fn write(&self, attrs: &mut Attrs) {
        attrs.nested(NFTA_LIST_ELEM, |attrs| {
            attrs.string(NFTA_EXPR_NAME, self.name());
            attrs.nested(NFTA_EXPR_DATA, |attrs| self.write_arguments(attrs));
        });
    }

    /// The name of the expression in the kernel (NFTA_EXPR_NAME).
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Load { field, .. } => field.expression(),
            Self::LoadPayload { .. } => "payload",
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Bitwise { .. } => "bitwise",
            Self::SwapBytes { .. } => "byteorder",
            Self::Compare { .. } | Self::AtLeast { .. } | Self::AtMost { .. } => "cmp",
            Self::Range { .. } => "range",
            Self::Lookup { .. } => "lookup",
            Self::SetMark { .. } => "meta",
            Self::Masquerade => "masq",
            Self::Nat { .. } => "nat",
            Self::Redirect { .. } => "redir",
            Self::Reject { .. } => "reject",
            Self::Counter => "counter",
            Self::XtMatch { .. } => "match",
            Self::XtTarget { .. } => "target",
            Self::Other(name) => name,
        }
    }

    fn write_arguments(&self, attrs: &mut Attrs) {
        match self {
            Self::Load { field, bytes, to } => field.write(*bytes, *to, attrs),
            Self::LoadPayload { header, offset, bytes, to } => {
                FieldSource::Payload(*header, *offset).write(*bytes, *to, attrs);
            }
            Self::Immediate { value, to } => {
                be32(attrs, NFTA_IMMEDIATE_DREG, to.number());
                data(attrs, NFTA_IMMEDIATE_DATA, value);
            }
            Self::Verdict(verdict) => {
                be32(attrs, NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
                attrs.nested(NFTA_IMMEDIATE_DATA, |data| verdict.write(data));
            }
            Self::Bitwise { register, mask, xor } => {
                be32(attrs, NFTA_BITWISE_SREG, register.number());
                be32(attrs, NFTA_BITWISE_DREG, register.number());
                be32(attrs, NFTA_BITWISE_LEN, u32::try_from(mask.len()).unwrap_or(u32::MAX));
                data(attrs, NFTA_BITWISE_MASK, mask);
                data(attrs, NFTA_BITWISE_XOR, xor);
            }
            Self::SwapBytes { register, bytes, size } => {
                write_byte_order(attrs, *register, *bytes, *size);
            }
            Self::Compare { register, is_equal, value } => {
                let operation = if *is_equal { NFT_CMP_EQ } else { NFT_CMP_NEQ };
                write_comparison(attrs, *register, operation, value);
            }
            Self::AtLeast { register, value } => {
                write_comparison(attrs, *register, NFT_CMP_GTE, value);
            }
            Self::AtMost { register, value } => {
                write_comparison(attrs, *register, NFT_CMP_LTE, value);
            }
            Self::Range { register, is_inside, first, last } => {
                be32(attrs, NFTA_RANGE_SREG, register.number());
                be32(attrs, NFTA_RANGE_OP, if *is_inside { NFT_CMP_EQ } else { NFT_CMP_NEQ });
                data(attrs, NFTA_RANGE_FROM_DATA, first);
                data(attrs, NFTA_RANGE_TO_DATA, last);
            }
            Self::Lookup { set, key, lookup } => {
                attrs.string(NFTA_LOOKUP_SET, set);
                be32(attrs, NFTA_LOOKUP_SREG, key.number());
                lookup.write(attrs);
            }
            Self::SetMark { from } => {
                be32(attrs, NFTA_META_KEY, NFT_META_MARK);
                be32(attrs, NFTA_META_SREG, from.number());
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
            Self::XtMatch { name, revision, info } | Self::XtTarget { name, revision, info } => {
                attrs.string(NFTA_TARGET_NAME, name);
                be32(attrs, NFTA_TARGET_REV, *revision);
                attrs.bytes(NFTA_TARGET_INFO, info);
            }
            Self::Redirect { port: None } | Self::Masquerade | Self::Counter | Self::Other(_) => {}
        }
    }
}

impl From<Verdict> for Expr {
    fn from(verdict: Verdict) -> Self {
        Self::Verdict(verdict)
    }
}

impl Lookup {
    fn write(self, attrs: &mut Attrs) {
        match self {
            Self::Contains => {}
            Self::Lacks => be32(attrs, NFTA_LOOKUP_FLAGS, NFT_LOOKUP_F_INV),
            Self::Load(register) => be32(attrs, NFTA_LOOKUP_DREG, register.number()),
            Self::Verdict => be32(attrs, NFTA_LOOKUP_DREG, NFT_REG_VERDICT),
        }
    }
}

fn write_byte_order(attrs: &mut Attrs, register: Register, bytes: u8, size: u8) {
    be32(attrs, NFTA_BYTEORDER_SREG, register.number());
    be32(attrs, NFTA_BYTEORDER_DREG, register.number());
    be32(attrs, NFTA_BYTEORDER_OP, NFT_BYTEORDER_HTON);
    be32(attrs, NFTA_BYTEORDER_LEN, bytes.into());
    be32(attrs, NFTA_BYTEORDER_SIZE, size.into());
}

fn write_comparison(attrs: &mut Attrs, register: Register, operation: u32, value: &[u8]) {
    be32(attrs, NFTA_CMP_SREG, register.number());
    be32(attrs, NFTA_CMP_OP, operation);
    data(attrs, NFTA_CMP_DATA, value);
}

fn write_nat(
    attrs: &mut Attrs,
    nat: Nat,
    family: Family,
    address: Option<Register>,
    port: Option<Register>,
) {
    let kind = match nat {
        Nat::Source => NFT_NAT_SNAT,
        Nat::Destination => NFT_NAT_DNAT,
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

impl Verdict {
    /// Writes the verdict as the data of an immediate or of an element of a verdict map.
    pub(super) fn write(&self, attrs: &mut Attrs) {
        let (code, chain) = match self {
            Self::Accept => (NF_ACCEPT, None),
            Self::Drop => (NF_DROP, None),
            Self::Continue => (NFT_CONTINUE, None),
            Self::Return => (NFT_RETURN, None),
            Self::Jump(chain) => (NFT_JUMP, Some(chain)),
            Self::Goto(chain) => (NFT_GOTO, Some(chain)),
        };
        attrs.nested(NFTA_DATA_VERDICT, |attrs| {
            attrs.bytes(NFTA_VERDICT_CODE, &code.to_be_bytes());
            if let Some(chain) = chain {
                attrs.string(NFTA_VERDICT_CHAIN, chain);
            }
        });
    }
}

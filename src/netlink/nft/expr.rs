//! Expressions: the instructions that rules are made of, as values, and their bytes.

use std::fmt::{self, Display};
use std::net::IpAddr;

use nix::libc::{self, c_int};

use super::Family;
use super::consts::{ICMP_PKT_FILTERED, ICMPV6_ADM_PROHIBITED, NFT_REJECT_ICMPX_ADMIN_PROHIBITED};
use super::field::Field;
use super::register::Register;
use crate::names::IpFamily;
use crate::netlink::octets;

/// One instruction of a rule. The rule ends at the first one that does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Loads a field into registers. A rule of another program can load a part of the field.
    Load {
        field: Field,
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
    /// Matches if first <= register <= last, or with `is_inside: false`, if not. A comparison with one bound is read as a range
    /// up to the greatest value, or from 0 on.
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
    /// `meta nftrace set`: the kernel reports what the later rules do with the packet. The register has 0 or 1.
    SetTrace {
        from: Register,
    },
    /// Loads a part of the first packet of the connection, before any NAT: `ct original`.
    LoadOriginal {
        part: OriginalPart,
        to: Register,
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
        kind: c_int,
        code: u8,
    },
    /// `counter`
    Counter,
    /// A match of iptables. The kernel accepts it only in tables of iptables.
    XtMatch(XtExtension),
    /// A target of iptables.
    XtTarget(XtExtension),
    /// An expression of another kind, by its name, in a rule of another program. The arguments are not kept, so the rule cannot
    /// be written again.
    Other(String),
}

/// An extension of iptables with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XtExtension {
    pub name: String,
    pub revision: u32,
    pub info: Vec<u8>,
}

/// A part of the first packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginalPart {
    /// `protocol`
    Protocol,
    /// `ip saddr`, `ip6 saddr`
    Source(IpFamily),
    /// `proto-src`
    SourcePort,
    /// `ip daddr`, `ip6 daddr`
    Destination(IpFamily),
    /// `proto-dst`
    DestinationPort,
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

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Continue => f.write_str("continue"),
            Self::Return => f.write_str("return"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
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

/// `meta mark set meta mark & mask ^ xor`
pub fn change_mark(mask: u32, xor: u32) -> [Expr; 3] {
    let register = Register::FIRST;
    let [mask, xor] = [mask, xor].map(|number| number.to_ne_bytes().to_vec());
    [
        Expr::Load { field: Field::Mark, bytes: Field::Mark.bytes(), to: register },
        Expr::Bitwise { register, mask, xor },
        Expr::SetMark { from: register },
    ]
}

/// `dnat to 10.1.0.5:80`
pub fn dnat_to(address: IpAddr, port: u16) -> Vec<Expr> {
    let (address_at, port_at) = (Register::FIRST, Register::FIRST.after(16));
    vec![
        Expr::Immediate { value: octets(address), to: address_at },
        Expr::Immediate { value: port.to_be_bytes().into(), to: port_at },
        Expr::Nat {
            nat: Nat::Destination,
            family: IpFamily::of(address).into(),
            address: Some(address_at),
            port: Some(port_at),
        },
    ]
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
        Family::Ip => (libc::NFT_REJECT_ICMP_UNREACH, ICMP_PKT_FILTERED),
        Family::Ip6 => (libc::NFT_REJECT_ICMP_UNREACH, ICMPV6_ADM_PROHIBITED),
        Family::Inet | Family::Netdev | Family::Bridge => {
            (libc::NFT_REJECT_ICMPX_UNREACH, NFT_REJECT_ICMPX_ADMIN_PROHIBITED)
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

impl Expr {
    /// The name of the expression in the kernel (NFTA_EXPR_NAME).
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Load { field, .. } => field.source().expression(),
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Bitwise { .. } => "bitwise",
            Self::SwapBytes { .. } => "byteorder",
            Self::Compare { .. } => "cmp",
            Self::Range { .. } => "range",
            Self::Lookup { .. } => "lookup",
            Self::SetMark { .. } | Self::SetTrace { .. } => "meta",
            Self::LoadOriginal { .. } => "ct",
            Self::Masquerade => "masq",
            Self::Nat { .. } => "nat",
            Self::Redirect { .. } => "redir",
            Self::Reject { .. } => "reject",
            Self::Counter => "counter",
            Self::XtMatch(_) => "match",
            Self::XtTarget(_) => "target",
            Self::Other(name) => name,
        }
    }
}

impl From<Verdict> for Expr {
    fn from(verdict: Verdict) -> Self {
        Self::Verdict(verdict)
    }
}

//! Conditions of rules: a field has, or does not have, a value. A condition is written as two or three expressions, and read
//! from the expressions that nft or iptables use for it.

use ipnet::IpNet;
use nix::libc;

use super::expr::Expr;
use super::field::Field;
use super::register::Register;
use super::value::{Transport, padded_name};
use crate::names::{IfName, IpFamily};
use crate::netlink::octets;

/// `field & mask == value`, or `!=` if `is_equal` is false. Mask and value are as long as the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub field: Field,
    pub is_equal: bool,
    pub mask: Vec<u8>,
    pub value: Vec<u8>,
}

/// States of a packet in its connection, in any combination.
///
/// Source: linux/netfilter/nf_conntrack_common.h, `NF_CT_STATE_BIT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtState(pub u16);

impl CtState {
    pub const ESTABLISHED: Self = Self(2);
    pub const RELATED: Self = Self(4);
    pub const NEW: Self = Self(8);

    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Condition {
    /// `ip saddr 10.1.0.0/16`, or `ip6 saddr …`; also with a single address
    pub fn saddr(net: impl Into<IpNet>) -> Self {
        let net = net.into();
        let [saddr, _] = Field::addresses(IpFamily::of(net.addr()));
        Self::net(saddr, net)
    }

    /// `ip daddr 10.1.0.0/16`, or `ip6 daddr …`
    pub fn daddr(net: impl Into<IpNet>) -> Self {
        let net = net.into();
        let [_, daddr] = Field::addresses(IpFamily::of(net.addr()));
        Self::net(daddr, net)
    }

    /// `iifname "eth0"`
    pub fn iifname(name: &IfName) -> Self {
        Self::is(Field::Iifname, padded_name(name))
    }

    /// `oifname "eth0"`
    pub fn oifname(name: &IfName) -> Self {
        Self::is(Field::Oifname, padded_name(name))
    }

    /// `meta iifkind "bridge"`, for the field `iifkind`
    pub fn is_bridge(kind: Field) -> Self {
        let mut value = b"bridge".to_vec();
        value.resize(kind.bytes().into(), 0);
        Self::is(kind, value)
    }

    /// `iifname "veth*"`, for the field `iifname` and the prefix `veth`
    pub fn begins(field: Field, prefix: &IfName) -> Self {
        let value = padded_name(prefix);
        let mask = value.iter().map(|byte| if *byte == 0 { 0 } else { 0xff }).collect();
        Self { field, is_equal: true, mask, value }
    }

    /// `meta l4proto tcp`
    pub fn protocol(transport: Transport) -> Self {
        Self::is(Field::Protocol, vec![transport.number()])
    }

    /// `th sport 8080`; after `protocol` this is `tcp sport 8080`
    pub fn sport(port: u16) -> Self {
        Self::is(Field::Sport, port.to_be_bytes().into())
    }

    /// `th dport 8080`; after `protocol` this is `tcp dport 8080`
    pub fn dport(port: u16) -> Self {
        Self::is(Field::Dport, port.to_be_bytes().into())
    }

    /// `meta mark & 0x2000 == 0x2000`
    pub fn mark(mask: u32, value: u32) -> Self {
        Self {
            field: Field::Mark,
            is_equal: true,
            mask: mask.to_ne_bytes().into(),
            value: value.to_ne_bytes().into(),
        }
    }

    /// `ct mark & 0x2000 == 0x2000`
    pub fn ct_mark(mask: u32, value: u32) -> Self {
        Self { field: Field::CtMark, ..Self::mark(mask, value) }
    }

    /// `ct state established,related`: the packet has one of these states
    pub fn ct_state(state: CtState) -> Self {
        Self::any_bit(Field::CtState, state.0.into())
    }

    /// `ct status dnat`: the destination of this connection was translated
    pub fn ct_status_dnat() -> Self {
        Self::any_bit(Field::CtStatus, IPS_DST_NAT)
    }

    /// `ct direction reply`: the packet is from the side that the connection was opened to
    pub fn ct_direction_reply() -> Self {
        Self::is(Field::CtDirection, vec![IP_CT_DIR_REPLY])
    }

    /// `fib daddr type local`: the packet is for this host
    pub fn fib_daddr_type_local() -> Self {
        Self::is(Field::FibDaddrType, u32::from(libc::RTN_LOCAL).to_ne_bytes().into())
    }

    /// `ct direction original`: the packet is from the side that opened the connection
    pub fn ct_direction_original() -> Self {
        Self::is(Field::CtDirection, vec![IP_CT_DIR_ORIGINAL])
    }

    /// `fib saddr . iif oif missing`: the route to the source is not on the link that the packet comes from
    pub fn fib_saddr_not_iif() -> Self {
        Self::is(Field::FibSaddrIif, 0_u32.to_ne_bytes().into())
    }

    /// `fib saddr oifname "eth0"`: the route to the source is on this link
    pub fn fib_saddr_oifname(name: &IfName) -> Self {
        Self::is(Field::FibSaddrOifname, padded_name(name))
    }

    /// `fib daddr . iif oif exists`: the route to the destination is on the link that the packet comes from
    pub fn fib_daddr_iif() -> Self {
        Self::is(Field::FibDaddrIif, 1_u32.to_ne_bytes().into())
    }

    /// Load, bitwise AND with the mask, compare. The bitwise expression is present also if every bit of the mask is 1.
    pub fn into_masked(self) -> [Expr; 3] {
        let Self { field, is_equal, mask, value } = self;
        let register = Register::FIRST;
        [
            Expr::Load { field, bytes: field.bytes(), to: register },
            Expr::Bitwise { register, xor: vec![0; mask.len()], mask },
            Expr::Compare { register, is_equal, value },
        ]
    }

    /// The negated condition: `ip daddr != 10.1.0.0/16`.
    pub fn negated(self) -> Self {
        Self { is_equal: !self.is_equal, ..self }
    }

    fn is(field: Field, value: Vec<u8>) -> Self {
        Self { field, is_equal: true, mask: vec![0xff; value.len()], value }
    }

    fn net(field: Field, net: IpNet) -> Self {
        let value = octets(net.network());
        let mask = first_bits(net.prefix_len().into(), value.len());
        Self { field, is_equal: true, mask, value }
    }

    fn any_bit(field: Field, bits: u32) -> Self {
        let mask = bits.to_ne_bytes().into();
        Self { field, is_equal: false, mask, value: vec![0; 4] }
    }

    /// The conditions of a rule, except those on ranges and sets.
    pub(super) fn all_of(exprs: &[Expr]) -> Vec<Self> {
        Self::split(exprs).0
    }

    /// The conditions of a rule, except those on ranges and sets, and its other expressions. nft loads only the bytes of a field that
    /// a prefix covers; the condition is the same.
    pub(super) fn split(exprs: &[Expr]) -> (Vec<Self>, Vec<&Expr>) {
        let (mut found, mut others) = (Vec::new(), Vec::new());
        let mut loaded: Option<(Register, Field, Vec<u8>)> = None;
        let mut of_condition = 0;
        for expr in exprs {
            others.push(expr);
            of_condition += 1;
            match (expr, &mut loaded) {
                (Expr::Load { field: Field::Payload(..), .. }, _) => loaded = None,
                (Expr::Load { field, bytes, to }, _) => {
                    let mask = first_bits(u32::from(*bytes) * 8, field.bytes().into());
                    loaded = Some((*to, *field, mask));
                    of_condition = 1;
                }
                (Expr::Bitwise { register, mask, xor }, Some((to, _, all)))
                    if register == to && xor.iter().all(|byte| *byte == 0) =>
                {
                    let bits = mask.iter().chain(std::iter::repeat(&0));
                    all.iter_mut().zip(bits).for_each(|(byte, bits)| *byte &= bits);
                }
                (Expr::Compare { register, is_equal, value }, Some((to, field, mask)))
                    if register == to && value.len() <= mask.len() =>
                {
                    found.push(Self::compared(*field, *is_equal, mask, value));
                    others.truncate(others.len().saturating_sub(of_condition));
                    of_condition = 0;
                }
                _ => loaded = None,
            }
        }
        (found, others)
    }

    /// The condition that a comparison of the loaded bits of the field means. iptables compares a name up to its NUL, and a
    /// name with `+` up to the `+`; nft compares all 16 bytes.
    fn compared(field: Field, is_equal: bool, mask: &[u8], value: &[u8]) -> Self {
        let mut mask = mask.to_vec();
        if !(field.is_name() && value.contains(&0)) {
            mask[value.len()..].fill(0);
        }
        let mut value = value.to_vec();
        value.resize(mask.len(), 0);
        Self { field, is_equal, mask, value }
    }
}

impl IntoIterator for Condition {
    type Item = Expr;
    type IntoIter = std::vec::IntoIter<Expr>;

    /// The expressions of the condition: load; bitwise AND if the mask has bits that are 0 and the field is no name; compare.
    fn into_iter(self) -> Self::IntoIter {
        let Self { field, is_equal, mask, mut value } = self;
        let register = Register::FIRST;
        let mut exprs = vec![Expr::Load { field, bytes: field.bytes(), to: register }];
        if field.is_name() {
            // A prefix of a name is compared by its length only, as nft writes it.
            value.truncate(mask.iter().take_while(|byte| **byte != 0).count());
        } else if mask.iter().any(|byte| *byte != 0xff) {
            exprs.push(Expr::Bitwise { register, xor: vec![0; mask.len()], mask });
        }
        exprs.push(Expr::Compare { register, is_equal, value });
        exprs.into_iter()
    }
}

/// A mask of `bytes` bytes, in which the first `bits` bits are 1.
fn first_bits(bits: u32, bytes: usize) -> Vec<u8> {
    let mut left = bits;
    let mut mask = vec![0; bytes];
    for byte in &mut mask {
        let ones = left.min(8);
        *byte = !0xff_u8.checked_shr(ones).unwrap_or(0);
        left -= ones;
    }
    mask
}

/// Source: linux/netfilter/nf_conntrack_common.h.
pub(super) const IPS_DST_NAT: u32 = 1 << 5;
const IP_CT_DIR_ORIGINAL: u8 = 0;
const IP_CT_DIR_REPLY: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> IfName {
        IfName::new(name).unwrap()
    }

    fn net(net: &str) -> IpNet {
        net.parse().unwrap()
    }

    #[test]
    fn a_written_condition_is_recognised() {
        let conditions = [
            Condition::saddr(net("10.1.0.5/32")),
            Condition::daddr(net("10.1.0.0/12")).negated(),
            Condition::saddr(net("fd00::/64")),
            Condition::daddr(net("fd00::1/128")),
            Condition::iifname(&name("eth0")),
            Condition::begins(Field::Oifname, &name("veth")),
            Condition::is_bridge(Field::Iifkind),
            Condition::is_bridge(Field::Oifkind).negated(),
            Condition::protocol(Transport::Udp),
            Condition::dport(53),
            Condition::mark(0x2000, 0x2000),
            Condition::ct_state(CtState::ESTABLISHED.or(CtState::RELATED)),
            Condition::ct_status_dnat(),
            Condition::ct_direction_original(),
            Condition::ct_direction_reply(),
            Condition::fib_saddr_not_iif(),
            Condition::fib_saddr_oifname(&name("eth0")),
            Condition::fib_daddr_type_local(),
            Condition::fib_daddr_iif(),
        ];
        let exprs: Vec<Expr> = conditions.iter().cloned().flatten().collect();
        assert_eq!(Condition::all_of(&exprs), conditions);
    }

    #[test]
    fn nft_and_iptables_load_only_what_a_prefix_covers() {
        let to = Register::FIRST;
        let exprs = [
            Expr::Load { field: Field::IpDaddr, bytes: 2, to },
            Expr::Compare { register: to, is_equal: true, value: vec![10, 1] },
        ];
        assert_eq!(Condition::all_of(&exprs), [Condition::daddr(net("10.1.0.0/16"))]);
    }

    #[test]
    fn iptables_compares_names_up_to_their_end() {
        let to = Register::FIRST;
        let load = Expr::Load { field: Field::Iifname, bytes: 16, to };
        for (value, expected) in [
            (&b"eth0\0"[..], Condition::iifname(&name("eth0"))),
            (b"eth", Condition::begins(Field::Iifname, &name("eth"))),
        ] {
            let compare = Expr::Compare { register: to, is_equal: true, value: value.into() };
            assert_eq!(Condition::all_of(&[load.clone(), compare]), [expected]);
        }
    }

    #[test]
    fn a_comparison_is_of_the_field_that_was_loaded() {
        let (one, two) = (Register::FIRST, Register::FIRST.after(4));
        let load = Expr::Load { field: Field::Mark, bytes: 4, to: one };
        let compare = |register| Expr::Compare { register, is_equal: true, value: vec![0; 4] };
        let too_long = Expr::Compare { register: one, is_equal: true, value: vec![0; 5] };
        let shift = Expr::Other("bitwise".into());
        let set = Expr::Bitwise { register: one, mask: vec![0; 4], xor: vec![1; 4] };
        for exprs in [
            vec![compare(one)],
            vec![load.clone(), compare(two)],
            vec![load.clone(), too_long],
            vec![load.clone(), shift, compare(one)],
            vec![load, set, compare(one)],
        ] {
            assert_eq!(Condition::all_of(&exprs), [], "{exprs:?}");
        }
    }
}

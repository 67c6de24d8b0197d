//! What `portmap` has in nf_tables: the names of its maps, sets and chains, and the rules, which are the same however
//! many ports are published. In the table `cnibox` of each family:
//!
//! ```text
//! map published { type inet_proto . inet_service : ipv4_addr . inet_service; }
//! map published_on { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
//! set published_on_ports { type inet_proto . inet_service; }
//! set masqueraded_16 { type ipv4_addr . ipv4_addr; }
//! set portmap_owners { type mark . mark; }
//! ```
//!
//! The first two are looked up by packets, and so is the set of each length of prefix of which there are containers. The
//! other two are only for us. `published_on_ports` tells in one lookup whether a port is published under any single address.
//! `portmap_owners` has hashes: of an attachment, if it has anything at all; of the attachment and the number of its ports,
//! so that a DEL that finds so many knows that these are all; of a port that several have under different addresses. Where there are conditions, there is a second set of the first three, and a chain,
//! with a name that ends with the hash of the conditions. So there is for another attachment of a container that already
//! has the port, as when it is in two networks: `_besides_` and the hash of its interface's name.

use std::net::IpAddr;

use ipnet::IpNet;

use super::conditions::Conditions;
use crate::kernel::nft::{
    Base, ChainKind, Condition, Expr, Family, Field, Found, Hook, NewSet, Policy, Register,
    SetKind, Table, Type, Verdict, dnat_to_map,
};
use crate::names::IfName;
use crate::plugin::owner;
use crate::steps::nft::shared_rules;

/// One family's half of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side(Family);

/// The maps and the chain for ports that are published under the same conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Of their names. Empty where there are no conditions.
    conditions: String,
    /// What comes after that. Empty but for the ports of containers that have them by another interface, too.
    besides: String,
}

pub const OWNERS: &str = "portmap_owners";
pub const PREROUTING: &str = "portmap_prerouting";
pub const OUTPUT: &str = "portmap_output";
pub const POSTROUTING: &str = "portmap_postrouting";
pub const LOOPBACK: &str = "portmap_loopback";

const PUBLISHED: &str = "published";
const PUBLISHED_ON: &str = "published_on";
const PUBLISHED_ON_PORTS: &str = "published_on_ports";
const MASQUERADED: &str = "masqueraded_";
const BESIDES: &str = "_besides";

/// Where destinations are translated, `dstnat`, as the reference does it: not before others who are more specific
/// (CVE-2019-9946).
pub const DSTNAT_PREROUTING: Base = nat(Hook::Prerouting, -100);
pub const DSTNAT_OUTPUT: Base = nat(Hook::Output, -100);
/// `srcnat`
pub const SRCNAT: Base = nat(Hook::Postrouting, 100);
/// Before connections are looked at, and so before the destinations of answers are translated back to 127.0.0.1.
pub const RAW: Base = Base {
    kind: ChainKind::Filter,
    hook: Hook::Prerouting,
    priority: -300,
    policy: Policy::Accept,
};

const fn nat(hook: Hook, priority: i32) -> Base {
    Base { kind: ChainKind::Nat, hook, priority, policy: Policy::Accept }
}

impl Side {
    pub const BOTH: [Self; 2] = [Self(Family::Ip), Self(Family::Ip6)];

    pub fn family(self) -> Family {
        self.0
    }

    pub fn table(self) -> Table<'static> {
        shared_rules::table(self.0)
    }

    /// Whether an address is of this family.
    pub fn has(self, ip: IpAddr) -> bool {
        ip.is_ipv4() == (self.0 == Family::Ip)
    }

    fn address(self) -> Type {
        if self.0 == Family::Ip { Type::Ipv4Addr } else { Type::Ipv6Addr }
    }

    fn saddr(self) -> Field {
        if self.0 == Family::Ip { Field::IpSaddr } else { Field::Ip6Saddr }
    }

    fn daddr(self) -> Field {
        if self.0 == Family::Ip { Field::IpDaddr } else { Field::Ip6Daddr }
    }

    /// The declaration of one of our sets or maps, by its name.
    pub fn with_set<T>(self, name: &str, f: impl FnOnce(NewSet<'_>) -> T) -> T {
        let (address, port) = (self.address(), [Type::InetProto, Type::InetService]);
        let with_address = [address, Type::InetProto, Type::InetService];
        let target = [address, Type::InetService];
        let kind = Group::part(name).map_or(name, |(part, _)| part);
        let (key, kind): (&[Type], _) = match kind {
            PUBLISHED => (&port, SetKind::Map(&target)),
            PUBLISHED_ON => (&with_address, SetKind::Map(&target)),
            PUBLISHED_ON_PORTS => (&port, SetKind::Set),
            OWNERS => (&[Type::Mark, Type::Mark], SetKind::Set),
            _ => (&[address, address], SetKind::Set),
        };
        f(NewSet { name, key, kind, comment: None })
    }

    /// `fib daddr type local jump published`: traffic through the host to others is none of ours (CVE-2025-67499).
    pub fn to_this_host(self) -> Vec<Expr> {
        let jump = Verdict::Jump(Group::main().chain());
        Condition::fib_daddr_type_local().into_iter().chain([jump.into()]).collect()
    }

    /// `jump published_0123456789abcdef`
    pub fn to_group(self, group: &Group) -> Vec<Expr> {
        vec![Verdict::Jump(group.chain()).into()]
    }

    /// The rules of a group's chain: for each alternative
    /// `dnat ip to ip daddr . meta l4proto . th dport map @published_on` and
    /// `dnat ip to meta l4proto . th dport map @published`, after its conditions.
    pub fn published(self, group: &Group, conditions: &Conditions) -> Vec<Vec<Expr>> {
        let on = [self.daddr(), Field::Protocol, Field::Dport];
        let on = dnat_to_map(self.0, &on, &group.published_on());
        let any = dnat_to_map(self.0, &[Field::Protocol, Field::Dport], &group.published());
        let rules = conditions.alternatives().iter();
        rules.flat_map(|met| [[met.as_slice(), &on].concat(), [met, &any[..]].concat()]).collect()
    }

    /// `ct status dnat ip saddr & 255.255.0.0 . ip daddr @masqueraded_16 masquerade`: the answers to what comes from such a
    /// subnet would not come through the host.
    pub fn masqueraded(self, prefix_length: u8) -> Vec<Expr> {
        let (saddr, daddr) = (self.saddr(), self.daddr());
        let (bytes, mask) =
            match IpNet::new(self.unspecified(), prefix_length).map(|net| net.netmask()) {
                Ok(IpAddr::V6(mask)) => (16, mask.octets().to_vec()),
                Ok(IpAddr::V4(mask)) => (4, mask.octets().to_vec()),
                Err(_) => (0, Vec::new()),
            };
        let (first, second) = (Register::FIRST, Register::FIRST.after(bytes));
        let mut exprs: Vec<Expr> = Condition::ct_status_dnat().into_iter().collect();
        exprs.extend([
            Expr::Load { field: saddr, bytes, to: first },
            Expr::Bitwise { register: first, xor: vec![0; mask.len()], mask },
            Expr::Load { field: daddr, bytes, to: second },
            Expr::Lookup { set: masqueraded_set(prefix_length), key: first, found: Found::Holds },
            Expr::Masquerade,
        ]);
        exprs
    }

    fn unspecified(self) -> IpAddr {
        match self.0 {
            Family::Ip6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
            _ => std::net::Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    /// `iifname != "lo" ip daddr 127.0.0.0/8 drop`: where `route_localnet` is on, the kernel would let neighbours on the
    /// link use what listens on 127.0.0.1 only (CVE-2020-8558).
    pub fn not_from_outside(self) -> Vec<Expr> {
        let lo = IfName::new("lo").map(|lo| Condition::iifname(&lo).negated());
        let exprs = lo.into_iter().chain([Condition::daddr(loopback())]).flatten();
        exprs.chain([Verdict::Drop.into()]).collect()
    }
}

/// The addresses that the host uses for itself.
pub fn loopback() -> IpNet {
    ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(127, 0, 0, 0), 8).into()
}

pub fn masqueraded_set(prefix_length: u8) -> String {
    format!("{MASQUERADED}{prefix_length}")
}

/// The length in the name of such a set.
pub fn masqueraded_length(set: &str) -> Option<u8> {
    set.strip_prefix(MASQUERADED)?.parse().ok()
}

impl Group {
    /// Where the chains of all others are entered from.
    pub fn main() -> Self {
        Self::default()
    }

    pub fn of(conditions: &Conditions) -> Self {
        let conditions = match conditions.are_none() {
            true => String::new(),
            false => format!("_{}", conditions.id()),
        };
        Self { conditions, ..Self::default() }
    }

    /// For the same conditions, where somebody else has the port in this group.
    pub fn besides(&self, interface: &str) -> Self {
        let besides = format!("{BESIDES}_{:016x}", owner::hash(interface));
        Self { conditions: self.conditions.clone(), besides }
    }

    pub fn is_main(&self) -> bool {
        *self == Self::main()
    }

    /// Whether there may be packets that both mean, so that a port can be in one of them only. Conditions that differ may
    /// share a port.
    pub fn competes_with(&self, other: &Self) -> bool {
        self.conditions == other.conditions
            || self.conditions.is_empty()
            || other.conditions.is_empty()
    }

    fn suffix(&self) -> String {
        format!("{}{}", self.conditions, self.besides)
    }

    pub fn published(&self) -> String {
        format!("{PUBLISHED}{}", self.suffix())
    }

    pub fn published_on(&self) -> String {
        format!("{PUBLISHED_ON}{}", self.suffix())
    }

    pub fn published_on_ports(&self) -> String {
        format!("{PUBLISHED_ON_PORTS}{}", self.suffix())
    }

    pub fn sets(&self) -> [String; 3] {
        [self.published(), self.published_on(), self.published_on_ports()]
    }

    pub fn chain(&self) -> String {
        self.published()
    }

    /// The group that has a map of this name for ports.
    pub fn of_map(set: &str) -> Option<Self> {
        Self::part(set).filter(|(part, _)| *part == PUBLISHED).map(|(_, group)| group)
    }

    /// Which of a group's sets has this name.
    fn part(set: &str) -> Option<(&'static str, Self)> {
        let of = |part: &'static str| {
            let suffix = set.strip_prefix(part)?;
            let (conditions, besides) =
                suffix.split_at(suffix.find(BESIDES).unwrap_or(suffix.len()));
            let group = Self { conditions: conditions.into(), besides: besides.into() };
            let is_one = is_hash_or_nothing(conditions)
                && is_hash_or_nothing(besides.strip_prefix(BESIDES).unwrap_or_default());
            is_one.then_some((part, group))
        };
        [PUBLISHED, PUBLISHED_ON, PUBLISHED_ON_PORTS].into_iter().find_map(of)
    }
}

/// An underscore and sixteen digits.
fn is_hash_or_nothing(suffix: &str) -> bool {
    let is_digits =
        |digits: &str| digits.len() == 16 && digits.bytes().all(|it| it.is_ascii_hexdigit());
    suffix.is_empty() || suffix.strip_prefix('_').is_some_and(is_digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_told_by_their_names() {
        let hash = "_0123456789abcdef";
        let group = Group { conditions: hash.into(), ..Group::default() };
        let besides = Group { besides: format!("{BESIDES}{hash}"), ..Group::default() };
        let both = Group { conditions: hash.into(), ..besides.clone() };
        for (name, expected) in [
            ("published", Some((PUBLISHED, Group::main()))),
            ("published_on", Some((PUBLISHED_ON, Group::main()))),
            ("published_0123456789abcdef", Some((PUBLISHED, group.clone()))),
            ("published_on_ports_0123456789abcdef", Some((PUBLISHED_ON_PORTS, group))),
            ("published_besides_0123456789abcdef", Some((PUBLISHED, besides))),
            ("published_on_0123456789abcdef_besides_0123456789abcdef", Some((PUBLISHED_ON, both))),
            ("published_besides_x", None),
            ("published_x", None),
            ("other", None),
        ] {
            assert_eq!(Group::part(name), expected, "{name}");
        }
        assert_eq!(masqueraded_length("masqueraded_16"), Some(16));
        for name in ["masqueraded_", "masqueraded_999", "masquerade"] {
            assert_eq!(masqueraded_length(name), None, "{name}");
        }
    }
}

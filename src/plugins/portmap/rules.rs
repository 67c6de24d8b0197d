//! The objects of `portmap` in nf_tables: names, keys and rules. The number of rules does not depend on the number of ports.
//! In the table `cnibox` of each family:
//!
//! ```text
//! map portmap-published { type inet_proto . inet_service : ipv4_addr . inet_service; }
//! map portmap-published-on { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
//! set portmap-published-on-ports { type inet_proto . inet_service; }
//! set portmap-unmasqueraded { type inet_proto . inet_service; }    # in IPv4
//! ```
//!
//! Packets are looked up in `published` (ports of all host addresses) and `published-on` (ports of one host address), and in
//! the sets of `rules::hairpin` and `rules::localnet`. `unmasqueraded` has the ports of all addresses without `snat`:
//! packets from 127.0.0.1 to them stay on the host. Only the plugin reads `published-on-ports`: it shows in one lookup whether a
//! port is published on any single address. Its element has the owner as comment, and none if several owners publish, or published,
//! the port on different addresses.
//!
//! A group has these objects and a chain. The main group has the names above. Each list of conditions has its own
//! group, with the hash of the conditions as suffix. A container that publishes a port in a second network has a secondary
//! group for it, with the suffix `-secondary-` and the hash of its interface name.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

use super::conditions::Conditions;
use super::config::{Mapping, Settings, Snat};
use crate::attachments::owner;
use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::nft::{
    Base, Batch, COMMENT_BYTES_MAX_IN_NFT, Comment, Condition, Element, Expr, Field, Hook, NewSet,
    Nft, Type, Value, Verdict, dnat_to_map, in_set, pack,
};
use crate::rules::hairpin::{self, Sources};
use crate::rules::localnet;
pub use crate::rules::shared_rules::table;
use crate::rules::shared_rules::{Chain, SharedRules, rule};
use crate::rules::shared_set::PORT_BYTES;

/// A group: the maps, sets and chain for published ports with the same conditions. It has the suffixes of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The first suffix of the names: a hyphen and the hash of the conditions. Empty without conditions.
    conditions: String,
    /// The second suffix: `-secondary-` and the hash of the interface name. Empty if the group is not secondary.
    secondary: String,
}

/// The index of owners up to release 0.2.0. Its comments name the owners.
pub const FORMER_OWNERS: &str = "portmap-owners";
const PREROUTING: &str = "portmap-dstnat";
const OUTPUT: &str = "portmap-dstnat-output";
/// The names of the chains `portmap-dstnat` and `portmap-dstnat-output` up to release 0.2.0.
const FORMER_PREROUTING: &str = "portmap-prerouting";
const FORMER_OUTPUT: &str = "portmap-output";

const PUBLISHED: &str = "portmap-published";
const PUBLISHED_ON: &str = "portmap-published-on";
const PUBLISHED_ON_PORTS: &str = "portmap-published-on-ports";
const UNMASQUERADED: &str = "portmap-unmasqueraded";
const SECONDARY: &str = "-secondary";

/// The priority of `portmap-dstnat` and `portmap-dstnat-output`. They run after the chains of the administrator, of iptables
/// (-100) and of firewalld (-90), whose rules can be more specific (CVE-2019-9946).
const PRIORITY: i32 = -80;
const FORMER_PRIORITY: i32 = -100;

/// The shared rules that a network needs in one family.
pub struct Rules<'a> {
    pub family: IpFamily,
    pub settings: &'a Settings,
    /// The group that the network needs in addition to the main group.
    pub group: &'a Group,
    /// The sets of masqueraded sources, each by its prefix length and mark bit, sorted.
    pub sources: Vec<Sources>,
}

impl Rules<'_> {
    /// Adds the sets, maps, chains and rules that are missing.
    pub fn ensure(&self, nft: &Nft, batch: &mut Batch) -> Result<()> {
        let table = table(self.family);
        let mut sets = self.sets();
        sets.extend(self.sources.iter().map(|of| hairpin::new_sources(self.family, *of)));
        sets.extend(self.serves_loopback().then(localnet::set));
        if self.family == IpFamily::V4 {
            let unmasqueraded =
                self.group.with_main().into_iter().map(|group| group.unmasqueraded());
            sets.extend(unmasqueraded.map(|name| new_set(self.family, name)));
        }
        SharedRules { table, sets, chains: self.chains(|_| true)? }.ensure(nft, batch)
    }

    /// Fails if a set, map, chain or rule is missing. Accepts the rules of an earlier release, which has no sets of sources, no
    /// set `portmap-localnet` and no set `portmap-unmasqueraded`. `sets` are the names of the sets in the table.
    pub fn check(&self, nft: &Nft, sets: &[String]) -> Result<()> {
        let chains = self.chains(|group| sets.contains(&group.unmasqueraded()))?;
        SharedRules { table: table(self.family), sets: self.sets(), chains }.check(nft)
    }

    /// Whether packets from 127.0.0.1 are translated to the containers: with `snat`, in IPv4.
    fn serves_loopback(&self) -> bool {
        self.settings.snat != Snat::Off && self.family.has(localnet::loopback().addr())
    }

    fn sets(&self) -> Vec<NewSet> {
        let names = self.group.with_main().into_iter().flat_map(|group| group.sets());
        let mut sets: Vec<NewSet> = names.map(|name| new_set(self.family, name)).collect();
        let mut lengths: Vec<u8> =
            self.sources.iter().map(|sources| sources.prefix_length).collect();
        lengths.dedup();
        sets.extend(lengths.into_iter().map(|length| hairpin::new_pairs(self.family, length)));
        sets
    }

    /// The chains with their rules. The target of a jump comes before the chain that jumps.
    fn chains(&self, has_unmasqueraded: impl Fn(&Group) -> bool) -> Result<Vec<Chain>> {
        let (family, group, main) = (self.family, self.group, Group::main());
        let rules = |group: &Group, conditions: &Conditions| {
            let mut rules = dnat_rules(family, group, conditions);
            if family == IpFamily::V4 && has_unmasqueraded(group) {
                rules.insert(0, return_unmasqueraded(group));
            }
            rules
        };
        let mut chains = vec![Chain::regular(&main.chain(), rules(&main, &Conditions::none()))];
        if !group.is_main() {
            // The jump comes first, because the rules without conditions match every packet.
            chains[0].first = Some(vec![Verdict::Jump(group.chain()).into()]);
            let conditions = self.settings.conditions(family);
            let mut chain = Chain::regular(&group.chain(), rules(group, conditions));
            if !conditions.is_empty() {
                let text = &conditions.text;
                let end = text.floor_char_boundary(COMMENT_BYTES_MAX_IN_NFT - 1);
                chain.comment = Some(Comment::new(&text[..end])?);
            }
            chains.insert(0, chain);
        }
        chains.extend(hairpin::chains(family, &self.sources));
        for (name, former, hook) in [
            (PREROUTING, FORMER_PREROUTING, Hook::Prerouting),
            (OUTPUT, FORMER_OUTPUT, Hook::Output),
        ] {
            let former =
                Chain::base(former, Base::nat(hook, FORMER_PRIORITY), vec![jump_to_main()]);
            let chain = Chain::base(name, Base::nat(hook, PRIORITY), base_rules(family));
            chains.push(chain.replacing(former));
        }
        chains.extend(Some(localnet::chain()).filter(|_| self.serves_loopback()));
        Ok(chains)
    }
}

/// The set or map of a group with this name.
fn new_set(family: IpFamily, name: String) -> NewSet {
    let address = Type::address(family.into());
    let port = [Type::InetProto, Type::InetService];
    let target = [address, Type::InetService];
    match Group::parse(&name).map_or(name.as_str(), |(base, _)| base) {
        PUBLISHED => NewSet::map(name, port, target),
        PUBLISHED_ON => NewSet::map(name, [address, port[0], port[1]], target),
        _ => NewSet::set(name, port),
    }
}

/// The rules of the base chains. For IPv6 they begin with the addresses that the kernel does not forward:
/// `ip6 saddr ::1 return`, `ip6 saddr fe80::/10 return`, and both rules with `daddr`. Then follow
/// `fib daddr type local jump portmap-mark`,
/// `fib daddr type local jump portmap-published` and
/// `fib daddr type local jump portmap-unmark`
fn base_rules(family: IpFamily) -> Vec<Vec<Expr>> {
    let mut rules: Vec<Vec<Expr>> = Vec::new();
    if family == IpFamily::V6 {
        let local = [Ipv6Net::from(Ipv6Addr::LOCALHOST), LINK_LOCAL];
        rules.extend(local.map(|net| rule(Condition::saddr(net), Verdict::Return)));
        rules.extend(local.map(|net| rule(Condition::daddr(net), Verdict::Return)));
    }
    let [mark, unmark] = hairpin::jumps();
    rules.extend([to_host(mark), jump_to_main(), to_host(unmark)]);
    rules
}

const LINK_LOCAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);

/// `fib daddr type local jump portmap-published`: forwarded packets to other hosts are not translated (CVE-2025-67499).
fn jump_to_main() -> Vec<Expr> {
    to_host(Verdict::Jump(Group::main().chain()))
}

fn to_host(verdict: Verdict) -> Vec<Expr> {
    rule(Condition::fib_daddr_type_local(), verdict)
}

/// The rules of a group's chain. Each alternative of the conditions has two rules: its expressions, followed by
/// `dnat ip to ip daddr . meta l4proto . th dport map @portmap-published-on` and
/// `dnat ip to meta l4proto . th dport map @portmap-published`
fn dnat_rules(family: IpFamily, group: &Group, conditions: &Conditions) -> Vec<Vec<Expr>> {
    let [_, daddr] = Field::addresses(family);
    let on = [daddr, Field::Protocol, Field::Dport];
    let on = dnat_to_map(family.into(), &on, &group.published_on());
    let any = [Field::Protocol, Field::Dport];
    let any = dnat_to_map(family.into(), &any, &group.published());
    let alternatives = conditions.alternatives.iter();
    alternatives
        .flat_map(|exprs| [[exprs.as_slice(), &on].concat(), [exprs, &any[..]].concat()])
        .collect()
}

/// `ip saddr 127.0.0.0/8 meta l4proto . th dport @portmap-unmasqueraded return`: the kernel forwards no packet with this
/// source.
fn return_unmasqueraded(group: &Group) -> Vec<Expr> {
    let port = in_set(&[Field::Protocol, Field::Dport], &group.unmasqueraded());
    let from_loopback = Condition::saddr(localnet::loopback()).into_iter();
    rule(from_loopback.chain(port), Verdict::Return)
}

/// The sources with this prefix length whose packets to a container address can be masqueraded: its subnet and 127.0.0.0/8.
pub fn sources_of(address: IpAddr, prefix_length: u8) -> impl Iterator<Item = IpNet> {
    let nets = [IpNet::new(address, prefix_length).ok(), Some(localnet::loopback())];
    nets.into_iter().flatten().filter(move |net| {
        net.prefix_len() == prefix_length && IpFamily::of(address).has(net.addr())
    })
}

/// The key of a published port in its map.
pub fn key(mapping: &Mapping) -> Vec<u8> {
    let port = port_key(mapping);
    match mapping.host_ip.one() {
        None => port,
        Some(ip) => [pack(&[Value::Address(ip)]), port].concat(),
    }
}

/// The key `protocol . port` of a mapping's host port.
pub fn port_key(mapping: &Mapping) -> Vec<u8> {
    pack(&[Value::Transport(mapping.transport), Value::Port(mapping.host_port)])
}

/// The end of the key of a published port: `protocol . port`.
pub fn port_of(published: &Element) -> Vec<u8> {
    published.key[published.key.len().saturating_sub(PORT_BYTES)..].to_vec()
}

/// The element of a published port in a set of ports.
pub fn port_element(published: &Element) -> Element {
    Element { key: port_of(published), data: None, comment: published.comment.clone() }
}

impl Group {
    /// The group without conditions. Its chain jumps to the chains of all other groups.
    pub fn main() -> Self {
        Self::default()
    }

    pub fn of(conditions: &Conditions) -> Self {
        let conditions = match conditions.is_empty() {
            true => String::new(),
            false => format!("-{}", conditions.id()),
        };
        Self { conditions, ..Self::default() }
    }

    /// The secondary group of an interface, with the conditions of this group.
    pub fn secondary(&self, interface: &str) -> Self {
        let secondary = format!("{SECONDARY}-{:016x}", owner::hash(interface));
        Self { conditions: self.conditions.clone(), secondary }
    }

    /// The main group and this group.
    pub fn with_main(&self) -> Vec<Self> {
        let mut groups = vec![Self::main(), self.clone()];
        groups.dedup();
        groups
    }

    pub fn is_main(&self) -> bool {
        *self == Self::main()
    }

    /// Whether some packets certainly match the conditions of both groups. Then only one container may publish a port in them.
    pub fn competes_with(&self, other: &Self) -> bool {
        self.conditions == other.conditions
            || self.conditions.is_empty()
            || other.conditions.is_empty()
    }

    fn name(&self, base: &str) -> String {
        format!("{base}{}{}", self.conditions, self.secondary)
    }

    pub fn published(&self) -> String {
        self.name(PUBLISHED)
    }

    pub fn published_on(&self) -> String {
        self.name(PUBLISHED_ON)
    }

    /// The map of a published port. The key of a port of all host addresses has no address.
    pub fn map_of(&self, key: &[u8]) -> String {
        if key.len() == PORT_BYTES { self.published() } else { self.published_on() }
    }

    pub fn published_on_ports(&self) -> String {
        self.name(PUBLISHED_ON_PORTS)
    }

    pub fn unmasqueraded(&self) -> String {
        self.name(UNMASQUERADED)
    }

    pub fn sets(&self) -> [String; 3] {
        [self.published(), self.published_on(), self.published_on_ports()]
    }

    pub fn chain(&self) -> String {
        self.published()
    }

    /// The group whose map of published ports has this name. `None` if it is the name of another map or set.
    pub fn with_map(set: &str) -> Option<Self> {
        Self::parse(set).filter(|(base, _)| *base == PUBLISHED).map(|(_, group)| group)
    }

    /// Splits the name of a set or map of a group into its name in the main group, which has no suffixes, and the group.
    pub fn parse(set: &str) -> Option<(&'static str, Self)> {
        let with = |base: &'static str| {
            let suffix = set.strip_prefix(base)?;
            let at = suffix.find(SECONDARY).unwrap_or(suffix.len());
            let (conditions, secondary) = suffix.split_at(at);
            let group = Self { conditions: conditions.into(), secondary: secondary.into() };
            let is_valid = is_hash_or_empty(conditions)
                && is_hash_or_empty(secondary.strip_prefix(SECONDARY).unwrap_or_default());
            is_valid.then_some((base, group))
        };
        [PUBLISHED, PUBLISHED_ON, PUBLISHED_ON_PORTS, UNMASQUERADED].into_iter().find_map(with)
    }
}

/// Whether the suffix is empty, or a hyphen and sixteen hexadecimal digits.
fn is_hash_or_empty(suffix: &str) -> bool {
    let is_hash =
        |digits: &str| digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    suffix.is_empty() || suffix.strip_prefix('-').is_some_and(is_hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_set_is_parsed_to_its_group() {
        let hash = "-0123456789abcdef";
        let group = Group { conditions: hash.into(), ..Group::default() };
        let secondary = Group { secondary: format!("{SECONDARY}{hash}"), ..Group::default() };
        let both = Group { conditions: hash.into(), ..secondary.clone() };
        for (name, expected) in [
            ("portmap-published", Some((PUBLISHED, Group::main()))),
            ("portmap-published-on", Some((PUBLISHED_ON, Group::main()))),
            ("portmap-published-0123456789abcdef", Some((PUBLISHED, group.clone()))),
            ("portmap-published-on-ports-0123456789abcdef", Some((PUBLISHED_ON_PORTS, group))),
            ("portmap-published-secondary-0123456789abcdef", Some((PUBLISHED, secondary))),
            (
                "portmap-published-on-0123456789abcdef-secondary-0123456789abcdef",
                Some((PUBLISHED_ON, both)),
            ),
            ("portmap-published-secondary-x", None),
            ("portmap-published-x", None),
            ("other", None),
        ] {
            assert_eq!(Group::parse(name), expected, "{name}");
        }
    }
}

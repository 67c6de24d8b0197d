//! The tables `cnibox`: addresses of containers, and isolation between bridges.
//!
//! ```nft
//! table ip cnibox {
//!     set firewall-addresses { type ipv4_addr; }
//!     map firewall-same-bridge { type ipv4_addr : ifname; }
//!     map firewall-isolated { type ipv4_addr : ifname; }
//!     set firewall-bridges { type ifname; }
//!     set firewall-within { type ifname . ifname; }
//!     set firewall-alone { type ifname; }
//!     set firewall-published { type ipv4_addr; }
//!     set portmap-targets { type ipv4_addr . inet_proto . inet_service; }
//!     chain firewall-between {
//!         ct status dnat ct direction reply accept
//!         ct status dnat ip daddr . meta l4proto . th dport @portmap-targets accept
//!         drop
//!     }
//!     chain firewall-alone {
//!         iifname @firewall-alone fib daddr . iif oif exists drop
//!     }
//!     chain firewall-sources {
//!         drop
//!     }
//!     chain firewall-policy {
//!         type filter hook forward priority filter; policy accept;
//!         ct status dnat ct direction original iifname @firewall-bridges fib saddr . iif oif missing jump firewall-sources
//!         iifname . oifname @firewall-within goto firewall-alone
//!         iifname @firewall-bridges oifname @firewall-bridges goto firewall-between
//!     }
//!     chain firewall-mark {
//!         type filter hook forward priority filter - 10; policy accept;
//!         meta mark set meta mark & 0xffffefff
//!         ct state established,related ip daddr @firewall-addresses meta mark set meta mark | 0x00001000
//!         ip saddr @firewall-addresses meta mark set meta mark | 0x00001000
//!         ct status dnat ip daddr @firewall-published ip daddr . meta l4proto . th dport @portmap-targets meta mark set meta mark | 0x00001000
//!     }
//!     chain firewall-unmark {
//!         type filter hook forward priority filter + 10; policy accept;
//!         meta mark set meta mark & 0xffffefff
//!     }
//! }
//! ```
//!
//! The last two chains are those of `mark`, with the backend iptables; the set `firewall-published` and its rule come with
//! `acceptPublished`.
//!
//! `firewall-addresses` and the maps have an element for each address, with the owner as comment. The maps have the bridge
//! of the address, by policy; in a family in which the attachment has no address, an element for a stand-in. The other three sets are computed from the maps, and packets are looked up in them: `bridges` has
//! all bridges with a policy, `within` has a pair of each bridge with itself, and `alone` has the bridges without traffic
//! between their ports. `portmap` maintains `portmap-targets`, the targets of published ports, which are accepted between
//! bridges. Here, a bridge is the link of the host's route to the addresses. `strict` has the rules of that policy.
//!
//! A container could open a connection to its own published port with an address of another bridge as source. The replies
//! would then be accepted to that address. So `firewall-sources` drops translated packets from a bridge that is not the link of
//! the route to their source. The route decides, and not `firewall-addresses`: a container can have addresses that no ADD had
//! in its result.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ingress::{CHAIN, Policy, PolicyLinks};
use super::mark::{ADDRESSES, Mark, PUBLISHED};
use super::source_links::{self, Bridges};
use super::strict;
use crate::attachments::owner::{Owners, hash};
use crate::error::{Error, Result};
use crate::names::IpFamily;
use crate::netlink::nft::{
    Base, Batch, Comment, Condition, Datum, Element, Expr, Field, Hook, NewSet, Nft, Object, Table,
    Type, Value, Verdict, in_set, pack,
};
use crate::netlink::{ip_of, octets};
use crate::rules::shared_rules::{self, Chain, SharedRules, rule};
use crate::rules::shared_set::{Changed, SharedSet};
use crate::rules::targets;

/// The maps from an address to its bridge, one map for each policy.
const MAPS: [(&str, Policy); 3] = [
    ("firewall-same-bridge", Policy::SameBridge),
    ("firewall-isolated", Policy::Isolated),
    ("firewall-strict", Policy::Strict),
];
/// The bytes of a stand-in address that are not zero.
const STAND_IN_BYTES: usize = 3;
const BRIDGES: &str = "firewall-bridges";
const WITHIN: &str = "firewall-within";
const ALONE: &str = "firewall-alone";

/// The name of the chain `firewall-policy` up to release 0.2.0.
const FORMER_CHAIN: &str = "firewall-forward";
const BETWEEN_CHAIN: &str = "firewall-between";
const ALONE_CHAIN: &str = "firewall-alone";
/// The name of the chain `firewall-alone` up to release 0.2.0.
const FORMER_WITHIN_CHAIN: &str = "firewall-within";

/// The addresses of an attachment in one family, and what its policy needs.
pub(super) struct Listing<'a> {
    pub(super) family: IpFamily,
    pub(super) addresses: Vec<IpAddr>,
    /// The addresses that the attachment no longer has.
    pub(super) former: Vec<IpAddr>,
    pub(super) policy_links: Option<&'a PolicyLinks>,
    /// The bit of the packet mark, with the backend iptables.
    pub(super) mark: Option<Mark>,
    pub(super) owner: &'a Comment,
}

impl Listing<'_> {
    /// An element for each address, with the owner as comment.
    pub(super) fn elements(&self, data: Option<Datum>) -> Vec<Element> {
        self.elements_of(&self.addresses, data)
    }

    fn elements_of(&self, addresses: &[IpAddr], data: Option<Datum>) -> Vec<Element> {
        let comment = Some(self.owner.clone());
        let element = |address: &IpAddr| Element {
            key: octets(*address),
            data: data.clone(),
            comment: comment.clone(),
        };
        addresses.iter().map(element).collect()
    }

    /// The addresses in the map of the policy: those of the attachment, or in a family without addresses the stand-in.
    fn policy_addresses(&self) -> Vec<IpAddr> {
        match self.policy_links {
            Some(_) if self.addresses.is_empty() => vec![self.stand_in()],
            _ => self.addresses.clone(),
        }
    }

    /// An address that no packet has, in 0.0.0.0/8 or ::/104. A container can give itself addresses of the family, so its bridge has
    /// the policy in this family, too. Two attachments can have the same stand-in, as they can have the same address.
    fn stand_in(&self) -> IpAddr {
        let number = u32::try_from(hash(&**self.owner) & 0x00ff_ffff).unwrap_or_default();
        match self.family {
            IpFamily::V4 => Ipv4Addr::from_bits(number).into(),
            IpFamily::V6 => Ipv6Addr::from_bits(number.into()).into(),
        }
    }

    /// The elements in the map of a policy. Empty if the attachment has another one: then the map must not have these addresses.
    fn bridges(&self, policy: Policy) -> Vec<Element> {
        match self.policy_links {
            Some(policy_links) if policy_links.policy == policy => {
                let bridge = pack(&[Value::IfName(policy_links.bridge(self.family))]);
                self.elements_of(&self.policy_addresses(), Some(Datum::Value(bridge)))
            }
            _ => Vec::new(),
        }
    }

    /// Adds the missing elements to a set, and removes other elements of the owner at these addresses, the former ones and, with a
    /// policy, the stand-in.
    pub(super) fn put(
        &self,
        nft: &Nft,
        batch: &mut Batch,
        set: SharedSet<'_>,
        elements: &[Element],
    ) -> Result<Option<Changed>> {
        let stand_in = self.policy_links.map(|_| self.stand_in());
        let addresses = self.addresses.iter().chain(&self.former).copied();
        let keys: Vec<Vec<u8>> = addresses.chain(stand_in).map(octets).collect();
        set.put(nft, batch, self.owner, &keys, elements)
    }

    /// Fails if a set or map, as which the error names it, lacks one of `elements`.
    pub(super) fn check(
        &self,
        nft: &Nft,
        (kind, set): (&str, SharedSet<'_>),
        elements: &[Element],
    ) -> Result<()> {
        for element in elements {
            if !set.has(nft, element)? {
                let SharedSet { table, name } = set;
                let what = match ip_of(self.family.number(), &element.key) {
                    Some(address) if !is_stand_in(&element.key) => format!("address {address}"),
                    _ => format!("the bridge of {}", &**self.owner),
                };
                let missing = Error::difference(format_args!("{what} is not in the firewall"))
                    .with_details(format_args!(
                        "it is missing from {kind} {name} of table {table}"
                    ));
                return Err(shared_rules::missing_in_set(nft, table, name, missing)?);
            }
        }
        Ok(())
    }

    /// The keys of the container's bridge in the sets of bridges, each with its set. Empty without a policy.
    fn bridge_keys(&self) -> Vec<(&'static str, Vec<u8>)> {
        let Some(policy_links) = self.policy_links else { return Vec::new() };
        let bridge = pack(&[Value::IfName(policy_links.bridge(self.family))]);
        let more = match policy_links.policy {
            // Each bridge has IPv6 routes on the link. In a family without addresses the table bridge isolates the port.
            Policy::Isolated if self.addresses.is_empty() => None,
            Policy::Isolated => Some(ALONE),
            Policy::Strict => Some(strict::APART),
            Policy::Open | Policy::SameBridge => None,
        };
        let more = more.map(|set| (set, bridge.clone()));
        let keys = [(WITHIN, bridge.repeat(2))].into_iter().chain(more).chain([(BRIDGES, bridge)]);
        keys.collect()
    }
}

/// Adds the rules and the elements of the addresses. Removes other elements of these addresses that an earlier ADD of the
/// owner, or an owner that has ended, added.
pub(super) fn add(nft: &Nft, batch: &mut Batch, listing: &Listing<'_>) -> Result<()> {
    let Listing { family, policy_links, mark, .. } = *listing;
    let table = shared_rules::table(family);
    ensure_shared(nft, batch, family, policy_links.map(|links| links.policy), mark)?;
    listing.put(nft, batch, SharedSet::new(family, ADDRESSES), &listing.elements(None))?;
    let maps = MAPS.map(|(map, of)| (SharedSet::new(family, map), listing.bridges(of)));
    let mut changes = Vec::new();
    for (map, elements) in &maps {
        changes.push(listing.put(nft, batch, *map, elements)?);
    }
    if changes.iter().any(Option::is_some) {
        let mut needed = Vec::new();
        for ((map, elements), changed) in maps.into_iter().zip(changes) {
            let kept = changed.map_or_else(|| map.all_elements(nft), |changed| Ok(changed.kept))?;
            needed.push([kept, elements].concat());
        }
        remove_unused_bridges(nft, batch, table, needed)?;
    }
    if let Some(links) = policy_links {
        source_links::put(nft, batch, table, links.bridge(family), links.neighbours(family))?;
        if links.policy == Policy::Strict {
            strict::put(nft, batch, table, family, links)?;
        }
    }
    for (set, key) in listing.bridge_keys() {
        batch.ensure_elements(table, set, &[Element { key, data: None, comment: None }]);
    }
    Ok(())
}

/// Removes the elements of the owners, and from the sets of bridges the bridges that no other attachment needs.
pub(super) fn remove(
    nft: &Nft,
    batch: &mut Batch,
    family: IpFamily,
    owners: &Owners,
) -> Result<()> {
    SharedSet::new(family, ADDRESSES).remove_owners(nft, batch, owners)?;
    let (mut needed, mut is_changed) = (Vec::new(), owners.one().is_none());
    for (map, _) in MAPS {
        let changed = SharedSet::new(family, map).remove_owners(nft, batch, owners)?;
        is_changed |= !changed.gone.is_empty();
        needed.push(changed.kept);
    }
    if is_changed {
        remove_unused_bridges(nft, batch, shared_rules::table(family), needed)
    } else {
        Ok(())
    }
}

/// Removes the bridges that no element of a map names from the sets of bridges. `needed` has all elements of the maps, in
/// their order.
fn remove_unused_bridges(
    nft: &Nft,
    batch: &mut Batch,
    table: Table<'_>,
    needed: Vec<Vec<Element>>,
) -> Result<()> {
    let with_address = needed.get(1).into_iter().flatten();
    let alone = with_address.filter(|element| !is_stand_in(&element.key)).cloned().collect();
    let alone = &bridges(alone);
    let needed: Vec<Bridges> = needed.into_iter().map(bridges).collect();
    let [_, _, apart] = needed.as_slice() else { return Ok(()) };
    let all: Bridges = needed.iter().flatten().cloned().collect();
    let twice = all.iter().map(|bridge| bridge.repeat(2)).collect();
    for (set, needed) in [(BRIDGES, &all), (WITHIN, &twice), (ALONE, alone), (strict::APART, apart)]
    {
        let mut unused = nft.elements(table, set)?;
        unused.retain(|element| !needed.contains(&element.key));
        batch.delete_elements(table, set, &unused);
        let unused: Bridges = unused.into_iter().map(|element| element.key).collect();
        match set {
            BRIDGES => source_links::remove(nft, batch, table, &unused)?,
            strict::APART => strict::remove(nft, batch, table, &unused)?,
            _ => {}
        }
    }
    Ok(())
}

/// Whether the key of an element is a stand-in.
fn is_stand_in(key: &[u8]) -> bool {
    key.len() >= STAND_IN_BYTES && key[..key.len() - STAND_IN_BYTES].iter().all(|byte| *byte == 0)
}

fn bridges(elements: Vec<Element>) -> Bridges {
    let bridge = |element: Element| match element.data {
        Some(Datum::Value(bridge)) => Some(bridge),
        _ => None,
    };
    elements.into_iter().filter_map(bridge).collect()
}

/// For each address, whether the set `firewall-addresses` has it, with any owner.
pub(super) fn have_elements(
    nft: &Nft,
    family: IpFamily,
    addresses: &[IpAddr],
) -> Result<Vec<bool>> {
    let keys: Vec<Vec<u8>> = addresses.iter().copied().map(octets).collect();
    let known = nft.elements_at(shared_rules::table(family), ADDRESSES, &keys)?;
    Ok(known.iter().map(Option::is_some).collect())
}

pub(super) fn check(nft: &Nft, listing: &Listing<'_>) -> Result<()> {
    let Listing { family, policy_links, .. } = *listing;
    let table = shared_rules::table(family);
    let of_maps = MAPS.map(|(map, of)| (map, listing.bridges(of)));
    for (name, elements) in [(ADDRESSES, listing.elements(None))].into_iter().chain(of_maps) {
        listing.check(nft, ("set", SharedSet::new(family, name)), &elements)?;
    }
    let Some(policy_links) = policy_links else { return Ok(()) };
    for (set, key) in listing.bridge_keys().into_iter().rev() {
        if nft.elements_at(table, set, &[key])? == [None] {
            let object =
                format!("bridge {} in set {set} of table {table}", policy_links.bridge(family));
            let bridge = policy_links.bridge(family);
            let missing = Error::difference(format_args!("bridge {bridge} is not in the firewall"))
                .with_details(format_args!("it is missing from set {set} of table {table}"));
            return Err(shared_rules::missing_in_set(nft, table, set, missing.of_shared(object))?);
        }
    }
    shared(family, Some(policy_links.policy), None).check(nft)?;
    if policy_links.policy == Policy::Strict {
        strict::check(nft, table, family, policy_links)?;
    }
    source_links::check(nft, table, policy_links.bridge(family), policy_links.neighbours(family))
}

/// Adds the missing sets, maps and rules. With a policy, or with a mark for published ports, also adds the set
/// `portmap-targets` if it is missing, and fills it with the targets of all published ports.
pub(super) fn ensure_shared(
    nft: &Nft,
    batch: &mut Batch,
    family: IpFamily,
    policy: Option<Policy>,
    mark: Option<Mark>,
) -> Result<()> {
    let mut shared = shared(family, policy, mark);
    let table = shared.table;
    let needs_targets = policy.is_some() || mark.is_some_and(|mark| mark.accepts_published);
    let lacks_targets = needs_targets && nft.exist(&[Object::Set(table, targets::SET)])? == [false];
    shared.sets.extend(lacks_targets.then(|| targets::set(family)));
    shared.ensure(nft, batch)?;
    if lacks_targets { targets::fill(nft, batch, family) } else { Ok(()) }
}

/// The table with its sets. With a policy also the sets, maps and rules that isolate bridges, as far as this policy needs them;
/// with `mark` also the chains of the mark.
fn shared(family: IpFamily, policy: Option<Policy>, mark: Option<Mark>) -> SharedRules {
    let address = [Type::address(family.into())];
    let mut shared = SharedRules {
        table: shared_rules::table(family),
        sets: vec![NewSet::set(ADDRESSES, address)],
        chains: Vec::new(),
    };
    if let Some(policy) = policy {
        let is_strict = policy == Policy::Strict;
        let maps = MAPS.iter().filter(|(_, of)| is_strict || *of != Policy::Strict);
        shared.sets.extend(maps.map(|(map, _)| NewSet::map(*map, address, [Type::IfName])));
        shared.sets.push(NewSet::set(BRIDGES, [Type::IfName]));
        shared.sets.push(NewSet::set(WITHIN, [Type::IfName; 2]));
        shared.sets.push(NewSet::set(ALONE, [Type::IfName]));
        let base = Base::filter(Hook::Forward, PRIORITY);
        let former_rules = vec![within(FORMER_WITHIN_CHAIN), between(Verdict::Drop)];
        let former = Chain::base(FORMER_CHAIN, base, former_rules);
        let former_within = Chain::regular(FORMER_WITHIN_CHAIN, vec![drop_alone(None)]);
        let goto_between = between(Verdict::Goto(BETWEEN_CHAIN.into()));
        // Packets that are translated to a published port and their replies pass, because the port is public.
        let mut pass_between = targets::accept(family).to_vec();
        pass_between.push(vec![Verdict::Drop.into()]);
        let drop = drop_alone(Some(Condition::fib_daddr_iif()));
        let mut rules = vec![check_sources(), within(ALONE_CHAIN), goto_between];
        let mut obsolete = vec![drop_listed(family)];
        if is_strict {
            shared.sets.extend(strict::sets());
            rules.extend(strict::rules(family, BETWEEN_CHAIN));
            obsolete.push(strict::check_all_bridges());
        }
        shared.chains = vec![
            // The former base chain is removed before the chain that it has a `goto` to.
            Chain::regular(BETWEEN_CHAIN, pass_between).replacing(former.clone()),
            Chain::regular(ALONE_CHAIN, vec![drop]).replacing(former_within),
            source_links::chain().replacing(former.clone()),
            Chain::base(CHAIN, base, rules).without(obsolete).replacing(former),
        ];
    }
    if let Some(mark) = mark {
        shared.sets.extend(mark.accepts_published.then(|| NewSet::set(PUBLISHED, address)));
        shared.chains.extend(mark.chains(family));
    }
    shared
}

/// The priority of the chain `firewall-policy`: NF_IP_PRI_FILTER (linux/netfilter_ipv4.h) and its equivalent for IPv6; nft
/// calls it `filter`.
const PRIORITY: i32 = 0;

/// `iifname @firewall-alone fib daddr . iif oif exists drop`. With br_netfilter, a frame to or from a gateway that is another
/// link of the bridge also reaches this rule: the routes to both ends are on that link, so the rule does not match it.
fn drop_alone(condition: Option<Condition>) -> Vec<Expr> {
    let condition = condition.into_iter().flatten();
    rule(in_set(&[Field::Iifname], ALONE).into_iter().chain(condition), Verdict::Drop)
}

/// `ct status dnat ct direction original iifname @firewall-bridges fib saddr . iif oif missing jump firewall-sources`
fn check_sources() -> Vec<Expr> {
    let to_sources = Verdict::Jump(source_links::CHAIN.into());
    source_links::spoofed(in_set(&[Field::Iifname], BRIDGES), to_sources)
}

/// `ct status dnat ct direction original ip saddr @firewall-addresses fib saddr . iif oif missing drop`, which an earlier
/// development version added in place of `check_sources`.
fn drop_listed(family: IpFamily) -> Vec<Expr> {
    let [saddr, _] = Field::addresses(family);
    source_links::spoofed(in_set(&[saddr], ADDRESSES), Verdict::Drop)
}

/// `iifname . oifname @firewall-within goto CHAIN`
fn within(chain: &str) -> Vec<Expr> {
    rule(in_set(&[Field::Iifname, Field::Oifname], WITHIN), Verdict::Goto(chain.into()))
}

/// `iifname @firewall-bridges oifname @firewall-bridges VERDICT`
fn between(verdict: Verdict) -> Vec<Expr> {
    let links = [Field::Iifname, Field::Oifname].map(|field| in_set(&[field], BRIDGES));
    rule(links.concat(), verdict)
}

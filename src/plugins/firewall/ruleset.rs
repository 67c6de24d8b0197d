//! Our own tables: which addresses may pass, and which bridges are kept apart.
//!
//! ```nft
//! table ip cnibox {
//!     set firewall { type ipv4_addr; }
//!     map firewall-same-bridge { type ipv4_addr : ifname; }
//!     map firewall-isolated { type ipv4_addr : ifname; }
//!     set firewall-bridges { type ifname; }
//!     set firewall-within { type ifname . ifname; }
//!     set firewall-alone { type ifname; }
//!     chain firewall-within {
//!         iifname @firewall-alone drop
//!     }
//!     chain firewall {
//!         type filter hook forward priority filter; policy accept;
//!         iifname . oifname @firewall-within goto firewall-within
//!         iifname @firewall-bridges oifname @firewall-bridges drop
//!     }
//! }
//! ```
//!
//! The first three have an element for each address, with its owner for a comment; the maps say which bridge is kept apart
//! because of it, and how. From them follow the other three, which packets are compared with: all such bridges, the same
//! ones as pairs with themselves, and those among them where nothing passes within.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::ingress::Guard;
use crate::error::{Error, Result};
use crate::kernel::nft::{
    Base, Batch, ChainKind, Comment, Datum, Element, Family, Field, Hook, NewChain, NewRule,
    NewSet, Nft, Object, Policy, SetKind, Table, Type, Value, Verdict, in_set, pack,
};
use crate::steps::netfilter::{self, Stale};

/// Where the addresses are.
pub(super) const ADDRESSES: &str = "firewall";
/// Of the addresses in them, the bridges.
const SAME_BRIDGE: &str = "firewall-same-bridge";
const ISOLATED: &str = "firewall-isolated";
const BRIDGES: &str = "firewall-bridges";
const WITHIN: &str = "firewall-within";
const ALONE: &str = "firewall-alone";

const FORWARD_CHAIN: &str = "firewall";
const WITHIN_CHAIN: &str = "firewall-within";
/// How many rules they have.
const FORWARD_RULES: usize = 2;
const WITHIN_RULES: usize = 1;

pub(super) fn key(address: IpAddr) -> Vec<u8> {
    pack(&[Value::Address(address)])
}

/// What the elements of one attachment are to be.
struct Wanted<'a> {
    keys: Vec<Vec<u8>>,
    guard: Option<&'a Guard>,
    owner: &'a Comment,
}

impl Wanted<'_> {
    /// Set by set, the elements, none meaning that there must be none with these keys.
    fn sets(&self) -> [(&'static str, Vec<Element>); 3] {
        let elements = |data: Option<Datum>| {
            let element = |key: &Vec<u8>| Element {
                key: key.clone(),
                data: data.clone(),
                comment: Some(self.owner.clone()),
            };
            self.keys.iter().map(element).collect()
        };
        let of_guard = |is_isolated: bool| match self.guard {
            Some(guard) if guard.is_isolated == is_isolated => {
                elements(Some(Datum::Value(bridge_key(guard))))
            }
            _ => Vec::new(),
        };
        [(ADDRESSES, elements(None)), (SAME_BRIDGE, of_guard(false)), (ISOLATED, of_guard(true))]
    }
}

fn bridge_key(guard: &Guard) -> Vec<u8> {
    pack(&[Value::IfName(&guard.bridge)])
}

/// Adds the addresses, and takes them from whoever had them before: an address that is given out again has lost its owner
/// without a DEL.
pub(super) fn add(
    nft: &Nft,
    batch: &mut Batch,
    family: Family,
    addresses: &[IpAddr],
    guard: Option<&Guard>,
    owner: &Comment,
) -> Result<()> {
    let table = netfilter::table(family);
    make_room(nft, batch, family, guard.is_some())?;
    let keys: Vec<Vec<u8>> = addresses.iter().copied().map(key).collect();
    let wanted = Wanted { keys, guard, owner };
    let mut is_in_the_way = false;
    for (set, elements) in wanted.sets() {
        let known = nft.elements_at(table, set, &wanted.keys)?;
        let known: Vec<Element> = known.into_iter().flatten().collect();
        is_in_the_way |= known.iter().any(|element| !elements.contains(element));
        if !is_in_the_way {
            let missing: Vec<Element> =
                elements.into_iter().filter(|element| !known.contains(element)).collect();
            batch.add_elements(table, set, &missing);
        }
    }
    if is_in_the_way {
        // Seldom, so it may take its time. What was to be added above is added here once more, which is no error.
        remove_if(nft, batch, family, |element| wanted.keys.contains(&element.key))?;
        for (set, elements) in wanted.sets() {
            batch.ensure_elements(table, set, &elements);
        }
    }
    if let Some(guard) = guard {
        let bridge = bridge_key(guard);
        let element = |key| [Element { key, data: None, comment: None }];
        batch.ensure_elements(table, WITHIN, &element([bridge.clone(), bridge.clone()].concat()));
        if guard.is_isolated {
            batch.ensure_elements(table, ALONE, &element(bridge.clone()));
        }
        batch.ensure_elements(table, BRIDGES, &element(bridge));
    }
    Ok(())
}

/// Removes what is stale, and the bridges that nobody has kept apart any more.
pub(super) fn remove(nft: &Nft, batch: &mut Batch, family: Family, stale: &Stale) -> Result<()> {
    remove_if(nft, batch, family, |element| stale.has(element.comment.as_ref()))
}

fn remove_if(
    nft: &Nft,
    batch: &mut Batch,
    family: Family,
    is_stale: impl Fn(&Element) -> bool,
) -> Result<()> {
    let table = netfilter::table(family);
    let mut split = |set| -> Result<(Bridges, Bridges)> {
        let (stale, rest): (Vec<_>, Vec<_>) =
            nft.elements(table, set)?.into_iter().partition(&is_stale);
        let keys: Vec<Vec<u8>> = stale.iter().map(|element| element.key.clone()).collect();
        batch.delete_elements(table, set, &keys);
        Ok((bridges(stale), bridges(rest)))
    };
    split(ADDRESSES)?;
    let (stale_same, same) = split(SAME_BRIDGE)?;
    let (stale_isolated, isolated) = split(ISOLATED)?;
    let all: Bridges = same.union(&isolated).cloned().collect();
    let stale: Bridges = stale_same.union(&stale_isolated).cloned().collect();
    let twice = |bridge: &Vec<u8>| [bridge.as_slice(), bridge].concat();
    for (set, gone) in [
        (BRIDGES, stale.difference(&all).cloned().collect()),
        (WITHIN, stale.difference(&all).map(twice).collect()),
        (ALONE, stale_isolated.difference(&isolated).cloned().collect::<Vec<_>>()),
    ] {
        // Somebody may have emptied the set.
        let known = nft.elements_at(table, set, &gone)?.into_iter().flatten();
        let keys: Vec<Vec<u8>> = known.map(|element| element.key).collect();
        batch.delete_elements(table, set, &keys);
    }
    Ok(())
}

/// Names of bridges, as sets have them for keys.
type Bridges = BTreeSet<Vec<u8>>;

fn bridges(elements: Vec<Element>) -> Bridges {
    let bridge = |element: Element| match element.data {
        Some(Datum::Value(bridge)) => Some(bridge),
        _ => None,
    };
    elements.into_iter().filter_map(bridge).collect()
}

/// The addresses in what is stale.
pub(super) fn addresses(nft: &Nft, family: Family, stale: &Stale) -> Result<Vec<IpAddr>> {
    let elements = nft.elements(netfilter::table(family), ADDRESSES)?;
    let own = elements.iter().filter(|element| stale.has(element.comment.as_ref()));
    Ok(own.filter_map(address).collect())
}

/// The keys of what is stale.
pub(super) fn keys_of(elements: Vec<Element>, stale: &Stale) -> Vec<Vec<u8>> {
    let own = elements.into_iter().filter(|element| stale.has(element.comment.as_ref()));
    own.map(|element| element.key).collect()
}

fn address(element: &Element) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(element.key.as_slice()) {
        return Some(octets.into());
    }
    <[u8; 16]>::try_from(element.key.as_slice()).ok().map(IpAddr::from)
}

pub(super) fn check(
    nft: &Nft,
    family: Family,
    addresses: &[IpAddr],
    guard: Option<&Guard>,
    owner: &Comment,
) -> Result<()> {
    let table = netfilter::table(family);
    let keys = addresses.iter().copied().map(key).collect();
    let wanted = Wanted { keys, guard, owner };
    for (set, elements) in wanted.sets().into_iter().filter(|(_, elements)| !elements.is_empty()) {
        let known = nft.elements_at(table, set, &wanted.keys)?;
        for ((address, element), known) in addresses.iter().zip(&elements).zip(&known) {
            if known.as_ref() != Some(element) {
                return Err(Error::internal(format!(
                    "address {address} is missing from set {set} of table {table}"
                )));
            }
        }
    }
    let Some(guard) = guard else { return Ok(()) };
    let bridge = bridge_key(guard);
    let twice = [bridge.clone(), bridge.clone()].concat();
    let alone = guard.is_isolated.then_some((ALONE, bridge.clone()));
    for (set, key) in [(BRIDGES, bridge), (WITHIN, twice)].into_iter().chain(alone) {
        if nft.elements_at(table, set, &[key])?.iter().all(Option::is_none) {
            return Err(Error::internal(format!(
                "bridge {} is missing from set {set} of table {table}",
                guard.bridge
            )));
        }
    }
    for (chain, rules) in CHAINS {
        if nft.rules_of(table, chain)?.len() < rules {
            return Err(Error::internal(format!(
                "rules of chain {chain} of table {table} are missing"
            )));
        }
    }
    Ok(())
}

/// Adds what is missing of the table and of its sets; of what keeps bridges apart only if that is wanted.
fn make_room(nft: &Nft, batch: &mut Batch, family: Family, keeps_apart: bool) -> Result<()> {
    let table = netfilter::table(family);
    let address = [if family == Family::Ip6 { Type::Ipv6Addr } else { Type::Ipv4Addr }];
    let to_bridge = SetKind::Map(&[Type::IfName]);
    let mut sets: Vec<(&str, &[Type], SetKind<'_>)> = vec![(ADDRESSES, &address, SetKind::Set)];
    if keeps_apart {
        sets.extend([
            (SAME_BRIDGE, &address[..], to_bridge),
            (ISOLATED, &address, to_bridge),
            (BRIDGES, &[Type::IfName], SetKind::Set),
            (WITHIN, &[Type::IfName, Type::IfName], SetKind::Set),
            (ALONE, &[Type::IfName], SetKind::Set),
        ]);
    }
    let mut objects = vec![Object::Table(table)];
    objects.extend(sets.iter().map(|(name, ..)| Object::Set(table, name)));
    let there = nft.exist(&objects)?;
    if !there[0] {
        batch.add_table(table, None);
    }
    for ((name, key, kind), _) in sets.into_iter().zip(&there[1..]).filter(|(_, there)| !**there) {
        batch.add_set(table, NewSet { name, key, kind, comment: None });
    }
    if keeps_apart { make_chains(nft, batch, table) } else { Ok(()) }
}

/// Adds the chains where they, or rules of theirs, are missing.
fn make_chains(nft: &Nft, batch: &mut Batch, table: Table<'_>) -> Result<()> {
    let mut is_whole = true;
    for (chain, rules) in CHAINS {
        is_whole &= nft.rules_of(table, chain)?.len() >= rules;
    }
    if is_whole {
        return Ok(());
    }
    let chains = CHAINS.map(|(chain, _)| Object::Chain(table, chain));
    let base = Base {
        kind: ChainKind::Filter,
        hook: Hook::Forward,
        priority: PRIORITY,
        policy: Policy::Accept,
    };
    for ((chain, _), is_there) in CHAINS.into_iter().zip(nft.exist(&chains)?) {
        let base = (chain == FORWARD_CHAIN).then_some(base);
        if is_there {
            batch.flush_chain(table, chain);
        } else {
            batch.add_chain(table, NewChain { name: chain, base, comment: None });
        }
    }
    batch.add_rule(table, drop_within());
    batch.add_rule(table, go_within());
    batch.add_rule(table, drop_between());
    Ok(())
}

/// The chains and how many rules they have, each before those that lead to it.
const CHAINS: [(&str, usize); 2] = [(WITHIN_CHAIN, WITHIN_RULES), (FORWARD_CHAIN, FORWARD_RULES)];

/// NF_IP_PRI_FILTER (linux/netfilter_ipv4.h) and its like for IPv6; nft calls it `filter`.
const PRIORITY: i32 = 0;

/// `iifname @firewall-alone drop`
fn drop_within() -> NewRule<'static> {
    NewRule::last(WITHIN_CHAIN).with(in_set(&[Field::Iifname], ALONE)).then(Verdict::Drop)
}

/// `iifname . oifname @firewall-within goto firewall-within`
fn go_within() -> NewRule<'static> {
    NewRule::last(FORWARD_CHAIN)
        .with(in_set(&[Field::Iifname, Field::Oifname], WITHIN))
        .then(Verdict::Goto(WITHIN_CHAIN.into()))
}

/// `iifname @firewall-bridges oifname @firewall-bridges drop`
fn drop_between() -> NewRule<'static> {
    NewRule::last(FORWARD_CHAIN)
        .with(in_set(&[Field::Iifname], BRIDGES))
        .with(in_set(&[Field::Oifname], BRIDGES))
        .then(Verdict::Drop)
}

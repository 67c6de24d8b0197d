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
//!     chain firewall-within {
//!         iifname @firewall-alone drop
//!     }
//!     chain firewall-forward {
//!         type filter hook forward priority filter; policy accept;
//!         iifname . oifname @firewall-within goto firewall-within
//!         iifname @firewall-bridges oifname @firewall-bridges drop
//!     }
//! }
//! ```
//!
//! The first three have an element for each address, with the owner as comment. The maps have the bridge that is isolated for
//! the address. The other three follow from the maps, and packets are looked up in them: `bridges` has all isolated bridges,
//! `within` a pair of each bridge with itself, and `alone` the bridges without traffic between their ports.

use std::net::IpAddr;

use super::ingress::Guard;
use crate::error::{Error, Result};
use crate::netlink::nft::{
    Base, Batch, ChainKind, Comment, Datum, Element, Expr, Family, Field, Hook, NewSet, Nft,
    Policy, SetKind, Table, Type, Value, Verdict, in_set, pack,
};
use crate::plugin::owner::Owners;
use crate::steps::nft::shared_rules::{self, Chain, SharedRules};

/// The addresses of all containers.
pub(super) const ADDRESSES: &str = "firewall-addresses";
/// The bridge of each address, by policy.
const SAME_BRIDGE: &str = "firewall-same-bridge";
const ISOLATED: &str = "firewall-isolated";
const BRIDGES: &str = "firewall-bridges";
const WITHIN: &str = "firewall-within";
const ALONE: &str = "firewall-alone";

const FORWARD_CHAIN: &str = "firewall-forward";
const WITHIN_CHAIN: &str = "firewall-within";

pub(super) fn key(address: IpAddr) -> Vec<u8> {
    pack(&[Value::Address(address)])
}

/// The elements that one attachment needs.
struct Wanted<'a> {
    keys: Vec<Vec<u8>>,
    guard: Option<&'a Guard>,
    owner: &'a Comment,
}

impl Wanted<'_> {
    /// The elements for each set. An empty list means that the set must not have these keys.
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

/// Adds the addresses, and removes the elements of an earlier owner of an address, which ended without a DEL.
pub(super) fn add(
    nft: &Nft,
    batch: &mut Batch,
    family: Family,
    addresses: &[IpAddr],
    guard: Option<&Guard>,
    owner: &Comment,
) -> Result<()> {
    let table = shared_rules::table(family);
    shared(family, guard.is_some())
        .ensure(nft, batch, |batch, name| declare(batch, table, name))?;
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
        // This case is rare and may be slow. Elements that were added above are added again, which is no error.
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

/// Removes the elements of the owners, and the bridges that no other attachment isolates.
pub(super) fn remove(nft: &Nft, batch: &mut Batch, family: Family, owners: &Owners) -> Result<()> {
    remove_if(nft, batch, family, |element| shared_rules::is_of(element, owners))
}

fn remove_if(
    nft: &Nft,
    batch: &mut Batch,
    family: Family,
    is_stale: impl Fn(&Element) -> bool,
) -> Result<()> {
    let table = shared_rules::table(family);
    let mut split = |set| -> Result<(Bridges, Bridges)> {
        let (stale, rest): (Vec<_>, Vec<_>) =
            nft.elements(table, set)?.into_iter().partition(&is_stale);
        let keys: Vec<Vec<u8>> = stale.iter().map(|element| element.key.clone()).collect();
        batch.delete_elements(table, set, &keys);
        Ok((bridges(stale), bridges(rest)))
    };
    split(ADDRESSES)?;
    let (mut gone, same) = split(SAME_BRIDGE)?;
    let (mut alone, isolated) = split(ISOLATED)?;
    alone.retain(|bridge| isolated.binary_search(bridge).is_err());
    alone.iter().for_each(|bridge| note(&mut gone, bridge.clone()));
    gone.retain(|bridge| {
        same.binary_search(bridge).is_err() && isolated.binary_search(bridge).is_err()
    });
    let twice = gone.iter().map(|bridge| [bridge.as_slice(), bridge].concat()).collect();
    for (set, gone) in [(BRIDGES, gone), (WITHIN, twice), (ALONE, alone)] {
        // Another program may have flushed the set.
        let known = nft.elements_at(table, set, &gone)?.into_iter().flatten();
        let keys: Vec<Vec<u8>> = known.map(|element| element.key).collect();
        batch.delete_elements(table, set, &keys);
    }
    Ok(())
}

/// Names of bridges, in the format of keys: sorted, each once.
type Bridges = Vec<Vec<u8>>;

fn bridges(elements: Vec<Element>) -> Bridges {
    let mut bridges = Bridges::new();
    for element in elements {
        if let Some(Datum::Value(bridge)) = element.data {
            note(&mut bridges, bridge);
        }
    }
    bridges
}

fn note(bridges: &mut Bridges, bridge: Vec<u8>) {
    if let Err(at) = bridges.binary_search(&bridge) {
        bridges.insert(at, bridge);
    }
}

/// Which of the addresses have elements, of any owner.
pub(super) fn are_known(nft: &Nft, family: Family, addresses: &[IpAddr]) -> Result<Vec<bool>> {
    let keys: Vec<Vec<u8>> = addresses.iter().copied().map(key).collect();
    let known = nft.elements_at(shared_rules::table(family), ADDRESSES, &keys)?;
    Ok(known.iter().map(Option::is_some).collect())
}

/// The address in the key.
pub(super) fn address(element: &Element) -> Option<IpAddr> {
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
    let table = shared_rules::table(family);
    let keys = addresses.iter().copied().map(key).collect();
    let wanted = Wanted { keys, guard, owner };
    for (set, elements) in wanted.sets().into_iter().filter(|(_, elements)| !elements.is_empty()) {
        let known = nft.elements_at(table, set, &wanted.keys)?;
        for ((address, element), known) in addresses.iter().zip(&elements).zip(&known) {
            if known.as_ref() != Some(element) {
                return Err(Error::internal(format_args!(
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
            return Err(Error::internal(format_args!(
                "bridge {} is missing from set {set} of table {table}",
                guard.bridge
            )));
        }
    }
    shared(family, true).check(nft)
}

/// The table with its sets, and the rules that isolate bridges if they are needed.
fn shared(family: Family, keeps_apart: bool) -> SharedRules<'static> {
    let mut shared = SharedRules {
        table: shared_rules::table(family),
        sets: vec![ADDRESSES.into()],
        chains: Vec::new(),
    };
    if keeps_apart {
        shared.sets.extend([SAME_BRIDGE, ISOLATED, BRIDGES, WITHIN, ALONE].map(String::from));
        let base = Base {
            kind: ChainKind::Filter,
            hook: Hook::Forward,
            priority: PRIORITY,
            policy: Policy::Accept,
        };
        shared.chains = vec![
            Chain::regular(WITHIN_CHAIN, vec![drop_within()]),
            Chain::base(FORWARD_CHAIN, base, vec![go_within(), drop_between()]),
        ];
    }
    shared
}

fn declare(batch: &mut Batch, table: Table<'_>, name: &str) {
    let address = [if table.family == Family::Ip6 { Type::Ipv6Addr } else { Type::Ipv4Addr }];
    let (key, kind): (&[Type], _) = match name {
        ADDRESSES => (&address, SetKind::Set),
        SAME_BRIDGE | ISOLATED => (&address, SetKind::Map(&[Type::IfName])),
        WITHIN => (&[Type::IfName, Type::IfName], SetKind::Set),
        _ => (&[Type::IfName], SetKind::Set),
    };
    batch.add_set(table, NewSet { name, key, kind, comment: None });
}

/// NF_IP_PRI_FILTER (linux/netfilter_ipv4.h) and its equivalent for IPv6; nft calls it `filter`.
const PRIORITY: i32 = 0;

/// `iifname @firewall-alone drop`
fn drop_within() -> Vec<Expr> {
    let mut rule = in_set(&[Field::Iifname], ALONE);
    rule.push(Verdict::Drop.into());
    rule
}

/// `iifname . oifname @firewall-within goto firewall-within`
fn go_within() -> Vec<Expr> {
    let mut rule = in_set(&[Field::Iifname, Field::Oifname], WITHIN);
    rule.push(Verdict::Goto(WITHIN_CHAIN.into()).into());
    rule
}

/// `iifname @firewall-bridges oifname @firewall-bridges drop`
fn drop_between() -> Vec<Expr> {
    let mut rule = in_set(&[Field::Iifname], BRIDGES);
    rule.extend(in_set(&[Field::Oifname], BRIDGES));
    rule.push(Verdict::Drop.into());
    rule
}

//! Moves the elements of attachments from an address to another one, in the tables of cnibox and in the map of `firewall` in the
//! table of iptables.
//!
//! An element belongs to an attachment by its comment, and names the address of the container in one of these ways:
//!
//! - its key is the address (masquerading, the sets and maps of `firewall`),
//! - its data begins with the address (published ports),
//! - its key is a source and the address (masquerading for published ports).

use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::nft::{Batch, Datum, Element, Family, Nft, Object, Table, Value, pack};
use crate::plugin::owner::Owner;
use crate::steps::nft::{hairpin, masquerade, shared_rules};

/// The move of the elements of one owner.
#[derive(Clone, Debug)]
pub struct Move {
    pub owner: Owner,
    /// With the prefix length of the subnet, like `to`.
    pub from: IpNet,
    pub to: IpNet,
}

/// The result of a transaction.
#[derive(Clone, Debug, Default)]
pub struct Renumbered {
    pub moved: Vec<Moved>,
    /// The owners that must wait: a living attachment still has elements with the new address.
    pub waiting: Vec<Owner>,
}

/// An element that was moved.
#[derive(Clone, Debug)]
pub struct Moved {
    pub owner: Owner,
    pub from: IpAddr,
    pub to: IpAddr,
}

/// The move of one element.
struct ElementMove<'a> {
    of: &'a Move,
    table: Table<'static>,
    set: String,
    old: Element,
    new_set: String,
    new: Element,
}

/// Moves the elements in one transaction: all owners at once, because an address can pass from one to another. `holds` tells
/// whether the living attachment with this owner uses an address. An element of any other owner that is in the way is
/// removed, as in ADD: that owner ended without a DEL.
pub fn renumber(
    nft: &Nft,
    moves: &[Move],
    holds: &dyn Fn(&str, IpAddr) -> bool,
) -> Result<Renumbered> {
    let mut renumbered = Renumbered::default();
    if !nft.is_supported()? {
        return Ok(renumbered);
    }
    nft.transact(|nft, batch| {
        renumbered = Renumbered::default();
        for family in IpFamily::ALL {
            put_family(nft, batch, family, moves, holds, &mut renumbered)?;
        }
        Ok(())
    })?;
    Ok(renumbered)
}

fn put_family(
    nft: &Nft,
    batch: &mut Batch,
    family: IpFamily,
    moves: &[Move],
    holds: &dyn Fn(&str, IpAddr) -> bool,
    renumbered: &mut Renumbered,
) -> Result<()> {
    let moves: Vec<&Move> = moves.iter().filter(|Move { to, .. }| family.has(to.addr())).collect();
    let mut steps = steps(nft, family.into(), &moves)?;
    let in_the_way = loop {
        let present = in_the_way(nft, &steps)?;
        let is_held = |(step, element): &(usize, Element)| {
            let Move { owner, to, .. } = steps[*step].of;
            let other = element.comment.as_deref().filter(|other| *other != owner.as_str());
            other.is_some_and(|other| holds(other, to.addr()))
        };
        let waiting: Vec<Owner> = present
            .iter()
            .filter(|found| is_held(found))
            .map(|(step, _)| steps[*step].of.owner.clone())
            .collect();
        if waiting.is_empty() {
            break present;
        }
        // Without the steps of these owners, elements of theirs can be in the way of others.
        steps.retain(|step| !waiting.contains(&step.of.owner));
        renumbered.waiting.extend(waiting);
    };
    if steps.is_empty() {
        return Ok(());
    }
    put(nft, batch, family, &steps, &in_the_way)?;
    renumbered.moved.extend(steps.iter().map(|step| Moved {
        owner: step.of.owner.clone(),
        from: step.of.from.addr(),
        to: step.of.to.addr(),
    }));
    Ok(())
}

/// The elements to move.
fn steps<'a>(nft: &Nft, family: Family, moves: &[&'a Move]) -> Result<Vec<ElementMove<'a>>> {
    let mut steps: Vec<ElementMove<'a>> = Vec::new();
    if moves.is_empty() {
        return Ok(steps);
    }
    let table = shared_rules::table(family);
    let mut sets: Vec<_> = nft.sets(table)?.into_iter().map(|set| (table, set.name)).collect();
    let (foreign, map) = shared_rules::accepted(family);
    if nft.exist(&[Object::Set(foreign, map)])? == [true] {
        sets.push((foreign, map.into()));
    }
    for (table, set) in sets {
        for old in nft.elements(table, &set)? {
            let is_of =
                |Move { owner, .. }: &&&Move| old.comment.as_deref() == Some(owner.as_str());
            let found =
                moves.iter().filter(is_of).find_map(|of| Some((*of, moved(&set, &old, of)?)));
            let Some((of, (new_set, new))) = found else { continue };
            let is_there = |step: &ElementMove<'_>| {
                (step.table, &step.new_set, &step.new.key) == (table, &new_set, &new.key)
            };
            let is_same = new == old && new_set == set;
            if !is_same && !steps.iter().any(is_there) {
                steps.push(ElementMove { of, table, set: set.clone(), old, new_set, new });
            }
        }
    }
    Ok(steps)
}

/// The set and the element that an element becomes; `None` if it does not name the address.
fn moved(set: &str, old: &Element, of: &Move) -> Option<(String, Element)> {
    let Move { from, to, .. } = of;
    let [from_key, to_key] = [from, to].map(|net| pack(&[Value::Address(net.addr())]));
    let same_set = |element| Some((set.to_owned(), element));
    if let Some(length) = hairpin::length(set) {
        let (source, address) = old.key.split_at_checked(from_key.len())?;
        if address != from_key {
            return None;
        }
        let is_subnet =
            length == from.prefix_len() && source == pack(&[Value::Address(from.network())]);
        return if is_subnet {
            let key = hairpin::key(to, to.addr());
            Some((hairpin::set(to.prefix_len()), Element { key, ..old.clone() }))
        } else {
            same_set(Element { key: [source, &to_key].concat(), ..old.clone() })
        };
    }
    if old.key == from_key {
        return same_set(match set {
            masquerade::MAP => Element { comment: old.comment.clone(), ..masquerade::element(*to) },
            _ => Element { key: to_key, ..old.clone() },
        });
    }
    match &old.data {
        Some(Datum::Value(target)) if is_target(target, &from_key) => {
            let data = [&to_key, &target[from_key.len()..]].concat();
            same_set(Element { data: Some(Datum::Value(data)), ..old.clone() })
        }
        _ => None,
    }
}

/// Whether the data is this address and a port, which is four bytes in registers.
fn is_target(data: &[u8], address: &[u8]) -> bool {
    data.len() == address.len() + 4 && data.starts_with(address)
}

/// The elements with a key that a step needs and that no step frees, each with the index of its step.
fn in_the_way(nft: &Nft, steps: &[ElementMove<'_>]) -> Result<Vec<(usize, Element)>> {
    let mut found = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let is_freed = |other: &ElementMove<'_>| {
            (other.table, &other.set, &other.old.key) == (step.table, &step.new_set, &step.new.key)
        };
        if steps.iter().any(is_freed) {
            continue;
        }
        let key = std::slice::from_ref(&step.new.key);
        let present = nft.elements_at(step.table, &step.new_set, key)?.into_iter().flatten();
        found.extend(present.map(|element| (index, element)));
    }
    Ok(found)
}

fn put(
    nft: &Nft,
    batch: &mut Batch,
    family: IpFamily,
    steps: &[ElementMove<'_>],
    in_the_way: &[(usize, Element)],
) -> Result<()> {
    let is_masquerade = |step: &&ElementMove<'_>| step.set == masquerade::MAP;
    let nets: Vec<IpNet> = steps.iter().filter(is_masquerade).map(|step| step.of.to).collect();
    if !nets.is_empty() {
        masquerade::ensure(nft, batch, family.into(), &nets)?;
    }
    let mut lengths: Vec<u8> = steps
        .iter()
        .filter(|step| step.new_set != step.set)
        .filter_map(|step| hairpin::length(&step.new_set))
        .collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths.iter().try_for_each(|length| hairpin::ensure(nft, batch, family, *length))?;
    let mut unmasqueraded = Vec::new();
    for (index, element) in in_the_way {
        let ElementMove { table, new_set, .. } = &steps[*index];
        batch.delete_elements(*table, new_set, std::slice::from_ref(&element.key));
        unmasqueraded.extend(Some(element.clone()).filter(|_| new_set == masquerade::MAP));
    }
    for ElementMove { table, set, old, .. } in steps {
        batch.delete_elements(*table, set, std::slice::from_ref(&old.key));
        unmasqueraded.extend(Some(old.clone()).filter(|_| set == masquerade::MAP));
    }
    for ElementMove { table, new_set, new, .. } in steps {
        batch.add_elements(*table, new_set, std::slice::from_ref(new));
    }
    if unmasqueraded.is_empty() {
        return Ok(());
    }
    masquerade::delete_chains(nft, batch, family.into(), &unmasqueraded, &nets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Attachment, ContainerId, IfName, NetworkName};
    use crate::netlink::nft::{Comment, Transport};

    fn moves(from: &str, to: &str) -> Move {
        let at = Attachment {
            container_id: ContainerId::new("c1").unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        };
        let owner = Owner::new(&NetworkName::new("net").unwrap(), &at);
        Move { owner, from: from.parse().unwrap(), to: to.parse().unwrap() }
    }

    fn element(key: Vec<u8>, data: Option<Vec<u8>>) -> Element {
        let comment = Some(Comment::new("net c1 eth0").unwrap());
        Element { key, data: data.map(Datum::Value), comment }
    }

    fn address(text: &str) -> Value<'static> {
        Value::Address(text.parse().unwrap())
    }

    #[test]
    fn an_element_names_an_address_as_its_key_or_target() {
        let of = moves("10.1.0.5/16", "10.2.0.6/24");
        let key = |text: &str| pack(&[address(text)]);
        let target = |text: &str| pack(&[address(text), Value::Port(80)]);
        let port = pack(&[Value::Transport(Transport::Tcp), Value::Port(8080)]);
        for (set, old, expected) in [
            (
                "firewall-addresses",
                element(key("10.1.0.5"), None),
                Some(element(key("10.2.0.6"), None)),
            ),
            ("firewall-addresses", element(key("10.1.0.6"), None), None),
            (
                "portmap-published",
                element(port.clone(), Some(target("10.1.0.5"))),
                Some(element(port.clone(), Some(target("10.2.0.6")))),
            ),
            ("portmap-published", element(port, Some(target("10.1.0.7"))), None),
            (
                "firewall-same-bridge",
                element(key("10.1.0.5"), Some(vec![7; 16])),
                Some(element(key("10.2.0.6"), Some(vec![7; 16]))),
            ),
        ] {
            let expected = expected.map(|element| (set.to_owned(), element));
            assert_eq!(moved(set, &old, &of), expected, "{set} {old:?}");
        }
    }

    #[test]
    fn the_subnet_of_an_address_moves_with_it() {
        for (from, to, set, source, expected) in [
            ("10.1.0.5/16", "10.2.0.6/24", 16, "10.1.0.0", (24, "10.2.0.0")),
            ("10.1.0.5/16", "10.2.0.6/24", 8, "127.0.0.0", (8, "127.0.0.0")),
            ("10.1.0.5/16", "10.2.0.6/24", 0, "0.0.0.0", (0, "0.0.0.0")),
            ("fd00::5/128", "fd00::6/128", 128, "fd00::5", (128, "fd00::6")),
        ] {
            let of = moves(from, to);
            let pair = |net: &str, ip: IpAddr| pack(&[address(net), Value::Address(ip)]);
            let old = element(pair(source, of.from.addr()), None);
            let (length, net) = expected;
            let new = element(pair(net, of.to.addr()), None);
            assert_eq!(moved(&hairpin::set(set), &old, &of), Some((hairpin::set(length), new)));
        }
    }

    #[test]
    fn the_masquerade_of_an_address_leads_to_its_subnet() {
        let of = moves("fd00:1::5/64", "fd00:2::6/64");
        let comment = Some(Comment::new("net c1 eth0").unwrap());
        let old = Element { comment: comment.clone(), ..masquerade::element(of.from) };
        let new = Element { comment, ..masquerade::element(of.to) };
        assert_eq!(moved(masquerade::MAP, &old, &of), Some((masquerade::MAP.into(), new)));
    }
}

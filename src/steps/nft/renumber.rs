//! Moves the elements of attachments from an address to another one, in the tables of cnibox and in the map of `firewall` in
//! the table of iptables.
//!
//! The comment of an element names its owner. The element contains the address of the container in one of these places:
//!
//! - its key is the address (masquerading, the sets and maps of `firewall`),
//! - its data begins with the address (published ports),
//! - its key is a source followed by the address (masquerading for published ports),
//! - its key begins with the address (the targets of published ports).

use ipnet::IpNet;

use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::nft::{Batch, Datum, Element, Nft};
use crate::netlink::octets;
use crate::plugin::owner::Owner;
use crate::steps::nft::hairpin::Sources;
use crate::steps::nft::shared_set::{self, SharedSet};
use crate::steps::nft::{hairpin, masquerade, shared_rules, targets};

/// The move of an owner's elements from one address to another.
#[derive(Clone, Debug)]
pub struct Move {
    pub owner: Owner,
    /// The old address. It has the prefix length of its subnet, as the new address `to` has.
    pub from: IpNet,
    pub to: IpNet,
}

/// The result of a move.
#[derive(Clone, Copy, Default)]
pub struct Moved {
    pub elements: usize,
    /// Another attachment still has elements for the old address.
    pub is_shared: bool,
}

/// Moves the elements of the owner in one transaction. Elements of other attachments stay, also those with the same address.
pub fn renumber(nft: &Nft, change: &Move) -> Result<Moved> {
    let mut moved = Moved::default();
    nft.transact(|nft, batch| {
        moved = Moved::default();
        let family = IpFamily::of(change.to.addr());
        for set in nft.sets(shared_rules::table(family))? {
            moved.move_set(nft, batch, SharedSet::new(family, &set.name), change)?;
        }
        moved.move_set(nft, batch, shared_set::accepted(family.into()), change)
    })?;
    Ok(moved)
}

impl Moved {
    /// Moves the elements of the owner in one set from the old address to the new one.
    fn move_set(
        &mut self,
        nft: &Nft,
        batch: &mut Batch,
        set: SharedSet<'_>,
        change: &Move,
    ) -> Result<()> {
        // `SharedSet` moves the elements of a set of further owners, and `put_source` those of a set of sources.
        if SharedSet::is_of_owners(set.name) || Sources::of(set.name).is_some() {
            return Ok(());
        }
        let owner = change.owner.as_str();
        let (own, others): (Vec<Element>, Vec<Element>) = set
            .all_elements(nft)?
            .into_iter()
            .partition(|element| element.comment.as_deref() == Some(owner));
        for old in own {
            let Some((name, new)) = moved(set.name, &old, change) else { continue };
            if name != set.name || new != old {
                self.elements += 1;
                self.is_shared |= others.iter().any(|other| other.key == old.key);
                put(nft, batch, change, (set, &old), (&name, new))?;
            }
        }
        Ok(())
    }
}

/// Replaces the element `old` of a set by the element `new` of the set with the name `name`, which can be the same set.
fn put(
    nft: &Nft,
    batch: &mut Batch,
    change: &Move,
    (set, old): (SharedSet<'_>, &Element),
    (name, new): (&str, Element),
) -> Result<()> {
    let (family, owner) = (IpFamily::of(change.to.addr()), change.owner.as_str());
    let keys = [old.key.clone(), new.key.clone()];
    if is_port(old, change) {
        batch.delete_elements(set.table, set.name, std::slice::from_ref(old));
        batch.add_elements(set.table, set.name, &[new]);
    } else if hairpin::length(name).is_some() {
        put_source(nft, batch, change, (set, old), (name, new))?;
    } else if set.name == masquerade::MAP {
        masquerade::shared(family, &[change.to]).ensure(nft, batch)?;
        let wanted = [new];
        if let Some(changed) = set.put(nft, batch, owner, &keys, &wanted)? {
            masquerade::delete_chains(nft, batch, family, &changed, &wanted)?;
        }
    } else {
        set.change(nft, batch, &|element| element == old, &[new])?;
    }
    Ok(())
}

/// Replaces a pair of source and container, and moves its source in each set of sources, so the marks stay the same.
fn put_source(
    nft: &Nft,
    batch: &mut Batch,
    change: &Move,
    (set, old): (SharedSet<'_>, &Element),
    (name, new): (&str, Element),
) -> Result<()> {
    let (family, table) = (IpFamily::of(change.to.addr()), set.table);
    let (Some(before), Some(after)) = (hairpin::length(set.name), hairpin::length(name)) else {
        return Ok(());
    };
    let sets = nft.sets(table)?;
    let all = Sources::of_table(sets.iter().map(|set| set.name.as_str()));
    for sources in all.iter().filter(|sources| sources.prefix_length == before) {
        let source = hairpin::source_of(old);
        let key = std::slice::from_ref(&source.key);
        let Some(found) = nft.elements_at(table, &sources.set(), key)?.pop().flatten() else {
            continue;
        };
        let moved = hairpin::source_of(&new);
        if moved.key != source.key && found == source {
            hairpin::pass_on(nft, batch, (table, *sources), &[source], &|element| element == old)?;
        }
        let sources = Sources { prefix_length: after, ..*sources };
        hairpin::ensure(nft, batch, family, sources)?;
        batch.ensure_elements(table, &sources.set(), &[moved]);
    }
    set.remove(nft, batch, &|element| element == old)?;
    let (keys, owner) = ([new.key.clone()], change.owner.as_str());
    SharedSet { name, ..set }.put(nft, batch, owner, &keys, &[new]).map(drop)
}

/// The set and the element after the move; `None` if the element does not contain the old address.
fn moved(set: &str, old: &Element, change: &Move) -> Option<(String, Element)> {
    let Move { from, to, .. } = change;
    let [from_key, to_key] = [from, to].map(|net| octets(net.addr()));
    let same_set = |element| Some((set.to_owned(), element));
    if let Some(length) = hairpin::length(set) {
        let (source, address) = old.key.split_at_checked(from_key.len())?;
        if address != from_key {
            return None;
        }
        let is_subnet = length == from.prefix_len() && source == octets(from.network());
        return if is_subnet {
            let key = hairpin::key(to, to.addr());
            Some((hairpin::set(to.prefix_len()), Element { key, ..old.clone() }))
        } else {
            same_set(Element { key: [source, &to_key].concat(), ..old.clone() })
        };
    }
    if set == targets::SET {
        let port = old.key.strip_prefix(from_key.as_slice())?;
        return same_set(Element { key: [&to_key, port].concat(), ..old.clone() });
    }
    if old.key == from_key {
        return same_set(match set {
            masquerade::MAP => Element { comment: old.comment.clone(), ..masquerade::element(*to) },
            _ => Element { key: to_key, ..old.clone() },
        });
    }
    match &old.data {
        Some(Datum::Value(target)) if is_port(old, change) => {
            let data = [&to_key, &target[from_key.len()..]].concat();
            same_set(Element { data: Some(Datum::Value(data)), ..old.clone() })
        }
        _ => None,
    }
}

/// Whether the element publishes a port of the old address: its data is the old address and a port, which is four bytes in
/// registers.
fn is_port(element: &Element, change: &Move) -> bool {
    let address = octets(change.from.addr());
    let Some(Datum::Value(target)) = &element.data else { return false };
    target.len() == address.len() + 4 && target.starts_with(&address)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::names::{Attachment, ContainerId, IfName, NetworkName};
    use crate::netlink::nft::{Comment, Transport, Value, pack};

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
    fn an_element_has_an_address_in_its_key_or_target() {
        let change = moves("10.1.0.5/16", "10.2.0.6/24");
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
            assert_eq!(moved(set, &old, &change), expected, "{set} {old:?}");
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
            let change = moves(from, to);
            let pair = |net: &str, ip: IpAddr| pack(&[address(net), Value::Address(ip)]);
            let old = element(pair(source, change.from.addr()), None);
            let (length, net) = expected;
            let new = element(pair(net, change.to.addr()), None);
            assert_eq!(moved(&hairpin::set(set), &old, &change), Some((hairpin::set(length), new)));
        }
    }

    #[test]
    fn the_masquerade_of_an_address_leads_to_its_subnet() {
        let change = moves("fd00:1::5/64", "fd00:2::6/64");
        let comment = Some(Comment::new("net c1 eth0").unwrap());
        let old = Element { comment: comment.clone(), ..masquerade::element(change.from) };
        let new = Element { comment, ..masquerade::element(change.to) };
        assert_eq!(moved(masquerade::MAP, &old, &change), Some((masquerade::MAP.into(), new)));
    }
}

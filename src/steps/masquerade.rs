//! IP masquerade: what containers send to anywhere but their own subnet leaves the host with the host's address.
//!
//! ```text
//! table ip cnibox {
//!     map masq {
//!         type ipv4_addr : verdict
//!         elements = { 10.1.0.5 comment "dbnet 3f2a eth0" : goto masq-10.1.0.0/16 }
//!     }
//!     chain masq-10.1.0.0/16 {
//!         ip daddr 10.1.0.0/16 return
//!         ip daddr 224.0.0.0/4 return
//!         masquerade
//!     }
//!     chain masq {
//!         type nat hook postrouting priority srcnat; policy accept;
//!         ip saddr vmap @masq
//!     }
//! }
//! ```
//!
//! and the same in `ip6`. However many containers there are, a packet is looked up once.
//!
//! Who removes it: the element goes with its owner (a failing ADD, DEL, GC), a subnet's chain with its last element. The
//! map and the base chain stay.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::error::{Code, Error, Result};
use crate::kernel::nft::{
    Base, Batch, ChainKind, Condition, Datum, Element, Expr, Family, Feature, Field, Hook,
    NewChain, NewRule, NewSet, Nft, Object, Policy, SetKind, Table, Type, Value, Verdict, pack,
    verdict_map,
};
use crate::steps::netfilter::{self, Stale};
use crate::steps::owner::Owner;

const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];
/// The base chain, the map, and what the chains of subnets begin with. (`masquerade` is a word of nft's language.)
const NAME: &str = "masq";
/// The rules of a subnet's chain.
const SUBNET_RULES: u32 = 3;
/// `srcnat`
const PRIORITY: i32 = 100;

/// Masquerades for the addresses, whose prefixes are their own subnets.
pub fn add(owner: &Owner, nets: &[IpNet]) -> Result<()> {
    Nft::open()?.transact(|nft, batch| {
        FAMILIES.iter().try_for_each(|family| {
            let nets: Vec<IpNet> = of_family(nets, *family).collect();
            if nets.is_empty() { Ok(()) } else { add_to(nft, batch, *family, owner, &nets) }
        })
    })
}

/// Removes what is stale, with its addresses being unknown.
pub fn remove(stale: &Stale) -> Result<()> {
    let Some(nft) = Nft::open_if_supported()? else { return Ok(()) };
    nft.transact(|nft, batch| {
        FAMILIES.iter().try_for_each(|family| remove_from(nft, batch, *family, stale))
    })
}

/// Fails when what `add` made is not there.
pub fn check(owner: &Owner, nets: &[IpNet]) -> Result<()> {
    let nft = Nft::open()?;
    let comment = netfilter::comment(owner)?;
    for family in FAMILIES {
        let table = netfilter::table(family);
        for net in of_family(nets, family) {
            let missing = || Error::internal(format!("masquerading of {} is missing", net.addr()));
            let expected = Element { comment: Some(comment.clone()), ..element(net) };
            let found = nft.elements_at(table, NAME, std::slice::from_ref(&expected.key))?;
            let subnet = nft.rules_of(table, &subnet_chain(net))?;
            let base = nft.rules_of(table, NAME)?;
            let is_whole = subnet.len() == SUBNET_RULES as usize && !base.is_empty();
            if found != [Some(expected)] || !is_whole {
                return Err(missing());
            }
        }
    }
    Ok(())
}

/// Fails with code 50 when the kernel cannot do it.
pub fn status() -> Result<()> {
    let needed = FAMILIES
        .iter()
        .flat_map(|family| [Feature::Nat, Feature::Masquerade].map(|feature| (*family, feature)));
    let missing = Nft::open()?.missing(&needed.collect::<Vec<_>>())?;
    if missing.is_empty() {
        return Ok(());
    }
    let msg = format!("cannot masquerade: the kernel lacks {}", missing.join(", "));
    Err(Error::new(Code::NOT_AVAILABLE, msg))
}

fn add_to(
    nft: &Nft,
    batch: &mut Batch,
    family: Family,
    owner: &Owner,
    nets: &[IpNet],
) -> Result<()> {
    let table = netfilter::table(family);
    let mut subnets: Vec<IpNet> = nets.iter().map(IpNet::trunc).collect();
    subnets.sort_unstable();
    subnets.dedup();
    let chains: Vec<String> = subnets.iter().map(|subnet| subnet_chain(*subnet)).collect();
    let mut objects =
        vec![Object::Table(table), Object::Set(table, NAME), Object::Chain(table, NAME)];
    objects.extend(chains.iter().map(|chain| Object::Chain(table, chain)));
    let found = nft.exist(&objects)?;
    let (skeleton, has_chain) = found.split_at(found.len() - chains.len());
    add_skeleton(batch, table, skeleton);
    for (subnet, _) in subnets.iter().zip(has_chain).filter(|(_, is_there)| !**is_there) {
        add_subnet_chain(batch, table, *subnet);
    }
    let comment = netfilter::comment(owner)?;
    for net in nets {
        let wanted = Element { comment: Some(comment.clone()), ..element(*net) };
        netfilter::put(nft, batch, table, NAME, wanted)?;
    }
    Ok(())
}

/// Adds what is missing of table, map and base chain:
/// `type nat hook postrouting priority srcnat; policy accept;` and
/// `ip saddr vmap @masq`
fn add_skeleton(batch: &mut Batch, table: Table<'_>, is_there: &[bool]) {
    let [has_table, has_map, has_base] = [0, 1, 2].map(|index| is_there[index]);
    if !has_table {
        batch.add_table(table, None);
    }
    if !has_map {
        let key = &[if table.family == Family::Ip { Type::Ipv4Addr } else { Type::Ipv6Addr }];
        batch.add_set(table, NewSet { name: NAME, key, kind: SetKind::VerdictMap, comment: None });
    }
    if has_base {
        return;
    }
    let base = Base {
        kind: ChainKind::Nat,
        hook: Hook::Postrouting,
        priority: PRIORITY,
        policy: Policy::Accept,
    };
    batch.add_chain(table, NewChain { name: NAME, base: Some(base), comment: None });
    let saddr = if table.family == Family::Ip { Field::IpSaddr } else { Field::Ip6Saddr };
    batch.add_rule(table, NewRule::last(NAME).with(verdict_map(&[saddr], NAME)));
}

/// `ip daddr 10.1.0.0/16 return`,
/// `ip daddr 224.0.0.0/4 return` and
/// `masquerade`
fn add_subnet_chain(batch: &mut Batch, table: Table<'_>, subnet: IpNet) {
    let name = subnet_chain(subnet);
    batch.add_chain(table, NewChain { name: &name, base: None, comment: None });
    for inside in [subnet, multicast(table.family)] {
        let rule = NewRule::last(&name).with(Condition::daddr(inside)).then(Verdict::Return);
        batch.add_rule(table, rule);
    }
    batch.add_rule(table, NewRule::last(&name).then(Expr::Masquerade));
}

fn remove_from(nft: &Nft, batch: &mut Batch, family: Family, stale: &Stale) -> Result<()> {
    let table = netfilter::table(family);
    let elements = nft.elements(table, NAME)?;
    let removed: Vec<&Element> =
        elements.iter().filter(|element| stale.has(element.comment.as_ref())).collect();
    if removed.is_empty() {
        return Ok(());
    }
    let keys: Vec<Vec<u8>> = removed.iter().map(|element| element.key.clone()).collect();
    batch.delete_elements(table, NAME, &keys);
    for chain in nft.chains(table)? {
        let leads_there = |element: &&&Element| match &element.data {
            Some(Datum::Verdict(Verdict::Goto(to))) => *to == chain.name,
            _ => false,
        };
        let users = u32::try_from(removed.iter().filter(leads_there).count()).unwrap_or(u32::MAX);
        if users > 0 && chain.uses == SUBNET_RULES + users {
            batch.delete_chain(table, &chain.name);
        }
    }
    Ok(())
}

/// The element for an address, without its comment.
fn element(net: IpNet) -> Element {
    Element {
        key: pack(&[Value::Address(net.addr())]),
        data: Some(Datum::Verdict(Verdict::Goto(subnet_chain(net)))),
        comment: None,
    }
}

/// The chain of an address's subnet. Names have no colons in nft.
fn subnet_chain(net: IpNet) -> String {
    format!("{NAME}-{}", net.trunc()).replace(':', "_")
}

fn of_family(nets: &[IpNet], family: Family) -> impl Iterator<Item = IpNet> {
    nets.iter().copied().filter(move |net| net.addr().is_ipv4() == (family == Family::Ip))
}

/// `224.0.0.0/4`, `ff00::/8`
fn multicast(family: Family) -> IpNet {
    let (address, length): (IpAddr, u8) = match family {
        Family::Ip => (Ipv4Addr::new(224, 0, 0, 0).into(), 4),
        _ => (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
    };
    IpNet::new_assert(address, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_chains_are_such_that_nft_can_read_them_again() {
        for (net, name) in
            [("10.1.0.5/16", "masq-10.1.0.0/16"), ("fd00:1::5/64", "masq-fd00_1__/64")]
        {
            assert_eq!(subnet_chain(net.parse().unwrap()), name);
        }
    }
}

//! IP masquerade: packets from containers to destinations outside their subnet get the address of the host as source.
//!
//! ```text
//! table ip cnibox {
//!     map masquerade-sources {
//!         type ipv4_addr : verdict
//!         elements = { 10.1.0.5 comment "dbnet 3f2a eth0" : goto masquerade-10.1.0.0/16 }
//!     }
//!     chain masquerade-10.1.0.0/16 {
//!         ip daddr 10.1.0.0/16 return
//!         ip daddr 224.0.0.0/4 return
//!         masquerade
//!     }
//!     chain masquerade-srcnat {
//!         type nat hook postrouting priority 120; policy accept;
//!         ip saddr vmap @masquerade-sources
//!     }
//! }
//! ```
//!
//! The table `ip6 cnibox` has the same objects. The chains of the administrator, of iptables (100) and of firewalld (110) run
//! before. A packet needs one lookup, independent of the number of containers.
//!
//! A failing ADD, DEL and GC remove the elements of the owner, and the chain of a subnet with its last element. If another
//! attachment also needs an element, that attachment becomes the owner. The map and the base chain stay.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::attachments::owner::{Owner, Owners};
use crate::error::{Error, Result};
use crate::names::{Attachment, IpFamily, NetworkName};
use crate::netlink::nft::{
    Base, Batch, Condition, Datum, Element, Expr, Family, Feature, Field, Hook, NewSet, Nft, Table,
    Type, Verdict, verdict_map,
};
use crate::netlink::octets;
use crate::rules::compat::rules;
use crate::rules::shared_rules::{self, Chain, SharedRules, rule};
use crate::rules::shared_set::{Changed, SharedSet};

/// The map from each source to the chain of its subnet.
const MAP: &str = "masquerade-sources";
const CHAIN: &str = "masquerade-srcnat";
/// The name of the chain `masquerade-srcnat` up to release 0.2.0.
const FORMER_CHAIN: &str = "masquerade-postrouting";
/// The prefix of the name of a subnet's chain.
const SUBNET_CHAIN: &str = "masquerade-";
/// The number of rules in the chain of a subnet.
const SUBNET_RULES: u32 = 3;
/// The priority of the chain `masquerade-srcnat`: after `srcnat` (100) and the chains of firewalld (110).
const PRIORITY: i32 = 120;
const FORMER_PRIORITY: i32 = 100;

/// Masquerades the addresses in `nets`, each with the prefix length of its subnet; of one address in several subnets, the first
/// counts. Removes the elements of the owner for the `former` addresses. Adds shared rules that are missing.
pub fn add(
    nft: &Nft,
    batch: &mut Batch,
    owner: &Owner,
    (nets, former): (&[IpNet], &[IpAddr]),
) -> Result<()> {
    let comment = shared_rules::comment(owner)?;
    for family in IpFamily::ALL {
        let nets = of_family(nets, family);
        if nets.is_empty() {
            continue;
        }
        shared(family, &nets).ensure(nft, batch)?;
        let wanted = |net: &IpNet| Element { comment: Some(comment.clone()), ..element(*net) };
        let wanted: Vec<Element> = nets.iter().map(wanted).collect();
        let former = former.iter().copied().filter(|address| family.has(*address));
        let all: Vec<IpAddr> = nets.iter().map(IpNet::addr).chain(former).collect();
        put(nft, batch, (family, owner), &all, &wanted).map_err(|error| {
            let of: Vec<String> = nets.iter().map(|net| net.addr().to_string()).collect();
            error.context(format!("cannot masquerade {}", of.join(", ")))
        })?;
    }
    Ok(())
}

/// Sets the elements of the owner for `addresses`, and removes its other elements for these addresses. Then deletes the chains of
/// subnets that have no element.
fn put(
    nft: &Nft,
    batch: &mut Batch,
    (family, owner): (IpFamily, &Owner),
    addresses: &[IpAddr],
    wanted: &[Element],
) -> Result<()> {
    let keys: Vec<Vec<u8>> = addresses.iter().copied().map(octets).collect();
    match SharedSet::new(family, MAP).put(nft, batch, owner.as_str(), &keys, wanted)? {
        Some(changed) => delete_chains(nft, batch, family, &changed, wanted),
        None => Ok(()),
    }
}

/// The element of each address in the map `masquerade-sources`: its table, map and key.
pub fn address_elements(
    nets: &[IpNet],
) -> impl Iterator<Item = (Table<'static>, &'static str, Vec<u8>)> {
    let table = |address| shared_rules::table(IpFamily::of(address));
    nets.iter().map(move |net| (table(net.addr()), MAP, octets(net.addr())))
}

/// Removes the elements of these addresses that belong to the owner or to owners that have ended.
pub fn clear(nft: &Nft, batch: &mut Batch, owner: &Owner, nets: &[IpNet]) -> Result<()> {
    IpFamily::ALL.into_iter().try_for_each(|family| {
        let addresses: Vec<IpAddr> = of_family(nets, family).iter().map(IpNet::addr).collect();
        put(nft, batch, (family, owner), &addresses, &[])
    })
}

/// Removes the elements of the owners, and the chains of subnets that have no other element.
pub fn remove(nft: &Nft, batch: &mut Batch, owners: &Owners) -> Result<()> {
    for family in IpFamily::ALL {
        let changed = SharedSet::new(family, MAP).remove_owners(nft, batch, owners)?;
        if owners.one().is_none() || !changed.gone.is_empty() {
            delete_chains(nft, batch, family, &changed, &[])?;
        }
    }
    Ok(())
}

/// Fails if an element or rule of `add` is missing, and the reference did not masquerade the attachment.
pub fn check(nft: &Nft, network: &NetworkName, at: &Attachment, nets: &[IpNet]) -> Result<()> {
    let comment = shared_rules::comment(&Owner::new(network, at))?;
    for family in IpFamily::ALL {
        let nets = of_family(nets, family);
        for net in &nets {
            let missing = format!("masquerading of {} is missing", net.addr());
            let expected = Element { comment: Some(comment.clone()), ..element(*net) };
            if !SharedSet::new(family, MAP).has(nft, &expected)? {
                let found = nft.elements_at(shared_rules::table(family), MAP, &[expected.key])?;
                if found == [None] && rules::has_masquerade(nft, family.into(), network, at)? {
                    continue;
                }
                let (table, missing) = (shared_rules::table(family), Error::difference(missing));
                return Err(shared_rules::missing_in_set(nft, table, MAP, missing)?);
            }
            shared(family, &nets).check(nft).map_err(|error| error.context(missing))?;
        }
    }
    Ok(())
}

/// For STATUS: fails with code 50 if the kernel lacks NAT or masquerading in nf_tables.
pub fn status(nft: &Nft) -> Result<()> {
    let needed = Family::IP
        .iter()
        .flat_map(|family| [Feature::Nat, Feature::Masquerade].map(|feature| (*family, feature)));
    shared_rules::require(nft, &needed.collect::<Vec<_>>(), "masquerade")
}

/// Table, map and chains for the addresses of a family:
/// `type nat hook postrouting priority 120; policy accept;` with
/// `ip saddr vmap @masquerade-sources`, and for each subnet
/// `ip daddr 10.1.0.0/16 return`,
/// `ip daddr 224.0.0.0/4 return` and
/// `masquerade`
fn shared(family: IpFamily, nets: &[IpNet]) -> SharedRules {
    let mut subnets: Vec<IpNet> = nets.iter().map(IpNet::trunc).collect();
    subnets.sort_unstable();
    subnets.dedup();
    let of_subnet = |subnet: &IpNet| {
        let return_to = |net: IpNet| rule(Condition::daddr(net), Verdict::Return);
        let rules = [return_to(*subnet), return_to(multicast(family)), vec![Expr::Masquerade]];
        Chain::regular(&subnet_chain(*subnet), rules.into())
    };
    let base = |priority| Base::nat(Hook::Postrouting, priority);
    let [saddr, _] = Field::addresses(family);
    let by_source = vec![verdict_map(&[saddr], MAP)];
    let former = Chain::base(FORMER_CHAIN, base(FORMER_PRIORITY), by_source.clone());
    let mut chains = vec![Chain::base(CHAIN, base(PRIORITY), by_source).replacing(former)];
    chains.extend(subnets.iter().map(of_subnet));
    let map = NewSet::verdict_map(MAP, [Type::address(family.into())]);
    SharedRules { table: shared_rules::table(family), sets: vec![map], chains }
}

/// Deletes the chains of subnets that have no element after a change of the map. `wanted` are the added elements.
fn delete_chains(
    nft: &Nft,
    batch: &mut Batch,
    family: IpFamily,
    changed: &Changed,
    wanted: &[Element],
) -> Result<()> {
    let table = shared_rules::table(family);
    for chain in nft.chains(table)? {
        let leads_there = |element: &&Element| match &element.data {
            Some(Datum::Verdict(Verdict::Goto(to))) => *to == chain.name,
            _ => false,
        };
        let is_of_subnet = chain.base.is_none() && chain.name.starts_with(SUBNET_CHAIN);
        let is_needed = changed.kept.iter().chain(wanted).any(|element| leads_there(&element));
        let users =
            u32::try_from(changed.gone.iter().filter(leads_there).count()).unwrap_or(u32::MAX);
        // Keep the chain if another program has a rule in it or a jump to it.
        if is_of_subnet && !is_needed && chain.uses <= SUBNET_RULES.saturating_add(users) {
            batch.delete_chain(table, &chain.name);
        }
    }
    Ok(())
}

/// The element for an address, without its comment.
fn element(net: IpNet) -> Element {
    Element {
        key: octets(net.addr()),
        data: Some(Datum::Verdict(Verdict::Goto(subnet_chain(net)))),
        comment: None,
    }
}

/// The chain of the subnet of an address. nft does not allow colons in names.
fn subnet_chain(net: IpNet) -> String {
    format!("{SUBNET_CHAIN}{}", net.trunc()).replace(':', "_")
}

/// The members of `nets` of one family. If several have the same address, only the first of them.
fn of_family(nets: &[IpNet], family: IpFamily) -> Vec<IpNet> {
    let mut found: Vec<IpNet> = Vec::with_capacity(nets.len());
    for net in nets.iter().filter(|net| family.has(net.addr())) {
        if !found.iter().any(|other| other.addr() == net.addr()) {
            found.push(*net);
        }
    }
    found
}

/// The multicast addresses of a family: `224.0.0.0/4` or `ff00::/8`.
fn multicast(family: IpFamily) -> IpNet {
    let (address, length): (IpAddr, u8) = match family {
        IpFamily::V4 => (Ipv4Addr::new(224, 0, 0, 0).into(), 4),
        IpFamily::V6 => (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
    };
    IpNet::new_assert(address, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nft_can_read_the_names_of_chains() {
        for (net, name) in
            [("10.1.0.5/16", "masquerade-10.1.0.0/16"), ("fd00:1::5/64", "masquerade-fd00_1__/64")]
        {
            assert_eq!(subnet_chain(net.parse().unwrap()), name);
        }
    }
}

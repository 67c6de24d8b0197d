//! Taking back what attachments published, found by the names of their owners alone.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::attachment::{count_key, is_of, location, masqueraded_key, owner_key, shared_element};
use super::config::Settings;
use super::ruleset::{self, Group, Side, masqueraded_length};
use crate::error::Result;
use crate::kernel::conntrack::Flows;
use crate::kernel::nft::{Batch, Datum, Element, Nft, Transport};
use crate::names::IpFamily;
use crate::plugin::owner::{Owner, Owners};
use crate::steps::nft::shared_rules;

/// What goes, in one family.
pub struct Withdrawal<'a> {
    pub nft: &'a Nft,
    pub side: Side,
    pub owners: &'a Owners,
    /// What the configuration says, if it can be read: where to look for the ports of a single owner.
    pub settings: Option<&'a Settings>,
    /// The group that is needed even if nothing is left in it.
    pub in_use: Option<&'a Group>,
}

/// What came of it.
#[derive(Default)]
pub struct Withdrawn {
    /// The connections that were translated and must not be any longer.
    pub flows: Vec<Flows>,
    /// The keys of the ports that others still have under addresses of their own.
    pub shared: Vec<Vec<u8>>,
}

/// Everything that a single owner has, in one group.
struct Own {
    group: Group,
    /// With the names of their maps.
    published: Vec<(String, Element)>,
}

impl Withdrawal<'_> {
    /// Puts the removal into the batch.
    ///
    /// What a single owner has is looked up by the ports of its configuration. Where that does not find all, and for a GC,
    /// everything is read: the configuration decides nothing about what goes.
    pub fn withdraw(&self, batch: &mut Batch) -> Result<Withdrawn> {
        if let Some((at, owner)) = self.owners.one() {
            let own = self.look_up(owner, &at.ifname)?;
            // Most containers have no ports.
            if own.is_empty() && !self.is_registered(owner)? {
                return Ok(Withdrawn::default());
            }
            if let [own] = own.as_slice()
                && self.is_all(own, owner)?
            {
                return self.withdraw_own(own, owner, batch);
            }
        }
        self.withdraw_all(batch)
    }

    /// Whether the owner has anything: one lookup, however much there is of others.
    pub fn is_registered(&self, owner: &Owner) -> Result<bool> {
        self.has(owner, owner_key(owner))
    }

    fn has(&self, owner: &Owner, key: Vec<u8>) -> Result<bool> {
        let found = self.nft.elements_at(self.side.table(), ruleset::OWNERS, &[key])?;
        Ok(found.iter().flatten().any(|element| is_of(element, owner)))
    }

    /// What the owner has of the ports of the configuration, for each group that has any.
    fn look_up(&self, owner: &Owner, interface: &str) -> Result<Vec<Own>> {
        let (table, family) = (self.side.table(), self.side.family());
        let Some(settings) = self.settings else { return Ok(Vec::new()) };
        let group = Group::of(settings.conditions(family));
        let mut groups = vec![group.besides(interface), group];
        // The conditions may be new.
        groups.extend(Some(Group::main()).filter(|main| !groups.contains(main)));
        let mut all = Vec::new();
        for group in groups {
            let mut own = Own { group, published: Vec::new() };
            let mappings = settings.mappings.iter().filter(|it| it.host_ip.is_in(family));
            let places: Vec<(String, Vec<u8>)> =
                mappings.map(|mapping| location(&own.group, mapping)).collect();
            for set in [own.group.published(), own.group.published_on()] {
                let of_set = places.iter().filter(|(name, _)| *name == set);
                let keys: Vec<Vec<u8>> = of_set.map(|(_, key)| key.clone()).collect();
                let found = self.nft.elements_at(table, &set, &keys)?.into_iter().flatten();
                let found = found.filter(|element| is_of(element, owner));
                own.published.extend(found.map(|element| (set.clone(), element)));
            }
            if !own.published.is_empty() {
                all.push(own);
            }
        }
        Ok(all)
    }

    /// Whether the owner has nothing else, and nobody waits to stand for one of its ports.
    fn is_all(&self, own: &Own, owner: &Owner) -> Result<bool> {
        let ports = own.ports_on().map(|key| shared_element(&key, None).key);
        let ports: Vec<Vec<u8>> = ports.filter(|_| own.group.is_main()).collect();
        let shared = self.nft.elements_at(self.side.table(), ruleset::OWNERS, &ports)?;
        let count = count_key(owner, own.published.len());
        Ok(shared.iter().all(Option::is_none) && self.has(owner, count)?)
    }

    fn withdraw_own(&self, own: &Own, owner: &Owner, batch: &mut Batch) -> Result<Withdrawn> {
        let table = self.side.table();
        let mut keys = vec![
            (ruleset::OWNERS.to_owned(), owner_key(owner)),
            (ruleset::OWNERS.to_owned(), count_key(owner, own.published.len())),
        ];
        let sets = self.nft.sets(table)?;
        let targets: BTreeSet<IpAddr> =
            own.published.iter().filter_map(|(_, element)| self.target(element)).collect();
        for target in targets {
            keys.extend(sets.iter().flat_map(|set| masqueraded_at(&set.name, target)));
        }
        let mut withdrawn = Withdrawn::default();
        if own.group.is_main() {
            let ports = own.ports_on().map(|key| (own.group.published_on_ports(), key));
            keys.extend(ports);
            keys.extend(
                own.published.iter().map(|(set, element)| (set.clone(), element.key.clone())),
            );
            let elements = own.published.iter().map(|(_, element)| element);
            withdrawn.flows.extend(elements.filter_map(|element| self.translated(element)));
        } else {
            // Whether anything is left in it has to be known.
            withdrawn = self.withdraw_from_group(&own.group, batch)?;
        }
        keys.sort_unstable();
        keys.dedup();
        for of_set in keys.chunk_by(|one, other| one.0 == other.0) {
            self.delete_own(&of_set[0].0, of_set.iter().map(|(_, key)| key.clone()), owner, batch)?;
        }
        Ok(withdrawn)
    }

    /// Deletes the elements with these keys, as far as they are the owner's.
    fn delete_own(
        &self,
        set: &str,
        keys: impl Iterator<Item = Vec<u8>>,
        owner: &Owner,
        batch: &mut Batch,
    ) -> Result<()> {
        let table = self.side.table();
        let found = self.nft.elements_at(table, set, &keys.collect::<Vec<_>>())?.into_iter();
        let own = found.flatten().filter(|element| is_of(element, owner));
        batch.delete_elements(table, set, &own.map(|element| element.key).collect::<Vec<_>>());
        Ok(())
    }

    /// Reads everything.
    fn withdraw_all(&self, batch: &mut Batch) -> Result<Withdrawn> {
        let mut withdrawn = Withdrawn::default();
        // Before the groups, which put back what others need.
        self.take_from(ruleset::OWNERS, batch)?;
        for set in self.nft.sets(self.side.table())? {
            match Group::of_map(&set.name) {
                Some(group) => {
                    let Withdrawn { flows, shared } = self.withdraw_from_group(&group, batch)?;
                    withdrawn.flows.extend(flows);
                    withdrawn.shared.extend(shared);
                }
                // The other sets of groups are seen to with their maps.
                None if masqueraded_length(&set.name).is_some() => {
                    self.take_from(&set.name, batch)?;
                }
                None => {}
            }
        }
        Ok(withdrawn)
    }

    fn withdraw_from_group(&self, group: &Group, batch: &mut Batch) -> Result<Withdrawn> {
        let table = self.side.table();
        let (mut gone, mut kept) = self.take_from(&group.published(), batch)?;
        let (gone_on, kept_on) = self.take_from(&group.published_on(), batch)?;
        if gone.is_empty() && gone_on.is_empty() {
            return Ok(Withdrawn::default());
        }
        let ports_on = group.published_on_ports();
        let (gone_ports, _) = self.take_from(&ports_on, batch)?;
        let mut shared = Vec::new();
        for key in gone_on.iter().filter_map(port_of).collect::<BTreeSet<_>>() {
            let mut holders = kept_on.iter().filter(|element| element.key.ends_with(&key));
            let Some(heir) = holders.next() else { continue };
            if let Some(port) = gone_ports.iter().find(|port| port.key == key) {
                // Somebody else who has the port under another address stands for it from now on.
                let heir = Element { comment: heir.comment.clone(), ..port.clone() };
                batch.add_elements(table, &ports_on, &[heir]);
            }
            if group.is_main() && holders.next().is_some() {
                let heir = shared_element(&key, heir.comment.clone());
                batch.ensure_elements(table, ruleset::OWNERS, &[heir]);
            }
            shared.extend(Some(key).filter(|_| group.is_main()));
        }
        gone.extend(gone_on);
        kept.extend(kept_on);
        if kept.is_empty() && !group.is_main() && self.in_use != Some(group) {
            self.remove_group(group, batch)?;
        }
        let flows = gone.iter().filter_map(|element| self.translated(element)).collect();
        Ok(Withdrawn { flows, shared })
    }

    /// Deletes what goes; returns it, and what stays.
    fn take_from(&self, set: &str, batch: &mut Batch) -> Result<(Vec<Element>, Vec<Element>)> {
        let table = self.side.table();
        let elements = self.nft.elements(table, set)?;
        let (gone, kept): (Vec<Element>, _) =
            elements.into_iter().partition(|element| shared_rules::is_of(element, self.owners));
        let keys: Vec<Vec<u8>> = gone.iter().map(|element| element.key.clone()).collect();
        batch.delete_elements(table, set, &keys);
        Ok((gone, kept))
    }

    /// One that nobody has anything in any more.
    fn remove_group(&self, group: &Group, batch: &mut Batch) -> Result<()> {
        let table = self.side.table();
        let (entrance, chain) = (Group::main().chain(), group.chain());
        for rule in self.nft.rules_of(table, &entrance)? {
            if rule.leads_to() == Some(chain.as_str()) {
                batch.delete_rule(table, &entrance, rule.handle);
            }
        }
        batch.delete_chain(table, &chain);
        for set in group.sets() {
            batch.delete_set(table, &set);
        }
        Ok(())
    }

    /// The connections of a published UDP port. Those of TCP end by themselves.
    fn translated(&self, element: &Element) -> Option<Flows> {
        let [protocol, _, _, _, high, low, _, _] = *port_of(element)?.as_array()?;
        if protocol != Transport::Udp.number() {
            return None;
        }
        let target = self.target(element)?;
        let port = u16::from_be_bytes([high, low]);
        Some(Flows::to_port(IpFamily::of(target), Transport::Udp, port).answered_by(target))
    }

    /// The container's address.
    fn target(&self, element: &Element) -> Option<IpAddr> {
        let Some(Datum::Value(target)) = &element.data else { return None };
        if self.side.has(ruleset::loopback().addr()) {
            Some((*target.first_chunk::<4>()?).into())
        } else {
            Some((*target.first_chunk::<16>()?).into())
        }
    }
}

impl Own {
    /// The keys of the ports that are published under single addresses.
    fn ports_on(&self) -> impl Iterator<Item = Vec<u8>> {
        let set = self.group.published_on();
        let on = self.published.iter().filter(move |(name, _)| *name == set);
        on.filter_map(|(_, element)| port_of(element))
    }
}

/// `protocol . port`, each filled up to four bytes, is what every key ends with.
fn port_of(element: &Element) -> Option<Vec<u8>> {
    element.key.last_chunk::<8>().map(|port| port.to_vec())
}

/// What an address may have in a set of masqueraded nets, with the name of the set.
fn masqueraded_at(set: &str, address: IpAddr) -> Vec<(String, Vec<u8>)> {
    let Some(length) = masqueraded_length(set) else { return Vec::new() };
    let nets = [IpNet::new(address, length).ok(), Some(ruleset::loopback())];
    let nets = nets.into_iter().flatten().filter(|net| net.prefix_len() == length);
    let nets = nets.filter(|net| net.addr().is_ipv4() == address.is_ipv4());
    nets.map(|net| (set.to_owned(), masqueraded_key(&net, address))).collect()
}

//! The deletion of port bindings: what DEL, GC and a repeated ADD do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::bindings::{index_has, is_of, is_registered, is_shared};
use super::config::{Mapping, Settings};
use super::rules::{
    self, Group, OWNERS, count_key, is_index_entry, masqueraded_keys, owner_key, port_of,
    shared_element,
};
use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::conntrack::FlowFilter;
use crate::netlink::nft::{Batch, Datum, Element, Nft, Object, Transport};
use crate::plugin::owner::{Owner, Owners};
use crate::steps::nft::hairpin::{self, Sources};
use crate::steps::nft::shared_rules;
use crate::steps::nft::shared_set::SharedSet;
use crate::steps::nft::targets;

/// The deletion of the port bindings of owners, in one family.
pub struct Removal<'a> {
    pub nft: &'a Nft,
    pub family: IpFamily,
    pub owners: &'a Owners,
    /// `None` if the configuration is invalid. Its ports are looked up first; an element is deleted only if it names the owner.
    pub settings: Option<&'a Settings>,
    /// Only for a repeated ADD: its group, which stays even if it is empty. The ADD itself replaces its elements of shared
    /// sets.
    pub kept_group: Option<&'a Group>,
}

/// The results of a removal.
#[derive(Default)]
pub struct Removed {
    /// Conntrack filters for the UDP connections to the removed ports.
    pub flows: Vec<FlowFilter>,
    /// The keys of removed ports that other owners still publish on other host addresses.
    pub shared: Vec<Vec<u8>>,
}

/// The published ports of one owner in one group.
struct OwnPorts {
    group: Group,
    /// The elements of ports of all host addresses.
    published: Vec<Element>,
    /// The elements of ports of single host addresses.
    published_on: Vec<Element>,
}

impl Removal<'_> {
    /// Adds the deletions to the batch.
    ///
    /// The ports of a single owner are looked up by its configuration. For GC, and if the index does not confirm that the owner
    /// has no other ports, all sets are read.
    pub fn remove(&self, batch: &mut Batch) -> Result<Removed> {
        if let Some((at, owner)) = self.owners.one() {
            let own = self.look_up(owner, &at.ifname)?;
            // The common case: the container has no ports.
            if own.is_empty() && !is_registered(self.nft, self.family, owner)? {
                return Ok(Removed::default());
            }
            if let [own] = own.as_slice()
                && self.has_all_ports(own, owner)?
            {
                return self.remove_own(own, owner, batch);
            }
        }
        self.remove_all(batch)
    }

    /// Looks up the ports of the configuration, in each group that can have them.
    fn look_up(&self, owner: &Owner, interface: &str) -> Result<Vec<OwnPorts>> {
        let Some(settings) = self.settings else { return Ok(Vec::new()) };
        let group = Group::of(settings.conditions(self.family));
        let mut groups = vec![group.secondary(interface), group];
        // At ADD the configuration may have had no conditions.
        groups.extend(Some(Group::main()).filter(|main| !groups.contains(main)));
        let (on, on_all): (Vec<&Mapping>, Vec<&Mapping>) =
            settings.mappings_in(self.family).partition(|mapping| mapping.host_ip.one().is_some());
        let keys =
            |mappings: Vec<&Mapping>| mappings.into_iter().map(rules::key).collect::<Vec<_>>();
        let (on, on_all) = (keys(on), keys(on_all));
        let mut all = Vec::new();
        for group in groups {
            let published = self.own(&group.published(), &on_all, owner)?;
            let published_on = self.own(&group.published_on(), &on, owner)?;
            all.push(OwnPorts { group, published, published_on });
        }
        all.retain(|own| own.elements().next().is_some());
        Ok(all)
    }

    /// The elements of the set that have one of these keys and name this owner.
    fn own(&self, set: &str, keys: &[Vec<u8>], owner: &Owner) -> Result<Vec<Element>> {
        let found = self.nft.elements_at(rules::table(self.family), set, keys)?.into_iter();
        Ok(found.flatten().filter(|element| is_of(element, owner)).collect())
    }

    /// Whether `own` has all ports of the owner, and no other owner publishes one of them on another host address.
    fn has_all_ports(&self, own: &OwnPorts, owner: &Owner) -> Result<bool> {
        let ports = own.published_on.iter().filter_map(port_of).filter(|_| own.group.is_main());
        let ports: Vec<Vec<u8>> = ports.map(|key| shared_element(&key, None).key).collect();
        let shared = self.nft.elements_at(rules::table(self.family), OWNERS, &ports)?;
        let count = count_key(owner, own.elements().count());
        Ok(shared.iter().all(Option::is_none) && index_has(self.nft, self.family, owner, count)?)
    }

    fn remove_own(&self, own: &OwnPorts, owner: &Owner, batch: &mut Batch) -> Result<Removed> {
        let mut keys = match self.kept_group {
            None => self.shared_of(own, batch)?,
            Some(_) => Vec::new(),
        };
        let mut removed = Removed::default();
        if own.group.is_main() {
            let group = &own.group;
            let on = || own.published_on.iter();
            keys.extend(own.elements().filter_map(port_of).map(|key| (group.unmasqueraded(), key)));
            keys.extend(on().filter_map(port_of).map(|key| (group.published_on_ports(), key)));
            let published = own.published.iter().map(|element| (group.published(), element));
            let published = published.chain(on().map(|element| (group.published_on(), element)));
            keys.extend(published.map(|(set, element)| (set, element.key.clone())));
            removed.flows.extend(own.elements().filter_map(|element| self.udp_flows(element)));
        } else {
            // The group is deleted with its last element, so all its elements must be read.
            removed = self.remove_from_group(&own.group, batch)?;
        }
        keys.sort_unstable();
        keys.dedup();
        for of_set in keys.chunk_by(|one, other| one.0 == other.0) {
            let keys: Vec<Vec<u8>> = of_set.iter().map(|(_, key)| key.clone()).collect();
            self.delete_own(&of_set[0].0, &keys, owner, batch)?;
        }
        // The index entry is deleted last: if the kernel makes only a part of the transaction, a DEL without configuration
        // finds the rest by it.
        let index = [owner_key(owner), count_key(owner, own.elements().count())];
        self.delete_own(OWNERS, &index, owner, batch)?;
        Ok(removed)
    }

    /// Deletes the elements of the set that have one of these keys and name this owner.
    fn delete_own(
        &self,
        set: &str,
        keys: &[Vec<u8>],
        owner: &Owner,
        batch: &mut Batch,
    ) -> Result<()> {
        self.delete(set, &self.own(set, keys, owner)?, batch);
        Ok(())
    }

    /// Reads every set and deletes the elements of the owners.
    fn remove_all(&self, batch: &mut Batch) -> Result<Removed> {
        let mut removed = Removed::default();
        let elements = self.nft.elements(rules::table(self.family), OWNERS)?.into_iter();
        let gone = elements.filter(|element| shared_rules::is_of(element, self.owners));
        let (last, first): (Vec<Element>, _) = gone.partition(is_index_entry);
        // Deleted before the groups, because `remove_from_group` adds index entries for the remaining owners.
        self.delete(OWNERS, &first, batch);
        self.remove_shared(batch)?;
        for set in self.nft.sets(rules::table(self.family))? {
            // `remove_from_group` handles the other sets of a group.
            if let Some(group) = Group::with_map(&set.name) {
                let Removed { flows, shared } = self.remove_from_group(&group, batch)?;
                removed.flows.extend(flows);
                removed.shared.extend(shared);
            }
        }
        self.delete(OWNERS, &last, batch);
        Ok(removed)
    }

    /// Returns the set and the key of each element that an owner can have in `portmap-masqueraded-N` and `portmap-targets`,
    /// possibly with duplicates. If a set `owners-of-SET` exists, calls `remove_shared` and returns an empty list.
    fn shared_of(&self, own: &OwnPorts, batch: &mut Batch) -> Result<Vec<(String, Vec<u8>)>> {
        let table = rules::table(self.family);
        let sets: Vec<String> = self.nft.sets(table)?.into_iter().map(|set| set.name).collect();
        if sets.iter().any(|set| SharedSet::is_of_owners(set)) {
            return self.remove_shared(batch).map(|()| Vec::new());
        }
        let mut keys = Vec::new();
        for target in own.elements().filter_map(|element| self.target(element)) {
            keys.extend(sets.iter().flat_map(|set| masqueraded_keys(set, target)));
        }
        if sets.iter().any(|set| set == targets::SET) {
            keys.extend(
                own.elements()
                    .filter_map(targets::of)
                    .map(|target| (targets::SET.to_owned(), target.key)),
            );
        }
        for sources in sets.iter().filter_map(|set| Sources::of(set)) {
            let of_length =
                |(set, _): &&(String, _)| hairpin::length(set) == Some(sources.prefix_length);
            let nets = keys
                .iter()
                .filter(of_length)
                .map(|(_, key): &(_, Vec<u8>)| key[..key.len() / 2].to_vec());
            let found = self.nft.elements_at(table, &sources.set(), &nets.collect::<Vec<_>>())?;
            let found: Vec<Element> = found.into_iter().flatten().collect();
            self.pass_on(sources, found, batch)?;
        }
        Ok(keys)
    }

    /// Deletes the elements of the owners from `portmap-masqueraded-N`, `portmap-targets` and the sets of sources.
    fn remove_shared(&self, batch: &mut Batch) -> Result<()> {
        if self.kept_group.is_some() {
            return Ok(());
        }
        let table = rules::table(self.family);
        let is_stale = |element: &Element| shared_rules::is_of(element, self.owners);
        for set in self.nft.sets(table)? {
            if is_shared(&set.name) {
                SharedSet { table, name: &set.name }.remove(self.nft, batch, &is_stale)?;
            } else if let Some(sources) = Sources::of(&set.name) {
                self.pass_on(sources, self.nft.elements(table, &set.name)?, batch)?;
            }
        }
        Ok(())
    }

    /// Deletes the elements of the owners from a set of sources. If a pair of another owner has the same source, adds the
    /// source again, with the comment of that owner.
    fn pass_on(&self, sources: Sources, mut found: Vec<Element>, batch: &mut Batch) -> Result<()> {
        let is_stale = |element: &Element| shared_rules::is_of(element, self.owners);
        found.retain(is_stale);
        found.sort_by(|one, other| one.key.cmp(&other.key));
        found.dedup();
        let location = (rules::table(self.family), sources);
        hairpin::pass_on(self.nft, batch, location, &found, &is_stale)
    }

    fn remove_from_group(&self, group: &Group, batch: &mut Batch) -> Result<Removed> {
        let table = rules::table(self.family);
        let (mut gone, mut kept) = self.delete_from(&group.published(), batch)?;
        let (gone_on, kept_on) = self.delete_from(&group.published_on(), batch)?;
        if gone.is_empty() && gone_on.is_empty() {
            return Ok(Removed::default());
        }
        self.delete_from(&group.unmasqueraded(), batch)?;
        let ports_on = group.published_on_ports();
        let (gone_ports, _) = self.delete_from(&ports_on, batch)?;
        let mut shared = Vec::new();
        let by_key: BTreeMap<&[u8], &Element> =
            gone_ports.iter().map(|port| (port.key.as_slice(), port)).collect();
        let mut kept_by_port: BTreeMap<Vec<u8>, Vec<&Element>> = BTreeMap::new();
        for element in &kept_on {
            kept_by_port.entry(port_of(element).unwrap_or_default()).or_default().push(element);
        }
        for key in gone_on.iter().filter_map(port_of).collect::<BTreeSet<_>>() {
            let mut owners = kept_by_port.get(&key).into_iter().flatten();
            let Some(next) = owners.next() else { continue };
            if let Some(port) = by_key.get(key.as_slice()) {
                // The new element names an owner that still publishes the port on another address of the host.
                let next = Element { comment: next.comment.clone(), ..(*port).clone() };
                batch.add_elements(table, &ports_on, &[next]);
            }
            if group.is_main() && owners.next().is_some() {
                let next = shared_element(&key, next.comment.clone());
                batch.ensure_elements(table, OWNERS, &[next]);
            }
            shared.extend(Some(key).filter(|_| group.is_main()));
        }
        gone.extend(gone_on);
        kept.extend(kept_on);
        if kept.is_empty() && !group.is_main() && self.kept_group != Some(group) {
            self.remove_group(group, batch)?;
        }
        let flows = gone.iter().filter_map(|element| self.udp_flows(element)).collect();
        Ok(Removed { flows, shared })
    }

    /// Deletes the elements of the owners from a set. Returns the deleted elements, and the remaining elements.
    fn delete_from(&self, set: &str, batch: &mut Batch) -> Result<(Vec<Element>, Vec<Element>)> {
        let table = rules::table(self.family);
        let elements = self.nft.elements(table, set)?;
        let (gone, kept): (Vec<Element>, _) =
            elements.into_iter().partition(|element| shared_rules::is_of(element, self.owners));
        self.delete(set, &gone, batch);
        Ok((gone, kept))
    }

    fn delete(&self, set: &str, elements: &[Element], batch: &mut Batch) {
        batch.delete_elements(rules::table(self.family), set, elements);
    }

    /// Deletes an empty group: the jump to its chain, its chain, its maps and its sets.
    fn remove_group(&self, group: &Group, batch: &mut Batch) -> Result<()> {
        let table = rules::table(self.family);
        let (main, chain) = (Group::main().chain(), group.chain());
        for rule in self.nft.rules_of(table, &main)? {
            if rule.leads_to() == Some(chain.as_str()) {
                batch.delete_rule(table, &main, rule.handle);
            }
        }
        batch.delete_chain(table, &chain);
        let unmasqueraded = group.unmasqueraded();
        let is_there = self.nft.exist(&[Object::Set(table, &unmasqueraded)])? == [true];
        for set in group.sets().into_iter().chain(Some(unmasqueraded).filter(|_| is_there)) {
            batch.delete_set(table, &set);
        }
        Ok(())
    }

    /// The conntrack filter for connections to a published UDP port. `None` for another protocol: TCP connections end by
    /// themselves.
    fn udp_flows(&self, element: &Element) -> Option<FlowFilter> {
        let [protocol, _, _, _, high, low, _, _] = *port_of(element)?.as_array()?;
        if protocol != Transport::Udp.number() {
            return None;
        }
        let target = self.target(element)?;
        let port = u16::from_be_bytes([high, low]);
        Some(FlowFilter::to_port(self.family, Transport::Udp, port).answered_by(target))
    }

    /// The address of the container that an element of a map of published ports leads to.
    fn target(&self, element: &Element) -> Option<IpAddr> {
        let Some(Datum::Value(target)) = &element.data else { return None };
        match self.family {
            IpFamily::V4 => Some((*target.first_chunk::<4>()?).into()),
            IpFamily::V6 => Some((*target.first_chunk::<16>()?).into()),
        }
    }
}

impl OwnPorts {
    fn elements(&self) -> impl Iterator<Item = &Element> {
        self.published.iter().chain(&self.published_on)
    }
}

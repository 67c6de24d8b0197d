//! The deletion of port bindings: what DEL, GC and a repeated ADD do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::bindings::{is_of, is_shared, set_names, source_key};
use super::noted::{self, Keys};
use super::rules::{self, FORMER_OWNERS, Group, port_element, port_of, sources_of};
use crate::attachments::owner::Owners;
use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::address_in;
use crate::netlink::conntrack::FlowFilter;
use crate::netlink::nft::{Batch, Datum, Element, Nft, Transport};
use crate::rules::hairpin::{self, Sources};
use crate::rules::shared_rules;
use crate::rules::shared_set::{PORT_BYTES, SharedSet};
use crate::rules::targets;

/// The deletion of the port bindings of owners, in one family.
pub struct Removal<'a> {
    pub nft: &'a Nft,
    pub family: IpFamily,
    pub owners: &'a Owners,
    /// The ports of a single owner, as its record lists them. `None` if they are unknown: then the maps are read.
    pub noted: Option<&'a [String]>,
    /// Only for a repeated ADD: its group, which stays even if it is empty. The ADD itself replaces its elements of shared
    /// sets.
    pub kept_group: Option<&'a Group>,
}

impl Removal<'_> {
    /// Adds the deletions to the batch. Returns the elements of published ports among them.
    pub fn remove(&self, batch: &mut Batch) -> Result<Vec<Element>> {
        if let (Some((_, owner)), Some(noted)) = (self.owners.one(), self.noted)
            && let Some(keys) = noted::keys(noted, self.family)
            && let Some(removed) = self.remove_noted(&keys, owner.as_str(), batch)?
        {
            return Ok(removed);
        }
        self.remove_all(batch)
    }

    /// Removes the owner whose ports have these keys. `None` if the sets must be read: the owner lacks one of the ports, because
    /// another program deleted it or an ADD did not end, or another owner publishes one of them on another host address.
    fn remove_noted(
        &self,
        keys: &Keys,
        owner: &str,
        batch: &mut Batch,
    ) -> Result<Option<Vec<Element>>> {
        if keys.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let mut groups: Vec<Group> =
            keys.keys().filter_map(|map| Some(Group::parse(map)?.1)).collect();
        groups.dedup();
        let [group] = groups.as_slice() else { return Ok(None) };
        let mut own = Vec::new();
        for (map, keys) in keys {
            let found = self.own(map, keys.clone(), owner)?;
            if found.len() != keys.len() {
                return Ok(None);
            }
            own.extend(found);
        }
        if !group.is_main() {
            self.remove_shared(Some(&own), batch)?;
            // The group is deleted with its last element, so all its elements are read.
            return self.remove_from_group(group, batch).map(Some);
        }
        let (table, main) = (rules::table(self.family), group);
        let (on_all, on): (Vec<&Element>, Vec<&Element>) =
            own.iter().partition(|element| element.key.len() == PORT_BYTES);
        let ports_on: BTreeSet<Vec<u8>> = on.into_iter().map(port_of).collect();
        let ports_on: Vec<Vec<u8>> = ports_on.into_iter().collect();
        let ports_on = self.nft.elements_at(table, &main.published_on_ports(), &ports_on)?;
        let ports_on: Vec<Element> = ports_on.into_iter().flatten().collect();
        if !ports_on.iter().all(|port| is_of(port, owner)) {
            return Ok(None);
        }
        self.remove_shared(Some(&own), batch)?;
        let on_all: BTreeSet<Vec<u8>> = on_all.into_iter().map(port_of).collect();
        let set = main.unmasqueraded();
        self.delete(&set, &self.own(&set, on_all, owner)?, batch);
        self.delete(&main.published_on_ports(), &ports_on, batch);
        for map in [main.published(), main.published_on()] {
            let of_map = own.iter().filter(|element| main.map_of(&element.key) == map);
            self.delete(&map, &of_map.cloned().collect::<Vec<_>>(), batch);
        }
        Ok(Some(own))
    }

    /// The elements of the set that have one of these keys and name this owner.
    fn own(&self, set: &str, keys: BTreeSet<Vec<u8>>, owner: &str) -> Result<Vec<Element>> {
        let keys: Vec<Vec<u8>> = keys.into_iter().collect();
        let found = self.nft.elements_at(rules::table(self.family), set, &keys)?.into_iter();
        Ok(found.flatten().filter(|element| is_of(element, owner)).collect())
    }

    /// Reads every set and deletes the elements of the owners. Of a single owner without a record, which usually has no ports, only
    /// the maps of published ports.
    fn remove_all(&self, batch: &mut Batch) -> Result<Vec<Element>> {
        let (mut removed, sets) = (Vec::new(), set_names(self.nft, self.family)?);
        for group in sets.iter().filter_map(|set| Group::with_map(set)) {
            removed.extend(self.remove_from_group(&group, batch)?);
        }
        if removed.is_empty() && self.noted.is_none() && self.owners.one().is_some() {
            return Ok(removed);
        }
        self.remove_shared(None, batch)?;
        if sets.iter().any(|set| set == FORMER_OWNERS) {
            let (_, kept) = self.delete_from(FORMER_OWNERS, batch)?;
            if kept.is_empty() {
                batch.delete_set(rules::table(self.family), FORMER_OWNERS);
            }
        }
        Ok(removed)
    }

    /// Deletes the elements of the owners from `portmap-masqueraded-N`, `portmap-targets` and the sets of sources. `own` has all
    /// ports of a single owner; `None`: the sets are read.
    fn remove_shared(&self, own: Option<&[Element]>, batch: &mut Batch) -> Result<()> {
        if self.kept_group.is_some() {
            return Ok(());
        }
        let (nft, table) = (self.nft, rules::table(self.family));
        let is_stale = |element: &Element| shared_rules::is_of(element, self.owners);
        let names = set_names(nft, self.family)?;
        for name in &names {
            let (set, sources) = (SharedSet::new(self.family, name), Sources::of(name));
            if !is_shared(name) && sources.is_none() {
                continue;
            }
            // Reads the whole set: for GC, and because other elements can have several owners.
            if is_shared(name) && (own.is_none() || names.contains(&set.owners())) {
                set.change(nft, batch, &is_stale, &[])?;
                continue;
            }
            let found = match own {
                Some(own) => nft.elements_at(table, name, &self.shared_keys(name, own))?,
                None => nft.elements(table, name)?.into_iter().map(Some).collect(),
            };
            let leaving: Vec<Element> = found.into_iter().flatten().filter(is_stale).collect();
            match sources {
                Some(of) => hairpin::pass_on(nft, batch, (table, of), &leaving, &is_stale)?,
                None => self.delete(name, &leaving, batch),
            }
        }
        Ok(())
    }

    /// The keys that the published ports `own` can have in one of the sets of `remove_shared`.
    fn shared_keys(&self, set: &str, own: &[Element]) -> Vec<Vec<u8>> {
        let addresses: BTreeSet<IpAddr> =
            own.iter().filter_map(|element| target(self.family, element)).collect();
        let mut keys = BTreeSet::new();
        if set == targets::SET {
            keys.extend(own.iter().filter_map(targets::of).map(|target| target.key));
        }
        for address in addresses {
            if let Some(length) = hairpin::length(set) {
                keys.extend(sources_of(address, length).map(|net| hairpin::key(&net, address)));
            } else if let Some(sources) = Sources::of(set) {
                keys.extend(sources_of(address, sources.prefix_length).map(|net| source_key(&net)));
            }
        }
        keys.into_iter().collect()
    }

    fn remove_from_group(&self, group: &Group, batch: &mut Batch) -> Result<Vec<Element>> {
        let (mut gone, kept) = self.delete_from(&group.published(), batch)?;
        let (gone_on, kept_on) = self.delete_from(&group.published_on(), batch)?;
        if gone.is_empty() && gone_on.is_empty() {
            return Ok(gone);
        }
        self.delete_from(&group.unmasqueraded(), batch)?;
        self.release_ports_on(group, &gone_on, &kept_on, batch)?;
        gone.extend(gone_on);
        if kept.is_empty()
            && kept_on.is_empty()
            && !group.is_main()
            && self.kept_group != Some(group)
        {
            self.remove_group(group, batch)?;
        }
        Ok(gone)
    }

    /// Deletes from `portmap-published-on-ports` the ports that are on no single address any more. Those that other owners still
    /// publish stay.
    fn release_ports_on(
        &self,
        group: &Group,
        gone_on: &[Element],
        kept_on: &[Element],
        batch: &mut Batch,
    ) -> Result<()> {
        let mut kept: BTreeMap<Vec<u8>, Element> = BTreeMap::new();
        for port in kept_on.iter().map(port_element) {
            let of_port = kept.entry(port.key.clone()).or_insert_with(|| port.clone());
            of_port.comment.take_if(|owner| port.comment.as_ref() != Some(owner));
        }
        let gone: BTreeSet<Vec<u8>> = gone_on.iter().map(port_of).collect();
        let (table, set) = (rules::table(self.family), group.published_on_ports());
        let mut ports = self.nft.elements(table, &set)?;
        ports.retain(|port| gone.contains(&port.key) && kept.get(&port.key) != Some(port));
        self.delete(&set, &ports, batch);
        let staying = ports.iter().filter_map(|port| kept.remove(&port.key));
        batch.add_elements(table, &set, &staying.collect::<Vec<_>>());
        Ok(())
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
        let sets = set_names(self.nft, self.family)?;
        let of_group = group.sets().into_iter().chain([group.unmasqueraded()]);
        for set in of_group.filter(|set| sets.contains(set)) {
            batch.delete_set(table, &set);
        }
        Ok(())
    }
}

/// The conntrack filter for connections to a published UDP port. `None` for another protocol: TCP connections end by themselves.
pub fn udp_flows(family: IpFamily, published: &Element) -> Option<FlowFilter> {
    let [protocol, _, _, _, high, low, _, _] = *port_of(published).as_array()?;
    if protocol != Transport::Udp.number() {
        return None;
    }
    let port = u16::from_be_bytes([high, low]);
    let to_port = FlowFilter::to_port(family, Transport::Udp, port);
    Some(to_port.answered_by(target(family, published)?))
}

/// The address of the container that an element of a map of published ports leads to.
fn target(family: IpFamily, published: &Element) -> Option<IpAddr> {
    let Some(Datum::Value(target)) = &published.data else { return None };
    address_in(family, target)
}

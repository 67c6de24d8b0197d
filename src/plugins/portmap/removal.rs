//! The deletion of port bindings: what DEL, GC and a repeated ADD do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::bindings::{is_of, is_registered, is_shared, set_names, source_key};
use super::config::Settings;
use super::rules::{
    self, Group, OWNERS, count_key, is_index_entry, owner_key, port_element, port_of,
    shared_element, sources_of,
};
use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::address_in;
use crate::netlink::conntrack::FlowFilter;
use crate::netlink::nft::{Batch, Datum, Element, Nft, Transport};
use crate::plugin::owner::Owners;
use crate::steps::nft::hairpin::{self, Sources};
use crate::steps::nft::shared_rules;
use crate::steps::nft::shared_set::{PORT_BYTES, SharedSet};
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

impl Removal<'_> {
    /// Adds the deletions to the batch.
    ///
    /// The ports of a single owner are looked up by its configuration. For GC, and if the index does not confirm that the owner
    /// has no other ports, all sets are read.
    pub fn remove(&self, batch: &mut Batch) -> Result<Removed> {
        let Some((at, owner)) = self.owners.one() else { return self.remove_all(batch) };
        let mut own = self.look_up(owner.as_str(), &at.ifname)?;
        // The common case: the container has no ports.
        if own.is_empty() && !is_registered(self.nft, self.family, owner.as_str())? {
            return Ok(Removed::default());
        }
        match (own.pop(), own.is_empty()) {
            (Some((group, own)), true) if self.are_all_ports(&own, owner.as_str())? => {
                self.remove_own(&group, &own, owner.as_str(), batch)
            }
            _ => self.remove_all(batch),
        }
    }

    /// Looks up the ports of the configuration that name the owner, in each group that can have them. Returns the groups that
    /// have such ports.
    fn look_up(&self, owner: &str, interface: &str) -> Result<Vec<(Group, Vec<Element>)>> {
        let Some(settings) = self.settings else { return Ok(Vec::new()) };
        let group = Group::of(settings.conditions(self.family));
        let mut groups = vec![group.secondary(interface), group];
        // At ADD the configuration may have had no conditions.
        groups.extend(Some(Group::main()).filter(|main| !groups.contains(main)));
        let keys = settings.mappings_in(self.family).map(rules::key);
        let (on_all, on): (Vec<Vec<u8>>, _) = keys.partition(|key| key.len() == PORT_BYTES);
        let mut found = Vec::new();
        for group in groups {
            let mut own = self.own(&group.published(), &on_all, owner)?;
            own.extend(self.own(&group.published_on(), &on, owner)?);
            found.extend((!own.is_empty()).then_some((group, own)));
        }
        Ok(found)
    }

    /// The elements of the set that have one of these keys and name this owner.
    fn own(&self, set: &str, keys: &[Vec<u8>], owner: &str) -> Result<Vec<Element>> {
        let found = self.nft.elements_at(rules::table(self.family), set, keys)?.into_iter();
        Ok(found.flatten().filter(|element| is_of(element, owner)).collect())
    }

    /// Whether `own` has all ports of the owner, and no other owner publishes one of them on another host address.
    fn are_all_ports(&self, own: &[Element], owner: &str) -> Result<bool> {
        let mut keys = vec![count_key(owner, own.len())];
        keys.extend(own.iter().map(|element| shared_element(element).key));
        let mut found = self.nft.elements_at(rules::table(self.family), OWNERS, &keys)?.into_iter();
        let has_count = found.next().flatten().is_some_and(|element| is_of(&element, owner));
        Ok(has_count && found.all(|shared| shared.is_none()))
    }

    /// Removes an owner whose ports are `own`.
    fn remove_own(
        &self,
        group: &Group,
        own: &[Element],
        owner: &str,
        batch: &mut Batch,
    ) -> Result<Removed> {
        self.remove_shared(Some(own), batch)?;
        let mut removed = Removed::default();
        if group.is_main() {
            // A port that is published on several addresses is one element of these sets.
            let ports: BTreeSet<Vec<u8>> = own.iter().map(port_of).collect();
            let ports: Vec<Vec<u8>> = ports.into_iter().collect();
            for set in [group.unmasqueraded(), group.published_on_ports()] {
                self.delete(&set, &self.own(&set, &ports, owner)?, batch);
            }
            for map in [group.published(), group.published_on()] {
                let of_map = own.iter().filter(|element| group.map_of(element) == map);
                self.delete(&map, &of_map.cloned().collect::<Vec<_>>(), batch);
            }
            removed.flows.extend(own.iter().filter_map(|element| self.udp_flows(element)));
        } else {
            // The group is deleted with its last element, so all its elements must be read.
            removed = self.remove_from_group(group, batch)?;
        }
        // The index entry is deleted last: if the kernel makes only a part of the transaction, a DEL without configuration
        // finds the rest by it.
        let index = [owner_key(owner), count_key(owner, own.len())];
        self.delete(OWNERS, &self.own(OWNERS, &index, owner)?, batch);
        Ok(removed)
    }

    /// Reads every set and deletes the elements of the owners.
    fn remove_all(&self, batch: &mut Batch) -> Result<Removed> {
        let mut removed = Removed::default();
        let elements = self.nft.elements(rules::table(self.family), OWNERS)?.into_iter();
        let gone = elements.filter(|element| shared_rules::is_of(element, self.owners));
        let (last, first): (Vec<Element>, _) = gone.partition(is_index_entry);
        // Deleted before the groups, because `remove_from_group` adds index entries for the remaining owners.
        self.delete(OWNERS, &first, batch);
        self.remove_shared(None, batch)?;
        for set in set_names(self.nft, self.family)? {
            // `remove_from_group` handles the other sets of a group.
            if let Some(group) = Group::with_map(&set) {
                let Removed { flows, shared } = self.remove_from_group(&group, batch)?;
                removed.flows.extend(flows);
                removed.shared.extend(shared);
            }
        }
        self.delete(OWNERS, &last, batch);
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
            own.iter().filter_map(|element| self.target(element)).collect();
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

    fn remove_from_group(&self, group: &Group, batch: &mut Batch) -> Result<Removed> {
        let table = rules::table(self.family);
        let (mut gone, kept) = self.delete_from(&group.published(), batch)?;
        let (gone_on, kept_on) = self.delete_from(&group.published_on(), batch)?;
        if gone.is_empty() && gone_on.is_empty() {
            return Ok(Removed::default());
        }
        self.delete_from(&group.unmasqueraded(), batch)?;
        let ports_on = group.published_on_ports();
        let (gone_ports, _) = self.delete_from(&ports_on, batch)?;
        let gone_ports: BTreeSet<Vec<u8>> = gone_ports.into_iter().map(|port| port.key).collect();
        let mut kept_by_port: BTreeMap<Vec<u8>, Vec<&Element>> = BTreeMap::new();
        for element in &kept_on {
            kept_by_port.entry(port_of(element)).or_default().push(element);
        }
        let mut shared = Vec::new();
        for port in gone_on.iter().map(port_of).collect::<BTreeSet<_>>() {
            // An owner that still publishes the port, on another address of the host.
            let Some([next, others @ ..]) = kept_by_port.get(&port).map(Vec::as_slice) else {
                continue;
            };
            if gone_ports.contains(&port) {
                batch.add_elements(table, &ports_on, &[port_element(next)]);
            }
            if group.is_main() {
                if !others.is_empty() {
                    batch.ensure_elements(table, OWNERS, &[shared_element(next)]);
                }
                shared.push(port);
            }
        }
        gone.extend(gone_on);
        if kept.is_empty()
            && kept_on.is_empty()
            && !group.is_main()
            && self.kept_group != Some(group)
        {
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
        let sets = set_names(self.nft, self.family)?;
        let of_group = group.sets().into_iter().chain([group.unmasqueraded()]);
        for set in of_group.filter(|set| sets.contains(set)) {
            batch.delete_set(table, &set);
        }
        Ok(())
    }

    /// The conntrack filter for connections to a published UDP port. `None` for another protocol: TCP connections end by
    /// themselves.
    fn udp_flows(&self, element: &Element) -> Option<FlowFilter> {
        let [protocol, _, _, _, high, low, _, _] = *port_of(element).as_array()?;
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
        address_in(self.family, target)
    }
}

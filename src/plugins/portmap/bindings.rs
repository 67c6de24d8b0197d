//! The port bindings of attachments: elements of maps and sets, with the owner as comment. ADD publishes them, CHECK
//! compares them, and `Removal` is what DEL, GC and a repeated ADD do.

use std::net::IpAddr;

use ipnet::IpNet;

use super::config::{Mapping, Settings, Snat, transport_name};
use super::rules::{
    self, Group, OWNERS, Rules, count_key, location, loopback, masqueraded_keys, owner_key,
    port_key, port_of, shared_element,
};
use crate::error::{Error, Result};
use crate::names::IpFamily;
use crate::netlink::conntrack::Flows;
use crate::netlink::nft::{Batch, Datum, Element, Nft, Transport, Value, pack};
use crate::plugin::owner::{Owner, Owners};
use crate::steps::nft::{hairpin, shared_rules};

/// The port bindings of one attachment in one family.
#[derive(Clone)]
pub struct PortBindings<'a> {
    pub family: IpFamily,
    pub owner: &'a Owner,
    /// The address of the container, with the prefix length of its subnet.
    pub address: IpNet,
    pub settings: &'a Settings,
    pub group: Group,
}

/// An element that a port binding needs.
struct Expected {
    set: String,
    key: Vec<u8>,
    data: Option<Vec<u8>>,
    /// For errors: `host port tcp 8080`.
    title: String,
}

/// The state before an attachment publishes its ports.
#[derive(Default)]
pub struct Before {
    /// The attachment has elements, from an earlier ADD.
    pub is_published: bool,
    /// The container publishes one of the ports already, in another network.
    needs_secondary: bool,
    /// Sets and keys of an earlier owner of the address, which ended without a DEL.
    stale: Vec<(String, Vec<u8>)>,
    /// The keys of ports that other owners publish on other host addresses.
    pub shared: Vec<Vec<u8>>,
}

/// The owner of an element, as an attachment sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relation {
    Own,
    /// Another attachment of the same container. Packets may take either interface.
    SameContainer,
    Other,
}

/// A key that only one container may have.
struct Exclusive<'a> {
    mapping: &'a Mapping,
    set: String,
    key: Vec<u8>,
}

impl<'a> PortBindings<'a> {
    pub fn new(family: IpFamily, owner: &'a Owner, address: IpNet, settings: &'a Settings) -> Self {
        let group = Group::of(settings.conditions(family));
        Self { family, owner, address, settings, group }
    }

    /// The same bindings, in the group that the state before allows.
    pub fn placed(&self, before: &Before) -> Self {
        if before.needs_secondary { self.secondary() } else { self.clone() }
    }

    fn secondary(&self) -> Self {
        let [_, _, interface] = Owner::parts(self.owner.as_str()).unwrap_or_default();
        Self { group: self.group.secondary(interface), ..self.clone() }
    }

    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.settings.mappings.iter().filter(|mapping| mapping.host_ip.is_in(self.family))
    }

    /// Whether the family has no port to publish.
    pub fn is_empty(&self) -> bool {
        self.mappings().next().is_none()
    }

    fn rules(&self) -> Rules<'_> {
        let lengths = self.sources().iter().map(IpNet::prefix_len).collect();
        Rules { family: self.family, settings: self.settings, group: &self.group, lengths }
    }

    /// The sources of packets that are masqueraded.
    fn sources(&self) -> Vec<IpNet> {
        let loopback = Some(loopback()).filter(|net| self.family.has(net.addr()));
        match self.settings.snat {
            Snat::Off => Vec::new(),
            // The loopback is always first, so that the rules always have the same order.
            Snat::Local => loopback.into_iter().chain([self.address.trunc()]).collect(),
            Snat::All => vec![self.family.everything()],
        }
    }

    /// Adds everything that is missing. The batch already removes what an earlier ADD of the attachment published.
    pub fn publish(&self, nft: &Nft, batch: &mut Batch, before: &Before) -> Result<()> {
        self.rules().ensure(nft, batch)?;
        let table = rules::table(self.family);
        let comment = shared_rules::comment(self.owner)?;
        let element = |expected: &Expected| Element {
            key: expected.key.clone(),
            data: expected.data.clone().map(Datum::Value),
            comment: Some(comment.clone()),
        };
        let published = self.published();
        let [any, on, _] = self.group.sets();
        for set in [any, on] {
            let of_set = published.iter().filter(|expected| expected.set == set);
            batch.add_elements(table, &set, &of_set.map(element).collect::<Vec<_>>());
        }
        for expected in self.ports_on() {
            // Another attachment may publish the port on another address.
            batch.ensure_elements(table, &expected.set, &[element(&expected)]);
        }
        if self.group.is_main() {
            let shared =
                self.ports_on().into_iter().filter(|port| before.shared.contains(&port.key));
            let shared: Vec<Element> =
                shared.map(|port| shared_element(&port.key, Some(comment.clone()))).collect();
            batch.ensure_elements(table, OWNERS, &shared);
        }
        for (set, key) in &before.stale {
            batch.delete_elements(table, set, std::slice::from_ref(key));
        }
        for expected in self.masqueraded() {
            batch.add_elements(table, &expected.set, &[element(&expected)]);
        }
        let count = Expected { key: count_key(self.owner, published.len()), ..self.index_entry() };
        batch.add_elements(table, OWNERS, &[self.index_entry(), count].each_ref().map(element));
        Ok(())
    }

    /// Fails if an element or a rule is missing.
    pub fn check(&self, nft: &Nft) -> Result<()> {
        let secondary = self.secondary();
        if secondary.has_first_port(nft)? {
            secondary.check_group(nft)
        } else {
            self.check_group(nft)
        }
    }

    /// Whether the group has the first port.
    fn has_first_port(&self, nft: &Nft) -> Result<bool> {
        let Some(Expected { set, key, .. }) = self.published().into_iter().next() else {
            return Ok(false);
        };
        let found = nft.elements_at(rules::table(self.family), &set, &[key])?;
        Ok(found.iter().flatten().any(|found| is_of(found, self.owner)))
    }

    fn check_group(&self, nft: &Nft) -> Result<()> {
        let table = rules::table(self.family);
        let mut all = self.published();
        all.extend(self.masqueraded());
        all.push(self.index_entry());
        for expected in &all {
            let found =
                nft.elements_at(table, &expected.set, std::slice::from_ref(&expected.key))?;
            let data = expected.data.clone().map(Datum::Value);
            let is_equal = |found: &Element| is_of(found, self.owner) && found.data == data;
            if !found.iter().flatten().any(is_equal) {
                return Err(Error::internal(format_args!(
                    "{} of {} not found in set {} of table {table}",
                    expected.title, self.owner, expected.set
                )));
            }
        }
        self.rules().check(nft)
    }

    fn published(&self) -> Vec<Expected> {
        let of = |mapping: &Mapping| {
            let (set, key) = location(&self.group, mapping);
            let target = [Value::Address(self.address.addr()), Value::Port(mapping.container_port)];
            Expected { set, key, data: Some(pack(&target)), title: title(mapping) }
        };
        self.mappings().map(of).collect()
    }

    /// The ports that are published on single host addresses.
    fn ports_on(&self) -> Vec<Expected> {
        let on = self.mappings().filter(|mapping| mapping.host_ip.one().is_some());
        let of = |mapping: &Mapping| Expected {
            set: self.group.published_on_ports(),
            key: port_key(mapping.transport, mapping.host_port),
            data: None,
            title: title(mapping),
        };
        on.map(of).collect()
    }

    fn masqueraded(&self) -> Vec<Expected> {
        let of = |source: &IpNet| Expected {
            set: hairpin::set(source.prefix_len()),
            key: hairpin::key(source, self.address.addr()),
            data: None,
            title: format!("masquerading of {source}"),
        };
        self.sources().iter().map(of).collect()
    }

    fn index_entry(&self) -> Expected {
        let title = "index entry".into();
        Expected { set: OWNERS.into(), key: owner_key(self.owner), data: None, title }
    }

    /// Reads the state before ADD. Fails if another container has one of the ports on an address that overlaps.
    ///
    /// Two lists of conditions overlap for certain if one is empty or both are equal; then the later ADD is refused. Others
    /// may share a port. Then the group with the first jump in the main chain gets the packets.
    pub fn look(&self, nft: &Nft) -> Result<Before> {
        let table = rules::table(self.family);
        let mut before = Before::default();
        for group in self.competing_groups(nft)? {
            let exclusive: Vec<Exclusive<'_>> =
                self.mappings().flat_map(|mapping| exclusive(&group, mapping)).collect();
            for set in group.sets() {
                let of_set: Vec<&Exclusive<'_>> =
                    exclusive.iter().filter(|exclusive| exclusive.set == set).collect();
                let keys: Vec<Vec<u8>> =
                    of_set.iter().map(|exclusive| exclusive.key.clone()).collect();
                let found = nft.elements_at(table, &set, &keys)?;
                for (exclusive, found) in of_set.iter().zip(found) {
                    let Some(found) = found else { continue };
                    match self.relation(&found) {
                        Relation::Own => before.is_published = true,
                        Relation::SameContainer => before.needs_secondary |= group == self.group,
                        Relation::Other => return Err(taken(exclusive.mapping, &found)),
                    }
                    if set == group.published_on_ports() {
                        // The element names one owner of the port; others can have it on other addresses.
                        self.refuse_taken_on(nft, &group, exclusive.mapping)?;
                    }
                }
            }
        }
        for expected in self.masqueraded() {
            let found =
                nft.elements_at(table, &expected.set, std::slice::from_ref(&expected.key))?;
            match found.iter().flatten().next() {
                // IPAM gave out the address again, so the earlier owner has ended.
                Some(found) if !is_of(found, self.owner) => {
                    before.stale.push((expected.set, expected.key));
                }
                Some(_) => before.is_published = true,
                None => {}
            }
        }
        before.shared = self.shared_ports(nft)?;
        Ok(before)
    }

    /// The other owners of the ports: `look` refuses them.
    pub fn in_the_way(&self, nft: &Nft) -> Result<Vec<String>> {
        let table = rules::table(self.family);
        let mut owners = Vec::new();
        for group in self.competing_groups(nft)? {
            for mapping in self.mappings() {
                let port = port_key(mapping.transport, mapping.host_port);
                for set in [group.published(), group.published_on()] {
                    let elements = nft.elements(table, &set)?.into_iter();
                    let others = elements.filter(|found| {
                        found.key.ends_with(&port) && self.relation(found) == Relation::Other
                    });
                    owners.extend(others.filter_map(|found| Some(found.comment?.to_string())));
                }
            }
        }
        owners.sort_unstable();
        owners.dedup();
        Ok(owners)
    }

    /// The ports that other owners publish, too, on other host addresses.
    fn shared_ports(&self, nft: &Nft) -> Result<Vec<Vec<u8>>> {
        let keys: Vec<Vec<u8>> = self.ports_on().into_iter().map(|port| port.key).collect();
        let set = Group::main().published_on_ports();
        let found = nft.elements_at(rules::table(self.family), &set, &keys)?;
        let others = found.into_iter().flatten().filter(|found| !is_of(found, self.owner));
        Ok(others.map(|found| found.key).collect())
    }

    /// The groups that can match the same packets.
    fn competing_groups(&self, nft: &Nft) -> Result<Vec<Group>> {
        let sets = nft.sets(rules::table(self.family))?;
        let groups = sets.iter().filter_map(|set| Group::of_map(&set.name));
        Ok(groups.filter(|group| group.competes_with(&self.group)).collect())
    }

    fn relation(&self, found: &Element) -> Relation {
        if is_of(found, self.owner) {
            return Relation::Own;
        }
        let container = |text| Owner::parts(text).map(|[_, container, _]| container);
        let other = found.comment.as_deref().and_then(container);
        let is_same = other.is_some() && other == container(self.owner.as_str());
        if is_same { Relation::SameContainer } else { Relation::Other }
    }

    /// Fails if another container has the port on a single address.
    fn refuse_taken_on(&self, nft: &Nft, group: &Group, mapping: &Mapping) -> Result<()> {
        let is_taken = |found: &Element| {
            found.key.ends_with(&port_key(mapping.transport, mapping.host_port))
                && self.relation(found) == Relation::Other
        };
        let elements = nft.elements(rules::table(self.family), &group.published_on())?;
        elements
            .iter()
            .find(|found| is_taken(found))
            .map_or(Ok(()), |found| Err(taken(mapping, found)))
    }
}

/// The keys of a group that a port must have alone.
fn exclusive<'a>(group: &Group, mapping: &'a Mapping) -> [Exclusive<'a>; 2] {
    let port = port_key(mapping.transport, mapping.host_port);
    let any = Exclusive { mapping, set: group.published(), key: port.clone() };
    let on = match mapping.host_ip.one() {
        Some(_) => {
            let (set, key) = location(group, mapping);
            Exclusive { mapping, set, key }
        }
        None => Exclusive { mapping, set: group.published_on_ports(), key: port },
    };
    [any, on]
}

fn is_of(element: &Element, owner: &Owner) -> bool {
    element.comment.as_ref().is_some_and(|comment| **comment == *owner.as_str())
}

fn title(mapping: &Mapping) -> String {
    let on = mapping.host_ip.one().map_or_else(String::new, |ip| format!("{ip} "));
    format!("host port {on}{} {}", transport_name(mapping.transport), mapping.host_port)
}

fn taken(mapping: &Mapping, by: &Element) -> Error {
    let owner = by.comment.as_deref().unwrap_or_default();
    let owner = match Owner::parts(owner) {
        Some([network, container, interface]) => {
            format!("network {network}, container {container}, interface {interface}")
        }
        None => format!("{owner:?}"),
    };
    Error::internal(format_args!("cannot publish {}: it is taken by {owner}", title(mapping)))
}

/// The deletion of the port bindings of owners, in one family.
pub struct Removal<'a> {
    pub nft: &'a Nft,
    pub family: IpFamily,
    pub owners: &'a Owners,
    /// The configuration, if it can be read. It tells where to look first, not what to delete.
    pub settings: Option<&'a Settings>,
    /// The group that stays although it is empty: the ADD that removes uses it.
    pub in_use: Option<&'a Group>,
}

/// The follow-up of a removal.
#[derive(Default)]
pub struct Removed {
    /// The UDP connections that must not be translated any more.
    pub flows: Vec<Flows>,
    /// The keys of removed ports that other owners still publish on other host addresses.
    pub shared: Vec<Vec<u8>>,
}

/// The elements of one owner in one group.
struct Own {
    group: Group,
    /// Each with the name of its map.
    published: Vec<(String, Element)>,
}

impl Removal<'_> {
    /// Adds the deletions to the batch.
    ///
    /// The ports of a single owner are looked up by its configuration. If the index does not confirm that these are all,
    /// and for GC, everything is read.
    pub fn remove(&self, batch: &mut Batch) -> Result<Removed> {
        if let Some((at, owner)) = self.owners.one() {
            let own = self.look_up(owner, &at.ifname)?;
            // The common case: the container has no ports.
            if own.is_empty() && !self.is_registered(owner)? {
                return Ok(Removed::default());
            }
            if let [own] = own.as_slice()
                && self.is_all(own, owner)?
            {
                return self.remove_own(own, owner, batch);
            }
        }
        self.remove_all(batch)
    }

    /// Whether the index has the owner.
    pub fn is_registered(&self, owner: &Owner) -> Result<bool> {
        self.index_has(owner, owner_key(owner))
    }

    fn index_has(&self, owner: &Owner, key: Vec<u8>) -> Result<bool> {
        let found = self.nft.elements_at(rules::table(self.family), OWNERS, &[key])?;
        Ok(found.iter().flatten().any(|element| is_of(element, owner)))
    }

    /// Looks up the ports of the configuration, in each group that can have them.
    fn look_up(&self, owner: &Owner, interface: &str) -> Result<Vec<Own>> {
        let Some(settings) = self.settings else { return Ok(Vec::new()) };
        let group = Group::of(settings.conditions(self.family));
        let mut groups = vec![group.secondary(interface), group];
        // The ADD may have had no conditions.
        groups.extend(Some(Group::main()).filter(|main| !groups.contains(main)));
        let mut all = Vec::new();
        for group in groups {
            let mut own = Own { group, published: Vec::new() };
            let mappings =
                settings.mappings.iter().filter(|mapping| mapping.host_ip.is_in(self.family));
            let places: Vec<(String, Vec<u8>)> =
                mappings.map(|mapping| location(&own.group, mapping)).collect();
            for set in [own.group.published(), own.group.published_on()] {
                let of_set = places.iter().filter(|(name, _)| *name == set);
                let keys: Vec<Vec<u8>> = of_set.map(|(_, key)| key.clone()).collect();
                let found = self.nft.elements_at(rules::table(self.family), &set, &keys)?;
                let found = found.into_iter().flatten().filter(|element| is_of(element, owner));
                own.published.extend(found.map(|element| (set.clone(), element)));
            }
            if !own.published.is_empty() {
                all.push(own);
            }
        }
        Ok(all)
    }

    /// Whether the owner has no other ports, and shares none of these with another owner.
    fn is_all(&self, own: &Own, owner: &Owner) -> Result<bool> {
        let ports = own.ports_on().map(|key| shared_element(&key, None).key);
        let ports: Vec<Vec<u8>> = ports.filter(|_| own.group.is_main()).collect();
        let shared = self.nft.elements_at(rules::table(self.family), OWNERS, &ports)?;
        let count = count_key(owner, own.published.len());
        Ok(shared.iter().all(Option::is_none) && self.index_has(owner, count)?)
    }

    fn remove_own(&self, own: &Own, owner: &Owner, batch: &mut Batch) -> Result<Removed> {
        let mut keys = vec![
            (OWNERS.to_owned(), owner_key(owner)),
            (OWNERS.to_owned(), count_key(owner, own.published.len())),
        ];
        let sets = self.nft.sets(rules::table(self.family))?;
        // The keys are sorted below, and repeated ones dropped.
        for target in own.published.iter().filter_map(|(_, element)| self.target(element)) {
            keys.extend(sets.iter().flat_map(|set| masqueraded_keys(&set.name, target)));
        }
        let mut removed = Removed::default();
        if own.group.is_main() {
            let ports = own.ports_on().map(|key| (own.group.published_on_ports(), key));
            keys.extend(ports);
            keys.extend(
                own.published.iter().map(|(set, element)| (set.clone(), element.key.clone())),
            );
            let elements = own.published.iter().map(|(_, element)| element);
            removed.flows.extend(elements.filter_map(|element| self.udp_flows(element)));
        } else {
            // The group goes with its last element, so it has to be read.
            removed = self.remove_from_group(&own.group, batch)?;
        }
        keys.sort_unstable();
        keys.dedup();
        for of_set in keys.chunk_by(|one, other| one.0 == other.0) {
            self.delete_own(&of_set[0].0, of_set.iter().map(|(_, key)| key.clone()), owner, batch)?;
        }
        Ok(removed)
    }

    /// Deletes those of the elements with these keys that are the owner's.
    fn delete_own(
        &self,
        set: &str,
        keys: impl Iterator<Item = Vec<u8>>,
        owner: &Owner,
        batch: &mut Batch,
    ) -> Result<()> {
        let table = rules::table(self.family);
        let found = self.nft.elements_at(table, set, &keys.collect::<Vec<_>>())?.into_iter();
        let own = found.flatten().filter(|element| is_of(element, owner));
        batch.delete_elements(table, set, &own.map(|element| element.key).collect::<Vec<_>>());
        Ok(())
    }

    /// Reads every set.
    fn remove_all(&self, batch: &mut Batch) -> Result<Removed> {
        let mut removed = Removed::default();
        // Before the groups, which add index entries for the remaining owners.
        self.delete_from(OWNERS, batch)?;
        for set in self.nft.sets(rules::table(self.family))? {
            match Group::of_map(&set.name) {
                Some(group) => {
                    let Removed { flows, shared } = self.remove_from_group(&group, batch)?;
                    removed.flows.extend(flows);
                    removed.shared.extend(shared);
                }
                None if hairpin::length(&set.name).is_some() => {
                    self.delete_from(&set.name, batch)?;
                }
                // The other sets of a group are handled with its map.
                None => {}
            }
        }
        Ok(removed)
    }

    fn remove_from_group(&self, group: &Group, batch: &mut Batch) -> Result<Removed> {
        let table = rules::table(self.family);
        let (mut gone, mut kept) = self.delete_from(&group.published(), batch)?;
        let (gone_on, kept_on) = self.delete_from(&group.published_on(), batch)?;
        if gone.is_empty() && gone_on.is_empty() {
            return Ok(Removed::default());
        }
        let ports_on = group.published_on_ports();
        let (gone_ports, _) = self.delete_from(&ports_on, batch)?;
        let mut shared = Vec::new();
        let mut ports: Vec<_> = gone_on.iter().filter_map(port_of).collect();
        ports.sort_unstable();
        ports.dedup();
        for key in ports {
            let mut owners = kept_on.iter().filter(|element| element.key.ends_with(&key));
            let Some(next) = owners.next() else { continue };
            if let Some(port) = gone_ports.iter().find(|port| port.key == key) {
                // The element passes to an owner that still has the port on another address.
                let next = Element { comment: next.comment.clone(), ..port.clone() };
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
        if kept.is_empty() && !group.is_main() && self.in_use != Some(group) {
            self.remove_group(group, batch)?;
        }
        let flows = gone.iter().filter_map(|element| self.udp_flows(element)).collect();
        Ok(Removed { flows, shared })
    }

    /// Deletes the elements of the owners. Returns them, and the remaining ones.
    fn delete_from(&self, set: &str, batch: &mut Batch) -> Result<(Vec<Element>, Vec<Element>)> {
        let table = rules::table(self.family);
        let elements = self.nft.elements(table, set)?;
        let (gone, kept): (Vec<Element>, _) =
            elements.into_iter().partition(|element| shared_rules::is_of(element, self.owners));
        let keys: Vec<Vec<u8>> = gone.iter().map(|element| element.key.clone()).collect();
        batch.delete_elements(table, set, &keys);
        Ok((gone, kept))
    }

    /// Deletes an empty group.
    fn remove_group(&self, group: &Group, batch: &mut Batch) -> Result<()> {
        let table = rules::table(self.family);
        let (main, chain) = (Group::main().chain(), group.chain());
        for rule in self.nft.rules_of(table, &main)? {
            if rule.leads_to() == Some(chain.as_str()) {
                batch.delete_rule(table, &main, rule.handle);
            }
        }
        batch.delete_chain(table, &chain);
        for set in group.sets() {
            batch.delete_set(table, &set);
        }
        Ok(())
    }

    /// The connections to a published UDP port. TCP connections end by themselves.
    fn udp_flows(&self, element: &Element) -> Option<Flows> {
        let [protocol, _, _, _, high, low, _, _] = *port_of(element)?.as_array()?;
        if protocol != Transport::Udp.number() {
            return None;
        }
        let target = self.target(element)?;
        let port = u16::from_be_bytes([high, low]);
        Some(Flows::to_port(self.family, Transport::Udp, port).answered_by(target))
    }

    /// The address of the container.
    fn target(&self, element: &Element) -> Option<IpAddr> {
        let Some(Datum::Value(target)) = &element.data else { return None };
        match self.family {
            IpFamily::V4 => Some((*target.first_chunk::<4>()?).into()),
            IpFamily::V6 => Some((*target.first_chunk::<16>()?).into()),
        }
    }
}

impl Own {
    /// The keys of the ports that are published on single host addresses.
    fn ports_on(&self) -> impl Iterator<Item = Vec<u8>> {
        let set = self.group.published_on();
        let on = self.published.iter().filter(move |(name, _)| *name == set);
        on.filter_map(|(_, element)| port_of(element))
    }
}

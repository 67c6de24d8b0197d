//! The port bindings of attachments: elements of maps and sets, with the owner as comment. ADD publishes them, CHECK
//! compares them. `removal` deletes them for DEL, GC and a repeated ADD.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::config::{Mapping, Settings, Snat, transport_name};
use super::rules::{
    self, Group, OWNERS, Rules, count_key, location, owner_key, port_key, port_of, shared_element,
};
use crate::compat::host_ports::{self, HostPort};
use crate::error::{Error, Result};
use crate::names::IpFamily;
use crate::netlink::nft::{Batch, Datum, Element, Nft, Object, Value, pack};
use crate::plugin::life;
use crate::plugin::owner::Owner;
use crate::steps::nft::hairpin::{self, Sources};
use crate::steps::nft::shared_set::SharedSet;
use crate::steps::nft::{localnet, shared_rules, targets};

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
    /// The name of the element in errors, for example `host port tcp 8080`.
    title: String,
}

/// The existing elements and sets, read before an attachment publishes its ports.
#[derive(Default)]
pub struct Existing {
    /// The attachment has elements from an earlier ADD. The batch removes them, except masqueraded sources.
    pub is_published: bool,
    /// The container already publishes one of the ports in another network, so the ports need a secondary group.
    needs_secondary: bool,
    /// The keys of ports that other owners publish on other host addresses.
    pub shared: Vec<Vec<u8>>,
    /// The names of all sets and maps of the table.
    sets: Vec<String>,
}

/// The relation of the owner of an element to the attachment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relation {
    Own,
    /// The owner is another attachment of the same container. Both may publish a port: packets may take either interface.
    SameContainer,
    Other,
}

/// A key of a set or map that only one container may have, with the mapping that needs the key.
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

    /// A copy of these bindings: in the secondary group if the existing elements require it, else in the same group.
    pub fn in_group_for(&self, existing: &Existing) -> Self {
        if existing.needs_secondary { self.secondary() } else { self.clone() }
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

    /// The shared rules that these bindings need, with the rules that masquerade `sources`.
    fn rules(&self, mut sources: Vec<Sources>) -> Rules<'_> {
        sources.sort_unstable();
        sources.dedup();
        Rules { family: self.family, settings: self.settings, group: &self.group, sources }
    }

    /// The subnets whose packets are masqueraded, each with its set of sources.
    fn sources_and_nets(&self) -> Vec<(Sources, IpNet)> {
        let bit = self.settings.mark_bit;
        let with_sources = |net: IpNet| (Sources { prefix_length: net.prefix_len(), bit }, net);
        self.sources().into_iter().map(with_sources).collect()
    }

    /// The subnets whose packets to the published ports are masqueraded.
    fn sources(&self) -> Vec<IpNet> {
        let loopback = Some(localnet::loopback()).filter(|net| self.family.has(net.addr()));
        match self.settings.snat {
            Snat::Off => Vec::new(),
            // 127.0.0.0/8 is always first, so that the rules always have the same order.
            Snat::Local => loopback.into_iter().chain([self.address.trunc()]).collect(),
            Snat::All => vec![self.family.everything()],
        }
    }

    /// Adds the missing rules and elements. The batch already removes the elements that an earlier ADD of the attachment added.
    pub fn publish(&self, nft: &Nft, batch: &mut Batch, existing: &Existing) -> Result<()> {
        self.add_rules_and_sources(nft, batch, existing)?;
        let table = rules::table(self.family);
        let comment = shared_rules::comment(self.owner)?;
        let element = |expected: &Expected| Element {
            key: expected.key.clone(),
            data: expected.data.clone().map(Datum::Value),
            comment: Some(comment.clone()),
        };
        let published = self.published();
        // The index entry comes first: a DEL without configuration then finds the owner, also if the kernel made only a part of
        // the transaction.
        batch.add_elements(table, OWNERS, &[element(&self.index_entry())]);
        let [any, on, _] = self.group.sets();
        for set in [any, on] {
            let of_set = published.iter().filter(|expected| expected.set == set);
            batch.add_elements(table, &set, &of_set.map(element).collect::<Vec<_>>());
        }
        for expected in self.ports_on() {
            // The element can exist, because another attachment can publish the port on another address.
            batch.ensure_elements(table, &expected.set, &[element(&expected)]);
        }
        if self.group.is_main() {
            let shared =
                self.ports_on().into_iter().filter(|port| existing.shared.contains(&port.key));
            let shared: Vec<Element> =
                shared.map(|port| shared_element(&port.key, Some(comment.clone()))).collect();
            batch.ensure_elements(table, OWNERS, &shared);
        }
        self.add_unmasqueraded(nft, batch, existing)?;
        let mut shared = self.masqueraded();
        if existing.sets.iter().any(|set| set == targets::SET) {
            shared.extend(self.targets());
        }
        let mut sets: Vec<String> = shared.iter().map(|expected| expected.set.clone()).collect();
        if existing.is_published {
            // An earlier ADD can have added elements to other shared sets: `put_all` removes them.
            sets.extend(existing.sets.iter().filter(|set| is_shared(set)).cloned());
        }
        sets.sort_unstable();
        sets.dedup();
        for name in &sets {
            let of_set = shared.iter().filter(|expected| expected.set == *name);
            let wanted: Vec<Element> = of_set.map(element).collect();
            let set = SharedSet { table, name };
            if existing.is_published {
                set.put_all(nft, batch, self.owner.as_str(), &wanted)?;
            } else {
                let keys: Vec<Vec<u8>> = wanted.iter().map(|wanted| wanted.key.clone()).collect();
                set.put(nft, batch, self.owner.as_str(), &keys, &wanted)?;
            }
        }
        let count = Expected { key: count_key(self.owner, published.len()), ..self.index_entry() };
        batch.add_elements(table, OWNERS, &[element(&count)]);
        Ok(())
    }

    /// Adds the shared rules that are missing, and the masqueraded sources. If a set of sources is new, also adds the sources
    /// of the pairs `source . container` that an earlier release added.
    fn add_rules_and_sources(
        &self,
        nft: &Nft,
        batch: &mut Batch,
        existing: &Existing,
    ) -> Result<()> {
        let names = || existing.sets.iter().map(String::as_str);
        let has_sources =
            |length| names().filter_map(Sources::of).any(|sources| sources.prefix_length == length);
        let mut all = Sources::of_table(names());
        let sources_and_nets = self.sources_and_nets();
        all.extend(sources_and_nets.iter().map(|(sources, _)| *sources));
        self.rules(all.clone()).ensure(nft, batch)?;
        all.sort_unstable();
        all.dedup();
        let table = rules::table(self.family);
        let comment = shared_rules::comment(self.owner)?;
        for sources in all {
            let of_sources = sources_and_nets.iter().filter(|(own, _)| *own == sources);
            let element = |(_, net): &(Sources, IpNet)| {
                let key = pack(&[Value::Address(net.network())]);
                Element { key, data: None, comment: Some(comment.clone()) }
            };
            let mut wanted: Vec<Element> = of_sources.map(element).collect();
            let masqueraded = hairpin::set(sources.prefix_length);
            if names().any(|set| set == sources.set()) {
                if existing.is_published {
                    // An earlier ADD can have added other sources for this owner.
                    let mut leaving = nft.elements(table, &sources.set())?;
                    leaving.retain(|found| is_of(found, self.owner) && !wanted.contains(found));
                    let is_own = |part: &Element| is_of(part, self.owner);
                    hairpin::pass_on(nft, batch, (table, sources), &leaving, &is_own)?;
                }
            } else if names().any(|set| set == masqueraded) && !has_sources(sources.prefix_length) {
                let parts = SharedSet { table, name: &masqueraded }.all_elements(nft)?;
                wanted.extend(parts.iter().map(hairpin::source_of));
                wanted.sort_by(|one, other| one.key.cmp(&other.key));
                wanted.dedup_by(|one, other| one.key == other.key);
            }
            hairpin::add(batch, self.family, sources, &wanted);
        }
        Ok(())
    }

    /// Adds to the set `portmap-unmasqueraded` the ports of this attachment that packets from 127.0.0.1 do not reach. If the
    /// set is new, also adds such ports that an earlier release published.
    fn add_unmasqueraded(&self, nft: &Nft, batch: &mut Batch, existing: &Existing) -> Result<()> {
        if self.family == IpFamily::V6 {
            return Ok(());
        }
        let table = rules::table(self.family);
        let comment = shared_rules::comment(self.owner)?;
        let own = self.unmasqueraded();
        let own = own.iter().map(|port| Element {
            key: port.key.clone(),
            data: None,
            comment: Some(comment.clone()),
        });
        let own = own.collect::<Vec<_>>();
        batch.add_elements(table, &self.group.unmasqueraded(), &own);
        let has = |set: &String| existing.sets.contains(set);
        let mut groups = vec![Group::main(), self.group.clone()];
        groups.dedup();
        for group in groups {
            if has(&group.published()) && !has(&group.unmasqueraded()) {
                let former = unmasqueraded_before(nft, &group, self.owner)?;
                batch.ensure_elements(table, &group.unmasqueraded(), &former);
            }
        }
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

    /// Whether cnibox published the ports: then the index has the owner. The Go plugin has no index.
    pub fn are_registered(&self, nft: &Nft) -> Result<bool> {
        index_has(nft, self.family, self.owner, owner_key(self.owner))
    }

    /// Whether the map of the group has the first port of these bindings, with the owner of these bindings.
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
        let unmasqueraded = self.group.unmasqueraded();
        if nft.exist(&[Object::Set(table, &unmasqueraded)])? == [true] {
            all.extend(self.unmasqueraded());
        }
        if nft.exist(&[Object::Set(table, targets::SET)])? == [true] {
            all.extend(self.targets());
        }
        let comment = shared_rules::comment(self.owner)?;
        for expected in &all {
            let data = expected.data.clone().map(Datum::Value);
            let wanted =
                Element { key: expected.key.clone(), data, comment: Some(comment.clone()) };
            if !(SharedSet { table, name: &expected.set }).has(nft, &wanted)? {
                return Err(Error::internal(format_args!(
                    "{} of {} not found in set {} of table {table}",
                    expected.title, self.owner, expected.set
                )));
            }
        }
        for (sources, net) in self.sources_and_nets() {
            let (set, key) = (sources.set(), pack(&[Value::Address(net.network())]));
            let is_there = nft.exist(&[Object::Set(table, &set)])? == [true];
            if is_there && nft.elements_at(table, &set, &[key])? == [None] {
                let msg = format!("source {net} not found in set {set} of table {table}");
                return Err(Error::internal(msg));
            }
        }
        self.rules(self.sources_and_nets().into_iter().map(|(sources, _)| sources).collect())
            .check(nft)
    }

    fn published(&self) -> Vec<Expected> {
        let expected = |mapping: &Mapping| {
            let (set, key) = location(&self.group, mapping);
            let target = [Value::Address(self.address.addr()), Value::Port(mapping.container_port)];
            Expected { set, key, data: Some(pack(&target)), title: title(mapping) }
        };
        self.mappings().map(expected).collect()
    }

    /// The elements of `portmap-published-on-ports`: the ports that are published on single host addresses.
    fn ports_on(&self) -> Vec<Expected> {
        let on = self.mappings().filter(|mapping| mapping.host_ip.one().is_some());
        let expected = |mapping: &Mapping| Expected {
            set: self.group.published_on_ports(),
            key: key_of(mapping),
            data: None,
            title: title(mapping),
        };
        on.map(expected).collect()
    }

    fn masqueraded(&self) -> Vec<Expected> {
        let expected = |source: &IpNet| Expected {
            set: hairpin::set(source.prefix_len()),
            key: hairpin::key(source, self.address.addr()),
            data: None,
            title: format!("masquerading of {source}"),
        };
        self.sources().iter().map(expected).collect()
    }

    /// The elements of `portmap-unmasqueraded`: without `snat`, the IPv4 ports that are published on all addresses. Packets
    /// from 127.0.0.1 to these ports stay on the host.
    fn unmasqueraded(&self) -> Vec<Expected> {
        let stays_on_host = |mapping: &&Mapping| {
            self.family == IpFamily::V4
                && self.settings.snat == Snat::Off
                && mapping.host_ip.one().is_none()
        };
        let expected = |mapping: &Mapping| Expected {
            set: self.group.unmasqueraded(),
            key: key_of(mapping),
            data: None,
            title: title(mapping),
        };
        self.mappings().filter(stays_on_host).map(expected).collect()
    }

    /// The elements of `portmap-targets`: the address and the ports of the container, without duplicates.
    fn targets(&self) -> Vec<Expected> {
        let key = |mapping: &Mapping| {
            targets::key(self.address.addr(), mapping.transport, mapping.container_port)
        };
        let expected = |(key, mapping): (Vec<u8>, &Mapping)| Expected {
            set: targets::SET.into(),
            key,
            data: None,
            title: format!("target of {}", title(mapping)),
        };
        let by_key: BTreeMap<Vec<u8>, &Mapping> =
            self.mappings().map(|mapping| (key(mapping), mapping)).collect();
        by_key.into_iter().map(expected).collect()
    }

    fn index_entry(&self) -> Expected {
        let title = "index entry".into();
        Expected { set: OWNERS.into(), key: owner_key(self.owner), data: None, title }
    }

    /// Reads the existing elements before ADD. Fails if another container has one of the ports on an overlapping address, or if
    /// an ended attachment of this container has one of the ports.
    ///
    /// Two lists of conditions certainly overlap if one is empty or both are equal; then the later ADD is refused. With other
    /// lists, attachments may share a port; then the group with the first jump in the main chain gets the packets.
    pub fn read_existing(&self, nft: &Nft) -> Result<Existing> {
        let table = rules::table(self.family);
        let sets = nft.sets(table)?.into_iter().map(|set| set.name).collect();
        let mut existing = Existing { sets, ..Existing::default() };
        let mut of_container = BTreeSet::new();
        for group in self.competing_groups(&existing.sets) {
            let exclusive: Vec<Exclusive<'_>> =
                self.mappings().flat_map(|mapping| exclusive(&group, mapping)).collect();
            for set in group.sets() {
                let of_set: Vec<&Exclusive<'_>> =
                    exclusive.iter().filter(|exclusive| exclusive.set == set).collect();
                let keys: Vec<Vec<u8>> =
                    of_set.iter().map(|exclusive| exclusive.key.clone()).collect();
                let found = nft.elements_at(table, &set, &keys)?;
                let mut present = Vec::new();
                for (exclusive, found) in of_set.iter().zip(found) {
                    let Some(found) = found else { continue };
                    match self.relation(&found) {
                        Relation::Own => existing.is_published = true,
                        Relation::SameContainer => {
                            existing.needs_secondary |= group == self.group;
                            of_container.extend(found.comment);
                        }
                        Relation::Other => return Err(taken_error(exclusive.mapping, &found)),
                    }
                    present.push(exclusive.mapping);
                }
                if set == group.published_on_ports() && !present.is_empty() {
                    // The element names one owner of the port; other owners can have the port on other addresses.
                    self.refuse_taken_on(nft, &group, &present)?;
                }
            }
        }
        // An attachment that has ended is from an earlier use of this container id.
        if let Some(ended) = of_container.iter().find(|owner| life::has_ended(owner)) {
            let msg = format!("cannot publish ports: {} has ended", Owner::title(ended));
            return Err(Error::internal(msg));
        }
        existing.shared = self.shared_ports(nft)?;
        Ok(existing)
    }

    /// The other owners that publish one of these ports, on any address. Some of these owners make `read_existing` fail.
    pub fn conflicting_owners(&self, nft: &Nft) -> Result<Vec<String>> {
        let ports: BTreeSet<Vec<u8>> = self.mappings().map(key_of).collect();
        let mut owners = Vec::new();
        let sets = nft.sets(rules::table(self.family))?;
        let sets: Vec<String> = sets.into_iter().map(|set| set.name).collect();
        for group in self.competing_groups(&sets) {
            for set in [group.published(), group.published_on()] {
                let elements = nft.elements(rules::table(self.family), &set)?.into_iter();
                let others = elements.filter(|found| {
                    port_of(found).is_some_and(|port| ports.contains(&port))
                        && !is_of(found, self.owner)
                });
                owners.extend(others.filter_map(|found| Some(found.comment?.to_string())));
            }
        }
        Ok(owners)
    }

    /// The ports of the Go plugin that conflict with these bindings, each with a mapping that needs the same port.
    pub fn published_by_reference(&self, nft: &Nft) -> Result<Vec<(&Mapping, HostPort)>> {
        let has_conditions = !self.settings.conditions(self.family).is_empty();
        let mut taken = Vec::new();
        for port in host_ports::all(nft, self.family)? {
            let is_same_port = |mapping: &&Mapping| {
                (mapping.transport, mapping.host_port) == (port.transport, port.port)
                    && mapping.host_ip.one().is_none_or(|ip| port.host_ip.is_none_or(|on| on == ip))
            };
            // Two lists of conditions can exclude each other.
            let may_coexist = has_conditions && port.has_conditions;
            if let Some(mapping) = self.mappings().find(is_same_port)
                && !may_coexist
            {
                taken.push((mapping, port));
            }
        }
        Ok(taken)
    }

    /// The keys of those ports of these bindings that other owners also publish, on other host addresses.
    fn shared_ports(&self, nft: &Nft) -> Result<Vec<Vec<u8>>> {
        let keys: Vec<Vec<u8>> = self.ports_on().into_iter().map(|port| port.key).collect();
        let set = Group::main().published_on_ports();
        let found = nft.elements_at(rules::table(self.family), &set, &keys)?;
        let others = found.into_iter().flatten().filter(|found| !is_of(found, self.owner));
        Ok(others.map(|found| found.key).collect())
    }

    /// The existing groups whose conditions certainly overlap with those of these bindings.
    fn competing_groups(&self, sets: &[String]) -> Vec<Group> {
        let groups = sets.iter().filter_map(|set| Group::with_map(set));
        groups.filter(|group| group.competes_with(&self.group)).collect()
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

    /// Fails if another container has one of the ports on a single address.
    fn refuse_taken_on(&self, nft: &Nft, group: &Group, mappings: &[&Mapping]) -> Result<()> {
        let ports: BTreeMap<Vec<u8>, &Mapping> =
            mappings.iter().map(|mapping| (key_of(mapping), *mapping)).collect();
        for found in nft.elements(rules::table(self.family), &group.published_on())? {
            let mapping = port_of(&found).and_then(|port| ports.get(&port));
            if let Some(mapping) = mapping
                && self.relation(&found) == Relation::Other
            {
                return Err(taken_error(mapping, &found));
            }
        }
        Ok(())
    }
}

/// Whether several owners can need the same element of the set: true for `portmap-masqueraded-N` and `portmap-targets`.
pub fn is_shared(set: &str) -> bool {
    hairpin::length(set).is_some() || set == targets::SET
}

/// The key `protocol . port` of a mapping's host port.
fn key_of(mapping: &Mapping) -> Vec<u8> {
    port_key(mapping.transport, mapping.host_port)
}

/// The keys in the maps and sets of a group that no other container may have if a container publishes this mapping.
fn exclusive<'a>(group: &Group, mapping: &'a Mapping) -> [Exclusive<'a>; 2] {
    let port = key_of(mapping);
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

/// The ports of a group that an earlier release published without `snat`: no element of `portmap-masqueraded-N` pairs
/// 127.0.0.1 with the container.
fn unmasqueraded_before(nft: &Nft, group: &Group, except: &Owner) -> Result<Vec<Element>> {
    let table = rules::table(IpFamily::V4);
    let mut targets = BTreeSet::new();
    for net in [localnet::loopback(), IpFamily::V4.everything()] {
        let elements = nft.elements(table, &hairpin::set(net.prefix_len()))?.into_iter();
        let of_net = elements.filter_map(|element| {
            let (source, target) = element.key.split_at_checked(4)?;
            (source == pack(&[Value::Address(net.addr())])).then(|| target.to_vec())
        });
        targets.extend(of_net);
    }
    let published = nft.elements(table, &group.published())?.into_iter();
    let unmasqueraded = published.filter(|element| {
        let Some(Datum::Value(target)) = &element.data else { return false };
        !is_of(element, except) && target.get(..4).is_some_and(|target| !targets.contains(target))
    });
    Ok(unmasqueraded.map(|element| Element { data: None, ..element }).collect())
}

/// Whether the index `portmap-owners` has an element with this key and this owner.
pub fn index_has(nft: &Nft, family: IpFamily, owner: &Owner, key: Vec<u8>) -> Result<bool> {
    let found = nft.elements_at(rules::table(family), OWNERS, &[key])?;
    Ok(found.iter().flatten().any(|element| is_of(element, owner)))
}

/// Whether the comment of an element names the owner.
pub fn is_of(element: &Element, owner: &Owner) -> bool {
    element.comment.as_ref().is_some_and(|comment| **comment == *owner.as_str())
}

/// The name of a host port for errors: `host port tcp 8080`.
pub fn title(mapping: &Mapping) -> String {
    let on = mapping.host_ip.one().map_or_else(String::new, |ip| format!("{ip} "));
    format!("host port {on}{} {}", transport_name(mapping.transport), mapping.host_port)
}

fn taken_error(mapping: &Mapping, by: &Element) -> Error {
    let owner = by.comment.as_deref().unwrap_or_default();
    let (of, note) = (Owner::title(owner), life::owner_note(owner));
    Error::internal(format_args!("cannot publish {}: it is taken by {of}{note}", title(mapping)))
}

//! The port bindings of attachments: elements of maps and sets, with the owner as comment. ADD publishes them, CHECK
//! compares them. `removal` deletes them for DEL, GC and a repeated ADD.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::config::{Mapping, Settings, Snat, transport_name};
use super::rules::{
    self, Group, OWNERS, Rules, count_key, owner_key, port_key, port_of, shared_element,
};
use crate::compat::host_ports::{self, HostPort};
use crate::error::{Error, Result};
use crate::names::IpFamily;
use crate::netlink::nft::{Batch, Comment, Datum, Element, Nft, Object, Value, pack};
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
    /// The comment of the elements: the owner.
    comment: Comment,
}

/// An element that a port binding needs.
struct Expected {
    set: String,
    element: Element,
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

impl<'a> PortBindings<'a> {
    pub fn new(
        family: IpFamily,
        owner: &'a Owner,
        address: IpNet,
        settings: &'a Settings,
    ) -> Result<Self> {
        let group = Group::of(settings.conditions(family));
        let comment = shared_rules::comment(owner)?;
        Ok(Self { family, owner, address, settings, group, comment })
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
        self.settings.mappings_in(self.family)
    }

    /// Whether the family has no port to publish.
    pub fn is_empty(&self) -> bool {
        self.mappings().next().is_none()
    }

    /// The shared rules that these bindings need, with the rules that masquerade `sources`.
    fn rules(&self, sources: &BTreeSet<Sources>) -> Rules<'_> {
        let sources = sources.iter().copied().collect();
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
        let published = self.published();
        // The index entry comes first: a DEL without configuration then finds the owner, also if the kernel made only a part of
        // the transaction.
        batch.add_elements(table, OWNERS, &[self.index_entry().element]);
        for set in [self.group.published(), self.group.published_on()] {
            batch.add_elements(table, &set, &elements_of(&published, &set));
        }
        // The elements can exist, because other attachments can publish the ports on other addresses.
        let set = self.group.published_on_ports();
        let ports_on = elements_of(&self.ports_on(), &set);
        batch.ensure_elements(table, &set, &ports_on);
        if self.group.is_main() {
            let shared = ports_on.iter().filter(|port| existing.shared.contains(&port.key));
            let shared = shared.map(|port| shared_element(&port.key, port.comment.clone()));
            batch.ensure_elements(table, OWNERS, &shared.collect::<Vec<_>>());
        }
        self.add_unmasqueraded(nft, batch, existing)?;
        self.put_shared(nft, batch, existing)?;
        let count = count_key(self.owner, published.len());
        batch.add_elements(table, OWNERS, &[self.element(count)]);
        Ok(())
    }

    /// Adds the elements of sets in which several owners can need the same element.
    fn put_shared(&self, nft: &Nft, batch: &mut Batch, existing: &Existing) -> Result<()> {
        let mut shared = self.masqueraded();
        if existing.sets.iter().any(|set| set == targets::SET) {
            shared.extend(self.targets());
        }
        let mut sets: BTreeSet<&str> = shared.iter().map(|expected| &*expected.set).collect();
        if existing.is_published {
            // An earlier ADD can have added elements to other shared sets: `put_all` removes them.
            sets.extend(existing.sets.iter().map(String::as_str).filter(|set| is_shared(set)));
        }
        for name in sets {
            let wanted = elements_of(&shared, name);
            let set = SharedSet { table: rules::table(self.family), name };
            if existing.is_published {
                set.put_all(nft, batch, self.owner.as_str(), &wanted)?;
            } else {
                let keys: Vec<Vec<u8>> = wanted.iter().map(|wanted| wanted.key.clone()).collect();
                set.put(nft, batch, self.owner.as_str(), &keys, &wanted)?;
            }
        }
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
        let sources_and_nets = self.sources_and_nets();
        let own = sources_and_nets.iter().map(|(sources, _)| *sources);
        let all: BTreeSet<Sources> = Sources::of_table(names()).into_iter().chain(own).collect();
        self.rules(&all).ensure(nft, batch)?;
        let table = rules::table(self.family);
        for sources in all {
            let of_sources = sources_and_nets.iter().filter(|(own, _)| *own == sources);
            let element = |(_, net): &(Sources, IpNet)| self.element(source_key(net));
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
        let set = self.group.unmasqueraded();
        batch.add_elements(table, &set, &elements_of(&self.unmasqueraded(), &set));
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

    /// Whether the map of the group has the first port of these bindings, with the owner of these bindings.
    fn has_first_port(&self, nft: &Nft) -> Result<bool> {
        let Some(Expected { set, element, .. }) = self.published().into_iter().next() else {
            return Ok(false);
        };
        let found = nft.elements_at(rules::table(self.family), &set, &[element.key])?;
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
        for expected in &all {
            if !(SharedSet { table, name: &expected.set }).has(nft, &expected.element)? {
                return Err(Error::internal(format_args!(
                    "{} of {} not found in set {} of table {table}",
                    expected.title, self.owner, expected.set
                )));
            }
        }
        let sources_and_nets = self.sources_and_nets();
        for (sources, net) in &sources_and_nets {
            let set = sources.set();
            let is_there = nft.exist(&[Object::Set(table, &set)])? == [true];
            if is_there && nft.elements_at(table, &set, &[source_key(net)])? == [None] {
                let msg = format!("source {net} not found in set {set} of table {table}");
                return Err(Error::internal(msg));
            }
        }
        self.rules(&sources_and_nets.into_iter().map(|(sources, _)| sources).collect()).check(nft)
    }

    /// An element of this owner, without data.
    fn element(&self, key: Vec<u8>) -> Element {
        Element { key, data: None, comment: Some(self.comment.clone()) }
    }

    /// The element of a mapping in a set of host ports.
    fn port_in(&self, set: String, mapping: &Mapping) -> Expected {
        Expected { set, element: self.element(port_key(mapping)), title: title(mapping) }
    }

    fn published(&self) -> Vec<Expected> {
        let expected = |mapping: &Mapping| {
            let target = [Value::Address(self.address.addr()), Value::Port(mapping.container_port)];
            let data = Some(Datum::Value(pack(&target)));
            let element = Element { data, ..self.element(rules::key(mapping)) };
            Expected { set: self.group.map_of(mapping), element, title: title(mapping) }
        };
        self.mappings().map(expected).collect()
    }

    /// The elements of `portmap-published-on-ports`: the ports that are published on single host addresses.
    fn ports_on(&self) -> Vec<Expected> {
        let on = self.mappings().filter(|mapping| mapping.host_ip.one().is_some());
        on.map(|mapping| self.port_in(self.group.published_on_ports(), mapping)).collect()
    }

    fn masqueraded(&self) -> Vec<Expected> {
        let expected = |source: &IpNet| Expected {
            set: hairpin::set(source.prefix_len()),
            element: self.element(hairpin::key(source, self.address.addr())),
            title: format!("masquerading of {source}"),
        };
        self.sources().iter().map(expected).collect()
    }

    /// The elements of `portmap-unmasqueraded`: without `snat`, the IPv4 ports that are published on all addresses. Packets
    /// from 127.0.0.1 to these ports stay on the host.
    fn unmasqueraded(&self) -> Vec<Expected> {
        if self.family == IpFamily::V6 || self.settings.snat != Snat::Off {
            return Vec::new();
        }
        let on_all = self.mappings().filter(|mapping| mapping.host_ip.one().is_none());
        on_all.map(|mapping| self.port_in(self.group.unmasqueraded(), mapping)).collect()
    }

    /// The elements of `portmap-targets`: the address and the ports of the container, without duplicates.
    fn targets(&self) -> Vec<Expected> {
        let target = |mapping: &Mapping| {
            let (address, port) = (self.address.addr(), mapping.container_port);
            let key = targets::key(address, mapping.transport, port);
            let title = format!("target of {}", title(mapping));
            let set = targets::SET.to_owned();
            (key.clone(), Expected { set, element: self.element(key), title })
        };
        self.mappings().map(target).collect::<BTreeMap<_, _>>().into_values().collect()
    }

    fn index_entry(&self) -> Expected {
        let element = self.element(owner_key(self.owner));
        Expected { set: OWNERS.into(), element, title: "index entry".into() }
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
            for (index, set) in group.sets().into_iter().enumerate() {
                let key = |mapping| exclusive(mapping)[index].clone();
                let of_set = self.mappings().filter_map(|mapping| Some((mapping, key(mapping)?)));
                let of_set: Vec<(&Mapping, Vec<u8>)> = of_set.collect();
                let keys: Vec<Vec<u8>> = of_set.iter().map(|(_, key)| key.clone()).collect();
                let found = nft.elements_at(table, &set, &keys)?;
                let mut present = Vec::new();
                for ((mapping, _), found) in of_set.into_iter().zip(found) {
                    let Some(found) = found else { continue };
                    if is_of(&found, self.owner) {
                        existing.is_published = true;
                    } else if self.is_of_container(&found) {
                        existing.needs_secondary |= group == self.group;
                        of_container.extend(found.comment);
                    } else {
                        return Err(taken_error(mapping, &found));
                    }
                    present.push(mapping);
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
        let ports: BTreeSet<Vec<u8>> = self.mappings().map(port_key).collect();
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
        let keys: Vec<Vec<u8>> = self.ports_on().into_iter().map(|port| port.element.key).collect();
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

    /// Whether the owner of an element is an attachment of the same container. Both may publish a port: packets may take either
    /// interface.
    fn is_of_container(&self, found: &Element) -> bool {
        let container = |text| Owner::parts(text).map(|[_, container, _]| container);
        let other = found.comment.as_deref().and_then(container);
        other.is_some() && other == container(self.owner.as_str())
    }

    /// Fails if another container has one of the ports on a single address.
    fn refuse_taken_on(&self, nft: &Nft, group: &Group, mappings: &[&Mapping]) -> Result<()> {
        let ports: BTreeMap<Vec<u8>, &Mapping> =
            mappings.iter().map(|mapping| (port_key(mapping), *mapping)).collect();
        for found in nft.elements(rules::table(self.family), &group.published_on())? {
            let mapping = port_of(&found).and_then(|port| ports.get(&port));
            if let Some(mapping) = mapping
                && !is_of(&found, self.owner)
                && !self.is_of_container(&found)
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

/// The keys of a mapping in the three sets of a group that no other container may have.
fn exclusive(mapping: &Mapping) -> [Option<Vec<u8>>; 3] {
    let port = port_key(mapping);
    match mapping.host_ip.one() {
        Some(_) => [Some(port), Some(rules::key(mapping)), None],
        None => [Some(port.clone()), None, Some(port)],
    }
}

/// The key of a subnet in a set of sources.
fn source_key(net: &IpNet) -> Vec<u8> {
    pack(&[Value::Address(net.network())])
}

/// The elements of one set.
fn elements_of(all: &[Expected], set: &str) -> Vec<Element> {
    let of_set = all.iter().filter(|expected| expected.set == set);
    of_set.map(|expected| expected.element.clone()).collect()
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

/// Whether the index has the owner: then cnibox published its ports. The Go plugin has no index.
pub fn is_registered(nft: &Nft, family: IpFamily, owner: &Owner) -> Result<bool> {
    index_has(nft, family, owner, owner_key(owner))
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

//! The port bindings of attachments: elements of maps and sets, with the owner as comment. ADD publishes them, CHECK
//! compares them. `removal` deletes them for DEL, GC and a repeated ADD.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::config::{Mapping, Settings, Snat};
use super::rules::{self, Group, Rules, port_element, port_key, port_of};
use crate::attachments::life;
use crate::attachments::owner::Owner;
use crate::error::{Error, Result};
use crate::names::{Attachment, IpFamily, NetworkName};
use crate::netlink::nft::{Batch, Comment, Datum, Element, Nft, Value, pack};
use crate::netlink::octets;
use crate::rules::compat::host_ports::{self, HostPort};
use crate::rules::hairpin::{self, Sources};
use crate::rules::shared_rules;
use crate::rules::shared_set::SharedSet;
use crate::rules::{localnet, targets};

/// The port bindings of one attachment in one family.
#[derive(Clone)]
pub struct PortBindings<'a> {
    pub family: IpFamily,
    /// The comment of the elements: the owner.
    pub owner: &'a Comment,
    /// The address of the container, with the prefix length of its subnet.
    pub address: IpNet,
    pub settings: &'a Settings,
    pub group: Group,
}

/// An element that a port binding needs.
struct Expected {
    set: String,
    element: Element,
    /// The name of the element in errors, for example `host port tcp 8080`.
    title: String,
}

/// The existing elements and sets, read before an attachment publishes its ports.
pub struct Existing {
    /// The attachment may have elements from an earlier ADD. The batch removes them, except masqueraded sources.
    pub is_published: bool,
    /// The container already publishes one of the ports in another network, so the ports need a secondary group.
    pub needs_secondary: bool,
    /// The names of all sets and maps of the table.
    sets: Vec<String>,
}

impl<'a> PortBindings<'a> {
    pub fn new(owner: &'a Comment, address: IpNet, settings: &'a Settings) -> Self {
        let family = IpFamily::of(address.addr());
        Self { family, owner, address, settings, group: Group::of(settings.conditions(family)) }
    }

    /// These bindings in the secondary group.
    pub fn secondary(&self) -> Self {
        let [_, _, interface] = Owner::parts(self.owner).unwrap_or_default();
        Self { group: self.group.secondary(interface), ..self.clone() }
    }

    pub fn mappings(&self) -> impl Iterator<Item = &'a Mapping> + use<'a> {
        self.settings.mappings_in(self.family)
    }

    /// The shared rules that these bindings need, with the rules that masquerade `sources`, which are sorted.
    fn rules(&self, sources: Vec<Sources>) -> Rules<'_> {
        Rules { family: self.family, settings: self.settings, group: &self.group, sources }
    }

    /// The subnets whose packets to the published ports are masqueraded, each with its set of sources.
    fn sources(&self) -> Vec<(Sources, IpNet)> {
        let loopback = Some(localnet::loopback()).filter(|net| self.family.has(net.addr()));
        let nets = match self.settings.snat {
            Snat::Off => Vec::new(),
            // 127.0.0.0/8 is always first, so that the rules always have the same order.
            Snat::Local => loopback.into_iter().chain([self.address.trunc()]).collect(),
            Snat::All => vec![self.family.everything()],
        };
        let bit = self.settings.mark_bit;
        let sources = |net: &IpNet| Sources { prefix_length: net.prefix_len(), bit };
        nets.into_iter().map(|net| (sources(&net), net)).collect()
    }

    /// Adds the missing rules and elements. The batch already removes the elements that an earlier ADD of the attachment added.
    pub fn publish(&self, nft: &Nft, batch: &mut Batch, existing: &Existing) -> Result<()> {
        let mut sources: BTreeSet<Sources> =
            self.sources().into_iter().map(|(sources, _)| sources).collect();
        sources.extend(Sources::of_table(existing.sets.iter().map(String::as_str)));
        self.rules(sources.iter().copied().collect()).ensure(nft, batch)?;
        let table = rules::table(self.family);
        let published = self.published();
        // They come first: if the kernel makes only a part of the transaction, a DEL without a record finds the owner by them.
        for set in [self.group.published(), self.group.published_on()] {
            batch.add_elements(table, &set, &elements_of(&published, &set));
        }
        let set = self.group.published_on_ports();
        let ports_on = elements_of(&published, &self.group.published_on());
        let ports_on: Vec<Element> = ports_on.iter().map(port_element).collect();
        let of_others = self.ports_of_others(nft)?;
        batch.delete_elements(table, &set, &of_others);
        let of_several = of_others.into_iter().map(|port| Element { comment: None, ..port });
        batch.add_elements(table, &set, &of_several.collect::<Vec<_>>());
        batch.ensure_elements(table, &set, &ports_on);
        self.add_unmasqueraded(nft, batch, existing)?;
        self.add_sources(nft, batch, existing, sources)?;
        self.put_shared(nft, batch, existing)
    }

    /// Adds the elements of sets in which several owners can need the same element.
    fn put_shared(&self, nft: &Nft, batch: &mut Batch, existing: &Existing) -> Result<()> {
        let mut shared = self.masqueraded();
        shared.extend(
            self.targets().into_iter().filter(|target| existing.sets.contains(&target.set)),
        );
        let mut sets: BTreeSet<&str> = shared.iter().map(|expected| &*expected.set).collect();
        if existing.is_published {
            // An earlier ADD can have added elements to other shared sets.
            sets.extend(existing.sets.iter().map(String::as_str).filter(|set| is_shared(set)));
        }
        for name in sets {
            let set = SharedSet::new(self.family, name);
            let wanted = elements_of(&shared, name);
            let mut keys: Vec<Vec<u8>> = wanted.iter().map(|wanted| wanted.key.clone()).collect();
            if existing.is_published {
                let own = set.all_elements(nft)?.into_iter().filter(|own| is_of(own, self.owner));
                keys.extend(own.map(|own| own.key));
            }
            set.put(nft, batch, self.owner, &keys, &wanted)?;
        }
        Ok(())
    }

    /// Adds the masqueraded sources. If a set of sources is new, also adds the sources of the pairs `source . container` that an
    /// earlier release added.
    fn add_sources(
        &self,
        nft: &Nft,
        batch: &mut Batch,
        existing: &Existing,
        all: BTreeSet<Sources>,
    ) -> Result<()> {
        let names = || existing.sets.iter().map(String::as_str);
        let has_sources =
            |length| names().filter_map(Sources::of).any(|sources| sources.prefix_length == length);
        let own = self.sources();
        let table = rules::table(self.family);
        for sources in all {
            let of_sources = own.iter().filter(|(own, _)| *own == sources);
            let mut wanted: Vec<Element> =
                of_sources.map(|(_, net)| self.element(source_key(net))).collect();
            let masqueraded = hairpin::set(sources.prefix_length);
            if existing.sets.contains(&sources.set()) {
                if existing.is_published {
                    // An earlier ADD can have added other sources for this owner.
                    let is_own = |found: &Element| is_of(found, self.owner);
                    let mut leaving = nft.elements(table, &sources.set())?;
                    leaving.retain(|found| is_own(found) && !wanted.contains(found));
                    hairpin::pass_on(nft, batch, (table, sources), &leaving, &is_own)?;
                }
            } else if existing.sets.contains(&masqueraded) && !has_sources(sources.prefix_length) {
                let pairs = SharedSet::new(self.family, &masqueraded).all_elements(nft)?;
                wanted.extend(pairs.iter().map(hairpin::source_of));
            }
            // A source that exists keeps its owner.
            batch.ensure_elements(table, &sources.set(), &wanted);
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
        for group in self.group.with_main() {
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

    /// Whether a map has the first port of these bindings, with the owner of these bindings. False if the Go plugin published it.
    pub fn is_published(&self, nft: &Nft) -> Result<bool> {
        Ok(self.has_first_port(nft)? || self.secondary().has_first_port(nft)?)
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
        let sets = set_names(nft, self.family)?;
        let mut all = self.published();
        all.extend(self.masqueraded());
        let if_any = self.unmasqueraded().into_iter().chain(self.targets());
        all.extend(if_any.filter(|expected| sets.contains(&expected.set)));
        for expected in &all {
            if !SharedSet::new(self.family, &expected.set).has(nft, &expected.element)? {
                let missing = Error::difference(format_args!("{} is missing", expected.title));
                let missing = missing.with_details(format_args!(
                    "no element of {} in set {} of table {table}",
                    self.owner, expected.set
                ));
                return Err(shared_rules::missing_in_set(nft, table, &expected.set, missing)?);
            }
        }
        let sources = self.sources();
        for (sources, net) in &sources {
            let set = sources.set();
            if sets.contains(&set) && nft.elements_at(table, &set, &[source_key(net)])? == [None] {
                let missing = Error::difference(format_args!("masquerading of {net} is missing"));
                // All attachments with this source need it.
                return Err(missing
                    .with_details(format_args!("no element in set {set} of table {table}"))
                    .of_shared(format_args!("source {net} of set {set} of table {table}")));
            }
        }
        let sources: BTreeSet<Sources> = sources.into_iter().map(|(sources, _)| sources).collect();
        self.rules(sources.into_iter().collect()).check(nft, &sets)
    }

    /// An element of this owner, without data.
    fn element(&self, key: Vec<u8>) -> Element {
        Element { key, data: None, comment: Some(self.owner.clone()) }
    }

    fn published(&self) -> Vec<Expected> {
        let expected = |mapping: &Mapping| {
            let target = [Value::Address(self.address.addr()), Value::Port(mapping.container_port)];
            let data = Some(Datum::Value(pack(&target)));
            let element = Element { data, ..self.element(rules::key(mapping)) };
            Expected { set: self.group.map_of(&element.key), element, title: title(mapping) }
        };
        self.mappings().map(expected).collect()
    }

    fn masqueraded(&self) -> Vec<Expected> {
        let expected = |(_, source): &(Sources, IpNet)| Expected {
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
        let expected = |mapping: &Mapping| Expected {
            set: self.group.unmasqueraded(),
            element: self.element(port_key(mapping)),
            title: title(mapping),
        };
        on_all.map(expected).collect()
    }

    /// The elements of `portmap-targets`: the address and the ports of the container, without duplicates.
    fn targets(&self) -> Vec<Expected> {
        let target = |published: Expected| {
            let element = targets::of(&published.element)?;
            let title = format!("target of {}", published.title);
            Some((element.key.clone(), Expected { set: targets::SET.into(), element, title }))
        };
        let targets: BTreeMap<_, _> = self.published().into_iter().filter_map(target).collect();
        targets.into_values().collect()
    }

    /// Reads the existing elements before ADD. Fails if another container has one of the ports on an overlapping address, or if
    /// an ended attachment of this container has one of the ports.
    pub fn read_existing(&self, nft: &Nft) -> Result<Existing> {
        let mut existing = Existing {
            is_published: false,
            needs_secondary: false,
            sets: set_names(nft, self.family)?,
        };
        let mut of_container = BTreeSet::new();
        for (group, mapping, found) in self.competing(nft, &existing.sets)? {
            let owner = found.comment.as_deref().unwrap_or_default();
            if is_of(&found, self.owner) {
                existing.is_published = true;
            } else if container_of(owner).is_none_or(|id| Some(id) != container_of(self.owner)) {
                let (of, note) = (Owner::title(owner), life::owner_note(owner));
                let title = title(mapping);
                let msg = format_args!("cannot publish {title}: it is taken by {of}{note}");
                return Err(Error::internal(msg));
            } else {
                // An attachment of the same container: packets may take either interface.
                existing.needs_secondary |= group == self.group;
                of_container.extend(found.comment);
            }
        }
        // An attachment that has ended is from an earlier use of this container id.
        if let Some(ended) = of_container.iter().find(|owner| life::has_ended(owner)) {
            let msg = format!("cannot publish ports: {} has ended", Owner::title(ended));
            return Err(Error::internal(msg));
        }
        Ok(existing)
    }

    /// The other owners that make `read_existing` fail, or of which one makes it fail.
    pub fn conflicting_owners(&self, nft: &Nft) -> Result<BTreeSet<String>> {
        let competing = self.competing(nft, &set_names(nft, self.family)?)?.into_iter();
        let others = competing.filter(|(_, _, found)| !is_of(found, self.owner));
        Ok(others.filter_map(|(_, _, found)| Some(found.comment?.to_string())).collect())
    }

    /// The elements of published ports that need the port of a mapping on an overlapping address, each with its group and the
    /// mapping.
    ///
    /// Two lists of conditions certainly overlap if one is empty or both are equal; then the later ADD is refused. With other
    /// lists, attachments may share a port; then the group with the first jump in the main chain gets the packets.
    fn competing(&self, nft: &Nft, sets: &[String]) -> Result<Vec<(Group, &'a Mapping, Element)>> {
        let table = rules::table(self.family);
        let at = |set: String,
                  key: fn(&Mapping) -> Vec<u8>,
                  mappings: &[&'a Mapping]|
         -> Result<Vec<(&'a Mapping, Element)>> {
            let keys: Vec<Vec<u8>> = mappings.iter().map(|mapping| key(mapping)).collect();
            let found = mappings.iter().copied().zip(nft.elements_at(table, &set, &keys)?);
            Ok(found.filter_map(|(mapping, found)| Some((mapping, found?))).collect())
        };
        let all: Vec<&Mapping> = self.mappings().collect();
        let (on, on_all): (Vec<&Mapping>, Vec<&Mapping>) =
            self.mappings().partition(|mapping| mapping.host_ip.one().is_some());
        let mut competing = Vec::new();
        let groups = sets.iter().filter_map(|set| Group::with_map(set));
        for group in groups.filter(|group| group.competes_with(&self.group)) {
            let mut found: Vec<(&Mapping, Element)> = at(group.published(), port_key, &all)?;
            found.extend(at(group.published_on(), rules::key, &on)?);
            let ports = at(group.published_on_ports(), port_key, &on_all)?;
            if !ports.is_empty() {
                let by_port: BTreeMap<Vec<u8>, &Mapping> =
                    ports.into_iter().map(|(mapping, port)| (port.key, mapping)).collect();
                let on_one = nft.elements(table, &group.published_on())?.into_iter();
                let of_port = |element: &Element| by_port.get(&port_of(element)).copied();
                found.extend(on_one.filter_map(|element| Some((of_port(&element)?, element))));
            }
            let with_group = |(mapping, found)| (group.clone(), mapping, found);
            competing.extend(found.into_iter().map(with_group));
        }
        Ok(competing)
    }

    /// Fails if the Go plugin has published one of the ports for another container: its rules come before those of cnibox, and no
    /// record of cnibox proves that such a container has ended. Returns whether it has published one for this attachment.
    pub fn refuse_of_reference(
        &self,
        nft: &Nft,
        network: &NetworkName,
        at: &Attachment,
    ) -> Result<bool> {
        let mut has_own = false;
        for (mapping, port) in self.published_by_reference(nft)? {
            if port.container_id != *at.container_id {
                let id = &port.container_id;
                let of = port.network.unwrap_or_else(|| network.to_string());
                return Err(Error::internal(format_args!(
                    "cannot publish {}: it is taken by container {id} of the Go plugin portmap, which may have \
                     ended; cnibox gc --unknown {of}/{id}/{} removes its rules",
                    title(mapping),
                    at.ifname
                )));
            }
            has_own |= port.network.as_deref() == Some(&**network);
        }
        Ok(has_own)
    }

    /// The ports of the Go plugin that conflict with these bindings, each with a mapping that needs the same port.
    fn published_by_reference(&self, nft: &Nft) -> Result<Vec<(&Mapping, HostPort)>> {
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

    /// The elements of `portmap-published-on-ports` for the ports of these bindings that name another owner.
    fn ports_of_others(&self, nft: &Nft) -> Result<Vec<Element>> {
        let on = self.mappings().filter(|mapping| mapping.host_ip.one().is_some());
        let keys: BTreeSet<Vec<u8>> = on.map(port_key).collect();
        let (keys, set) = (keys.into_iter().collect::<Vec<_>>(), self.group.published_on_ports());
        let found = nft.elements_at(rules::table(self.family), &set, &keys)?.into_iter().flatten();
        let is_of_other = |port: &Element| port.comment.is_some() && !is_of(port, self.owner);
        Ok(found.filter(is_of_other).collect())
    }
}

/// Whether several owners can need the same element of the set: true for `portmap-masqueraded-N` and `portmap-targets`.
pub fn is_shared(set: &str) -> bool {
    hairpin::length(set).is_some() || set == targets::SET
}

/// The key of a subnet in a set of sources.
pub fn source_key(net: &IpNet) -> Vec<u8> {
    octets(net.network())
}

/// The names of all sets and maps in the table of a family.
pub fn set_names(nft: &Nft, family: IpFamily) -> Result<Vec<String>> {
    Ok(nft.sets(rules::table(family))?.into_iter().map(|set| set.name).collect())
}

/// The elements of one set.
fn elements_of(all: &[Expected], set: &str) -> Vec<Element> {
    let of_set = all.iter().filter(|expected| expected.set == set);
    of_set.map(|expected| expected.element.clone()).collect()
}

/// The ports of a group that an earlier release published without `snat`: no element of `portmap-masqueraded-N` pairs
/// 127.0.0.1 with the container.
fn unmasqueraded_before(nft: &Nft, group: &Group, except: &str) -> Result<Vec<Element>> {
    let table = rules::table(IpFamily::V4);
    let mut targets = BTreeSet::new();
    for net in [localnet::loopback(), IpFamily::V4.everything()] {
        let elements = nft.elements(table, &hairpin::set(net.prefix_len()))?.into_iter();
        let of_net = elements.filter_map(|element| {
            let (source, target) = element.key.split_at_checked(4)?;
            (source == source_key(&net)).then(|| target.to_vec())
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

/// Whether the comment of an element names the owner.
pub fn is_of(element: &Element, owner: &str) -> bool {
    element.comment.as_deref() == Some(owner)
}

fn container_of(owner: &str) -> Option<&str> {
    Owner::parts(owner).map(|[_, container, _]| container)
}

/// The name of a host port for errors: `host port tcp 8080`.
pub fn title(mapping: &Mapping) -> String {
    let on = mapping.host_ip.one().map_or_else(String::new, |ip| format!("{ip} "));
    format!("host port {on}{} {}", mapping.transport.name(), mapping.host_port)
}

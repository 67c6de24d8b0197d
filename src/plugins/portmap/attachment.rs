//! What one attachment has published: elements of maps and sets, each with its owner's name as the comment.

use std::net::IpAddr;

use ipnet::IpNet;

use super::config::{Mapping, Settings, Source, transport_name};
use super::ruleset::{self, Group, Side, masqueraded_set};
use super::skeleton::Skeleton;
use crate::error::{Error, Result};
use crate::kernel::nft::{Batch, Comment, Datum, Element, Nft, Transport, Value, pack};
use crate::plugin::owner::{self, Owner};
use crate::steps::nft::shared_rules;

/// What an attachment publishes in one family.
#[derive(Clone)]
pub struct Publication<'a> {
    pub side: Side,
    pub owner: &'a Owner,
    /// The container's, with the length of its subnet's prefix.
    pub address: IpNet,
    pub settings: &'a Settings,
    pub group: Group,
}

/// An element that has to be there.
struct Wanted {
    set: String,
    key: Vec<u8>,
    data: Option<Vec<u8>>,
    /// For errors: `host port tcp 8080`.
    title: String,
}

/// What is there before an attachment publishes.
#[derive(Default)]
pub struct Found {
    /// Something of its own, from an earlier ADD.
    pub is_own: bool,
    /// The container has a port of it already, in another network.
    is_besides: bool,
    /// Sets and keys of somebody who had the container's address before, and died without a DEL.
    inherited: Vec<(String, Vec<u8>)>,
    /// The keys of ports that others have under addresses of their own.
    pub shared: Vec<Vec<u8>>,
}

/// Whose an element is, seen from an attachment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relation {
    Own,
    /// Another attachment's of the same container: packets may go by either.
    Sibling,
    Other,
}

/// The sets whose keys nobody else can have.
struct Contested<'a> {
    mapping: &'a Mapping,
    set: String,
    key: Vec<u8>,
}

impl<'a> Publication<'a> {
    pub fn new(side: Side, owner: &'a Owner, address: IpNet, settings: &'a Settings) -> Self {
        let group = Group::of(settings.conditions(side.family()));
        Self { side, owner, address, settings, group }
    }

    /// The same where it may be, by what is there before.
    pub fn placed(&self, found: &Found) -> Self {
        if found.is_besides { self.besides() } else { self.clone() }
    }

    fn besides(&self) -> Self {
        let [_, _, interface] = Owner::parts(self.owner.as_str()).unwrap_or_default();
        Self { group: self.group.besides(interface), ..self.clone() }
    }

    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        let family = self.side.family();
        self.settings.mappings.iter().filter(move |mapping| mapping.host_ip.is_in(family))
    }

    /// Whether there is nothing to publish in this family.
    pub fn is_empty(&self) -> bool {
        self.mappings().next().is_none()
    }

    fn skeleton(&self) -> Skeleton<'_> {
        let lengths = self.sources().iter().map(IpNet::prefix_len).collect();
        Skeleton { side: self.side, settings: self.settings, group: &self.group, lengths }
    }

    /// Whose packets get another source address.
    fn sources(&self) -> Vec<IpNet> {
        let loopback = Some(ruleset::loopback()).filter(|net| self.side.has(net.addr()));
        match self.settings.source {
            Source::Kept => Vec::new(),
            // The loopback always comes first, so that the lengths are always in one order.
            Source::Hidden => loopback.into_iter().chain([self.address.trunc()]).collect(),
            Source::AllHidden => {
                IpNet::new(self.address.addr(), 0).map(|net| net.trunc()).into_iter().collect()
            }
        }
    }

    /// Puts what has to be added into the batch, which already deletes what the attachment had before.
    pub fn publish(&self, nft: &Nft, batch: &mut Batch, found: &Found) -> Result<()> {
        self.skeleton().ensure(nft, batch)?;
        let table = self.side.table();
        let comment = shared_rules::comment(self.owner)?;
        let element = |wanted: &Wanted| Element {
            key: wanted.key.clone(),
            data: wanted.data.clone().map(Datum::Value),
            comment: Some(comment.clone()),
        };
        let published = self.published();
        let [any, on, _] = self.group.sets();
        for set in [any, on] {
            let of_set = published.iter().filter(|wanted| wanted.set == set);
            batch.add_elements(table, &set, &of_set.map(element).collect::<Vec<_>>());
        }
        for wanted in self.ports_on() {
            // Another attachment may publish the port under another address.
            batch.ensure_elements(table, &wanted.set, &[element(&wanted)]);
        }
        if self.group.is_main() {
            let shared =
                self.ports_on().into_iter().filter(|port| found.shared.contains(&port.key));
            let shared: Vec<Element> =
                shared.map(|port| shared_element(&port.key, Some(comment.clone()))).collect();
            batch.ensure_elements(table, ruleset::OWNERS, &shared);
        }
        for (set, key) in &found.inherited {
            batch.delete_elements(table, set, std::slice::from_ref(key));
        }
        for wanted in self.masqueraded() {
            batch.add_elements(table, &wanted.set, &[element(&wanted)]);
        }
        let count = Wanted { key: count_key(self.owner, published.len()), ..self.registered() };
        let registered = [self.registered(), count];
        batch.add_elements(table, ruleset::OWNERS, &registered.each_ref().map(element));
        Ok(())
    }

    /// Fails if anything is missing.
    pub fn check(&self, nft: &Nft) -> Result<()> {
        let besides = self.besides();
        if besides.is_there(nft)? { besides.check_here(nft) } else { self.check_here(nft) }
    }

    /// Whether the first of its ports is in its group.
    fn is_there(&self, nft: &Nft) -> Result<bool> {
        let Some(Wanted { set, key, .. }) = self.published().into_iter().next() else {
            return Ok(false);
        };
        let found = nft.elements_at(self.side.table(), &set, &[key])?;
        Ok(found.iter().flatten().any(|found| is_of(found, self.owner)))
    }

    fn check_here(&self, nft: &Nft) -> Result<()> {
        let table = self.side.table();
        let mut all = self.published();
        all.extend(self.masqueraded());
        all.push(self.registered());
        for wanted in &all {
            let found = nft.elements_at(table, &wanted.set, std::slice::from_ref(&wanted.key))?;
            let data = wanted.data.clone().map(Datum::Value);
            let is_it = |found: &Element| is_of(found, self.owner) && found.data == data;
            if !found.iter().flatten().any(is_it) {
                return Err(Error::internal(format!(
                    "{} of {} not found in set {} of table {table}",
                    wanted.title, self.owner, wanted.set
                )));
            }
        }
        self.skeleton().check(nft)
    }

    fn published(&self) -> Vec<Wanted> {
        let of = |mapping: &Mapping| {
            let (set, key) = location(&self.group, mapping);
            let target = [Value::Address(self.address.addr()), Value::Port(mapping.container_port)];
            Wanted { set, key, data: Some(pack(&target)), title: title(mapping) }
        };
        self.mappings().map(of).collect()
    }

    /// The ports that are published under single addresses.
    fn ports_on(&self) -> Vec<Wanted> {
        let specific = self.mappings().filter(|mapping| mapping.host_ip.one().is_some());
        let of = |mapping: &Mapping| Wanted {
            set: self.group.published_on_ports(),
            key: port_key(mapping.transport, mapping.host_port),
            data: None,
            title: title(mapping),
        };
        specific.map(of).collect()
    }

    fn masqueraded(&self) -> Vec<Wanted> {
        let of = |source: &IpNet| Wanted {
            set: masqueraded_set(source.prefix_len()),
            key: masqueraded_key(source, self.address.addr()),
            data: None,
            title: format!("masquerading of {source}"),
        };
        self.sources().iter().map(of).collect()
    }

    fn registered(&self) -> Wanted {
        Wanted {
            set: ruleset::OWNERS.into(),
            key: owner_key(self.owner),
            data: None,
            title: "the name".into(),
        }
    }

    /// Looks at what is there. Fails if another attachment has one of the ports, whatever of it.
    ///
    /// With conditions it is clear that two mean the same packets if one of them has none, or if both have the same; then
    /// the later one is refused. Others may or may not overlap: they share a port, and the group that is first in
    /// `published` wins.
    pub fn look(&self, nft: &Nft) -> Result<Found> {
        let table = self.side.table();
        let mut before = Found::default();
        for group in self.competing_groups(nft)? {
            let contested: Vec<Contested<'_>> =
                self.mappings().flat_map(|mapping| contested(&group, mapping)).collect();
            for set in group.sets() {
                let of_set: Vec<&Contested<'_>> =
                    contested.iter().filter(|contested| contested.set == set).collect();
                let keys: Vec<Vec<u8>> = of_set.iter().map(|it| it.key.clone()).collect();
                let found = nft.elements_at(table, &set, &keys)?;
                for (contested, found) in of_set.iter().zip(found) {
                    let Some(found) = found else { continue };
                    match self.relation(&found) {
                        Relation::Own => before.is_own = true,
                        Relation::Sibling => before.is_besides |= group == self.group,
                        Relation::Other => return Err(taken(contested.mapping, &found)),
                    }
                    if set == group.published_on_ports() {
                        // What is others' may stand behind it.
                        self.refuse_taken_on(nft, &group, contested.mapping)?;
                    }
                }
            }
        }
        for wanted in self.masqueraded() {
            let found = nft.elements_at(table, &wanted.set, std::slice::from_ref(&wanted.key))?;
            match found.iter().flatten().next() {
                // The address is not theirs any more, or IPAM would not have given it out again.
                Some(found) if !is_of(found, self.owner) => {
                    before.inherited.push((wanted.set, wanted.key));
                }
                Some(_) => before.is_own = true,
                None => {}
            }
        }
        before.shared = self.shared_ports(nft)?;
        Ok(before)
    }

    /// Those of its ports that others have, too, each under an address of its own.
    fn shared_ports(&self, nft: &Nft) -> Result<Vec<Vec<u8>>> {
        let keys: Vec<Vec<u8>> = self.ports_on().into_iter().map(|port| port.key).collect();
        let found =
            nft.elements_at(self.side.table(), &Group::main().published_on_ports(), &keys)?;
        let others = found.into_iter().flatten().filter(|found| !is_of(found, self.owner));
        Ok(others.map(|found| found.key).collect())
    }

    /// Those whose packets may also be ours.
    fn competing_groups(&self, nft: &Nft) -> Result<Vec<Group>> {
        let sets = nft.sets(self.side.table())?;
        let groups = sets.iter().filter_map(|set| Group::of_map(&set.name));
        Ok(groups.filter(|group| group.competes_with(&self.group)).collect())
    }

    fn relation(&self, found: &Element) -> Relation {
        if is_of(found, self.owner) {
            return Relation::Own;
        }
        let container = |text| Owner::parts(text).map(|[_, container, _]| container);
        let theirs = found.comment.as_deref().and_then(container);
        let is_sibling = theirs.is_some() && theirs == container(self.owner.as_str());
        if is_sibling { Relation::Sibling } else { Relation::Other }
    }

    /// Fails if another container has the port under any single address.
    fn refuse_taken_on(&self, nft: &Nft, group: &Group, mapping: &Mapping) -> Result<()> {
        let is_taken = |found: &Element| {
            found.key.ends_with(&port_key(mapping.transport, mapping.host_port))
                && self.relation(found) == Relation::Other
        };
        let elements = nft.elements(self.side.table(), &group.published_on())?;
        elements.iter().find(|found| is_taken(found)).map_or(Ok(()), |it| Err(taken(mapping, it)))
    }
}

/// The keys that nobody else may have in a group.
fn contested<'a>(group: &Group, mapping: &'a Mapping) -> Vec<Contested<'a>> {
    let port = port_key(mapping.transport, mapping.host_port);
    let any = Contested { mapping, set: group.published(), key: port.clone() };
    let on = match mapping.host_ip.one() {
        Some(_) => {
            let (set, key) = location(group, mapping);
            Contested { mapping, set, key }
        }
        None => Contested { mapping, set: group.published_on_ports(), key: port },
    };
    vec![any, on]
}

/// The map and the key that publish a port.
pub fn location(group: &Group, mapping: &Mapping) -> (String, Vec<u8>) {
    match mapping.host_ip.one() {
        None => (group.published(), port_key(mapping.transport, mapping.host_port)),
        Some(ip) => {
            let key = [
                Value::Address(ip),
                Value::Transport(mapping.transport),
                Value::Port(mapping.host_port),
            ];
            (group.published_on(), pack(&key))
        }
    }
}

fn port_key(transport: Transport, port: u16) -> Vec<u8> {
    pack(&[Value::Transport(transport), Value::Port(port)])
}

/// For packets from a net to a container.
pub fn masqueraded_key(source: &IpNet, address: IpAddr) -> Vec<u8> {
    pack(&[Value::Address(source.network()), Value::Address(address)])
}

/// 64 bits of hash in two halves. Should two owners ever have the same, the later one is refused.
pub fn owner_key(owner: &Owner) -> Vec<u8> {
    key_of(owner.as_str())
}

/// The key of an owner that has so many ports in the maps: if it is there and they are found, there are no others.
pub fn count_key(owner: &Owner, count: usize) -> Vec<u8> {
    key_of(&format!("{owner} {count}"))
}

/// Says that several attachments have, or had, a port in the main group under an address of their own.
pub fn shared_element(port_key: &[u8], comment: Option<Comment>) -> Element {
    Element { key: key_of(&format!("shared {port_key:?}")), data: None, comment }
}

fn key_of(text: &str) -> Vec<u8> {
    let [a, b, c, d, e, f, g, h] = owner::hash(text).to_be_bytes();
    let halves = [[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes).map(Value::Mark);
    pack(&halves)
}

pub fn is_of(element: &Element, owner: &Owner) -> bool {
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
    Error::internal(format!("cannot publish {}: it is taken by {owner}", title(mapping)))
}

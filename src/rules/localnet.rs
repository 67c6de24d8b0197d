//! Links on which `portmap` sets `route_localnet`, for packets from 127.0.0.1 to a published port. The kernel would also
//! deliver packets from neighbours on such a link to servers that listen on 127.0.0.1 only (CVE-2020-8558). A rule drops them:
//!
//! ```nft
//! table ip cnibox {
//!     set portmap-localnet { type ifname; elements = { "cni0" } }
//!     chain portmap-localnet {
//!         type filter hook prerouting priority raw; policy accept;
//!         iifname @portmap-localnet ip daddr 127.0.0.0/8 drop
//!     }
//! }
//! ```
//!
//! `route_localnet` of other links is left to the administrator. A link stays in the set as long as it exists, because
//! `route_localnet` stays set: DEL of `ptp` removes its own link from the set, GC the links that no longer exist. GC also adds
//! links to containers that were renamed, or that lost their element in a flush by another program.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};

use crate::attachments::owner::Owner;
use crate::error::Result;
use crate::kernel::sysctl;
use crate::names::{IfName, IpFamily};
use crate::netlink::nft::{
    Base, Batch, Condition, Element, Family, Field, Hook, NewSet, Nft, Object, Table, Type, Value,
    Verdict, in_set, pack,
};
use crate::netlink::rtnl::{Link, Rtnl};
use crate::rules::shared_rules::{self, Chain, rule};

pub const SET: &str = "portmap-localnet";
const CHAIN: &str = "portmap-localnet";
/// The name of the chain `portmap-localnet` up to release 0.2.0.
const FORMER_CHAIN: &str = "portmap-loopback";
const TABLE: Table<'static> = Table { family: Family::Ip, name: shared_rules::TABLE };

/// Hook and priority of the chain. It runs before conntrack, which translates the destination of replies back to 127.0.0.1.
const RAW: Base = Base::filter(Hook::Prerouting, -300);

/// The loopback network, 127.0.0.0/8.
pub fn loopback() -> IpNet {
    Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into()
}

/// The chain that drops packets to 127.0.0.0/8 from the links in the set.
pub fn chain() -> Chain {
    let to_loopback = || Condition::daddr(loopback());
    let from_link = in_set(&[Field::Iifname], SET).into_iter();
    let covered = rule(from_link.chain(to_loopback()), Verdict::Drop);
    let lo = IfName::new("lo").map(|lo| Condition::iifname(&lo).negated());
    let former = rule(lo.into_iter().flatten().chain(to_loopback()), Verdict::Drop);
    Chain::base(CHAIN, RAW, vec![covered]).replacing(Chain::base(FORMER_CHAIN, RAW, vec![former]))
}

/// The set of links, `portmap-localnet`.
pub fn set() -> NewSet {
    NewSet::set(SET, [Type::IfName])
}

/// Adds links to the set, if they are not in it.
pub fn add_links(batch: &mut Batch, links: &[IfName]) {
    let element = |link: &IfName| Element { key: key(link), data: None, comment: None };
    batch.ensure_elements(TABLE, SET, &links.iter().map(element).collect::<Vec<_>>());
}

/// If the set exists, adds the links to containers that have `route_localnet`, and removes the links that no longer exist.
pub fn refresh(nft: &Nft, host: &Rtnl, batch: &mut Batch) -> Result<()> {
    if nft.exist(&[Object::Set(TABLE, SET)])? != [true] {
        return Ok(());
    }
    let (links, mut covered) = (host.links()?, nft.elements(TABLE, SET)?);
    let names: BTreeSet<&[u8]> = links.iter().map(|link| link.name.as_bytes()).collect();
    let covered_names: BTreeSet<&[u8]> = covered.iter().map(name_of).collect();
    let mut missing = Vec::new();
    for link in links_to_containers(&links) {
        if !covered_names.contains(link.name.as_bytes()) && link.route_localnet {
            missing.push(IfName::new(link.name.as_str())?);
        }
    }
    add_links(batch, &missing);
    covered.retain(|element| !names.contains(name_of(element)));
    batch.delete_elements(TABLE, SET, &covered);
    Ok(())
}

/// The links with `route_localnet` that an ADD adds to the set besides its own. If the set does not exist, as after a flush of
/// all rules: the links to containers. If ADD replaces the rule of an earlier release, which covered all links: all links that
/// have a kind. A physical link has none.
pub fn links_to_add(nft: &Nft, host: &Rtnl) -> Result<Vec<IfName>> {
    let found = nft.exist(&[Object::Chain(TABLE, FORMER_CHAIN), Object::Set(TABLE, SET)])?;
    let links = match found[..] {
        [true, _] => host.links()?.into_iter().filter(|link| link.kind.is_some()).collect(),
        [_, true] => Vec::new(),
        _ => links_to_containers(&host.links()?).into_iter().cloned().collect(),
    };
    let links = links.iter().filter(|link| link.route_localnet);
    links.map(|link| IfName::new(link.name.as_str())).collect()
}

/// The links whose alias names an owner, the bridges of these links, and the links whose peer is a port of such a bridge.
fn links_to_containers(links: &[Link]) -> Vec<&Link> {
    let is_ours = |link: &&Link| link.alias.as_deref().and_then(Owner::in_alias).is_some();
    let ours = links.iter().filter(is_ours);
    let bridges: BTreeSet<u32> = ours.filter_map(|link| link.master).collect();
    let is_port = |link: &&Link| link.master.is_some_and(|master| bridges.contains(&master));
    let ports: BTreeSet<u32> = links.iter().filter(is_port).map(|link| link.index).collect();
    let leads_to_port = |link: &Link| {
        !link.peer_is_elsewhere && link.peer.is_some_and(|peer| ports.contains(&peer))
    };
    let is_wanted =
        |link: &&Link| is_ours(link) || bridges.contains(&link.index) || leads_to_port(link);
    links.iter().filter(is_wanted).collect()
}

/// The path of `route_localnet` of a link, below /proc/sys.
pub fn route_localnet(link: &str) -> String {
    sysctl::of_link(IpFamily::V4, link, "route_localnet")
}

/// Whether packets to 127.0.0.0/8 from a link are dropped: the link is in the set, or the chain of an earlier release exists,
/// which covers all links except `lo`.
pub fn covers(nft: &Nft, link: &IfName) -> Result<bool> {
    let is_former = nft.exist(&[Object::Chain(TABLE, FORMER_CHAIN)])? == [true];
    Ok(is_former || nft.elements_at(TABLE, SET, &[key(link)])? != [None])
}

/// Removes links from the set, if they are in it.
pub fn remove_links(nft: &Nft, batch: &mut Batch, links: &[IfName]) -> Result<()> {
    let keys: Vec<Vec<u8>> = links.iter().map(key).collect();
    let found = nft.elements_at(TABLE, SET, &keys)?;
    batch.delete_elements(TABLE, SET, &found.into_iter().flatten().collect::<Vec<_>>());
    Ok(())
}

/// The name of the link in the key of an element, without the zero bytes at its end.
fn name_of(element: &Element) -> &[u8] {
    element.key.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn key(link: &IfName) -> Vec<u8> {
    pack(&[Value::IfName(link)])
}

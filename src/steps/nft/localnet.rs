//! Links on which `portmap` sets `route_localnet`, for packets from 127.0.0.1 to a published port. The kernel would also
//! deliver packets from neighbours on such a link to servers that listen on 127.0.0.1 only (CVE-2020-8558):
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
//! Other links are the administrator's. A link stays in the set as long as it is there, because the setting does: the DEL of
//! `ptp` takes out its own, GC those that are gone.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};

use crate::error::Result;
use crate::names::IfName;
use crate::netlink::nft::{
    Base, Batch, ChainKind, Condition, Element, Expr, Family, Field, Hook, NewSet, Nft, Object,
    Policy, SetKind, Table, Type, Value, Verdict, in_set, pack,
};
use crate::steps::nft::shared_rules::{self, Chain};

pub const SET: &str = "portmap-localnet";
const CHAIN: &str = "portmap-localnet";
/// Up to 0.2.0.
const FORMER_CHAIN: &str = "portmap-loopback";
const TABLE: Table<'static> = shared_rules::table(Family::Ip);

/// Before conntrack, which translates the destination of replies back to 127.0.0.1.
const RAW: Base = Base {
    kind: ChainKind::Filter,
    hook: Hook::Prerouting,
    priority: -300,
    policy: Policy::Accept,
};

/// 127.0.0.0/8
pub fn loopback() -> IpNet {
    Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into()
}

pub fn chain() -> Chain {
    let to_loopback = || Condition::daddr(loopback()).into_iter().chain([Verdict::Drop.into()]);
    let covered = in_set(&[Field::Iifname], SET).into_iter().chain(to_loopback()).collect();
    let lo = IfName::new("lo").map(|lo| Condition::iifname(&lo).negated());
    let former: Vec<Expr> = lo.into_iter().flatten().chain(to_loopback()).collect();
    Chain::base(CHAIN, RAW, vec![covered]).replacing(Chain::base(FORMER_CHAIN, RAW, vec![former]))
}

/// Adds the set.
pub fn declare(batch: &mut Batch) {
    let (key, kind) = (&[Type::IfName][..], SetKind::Set);
    batch.add_set(TABLE, NewSet { name: SET, key, kind, comment: None });
}

/// Adds links to the set.
pub fn cover(batch: &mut Batch, links: &[IfName]) {
    let element = |link: &IfName| Element { key: key(link), data: None, comment: None };
    batch.ensure_elements(TABLE, SET, &links.iter().map(element).collect::<Vec<_>>());
}

/// Whether the rule covers a link, or is that of an earlier release.
pub fn covers(nft: &Nft, link: &IfName) -> Result<bool> {
    let is_former = nft.exist(&[Object::Chain(TABLE, FORMER_CHAIN)])? == [true];
    Ok(is_former || nft.elements_at(TABLE, SET, &[key(link)])? != [None])
}

/// Whether an earlier release has its rule there, which covers all links.
pub fn covers_all(nft: &Nft) -> Result<bool> {
    Ok(nft.exist(&[Object::Chain(TABLE, FORMER_CHAIN)])? == [true])
}

/// Takes links out of the set, if they are in it.
pub fn uncover(nft: &Nft, batch: &mut Batch, links: &[IfName]) -> Result<()> {
    let keys: Vec<Vec<u8>> = links.iter().map(key).collect();
    let found = nft.elements_at(TABLE, SET, &keys)?.into_iter().flatten();
    batch.delete_elements(TABLE, SET, &found.map(|element| element.key).collect::<Vec<_>>());
    Ok(())
}

/// The links in the set.
pub fn covered(nft: &Nft) -> Result<Vec<IfName>> {
    let name = |element: Element| {
        let name = element.key.split(|byte| *byte == 0).next()?.to_vec();
        IfName::new(String::from_utf8(name).ok()?).ok()
    };
    Ok(nft.elements(TABLE, SET)?.into_iter().filter_map(name).collect())
}

fn key(link: &IfName) -> Vec<u8> {
    pack(&[Value::IfName(link)])
}

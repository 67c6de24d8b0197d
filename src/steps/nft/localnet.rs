//! Links on which `portmap` sets `route_localnet`, for packets from 127.0.0.1 to a published port. The kernel would also
//! deliver packets from neighbours on such a link to servers that listen on 127.0.0.1 only (CVE-2020-8558):
//!
//! ```nft
//! table ip cnibox {
//!     set portmap-localnet { type ifname; elements = { "cni0" comment "link 7 of boot 1b9d…" } }
//!     chain portmap-localnet {
//!         type filter hook prerouting priority raw; policy accept;
//!         iifname @portmap-localnet ip daddr 127.0.0.0/8 drop
//!     }
//! }
//! ```
//!
//! Other links are the administrator's. A link stays in the set as long as it is there, because the setting does: the DEL of
//! `ptp` takes out its own, GC those that are gone. A link that was renamed is found by its index: at the next GC, and at the
//! next ADD to a link with its former name. (A set of indices would follow the link, but nft cannot restore one whose link is
//! missing.)

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};

use crate::error::Result;
use crate::kernel::{file, sysctl};
use crate::names::{IfName, IpFamily};
use crate::netlink::nft::{
    Base, Batch, ChainKind, Comment, Condition, Element, Expr, Family, Field, Hook, NewSet, Nft,
    Object, Policy, SetKind, Table, Type, Value, Verdict, in_set, pack,
};
use crate::netlink::rtnl::{Link, Rtnl};
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
pub fn cover(nft: &Nft, batch: &mut Batch, links: &[Link]) -> Result<()> {
    for link in links {
        let (key, comment) = (key(&IfName::new(link.name.as_str())?), Some(comment(link.index)?));
        shared_rules::put(nft, batch, TABLE, SET, Element { key, data: None, comment })?;
    }
    Ok(())
}

/// The link that had the name of this one before, and is still open.
pub fn renamed(nft: &Nft, host: &Rtnl, link: &Link) -> Result<Option<Link>> {
    let key = key(&IfName::new(link.name.as_str())?);
    match nft.elements_at(TABLE, SET, &[key])?.pop().flatten() {
        Some(element) => open_link(host, &element, &link.name),
        None => Ok(None),
    }
}

/// Takes out the links that are gone, and adds those that were renamed.
pub fn refresh(nft: &Nft, host: &Rtnl, batch: &mut Batch) -> Result<()> {
    for element in nft.elements(TABLE, SET)? {
        let Some(name) = name_of(&element) else { continue };
        cover(nft, batch, open_link(host, &element, &name)?.as_slice())?;
        if host.link(&name)?.is_none() {
            batch.delete_elements(TABLE, SET, &[element.key]);
        }
    }
    Ok(())
}

/// `route_localnet` of a link, in /proc/sys.
pub fn setting(link: &str) -> String {
    sysctl::of_link(IpFamily::V4, link, "route_localnet")
}

/// Whether the kernel delivers packets to 127.0.0.0/8 from a link.
pub fn is_open(link: &Link) -> bool {
    sysctl::get(&setting(&link.name)).is_ok_and(|value| value.as_deref() == Some("1"))
}

/// The link with the index in the comment of an element, if it has another name now.
fn open_link(host: &Rtnl, element: &Element, name: &str) -> Result<Option<Link>> {
    let index = element.comment.as_deref().and_then(|comment| {
        let (index, boot) = comment.strip_prefix("link ")?.split_once(" of boot ")?;
        index.parse().ok().filter(|_| file::boot_id().is_ok_and(|now| now == boot))
    });
    let link = index.map_or(Ok(None), |index| host.link_at(index))?;
    Ok(link.filter(|link| link.name != name && is_open(link)))
}

fn comment(index: u32) -> Result<Comment> {
    Comment::new(format!("link {index} of boot {}", file::boot_id().unwrap_or_default()))
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

fn name_of(element: &Element) -> Option<String> {
    String::from_utf8(element.key.split(|byte| *byte == 0).next()?.to_vec()).ok()
}

fn key(link: &IfName) -> Vec<u8> {
    pack(&[Value::IfName(link)])
}

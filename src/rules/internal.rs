//! Networks without a way out: the host forwards no packet from or to the link of such a network, whatever routes its
//! containers have. In the table `cnibox` of each family:
//!
//! ```nft
//! map internal-ports { type ifname : ifname; elements = { "veth1a2b3c4d" comment "dbnet 3f2a eth0" : "br0" } }
//! set internal-links { type ifname; }
//! set internal-within { type ifname . ifname; }
//! chain internal-policy {
//!     type filter hook forward priority filter; policy accept;
//!     iifname . oifname @internal-within accept
//!     iifname @internal-links drop
//!     oifname @internal-links drop
//! }
//! ```
//!
//! `internal-ports` has the port and the link of each container, with the owner as comment. The other sets are computed from it:
//! each link, and each link with itself, because br_netfilter shows the packets within a bridge to the chain.

use crate::attachments::life;
use crate::attachments::owner::{Owner, Owners};
use crate::error::{Error, Result};
use crate::kernel::sysctl;
use crate::names::{IfName, IpFamily};
use crate::netlink::nft::{
    Base, Batch, Datum, Element, Family, Feature, Field, Hook, NewSet, Nft, Table, Type, Value,
    Verdict, in_set, pack,
};
use crate::netlink::rtnl::Link;
use crate::rules::shared_rules::{self, Chain, SharedRules, rule};

const PORTS: &str = "internal-ports";
const LINKS: &str = "internal-links";
const WITHIN: &str = "internal-within";
const CHAIN: &str = "internal-policy";
/// NF_IP_PRI_FILTER (linux/netfilter_ipv4.h), and its equivalent for IPv6.
const PRIORITY: i32 = 0;

/// A port of a bridge, and the link through which the host would route the packets of its container.
#[derive(Clone, Copy)]
pub struct Internal<'a> {
    pub port: &'a IfName,
    pub link: &'a IfName,
}

impl Internal<'_> {
    fn element(&self, owner: &Owner) -> Result<Element> {
        let data = Some(Datum::Value(pack(&[Value::IfName(self.link)])));
        Ok(Element { key: port_key(self.port), data, comment: Some(shared_rules::comment(owner)?) })
    }

    /// Adds the rules that are missing. Removes other elements of the owner, and of an earlier port with this name.
    pub fn add(&self, nft: &Nft, batch: &mut Batch, owner: &Owner) -> Result<()> {
        let (own, link) = (self.element(owner)?, pack(&[Value::IfName(self.link)]));
        for family in families() {
            let shared = shared(family);
            shared.ensure(nft, batch)?;
            let is_stale =
                |element: &Element| element.comment == own.comment || element.key == own.key;
            change(nft, batch, family, &is_stale, Some(&own))?;
            for (set, key) in [(WITHIN, link.repeat(2)), (LINKS, link.clone())] {
                let element = Element { key, data: None, comment: None };
                batch.ensure_elements(shared.table, set, &[element]);
            }
        }
        Ok(())
    }

    /// Fails if an element or rule of `add` is missing.
    pub fn check(&self, nft: &Nft, owner: &Owner) -> Result<()> {
        let (own, link) = (self.element(owner)?, pack(&[Value::IfName(self.link)]));
        for family in families() {
            let table = shared_rules::table(family);
            let missing = |set: &str| {
                let name = self.link;
                Error::difference(format_args!("network of {owner} is not internal"))
                    .with_details(format_args!("{name} is missing from set {set} of table {table}"))
            };
            let ports = nft.elements_at(table, PORTS, std::slice::from_ref(&own.key))?;
            if !ports.contains(&Some(own.clone())) {
                return Err(shared_rules::missing_in_set(nft, table, PORTS, missing(PORTS))?);
            }
            for (set, key) in [(LINKS, link.clone()), (WITHIN, link.repeat(2))] {
                if nft.elements_at(table, set, &[key])? == [None] {
                    let object = format!("{} in set {set} of table {table}", self.link);
                    return Err(missing(set).of_shared(object));
                }
            }
            shared(family).check(nft)?;
        }
        Ok(())
    }
}

/// The element of a port, if its network is internal: its table, map and key. The other family has the same elements.
pub fn port_element(port: &IfName) -> (Table<'static>, &'static str, Vec<u8>) {
    (shared_rules::table(IpFamily::V4), PORTS, port_key(port))
}

/// The elements of a link that is that of an internal network, one for each port. `None` if the link is that of no such network.
/// Fails with code 7 if one is of another attachment than `own` that may live: the host forwards no packet of the link.
fn former(nft: &Nft, link: &IfName, own: &Owner) -> Result<Option<Vec<Element>>> {
    let (table, key) = (shared_rules::table(IpFamily::V4), port_key(link));
    // A kernel without nf_tables has no element.
    if !nft.has_any_element(&[(table, LINKS, key.clone())])? {
        return Ok(None);
    }
    let mut of_link = nft.elements(table, PORTS)?;
    of_link.retain(|element| element.data == Some(Datum::Value(key.clone())));
    let may_live = |of: &&str| **of != *own.as_str() && !life::has_ended(of);
    match of_link.iter().filter_map(|element| element.comment.as_deref()).find(may_live) {
        Some(owner) => Err(Error::config(format_args!(
            "internal: the host forwards no packet of link {link}, because the network of {owner} on it is internal"
        ))
        .with_details("an internal network and another one need a bridge each")),
        None => Ok(Some(of_link)),
    }
}

/// Prepares a link for a network that is not internal: removes what attachments left that have ended, and the element of `own`.
/// Fails with code 7 if another attachment, which may live, makes it the link of an internal network.
pub fn release(nft: &Nft, link: &IfName, own: &Owner) -> Result<()> {
    if former(nft, link, own)?.is_none() {
        return Ok(());
    }
    nft.transact(|nft, batch| {
        let Some(former) = former(nft, link, own)? else { return Ok(()) };
        let key = port_key(link);
        for family in families() {
            let table = shared_rules::table(family);
            batch.delete_elements(table, PORTS, &former);
            for (set, key) in [(LINKS, key.clone()), (WITHIN, key.repeat(2))] {
                let found = nft.elements_at(table, set, &[key])?;
                batch.delete_elements(table, set, &found.into_iter().flatten().collect::<Vec<_>>());
            }
        }
        Ok(())
    })
}

/// For CHECK of a network that is not internal.
pub fn check_released(nft: &Nft, link: &IfName, own: &Owner) -> Result<()> {
    match former(nft, link, own)? {
        None => Ok(()),
        Some(_) => Err(Error::difference(format_args!(
            "link {link} is cut off: it is in set {LINKS}, as the link of an internal network that has ended"
        ))),
    }
}

/// The number of veth links of `ports` that are not in an internal network.
pub fn count_others(nft: &Nft, ports: &[Link]) -> Result<usize> {
    let known = nft.elements(shared_rules::table(IpFamily::V4), PORTS)?;
    let is_other = |port: &&Link| {
        let Ok(name) = IfName::new(port.name.as_str()) else { return false };
        port.kind.as_deref() == Some("veth")
            && known.iter().all(|element| element.key != port_key(&name))
    };
    Ok(ports.iter().filter(is_other).count())
}

fn port_key(port: &IfName) -> Vec<u8> {
    pack(&[Value::IfName(port)])
}

/// Removes the elements of the owners, and the links that have no other owner.
pub fn remove(nft: &Nft, batch: &mut Batch, owners: &Owners) -> Result<()> {
    let is_stale = |element: &Element| shared_rules::is_of(element, owners);
    IpFamily::ALL.into_iter().try_for_each(|family| change(nft, batch, family, &is_stale, None))
}

/// Removes the element of a port with this name, whose network is not internal any more.
pub fn clear(nft: &Nft, batch: &mut Batch, port: &IfName) -> Result<()> {
    let is_stale = |element: &Element| element.key == port_key(port);
    IpFamily::ALL.into_iter().try_for_each(|family| change(nft, batch, family, &is_stale, None))
}

/// Removes the stale elements of `internal-ports` except `wanted`, which is added if it is missing, and the links that no element
/// names any more.
fn change(
    nft: &Nft,
    batch: &mut Batch,
    family: IpFamily,
    is_stale: &dyn Fn(&Element) -> bool,
    wanted: Option<&Element>,
) -> Result<()> {
    let table = shared_rules::table(family);
    let (gone, left): (Vec<Element>, Vec<Element>) = nft
        .elements(table, PORTS)?
        .into_iter()
        .partition(|element| is_stale(element) && Some(element) != wanted);
    batch.delete_elements(table, PORTS, &gone);
    let missing: Vec<Element> =
        wanted.into_iter().filter(|own| !left.contains(own)).cloned().collect();
    batch.add_elements(table, PORTS, &missing);
    if gone.is_empty() {
        return Ok(());
    }
    let link = |element: &Element| match &element.data {
        Some(Datum::Value(link)) => Some(link.clone()),
        _ => None,
    };
    let needed: Vec<Vec<u8>> = left.iter().chain(&missing).filter_map(link).collect();
    for set in [LINKS, WITHIN] {
        let mut unused = nft.elements(table, set)?;
        unused.retain(|element| !needed.iter().any(|link| element.key.starts_with(link)));
        batch.delete_elements(table, set, &unused);
    }
    Ok(())
}

/// For STATUS: fails with code 50 if the kernel lacks nf_tables.
pub fn status(nft: &Nft) -> Result<()> {
    let needed: Vec<_> = families().map(|family| (Family::from(family), Feature::Tables)).collect();
    shared_rules::require(nft, &needed, "separate an internal network")
}

/// The families that the kernel has.
fn families() -> impl Iterator<Item = IpFamily> {
    let has_v6 = sysctl::exists(&sysctl::of_link(IpFamily::V6, "all", "forwarding"));
    IpFamily::ALL.into_iter().filter(move |family| *family == IpFamily::V4 || has_v6)
}

fn shared(family: IpFamily) -> SharedRules {
    let [iif, oif] = [Field::Iifname, Field::Oifname];
    let rules = vec![
        rule(in_set(&[iif, oif], WITHIN), Verdict::Accept),
        rule(in_set(&[iif], LINKS), Verdict::Drop),
        rule(in_set(&[oif], LINKS), Verdict::Drop),
    ];
    SharedRules {
        table: shared_rules::table(family),
        sets: vec![
            NewSet::map(PORTS, [Type::IfName], [Type::IfName]),
            NewSet::set(LINKS, [Type::IfName]),
            NewSet::set(WITHIN, [Type::IfName; 2]),
        ],
        chains: vec![Chain::base(CHAIN, Base::filter(Hook::Forward, PRIORITY), rules)],
    }
}

//! The record of the sources that ADD added to zones of firewalld, one set for each zone:
//!
//! ```nft
//! table ip cnibox {
//!     set firewall-zone-trusted { type ipv4_addr; }
//! }
//! ```
//!
//! Each element has the owner as comment. DEL removes an address only from the zone that an ADD added it to: in another zone
//! it belongs to the administrator.

use std::ffi::OsStr;
use std::net::IpAddr;

use super::firewalld::{Firewalld, Found};
use super::{FAMILIES, ruleset};
use crate::error::Result;
use crate::netlink::nft::{Batch, Comment, Element, Family, NewSet, Nft, SetKind, Type};
use crate::plugin::owner::Owners;
use crate::plugin::{Context, Scope};
use crate::steps::nft::renumber::Move;
use crate::steps::nft::shared_rules::{self, SharedRules};

const PREFIX: &str = "firewall-zone-";

/// An address in a zone.
#[derive(PartialEq, Eq)]
pub(super) struct Source {
    pub(super) zone: String,
    pub(super) address: IpAddr,
}

/// Records that the addresses are sources of the zone.
pub(super) fn record(
    nft: &Nft,
    batch: &mut Batch,
    family: Family,
    addresses: &[IpAddr],
    zone: &str,
    owner: &Comment,
) -> Result<()> {
    let table = shared_rules::table(family);
    let set = format!("{PREFIX}{zone}");
    let shared = SharedRules { table, sets: vec![set.clone()], chains: Vec::new() };
    let key = [if family == Family::Ip6 { Type::Ipv6Addr } else { Type::Ipv4Addr }];
    shared.ensure(nft, batch, |batch, name| {
        batch.add_set(table, NewSet { name, key: &key, kind: SetKind::Set, comment: None });
    })?;
    for address in addresses {
        let key = ruleset::key(*address);
        let element = Element { key, data: None, comment: Some(owner.clone()) };
        shared_rules::put(nft, batch, table, &set, element)?;
    }
    Ok(())
}

/// The sources of the owners, each with its table's family and its element.
fn recorded(nft: &Nft, owners: &Owners) -> Result<Vec<(Family, Element, Source)>> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let table = shared_rules::table(family);
        for set in nft.sets(table)? {
            let Some(zone) = set.name.strip_prefix(PREFIX) else { continue };
            let elements = nft.elements(table, &set.name)?;
            for element in
                elements.into_iter().filter(|element| shared_rules::is_of(element, owners))
            {
                let Some(address) = ruleset::address(&element) else { continue };
                found.push((family, element, Source { zone: zone.into(), address }));
            }
        }
    }
    Ok(found)
}

/// Removes the owners' sources and the `others` from their zones. After an error, returns the sources that remain: their
/// records must remain, too, for the next DEL or GC.
pub(super) fn remove(
    cx: &Context<'_>,
    nft: &Nft,
    scope: Scope<'_>,
    others: Vec<Source>,
) -> (Vec<Source>, Result<()>) {
    let recorded = match recorded(nft, &Owners::of(cx, scope)) {
        Ok(recorded) => recorded,
        Err(error) => return (Vec::new(), Err(error)),
    };
    let is_any_ours = !recorded.is_empty();
    let mut sources: Vec<Source> = recorded.into_iter().map(|(_, _, source)| source).collect();
    sources.extend(others);
    if sources.is_empty() {
        return (sources, Ok(()));
    }
    let mut firewalld = match Firewalld::find(cx) {
        Ok(Found::Running(firewalld)) => firewalld,
        // firewalld keeps no sources after its end.
        Ok(Found::NotRunning(_)) => return (Vec::new(), Ok(())),
        Err(error) if is_any_ours => return (sources, Err(error)),
        // No source is recorded, so an error of the bus must not prevent the DEL.
        Err(error) => {
            cx.warn(error);
            return (Vec::new(), Ok(()));
        }
    };
    while let Some(source) = sources.last() {
        if let Err(error) = firewalld.remove_source(&source.zone, source.address) {
            return (sources, Err(error));
        }
        sources.pop();
        if scope.one().is_none() {
            // A GC can have hundreds of sources, so each has a deadline of its own.
            firewalld.restart_time();
        }
    }
    (sources, Ok(()))
}

/// Replaces sources of zones by those of other addresses. Their records stay: they move with the rules. If firewalld does
/// not run, there are no sources.
pub fn follow_sources(nft: &Nft, bus: Option<&OsStr>, moves: &[Move]) -> Result<()> {
    let mut sources: Vec<(String, IpAddr, IpAddr)> = Vec::new();
    for family in FAMILIES {
        let table = shared_rules::table(family);
        for set in nft.sets(table)? {
            let Some(zone) = set.name.strip_prefix(PREFIX) else { continue };
            for element in nft.elements(table, &set.name)? {
                let address = ruleset::address(&element);
                let is_of = |Move { from, owner, .. }: &&Move| {
                    Some(from.addr()) == address
                        && element.comment.as_deref() == Some(owner.as_str())
                };
                let of = moves.iter().find(is_of);
                sources.extend(of.map(|of| (zone.to_owned(), of.from.addr(), of.to.addr())));
            }
        }
    }
    sources.retain(|(_, from, to)| from != to);
    if sources.is_empty() {
        return Ok(());
    }
    let Found::Running(mut firewalld) = Firewalld::find_at(bus)? else { return Ok(()) };
    for (zone, from, to) in &sources {
        firewalld.add_source(zone, *to)?;
        // An address can pass from one attachment to another.
        if !sources.iter().any(|(other, _, to)| (other, to) == (zone, from)) {
            firewalld.remove_source(zone, *from)?;
        }
        firewalld.restart_time();
    }
    Ok(())
}

/// Deletes the records of the owners, except those of the sources that stay.
pub(super) fn forget(
    nft: &Nft,
    batch: &mut Batch,
    owners: &Owners,
    staying: &[Source],
) -> Result<()> {
    for (family, element, source) in recorded(nft, owners)? {
        if !staying.contains(&source) {
            let set = format!("{PREFIX}{}", source.zone);
            batch.delete_elements(shared_rules::table(family), &set, &[element.key]);
        }
    }
    Ok(())
}

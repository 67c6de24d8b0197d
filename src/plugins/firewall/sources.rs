//! The record of the sources that ADD added to zones of firewalld, one set for each zone:
//!
//! ```nft
//! table ip cnibox {
//!     set firewall-zone-trusted { type ipv4_addr; }
//! }
//! ```
//!
//! Each element has the owner as comment. DEL removes an address only from the zone that an ADD added it to: in another zone
//! the administrator added it.

use std::net::IpAddr;

use super::firewalld::{Firewalld, FirewalldState};
use super::ruleset::Listing;
use crate::attachments::owner::Owners;
use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::address_in;
use crate::netlink::nft::{Batch, Element, NewSet, Nft, Type};
use crate::netlink::octets;
use crate::plugin::{Context, Scope};
use crate::rules::shared_rules::{self, SharedRules};
use crate::rules::shared_set::SharedSet;

const PREFIX: &str = "firewall-zone-";

/// An address that is a source of a zone.
#[derive(PartialEq, Eq)]
pub(super) struct ZoneSource {
    pub(super) zone: String,
    pub(super) address: IpAddr,
}

/// Records that the addresses are sources of the zone.
pub(super) fn record(
    nft: &Nft,
    batch: &mut Batch,
    listing: &Listing<'_>,
    zone: &str,
) -> Result<()> {
    let name = format!("{PREFIX}{zone}");
    let table = shared_rules::table(listing.family);
    let sets = vec![NewSet::set(name.as_str(), [Type::address(table.family)])];
    SharedRules { table, sets, chains: Vec::new() }.ensure(nft, batch)?;
    listing
        .put(nft, batch, SharedSet::new(listing.family, &name), &listing.elements(None))
        .map(drop)
}

/// The zones with recorded sources, each with its family and the name of its set.
fn zones(nft: &Nft) -> Result<Vec<(IpFamily, String, String)>> {
    let mut zones = Vec::new();
    for family in IpFamily::ALL {
        let sets = nft.sets(shared_rules::table(family))?.into_iter();
        let zone = |set: String| Some((family, set.strip_prefix(PREFIX)?.to_owned(), set));
        zones.extend(sets.filter_map(|set| zone(set.name)));
    }
    Ok(zones)
}

/// The recorded sources of the owners, except those that another owner needs.
pub(super) fn recorded(nft: &Nft, owners: &Owners) -> Result<Vec<ZoneSource>> {
    let mut found = Vec::new();
    for (family, zone, set) in zones(nft)? {
        let elements = SharedSet::new(family, &set).all_elements(nft)?.into_iter();
        let (own, others): (Vec<Element>, Vec<Element>) =
            elements.partition(|element| shared_rules::is_of(element, owners));
        let alone = own.iter().filter(|own| others.iter().all(|other| other.key != own.key));
        let source = |address| ZoneSource { zone: zone.clone(), address };
        found.extend(alone.filter_map(|own| address_in(family, &own.key)).map(source));
    }
    Ok(found)
}

/// Removes the recorded sources and the `others` from their zones. After an error, returns the sources that remain: their
/// records must remain, too, for the next DEL or GC.
pub(super) fn remove(
    cx: &Context<'_>,
    scope: Scope<'_>,
    recorded: Vec<ZoneSource>,
    others: Vec<ZoneSource>,
) -> (Vec<ZoneSource>, Result<()>) {
    let (recorded_count, mut sources) = (recorded.len(), recorded);
    sources.extend(others);
    if sources.is_empty() {
        return (sources, Ok(()));
    }
    let firewalld = match Firewalld::find(cx) {
        Ok(FirewalldState::Running(firewalld)) => firewalld,
        // An ADD of an earlier release added sources to it. Only those that are recorded are of this network namespace.
        Ok(FirewalldState::Elsewhere(firewalld, _) | FirewalldState::Hidden(firewalld, _)) => {
            sources.truncate(recorded_count);
            firewalld
        }
        Ok(FirewalldState::Unreachable(error)) | Err(error) if recorded_count > 0 => {
            return (sources, Err(error));
        }
        // firewalld loses its sources when it ends.
        Ok(FirewalldState::NotRunning(_) | FirewalldState::Unreachable(_)) => {
            return (Vec::new(), Ok(()));
        }
        // No source is recorded, so an error of the bus must not prevent the DEL.
        Err(error) => {
            cx.warn(error);
            return (Vec::new(), Ok(()));
        }
    };
    while let Some(source) = sources.last() {
        if let Err(error) = firewalld.remove_source(&source.zone, source.address) {
            if sources.len() <= recorded_count {
                return (sources, Err(error));
            }
            // Without a record it is not certain that firewalld has the source.
            cx.warn(error);
        }
        sources.pop();
        if scope.one().is_none() {
            // A GC can have hundreds of sources, so each gets the full timeout.
            firewalld.restart_timeout();
        }
    }
    (sources, Ok(()))
}

/// Deletes the records of the owners, except those of the remaining sources.
pub(super) fn delete_records(
    nft: &Nft,
    batch: &mut Batch,
    owners: &Owners,
    remaining: &[ZoneSource],
) -> Result<()> {
    for (family, zone, set) in zones(nft)? {
        let stays = |element: &Element| {
            let mut of_zone = remaining.iter().filter(|source| source.zone == zone);
            of_zone.any(|source| octets(source.address) == element.key)
        };
        let is_stale = |element: &Element| shared_rules::is_of(element, owners) && !stays(element);
        SharedSet::new(family, &set).change(nft, batch, &is_stale, &[])?;
    }
    Ok(())
}

//! Attachments, reservations, rules and links of containers that have ended, and their removal.

use crate::attachments::life::Life;
use crate::attachments::owner;
use crate::attachments::record::Record;
use crate::error::{Error, Result};
use crate::ipam::store::listed::Holder;
use crate::names::{Attachment, NetworkName};
use crate::runtime::Runtime;
use crate::runtime::cache::CacheEntry;
use crate::runtime::gc::Options;
use crate::runtime::reservations::{OwnedReservation, OwnerState, Pool};

use super::finding::{Findings, Harm, quoted};
use super::host::Host;
use super::interfaces::AGAIN;

pub(super) fn leaks(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let survey = host.survey.as_ref().map_err(Clone::clone)?;
    for unreadable in &survey.unreadable {
        let named = unreadable.named();
        let is_it = |(entry, life): &(CacheEntry, Life)| {
            let is_named = |(network, at): &(NetworkName, Attachment)| {
                (network, at) == (&entry.network, &entry.at)
            };
            *life == Life::Alive && named.as_ref().is_some_and(is_named)
        };
        let (why, fix) = match survey.attachments.iter().any(is_it) {
            true => ("Its container lives. CHECK and reconcile fail.", AGAIN.into()),
            false => (
                "Its attachment may live, so gc removes nothing of it.",
                named.map_or_else(String::new, |named| owner::remover(Some(named))),
            ),
        };
        found.add(Harm::Broken, &unreadable.error, why, fix);
    }
    for error in &survey.damaged {
        let why = "Its container may live, so gc removes nothing of it.";
        let fix = "restore the file, or remove it if its container has ended";
        found.add(Harm::Broken, error, why, fix);
    }
    let mut add = |what, why, fix: String| found.add_one_of(Harm::Leaked, what, why, fix);
    let mut gone = Vec::new();
    for (entry, life) in &survey.attachments {
        let Life::Ended(reason) = life else { continue };
        gone.push((&entry.network, &entry.at.container_id));
        add(
            format!("{} has ended: {reason}", entry.title()),
            "Its addresses stay reserved, and connections to its published ports fail.",
            format!("cnibox gc {}", entry.network),
        );
    }
    for (owned, reason) in survey.leaks() {
        if let Holder::Container { id, .. } = &owned.reservation.holder
            && !gone.contains(&(&owned.network, id))
            && host.options.concerns_container(&owned.network, id)
        {
            add(
                format!(
                    "{} is reserved for {}: {reason}",
                    owned.reservation.address,
                    owned.owner()
                ),
                "No other container gets the address.",
                format!("cnibox ipam release --leaks --network {}", owned.network),
            );
        }
    }
    let owners = survey.leaked_owners();
    for Record { network, at, .. } in owners.as_deref().unwrap_or_default() {
        add(
            format!("rules or links name {}, which has ended", at.title(network)),
            "Another container can get the address that they apply to.",
            "cnibox gc".into(),
        );
    }
    owners.map(drop)
}

/// Adds a note for the attachments that may have ended, and one for those that live and that the cache of this runtime lacks:
/// nothing else of `doctor` examines them.
pub(super) fn unexamined(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    // The check `leaks` reports this error.
    let Ok(survey) = &host.survey else { return Ok(()) };
    for (network, at, life) in survey.all_lives() {
        let Life::Unknown(reason) = life else { continue };
        found.add_one_of(
            Harm::Note,
            format_args!("{} may have ended: {reason}", at.title(network)),
            "It keeps its addresses and ports, and gc and reconcile leave it. If it has ended, remove it.",
            owner::remover(Some((network.clone(), at.clone()))),
        );
    }
    let alive = survey.records.iter().filter(|(_, life)| *life == Life::Alive);
    for (Record { network, at, .. }, _) in alive {
        found.add_one_of(
            Harm::Note,
            format_args!("{} lives, and the cache has no entry of it", at.title(network)),
            "Another runtime has its entry, or it was removed: doctor and reconcile do not examine the attachment.",
            "",
        );
    }
    Ok(())
}

/// Finds addresses of living containers that `host-local` has not reserved for them.
pub(super) fn reservations(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    // The check `leaks` reports this error.
    let Ok(survey) = &host.survey else { return Ok(()) };
    for (entry, life) in &survey.attachments {
        let Ok(Some(result)) = entry.success() else { continue };
        let alive = result.ips.iter().filter(|_| *life == Life::Alive);
        for address in alive.map(|ip| ip.address.addr()) {
            // The list of the survey is older than its attachments.
            let is_missing = |pool: &&Pool| pool.lacks(entry, address);
            let Some(pool) = survey.pools.iter().find(is_missing) else { continue };
            let held = match pool.read(address) {
                // The check `leaks` reports this error.
                Err(error) if survey.damaged.contains(&error) => continue,
                held => held?,
            };
            if held.as_ref().is_some_and(|holder| holder.is(&entry.at)) || !host.is_at_rest(entry) {
                continue;
            }
            let directory = pool.directory();
            let file = quoted(directory.join(address.to_string()).display());
            let directory = quoted(directory.display());
            let (id, ifname) = (quoted(&*entry.at.container_id), quoted(&*entry.at.ifname));
            let mut listed = pool.reservations.iter();
            let listed = listed.find(|owned| owned.reservation.address == address);
            let lives_not = |owned: &OwnedReservation| {
                matches!(owned.state, OwnerState::Gone(_) | OwnerState::Unknown(_))
            };
            let fact =
                if held.is_some() { "is reserved for another owner" } else { "is not reserved" };
            // CHECK reads an index, and makes it again only if the directory changed: another content of the same file does not.
            let remove = if held.is_some() { format!("rm {file} && ") } else { String::new() };
            let fix = match held.is_none() || listed.is_some_and(lives_not) {
                true => format!(
                    "{remove}mkdir -p {directory} && printf '%s\\r\\n%s' {id} {ifname} >{file}"
                ),
                false => AGAIN.to_owned(),
            };
            found.add(
                Harm::Broken,
                format_args!("{}: its address {address} {fact}", entry.title()),
                "Another container can get the same address.",
                fix,
            );
        }
    }
    Ok(())
}

/// Runs `cnibox gc`: removes the leaks. `print` gets a line for each.
pub(super) fn fix(runtime: &Runtime, is_dry_run: bool, print: &mut dyn FnMut(&str)) -> Result<()> {
    let options = Options { is_dry_run, ..Options::default() };
    Error::joined(runtime.gc(None, options, print)?.errors)
}

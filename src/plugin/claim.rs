//! Claims the addresses of an attachment, so that no two containers have the same address on one link. `record::claims` has the
//! files of the claims.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use crate::attachments::life::{self, Life, Witness};
use crate::attachments::record::{Record, Records, Unreadable, claims};
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::sys;
use crate::names::Attachment;
use crate::plugin::{Context, Scope};

/// Whether only one container on a link can have the address: false for loopback and link-local addresses.
fn is_unique(address: &IpAddr) -> bool {
    let is_link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    !address.is_loopback() && !is_link_local
}

/// Claims the addresses of an attachment on a link of the node. Fails if another container has one of them, and has not ended.
/// Makes no claim if the attachment has no record.
pub fn claim(cx: &Context<'_>, at: &Attachment, link: &str, success: &Success) -> Result<()> {
    let records = Records::of_host();
    let addresses: Vec<IpAddr> =
        success.ips.iter().map(|ip| ip.address.addr()).filter(is_unique).collect();
    let claims: Vec<String> =
        addresses.iter().map(|address| claims::name(*address, link)).collect();
    let own = records.file_name(&cx.request.network, at);
    // The record names the claims before they exist, so that a DEL after a crash removes them. If it cannot, no claim is made, but
    // those of other containers count.
    let note = || match &mut *cx.session.begun.borrow_mut() {
        Some(begun) => begun.note_claims(&claims).map(|()| true),
        None => records.note_claims(&own, &claims),
    };
    let are_noted = claims.is_empty() || cx.or_warn(note());
    let on = if link.is_empty() { String::new() } else { format!(" on link {link}") };
    for (address, claim) in addresses.iter().zip(&claims) {
        let claimed = match are_noted {
            true => claim_address(&records, claim, &own, at, *address),
            false => Ok(held(&records, claim, at, *address).err()),
        };
        match claimed {
            Ok(None) => {}
            Ok(Some(why)) => return Err(why.in_front(format_args!("cannot use {address}{on}"))),
            Err(error) => cx.warn(format_args!(
                "cannot claim {address}{on}, so another container can get it: {}",
                sys::reason(&error)
            )),
        }
    }
    Ok(())
}

/// Makes a claim, and replaces the claim of an attachment that has ended. If another container keeps its claim, returns the
/// reason.
fn claim_address(
    records: &Records,
    claim: &str,
    own: &Path,
    at: &Attachment,
    address: IpAddr,
) -> io::Result<Option<Error>> {
    for _ in 0..claims::ATTEMPTS_MAX {
        let made = records.claim(claim, own);
        if let Ok(None) = made {
            return Ok(None);
        }
        // After an error, too: the claim of another container counts.
        match held(records, claim, at, address) {
            Ok(Holder::Same) => return Ok(None),
            Ok(Holder::Ended) => {}
            Err(why) => return Ok(Some(why)),
        }
        let Some(file) = made? else { return Ok(None) };
        records.release_of_ended(claim, &file)?;
    }
    Err(claims::contended())
}

/// The holder of a claim that does not keep another container from the address.
enum Holder {
    /// Another interface of the same container: two are allowed to have the same address.
    Same,
    /// No attachment, or one that has ended or has not the address.
    Ended,
}

/// Fails with the reason if another container has the address of a claim, or may have it.
fn held(records: &Records, claim: &str, at: &Attachment, address: IpAddr) -> Result<Holder> {
    match records.holder(claim) {
        Ok(Some(record)) if record.at.container_id == at.container_id => Ok(Holder::Same),
        Ok(Some(record)) => refusal(&record, address).map_or(Ok(Holder::Ended), Err),
        Ok(None) => Ok(Holder::Ended),
        Err(error) => {
            let file = records.file_of_claim(claim).unwrap_or_else(|| claim.into());
            Err(unknown_holder(&file, error))
        }
    }
}

/// The reason why the address of a record cannot be given to another container. `None` if the attachment of the record has
/// ended, or does not have the address any more.
fn refusal(record: &Record, address: IpAddr) -> Option<Error> {
    let witness = match Witness::new() {
        Ok(witness) => witness,
        Err(error) => return Some(error),
    };
    let life = witness.settled_life(record);
    let is_free = match life {
        Life::Ended(_) => true,
        Life::Alive => !witness.may_have(record, address),
        Life::Unknown(_) => false,
    };
    let note = life::note_if_unknown(&life, Some((record.network.clone(), record.at.clone())));
    let title = record.at.title(&record.network);
    (!is_free).then(|| Error::internal(format!("{title} has it{note}")))
}

/// The reason why an address cannot be given to a container while the record of its holder cannot be read.
fn unknown_holder(file: &Path, error: Error) -> Error {
    let life = Life::Unknown(error.to_string());
    let unreadable = Unreadable { file: file.into(), error };
    let named = unreadable.named();
    let title = match &named {
        Some((network, at)) => at.title(network),
        None => "a container".into(),
    };
    Error::internal(format!("{title} has it{}", life::note_if_unknown(&life, named)))
}

/// Removes the claims of the attachments that a DEL or GC removes; for a DEL also those that lead to an unreadable record. Called
/// before the IPAM plugin releases the addresses.
pub fn release(cx: &Context<'_>, scope: Scope<'_>) -> Result<()> {
    let (network, records) = (&cx.request.network, Records::of_host());
    let stale: Vec<Record> = match scope {
        Scope::One(at) => match cx.session.record(network, at) {
            Ok(record) => record.into_iter().collect(),
            // `record::mark` and the runtime warn of the unreadable record, which they remove.
            Err(_) => return released(records.release_leading_to(&records.file_name(network, at))),
        },
        Scope::Each(all) => {
            all.iter().filter_map(|at| cx.or_warn(records.read(network, at))).collect()
        }
        Scope::AllExcept(keep) => {
            let mut all = records.all()?.records;
            all.retain(|record| record.network == *network && !keep.contains(&record.at));
            all
        }
    };
    released(stale.iter().try_for_each(|record| records.release_all(record)))
}

fn released(result: io::Result<()>) -> Result<()> {
    result.map_err(|error| {
        Error::internal("cannot remove the claims of addresses").with_details(sys::reason(&error))
    })
}

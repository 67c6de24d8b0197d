//! What the call of a plugin does with the record of its attachment: an ADD writes it, a DEL or GC removes it.

use std::net::IpAddr;

use crate::attachments::record::{
    AllRecords, Begun, Made, Maker, Record, Records, Shared, Unreadable, is_current,
};
use crate::cni::request::Verb;
use crate::cni::success::Success;
use crate::error::{Code, Error, Result};
use crate::kernel::file;
use crate::names::{Attachment, NetworkName};
use crate::plugin::Context;

/// Writes the record of an ADD before the plugin with this name runs. For a chained plugin, a record of the present namespace stays
/// as it is, and `None` is returned. Fails with code 11 while a GC removes an earlier attachment of this name: it would remove the
/// new one, too. Warns of other errors.
pub(super) fn begin(
    cx: &Context<'_>,
    at: &Attachment,
    maker: Maker,
    plugin: &str,
) -> Result<Option<Begun>> {
    write(cx, at, (maker, vec![plugin.into()]), Records::begin)
}

/// `begin` for a reconcile, which holds the record. The plugins of the ADD are unknown.
pub(super) fn renew(cx: &Context<'_>, at: &Attachment, maker: Maker) -> Result<Option<Begun>> {
    write(cx, at, (maker, Vec::new()), Records::renew)
}

fn write(
    cx: &Context<'_>,
    at: &Attachment,
    (maker, plugins): (Maker, Vec<String>),
    create: fn(&Records, &Record) -> Result<Begun>,
) -> Result<Option<Begun>> {
    let write = || -> Result<Option<Begun>> {
        // No namespace, no record: an IPAM plugin can be called before the namespace exists.
        let Ok(netns) = cx.session.required_netns() else { return Ok(None) };
        let (network, records) = (&cx.request.network, Records::of_host());
        if let Maker::Chained(_) = maker
            && let Some(found) = records.read(network, at)?
            && is_current(&found, netns, cx.session.host()?)?
        {
            cx.session.keep_record(found);
            return Ok(None);
        }
        let sockets = (cx.session.host()?, cx.session.container()?);
        let record = Record::of(network, at, netns, sockets, (maker, plugins))?;
        create(&records, &record).map(Some)
    };
    match write() {
        Err(error) if error.code == Code::TRY_AGAIN_LATER => Err(error),
        Err(error) => {
            cx.warn(error);
            let records = Records::of_host();
            // A record that cannot be read can be that of a living container.
            cx.session.is_repeated.set(records.read(&cx.request.network, at) != Ok(None));
            // The first record would have listed the orphans.
            let listed = records.list_orphans();
            cx.session.is_unlisted.set(listed.is_err());
            cx.or_warn(listed);
            Ok(None)
        }
        Ok(begun) => {
            cx.session.is_repeated.set(begun.as_ref().is_some_and(|begun| begun.is_repeated));
            Ok(begun)
        }
    }
}

/// Removes the records of the attachments that a DEL or GC has removed, as far as `maker` may remove them.
pub(super) fn clean(cx: &Context<'_>, verb: &Verb, maker: &Maker) -> Result<()> {
    let (network, records) = (&cx.request.network, Records::of_host());
    let may_remove = |record: &Record| match maker {
        Maker::Chained(_) => record.maker == *maker,
        Maker::Ipam => matches!(record.maker, Maker::Ipam | Maker::Adopted),
        Maker::Cnibox | Maker::Plugin | Maker::Adopted => true,
    };
    match verb {
        Verb::Del(at) => clean_deleted(cx, (network, at), maker, may_remove),
        Verb::Gc(keep) => clean_stale(&records, network, keep, may_remove),
        _ => Ok(()),
    }
}

/// Removes the record of an attachment after its DEL.
fn clean_deleted(
    cx: &Context<'_>,
    (network, at): (&NetworkName, &Attachment),
    maker: &Maker,
    may_remove: impl Fn(&Record) -> bool,
) -> Result<()> {
    let records = Records::of_host();
    let (_lock, now) = match records.share(network, at) {
        // Without the file of the lock, a later ADD would not wait for the GC, which would then remove what that ADD made.
        Ok(Shared::Held) => return Ok(()),
        Ok(Shared::Missing) => return records.remove_leftovers(network, at),
        Ok(Shared::Locked(lock)) => {
            let now = records.read_by(network, at, &|_, max| file::read_open(&lock, max));
            (Some(lock), now)
        }
        // The runtime orders the DEL, so a file that cannot be opened goes.
        Err(_) => (None, records.read(network, at)),
    };
    // A later ADD has written the record since the DEL began.
    let is_of_later = |now: &Record| {
        let first = cx.session.record(network, at);
        first.is_ok_and(|first| first.is_none_or(|first| first.generation != now.generation))
    };
    match (maker, now) {
        (_, Ok(Some(now))) if is_of_later(&now) => Ok(()),
        (Maker::Plugin, _) => records.remove(network, at),
        // Also remove the claims: the record took over the claims of the record that it replaced, and no plugin has removed them.
        (_, Ok(Some(now))) if may_remove(&now) => records.discard(&now),
        // An unreadable record goes, too.
        (Maker::Ipam, Ok(None) | Err(_)) => records.remove(network, at),
        _ => Ok(()),
    }
}

/// Removes the records of a network's attachments after a GC, except those of `keep`.
fn clean_stale(
    records: &Records,
    network: &NetworkName,
    keep: &[Attachment],
    may_remove: impl Fn(&Record) -> bool,
) -> Result<()> {
    let is_stale = |of: &NetworkName, at: &Attachment| of == network && !keep.contains(at);
    let AllRecords { records: all, unreadable } = records.all()?;
    let remove = |record: &Record| {
        // The process that has the lock is removing the attachment, or a later one has the name.
        if let Shared::Locked(_lock) = records.share(network, &record.at)?
            && let Some(now) = records.read(network, &record.at)?
            && now.generation == record.generation
        {
            records.discard(record)?;
        }
        Ok(())
    };
    let stale = all.iter().filter(|record| is_stale(&record.network, &record.at));
    let removed = stale.filter(|record| may_remove(record)).map(remove);
    let mut errors: Vec<Error> = removed.filter_map(Result::err).collect();
    // A damaged record stays. One that could not be read may be readable in the next GC.
    let has_failed = |file: &Unreadable| {
        file.error.code == Code::IO && file.named().is_some_and(|(of, at)| is_stale(&of, &at))
    };
    errors.extend(unreadable.into_iter().filter(has_failed).map(|file| file.error));
    Error::joined(errors)
}

/// Appends to the record that a chained plugin has made its part of the ADD, and its result if it has other addresses than the
/// record, for example another MAC address.
pub(super) fn amend(cx: &Context<'_>, at: &Attachment, plugin: &str, success: &Success) {
    let (network, records) = (&cx.request.network, Records::of_host());
    let Some(record) = cx.or_warn(records.read(network, at)) else { return };
    let made = Made::of(success);
    let is_known = |known: &Made| (&known.macs, &known.addresses) == (&made.macs, &made.addresses);
    let mut amended = records.note_add(&record, plugin, Vec::new());
    if record.operation().is_some() {
        amended = amended.and_then(|()| records.note_void(&record));
    }
    if !record.made.last().is_some_and(is_known) {
        amended = amended.and_then(|()| records.amend(network, at, &made));
    }
    cx.or_warn(amended);
}

/// The addresses of an earlier ADD of the attachment that the result of this ADD no longer has. Empty for our runtime, which first
/// deletes an earlier attachment.
pub fn former_addresses(cx: &Context<'_>, at: &Attachment, success: &Success) -> Vec<IpAddr> {
    let earlier = match cx.session.is_recorded {
        true => None,
        false => {
            let found = cx.or_warn(cx.session.record(&cx.request.network, at));
            found.and_then(|mut record| record.made.pop())
        }
    };
    let mut former = earlier.map(|made| made.addresses).unwrap_or_default();
    former.retain(|address| success.ips.iter().all(|ip| ip.address.addr() != *address));
    former
}

/// Notes that the DEL of an attachment has begun, before it removes anything.
pub(super) fn mark(cx: &Context<'_>, at: &Attachment) {
    let record = cx.or_warn(cx.session.record(&cx.request.network, at));
    if let Some(record) = record.filter(|record| !record.is_deleting) {
        cx.or_warn(Records::of_host().mark_deleting(&record));
    }
}

//! Takes the addresses of containers that have ended without a DEL. An ADD that would be refused because of a reservation asks the
//! kernel whether the holder has ended (see `attachments::life`), removes the rules and links of such a holder as `cnibox gc` does, and
//! gets its address. The record of the holder stays: it is the proof for what other networks and runtimes have of it.
//!
//! The holder is judged outside of the store's lock. Then its record is locked, which is only tried, and compared with the judged one:
//! what has ended does not live again.

use std::net::IpAddr;
use std::path::Path;

use crate::attachments::life::{END_TIMEOUT, Life, Witness};
use crate::attachments::record::{Hold, Record, Records};
use crate::error::{Error, Result};
use crate::ipam::store::held::{self, Held, Search};
use crate::ipam::store::{Locked, Store};
use crate::ipam::{self, Allocated, AllocationRequest, InTheWay};
use crate::names::Attachment;
use crate::plugin::Context;

/// The maximum number of holders for whose end one ADD waits.
const ENDING_MAX: usize = 16;

/// What an ADD asks for.
pub(super) struct Asked<'a> {
    pub(super) cx: &'a Context<'a>,
    pub(super) data_dir: &'a Path,
    pub(super) at: &'a Attachment,
    pub(super) request: &'a AllocationRequest<'a>,
}

/// The addresses, or the refusal with the addresses whose holders are its reason.
type Attempt = Result<Vec<Allocated>, (Error, InTheWay)>;

impl Asked<'_> {
    /// Allocates the addresses. Takes those of ended holders if it would fail without them.
    pub(super) fn allocate(&self) -> Result<Vec<Allocated>> {
        let mut attempt = self.store()?.locked(|locked| {
            self.release_own(locked)?;
            Ok(self.attempt(locked))
        })?;
        let holders = Holders::new(self.cx, self.data_dir);
        loop {
            let (refusal, mut in_the_way) = match attempt {
                Ok(allocated) => return Ok(allocated),
                Err(refused) => refused,
            };
            let mut search = None;
            if in_the_way.are_of_full_sets && !in_the_way.addresses.is_empty() {
                let begun = Search::begin(self.data_dir, &self.cx.request.network);
                search = self.cx.or_warn(begun);
                if search.is_none() {
                    return Err(refusal);
                }
                // Another ADD can have released addresses during the wait for the search.
                match self.store()?.locked(|locked| Ok(self.attempt(locked)))? {
                    Ok(allocated) => return Ok(allocated),
                    Err((_, now)) => in_the_way = now,
                }
            }
            let taken = holders.first_ended(&in_the_way.addresses, |held, record, reason| {
                self.take(held, record, reason)
            });
            match taken? {
                Some(next) => attempt = next,
                None => {
                    search.iter().for_each(Search::note_none);
                    return Err(refusal);
                }
            }
        }
    }

    fn store(&self) -> Result<Store<'_>> {
        Store::open(self.data_dir, &self.cx.request.network, self.cx.session.turns())
    }

    fn attempt(&self, locked: &mut Locked<'_>) -> Attempt {
        ipam::allocate(locked, self.request, self.at).map_err(|refusal| {
            let AllocationRequest { sets, requested, is_in_use, .. } = *self.request;
            (refusal, ipam::in_the_way(locked, sets, requested, is_in_use).unwrap_or_default())
        })
    }

    /// Releases the addresses of an earlier attachment of this name, which has ended.
    fn release_own(&self, locked: &mut Locked<'_>) -> Result<()> {
        let Some(earlier) = self.cx.session.ended_before() else { return Ok(()) };
        let is_of_earlier = |address: &IpAddr| {
            held::read(self.data_dir, &self.cx.request.network, *address)
                .is_some_and(|held| earlier.has_reserved(*address, held.modified))
        };
        let held = locked.held_by(self.at)?;
        held.into_iter()
            .filter(is_of_earlier)
            .try_for_each(|address| locked.release_address(address, self.at))
    }

    /// Removes what a holder that has ended left, releases its address, and allocates once more. `None` if another process works on
    /// the holder, or if it has changed.
    fn take(&self, held: &Held, record: &Record, reason: &str) -> Result<Option<Attempt>> {
        let (cx, network) = (self.cx, &self.cx.request.network);
        let hold = Records::of_host().hold_for_removal(network, &held.at);
        let Ok(Hold::Held(mut hold)) = hold else { return Ok(None) };
        if hold.record.generation != record.generation {
            return Ok(None);
        }
        let removed = hold
            .note_deleting(Vec::new)
            .and_then(|()| cx.remove_owned(network, std::slice::from_ref(&held.at)));
        if let Err(error) = removed {
            cx.warn(format_args!(
                "cannot take {} of {}: {error}",
                held.address,
                held.at.title(network)
            ));
            return Ok(None);
        }
        let attempt = self.store()?.locked(|locked| {
            let is_released = locked.release_held(held)?;
            Ok(is_released.then(|| self.attempt(locked)))
        })?;
        if attempt.is_some() {
            let title = held.at.title(network);
            cx.warn(format_args!("released {} of {title}: {reason}", held.address));
        }
        Ok(attempt)
    }
}

/// For STATUS: whether an ADD would get an address of a full set because its holder has ended.
pub(super) fn can_take(cx: &Context<'_>, data_dir: &Path, addresses: &[IpAddr]) -> Result<bool> {
    let Some(search) = Search::begin(data_dir, &cx.request.network)? else { return Ok(false) };
    let found = Holders::new(cx, data_dir).first_ended(addresses, |_, _, _| Ok(Some(())))?;
    if found.is_none() {
        search.note_none();
    }
    Ok(found.is_some())
}

/// The holders of addresses in a network.
struct Holders<'a> {
    cx: &'a Context<'a>,
    data_dir: &'a Path,
    records: Records,
}

impl<'a> Holders<'a> {
    fn new(cx: &'a Context<'a>, data_dir: &'a Path) -> Self {
        Self { cx, data_dir, records: Records::of_host() }
    }

    /// Calls `take` for the holders that have ended, until it returns a value. Then waits for holders whose namespaces nothing names
    /// any more.
    fn first_ended<T>(
        &self,
        addresses: &[IpAddr],
        take: impl Fn(&Held, &Record, &str) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if addresses.is_empty() {
            return Ok(None);
        }
        let witness = Witness::new()?;
        let mut ending = Vec::new();
        for address in addresses {
            let Some((held, record)) = self.holder(*address) else { continue };
            match witness.life_of_record(&record) {
                Life::Ended(reason) => {
                    if let Some(taken) = take(&held, &record, &reason)? {
                        return Ok(Some(taken));
                    }
                }
                Life::Alive if ending.len() < ENDING_MAX && witness.may_end(&record) => {
                    ending.push((held, record));
                }
                Life::Alive | Life::Unknown(_) => {}
            }
        }
        let records: Vec<&Record> = ending.iter().map(|(_, record)| record).collect();
        if records.is_empty() || !witness.wait_for_end(&records, END_TIMEOUT) {
            return Ok(None);
        }
        for (held, record) in &ending {
            if let Life::Ended(reason) = witness.life_of_record(record)
                && let Some(taken) = take(held, record, &reason)?
            {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    /// The reservation of an address, and the record of the ADD that made it. `None` if this is not certain.
    fn holder(&self, address: IpAddr) -> Option<(Held, Record)> {
        let network = &self.cx.request.network;
        let held = held::read(self.data_dir, network, address)?;
        let record = self.records.read(network, &held.at).ok().flatten()?;
        // A killed ADD has recorded no address: `gc` decides about it.
        let is_of_record =
            !record.made.is_empty() && self.records.has_reserved(&record, address, held.modified);
        is_of_record.then_some((held, record))
    }
}

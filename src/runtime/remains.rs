//! Finds the reservations, rules and links of ended containers that have no cache entry.

use std::collections::HashSet;

use crate::error::Result;
use crate::ipam::store::listed::Holder;
use crate::kernel::sys;
use crate::plugin::owner::Owner;
use crate::runtime::Runtime;
use crate::runtime::confirm::Candidate;
use crate::runtime::gc::{CacheSummary, GcRun};
use crate::runtime::owners;
use crate::runtime::reservations::{OwnedReservation, OwnerState, Survey};

const RELEASE: [&str; 2] = ["would release", "released"];

/// The owners of a host's reservations, rules and links, and whether they have ended.
pub struct Remains {
    pub survey: Survey,
    /// The ended owners of rules and links that have no cache entry.
    pub owners: Vec<String>,
}

impl Remains {
    pub fn find(runtime: &Runtime) -> Result<Self> {
        let survey = runtime.survey()?;
        let mut ended = HashSet::new();
        for (record, life) in &survey.records {
            if life.is_ended() {
                ended.insert(Owner::new(&record.network, &record.at).to_string());
            }
        }
        let mut owners = owners::on_host()?;
        owners.retain(|owner| ended.contains(owner));
        Ok(Self { survey, owners })
    }

    /// The reservations of owners that have ended, each with the proof.
    pub fn reservations(&self) -> impl Iterator<Item = (&OwnedReservation, &str)> {
        let all = self.survey.pools.iter().flat_map(|pool| &pool.reservations);
        all.filter_map(|owned| match &owned.state {
            OwnerState::Gone(reason) => Some((owned, reason.as_str())),
            _ => None,
        })
    }

    /// Whether the cache has an ended attachment of a holder. Its DEL releases the reservation.
    fn has_ended_attachment(&self, owned: &OwnedReservation) -> bool {
        let Holder::Container { id, .. } = &owned.reservation.holder else { return false };
        self.survey.attachments.iter().any(|(entry, life)| {
            entry.network == owned.network && entry.at.container_id == *id && life.is_ended()
        })
    }
}

impl Runtime {
    /// Releases the reservations of owners that have ended, in one network or in all.
    pub(super) fn release_ended(&self, known: &CacheSummary, run: &mut GcRun<'_>) -> Result<()> {
        // The common case: each reserved address belongs to an attachment that stays.
        if !self.has_reservation(|pool, address| {
            run.is_of(&pool.network) && !known.addresses.contains(&(pool.network.clone(), address))
        })? {
            return Ok(());
        }
        let remains = Remains::find(self)?;
        for (owned, reason) in remains.reservations() {
            // A GC without `--confirm` and `--dry-run` has already run the DEL of the attachment.
            let is_left_to_del = (run.options.confirm || run.options.is_dry_run)
                && remains.has_ended_attachment(owned);
            if run.is_of(&owned.network) && !is_left_to_del && !sys::is_interrupted() {
                self.release_remains(owned, reason, run);
            }
        }
        Ok(())
    }

    fn release_remains(&self, owned: &OwnedReservation, reason: &str, run: &mut GcRun<'_>) {
        let what = owned.title();
        let incarnation = || owned.reservation.incarnation();
        let found = || Candidate::new(&owned.network, what.clone(), incarnation(), reason);
        if !run.is_confirmed(found) {
            return;
        }
        let is_dry_run = run.options.is_dry_run;
        match if is_dry_run { Ok(true) } else { self.release(owned) } {
            Ok(true) => run.note_remainder(RELEASE, what, reason.into()),
            // Another process has released the reservation since it was listed.
            Ok(false) => {}
            Err(error) => run.collected.errors.push(error),
        }
    }
}

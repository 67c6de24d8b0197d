//! Releases the reservations of ended containers that have no cache entry.

use crate::error::Result;
use crate::kernel::sys;
use crate::runtime::Runtime;
use crate::runtime::confirm::Candidate;
use crate::runtime::gc::{CacheSummary, GcRun};
use crate::runtime::reservations::OwnedReservation;

const RELEASE: [&str; 2] = ["would release", "released"];

impl Runtime {
    /// Releases the reservations of owners that have ended, in one network or in all.
    pub(super) fn release_ended(&self, known: &CacheSummary, run: &mut GcRun<'_>) -> Result<()> {
        // The common case: each reserved address belongs to an attachment that stays.
        if !self.has_reservation(|pool, address| {
            run.is_of(&pool.network) && !known.addresses.contains(&(pool.network.clone(), address))
        })? {
            return Ok(());
        }
        let survey = self.survey()?;
        for (owned, reason) in survey.leaks() {
            // A GC without `--confirm` and `--dry-run` has already run the DEL of the attachment.
            let is_left_to_del = (run.options.confirm || run.options.is_dry_run)
                && survey.has_ended_attachment(owned);
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

//! Finds the reservations, rules and links of ended containers that have no cache entry.

use std::collections::HashSet;

use crate::error::Result;
use crate::ipam::store::listed::Holder;
use crate::kernel::sys;
use crate::names::NetworkName;
use crate::plugin::life::Life;
use crate::plugin::owner::Owner;
use crate::runtime::Runtime;
use crate::runtime::confirm::Candidate;
use crate::runtime::gc::{CacheSummary, GcRun};
use crate::runtime::owners;
use crate::runtime::reservations::{OwnedReservation, OwnerState, Pool, Survey, title};

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
            if matches!(life, Life::Ended(_)) {
                ended.insert(Owner::new(&record.network, &record.at).to_string());
            }
        }
        let mut owners = owners::on_host()?;
        owners.retain(|owner| ended.contains(owner));
        Ok(Self { survey, owners })
    }

    /// The reservations of owners that have ended, each with the proof.
    pub fn reservations(&self) -> Vec<(&Pool, &OwnedReservation, &str)> {
        let mut gone = Vec::new();
        for pool in &self.survey.pools {
            for reservation in &pool.reservations {
                if let OwnerState::Gone(reason) = &reservation.state {
                    gone.push((pool, reservation, reason.as_str()));
                }
            }
        }
        gone
    }

    /// Whether the cache has an ended attachment of a holder. Its DEL releases the reservation.
    fn has_ended_attachment(&self, network: &NetworkName, holder: &Holder) -> bool {
        let Holder::Container(id, _) = holder else { return false };
        self.survey.attachments.iter().any(|(entry, life)| {
            entry.network == *network
                && entry.at.container_id == *id
                && matches!(life, Life::Ended(_))
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
        for (pool, owned, reason) in remains.reservations() {
            let holder = &owned.reservation.holder;
            // A GC without `--confirm` and `--dry-run` has already run the DEL of the attachment.
            let is_left_to_del = (run.options.confirm || run.options.is_dry_run)
                && remains.has_ended_attachment(&pool.network, holder);
            if run.is_of(&pool.network) && !is_left_to_del && !sys::is_interrupted() {
                self.release_remains(pool, owned, reason, run);
            }
        }
        Ok(())
    }

    fn release_remains(
        &self,
        pool: &Pool,
        owned: &OwnedReservation,
        reason: &str,
        run: &mut GcRun<'_>,
    ) {
        let of = title(&pool.network, &owned.reservation.holder);
        let what = format!("{} of {of}", owned.reservation.address);
        let incarnation = || owned.reservation.incarnation();
        let found = || Candidate::new(&pool.network, what.clone(), incarnation(), reason);
        if !run.is_confirmed(found) {
            return;
        }
        let is_dry_run = run.options.is_dry_run;
        match if is_dry_run { Ok(true) } else { self.release(pool, &owned.reservation) } {
            Ok(true) => run.note_remainder(RELEASE, what, reason.into()),
            // Another process has released the reservation since it was listed.
            Ok(false) => {}
            Err(error) => run.collected.errors.push(error),
        }
    }
}

//! The remains of containers that have ended and that no cache has: reservations, rules and links.

use crate::error::Result;
use crate::ipam::store::listed::Holder;
use crate::kernel::sys;
use crate::names::NetworkName;
use crate::plugin::life::{self, Life};
use crate::plugin::owner::Owner;
use crate::plugin::record::Record;
use crate::runtime::Runtime;
use crate::runtime::confirm::Found;
use crate::runtime::gc::{Collection, REMOVE};
use crate::runtime::owners;
use crate::runtime::reservations::{OwnedReservation, OwnerState, Pool, Survey, title};

const RELEASE: [&str; 2] = ["would release", "released"];

/// The owners on a host, and the signs of their life.
pub struct Remains {
    pub survey: Survey,
    /// The owners of rules and links without a cache entry that have ended, each with the proof.
    pub owners: Vec<(String, String)>,
}

impl Remains {
    pub fn find(runtime: &Runtime) -> Result<Self> {
        let survey = runtime.survey()?;
        let ended = survey.ended_owners();
        let mut owners = Vec::new();
        for owner in owners::on_host()? {
            if let Some(proof) = ended.get(&owner) {
                owners.push((owner, proof.to_string()));
            }
        }
        Ok(Self { survey, owners })
    }

    /// The reservations of owners that are gone.
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

    /// Whether the cache has an attachment of a holder that has ended: its DEL releases the reservation.
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
    /// Removes the remains in a network, or in all.
    pub(super) fn remove_remains(
        &self,
        network: Option<&NetworkName>,
        run: &mut Collection<'_>,
    ) -> Result<()> {
        let remains = Remains::find(self)?;
        for (pool, owned, reason) in remains.reservations() {
            let holder = &owned.reservation.holder;
            // A GC that removes has tried the DEL of the attachment already.
            let is_left_to_del = (run.options.confirm || run.options.is_dry_run)
                && remains.has_ended_attachment(&pool.network, holder);
            let is_chosen = network.is_none_or(|network| *network == pool.network);
            if is_chosen && !is_left_to_del && !sys::is_interrupted() {
                self.release_remains(pool, owned, reason, run);
            }
        }
        for (owner, proof) in &remains.owners {
            let is_chosen = network.is_none_or(|name| owner.starts_with(&Owner::prefix(name)));
            if is_chosen && !sys::is_interrupted() {
                self.remove_rules(owner, proof, run);
            }
        }
        Ok(())
    }

    fn release_remains(
        &self,
        pool: &Pool,
        owned: &OwnedReservation,
        reason: &str,
        run: &mut Collection<'_>,
    ) {
        let of = title(&pool.network, &owned.reservation.holder);
        let what = format!("{} of {of}", owned.reservation.address);
        let incarnation = || owned.reservation.incarnation();
        let found = || Found::new(&pool.network, what.clone(), incarnation(), reason);
        if !run.is_confirmed(found) {
            return;
        }
        let is_dry_run = run.options.is_dry_run;
        match if is_dry_run { Ok(true) } else { self.release(pool, &owned.reservation) } {
            Ok(true) => run.note_remainder(RELEASE, what, reason.into()),
            // Another process did it.
            Ok(false) => {}
            Err(error) => run.collected.errors.push(error),
        }
    }

    fn remove_rules(&self, owner: &str, proof: &str, run: &mut Collection<'_>) {
        let Some(Record { network, at, .. }) = life::ended(owner) else { return };
        let locked = self.lock_if_free(&network, &at.container_id);
        let Ok(Some(_locks)) = locked else {
            run.collected.errors.extend(locked.err());
            return;
        };
        // Another one with this name can be attached since the survey.
        if self.known(&network, &at).is_some() || !life::has_ended(owner) {
            return;
        }
        let what = format!("the rules and links of {}", at.title(&network));
        let generation = || self.generation(&network, &at);
        if !run.is_confirmed(|| Found::new(&network, what.clone(), generation(), proof)) {
            return;
        }
        let remove = || {
            self.remove_owned(&network, std::slice::from_ref(&at))?;
            self.forget(&network, &at)
        };
        match if run.options.is_dry_run { Ok(()) } else { remove() } {
            Ok(()) => run.note_remainder(REMOVE, what, proof.into()),
            Err(error) => run.collected.errors.push(error),
        }
    }
}

/// An owner in words.
pub fn title_of(owner: &str) -> String {
    let Some([network, id, ifname]) = Owner::parts(owner) else { return owner.into() };
    format!("{ifname} of container {id} in network {network}")
}

//! Releases the reservations of ended containers that have no cache entry.

use std::collections::{BTreeSet, HashSet};

use crate::attachments::life::Witness;
use crate::attachments::owner::Owner;
use crate::error::Result;
use crate::ipam::store::listed::Holder;
use crate::kernel::sys;
use crate::names::{Attachment, ContainerId, NetworkName};
use crate::runtime::Runtime;
use crate::runtime::confirm::Candidate;
use crate::runtime::gc::{GcRun, Left};
use crate::runtime::reservations::{OwnedReservation, OwnerState, Survey};

const RELEASE: [&str; 2] = ["would release", "released"];

impl Runtime {
    /// Releases the reservations of owners that have ended, in one network or in all. Adds the holders of the others to `left`.
    pub(super) fn release_ended(&self, witness: &Witness, left: Left, run: &mut GcRun<'_>) -> Left {
        if left.owners.is_none() {
            return left;
        }
        match self.release_leaks(witness, &left, run) {
            Ok(holders) => Left { holders: Some(holders), ..left },
            Err(error) => {
                run.collected.errors.push(error);
                left
            }
        }
    }

    /// Returns the networks and containers of the reservations that stay, except those of attachments that stay.
    fn release_leaks(
        &self,
        witness: &Witness,
        left: &Left,
        run: &mut GcRun<'_>,
    ) -> Result<BTreeSet<(NetworkName, ContainerId)>> {
        // The common case: each reserved address belongs to an attachment that stays.
        if !self.has_reservation(|pool, address| {
            run.is_of(&pool.network) && !left.addresses.contains(&(pool.network.clone(), address))
        })? {
            return Ok(BTreeSet::new());
        }
        let mut survey = self.read_survey(witness)?;
        survey.warn();
        let mut pools = std::mem::take(&mut survey.pools);
        for owned in pools.iter_mut().map(|pool| &mut pool.reservations) {
            owned.retain(|owned| {
                let OwnerState::Gone(reason) = &owned.state else { return true };
                let stays = !run.is_of(&owned.network)
                    || survey.is_left_to_del(owned)
                    || sys::is_interrupted();
                stays || !self.release_remains(owned, reason, run)
            });
        }
        Ok(Survey { pools, ..survey }.holders())
    }

    /// Adds the owners of reservations that nothing shows to be alive, without those that can be of another host.
    pub(super) fn with_holders(&self, mut owners: HashSet<String>) -> Result<HashSet<String>> {
        let survey = self.survey()?;
        for pool in survey.pools.iter().filter(|pool| !pool.is_of_several_hosts) {
            for owned in &pool.reservations {
                if !owned.is_alive()
                    && let Holder::Container { id, ifname: Some(ifname) } =
                        owned.reservation.holder.clone()
                {
                    let at = Attachment { container_id: id, ifname };
                    owners.insert(Owner::new(&owned.network, &at).to_string());
                }
            }
        }
        Ok(owners)
    }

    /// Whether a reservation names the attachment, and nothing shows that it is alive.
    pub(super) fn is_reserved_for(&self, network: &NetworkName, at: &Attachment) -> Result<bool> {
        let (container_id, ifname) = (at.container_id.clone(), at.ifname.clone());
        let holder = Holder::Container { id: container_id, ifname: Some(ifname) };
        let names_it = |owned: &OwnedReservation| {
            owned.network == *network && owned.reservation.holder == holder && !owned.is_alive()
        };
        Ok(self.survey()?.reservations().any(names_it))
    }

    /// Releases the reservations of an attachment.
    pub(super) fn release_of(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
        let survey = self.survey()?;
        // An old reservation names no interface, and can be of another one.
        let is_its_own = |owned: &&OwnedReservation| {
            owned.network == *network && owned.reservation.holder.is(at) && !owned.is_alive()
        };
        survey.reservations().filter(is_its_own).try_for_each(|owned| self.release(owned).map(drop))
    }

    /// Returns false if the reservation stays.
    fn release_remains(&self, owned: &OwnedReservation, reason: &str, run: &mut GcRun<'_>) -> bool {
        let what = owned.title();
        let incarnation = || owned.reservation.incarnation();
        let found = || Candidate::new(&owned.network, what.clone(), incarnation(), reason);
        if !run.is_confirmed(found) {
            return false;
        }
        let is_dry_run = run.options.is_dry_run;
        match if is_dry_run { Ok(true) } else { self.release(owned) } {
            Ok(true) => run.note_remainder(RELEASE, what, reason.into()),
            // Another process has released the reservation since it was listed.
            Ok(false) => {}
            Err(error) => {
                run.collected.errors.push(error);
                return false;
            }
        }
        true
    }
}

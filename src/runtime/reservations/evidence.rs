//! Decides whether the owner of a reservation is alive.

use std::fs;
use std::time::SystemTime;

use super::{OwnedReservation, OwnerState, Pod, Pool};
use crate::attachments::life::Life;
use crate::attachments::record::{Record, Unreadable};
use crate::cni::args::Args;
use crate::ipam::store::listed::{Holder, Reservation};
use crate::names::{ContainerId, NetworkName};
use crate::runtime::Runtime;
use crate::runtime::cache::{CacheEntry, Damaged};

fn pod(entry: &CacheEntry) -> Option<Pod> {
    let args = Args::parse(&entry.args).ok()?;
    Some(Pod { namespace: args.pod_namespace?.into(), name: args.pod_name?.into() })
}

/// What a host knows of its attachments: cache entries, and the records of attachments without a cache entry. The state of each owner follows from these.
pub(super) struct Evidence<'a> {
    pub(super) runtime: &'a Runtime,
    /// The records of attachments without a cache entry, as in [`Survey`].
    pub(super) records: Vec<(Record, Life)>,
    pub(super) unreadable: Vec<Unreadable>,
    /// Sorted by `key`.
    pub(super) attachments: Vec<(CacheEntry, Life)>,
    /// The damaged cache entries.
    pub(super) damaged: Vec<Damaged>,
}

impl Evidence<'_> {
    pub(super) fn judged(&self, pool: &Pool, reservation: Reservation) -> OwnedReservation {
        let is_held = |(entry, _): &&(CacheEntry, Life)| {
            is_held_by(entry, &pool.network, &reservation.holder)
        };
        let of_container = match &reservation.holder {
            Holder::Container { id, .. } => self.attachments_of((&pool.network, id)),
            Holder::Operator | Holder::Other { .. } => &[],
        };
        let entries: Vec<_> = of_container.iter().filter(is_held).collect();
        let age = reservation.modified.and_then(|time| SystemTime::now().duration_since(time).ok());
        OwnedReservation {
            network: pool.network.clone(),
            data_dir: pool.data_dir.clone(),
            pod: entries.iter().find_map(|(entry, _)| pod(entry)),
            age_seconds: age.map(|age| age.as_secs()),
            state: self.state(pool, &reservation, &entries),
            reservation,
        }
    }

    /// The attachments of a container in a network.
    fn attachments_of(&self, of: (&NetworkName, &ContainerId)) -> &[(CacheEntry, Life)] {
        let start = self.attachments.partition_point(|(entry, _)| key(entry) < of);
        let found = &self.attachments[start..];
        &found[..found.partition_point(|(entry, _)| key(entry) == of)]
    }

    /// The state of the owner. `entries` has its cache entries.
    fn state(
        &self,
        pool: &Pool,
        reservation: &Reservation,
        entries: &[&(CacheEntry, Life)],
    ) -> OwnerState {
        let holder = &reservation.holder;
        let id = match holder {
            Holder::Container { id, .. } => id,
            Holder::Operator => return OwnerState::Reserved,
            Holder::Other { .. } => {
                return OwnerState::Unknown("its file names no container".into());
            }
        };
        let is_recorded =
            |(record, _): &&(Record, Life)| record.network == pool.network && holder.is(&record.at);
        let recorded: Vec<_> = self.records.iter().filter(is_recorded).collect();
        let mut lives: Vec<&Life> = entries.iter().map(|(_, life)| life).collect();
        lives.extend(recorded.iter().map(|(_, life)| life));
        if lives.contains(&&Life::Alive) {
            return OwnerState::Alive("its network namespace exists".into());
        }
        if self.damaged.iter().any(|file| file.may_be_of(&pool.network, id)) {
            return OwnerState::Unknown("its cache entry is damaged".into());
        }
        for life in lives {
            if let Life::Unknown(reason) = life {
                return OwnerState::Unknown(reason.clone());
            }
        }
        let of_entries =
            entries.iter().filter(|(entry, _)| self.is_reserved_for(reservation, entry));
        let records = &self.runtime.records;
        let of_records = recorded.iter().filter(|(record, _)| {
            records.has_reserved(record, reservation.address, reservation.modified)
        });
        let ended = of_entries.map(|(_, life)| life).chain(of_records.map(|(_, life)| life));
        for life in ended {
            if let Life::Ended(reason) = life {
                return OwnerState::Gone(reason.clone());
            }
        }
        if pool.is_of_several_hosts {
            return OwnerState::Unknown("it can be a reservation of another host".into());
        }
        if reservation.is_of_earlier_boot {
            return OwnerState::Gone("an earlier boot of this host made it".into());
        }
        let is_its_own = |unreadable: &&Unreadable| {
            unreadable
                .named()
                .is_some_and(|(network, at)| network == pool.network && holder.is(&at))
        };
        OwnerState::Unknown(match self.unreadable.iter().find(is_its_own) {
            Some(Unreadable { error, .. }) => error.to_string(),
            None => "no record of its attachment tells whether it has ended".into(),
        })
    }

    /// Whether the ADD of a cache entry made the reservation.
    fn is_reserved_for(&self, reservation: &Reservation, entry: &CacheEntry) -> bool {
        let cached = self.runtime.cache.path(&entry.network, &entry.at);
        let cached = fs::metadata(cached).and_then(|file| file.modified()).ok();
        let is_older = reservation.modified.is_some_and(|made| Some(made) <= cached);
        let Ok(Some(result)) = entry.success() else { return false };
        is_older && result.ips.iter().any(|ip| ip.address.addr() == reservation.address)
    }
}

/// The network and the container of an entry.
pub(super) fn key(entry: &CacheEntry) -> (&NetworkName, &ContainerId) {
    (&entry.network, &entry.at.container_id)
}

fn is_held_by(entry: &CacheEntry, network: &NetworkName, holder: &Holder) -> bool {
    entry.network == *network && holder.is(&entry.at)
}

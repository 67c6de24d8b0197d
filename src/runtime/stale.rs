//! What an ADD does about earlier attachments of the interface: it deletes the remains of those that have ended, and fails if one
//! may be alive.

use crate::attachments::life::{Life, Witness};
use crate::attachments::record::{Operation, Record};
use crate::error::{Code, Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::sys::warn;
use crate::runtime::Runtime;
use crate::runtime::attachments::Unrecorded;
use crate::runtime::cache::CacheEntry;
use crate::runtime::conf::Network;
use crate::runtime::lock::Lock;

/// The generation of a record, and its operation: by the time of the lock, another process can have completed it.
#[derive(Default, PartialEq)]
struct Judged {
    generation: String,
    operation: Option<Operation>,
}

impl Judged {
    fn of(record: &Record) -> Self {
        Self { generation: record.generation.clone(), operation: record.operation() }
    }
}

impl Runtime {
    /// Deletes the remains of ended attachments of the interface, to any network, and of an interrupted operation. Fails if an
    /// attachment is alive or, in this network, may be alive.
    pub(super) fn delete_stale_of(
        &self,
        netns: &NetNs,
        new: &CacheEntry,
        network: &Network,
    ) -> Result<()> {
        let witness = Witness::new()?;
        self.refuse_shared_file(&witness, new)?;
        // An unreadable record or entry is no sign of an interrupted operation. Below the entry is judged, and `begin` replaces no
        // unreadable record.
        let record = self.records.read(&new.network, &new.at).unwrap_or(None);
        let interrupted =
            record.as_ref().and_then(|record| self.interrupted(record).unwrap_or(None));
        let judged = record.as_ref().map(Judged::of).unwrap_or_default();
        // The request of the ADD, or of a DEL. Without one, such as of another runtime, the list of the ADD is unknown.
        let request = || {
            let unknown = || CacheEntry { config: Vec::new(), ..new.clone() };
            record.as_ref().and_then(CacheEntry::of_record).unwrap_or_else(unknown)
        };
        if interrupted.is_some() {
            // The records are not needed here.
            let _ = self.sweep_files();
        }
        let entry = self.cache.read(&new.network, &new.at);
        // The list lacks the entries that it cannot read: that of this attachment may be readable now only.
        let own = entry.as_ref().ok().cloned().flatten();
        let known = match entry {
            Ok(known) => known,
            Err(error) => {
                if netns.rtnl()?.link(&new.at.ifname)?.is_some() {
                    return Err(error.context(format!("cannot add {}", new.title())));
                }
                // The file of another attachment, which has ended, says nothing about this one.
                match (self.cache.holder(&new.network, &new.at)?, &record) {
                    (None, _) => self.require_end_by_record(&witness, new, &error)?,
                    (Some(_), Some(record))
                        if !record.made.is_empty()
                            && witness.settled_life(record) == Life::Alive =>
                    {
                        return Err(already_attached(new));
                    }
                    (Some(_), _) => {}
                }
                warn(format_args!("{error}; deleting the attachment of this name"));
                Some(request())
            }
        };
        let mut gone = Vec::new();
        let mut others = self.cache.of_interface(&new.at)?;
        others.retain(|other| other.network != new.network);
        for other in own.into_iter().chain(others) {
            let is_of_network = other.network == new.network;
            let judged = self.judged(&other);
            match self.life_for_add(&witness, &other) {
                _ if is_of_network && interrupted.is_some() => {}
                Life::Alive => return Err(already_attached(&other)),
                Life::Unknown(reason) if is_of_network => {
                    return Err(may_be_attached(&other, &reason));
                }
                Life::Ended(_) if !is_of_network => gone.push((other, judged)),
                Life::Unknown(_) | Life::Ended(_) => {}
            }
        }
        for (other, judged) in gone {
            if let Some(_lock) = Lock::network_without_gc(&self.locks, &other.network)? {
                self.delete_stale(&other, &other.network_of_add()?, &judged)?;
            }
        }
        let rest = match (known, &record) {
            (Some(known), _) => known,
            (None, None) => return Ok(()),
            (None, Some(_)) if interrupted.is_some() => request(),
            // Another runtime has made the attachment, or its cache entry is lost.
            (None, Some(record)) => match witness.settled_life(record) {
                Life::Alive if !record.made.is_empty() => return Err(already_attached(new)),
                Life::Ended(_) if !record.request.is_empty() => request(),
                Life::Alive | Life::Ended(_) | Life::Unknown(_) => return Ok(()),
            },
        };
        let old = rest.network_of_add();
        self.delete_stale(&rest, old.as_ref().unwrap_or(network), &judged)
    }

    /// The record of another attachment, as it is judged. Default if it has none, or an unreadable one.
    fn judged(&self, of: &CacheEntry) -> Judged {
        let record = self.records.read(&of.network, &of.at).ok().flatten();
        record.as_ref().map(Judged::of).unwrap_or_default()
    }

    /// Fails unless the record of an attachment, of which the cache entry cannot be read because of `error`, proves its end.
    fn require_end_by_record(
        &self,
        witness: &Witness,
        of: &CacheEntry,
        error: &Error,
    ) -> Result<()> {
        let life = match self.records.read(&of.network, &of.at)? {
            Some(record) => witness.settled_life(&record),
            None => Life::Unknown("it has no record".into()),
        };
        match life {
            Life::Ended(_) => Ok(()),
            Life::Alive => Err(already_attached(of)),
            Life::Unknown(reason) => Err(may_be_attached(of, &format!("{error}; {reason}"))),
        }
    }

    /// Two attachments can have the same file name in libcni's cache: network `a-b` with container `c`, and network `a` with
    /// container `b-c`. Fails if the file belongs to another attachment that may be alive.
    fn refuse_shared_file(&self, witness: &Witness, new: &CacheEntry) -> Result<()> {
        let Some(other) = self.cache.holder(&new.network, &new.at)? else { return Ok(()) };
        if self.life_for_add(witness, &other).is_ended() {
            return Ok(());
        }
        let msg = format!("cannot add {}: {} has its cache file", new.title(), other.title());
        let path = self.cache.path(&new.network, &new.at);
        Err(Error::internal(msg).with_details(path.display().to_string()))
    }

    /// Deletes the remains of an attachment that has ended, or of an interrupted operation.
    fn delete_stale(&self, rest: &CacheEntry, network: &Network, judged: &Judged) -> Result<()> {
        let held = self.hold_for_del(&rest.network, &rest.at)?;
        if held.as_ref().is_some_and(|held| Judged::of(&held.record) != *judged) {
            let msg = format!("cannot add {}: another ADD has just attached it", rest.title());
            return Err(Error::new(Code::TRY_AGAIN_LATER, msg));
        }
        let netns = self.netns_of_del(rest, Unrecorded::HasInterface);
        self.delete_held(rest, network, &netns, held).map_err(|error| {
            error.context(format!("cannot delete the remains of {}", rest.title()))
        })
    }
}

fn may_be_attached(entry: &CacheEntry, reason: &str) -> Error {
    let msg = format!("cannot add {}: it may be attached already", entry.title());
    Error::internal(msg).with_details(format_args!("{reason}; cnibox del removes it"))
}

fn already_attached(entry: &CacheEntry) -> Error {
    let success = entry.success().unwrap_or_default().unwrap_or_default();
    let addresses: Vec<String> = success.nets().iter().map(ToString::to_string).collect();
    let has = match addresses.as_slice() {
        [] => String::new(),
        addresses => format!(", with {}", addresses.join(", ")),
    };
    let msg = format!("cannot add {}: it is attached already{has}", entry.title());
    Error::internal(msg).with_details(format_args!("its namespace is {}", entry.netns.display()))
}

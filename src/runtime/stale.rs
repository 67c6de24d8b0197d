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
    fn of_record(record: &Record) -> Self {
        Self { generation: record.generation.clone(), operation: record.operation() }
    }

    /// Default without a record, and of an unreadable one.
    fn of(found: &Result<Option<Record>>) -> Self {
        found.as_ref().ok().and_then(Option::as_ref).map(Self::of_record).unwrap_or_default()
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
        let found = self.records.read(&new.network, &new.at);
        let remains = self.remains_of(&witness, netns, new, &found)?;
        for (other, judged) in self.ended_in_other_networks(&witness, new)? {
            if let Some(_lock) = Lock::network_without_gc(&self.locks, &other.network)? {
                self.delete_stale(&other, &other.network_of_add()?, &judged)?;
            }
        }
        let Some(remains) = remains else { return Ok(()) };
        let old = remains.network_of_add();
        self.delete_stale(&remains, old.as_ref().unwrap_or(network), &Judged::of(&found))
    }

    /// An earlier attachment of this name, with the list to delete it, or `None`. `found` is the record of the name. Fails if the
    /// attachment may be alive.
    fn remains_of(
        &self,
        witness: &Witness,
        netns: &NetNs,
        new: &CacheEntry,
        found: &Result<Option<Record>>,
    ) -> Result<Option<CacheEntry>> {
        // An unreadable record or entry is no sign of an interrupted operation. Below the entry is judged, and `begin` replaces no
        // unreadable record.
        let record = found.as_ref().ok().and_then(Option::as_ref);
        let is_interrupted =
            record.is_some_and(|record| self.interrupted(record).is_ok_and(|it| it.is_some()));
        if is_interrupted {
            // The records are not needed here.
            let _ = self.sweep_files();
        }
        // The request of the ADD, or of a DEL. Without one, such as of another runtime, the list of the ADD is unknown.
        let request = || {
            let unknown = || CacheEntry { config: Vec::new(), ..new.clone() };
            record.and_then(CacheEntry::of_record).unwrap_or_else(unknown)
        };
        match (self.cache.read(&new.network, &new.at), record) {
            (Ok(Some(entry)), _) => {
                // It also waits for the end of a namespace, and completes the record.
                let life = self.life_for_add(found, witness, &entry);
                if !is_interrupted {
                    require_end(&entry, life)?;
                }
                Ok(Some(entry))
            }
            (Err(error), _) => {
                self.refuse_unreadable(witness, netns, new, found, &error)?;
                warn(format_args!("{error}; deleting the attachment of this name"));
                Ok(Some(request()))
            }
            (Ok(None), Some(_)) if is_interrupted => Ok(Some(request())),
            // Another runtime has made the attachment, or its cache entry is lost.
            (Ok(None), Some(record)) => {
                let life = life_unless_attached(witness, new, record)?;
                Ok((life.is_ended() && !record.request.is_empty()).then(request))
            }
            (Ok(None), None) => Ok(None),
        }
    }

    /// The ended attachments of the interface to other networks. Fails if one is alive.
    fn ended_in_other_networks(
        &self,
        witness: &Witness,
        new: &CacheEntry,
    ) -> Result<Vec<(CacheEntry, Judged)>> {
        let mut others = self.cache.of_interface(&new.at)?;
        others.retain(|other| other.network != new.network);
        let mut ended = Vec::new();
        for other in others {
            let found = self.records.read(&other.network, &other.at);
            match self.life_for_add(&found, witness, &other) {
                Life::Alive => return Err(already_attached(&other)),
                Life::Ended(_) => ended.push((other, Judged::of(&found))),
                Life::Unknown(_) => {}
            }
        }
        Ok(ended)
    }

    /// Fails if an attachment whose cache entry cannot be read, because of `error`, may be alive. `found` is the record of its name.
    fn refuse_unreadable(
        &self,
        witness: &Witness,
        netns: &NetNs,
        new: &CacheEntry,
        found: &Result<Option<Record>>,
        error: &Error,
    ) -> Result<()> {
        if netns.rtnl()?.link(&new.at.ifname)?.is_some() {
            return Err(error.clone().context(format!("cannot add {}", new.title())));
        }
        let is_of_another = self.cache.holder(&new.network, &new.at)?.is_some();
        let life = match found {
            // The file of another attachment, which has ended, says nothing about this one.
            Ok(None) if is_of_another => return Ok(()),
            Ok(Some(record)) if is_of_another => {
                match life_unless_attached(witness, new, record)? {
                    Life::Alive => return Ok(()),
                    life => life,
                }
            }
            Ok(Some(record)) => witness.settled_life(record),
            Ok(None) => Life::Unknown("it has no record".into()),
            Err(unreadable) => return Err(unreadable.clone()),
        };
        let life = match life {
            Life::Unknown(reason) => Life::Unknown(format!("{error}; {reason}")),
            life => life,
        };
        require_end(new, life)
    }

    /// Two attachments can have the same file name in libcni's cache: network `a-b` with container `c`, and network `a` with
    /// container `b-c`. Fails if the file belongs to another attachment that may be alive.
    fn refuse_shared_file(&self, witness: &Witness, new: &CacheEntry) -> Result<()> {
        let Some(other) = self.cache.holder(&new.network, &new.at)? else { return Ok(()) };
        let found = self.records.read(&other.network, &other.at);
        if self.life_for_add(&found, witness, &other).is_ended() {
            return Ok(());
        }
        let msg = format!("cannot add {}: {} has its cache file", new.title(), other.title());
        let path = self.cache.path(&new.network, &new.at);
        Err(Error::internal(msg).with_details(path.display().to_string()))
    }

    /// Deletes the remains of an attachment that has ended, or of an interrupted operation.
    fn delete_stale(&self, rest: &CacheEntry, network: &Network, judged: &Judged) -> Result<()> {
        let record = self.hold_for_del(&rest.network, &rest.at)?;
        if record.get().is_some_and(|record| Judged::of_record(record) != *judged) {
            let msg = format!("cannot add {}: another ADD has just attached it", rest.title());
            return Err(Error::new(Code::TRY_AGAIN_LATER, msg));
        }
        let netns = self.netns_of_del(rest, Unrecorded::HasInterface);
        self.delete(rest, network, &netns, record).map_err(|error| {
            error.context(format!("cannot delete the remains of {}", rest.title()))
        })
    }
}

/// The life of an attachment of which only the record tells. Fails if it is alive and has made something.
fn life_unless_attached(witness: &Witness, new: &CacheEntry, record: &Record) -> Result<Life> {
    match witness.settled_life(record) {
        Life::Alive if !record.made.is_empty() => Err(already_attached(new)),
        life => Ok(life),
    }
}

fn require_end(entry: &CacheEntry, life: Life) -> Result<()> {
    match life {
        Life::Ended(_) => Ok(()),
        Life::Alive => Err(already_attached(entry)),
        Life::Unknown(reason) => Err(may_be_attached(entry, &reason)),
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

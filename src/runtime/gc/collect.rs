//! Finds and removes the attachments that have ended: those of the cache and of requests by a DEL, those of one configuration
//! together; of the others, which plugins recorded, the rules and links.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::attachments::life::{Life, Witness};
use crate::attachments::owner::Owner;
use crate::attachments::record::{Held, Hold, Operation, Record};
use crate::cni::request::Verb;
use crate::error::{Error, Result};
use crate::kernel::sys::{self, warn};
use crate::names::{Attachment, NetworkName};
use crate::runtime::Runtime;
use crate::runtime::attachments::{self, Unrecorded};
use crate::runtime::cache::CacheEntry;
use crate::runtime::chain::Chain;
use crate::runtime::conf::Network;
use crate::runtime::confirm::Candidate;
use crate::runtime::gc::{GcRun, Left, PROCESS_DIED, REMOVE, Removed, has_rules_of_reference};
use crate::runtime::host_objects;
use crate::runtime::lifecycle::DelRecord;
use crate::runtime::lock::Lock;

/// The maximum number of attachments that are removed together. The locks of each need three open files, and a process may open
/// 1024. For each such group the links and the rules of the host are read once.
const AT_ONCE_MAX: usize = 250;

/// What tells of an attachment.
#[derive(PartialEq)]
enum Known {
    /// Its cache entry, or the request in its record: a DEL removes it. And the record of its name.
    Request(Box<CacheEntry>, Result<Option<Record>>),
    /// A record of plugins, whose runtime has its own cache: its rules and links are removed without a configuration.
    Record(Record),
}

/// An attachment to remove. Its network and its container are locked.
struct Ended {
    known: Known,
    reason: String,
    /// Its record, if its namespace has ended and a plugin of this executable has made it.
    record: Option<Record>,
    /// The lock of its record: an ADD of another runtime waits.
    _held: Option<Box<Held>>,
    _locks: [Lock; 2],
}

/// The reason to remove an attachment.
struct Removal {
    reason: String,
    /// Its namespace has ended.
    has_ended: bool,
}

impl Known {
    fn names(&self) -> (&NetworkName, &Attachment) {
        match self {
            Self::Request(entry, _) => (&entry.network, &entry.at),
            Self::Record(record) => (&record.network, &record.at),
        }
    }

    fn record(&self) -> Option<&Record> {
        match self {
            Self::Request(_, found) => found.as_ref().ok()?.as_ref(),
            Self::Record(record) => Some(record),
        }
    }

    fn owner(&self) -> String {
        let (network, at) = self.names();
        Owner::new(network, at).to_string()
    }

    /// What is removed, as text.
    fn title(&self) -> String {
        let (network, at) = self.names();
        match self {
            Self::Request(..) => at.title(network),
            Self::Record(_) => format!("the rules and links of {}", at.title(network)),
        }
    }
}

impl Ended {
    /// Whether two attachments can be removed together: each plugin then reads the rules and links of the host once.
    fn is_like(&self, other: &Self) -> bool {
        match (&self.known, &other.known) {
            (Known::Record(one), Known::Record(other)) => one.network == other.network,
            (Known::Request(one, _), Known::Request(two, _)) => match (&self.record, &other.record)
            {
                (Some(record), Some(other)) => {
                    record.plugins == other.plugins && one.config == two.config
                }
                _ => false,
            },
            _ => false,
        }
    }
}

impl Runtime {
    /// Removes the attachments of one network, or of all, that have ended.
    pub(super) fn remove_ended(
        &self,
        witness: &Witness,
        dead: &[PathBuf],
        run: &mut GcRun<'_>,
    ) -> Result<Left> {
        let networks = run.choice.map(|choice| choice.name().clone()).into_iter().collect();
        let mut left = Left { networks, ..Left::default() };
        match host_objects::on_host() {
            Ok(owners) => left.owners = Some(owners.into_iter().collect()),
            Err(error) => run.collected.errors.push(error),
        }
        let mut all = self.known(left.owners.as_ref())?;
        all.retain(|known| run.is_of(known.names().0));
        all.sort_by(|one, two| one.names().cmp(&two.names()));
        let mut ended: Vec<Ended> = Vec::new();
        for known in &all {
            if sys::is_interrupted() {
                return Err(Error::internal("cannot collect garbage: interrupted"));
            }
            let (network, at) = known.names();
            if left.networks.last() != Some(network) && matches!(known, Known::Request(..)) {
                left.networks.push(network.clone());
            }
            // Most attachments are alive. They need no lock.
            if self.removal(witness, dead, known).is_none() {
                if let Known::Request(entry, _) = known {
                    let addresses = entry.made().addresses.into_iter();
                    left.addresses.extend(addresses.map(|address| (network.clone(), address)));
                }
                continue;
            }
            // This process can take a container's lock only once. If an attachment in `ended` has it, remove `ended` first.
            let has_lock = |other: &Ended| other.known.names().1.container_id == at.container_id;
            if ended.len() == AT_ONCE_MAX || ended.iter().any(has_lock) {
                self.remove_locked(std::mem::take(&mut ended), &mut left, run);
            }
            match self.locked(witness, dead, known, run) {
                Ok(found) => ended.extend(found),
                Err(error) => run.note_failure(&known.title(), error),
            }
        }
        self.remove_locked(ended, &mut left, run);
        Ok(left)
    }

    /// The attachments in the cache, those of requests, and those of other records that have rules or links. Prints a warning for
    /// each entry that cannot be read; `sweep` warns of the records.
    fn known(&self, owners: Option<&HashSet<String>>) -> Result<Vec<Known>> {
        let cached = self.cache.all()?;
        cached.damaged.iter().for_each(|file| warn(format_args!("{}", file.error)));
        let records = self.records.all()?.records.into_iter();
        let mut records: HashMap<String, Record> =
            records.map(|record| (record.at.title(&record.network), record)).collect();
        let of_cache = |entry: CacheEntry| {
            let record = match records.remove(&entry.title()) {
                // None, or an unreadable one.
                None => self.records.read(&entry.network, &entry.at),
                record => Ok(record),
            };
            Known::Request(Box::new(entry), record)
        };
        let mut all: Vec<Known> = cached.entries.into_iter().map(of_cache).collect();
        let has_objects = |known: &Known| owners.is_some_and(|all| all.contains(&known.owner()));
        all.extend(records.into_values().filter_map(|record| {
            match CacheEntry::of_record(&record) {
                Some(request) => Some(Known::Request(Box::new(request), Ok(Some(record)))),
                None => Some(Known::Record(record)).filter(has_objects),
            }
        }));
        Ok(all)
    }

    /// Locks an attachment and checks again that it is to be removed. `None` if another process holds a lock: an operation is
    /// in progress.
    fn locked(
        &self,
        witness: &Witness,
        dead: &[PathBuf],
        listed: &Known,
        run: &mut GcRun<'_>,
    ) -> Result<Option<Ended>> {
        let (network, at) = listed.names();
        let Some(locks) = self.lock_if_free(network, &at.container_id)? else { return Ok(None) };
        let mut held = match self.records.hold_for_removal(network, at)? {
            Hold::Held(held) => Some(held),
            Hold::Missing => None,
            Hold::Busy(_) => return Ok(None),
        };
        // What differs from the listed one belongs to a later operation, so it stays.
        let record = held.as_ref().map(|held| held.record.clone());
        let known = match self.entry_of(network, at) {
            Some(entry) => Some(Known::Request(Box::new(entry), Ok(record))),
            None => record.map(Known::Record),
        };
        let Some(known) = known.filter(|known| known == listed) else { return Ok(None) };
        let Some(Removal { reason, has_ended }) = self.removal(witness, dead, &known) else {
            return Ok(None);
        };
        let stays = match &known {
            // If no configuration can be read, the DEL fails and reports it.
            Known::Request(entry, _) => {
                self.network_for_del(entry, run.chosen()).is_ok_and(|network| network.disable_gc)
            }
            Known::Record(_) => has_rules_of_reference(network, at)?,
        };
        let found = || Candidate::new(network, known.title(), self.incarnation(&known), &reason);
        if stays || !run.is_confirmed(found) {
            return Ok(None);
        }
        let record = match &known {
            Known::Request(entry, Ok(Some(record))) => Some(record).filter(|record| {
                has_ended
                    && record.maker.makes_interfaces()
                    && attachments::is_record_of(record, entry, &self.cache)
                    && entry.has_list_of_add()
            }),
            Known::Request(..) | Known::Record(_) => None,
        };
        let record = record.cloned();
        if let Some(held) = held.as_mut().filter(|_| !run.options.is_dry_run) {
            held.note_deleting(|| match &known {
                Known::Request(entry, _) => entry.request(&entry.config),
                Known::Record(_) => Vec::new(),
            })?;
        }
        Ok(Some(Ended { known, reason, record, _held: held, _locks: locks }))
    }

    /// Removes attachments, as many together as possible. The records of plugins stay until `sweep`: they can be the proof for
    /// other objects.
    fn remove_locked(&self, mut ended: Vec<Ended>, left: &mut Left, run: &mut GcRun<'_>) {
        let is_dry_run = run.options.is_dry_run;
        let config = |ended: &Ended| match &ended.known {
            Known::Request(entry, _) => entry.config.clone(),
            Known::Record(_) => Vec::new(),
        };
        ended.sort_by_cached_key(config);
        for group in ended.chunk_by(Ended::is_like) {
            let are_removed = is_dry_run || self.remove_together(group);
            for Ended { known, reason, .. } in group {
                let removed =
                    if are_removed { Ok(()) } else { self.remove_one(known, run.chosen()) };
                match (removed, known) {
                    (Ok(()), Known::Request(entry, _)) => run.note_attachment(Removed {
                        network: entry.network.clone(),
                        at: entry.at.clone(),
                        reason: reason.clone(),
                    }),
                    (Ok(()), Known::Record(_)) => {
                        run.note_remainder(REMOVE, known.title(), reason.clone());
                        left.owners.iter_mut().for_each(|owners| {
                            owners.remove(&known.owner());
                        });
                    }
                    (Err(error), _) => run.note_failure(&known.title(), error),
                }
            }
        }
    }

    /// Removes several attachments that are alike. Returns false if a plugin is not in this executable, or after an error: then the
    /// caller removes each alone, which reports the error.
    fn remove_together(&self, group: &[Ended]) -> bool {
        let [first, _, ..] = group else { return false };
        let (network, _) = first.known.names();
        let all: Vec<Attachment> =
            group.iter().map(|ended| ended.known.names().1.clone()).collect();
        let Known::Request(entry, _) = &first.known else {
            return self.remove_owned(network, &all).is_ok();
        };
        let Ok(network) = entry.network_of_add() else { return false };
        let chain = self.chain(entry, &network, Path::new(""), Verb::Del(entry.at.clone()));
        let chain = Chain { record: first.record.as_ref(), ..chain };
        chain.is_ours()
            && chain.remove_ended(&all).is_ok()
            && all.iter().all(|at| self.remove_files(&network.name, at).is_ok())
    }

    fn remove_one(&self, known: &Known, chosen: Option<&Network>) -> Result<()> {
        match known {
            Known::Request(entry, found) => {
                let record = found.as_ref().ok().cloned().flatten();
                self.delete_of_add(entry, chosen, DelRecord::Read(record.map(Box::new)))
            }
            Known::Record(Record { network, at, .. }) => {
                self.remove_owned(network, std::slice::from_ref(at))
            }
        }
    }

    /// A text that differs for a later attachment of the same name: generation of the record, and fingerprint of the cache entry.
    fn incarnation(&self, known: &Known) -> String {
        let (network, at) = known.names();
        let generation = known.record().map_or("", |record| &record.generation);
        let cached = attachments::fingerprint(&self.cache.path(network, at)).unwrap_or_default();
        format!("{generation}|{cached}")
    }

    /// The reason to remove an attachment, or `None`. `dead` has the namespaces of killed processes.
    fn removal(&self, witness: &Witness, dead: &[PathBuf], known: &Known) -> Option<Removal> {
        let life = match known {
            Known::Request(entry, _) if dead.contains(&entry.netns) => {
                return Some(Removal { reason: PROCESS_DIED.into(), has_ended: false });
            }
            Known::Request(entry, found) => self.life_by(found, witness, entry),
            Known::Record(record) => witness.life_of_record(record),
        };
        if let Life::Ended(reason) = life {
            return Some(Removal { reason, has_ended: true });
        }
        // Complete an interrupted DEL: its caller wanted the removal. An interrupted ADD is left to its caller while the
        // container is alive. Without a view of the host, DEL could delete the interface of another attachment.
        // An unreadable record or cache entry proves nothing. `gc` warns of it.
        let interrupted = known.record().and_then(|record| self.interrupted(record).ok().flatten());
        let is_begun = interrupted == Some(Operation::Del) && witness.view().is_ok();
        is_begun.then(|| Removal { reason: "its DEL died".into(), has_ended: false })
    }

    /// Deletes an attachment with the configuration of its ADD. If that is unreadable, uses `chosen`, or else the directory.
    pub(super) fn delete_of_add(
        &self,
        entry: &CacheEntry,
        chosen: Option<&Network>,
        record: DelRecord,
    ) -> Result<()> {
        if let (Err(error), None) = (entry.network_of_add(), chosen) {
            warn(format_args!("{error}"));
        }
        let network = self.network_for_del(entry, chosen)?;
        let netns = self.netns_of_del(entry, Unrecorded::HasInterface);
        self.delete(entry, &network, &netns, record)
    }

    /// The configuration of the ADD. If that is unreadable: `chosen`, or else that of the directory.
    fn network_for_del(&self, entry: &CacheEntry, chosen: Option<&Network>) -> Result<Network> {
        match (entry.network_of_add(), chosen) {
            (Ok(network), _) => Ok(network),
            (Err(_), Some(chosen)) => Ok(chosen.clone()),
            (Err(_), None) => self.configured_network(&entry.network),
        }
    }
}

//! Finds and deletes the ended attachments of the cache. Attachments of one configuration are deleted together.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::cni::request::Verb;
use crate::error::{Error, Result};
use crate::kernel::sys::{self, warn};
use crate::names::Attachment;
use crate::plugin::life::{Life, Witness};
use crate::plugin::owner::Owner;
use crate::plugin::record::{Held, Hold, Maker, Operation, Record};
use crate::runtime::Runtime;
use crate::runtime::cache::CacheEntry;
use crate::runtime::chain::Chain;
use crate::runtime::conf::Network;
use crate::runtime::confirm::Candidate;
use crate::runtime::gc::{CacheSummary, GcRun, PROCESS_DIED, Removed};
use crate::runtime::life::{self, Unrecorded};
use crate::runtime::lock::Lock;

/// The maximum number of attachments that are deleted together. The locks of each need three open files, and a process may open
/// 1024. For each such group the links and the rules of the host are read once.
pub(super) const AT_ONCE_MAX: usize = 250;

/// An attachment to remove. Its network and its container are locked.
struct Stale {
    entry: CacheEntry,
    reason: String,
    /// Its record, if its namespace has ended and a plugin of this executable has made it.
    ended: Option<Record>,
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

impl Runtime {
    /// Deletes the attachments of one network, or of all, that have ended.
    pub(super) fn gc_of_cache(
        &self,
        witness: &Witness,
        dead: &[PathBuf],
        run: &mut GcRun<'_>,
    ) -> Result<CacheSummary> {
        let networks = run.choice.map(|choice| choice.name().clone()).into_iter().collect();
        let mut known = CacheSummary { networks, ..CacheSummary::default() };
        let cached = self.cache.all()?;
        cached.damaged.iter().for_each(|error| warn(format_args!("{error}")));
        let mut entries = cached.entries;
        let titles: HashSet<String> = entries.iter().map(CacheEntry::title).collect();
        // `gc` warns of the records that cannot be read.
        let requests = self.records.all()?.records;
        let requests = requests.iter().filter_map(CacheEntry::of_record);
        entries.extend(requests.filter(|entry| !titles.contains(&entry.title())));
        entries.retain(|entry| run.is_of(&entry.network));
        entries.sort_by(|one, two| one.network.cmp(&two.network));
        let mut stale: Vec<Stale> = Vec::new();
        for entry in &entries {
            if sys::is_interrupted() {
                return Err(Error::internal("cannot collect garbage: interrupted"));
            }
            if known.networks.last() != Some(&entry.network) {
                known.networks.push(entry.network.clone());
            }
            known.owners.insert(Owner::new(&entry.network, &entry.at).to_string());
            // Most attachments are alive. They need no lock.
            if self.removal(witness, dead, entry).is_none() {
                let addresses = entry.made().addresses.into_iter();
                known.addresses.extend(addresses.map(|address| (entry.network.clone(), address)));
                continue;
            }
            // This process can take a container's lock only once. If an attachment in `stale` has it, delete `stale` first.
            let has_lock = |other: &Stale| other.entry.at.container_id == entry.at.container_id;
            if stale.len() == AT_ONCE_MAX || stale.iter().any(has_lock) {
                self.collect(std::mem::take(&mut stale), run);
            }
            match self.stale(witness, dead, entry, run) {
                Ok(found) => stale.extend(found),
                Err(error) => run.note_failure(entry, &error),
            }
        }
        self.collect(stale, run);
        Ok(known)
    }

    /// Locks an attachment and checks again that it is to be removed. `None` if another process holds a lock: an operation is
    /// in progress.
    fn stale(
        &self,
        witness: &Witness,
        dead: &[PathBuf],
        listed: &CacheEntry,
        run: &mut GcRun<'_>,
    ) -> Result<Option<Stale>> {
        let (network, at) = (&listed.network, &listed.at);
        let Some(locks) = self.lock_if_free(network, &at.container_id)? else { return Ok(None) };
        let mut held = match self.records.hold_for_removal(network, at)? {
            Hold::Held(held) => Some(held),
            Hold::Missing => None,
            Hold::Busy(_) => return Ok(None),
        };
        // An entry that differs from the listed one belongs to a later operation, so it stays.
        let known = self.entry_of(network, at).filter(|entry| entry == listed);
        let Some(entry) = known else { return Ok(None) };
        let Some(Removal { reason, has_ended }) = self.removal(witness, dead, &entry) else {
            return Ok(None);
        };
        // If no configuration can be read, the DEL fails and reports it.
        if self.network_for_del(&entry, run.chosen()).is_ok_and(|network| network.disable_gc) {
            return Ok(None);
        }
        let found = || Candidate::new(network, entry.title(), self.incarnation(&entry), &reason);
        if !run.is_confirmed(found) {
            return Ok(None);
        }
        let ended = self
            .record_of(&entry)?
            .filter(|record| has_ended && matches!(record.maker, Maker::Cnibox | Maker::Plugin));
        if let Some(held) = held.as_mut().filter(|_| !run.options.is_dry_run) {
            held.note_deleting(&entry.request())?;
        }
        Ok(Some(Stale { entry, reason, ended, _held: held, _locks: locks }))
    }

    /// Deletes attachments, those of one configuration together: each plugin then reads the rules and links of the host once.
    fn collect(&self, mut stale: Vec<Stale>, run: &mut GcRun<'_>) {
        let is_dry_run = run.options.is_dry_run;
        stale.sort_by(|one, two| one.entry.config.cmp(&two.entry.config));
        let are_alike = |one: &Stale, two: &Stale| match (&one.ended, &two.ended) {
            (Some(first), Some(second)) => {
                first.plugins == second.plugins && one.entry.config == two.entry.config
            }
            _ => false,
        };
        for group in stale.chunk_by(are_alike) {
            let are_deleted = is_dry_run || self.delete_ended(group);
            for Stale { entry, reason, .. } in group {
                let deleted =
                    if are_deleted { Ok(()) } else { self.delete_of_add(entry, run.chosen()) };
                match deleted {
                    Ok(()) => run.note_attachment(Removed {
                        network: entry.network.clone(),
                        at: entry.at.clone(),
                        reason: reason.clone(),
                    }),
                    Err(error) => run.note_failure(entry, &error),
                }
            }
        }
    }

    /// Deletes several ended attachments of one configuration together. Returns false if a plugin is not in this executable, or
    /// after an error: then the caller runs DEL for each attachment, which reports the error.
    fn delete_ended(&self, ended: &[Stale]) -> bool {
        let [first, _, ..] = ended else { return false };
        let Ok(network) = first.entry.network_of_add() else { return false };
        let verb = Verb::Del(first.entry.at.clone());
        let chain = self.chain(&first.entry, &network, Path::new(""), verb);
        let chain = Chain { record: first.ended.as_ref(), ..chain };
        let all: Vec<Attachment> = ended.iter().map(|stale| stale.entry.at.clone()).collect();
        chain.is_ours()
            && chain.remove_ended(&all).is_ok()
            && all.iter().all(|at| self.remove_files(&network.name, at).is_ok())
    }

    /// A text that differs for a later attachment of the same name: generation of the record, and fingerprints of the files.
    fn incarnation(&self, entry: &CacheEntry) -> String {
        let (network, at) = (&entry.network, &entry.at);
        let cached = life::fingerprint(&self.cache.path(network, at)).unwrap_or_default();
        let record = self.records.read(network, at).ok().flatten();
        let generation = record.map_or_else(String::new, |record| record.generation);
        format!("{generation}|{cached}")
    }

    /// The reason to remove an attachment, or `None`. `dead` has the namespaces of killed processes.
    fn removal(&self, witness: &Witness, dead: &[PathBuf], entry: &CacheEntry) -> Option<Removal> {
        if dead.contains(&entry.netns) {
            return Some(Removal { reason: PROCESS_DIED.into(), has_ended: false });
        }
        if let Life::Ended(reason) = self.life(witness, entry) {
            return Some(Removal { reason, has_ended: true });
        }
        // Complete an interrupted DEL: its caller wanted the removal. An interrupted ADD is left to its caller while the
        // container is alive. Without a view of the host, DEL could delete the interface of another attachment.
        // An unreadable record or cache entry proves nothing. `gc` warns of it.
        let interrupted = self.interrupted(&entry.network, &entry.at).ok().flatten();
        let is_begun = interrupted == Some(Operation::Del) && witness.view().is_ok();
        is_begun.then(|| Removal { reason: "its DEL died".into(), has_ended: false })
    }

    /// Deletes an attachment with the configuration of its ADD. If that is unreadable, uses `chosen`, or else the directory.
    pub(super) fn delete_of_add(&self, entry: &CacheEntry, chosen: Option<&Network>) -> Result<()> {
        if let (Err(error), None) = (entry.network_of_add(), chosen) {
            warn(format_args!("{error}"));
        }
        let network = self.network_for_del(entry, chosen)?;
        self.delete(entry, &network, &self.netns_of_del(entry, Unrecorded::HasInterface))
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

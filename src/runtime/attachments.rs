//! Decides whether the attachment of a cache entry is alive, and which record belongs to the entry.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hmac_sha512::Hash;

use crate::attachments::life::{self, Attached, Life, Witness};
use crate::attachments::record::{AllRecords, Made, Maker, Record, Unreadable};
use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::kernel::identity::Identity;
use crate::kernel::netns::NetNs;
use crate::kernel::sys::warn;
use crate::names::{ContainerId, hex};
use crate::runtime::Runtime;
use crate::runtime::cache::{Cache, CacheEntry, Entries};
use crate::runtime::chain::Chain;

/// What a DEL takes for the namespace of an attachment without a record.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Unrecorded {
    /// The namespace at its path: the caller has named one.
    IsAtPath,
    /// Only one that has its interface. By now the path can be that of a later container, for example that of a process with the
    /// same number.
    HasInterface,
}

impl Runtime {
    /// The attachments in the cache, of all runtimes, and those of records without a cache entry whose end nothing proves: only the
    /// operator can remove these. The list is for display, so this takes no lock. Prints a warning for each entry and each record
    /// that cannot be read.
    pub fn attachments(&self) -> Result<Vec<(CacheEntry, Life)>> {
        let witness = Witness::new()?;
        let mut attachments = self.lives(&witness, self.entries()?);
        let titles: HashSet<String> = attachments.iter().map(|(entry, _)| entry.title()).collect();
        let AllRecords { mut records, unreadable } = self.records.all()?;
        records.retain(|record| !titles.contains(&record.at.title(&record.network)));
        let judged = records.into_iter().map(|record| {
            let life = witness.life_of_record(&record);
            let named = CacheEntry::new(&record.network, &record.at);
            (CacheEntry { netns: record.netns, ..named }, life)
        });
        attachments.extend(judged.filter(|(_, life)| matches!(life, Life::Unknown(_))));
        unreadable.iter().for_each(Unreadable::warn);
        Ok(attachments)
    }

    /// The lives of entries of the cache, as they were read. An attachment whose DEL has removed the entry since then is left out: its
    /// namespace can end at once.
    pub(super) fn lives(
        &self,
        witness: &Witness,
        entries: Vec<CacheEntry>,
    ) -> Vec<(CacheEntry, Life)> {
        let is_removed =
            |entry: &CacheEntry| matches!(self.cache.read(&entry.network, &entry.at), Ok(None));
        let lives = entries.into_iter().map(|entry| self.with_life(witness, entry));
        lives.filter(|(entry, life)| !(life.is_ended() && is_removed(entry))).collect()
    }

    pub(super) fn with_life(&self, witness: &Witness, entry: CacheEntry) -> (CacheEntry, Life) {
        let life = self.life(witness, &entry);
        (entry, life)
    }

    /// The entries of the cache. Prints a warning for each damaged entry.
    pub fn entries(&self) -> Result<Vec<CacheEntry>> {
        let found = self.cache.all()?;
        found.damaged.iter().for_each(|file| warn(format_args!("warning: {}", file.error)));
        Ok(found.entries)
    }

    /// The entries of the cache, and an error for each damaged entry.
    pub fn entries_and_damaged(&self) -> Result<Entries> {
        self.cache.all()
    }

    /// Whether the attachment of an entry is alive. Writes a record for an attachment without one if its namespace exists: with
    /// the record, a later call can ask the kernel whether the namespace has ended. So it does for a record of an unknown boot.
    pub(super) fn life(&self, witness: &Witness, entry: &CacheEntry) -> Life {
        self.life_by(&self.records.read(&entry.network, &entry.at), witness, entry)
    }

    /// `life`, for a caller that has read the record.
    pub(super) fn life_by(
        &self,
        found: &Result<Option<Record>>,
        witness: &Witness,
        entry: &CacheEntry,
    ) -> Life {
        let (life, unrecorded) = self.judge(found, witness, entry);
        if let Some(netns) = unrecorded
            && witness.view().is_ok()
        {
            // If the record cannot be written, for example without the permission, a later call has less proof, but no failure.
            let _ = self.adopt(witness, entry, &netns);
        }
        life
    }

    /// Whether the attachment of an entry is alive, and its namespace if it has no record, or one whose boot is unknown. `found` is
    /// the record of its name.
    pub(super) fn judge(
        &self,
        found: &Result<Option<Record>>,
        witness: &Witness,
        entry: &CacheEntry,
    ) -> (Life, Option<NetNs>) {
        let success = entry.success().ok().flatten().unwrap_or_default();
        let is_of_entry = |record: &&Record| is_record_of(record, entry, &self.cache);
        let record = found.as_ref().map(|found| found.as_ref().filter(is_of_entry));
        let old_identity = match found {
            Ok(Some(_)) | Err(_) => None,
            Ok(None) => self.records.old_identity(&entry.network, &entry.at, &entry.netns),
        };
        let on_host = success.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
        let links: Vec<String> = on_host.map(|interface| interface.name.clone()).collect();
        let verdict = witness.judge(&Attached {
            network: &entry.network,
            at: &entry.at,
            netns: &entry.netns,
            made: &Made::of(&success),
            links: &links,
            record,
            old_identity: old_identity.as_ref(),
        });
        // The found record is of a later ADD. If its container is alive, a DEL of this entry would remove that container's
        // objects.
        let may_live = |found: &Record| !witness.life_of_record(found).is_ended();
        let life = match (verdict.life, found) {
            (Life::Ended(_), Ok(Some(found))) if record == Ok(None) && may_live(found) => {
                Life::Unknown("a later container of its name lives".into())
            }
            (life, _) => life,
        };
        let has_no_boot = |found: &Record| !found.identity.has_proven_boot();
        let is_unrecorded = match record {
            Ok(Some(record)) => has_no_boot(record),
            Ok(None) => *found == Ok(None),
            Err(_) => false,
        };
        (life, verdict.netns.filter(|_| is_unrecorded))
    }

    /// Like `life_by`, for an ADD that replaces the attachment, see `Witness::settled_life`.
    pub(super) fn life_for_add(
        &self,
        found: &Result<Option<Record>>,
        witness: &Witness,
        entry: &CacheEntry,
    ) -> Life {
        let life = self.life_by(found, witness, entry);
        match found {
            Ok(Some(record)) if life == Life::Alive && witness.settled_life(record).is_ended() => {
                // Another process can have replaced it meanwhile.
                self.life(witness, entry)
            }
            _ => life,
        }
    }

    /// The record that the ADD of an entry wrote.
    pub(super) fn record_of(&self, entry: &CacheEntry) -> Result<Option<Record>> {
        let record = self.records.read(&entry.network, &entry.at)?;
        Ok(record.filter(|record| is_record_of(record, entry, &self.cache)))
    }

    /// Writes a record with maker `Adopted` for an attachment that has none. A record of an unknown boot gets the present boot:
    /// without /proc, or where a mount covers the boot id, its writer could not know it.
    fn adopt(&self, witness: &Witness, entry: &CacheEntry, netns: &NetNs) -> Result<()> {
        let (rtnl, by) = (netns.rtnl()?, (Maker::Adopted, Vec::new()));
        let record = Record::of(&entry.network, &entry.at, netns, (witness.host(), &rtnl), by)?;
        if record.number.is_none() && record.identity.cookie.is_some() {
            // It would never prove the end. A later call can adopt the attachment.
            return Ok(());
        }
        if let Some(known) = self.record_of(entry)? {
            return match record.identity.has_proven_boot() {
                true => self.records.identify(&known.generation, &record),
                false => Ok(()),
            };
        }
        let cache = fingerprint(&self.cache.path(&entry.network, &entry.at));
        self.records.adopt(&record, &Made { cache, ..entry.made() }).map(drop)
    }

    /// CNI_NETNS for the DEL of an entry. Empty if no namespace is at its path, or if it is the namespace of a later attachment
    /// or of the host.
    pub(super) fn netns_of_del(&self, entry: &CacheEntry, unrecorded: Unrecorded) -> PathBuf {
        match self.namespace_at_path(entry, unrecorded) {
            Ok(None) => PathBuf::new(),
            // On an error, DEL reports why it cannot open or read the namespace.
            Ok(Some(_)) | Err(_) => entry.netns.clone(),
        }
    }

    /// CNI_NETNS for the plugins of a DEL. Empty if the namespace is the host's: it is never the container's. Fails if the
    /// container's namespace exists: then the DEL needs its path. If the namespace cannot be opened, an executed plugin could
    /// find the host's there; the plugins of this executable remove what is on the host, and report the namespace.
    pub(super) fn netns_to_clean<'c>(
        &self,
        chain: &Chain<'c>,
        entry: &CacheEntry,
    ) -> Result<&'c Path> {
        let home = NetNs::own()?;
        let netns = match home.open_if_exists(chain.netns) {
            Ok(Some(netns)) => netns,
            Err(error) if !chain.is_ours() => {
                return Err(Error::of_file("open", chain.netns)(error));
            }
            Ok(None) | Err(_) => return Ok(chain.netns),
        };
        let Err(refusal) = self.refuse_host_namespace(&home, &netns) else {
            return Ok(chain.netns);
        };
        let is_alive = match self.records.read(&entry.network, &entry.at) {
            Ok(Some(record)) => life::is_alive(&record)?,
            Ok(None) | Err(_) => false,
        };
        let at_add = self.netns_of_del(entry, Unrecorded::HasInterface);
        if is_alive || !at_add.as_os_str().is_empty() {
            return Err(refusal);
        }
        warn(format_args!("{refusal}: only what is outside of the container is removed"));
        Ok(Path::new(""))
    }

    /// The namespace of a living attachment. `None` if another namespace, or none, is at its path.
    pub fn namespace_of_living(&self, entry: &CacheEntry) -> Result<Option<NetNs>> {
        self.namespace_at_path(entry, Unrecorded::IsAtPath)
    }

    /// The namespace at the path of an entry. `None` if there is none, if it belongs to a later attachment, or if it is the
    /// host's and CNI_NETNS_OVERRIDE is not set.
    fn namespace_at_path(
        &self,
        entry: &CacheEntry,
        unrecorded: Unrecorded,
    ) -> Result<Option<NetNs>> {
        let home = NetNs::own()?;
        let found = home.open_if_exists(&entry.netns);
        let Some(netns) = found.map_err(Error::of_file("open", &entry.netns))? else {
            return Ok(None);
        };
        if netns.is(&home)? {
            return Ok(Some(netns).filter(|_| self.settings.netns_override));
        }
        let rtnl = netns.rtnl()?;
        let now = Identity::of(rtnl.netns_cookie());
        let recorded = self.record_of(entry).map(|record| record.map(|record| record.identity));
        let is_its_own = match recorded {
            Ok(None | Some(Identity { cookie: None, .. }))
                if unrecorded == Unrecorded::IsAtPath =>
            {
                true
            }
            Ok(Some(recorded)) if recorded.is(&now) => true,
            Ok(Some(recorded)) if recorded.is_another(&now) => false,
            // If the record or its boot is unknown, the interface tells whether the namespace is the attachment's.
            Ok(_) | Err(_) => {
                let made = entry.made();
                life::is_attached_in(&rtnl, &entry.network, &entry.at, &made)? == Some(true)
            }
        };
        Ok(Some(netns).filter(|_| is_its_own))
    }

    /// Whether a DEL comes too late: the recorded attachment lives, and the given namespace is neither its own nor the host's. The
    /// DEL is that of an earlier container of the same id.
    pub(super) fn is_of_successor(&self, record: &Record, given: &Path) -> Result<bool> {
        let home = NetNs::own()?;
        let Ok(Some(netns)) = home.open_if_exists(given) else { return Ok(false) };
        let now = Identity::of(netns.rtnl()?.netns_cookie());
        Ok(!netns.is(&home)? && record.identity.is_another(&now) && life::is_alive(record)?)
    }

    /// Finds the namespace of a container by its id in these entries. `None` if no entry has the id. Fails if none of its
    /// attachments is provably alive with its namespace at the recorded path.
    pub fn namespace_of(&self, id: &str, entries: &[CacheEntry]) -> Result<Option<NetNs>> {
        let witness = Witness::new()?;
        let mut why = None;
        for entry in entries.iter().filter(|entry| *entry.at.container_id == *id) {
            // After the container has ended, its path can lead to the namespace of a later process.
            let reason = match self.life(&witness, entry) {
                Life::Alive => match self.namespace_at_path(entry, Unrecorded::IsAtPath)? {
                    Some(netns) => return Ok(Some(netns)),
                    None => format!("its network namespace is not at {}", entry.netns.display()),
                },
                Life::Ended(reason) => format!("it has ended: {reason}"),
                Life::Unknown(reason) => format!("it may have ended: {reason}"),
            };
            why.get_or_insert(reason);
        }
        let Some(reason) = why else { return Ok(None) };
        Err(Error::internal(format!("cannot enter container {id}")).with_details(reason))
    }
}

/// The id of the container that an operator names by its id, or by its network namespace `netns`. `None` if no entry is of such a
/// container. Fails if several containers have the namespace.
pub fn container_of(
    word: &str,
    netns: Option<&Path>,
    entries: &[CacheEntry],
) -> Result<Option<ContainerId>> {
    let is_at = |path: &Path| netns.is_some_and(|netns| without_var(path) == without_var(netns));
    match ids_of(entries, |entry| *entry.at.container_id == *word).first() {
        Some(id) => Ok(Some((*id).clone())),
        None => only(word, &ids_of(entries, |entry| is_at(&entry.netns))),
    }
}

/// `container_of`, or else the container whose id begins with the word, for commands that change nothing. The name of a namespace
/// that exists, and the id of a process, are no beginning of an id.
pub fn container_like(
    word: &str,
    netns: Option<&Path>,
    entries: &[CacheEntry],
) -> Result<Option<ContainerId>> {
    let found = container_of(word, netns, entries)?;
    if found.is_some() || netns.is_some_and(|netns| !matches!(netns.try_exists(), Ok(false))) {
        return Ok(found);
    }
    only(word, &ids_with_beginning(word, entries))
}

/// The ids of containers that begin with a word, in their order.
pub fn ids_with_beginning<'e>(word: &str, entries: &'e [CacheEntry]) -> Vec<&'e ContainerId> {
    ids_of(entries, |entry| !word.is_empty() && entry.at.container_id.starts_with(word))
}

fn ids_of(entries: &[CacheEntry], is_named: impl Fn(&CacheEntry) -> bool) -> Vec<&ContainerId> {
    let named = entries.iter().filter(|entry| is_named(entry));
    BTreeSet::from_iter(named.map(|entry| &entry.at.container_id)).into_iter().collect()
}

/// The only one of these ids, if there is one. Fails if there are several.
fn only(word: &str, ids: &[&ContainerId]) -> Result<Option<ContainerId>> {
    let [one, other, ..] = ids else { return Ok(ids.first().map(|id| (*id).clone())) };
    let msg = format!("{word} names several containers, such as {one} and {other}");
    Err(Error::config(msg))
}

/// A path below /run. Runtimes also name it /var/run.
fn without_var(path: &Path) -> &Path {
    path.strip_prefix("/var/run").or_else(|_| path.strip_prefix("/run")).unwrap_or(path)
}

/// Whether a record was written by the ADD that wrote an entry. A later ADD by plugins that write no record replaces the entry
/// only.
pub(super) fn is_record_of(record: &Record, entry: &CacheEntry, cache: &Cache) -> bool {
    if let Some(of) = &entry.of_record {
        return record.generation == of.generation;
    }
    if record.maker == Maker::Adopted {
        let fingerprint = fingerprint(&cache.path(&entry.network, &entry.at));
        return record.made.iter().any(|made| made.cache == fingerprint);
    }
    let has_made = record.made.is_empty() || entry.result == Json::Null || {
        let made = entry.made();
        record.made.iter().any(|recorded| recorded.is(&made))
    };
    record.netns == entry.netns && has_made
}

/// The fingerprint of a file: inode number, ctime and hash of the content. A file that replaces it has another one.
pub(super) fn fingerprint(path: &Path) -> Option<String> {
    let (metadata, content) = (fs::metadata(path).ok()?, file::read(path).ok()?);
    let (ino, s, ns) = (metadata.ino(), metadata.ctime(), metadata.ctime_nsec());
    Some(format!("{ino} {s}.{ns:09} {}", hex(&Hash::hash(&content)[..16])))
}

//! Which record belongs to an entry of the cache, and whether its attachment lives.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hmac_sha512::Hash;

use crate::cni::json::Json;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::kernel::identity::Identity;
use crate::kernel::netns::NetNs;
use crate::names::{Attachment, NetworkName, hex};
use crate::plugin::life::{Attached, Life, Witness};
use crate::plugin::record::{Made, Maker, Record};
use crate::runtime::Runtime;
use crate::runtime::cache::{Cache, CacheEntry};

/// The wait for a namespace that ends.
const END_TIMEOUT: Duration = Duration::from_secs(2);

impl Runtime {
    /// Whether the attachment of an entry lives. One without a record that is seen alive gets a record: later, the kernel can
    /// tell that it has ended.
    pub(super) fn life(&self, witness: &Witness, entry: &CacheEntry) -> Life {
        let success = entry.success().ok().flatten().unwrap_or_default();
        let made = Made::of(&success);
        let found = self.records.read(&entry.network, &entry.at);
        let record = found.as_ref().filter(|record| is_record_of(record, entry, &self.cache));
        let old_identity = match found {
            Some(_) => None,
            None => self.records.old_identity(&entry.network, &entry.at, &entry.netns),
        };
        let links = links_on_node(&success);
        let verdict = witness.judge(&Attached {
            network: &entry.network,
            at: &entry.at,
            netns: &entry.netns,
            made: &made,
            links: &links,
            record,
            old_identity: old_identity.as_ref(),
        });
        if let (Some(netns), None) = (&verdict.netns, &found)
            && witness.view().is_ok()
        {
            // Without the right to write it there is less proof.
            let _ = self.adopt(witness, entry, netns, made);
        }
        // A DEL of the entry would remove what that one has.
        let is_later = |found: &Record| witness.life_of_record(found) == Life::Alive;
        match (verdict.life, &found) {
            (Life::Ended(_), Some(found)) if record.is_none() && is_later(found) => {
                Life::Unknown("a later container of its name lives".into())
            }
            (life, _) => life,
        }
    }

    /// The same for an ADD in its place. The kernel ends a namespace some time after its last name, process and socket: an ADD waits
    /// for that.
    pub(super) fn life_for_add(&self, witness: &Witness, entry: &CacheEntry) -> Life {
        let life = self.life(witness, entry);
        if life != Life::Alive || matches!(self.own_namespace(entry), Ok(Some(_))) {
            return life;
        }
        let number = self.records.read(&entry.network, &entry.at).and_then(|record| record.number);
        let has_ended = number
            .is_some_and(|number| witness.host().wait_for_end(number, END_TIMEOUT) == Ok(true));
        if has_ended { self.life(witness, entry) } else { life }
    }

    /// The generation of a record. Empty without a record.
    pub(super) fn generation(&self, network: &NetworkName, at: &Attachment) -> String {
        self.records.read(network, at).map_or_else(String::new, |record| record.generation)
    }

    fn adopt(
        &self,
        witness: &Witness,
        entry: &CacheEntry,
        netns: &NetNs,
        made: Made,
    ) -> Result<()> {
        let (rtnl, maker) = (netns.rtnl()?, Maker::Adopted);
        let record = Record::of(&entry.network, &entry.at, netns, (witness.host(), &rtnl), maker)?;
        let made = Made { cache: fingerprint(&self.cache.path(&entry.network, &entry.at)), ..made };
        self.records.adopt(&record, &made).map(drop)
    }

    /// The path that a DEL of an entry may go into. Empty if no namespace is there, or that of a later attachment, or that of the
    /// host.
    pub(super) fn netns_of_del(&self, entry: &CacheEntry) -> PathBuf {
        match self.own_namespace(entry) {
            Ok(None) => PathBuf::new(),
            // DEL tells why it cannot open or read it.
            Ok(Some(_)) | Err(_) => entry.netns.clone(),
        }
    }

    /// The namespace at the path of an entry, if it is not that of a later attachment, or that of the host.
    fn own_namespace(&self, entry: &CacheEntry) -> Result<Option<NetNs>> {
        let home = NetNs::own()?;
        let Ok(Some(netns)) = home.open_if_exists(&entry.netns) else { return Ok(None) };
        if netns.is(&home)? {
            return Ok(Some(netns).filter(|_| self.settings.netns_override.is_some()));
        }
        let record = self.records.read(&entry.network, &entry.at);
        let record = record.filter(|record| is_record_of(record, entry, &self.cache));
        let recorded = record.map(|record| record.identity).filter(|it| it.cookie.is_some());
        let Some(recorded) = recorded else { return Ok(Some(netns)) };
        let now = Identity::of(netns.rtnl()?.netns_cookie());
        Ok(Some(netns).filter(|_| recorded.is(&now)))
    }

    /// The namespace of a container of these entries, by its id. `None` if no entry has the id; fails if none of its attachments
    /// is known to be alive.
    pub fn namespace_of(&self, id: &str, entries: &[CacheEntry]) -> Result<Option<NetNs>> {
        let witness = Witness::new()?;
        let mut why = None;
        for entry in entries.iter().filter(|entry| *entry.at.container_id == *id) {
            // A later process or namespace can have the path of a container that has ended.
            let reason = match self.life(&witness, entry) {
                Life::Alive => match self.own_namespace(entry)? {
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

/// Whether a record is of the ADD that made an entry: plugins that write no record can have attached the container again.
pub(super) fn is_record_of(record: &Record, entry: &CacheEntry, cache: &Cache) -> bool {
    if let Some(operation) = &entry.operation {
        return record.generation == operation.generation;
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

/// Tells a file of the cache from a later one: its inode, when that changed, and the hash of its content.
pub(super) fn fingerprint(path: &Path) -> Option<String> {
    let (metadata, content) = (fs::metadata(path).ok()?, file::read(path).ok()?);
    let (ino, s, ns) = (metadata.ino(), metadata.ctime(), metadata.ctime_nsec());
    Some(format!("{ino} {s}.{ns:09} {}", hex(&Hash::hash(&content)[..16])))
}

/// The names of the links of a result that are on the node.
fn links_on_node(success: &Success) -> Vec<String> {
    let on_node = success.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    on_node.map(|interface| interface.name.clone()).collect()
}

/// The addresses of a result as text, for people.
pub fn addresses(success: &Success) -> String {
    let addresses: Vec<String> = success.nets().iter().map(ToString::to_string).collect();
    addresses.join(", ")
}

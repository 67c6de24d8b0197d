//! The list of the attachments and their states. It is for display only, so no lock is taken.

use std::path::Path;

use crate::cni::json::Json;
use crate::cni::version::Version;
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::runtime::Runtime;
use crate::runtime::cache::CacheEntry;
use crate::runtime::evidence::{Evidence, Life};
use crate::runtime::lifecycle::{Choice, Target};

impl Runtime {
    /// The attachments that the cache has, whichever runtime made them. A damaged entry is a line on stderr.
    pub fn attachments(&self) -> Result<Vec<(CacheEntry, Life)>> {
        let entries = self.entries()?;
        Ok(with_life(&self.evidence()?, entries))
    }

    /// The entries of the cache. A damaged one is a line on stderr.
    pub fn entries(&self) -> Result<Vec<CacheEntry>> {
        let found = self.cache.all()?;
        found.damaged.iter().for_each(|error| warn(format_args!("warning: {error}")));
        Ok(found.entries)
    }

    /// Fails unless the attachment of an entry is alive.
    pub fn require_alive(&self, entry: &CacheEntry) -> Result<()> {
        let reason = match self.evidence()?.life(entry) {
            Life::Alive => return Ok(()),
            Life::Gone(reason) => format!("it has ended: {reason}"),
            Life::Unknown(reason) => format!("it may have ended: {reason}"),
        };
        let msg = format!("cannot enter container {}", entry.at.container_id);
        Err(Error::internal(msg).with_details(reason))
    }

    /// The directory of what only this runtime needs.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// CHECK of an attachment, with the parameters of its ADD. False if its configuration has no CHECK, or disables it.
    pub fn check_entry(&self, entry: &CacheEntry) -> Result<bool> {
        let network = entry.network_of_add()?;
        if network.disable_check || network.version < Version::V0_4_0 {
            return Ok(false);
        }
        let target = Target { at: &entry.at, netns: None, args: "", capability_args: &Json::Null };
        self.check(&Choice::Named(entry.network.clone()), &target).map(|()| true)
    }
}

/// Entries, and whether each lives.
pub(super) fn with_life(
    evidence: &Evidence<'_>,
    entries: Vec<CacheEntry>,
) -> Vec<(CacheEntry, Life)> {
    let mut attachments = Vec::new();
    for entry in entries {
        let life = evidence.life(&entry);
        attachments.push((entry, life));
    }
    attachments
}

//! The list of the attachments and their states. It is for display only, so no lock is taken.

use std::path::Path;

use crate::cni::json::Json;
use crate::cni::version::Version;
use crate::error::Result;
use crate::kernel::sys::warn;
use crate::plugin::life::{Life, Witness};
use crate::runtime::Runtime;
use crate::runtime::cache::CacheEntry;
use crate::runtime::lifecycle::{Choice, Target};

impl Runtime {
    /// The attachments that the cache has, whichever runtime made them. A damaged entry is a line on stderr.
    pub fn attachments(&self) -> Result<Vec<(CacheEntry, Life)>> {
        let (witness, mut attachments) = (Witness::new()?, Vec::new());
        for entry in self.entries()? {
            let life = self.life(&witness, &entry);
            attachments.push((entry, life));
        }
        Ok(attachments)
    }

    /// The entries of the cache. A damaged one is a line on stderr.
    pub fn entries(&self) -> Result<Vec<CacheEntry>> {
        let found = self.cache.all()?;
        found.damaged.iter().for_each(|error| warn(format_args!("warning: {error}")));
        Ok(found.entries)
    }

    /// The directory of what only this runtime needs.
    pub fn state_directory(&self) -> &Path {
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

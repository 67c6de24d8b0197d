//! Lists the attachments of the cache and whether they are alive. The list is for display, so this module takes no lock.

use crate::cni::version::Version;
use crate::error::Result;
use crate::kernel::sys::warn;
use crate::plugin::life::{Life, Witness};
use crate::runtime::Runtime;
use crate::runtime::cache::CacheEntry;
use crate::runtime::lifecycle::{Choice, Target};

impl Runtime {
    /// The attachments in the cache, of all runtimes. Prints a warning for each damaged entry.
    pub fn attachments(&self) -> Result<Vec<(CacheEntry, Life)>> {
        let (witness, mut attachments) = (Witness::new()?, Vec::new());
        for entry in self.entries()? {
            let life = self.life(&witness, &entry);
            attachments.push((entry, life));
        }
        Ok(attachments)
    }

    /// The entries of the cache. Prints a warning for each damaged entry.
    pub fn entries(&self) -> Result<Vec<CacheEntry>> {
        let found = self.cache.all()?;
        found.damaged.iter().for_each(|error| warn(format_args!("warning: {error}")));
        Ok(found.entries)
    }

    /// Runs CHECK of an attachment, with the parameters of its ADD. Returns false if the version of its configuration has no
    /// CHECK, or if `disableCheck` is set.
    pub fn check_entry(&self, entry: &CacheEntry) -> Result<bool> {
        let network = entry.network_of_add()?;
        if network.disable_check || network.version < Version::V0_4_0 {
            return Ok(false);
        }
        let choice = Choice::Named(entry.network.clone());
        self.check(&choice, &Target::cached(&entry.at, None)).map(|()| true)
    }
}

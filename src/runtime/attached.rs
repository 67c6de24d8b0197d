//! The list of the attachments and their states. It is for display only, so no lock is taken.

use std::path::Path;

use crate::cni::json::Json;
use crate::cni::version::Version;
use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::kernel::sys::warn;
use crate::runtime::cache::Entry;
use crate::runtime::life::Life;
use crate::runtime::lifecycle::{Choice, Runtime, Target};

impl Runtime {
    /// The attachments that the cache has, whichever runtime made them. A damaged entry is a line on stderr.
    pub fn attachments(&self) -> Result<Vec<(Entry, Life)>> {
        let home = NetNs::own()?;
        Ok(self.judged(&home, self.entries()?))
    }

    /// Entries, and whether each lives.
    pub(super) fn judged(&self, home: &NetNs, entries: Vec<Entry>) -> Vec<(Entry, Life)> {
        let mut judged = Vec::new();
        for entry in entries {
            let life = self.identities.life(home, &entry);
            judged.push((entry, life));
        }
        judged
    }

    /// The entries of the cache. A damaged one is a line on stderr.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let found = self.cache.all()?;
        found.damaged.iter().for_each(|error| warn(format_args!("warning: {error}")));
        Ok(found.entries)
    }

    /// The directory of what only this runtime needs.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// CHECK of an attachment, with the parameters of its ADD. False if its configuration has no CHECK, or disables it.
    pub fn check_entry(&self, entry: &Entry) -> Result<bool> {
        let network = entry.network_of_add()?;
        if network.disable_check || network.version < Version::V0_4_0 {
            return Ok(false);
        }
        let target = Target { at: &entry.at, netns: None, args: "", capability_args: &Json::Null };
        self.check(&Choice::Named(entry.network.clone()), &target).map(|()| true)
    }
}

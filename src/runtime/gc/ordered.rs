//! What the operator orders to remove, although nothing proves its end.

use std::collections::{BTreeSet, HashSet};

use crate::attachments::life::{Life, Witness};
use crate::attachments::owner::Owner;
use crate::attachments::record::AllRecords;
use crate::error::{Code, Error, Result};
use crate::names::{Attachment, NetworkName};
use crate::runtime::Runtime;
use crate::runtime::cache::CacheEntry;
use crate::runtime::gc::{Collected, REMOVE, Remainder, Removed, has_rules_of_reference};
use crate::runtime::host_objects;

impl Runtime {
    /// Removes an attachment that has ended or may be alive, because the operator orders it. Fails if it is provably alive.
    pub fn remove_unknown(
        &self,
        network: &NetworkName,
        at: &Attachment,
        is_dry_run: bool,
    ) -> Result<Removed> {
        let _locks = self.lock(network, &at.container_id)?;
        let cannot = || format!("cannot remove {}", at.title(network));
        let known = self.entry_of(network, at);
        let life = match self.recorded_life(&Witness::new()?, known.as_ref(), network, at) {
            Some(life) => life,
            None if self.is_on_host(network, at)? => Life::Unknown("it has no record".into()),
            None => {
                let msg = format!("{}: it is not attached", cannot());
                return Err(Error::new(Code::UNKNOWN_CONTAINER, msg));
            }
        };
        let reason = match life {
            Life::Alive => return Err(Error::internal(format!("{}: it is alive", cannot()))),
            Life::Ended(reason) => reason,
            Life::Unknown(reason) => format!("forced by the operator, although {reason}"),
        };
        match known {
            _ if is_dry_run => {}
            Some(entry) => {
                self.delete_of_add(&entry, None, self.hold_for_del(network, at)?)?;
            }
            None => {
                self.remove_owned(network, std::slice::from_ref(at))?;
                #[cfg(feature = "tool")]
                self.release_of(network, at)?;
                self.remove_files(network, at)?;
            }
        }
        Ok(Removed { network: network.clone(), at: at.clone(), reason })
    }

    /// Whether a link, a rule or a reservation names an attachment.
    fn is_on_host(&self, network: &NetworkName, at: &Attachment) -> Result<bool> {
        #[cfg(feature = "tool")]
        if self.is_reserved_for(network, at)? {
            return Ok(true);
        }
        let owner = Owner::new(network, at).to_string();
        Ok(host_objects::with_veths()?.contains(&owner) || has_rules_of_reference(network, at)?)
    }

    /// The owners that links, rules and reservations of this host name.
    fn owners_on_host(&self) -> Result<HashSet<String>> {
        let owners = host_objects::with_veths()?.into_iter().collect();
        #[cfg(feature = "tool")]
        let owners = self.with_holders(owners)?;
        Ok(owners)
    }

    /// Whether an attachment is alive, by its entry or else by its record. `None` without both.
    fn recorded_life(
        &self,
        witness: &Witness,
        entry: Option<&CacheEntry>,
        network: &NetworkName,
        at: &Attachment,
    ) -> Option<Life> {
        match (entry, self.records.read(network, at)) {
            (Some(entry), _) => Some(self.life(witness, entry)),
            (None, Ok(record)) => record.map(|record| witness.life_of_record(&record)),
            (None, Err(error)) => Some(Life::Unknown(error.to_string())),
        }
    }

    /// Removes all attachments, because the operator states that none is alive, such as after the end of a node in a container.
    /// Fails if one is provably alive.
    pub fn remove_all(
        &self,
        is_dry_run: bool,
        print_line: &mut dyn FnMut(&str),
    ) -> Result<Collected> {
        let witness = Witness::new()?;
        let AllRecords { records, unreadable } = self.records.all()?;
        let cached = self.entries()?.into_iter().map(|entry| (entry.network, entry.at));
        let recorded = records.into_iter().map(|record| (record.network, record.at));
        let owners = self.owners_on_host()?;
        let on_host = owners.iter().filter_map(|owner| Owner::named(owner));
        let all: BTreeSet<(NetworkName, Attachment)> =
            cached.chain(recorded).chain(on_host).collect();
        for (network, at) in &all {
            let entry = self.entry_of(network, at);
            let life = self.recorded_life(&witness, entry.as_ref(), network, at);
            if life == Some(Life::Alive) {
                let title = at.title(network);
                let msg = format!("cannot remove all attachments: {title} is alive");
                return Err(Error::internal(msg));
            }
        }
        let mut collected = Collected::default();
        for (network, at) in &all {
            match self.remove_unknown(network, at, is_dry_run) {
                Ok(removed) => {
                    print_line(&removed.line(is_dry_run));
                    collected.removed.push(removed);
                }
                Err(error) => collected.errors.push(error),
            }
        }
        for unreadable in unreadable {
            let what = format!("the unreadable record {}", unreadable.file.display());
            if !is_dry_run {
                collected.errors.extend(self.records.remove_unreadable(&unreadable).err());
            }
            let reason = "forced by the operator".to_owned();
            print_line(&format!("{} {what}: {reason}", REMOVE[usize::from(!is_dry_run)]));
            collected.remains.push(Remainder { what, reason });
        }
        Ok(collected)
    }
}

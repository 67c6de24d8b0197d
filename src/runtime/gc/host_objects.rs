//! Removes the rules and links on the host whose owners have ended and have no cache entry.

use crate::error::Result;
use crate::kernel::sys;
use crate::names::Attachment;
use crate::plugin::life::{Life, Witness};
use crate::plugin::owner::Owner;
use crate::plugin::record::{Held, Hold, Record};
use crate::runtime::Runtime;
use crate::runtime::confirm::Candidate;
use crate::runtime::gc::collect::AT_ONCE_MAX;
use crate::runtime::gc::{CacheSummary, GcRun, REMOVE, has_rules_of_reference};
use crate::runtime::lock::Lock;
use crate::runtime::owners;

/// An owner that has ended. Its network and its container are locked.
struct EndedOwner {
    record: Record,
    proof: String,
    _held: Box<Held>,
    _locks: [Lock; 2],
}

fn title(record: &Record) -> String {
    format!("the rules and links of {}", record.at.title(&record.network))
}

impl Runtime {
    /// Removes the rules and links of owners that have ended, in one network or in all. Skips owners in the cache: DEL removes
    /// their objects.
    pub(super) fn gc_of_host(&self, known: &CacheSummary, run: &mut GcRun<'_>) -> Result<()> {
        let mut found = owners::on_host()?;
        let prefix = run.choice.map_or_else(String::new, |choice| Owner::prefix(choice.name()));
        found.retain(|owner| owner.starts_with(&prefix) && !known.owners.contains(owner));
        let witness = Witness::new()?;
        let mut ended: Vec<EndedOwner> = Vec::new();
        for owner in found {
            if sys::is_interrupted() {
                break;
            }
            // An unreadable record proves nothing. `gc` warns of it.
            let record = self.records.of_owner(&owner).ok().flatten();
            let is_ended = |record: &Record| witness.life_of_record(record).is_ended();
            let Some(record) = record.filter(is_ended) else { continue };
            // All owners of a batch are in one network, and this process can take the lock of a container only once.
            let needs_own_batch = |EndedOwner { record: other, .. }: &EndedOwner| {
                other.network != record.network || other.at.container_id == record.at.container_id
            };
            if ended.len() == AT_ONCE_MAX || ended.iter().any(needs_own_batch) {
                self.remove_ended(std::mem::take(&mut ended), run);
            }
            match self.locked(&witness, &record, run) {
                Ok(locked) => ended.extend(locked),
                Err(error) => run.collected.errors.push(error),
            }
        }
        self.remove_ended(ended, run);
        Ok(())
    }

    /// Locks an owner and checks again that it has ended. `None` if another process holds a lock, or if a later attachment has
    /// the name.
    fn locked(
        &self,
        witness: &Witness,
        record: &Record,
        run: &mut GcRun<'_>,
    ) -> Result<Option<EndedOwner>> {
        let Record { network, at, .. } = record;
        let Some(locks) = self.lock_if_free(network, &at.container_id)? else { return Ok(None) };
        // An ADD of another runtime waits while this process has the lock of the record.
        let Hold::Held(mut held) = self.records.hold_for_removal(network, at)? else {
            return Ok(None);
        };
        if held.record != *record {
            return Ok(None);
        }
        if self.entry_of(network, at).is_some() || has_rules_of_reference(network, at)? {
            return Ok(None);
        }
        let Life::Ended(proof) = witness.life_of_record(record) else { return Ok(None) };
        let found = || Candidate::new(network, title(record), record.generation.clone(), &proof);
        if !run.is_confirmed(found) {
            return Ok(None);
        }
        if !run.options.is_dry_run {
            held.note_deleting(&[])?;
        }
        Ok(Some(EndedOwner { record: record.clone(), proof, _held: held, _locks: locks }))
    }

    /// Removes the rules and links of owners of one network. Their records stay until `sweep`: they can be the proof for other
    /// objects.
    fn remove_ended(&self, ended: Vec<EndedOwner>, run: &mut GcRun<'_>) {
        let Some(first) = ended.first() else { return };
        let all: Vec<Attachment> = ended.iter().map(|ended| ended.record.at.clone()).collect();
        let network = &first.record.network;
        let are_removed = run.options.is_dry_run || self.remove_owned(network, &all).is_ok();
        for ended in &ended {
            // After an error, retry each owner alone, so the error names it.
            let removed = match are_removed {
                true => Ok(()),
                false => self.remove_owned(network, std::slice::from_ref(&ended.record.at)),
            };
            match removed {
                Ok(()) => run.note_remainder(REMOVE, title(&ended.record), ended.proof.clone()),
                Err(error) => {
                    let context = format!("cannot remove {}", title(&ended.record));
                    run.collected.errors.push(error.context(context));
                }
            }
        }
    }
}

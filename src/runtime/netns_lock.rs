//! Named network namespaces that this runtime creates. GC removes those of killed processes.
//!
//! The lock file of a name has a note: the purpose of the namespace, and its identity, because `ip netns` can replace the
//! namespace. The note is written before the namespace is mounted at the name.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::attachments::life::Witness;
use crate::error::{Error, Result};
use crate::kernel::identity::Identity;
use crate::kernel::netns::NetNs;
use crate::kernel::sandbox;
use crate::kernel::sys::warn;
use crate::runtime::NAMED_NAMESPACES;
use crate::runtime::Runtime;
use crate::runtime::confirm::Candidate;
use crate::runtime::gc::{GcRun, PROCESS_DIED, REMOVE};
use crate::runtime::in_use::Uses;
use crate::runtime::lock::{self, Lock};

/// The purpose of a named namespace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// `cnibox run --name`: the namespace ends with the process that holds the lock. The command inherits the lock, so its
    /// descendants hold the lock after this process was killed, also those that the kernel shows nowhere as users of the namespace.
    Command,
    /// `cnibox add --create`: the namespace stays after the attachment is complete.
    Attachment,
}

/// The state of a name whose lock file exists and is held by no process.
enum NamedState {
    /// No namespace, or the namespace of another program.
    Foreign,
    /// The namespace of a killed process.
    Stale,
    /// The namespace of a killed process, which another process uses, or in which an attachment is.
    InUse,
}

impl Purpose {
    fn text(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Attachment => "attachment",
        }
    }
}

impl Runtime {
    /// Creates a named namespace with lo up. GC removes it if the process dies before it drops the lock.
    pub fn make_namespace(&self, path: &Path, purpose: Purpose) -> Result<(NetNs, Lock)> {
        self.remove_dead_namespaces(&Witness::new()?);
        // Check this before the lock: another command can hold the lock without a time limit.
        if NetNs::own()?.is_at(path)? {
            let msg = format!("cannot create {}: it exists already", path.display());
            return Err(Error::internal(msg));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let lock = Lock::namespace(&self.locks, &name)?;
        let prepare = |netns: &NetNs| {
            let rtnl = netns.rtnl()?;
            rtnl.raise_loopback()?;
            let identity = Identity::of(rtnl.netns_cookie());
            lock.note(&format!("{} {}", purpose.text(), identity.text()))
        };
        let netns = sandbox::new_named_namespace(path, &prepare)?;
        Ok((netns, lock))
    }

    /// The paths of the namespaces of killed processes.
    pub(super) fn dead_namespaces(&self, witness: &Witness) -> Vec<PathBuf> {
        let mut dead = Vec::new();
        self.visit_dead(witness, &mut |path, _, state| {
            if matches!(state, Ok(NamedState::Stale)) {
                dead.push(path.to_owned());
            }
            true
        });
        dead
    }

    /// Removes the namespaces of killed processes, and their locks.
    pub(super) fn remove_dead_namespaces(&self, witness: &Witness) {
        self.remove_dead(witness, &mut remove);
    }

    /// Removes the namespaces of killed processes that `gc --confirm` may remove now, and their locks.
    pub(super) fn remove_confirmed_namespaces(&self, witness: &Witness, run: &mut GcRun<'_>) {
        self.remove_dead(witness, &mut |path, note| {
            let what = format!("namespace {}", path.display());
            if !run.is_confirmed(|| Candidate::new("", what.clone(), note.into(), PROCESS_DIED)) {
                return Ok(true);
            }
            let is_kept = if run.options.is_dry_run { true } else { remove(path, note)? };
            run.note_remainder(REMOVE, what, PROCESS_DIED.into());
            Ok(is_kept)
        });
    }

    /// Calls `remove` with the path of each stale namespace and the note in its lock file. `remove` returns whether the
    /// namespace stays.
    fn remove_dead(&self, witness: &Witness, remove: &mut dyn FnMut(&Path, &str) -> Result<bool>) {
        self.visit_dead(witness, &mut |path, note, state| {
            let removed = state.and_then(|state| match state {
                NamedState::Foreign => Ok(false),
                NamedState::Stale => remove(path, note),
                NamedState::InUse => Ok(true),
            });
            removed.unwrap_or_else(|error| {
                warn(format_args!("{error}"));
                true
            })
        });
    }

    /// Calls `keep` with the path, the note and the state of each namespace whose lock no process holds. `keep` returns whether
    /// the lock file stays.
    fn visit_dead(
        &self,
        witness: &Witness,
        keep: &mut dyn FnMut(&Path, &str, Result<NamedState>) -> bool,
    ) {
        // A survey of the processes that is older than the end of a holder proves nothing about its namespace. A note names one
        // namespace, so the holders of the notes that are read before the survey have ended before it.
        let mut notes = HashSet::new();
        lock::visit_stale_namespaces(&self.locks, &mut |_, note| {
            notes.insert(note.to_owned());
            true
        });
        if notes.is_empty() {
            return;
        }
        let uses = Uses::survey(&[]);
        lock::visit_stale_namespaces(&self.locks, &mut |name, note| {
            let path = Path::new(NAMED_NAMESPACES).join(name);
            !notes.contains(note) || {
                let state = uses.as_ref().map_err(Clone::clone);
                let state = state.and_then(|uses| self.named_state(witness, &path, note, uses));
                keep(&path, note, state)
            }
        });
    }

    /// The state of a named namespace, by the note in its lock file. `InUse` if this process has no view of the host: the
    /// namespace then stays.
    fn named_state(
        &self,
        witness: &Witness,
        path: &Path,
        note: &str,
        uses: &Uses,
    ) -> Result<NamedState> {
        let Some((purpose, identity)) = note.split_once(' ') else {
            return Ok(NamedState::Foreign);
        };
        let Ok(view) = witness.view() else { return Ok(NamedState::InUse) };
        let found = view.namespace_at(path).map_err(|error| {
            Error::internal(format_args!("cannot open {}: {error}", path.display()))
        })?;
        let Some(netns) = found else {
            // An empty file is at the path: the process died after it created the file and before it mounted the namespace.
            let is_empty = fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 0);
            return Ok(if is_empty { NamedState::Stale } else { NamedState::Foreign });
        };
        let now = Identity::of(netns.rtnl()?.netns_cookie());
        if !Identity::parse(identity).is_some_and(|identity| identity.is(&now)) {
            return Ok(NamedState::Foreign);
        }
        let is_in_use = uses.is_in_use(&netns, &[])?
            || (purpose == Purpose::Attachment.text() && self.has_attachment(witness, path)?);
        Ok(if is_in_use { NamedState::InUse } else { NamedState::Stale })
    }

    /// Whether an attachment whose ADD finished is in the namespace at a path. An attachment that has provably ended does not
    /// count.
    fn has_attachment(&self, witness: &Witness, path: &Path) -> Result<bool> {
        let found = self.cache.all()?;
        // An unreadable entry can be in any namespace.
        if !found.damaged.is_empty() {
            return Ok(true);
        }
        for entry in found.entries.iter().filter(|entry| entry.netns == path) {
            let record = self.records.read(&entry.network, &entry.at)?;
            let is_interrupted = match &record {
                Some(record) => self.interrupted(record)?.is_some(),
                None => false,
            };
            if !is_interrupted && !self.life_by(&Ok(record), witness, entry).is_ended() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The `remove` of `remove_dead` that needs no confirmation. Returns false: the namespace does not stay.
fn remove(path: &Path, _: &str) -> Result<bool> {
    sandbox::remove_namespace(path).map(|()| false)
}

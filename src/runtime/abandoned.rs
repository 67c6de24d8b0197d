//! The namespaces that podman made and left behind, because it was killed. Nobody removes such a namespace, also not with its
//! container, if podman was killed before it noted the namespace.
//!
//! GC removes a namespace, that is its file, if all of these are true. Then the kernel ends the namespace, and reports the end of
//! the attachments in it. If a process has entered the namespace meanwhile, it stays, and so do they.
//!
//! - For each attachment in it, the process that was to start a container (`Record::starter`) has ended.
//! - It is not in use (see `in_use`): no thread of any process is in it, none of its links leads to a third namespace, no control
//!   group with a process has the id of the container in its path, and no process has the id in its arguments, as conmon has: it
//!   is the parent of the container's process, and it executes the podman that restarts the container in the same namespace.
//!
//! All of this is asked in the PID namespace of podman. If podman has noted the namespace, its next start of the container fails,
//! because the namespace is missing, and the one after it makes another namespace.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::attachments::life::{Life, Witness};
use crate::attachments::record::Record;
use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::kernel::process::Process;
use crate::kernel::sandbox;
use crate::netlink::rtnl::Nsid;
use crate::runtime::Runtime;
use crate::runtime::confirm::Candidate;
use crate::runtime::gc::{GcRun, REMOVE, Removed};
use crate::runtime::in_use::Uses;

/// The reason for the removal of a namespace.
const ABANDONED: &str = "podman and all processes of the container have ended";

/// The maximum wait for the ends of all removed namespaces.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// A namespace that may be abandoned.
struct Abandoned<'r> {
    path: &'r Path,
    number: Nsid,
    /// The records of all attachments in it.
    records: Vec<&'r Record>,
}

impl Runtime {
    /// Removes the abandoned namespaces, and waits for their end: then the attachments in them have ended.
    pub(super) fn remove_abandoned_namespaces(
        &self,
        witness: &Witness,
        run: &mut GcRun<'_>,
    ) -> Result<()> {
        let all = self.records.all()?;
        // The attachment of an unreadable record can be in any namespace.
        if !all.unreadable.is_empty() {
            return Ok(());
        }
        let records = all.records;
        let candidates = without_starter(&records);
        let view = witness.view().ok().filter(|view| view.has_own_root());
        let Some(view) = view.filter(|_| !candidates.is_empty()) else { return Ok(()) };
        let containers: Vec<&str> = candidates.iter().flat_map(Abandoned::containers).collect();
        let uses = Uses::survey(&containers)?;
        let mut numbers = Vec::new();
        for candidate in candidates {
            let Ok(Some(netns)) = view.namespace_at(candidate.path) else { continue };
            match candidate.remove(witness, &uses, &netns, run) {
                Ok(true) => numbers.push(candidate.number),
                Ok(false) => {}
                Err(error) => run.collected.errors.push(error),
            }
        }
        let deadline = Instant::now() + END_TIMEOUT;
        for number in &numbers {
            let rest = deadline.saturating_duration_since(Instant::now());
            witness.host().wait_for_end(&[*number], rest)?;
        }
        Ok(())
    }
}

impl Abandoned<'_> {
    fn containers(&self) -> impl Iterator<Item = &str> {
        self.records.iter().map(|record| &*record.at.container_id)
    }

    /// Removes the namespace if it is abandoned. Returns whether it was removed.
    fn remove(
        &self,
        witness: &Witness,
        uses: &Uses,
        netns: &NetNs,
        run: &mut GcRun<'_>,
    ) -> Result<bool> {
        let Some(first) = self.records.iter().min_by_key(|record| &record.network) else {
            return Ok(false);
        };
        if !run.is_of(&first.network) || !self.is_abandoned(witness, uses, netns)? {
            return Ok(false);
        }
        let what = format!("namespace {}", self.path.display());
        let incarnation = first.generation.clone();
        let found = || Candidate::new(&first.network, what.clone(), incarnation, ABANDONED);
        if !run.is_confirmed(found) {
            return Ok(false);
        }
        let is_dry_run = run.options.is_dry_run;
        if !is_dry_run {
            sandbox::remove_namespace(self.path)?;
        }
        run.note_remainder(REMOVE, what, ABANDONED.into());
        for record in self.records.iter().filter(|_| is_dry_run) {
            let (network, at) = (record.network.clone(), record.at.clone());
            run.note_attachment(Removed { network, at, reason: ABANDONED.into() });
        }
        Ok(!is_dry_run)
    }

    /// Whether this is the namespace of the records, and is not in use.
    fn is_abandoned(&self, witness: &Witness, uses: &Uses, netns: &NetNs) -> Result<bool> {
        let is_living = |record: &&Record| witness.life_of_record(record) == Life::Alive;
        if witness.host().nsid_of(netns)? != Some(self.number)
            || !self.records.iter().all(is_living)
        {
            return Ok(false);
        }
        let containers: Vec<&str> = self.containers().collect();
        Ok(!uses.is_in_use(netns, &containers)?)
    }
}

/// The namespaces in which the starters of all attachments have ended.
fn without_starter(records: &[Record]) -> Vec<Abandoned<'_>> {
    let mut found: Vec<Abandoned<'_>> = Vec::new();
    for Record { netns: path, number, starter, .. } in records {
        let (Some(number), Some(_)) = (*number, starter) else { continue };
        if found.iter().any(|known| known.number == number) {
            continue;
        }
        let is_in_it = |other: &&Record| other.number == Some(number) || other.netns == *path;
        let in_it: Vec<&Record> = records.iter().filter(is_in_it).collect();
        let has_ended = |record: &&Record| record.starter.as_ref().is_some_and(Process::has_ended);
        if in_it.iter().all(has_ended) {
            found.push(Abandoned { path, number, records: in_it });
        }
    }
    found
}

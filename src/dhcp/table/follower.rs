//! Updates the host after a server changed a lease. First a thread of `step` changes the interface. Then the thread of this
//! file changes the rules of the host and the cache entries, for all leases that need it, without the lock of the table. The
//! record keeps the former leases until both threads are done, so the next daemon repeats an update that a crash interrupts.
//!
//! While an attachment has no lease, its rules stay: there is no new address for them.

use std::sync::Arc;
use std::thread::Builder;

use parking_lot::MutexGuard;

use crate::cni::success::Success;
use crate::dhcp::apply;
use crate::dhcp::journal::LeaseRecord;
use crate::dhcp::lease::{Key, Leases, v4, v6};
use crate::dhcp::table::{LeaseEntry, LeaseEvent, Shared, Table, log};
use crate::dhcp::time::Time;
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::steps::renumber::Change;

/// The pause after a failed attempt. It doubles with each failure, at most this many times.
const PAUSE: Time = Time::from_secs(1);
const PAUSE_DOUBLINGS_MAX: u32 = 6;

/// The state of the update of the host to the current leases of one attachment.
#[derive(Default)]
pub(super) struct Following {
    /// The time of the next attempt. `None` if no update is needed.
    pub(super) at: Option<Time>,
    failures: u32,
    /// The leases that the interface is configured for. `None` if unknown.
    applied: Option<Leases>,
}

impl Following {
    /// The state for a record. If the record has former leases, the interface can be configured for any of them, and an
    /// update is due.
    pub(super) fn adopted(record: &LeaseRecord) -> Self {
        match record.former_v4.is_empty() && record.former_v6.is_empty() {
            true => Self { applied: Some(record.leases.clone()), ..Self::default() },
            false => Self { at: Some(Time::ZERO), ..Self::default() },
        }
    }

    fn is_due(&self, now: Time) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// The leases that the interface is configured for. Empty if unknown.
    pub(super) fn applied(&self) -> Leases {
        self.applied.clone().unwrap_or_default()
    }

    /// Records the result of a change of the interface.
    pub(super) fn set_applied(&mut self, applied: Result<Leases>, key: &Key) {
        match applied {
            Ok(leases) => self.applied = Some(leases),
            Err(error) => self.fail(&error, key),
        }
    }

    /// Logs the first error of several, and schedules the next attempt.
    fn fail(&mut self, error: &Error, key: &Key) {
        if self.failures == 0 {
            log(key, &error.to_string());
        }
        let doublings = self.failures.min(PAUSE_DOUBLINGS_MAX);
        self.failures += 1;
        self.at = Some(Time::now() + Time::from_millis(PAUSE.as_millis() << doublings));
    }
}

impl LeaseEntry {
    /// Whether the interface is configured for the leases of the record.
    fn is_applied(&self) -> bool {
        let applied = self.following.applied.as_ref();
        applied.is_some_and(|applied| applied.same_terms(&self.record.leases))
    }

    /// The time of the next attempt for this lease. `None` if no attempt is due, or one is running.
    pub(super) fn follows_at(&self, has_follower: bool) -> Option<Time> {
        let at = self.following.at?;
        let is_running = if self.is_applied() { has_follower } else { !self.is_idle() };
        (!is_running).then_some(at)
    }
}

impl Table {
    /// Starts the updates that are due: posts an event for each interface, and starts one thread for the rules of all leases.
    pub(super) fn follow(self: &Arc<Self>, state: &mut Shared) {
        let now = Time::now();
        let due = state.leases.values().filter(|entry| entry.following.is_due(now));
        let (applied, others): (Vec<_>, Vec<_>) = due.partition(|entry| entry.is_applied());
        let is_due = !applied.is_empty();
        let others = others.into_iter().filter(|entry| entry.is_idle());
        let others: Vec<_> =
            others.map(|entry| (entry.key().clone(), entry.following.applied())).collect();
        for (key, before) in others {
            self.post(state, &key, LeaseEvent::Apply(Box::new(before)));
        }
        if state.has_follower || !is_due {
            return;
        }
        let table = Arc::clone(self);
        match Builder::new().spawn(move || table.follow_all()) {
            Ok(_) => state.has_follower = true,
            // The next packet or deadline of any lease calls `follow` again.
            Err(error) => warn(format_args!("warning: cannot start a thread: {error}")),
        }
    }

    /// Changes the rules and the cache entries of all leases whose interface is changed already.
    fn follow_all(self: &Arc<Self>) {
        let mut state = self.state.lock();
        loop {
            let now = Time::now();
            let due = state.leases.values();
            let due = due.filter(|entry| entry.following.is_due(now) && entry.is_applied());
            let records: Vec<LeaseRecord> = due.map(|entry| entry.record.clone()).collect();
            if records.is_empty() {
                break;
            }
            state.following = records.iter().map(|record| record.request.key.clone()).collect();
            let follow = |record| (self.follow)(&self.flags.hostprefix, &change(record));
            let done: Vec<Result<String>> =
                MutexGuard::unlocked(&mut state, || records.iter().map(follow).collect());
            for (record, done) in records.iter().zip(done) {
                self.finish(&mut state, record, done);
            }
            state.following.clear();
            self.changed.notify_all();
        }
        state.has_follower = false;
        // The thread of `events` sets its timer for the next attempts.
        self.wake();
    }

    /// Records the result of an attempt. If the lease has changed meanwhile, another attempt is due.
    fn finish(self: &Arc<Self>, state: &mut Shared, done: &LeaseRecord, moved: Result<String>) {
        let key = &done.request.key;
        let Some(entry) = state.leases.get_mut(key).filter(|entry| entry.has_same_link(done))
        else {
            return;
        };
        let is_same = entry.record.leases.same_terms(&done.leases);
        let following = &mut entry.following;
        match moved {
            Ok(moved) => {
                if !moved.is_empty() {
                    log(key, &format!("moved to {}: {moved}", addresses(done)));
                }
                following.failures = 0;
                following.at = following.at.filter(|_| !is_same);
                self.post(state, key, LeaseEvent::Followed(Box::new(done.clone())));
            }
            Err(error) => following.fail(&error, key),
        }
    }
}

/// The former leases, each with the current lease of its family, as results of ADD.
fn change(record: &LeaseRecord) -> Change {
    let result = |leases| apply::of_leases(&leases, record.request.settings.priority);
    let result_v4 = |lease: &v4::Lease| result(Leases { v4: Some(lease.clone()), v6: None });
    let result_v6 = |lease: &v6::Lease| result(Leases { v4: None, v6: Some(lease.clone()) });
    let mut leases: Vec<(Success, Success)> = Vec::new();
    if let Some(new) = &record.leases.v4 {
        leases.extend(record.former_v4.iter().map(|old| (result_v4(old), result_v4(new))));
    }
    if let Some(new) = &record.leases.v6 {
        leases.extend(record.former_v6.iter().map(|old| (result_v6(old), result_v6(new))));
    }
    let key = &record.request.key;
    Change { network: key.network.clone(), at: key.at.clone(), leases }
}

/// The current addresses, for the log.
fn addresses(record: &LeaseRecord) -> String {
    let nets = apply::success(record, &[]).nets();
    nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

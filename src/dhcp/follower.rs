//! The host follows when a server changes a lease: the interface, then the rules of the host and the cache entry. A thread of
//! its own does it, without the lock of the table. The record keeps the leases of before until everything has followed, so the
//! next daemon repeats what a crash interrupts.
//!
//! While an attachment has no lease, its rules stay: nothing tells where they lead to.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::cni::success::Success;
use crate::dhcp::apply::{self, Leases};
use crate::dhcp::journal::Record;
use crate::dhcp::lease::Key;
use crate::dhcp::site::Trouble;
use crate::dhcp::table::{Entry, State, Table, log};
use crate::dhcp::time::Time;
use crate::error::{Error, Result};
use crate::kernel::sys::{thread, warn};
use crate::plugin::owner::Owner;
use crate::steps::renumber::Change;

/// The pause after a failed attempt. It doubles up to the longest.
const PAUSE: Time = Time::from_secs(1);
const PAUSE_DOUBLINGS_MAX: u32 = 6;

/// The state of one lease.
#[derive(Default)]
pub(super) struct Following {
    /// The time of the next attempt; `None` if everything has followed, or waits for a lease.
    pub(super) at: Option<Time>,
    failures: u32,
    /// The leases that the interface has.
    pub(super) applied: Leases,
}

/// The work for one lease.
struct Work {
    record: Record,
    applied: Leases,
}

impl Following {
    /// The leases of a record that a daemon adopts. If it names earlier leases, the interface can have any of them.
    pub(super) fn adopted(record: &Record) -> Self {
        match record.former_v4.is_empty() && record.former_v6.is_empty() {
            true => Self { applied: Leases::of(record), ..Self::default() },
            false => Self { at: Some(Time::ZERO), ..Self::default() },
        }
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.at.is_some_and(|at| at <= now)
    }
}

impl Table {
    /// Lets a thread do what is due.
    pub(super) fn follow(self: &Arc<Self>, state: &mut State) {
        let now = Time::now();
        if state.has_follower || !state.leases.0.iter().any(|it| it.following.is_due(now)) {
            return;
        }
        let table = Arc::clone(self);
        match thread::start(Box::new(move || table.follow_all())) {
            Ok(()) => state.has_follower = true,
            // The next packet or deadline of any lease tries again.
            Err(error) => warn(format_args!("warning: cannot start a thread: {error}")),
        }
    }

    fn follow_all(&self) {
        let mut state = self.state.lock();
        loop {
            let now = Time::now();
            if !state.leases.0.iter().any(|it| it.following.is_due(now)) {
                break;
            }
            // Also those that are not due: two attachments that exchange their addresses need one transaction.
            let waiting = state.leases.0.iter().filter(|it| it.following.at.is_some());
            let due: Vec<Work> = waiting.map(Work::of).collect();
            state.following = due.iter().map(|work| work.record.ask.key.clone()).collect();
            let held = held(&state);
            let done = MutexGuard::unlocked(&mut state, || self.follow_each(&due, &held));
            for (work, done) in due.iter().zip(done) {
                self.finish(&mut state, work, done);
            }
            state.following.clear();
            self.changed.notify_all();
        }
        state.has_follower = false;
        // For the next attempts.
        self.wake();
    }

    /// The interfaces first; the rules of those that have changed follow. The inner result is that of the rules.
    fn follow_each(
        &self,
        due: &[Work],
        held: &[(String, Vec<IpAddr>)],
    ) -> Vec<Result<Result<String>>> {
        let applied: Vec<Result<()>> = due.iter().map(|work| self.apply(work)).collect();
        let is_applied = |(work, done): (&Work, &Result<()>)| done.is_ok().then(|| work.change());
        let changes: Vec<Change> = due.iter().zip(&applied).filter_map(is_applied).collect();
        let holds = |owner: &str, address: IpAddr| {
            held.iter().any(|(other, addresses)| other == owner && addresses.contains(&address))
        };
        let mut followed = (self.follow)(&self.options.prefix, &changes, &holds).into_iter();
        let missing = || Err(Error::internal("cannot move the rules"));
        let rules = |done: Result<()>| done.map(|()| followed.next().unwrap_or_else(missing));
        applied.into_iter().map(rules).collect()
    }

    fn apply(&self, Work { record, applied }: &Work) -> Result<()> {
        let key = &record.ask.key;
        match apply::change(&self.site(record), applied, &|changes| log(key, changes)) {
            Ok(()) => Ok(()),
            // The lease ends soon.
            Err(Trouble::Gone(reason)) => Err(Error::internal(reason)),
            Err(Trouble::Failed(error)) => Err(error),
        }
    }

    /// Notes the end of an attempt. The lease can have changed meanwhile: then another attempt is due.
    fn finish(&self, state: &mut State, work: &Work, done: Result<Result<String>>) {
        let key = &work.record.ask.key;
        let Some(entry) = state.leases.get_mut(key).filter(|it| it.is_at(&work.record)) else {
            return;
        };
        let Entry { record, following, .. } = entry;
        let has = Leases::of(&work.record);
        let is_same = Leases::of(record).says_the_same(&has);
        if done.is_ok() {
            following.applied = has;
        }
        match done.flatten() {
            Ok(said) => {
                if !said.is_empty() {
                    log(key, &format!("{said} follow to {}", work.addresses()));
                }
                record.forget_former(&work.record);
                following.failures = 0;
                following.at = following.at.filter(|_| !is_same);
                let saved = self.journal.save(record);
                saved.unwrap_or_else(|error| log(key, &error.to_string()));
            }
            Err(error) => {
                if following.failures == 0 {
                    log(key, &error.to_string());
                }
                let doublings = following.failures.min(PAUSE_DOUBLINGS_MAX);
                following.failures += 1;
                let pause = Time::from_millis(PAUSE.as_millis() << doublings);
                following.at = Some(Time::now() + pause);
            }
        }
    }

    /// Whether the thread is at work for an attachment. A DEL waits: the cache entry must not be written after it.
    pub(super) fn is_followed(state: &State, key: &Key) -> bool {
        state.following.contains(key)
    }
}

impl Work {
    fn of(entry: &Entry) -> Self {
        Self { record: entry.record.clone(), applied: entry.following.applied.clone() }
    }

    fn change(&self) -> Change {
        let record = &self.record;
        let bare = |v4, v6| apply::of_leases(&Leases { v4, v6 }, record.ask.settings.priority);
        let mut leases: Vec<(Success, Success)> = Vec::new();
        if record.v4.is_some() {
            let new = bare(record.v4.clone(), None);
            leases.extend(
                record.former_v4.iter().map(|old| (bare(Some(old.clone()), None), new.clone())),
            );
        }
        if record.v6.is_some() {
            let new = bare(None, record.v6.clone());
            leases.extend(
                record.former_v6.iter().map(|old| (bare(None, Some(old.clone())), new.clone())),
            );
        }
        let key = &record.ask.key;
        Change { network: key.network.clone(), at: key.attachment(), leases }
    }

    /// The addresses of now, for the log.
    fn addresses(&self) -> String {
        let nets = apply::success(&self.record, &[]).nets();
        nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
    }
}

/// The owners of all leases, each with the addresses that its rules may name.
fn held(state: &State) -> Vec<(String, Vec<IpAddr>)> {
    let mut held = Vec::new();
    for Entry { record, .. } in &state.leases.0 {
        let key = &record.ask.key;
        let owner = Owner::new(&key.network, &key.attachment());
        held.push((owner.to_string(), apply::addresses(record)));
    }
    held
}

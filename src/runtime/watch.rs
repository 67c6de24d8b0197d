//! `reconcile --watch`: restores living attachments again when something changes that they need on the host.
//!
//! Each transaction of nf_tables, each change of a link, address, route, queueing discipline or forwarding, and the end of the process
//! that answers names, causes a look, which is one reconcile of all attachments. What it restores causes another look, which finds no
//! difference and so changes nothing.

mod backoff;
mod guard;
mod left;
mod memory;
mod pause;

use std::os::fd::AsFd;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::kernel::clock;
use crate::kernel::listener::Signals;
use crate::kernel::sys;
use crate::netlink::{Events, changes};
use crate::plugin::parts::{InContainer, Parts};
use crate::plugins::dnsname;
use crate::runtime::Runtime;
use crate::runtime::reconcile::Busy;

use backoff::STABLE;
use guard::Guard;
use memory::Memory;

pub use left::Left;
pub use pause::PAUSE_MAX_S;

/// A look begins when there was no event for this time,
const QUIET: Duration = Duration::from_millis(50);
/// or this time after the first event.
const DELAY_MAX: Duration = Duration::from_millis(500);
/// The rest after a look, as a multiple of its processor time: a node that starts containers all the time spends at most a tenth of
/// a processor on looks. Most of the duration of a look is a wait for the kernel.
const REST: u32 = 9;
/// The time to the next look without an event. `route_localnet`, `forwarding`, `accept_ra` and the parameters of bridges and of
/// queueing disciplines have no events.
const INTERVAL: Duration = Duration::from_secs(600);
/// The same after a look that failed, or that skipped an attachment because of an operation in progress.
const INTERVAL_IF_PARTIAL: Duration = Duration::from_secs(10);

impl Runtime {
    /// Restores attachments until SIGTERM, SIGINT or SIGHUP. Calls `ready` after the first look. A look that fails is logged, and
    /// the next one follows.
    pub fn watch(&self, ready: impl FnOnce()) -> Result<()> {
        let signals = Signals::block()?;
        // Before the first look, so that no change is missed. A kernel without netfilter has no events of rules.
        let mut sources = vec![changes::of_links()?];
        sources.extend(changes::of_rules()?);
        let (mut guard, mut memory) = (Guard::new(), Memory::default());
        let (mut schedule, mut ready) = (Schedule::default(), Some(ready));
        let mut pause_end = Duration::ZERO;
        // The process that answers the names of containers.
        let mut engine = None;
        loop {
            let now = clock::since_boot();
            let due = schedule.due().max(pause_end);
            if due <= now {
                pause_end = self.pause_end();
                if pause_end <= now {
                    // This look is also for the events until now.
                    if discard(&sources)? {
                        schedule.note(now);
                    }
                    let begin = clock::processor_time();
                    let is_partial = self.look(&mut memory, schedule.is_quiet(now));
                    let end = clock::since_boot();
                    guard.ensure(end);
                    engine = dnsname::running_engine();
                    let cost = clock::processor_time().saturating_sub(begin);
                    schedule.looked(end, cost, (is_partial, memory.backoff.next()));
                }
                if let Some(ready) = ready.take() {
                    ready();
                }
                continue;
            }
            if guard.retry().is_some_and(|retry| retry <= now) {
                guard.ensure(now);
            }
            let wake = guard.retry().map_or(due, |retry| retry.min(due));
            let mut files = vec![signals.as_fd()];
            // Once a look is due, further events change nothing, and their queue may overflow.
            if now < pause_end || !schedule.is_resting(now) {
                files.extend(sources.iter().map(AsFd::as_fd));
            }
            // Its end can be read.
            files.extend(engine.iter().map(AsFd::as_fd));
            let readable = clock::readable(&files, Some(wake.saturating_sub(now)));
            let readable = readable.map_err(|error| {
                Error::internal("cannot wait for changes").with_details(sys::reason(&error))
            })?;
            if readable[0] {
                return self.write_left(&[]);
            }
            let has_ended = engine.is_some() && readable.last() == Some(&true);
            if has_ended {
                engine = None;
            }
            if readable.contains(&true) && (discard(&sources)? || has_ended) {
                schedule.note(clock::since_boot());
                if now < pause_end {
                    // A command may have changed the pause.
                    pause_end = self.pause_end();
                }
            }
        }
    }

    /// Restores all objects that `memory` does not leave. Returns whether the look failed, or skipped attachments because of an
    /// operation in progress.
    fn look(&self, memory: &mut Memory, is_quiet: bool) -> bool {
        let begin = clock::since_boot();
        memory.backoff.begin(begin, is_quiet);
        let backoff = &memory.backoff;
        let new = |network: &_, at: &_, plugin: &str| {
            let leaves = backoff.leaves(begin, (network, at, plugin));
            Parts::to_restore(false, InContainer::Skip).leaving(leaves)
        };
        let reconciled = self.reconcile(Busy::Skip, &new, |_, _| true);
        let is_partial = reconciled.as_ref().map_or(true, |reconciled| reconciled.is_partial);
        memory.end(clock::since_boot(), reconciled, |left| self.write_left(left));
        is_partial
    }
}

/// Discards the pending events of all sockets. Returns whether there was one.
fn discard(sources: &[Events]) -> Result<bool> {
    let mut is_any = false;
    for events in sources {
        is_any |= events.discard()?;
    }
    Ok(is_any)
}

/// When the next look begins. All times are times since boot.
#[derive(Debug, Default)]
struct Schedule {
    /// The time before which no look begins.
    earliest: Duration,
    /// The time of the next look without an event.
    latest: Duration,
    /// The first and the last event since the last look.
    events: Option<(Duration, Duration)>,
    /// The last event.
    last_event: Duration,
    /// The end of the first pause of an object that the last look left.
    pause_end: Option<Duration>,
}

impl Schedule {
    fn due(&self) -> Duration {
        let events = self.events.map(|(first, last)| (last + QUIET).min(first + DELAY_MAX));
        let pause_end = self.pause_end.map(|end| end.min(self.last_event + STABLE));
        let due = [events, pause_end].into_iter().flatten().min();
        due.map_or(self.latest, |due| due.min(self.latest)).max(self.earliest)
    }

    /// Whether there was no event for `STABLE`.
    fn is_quiet(&self, now: Duration) -> bool {
        self.last_event + STABLE <= now
    }

    /// Whether a look follows at `earliest`, because of an event.
    fn is_resting(&self, now: Duration) -> bool {
        self.events.is_some() && now < self.earliest
    }

    fn note(&mut self, now: Duration) {
        let (first, _) = self.events.unwrap_or((now, now));
        self.events = Some((first, now));
        self.last_event = now;
    }

    /// A look has ended. `cost` is its processor time.
    fn looked(
        &mut self,
        end: Duration,
        cost: Duration,
        (is_partial, pause_end): (bool, Option<Duration>),
    ) {
        let interval = if is_partial { INTERVAL_IF_PARTIAL } else { INTERVAL };
        *self = Self {
            earliest: end + cost * REST,
            latest: end + interval,
            events: None,
            pause_end,
            last_event: self.last_event,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_first_look_is_at_once_and_the_next_after_the_interval() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.due(), Duration::ZERO);
        schedule.looked(ms(1000), ms(0), (false, None));
        assert_eq!(schedule.due(), ms(1000) + INTERVAL);
        schedule.looked(ms(1000), ms(0), (true, None));
        assert_eq!(schedule.due(), ms(1000) + INTERVAL_IF_PARTIAL);
    }

    #[test]
    fn a_look_begins_after_the_last_event_but_not_late() {
        let mut schedule = Schedule { latest: ms(600_000), ..Schedule::default() };
        schedule.note(ms(1000));
        assert_eq!(schedule.due(), ms(1050));
        schedule.note(ms(1040));
        assert_eq!(schedule.due(), ms(1090));
        for at in 50..50_000 {
            schedule.note(ms(1000 + at));
        }
        assert_eq!(schedule.due(), ms(1500));
    }

    #[test]
    fn a_look_is_followed_by_a_rest_of_nine_times_its_processor_time() {
        let mut schedule = Schedule::default();
        schedule.looked(ms(1200), ms(200), (false, None));
        assert!(!schedule.is_resting(ms(1200)), "there was no event");
        schedule.note(ms(1201));
        assert_eq!(schedule.due(), ms(3000));
        assert!(schedule.is_resting(ms(2999)) && !schedule.is_resting(ms(3000)));
    }

    #[test]
    fn a_look_follows_at_the_end_of_a_pause_or_when_it_is_quiet() {
        let mut schedule = Schedule::default();
        schedule.note(ms(100_000));
        schedule.looked(ms(100_100), ms(0), (false, Some(ms(104_000))));
        assert_eq!(schedule.due(), ms(104_000));
        schedule.looked(ms(100_100), ms(0), (false, Some(ms(160_000))));
        assert_eq!(schedule.due(), ms(100_000) + STABLE);
        assert!(!schedule.is_quiet(ms(109_999)) && schedule.is_quiet(ms(110_000)));
        schedule.note(ms(100_200));
        assert_eq!(schedule.due(), ms(100_250));
        schedule.looked(ms(100_300), ms(10_000), (false, Some(ms(104_000))));
        assert_eq!(schedule.due(), ms(190_300), "the rest is longer");
    }
}

//! The thread of time and events: it waits for the packets and deadlines of all leases, and for the ends of namespaces and
//! links. Other threads do the work (see `step`).

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use crate::dhcp::exchange::Pollable;
use crate::dhcp::lease::Key;
use crate::dhcp::site::{NO_LINK, NO_NAMESPACE};
use crate::dhcp::table::{LeaseEntry, LeaseEvent, Shared, Table};
use crate::dhcp::time::Time;
use crate::kernel::clock;
use crate::kernel::sys::warn;
use crate::netlink::rtnl::End;

/// The pause after a failed wait, and until a thread is started that could not be started.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

impl Table {
    /// Runs for ever.
    pub fn run(self: &Arc<Self>) {
        loop {
            let (keys, files) = {
                let mut state = self.state.lock();
                self.tick(&mut state);
                self.set_alarm(&state);
                waiting(&state)
            };
            let mut list: Vec<_> = vec![self.alarm.as_fd()];
            list.extend(self.ends.iter().map(AsFd::as_fd));
            let first = list.len();
            list.extend(files.iter().map(|file| file.as_fd()));
            let ready = match clock::readable(&list, None) {
                Ok(ready) => ready,
                Err(error) => {
                    warn(format_args!("warning: cannot wait for packets: {error}"));
                    // Without a pause the loop would use all of a core.
                    let _ = clock::readable(&[], Some(FAILED_PAUSE));
                    continue;
                }
            };
            let mut state = self.state.lock();
            if ready.get(1..first).unwrap_or_default().contains(&true) {
                self.end_leases_of_removed_links(&mut state);
            }
            for (key, _) in keys.iter().zip(&ready[first..]).filter(|(_, is_ready)| **is_ready) {
                // A client can have several files, which it reads at once.
                self.post_if_idle(&mut state, key);
            }
        }
    }

    fn post_if_idle(self: &Arc<Self>, state: &mut Shared, key: &Key) {
        if state.leases.get(key).is_some_and(LeaseEntry::is_idle) {
            self.post(state, key, LeaseEvent::Due);
        }
    }

    /// Finds everything that is due.
    fn tick(self: &Arc<Self>, state: &mut Shared) {
        let now = Time::now();
        let is_due = |entry: &&LeaseEntry| entry.deadline.is_some_and(|at| at <= now);
        let due: Vec<Key> =
            state.leases.0.iter().filter(is_due).map(|entry| entry.key().clone()).collect();
        for key in &due {
            self.post_if_idle(state, key);
        }
        // Perhaps no thread could be started for an earlier event.
        self.start_worker(state);
        self.follow(state);
    }

    fn set_alarm(&self, state: &Shared) {
        let is_stuck = !state.queue.is_empty() && state.workers == 0;
        let mut next = is_stuck.then(|| Time::now() + Time::from(FAILED_PAUSE));
        for entry in &state.leases.0 {
            // The end of a step wakes this thread.
            next = Time::first(next, entry.deadline.filter(|_| entry.is_idle()));
            next = Time::first(next, entry.follows_at(state.has_follower));
        }
        if let Err(error) = self.alarm.set(next.map(Duration::from)) {
            warn(format_args!("warning: cannot set the timer: {error}"));
        }
    }

    /// Ends the leases of namespaces and links that the kernel reported.
    fn end_leases_of_removed_links(self: &Arc<Self>, state: &mut Shared) {
        while let Some(end) = self.ends.as_ref().and_then(|ends| ends.next()) {
            let mut posts = Vec::new();
            for entry in &state.leases.0 {
                let is_in = |number| entry.number == Some(number);
                let event = match end {
                    End::Namespace(number) if is_in(number) => LeaseEvent::Gone(NO_NAMESPACE),
                    End::Link(number, index) if is_in(number) && entry.record.ifindex == index => {
                        LeaseEvent::Gone(NO_LINK)
                    }
                    End::Unknown => LeaseEvent::Verify,
                    _ => continue,
                };
                posts.push((entry.key().clone(), event));
            }
            for (key, event) in posts {
                self.post(state, &key, event);
            }
        }
    }
}

/// The files of all clients at rest, each with the key of its lease.
fn waiting(state: &Shared) -> (Vec<Key>, Vec<Pollable>) {
    let (mut keys, mut files) = (Vec::new(), Vec::new());
    for entry in state.leases.0.iter().filter(|entry| entry.is_idle()) {
        entry.clients.iter().for_each(|clients| clients.add_sockets(&mut files));
        keys.resize(files.len(), entry.key().clone());
    }
    (keys, files)
}

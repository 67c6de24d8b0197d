//! The thread that waits for events: for packets and deadlines of all leases, and for removed namespaces and links. The
//! threads of `step` handle the events.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use crate::dhcp::exchange::Pollable;
use crate::dhcp::lease::Key;
use crate::dhcp::site::{NO_LINK, NO_NAMESPACE};
use crate::dhcp::table::{LeaseEvent, Shared, Table};
use crate::dhcp::time::Time;
use crate::kernel::clock;
use crate::kernel::sys::warn;
use crate::netlink::rtnl::End;

/// The pause after a failed wait, and before another attempt to start a thread.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

impl Table {
    /// Waits for events. Does not return.
    pub(super) fn run(self: &Arc<Self>) {
        loop {
            let (keys, sockets) = {
                let mut state = self.state.lock();
                self.tick(&mut state);
                self.set_alarm(&state);
                idle_sockets(&state)
            };
            let mut list: Vec<_> = vec![self.alarm.as_fd()];
            list.extend(self.ends.iter().map(AsFd::as_fd));
            let first = list.len();
            list.extend(sockets.iter().map(|socket| socket.as_fd()));
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
                // A client can have several sockets. It reads all of them for one event.
                self.post_if_idle(&mut state, key);
            }
        }
    }

    fn post_if_idle(self: &Arc<Self>, state: &mut Shared, key: &Key) {
        if state.leases.get(key).is_some_and(|entry| entry.is_idle()) {
            self.post(state, key, LeaseEvent::Due);
        }
    }

    /// Posts an event for each lease whose deadline has passed, and starts the threads that could not be started before.
    fn tick(self: &Arc<Self>, state: &mut Shared) {
        let now = Time::now();
        let due =
            state.leases.values().filter(|entry| entry.deadline().is_some_and(|at| at <= now));
        let due: Vec<Key> = due.map(|entry| entry.key().clone()).collect();
        for key in &due {
            self.post_if_idle(state, key);
        }
        // An earlier event may still wait, because no thread could be started.
        self.start_worker(state);
        self.follow(state);
    }

    fn set_alarm(&self, state: &Shared) {
        let is_stuck = !state.queue.is_empty() && state.workers == 0;
        let mut next = is_stuck.then(|| Time::now() + Time::from(FAILED_PAUSE));
        for entry in state.leases.values() {
            // A thread of `step` wakes this thread when it has handled an event.
            next = Time::first(next, entry.deadline().filter(|_| entry.is_idle()));
            next = Time::first(next, entry.follows_at(state.has_follower));
        }
        if let Err(error) = self.alarm.set(next.map(Duration::from)) {
            warn(format_args!("warning: cannot set the timer: {error}"));
        }
    }

    /// Posts an event for the leases whose namespace or link the kernel reported as removed.
    fn end_leases_of_removed_links(self: &Arc<Self>, state: &mut Shared) {
        while let Some(end) = self.ends.as_ref().and_then(|ends| ends.next()) {
            let mut posts = Vec::new();
            for entry in state.leases.values() {
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

/// The open sockets of all idle leases, each with the key of its lease.
fn idle_sockets(state: &Shared) -> (Vec<Key>, Vec<Pollable>) {
    let (mut keys, mut sockets) = (Vec::new(), Vec::new());
    for entry in state.leases.values().filter(|entry| entry.is_idle()) {
        entry.clients.iter().for_each(|clients| clients.add_sockets(&mut sockets));
        keys.resize(sockets.len(), entry.key().clone());
    }
    (keys, sockets)
}

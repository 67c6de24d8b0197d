//! The thread of time and events: it runs the clients of all leases, and ends those of namespaces and links that are gone.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use crate::dhcp::exchange::{News, Waiting};
use crate::dhcp::lease::Key;
use crate::dhcp::site::{NO_LINK, NO_NAMESPACE, Trouble};
use crate::dhcp::table::{Entry, State, Table};
use crate::dhcp::time::Time;
use crate::kernel::clock;
use crate::kernel::rtnl::End;
use crate::kernel::sys::warn;

/// The pause after a failed wait.
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
                self.end_what_is_gone(&mut state);
            }
            let mut last = None;
            for (key, _) in keys.iter().zip(&ready[first..]).filter(|(_, is_ready)| **is_ready) {
                // A client can have several files, which it reads at once.
                if last != Some(key) {
                    self.receive(&mut state, key);
                    last = Some(key);
                }
            }
        }
    }

    fn receive(self: &Arc<Self>, state: &mut State, key: &Key) {
        let now = Time::now();
        if let Some(Entry { record, clients, .. }) = state.leases.get_mut(key) {
            let news = clients.receive(&self.site(record), now);
            self.handle(state, key, news);
        }
    }

    /// Does everything that is due.
    fn tick(self: &Arc<Self>, state: &mut State) {
        let now = Time::now();
        let mut due = Vec::new();
        for entry in &state.leases.0 {
            if entry.clients.deadline().is_some_and(|at| at <= now) {
                due.push(entry.key().clone());
            }
        }
        for key in &due {
            if let Some(Entry { record, clients, .. }) = state.leases.get_mut(key) {
                let news = clients.tick(&self.site(record), now);
                self.handle(state, key, news);
            }
        }
        self.follow(state);
    }

    fn set_alarm(&self, state: &State) {
        let mut next = None;
        for entry in &state.leases.0 {
            next = Time::first(next, entry.clients.deadline());
            next = Time::first(next, entry.following.at.filter(|_| !state.has_follower));
        }
        if let Err(error) = self.alarm.set(next.map(Duration::from)) {
            warn(format_args!("warning: cannot set the timer: {error}"));
        }
    }

    /// Ends the leases of namespaces and links that the kernel reported.
    fn end_what_is_gone(self: &Arc<Self>, state: &mut State) {
        while let Some(end) = self.ends.as_ref().and_then(|ends| ends.next()) {
            let mut gone = Vec::new();
            for entry in &state.leases.0 {
                let is_in = |number| entry.number == Some(number);
                let reason = match end {
                    End::Namespace(number) if is_in(number) => NO_NAMESPACE,
                    End::Link(number, index) if is_in(number) && entry.record.ifindex == index => {
                        NO_LINK
                    }
                    End::Unknown => match self.site(&entry.record).verify() {
                        Err(Trouble::Gone(reason)) => reason,
                        _ => continue,
                    },
                    _ => continue,
                };
                gone.push((entry.key().clone(), reason));
            }
            for (key, reason) in gone {
                self.handle(state, &key, vec![News::Gone(reason)]);
            }
        }
    }
}

/// The files of all clients, each with the key of its lease.
fn waiting(state: &State) -> (Vec<Key>, Vec<Waiting>) {
    let (mut keys, mut files) = (Vec::new(), Vec::new());
    for entry in &state.leases.0 {
        entry.clients.add_files(&mut files);
        keys.resize(files.len(), entry.key().clone());
    }
    (keys, files)
}

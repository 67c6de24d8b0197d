//! Handles the events of one lease. A thread takes the clients of the lease out of the table, handles the events, and puts
//! the clients back. The table is not locked meanwhile, so a busy kernel or a slow disk delays only this lease.

use std::sync::Arc;
use std::thread::Builder;

use parking_lot::MutexGuard;

use ipnet::IpNet;

use crate::dhcp::admission;
use crate::dhcp::apply;
use crate::dhcp::client::Client;
use crate::dhcp::clients::{Clients, ReleasePacket};
use crate::dhcp::exchange::ClientEvent;
use crate::dhcp::journal::LeaseRecord;
use crate::dhcp::lease::Key;
use crate::dhcp::lease::Leases;
use crate::dhcp::site::SiteError;
use crate::dhcp::table::follower::Following;
use crate::dhcp::table::{LeaseEntry, LeaseEvent, Shared, Table, cannot_get, log};
use crate::dhcp::time::Time;
use crate::dhcp::uplink;
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::netlink::rtnl::Rtnl;

/// The most threads that handle events, each for one lease. The buffers of hundreds of threads would be most of the daemon's
/// memory.
const WORKERS_MAX: usize = 16;

/// The values of an entry while a thread handles the events of its lease.
struct LeaseWork {
    record: LeaseRecord,
    clients: Clients,
    is_new: bool,
    /// The new lease configures the interface in another way than the old one.
    has_changed: bool,
    was_lost: bool,
    /// The result of a change of the interface: the leases that it is configured for.
    applied: Option<Result<Leases>>,
    /// Set when the lease ends: the error for the requests that wait for it.
    end: Option<Error>,
}

impl Table {
    /// Adds an event to a lease, and starts a thread for it. Does nothing if there is no such lease.
    pub(super) fn post(self: &Arc<Self>, state: &mut Shared, key: &Key, event: LeaseEvent) {
        let Some(entry) = state.leases.get_mut(key) else { return };
        let is_idle = entry.is_idle();
        entry.events.push(event);
        if is_idle {
            state.queue.push_back(key.clone());
        }
        self.start_worker(state);
    }

    /// Starts another thread if the events of a lease wait, because all running threads may be slow. A thread ends when no
    /// lease waits.
    pub(super) fn start_worker(self: &Arc<Self>, state: &mut Shared) {
        if state.queue.is_empty() || state.workers == WORKERS_MAX {
            return;
        }
        let table = Arc::clone(self);
        match Builder::new().spawn(move || table.run_worker()) {
            Ok(_) => state.workers += 1,
            // The thread of `events` tries again.
            Err(error) => warn(format_args!("warning: cannot start a thread: {error}")),
        }
    }

    fn run_worker(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while let Some(key) = state.queue.pop_front() {
            let Some(entry) = state.leases.get_mut(&key) else { continue };
            let events = std::mem::take(&mut entry.events);
            let Some(mut work) = LeaseWork::take(entry) else { continue };
            MutexGuard::unlocked(&mut state, || work.run(self, events));
            self.put_back(&mut state, &key, work);
            self.changed.notify_all();
            self.wake();
        }
        state.workers -= 1;
    }

    fn put_back(self: &Arc<Self>, state: &mut MutexGuard<'_, Shared>, key: &Key, work: LeaseWork) {
        if let Some(error) = work.end {
            let entry = state.leases.remove(key);
            state.releasing.push(key.clone());
            MutexGuard::unlocked(state, || self.release_and_remove(&work.record, work.clients));
            state.releasing.retain(|other| other != key);
            // Answer the waiting requests only after the RELEASE. It is sent through the link, which an ADD that fails removes.
            if let Some(entry) = entry {
                let _ = entry.answer.set(Err(error));
            }
            return;
        }
        let Some(entry) = state.leases.get_mut(key) else { return };
        entry.put_back(work);
        if !entry.events.is_empty() {
            state.queue.push_back(key.clone());
        }
        self.follow(state);
    }

    /// Sends the RELEASE of a lease, and removes its file.
    fn release_and_remove(&self, record: &LeaseRecord, mut clients: Clients) {
        let key = &record.request.key;
        let packets = clients.release(Time::now());
        if !packets.is_empty() {
            // Because of the mark, the next daemon sends the RELEASE if this one is killed before.
            let marked = self.journal.mark(key).map(drop);
            marked.unwrap_or_else(|error| log(key, &error.to_string()));
            match self.send_release(record, &packets) {
                Ok(()) => log(key, "the lease is released"),
                Err(error) => log(key, &format!("cannot release the lease: {error}")),
            }
        }
        let removed = self.journal.remove(key);
        removed.unwrap_or_else(|error| log(key, &error.to_string()));
    }

    fn send_release(&self, record: &LeaseRecord, packets: &[ReleasePacket]) -> Result<()> {
        let site = self.site(record);
        let has_link = || !matches!(site.verify(), Err(SiteError::Gone(_)));
        let mut result = Ok(());
        for packet in packets {
            // Try twice: without a RELEASE the server keeps the lease until its end.
            let send = || packet.send(&site).or_else(|_| packet.send(&site)).is_ok();
            // While the kernel removes a link, it drops packets without an error.
            if !(has_link() && send() && has_link()) {
                let uplink = record.uplink.as_ref();
                let sent = Rtnl::open()
                    .and_then(|host| uplink::release(&host, uplink, record.mac, packet));
                result = result.and(sent);
            }
        }
        result
    }

    /// Checks that the namespace and the link of a record still exist, and that the record has no mark. The id of the
    /// namespace is stored before the link is looked up, so that no report of a removed link is missed.
    fn verify(&self, record: &LeaseRecord) -> Result<(), SiteError> {
        if record.is_released {
            return Err(SiteError::Gone("it was released while no daemon ran"));
        }
        let netns = self.site(record).open()?;
        let number = Rtnl::open()?.ensure_nsid(&netns, None).ok();
        if let Some(entry) = self.state.lock().leases.get_mut(&record.request.key) {
            entry.number = number;
        }
        self.site(record).verify().map(drop)
    }
}

impl LeaseWork {
    /// Takes the values out of an entry. `None` if another thread handles events of the lease.
    fn take(entry: &mut LeaseEntry) -> Option<Self> {
        Some(Self {
            clients: entry.clients.take()?,
            record: entry.record.clone(),
            is_new: entry.is_new,
            has_changed: false,
            was_lost: false,
            applied: None,
            end: None,
        })
    }

    fn run(&mut self, table: &Table, events: Vec<LeaseEvent>) {
        for event in events {
            self.handle(table, event);
            for client_event in self.clients.take_events() {
                if self.end.is_none() {
                    self.end = self.apply_client_event(table, client_event);
                }
            }
            if self.end.is_some() {
                return;
            }
        }
    }

    fn handle(&mut self, table: &Table, event: LeaseEvent) {
        let now = Time::now();
        let site = table.site(&self.record);
        let key = &self.record.request.key;
        match event {
            LeaseEvent::Adopt => match table.verify(&self.record) {
                Err(SiteError::Gone(reason)) => {
                    // Give the clients their leases, because a client without a lease sends no RELEASE.
                    self.clients.resume_to_release(&self.record, now);
                    self.end = Some(gone(key, reason));
                }
                _ => {
                    log(key, "the lease is adopted");
                    self.clients.start(&site, now);
                }
            },
            LeaseEvent::Start => self.clients.start(&site, now),
            LeaseEvent::Due => self.clients.run(&site, now),
            LeaseEvent::Verify => {
                if let Err(SiteError::Gone(reason)) = site.verify() {
                    self.end = Some(gone(key, reason));
                }
            }
            LeaseEvent::Gone(reason) => self.end = Some(gone(key, reason)),
            LeaseEvent::End(reason) => self.end = Some(cannot_get(key, reason)),
            LeaseEvent::Apply(before) => {
                let changed = apply::change(&site, &before, &|text| log(key, text));
                self.applied = Some(match changed {
                    Ok(()) => Ok(self.record.leases.clone()),
                    // The lease does not end here, but with the kernel's report of the removed link.
                    Err(SiteError::Gone(reason)) => Err(Error::internal(reason)),
                    Err(SiteError::Failed(error)) => Err(error),
                });
            }
            LeaseEvent::Followed(done) => {
                self.record.forget_former(&done);
                self.save_or_log(table);
            }
        }
    }

    /// Handles an event of a client. Returns an error if the lease ends.
    fn apply_client_event(&mut self, table: &Table, event: ClientEvent) -> Option<Error> {
        let key = &self.record.request.key;
        match event {
            ClientEvent::Bound => self.bound(table).err(),
            ClientEvent::Lost(reason) => {
                log(key, reason);
                self.renew_record();
                self.was_lost = true;
                self.save_or_log(table);
                None
            }
            ClientEvent::Declined(reason) => {
                log(key, &format!("the address is declined: {reason}"));
                None
            }
            ClientEvent::Failed(tried) if self.is_new => Some(cannot_get(key, &tried)),
            ClientEvent::Failed(tried) => {
                log(key, &tried);
                None
            }
            ClientEvent::Gone(reason) => Some(gone(key, reason)),
        }
    }

    /// Writes the lease that a client got to the journal. The interface and the host are changed later, by other events.
    fn bound(&mut self, table: &Table) -> Result<()> {
        self.renew_record();
        if !self.is_new {
            self.save_or_log(table);
            return Ok(());
        }
        table.journal.save(&self.record)?;
        self.is_new = !self.clients.are_bound();
        Ok(())
    }

    fn save_or_log(&self, table: &Table) {
        let saved = table.journal.save(&self.record);
        saved.unwrap_or_else(|error| log(&self.record.request.key, &error.to_string()));
    }

    /// Copies the leases of the clients to the record. If they configure the interface in another way, keeps the old ones as
    /// former leases.
    fn renew_record(&mut self) {
        let v4 = self.clients.v4.as_ref().and_then(|v4| v4.client.lease()).cloned();
        let v6 = self.clients.v6.as_ref().and_then(|v6| v6.client.lease()).cloned();
        let new = Leases { v4, v6 };
        if !self.is_new && !self.record.leases.same_terms(&new) {
            self.record.keep_former(self.record.leases.clone(), &new);
            self.has_changed = true;
        }
        for subnet in admission::subnets(&new) {
            let is_of_family = |net: &IpNet| net.addr().is_ipv4() == subnet.addr().is_ipv4();
            if !self.record.subnets.iter().any(is_of_family) {
                self.record.subnets.push(subnet);
            }
        }
        self.record.leases = new;
    }
}

/// Logs why a lease ends, and returns the error for the requests that wait for it.
fn gone(key: &Key, reason: &str) -> Error {
    log(key, reason);
    cannot_get(key, reason)
}

impl LeaseEntry {
    /// Whether no thread handles events of the lease, and no event waits.
    pub(super) fn is_idle(&self) -> bool {
        self.clients.is_some() && self.events.is_empty()
    }

    fn put_back(&mut self, work: LeaseWork) {
        let LeaseWork { record, clients, is_new, has_changed, was_lost, applied, .. } = work;
        if self.is_new && !is_new {
            self.following = Following::adopted(&record);
        }
        if let Some(applied) = applied {
            self.following.set_applied(applied, &record.request.key);
        }
        if has_changed {
            self.following.at = Some(Time::now());
        }
        if was_lost && !is_new {
            self.answer = Arc::default();
        }
        let slaac = clients.slaac.as_ref().map(|slaac| slaac.ips.as_slice()).unwrap_or_default();
        self.bound = clients.are_bound().then(|| apply::success(&record, slaac));
        (self.record, self.clients, self.is_new) = (record, Some(clients), is_new);
        if let (false, Some(success)) = (is_new, &self.bound) {
            let _ = self.answer.set(Ok(success.clone()));
        }
    }
}

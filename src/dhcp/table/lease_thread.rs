//! The thread of one lease, from the first packet to the RELEASE. It runs the clients, writes the journal, and follows a change
//! of the lease: first on the interface, then in the rules of the host and in the cache entry. The record keeps the former
//! leases until that is done, so the next daemon repeats what a crash interrupts.
//!
//! The thread stays in the namespace of the host. While an attachment has no lease, its rules stay: there is no new address for
//! them.

use std::convert::Infallible;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use parking_lot::Mutex;

use crate::cni::success::Success;
use crate::dhcp::admission;
use crate::dhcp::apply;
use crate::dhcp::client::Client;
use crate::dhcp::clients::{Clients, ReleasePacket};
use crate::dhcp::exchange::ClientEvent;
use crate::dhcp::journal::LeaseRecord;
use crate::dhcp::lease::{Key, Leases, v4, v6};
use crate::dhcp::site::SiteError;
use crate::dhcp::table::{FAILED_PAUSE, LeaseEntry, LeaseEvent, Table, cannot_get, log};
use crate::dhcp::time::Time;
use crate::dhcp::uplink;
use crate::error::{Error, Result};
use crate::kernel::clock::{self, Alarm};
use crate::kernel::sys;
use crate::netlink::rtnl::{Nsid, Rtnl};
use crate::steps::lease_change::LeaseChange;

/// The pause after a failed change of the host. It doubles with each failure, at most this many times.
const PAUSE: Time = Time::from_secs(1);
const PAUSE_DOUBLINGS_MAX: u32 = 6;
/// The pause while the host is changed for another lease.
const BUSY_PAUSE: Time = Time::from_millis(200);

/// A lease, or the attempt to get one, as its thread has it.
pub(super) struct LeaseThread {
    table: Arc<Table>,
    /// Rings at the next deadline, or when another thread has an event for this one.
    alarm: Arc<Alarm>,
    record: LeaseRecord,
    clients: Clients,
    /// The daemon found the lease in the journal.
    is_adopted: bool,
    /// The clients never had all leases.
    is_new: bool,
    following: Following,
}

/// The change of the interface and of the host to the current leases.
#[derive(Default)]
struct Following {
    /// The time of the next attempt. `None` if nothing is to be changed.
    at: Option<Time>,
    failures: u32,
    /// The leases that the interface is configured for. `None` if unknown.
    applied: Option<Leases>,
}

impl Following {
    /// The state for a record. If the record has former leases, the interface can be configured for any of them, and a change
    /// is due.
    fn of(record: &LeaseRecord) -> Self {
        match record.former_v4.is_empty() && record.former_v6.is_empty() {
            true => Self { applied: Some(record.leases.clone()), ..Self::default() },
            false => Self { at: Some(Time::ZERO), ..Self::default() },
        }
    }
}

impl LeaseThread {
    /// For a lease that an ADD requests.
    pub(super) fn requested(table: &Arc<Table>, record: LeaseRecord) -> Result<Self> {
        let alarm = Alarm::new().map_err(sys::failed("cannot make a timer"))?;
        Ok(Self {
            clients: Clients::new(&record, &table.flags)?,
            table: Arc::clone(table),
            alarm: Arc::new(alarm),
            record,
            is_adopted: false,
            is_new: true,
            following: Following::default(),
        })
    }

    /// For a lease of the journal.
    pub(super) fn adopted(table: &Arc<Table>, record: LeaseRecord) -> Result<Self> {
        let following = Following::of(&record);
        let new = Self::requested(table, record)?;
        Ok(Self { is_adopted: true, is_new: false, following, ..new })
    }

    pub(super) fn key(&self) -> &Key {
        &self.record.request.key
    }

    /// Whether the lease is for the link of the record.
    pub(super) fn has_link_of(&self, other: &LeaseRecord) -> bool {
        let link = |record: &LeaseRecord| (record.ifindex, record.mac);
        link(&self.record) == link(other) && self.record.is_in(other.netns_id, other.netns_cookie)
    }

    /// The entry of the table for this lease.
    pub(super) fn entry(&self, number: Option<Nsid>) -> LeaseEntry {
        let is_bound = self.is_adopted && self.record.is_complete();
        let bound = is_bound.then(|| apply::success(&self.record, &[]));
        LeaseEntry {
            record: self.record.clone(),
            number,
            events: Vec::new(),
            alarm: Arc::clone(&self.alarm),
            answer: Arc::new(Mutex::new(bound.map(Ok))),
            requests: Arc::default(),
            is_received: self.is_adopted,
            is_ending: false,
        }
    }

    /// Runs until the lease has ended.
    pub(super) fn run(mut self) {
        let Err(reason) = self.keep();
        self.release(reason);
    }

    /// Gets and renews the lease. Returns the error for the requests that wait for it when it ends.
    fn keep(&mut self) -> Result<Infallible> {
        self.start()?;
        loop {
            for event in self.clients.take_events() {
                self.handle(event)?;
            }
            self.follow();
            for event in self.wait() {
                match event {
                    LeaseEvent::Verify => {
                        let found = self.table.site(&self.record).verify();
                        if let Err(SiteError::Gone(reason)) = found {
                            return Err(self.gone(reason));
                        }
                    }
                    LeaseEvent::End(reason) => return Err(cannot_get(self.key(), reason)),
                }
            }
            self.clients.run(&self.table.site(&self.record), Time::now());
        }
    }

    fn start(&mut self) -> Result<()> {
        if self.is_adopted {
            if let Err(SiteError::Gone(reason)) = self.verify() {
                // Give the clients their leases, because a client without a lease sends no RELEASE.
                self.clients.resume_to_release(&self.record, Time::now());
                return Err(self.gone(reason));
            }
            log(self.key(), "the lease is adopted");
        }
        self.clients.start(&self.table.site(&self.record), Time::now());
        Ok(())
    }

    /// Checks that the namespace and the link of an adopted lease still exist, and that it has no mark. The entry has the id of
    /// the namespace before the link is looked up, so that no report of a removed link is missed.
    fn verify(&self) -> Result<(), SiteError> {
        if self.record.is_released {
            return Err(SiteError::Gone("it was released while no daemon ran"));
        }
        let site = self.table.site(&self.record);
        let netns = site.open()?;
        let cookie = netns.rtnl()?.netns_cookie();
        if let Ok(number) = Rtnl::open()?.ensure_nsid(&netns, cookie) {
            self.with_entry(|entry| entry.number = Some(number));
        }
        site.verify().map(drop)
    }

    /// Publishes the lease. Waits for the next event, packet or deadline, and returns the events.
    fn wait(&mut self) -> Vec<LeaseEvent> {
        self.publish();
        let mut files = vec![self.alarm.as_fd()];
        self.clients.add_sockets(&mut files);
        if let Err(error) = clock::readable(&files, None) {
            log(self.key(), &format!("cannot wait for packets: {}", sys::reason(&error)));
            // Without a pause the loop would use all of a core.
            let _ = clock::readable(&[], Some(FAILED_PAUSE));
        }
        self.with_entry(|entry| std::mem::take(&mut entry.events)).unwrap_or_default()
    }

    /// Writes the lease to the table, answers the requests that wait for it, and sets the alarm.
    fn publish(&mut self) {
        let slaac = self.clients.slaac.as_ref();
        let slaac = slaac.map(|slaac| slaac.ips.as_slice()).unwrap_or_default();
        let is_bound = !self.is_new && self.clients.are_bound();
        let bound = is_bound.then(|| apply::success(&self.record, slaac));
        let next = Time::first(self.clients.deadline(), self.following.at);
        let record = self.record.clone();
        self.with_entry(|entry| {
            entry.record = record;
            let had_answer = entry.answer.lock().is_some();
            *entry.answer.lock() = bound.map(Ok);
            if is_bound && !had_answer {
                self.table.changed.notify_all();
            }
            let at = if entry.events.is_empty() { next } else { Some(Time::ZERO) };
            if let Err(error) = self.alarm.set(at.map(Duration::from)) {
                log(self.key(), &format!("cannot set the timer: {}", sys::reason(&error)));
            }
        });
    }

    /// Calls the closure with the entry of the table. The entry exists until this thread removes it.
    fn with_entry<T>(&self, f: impl FnOnce(&mut LeaseEntry) -> T) -> Option<T> {
        self.table.leases.lock().get_mut(self.key()).map(|entry| f(entry))
    }

    /// Handles an event of a client. Returns an error if the lease ends.
    fn handle(&mut self, event: ClientEvent) -> Result<()> {
        match event {
            ClientEvent::Bound => return self.bound(),
            ClientEvent::Lost(reason) => {
                log(self.key(), reason);
                self.renew_record();
                self.save_or_log();
            }
            ClientEvent::Declined(reason) => {
                log(self.key(), &format!("the address is declined: {reason}"));
            }
            ClientEvent::Failed(tried) if self.is_new => {
                return Err(cannot_get(self.key(), &tried));
            }
            ClientEvent::Failed(tried) => log(self.key(), &tried),
            ClientEvent::Gone(reason) => return Err(self.gone(reason)),
        }
        Ok(())
    }

    /// Writes the lease that a client got to the journal. `follow` changes the interface and the host later.
    fn bound(&mut self) -> Result<()> {
        self.renew_record();
        if !self.is_new {
            self.save_or_log();
            return Ok(());
        }
        self.table.journal.save(&self.record)?;
        if self.clients.are_bound() {
            self.is_new = false;
            self.following = Following::of(&self.record);
        }
        Ok(())
    }

    fn save_or_log(&self) {
        let saved = self.table.journal.save(&self.record);
        saved.unwrap_or_else(|error| log(self.key(), &error.to_string()));
    }

    /// Copies the leases of the clients to the record. If they configure the interface in another way, keeps the old ones as
    /// former leases, and makes `follow` due.
    fn renew_record(&mut self) {
        let v4 = self.clients.v4.as_ref().and_then(|v4| v4.client.lease()).cloned();
        let v6 = self.clients.v6.as_ref().and_then(|v6| v6.client.lease()).cloned();
        let new = Leases { v4, v6 };
        if !self.is_new && !self.record.leases.same_terms(&new) {
            self.record.keep_former(self.record.leases.clone(), &new);
            self.following.at = Some(Time::now());
        }
        for subnet in admission::subnets(&new) {
            let is_of_family = |net: &IpNet| net.addr().is_ipv4() == subnet.addr().is_ipv4();
            if !self.record.subnets.iter().any(is_of_family) {
                self.record.subnets.push(subnet);
            }
        }
        self.record.leases = new;
    }

    /// Changes the interface and the host to the current leases, if that is due. Logs the first error of several, and schedules
    /// the next attempt.
    fn follow(&mut self) {
        if self.following.at.is_none_or(|at| at > Time::now()) {
            return;
        }
        if let Err(error) = self.change_interface().and_then(|()| self.change_host()) {
            if self.following.failures == 0 {
                log(self.key(), &error.to_string());
            }
            let doublings = self.following.failures.min(PAUSE_DOUBLINGS_MAX);
            let pause = Time::from_millis(PAUSE.as_millis() << doublings);
            self.following.failures += 1;
            self.following.at = Some(Time::now() + pause);
        }
    }

    fn change_interface(&mut self) -> Result<()> {
        let leases = &self.record.leases;
        let applied = self.following.applied.as_ref();
        if applied.is_some_and(|applied| applied.same_terms(leases)) {
            return Ok(());
        }
        let (site, unknown) = (self.table.site(&self.record), Leases::default());
        let before = applied.unwrap_or(&unknown);
        match apply::change(&site, before, &|text| log(self.key(), text)) {
            Ok(()) => self.following.applied = Some(leases.clone()),
            // The lease does not end here, but with the kernel's report of the removed link.
            Err(SiteError::Gone(reason)) => return Err(Error::internal(reason)),
            Err(SiteError::Failed(error)) => return Err(error),
        }
        Ok(())
    }

    /// Changes the rules of the host and the cache entry. Then the former leases have no trace any more.
    fn change_host(&mut self) -> Result<()> {
        let record = &self.record;
        // Do not wait: this thread also renews the lease, and releases it for a DEL.
        let Some(follow) = self.table.follow.try_lock() else {
            self.following.at = Some(Time::now() + BUSY_PAUSE);
            return Ok(());
        };
        let moved = follow(&self.table.flags.hostprefix, &change(record))?;
        drop(follow);
        if !moved.is_empty() {
            let nets = apply::success(record, &[]).nets();
            let nets = nets.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" and ");
            log(self.key(), &format!("moved to {nets}: {moved}"));
        }
        (self.following.at, self.following.failures) = (None, 0);
        self.record.forget_former();
        self.save_or_log();
        Ok(())
    }

    /// Logs why the lease ends, and returns the error for the requests that wait for it.
    fn gone(&self, reason: &str) -> Error {
        log(self.key(), reason);
        cannot_get(self.key(), reason)
    }

    /// Sends the RELEASE, removes the file and the entry, and answers the waiting requests with the error. The answer comes last:
    /// the RELEASE is sent through the link, which an ADD that fails removes.
    fn release(mut self, error: Error) {
        self.with_entry(|entry| entry.is_ending = true);
        let packets = self.clients.release(Time::now());
        if !packets.is_empty() {
            // Because of the mark, the next daemon sends the RELEASE if this one is killed before.
            let marked = self.table.journal.mark(self.key()).map(drop);
            marked.unwrap_or_else(|error| log(self.key(), &error.to_string()));
            match self.send(&packets) {
                Ok(()) => log(self.key(), "the lease is released"),
                Err(error) => log(self.key(), &format!("cannot release the lease: {error}")),
            }
        }
        let Self { table, record, clients, .. } = self;
        // Close the sockets: a DEL returns when the entry is removed.
        drop(clients);
        let key = &record.request.key;
        let removed = table.journal.remove(key);
        removed.unwrap_or_else(|error| log(key, &error.to_string()));
        if let Some(entry) = table.leases.lock().remove(key) {
            *entry.answer.lock() = Some(Err(error));
        }
        table.changed.notify_all();
    }

    /// Sends the packets of a RELEASE.
    fn send(&self, packets: &[ReleasePacket]) -> Result<()> {
        let site = self.table.site(&self.record);
        let has_link = || !matches!(site.verify(), Err(SiteError::Gone(_)));
        let mut result = Ok(());
        for packet in packets {
            // Try twice: without a RELEASE the server keeps the lease until its end.
            let send = || packet.send(&site).or_else(|_| packet.send(&site)).is_ok();
            // While the kernel removes a link, it drops packets without an error.
            if !(has_link() && send() && has_link()) {
                let LeaseRecord { uplink, mac, .. } = &self.record;
                let sent = Rtnl::open()
                    .and_then(|host| uplink::release(&host, uplink.as_ref(), *mac, packet));
                result = result.and(sent);
            }
        }
        result
    }
}

/// The former leases, each with the current lease of its family, as results of ADD.
fn change(record: &LeaseRecord) -> LeaseChange {
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
    LeaseChange { network: key.network.clone(), at: key.at.clone(), leases }
}

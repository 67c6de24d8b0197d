//! The thread of one lease, from the first packet to the RELEASE. It runs the clients, writes the journal, and follows a change
//! of the lease: first on the interface, then in the rules of the host and in the cache entry. The record keeps the former
//! leases until that is done, so the next daemon repeats what a crash interrupts.
//!
//! The thread stays in the namespace of the host. While an attachment has no lease, its rules stay: there is no new address for
//! them.

use std::convert::Infallible;
use std::mem;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use parking_lot::{Condvar, Mutex};

use crate::cni::success::Success;
use crate::daemon::table::{
    FAILED_PAUSE, LeaseEntry, LeaseState, Phase, RELEASED, Table, cannot_get, log,
};
use crate::dhcp::admission;
use crate::dhcp::apply;
use crate::dhcp::client::Client;
use crate::dhcp::clients::{Clients, ReleasePacket};
use crate::dhcp::exchange::ClientEvent;
use crate::dhcp::journal::LeaseRecord;
use crate::dhcp::lease::{Key, Leases, v4, v6};
use crate::dhcp::site::SiteError;
use crate::dhcp::time::Time;
use crate::dhcp::uplink;
use crate::error::{Error, Result};
use crate::kernel::clock::{self, Alarm};
use crate::kernel::sys;
use crate::netlink::rtnl::{Nsid, Rtnl};
use crate::runtime::lease_change::{self, LeaseChange};

/// The pause after a failed change of the host. It doubles with each failure, at most this many times.
const PAUSE: Time = Time::from_secs(1);
const PAUSE_DOUBLINGS_MAX: u32 = 6;
/// The pause while the host is changed for another lease.
const BUSY_PAUSE: Time = Time::from_millis(200);

/// A lease with what its thread alone uses.
pub(super) struct LeaseThread {
    table: Arc<Table>,
    pub entry: Arc<LeaseEntry>,
    clients: Clients,
    /// The lease is not of the journal, and the clients never had all leases.
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
        let clients = Clients::new(&record, &table.flags)?;
        let alarm = Alarm::new().map_err(sys::failed("cannot make a timer"))?;
        let key = record.request.key.clone();
        let state = LeaseState {
            // The namespace can exist without its path. Then only its cookie tells its number.
            number: record.netns_cookie.map(Nsid::of_cookie),
            phase: if record.is_complete() { Phase::Bound(Vec::new()) } else { Phase::Searching },
            record: Arc::new(record),
            must_verify: false,
            holders: 0,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Ok(Self {
            table: Arc::clone(table),
            entry: Arc::new(LeaseEntry { key, alarm, state, changed }),
            clients,
            is_new: true,
            following: Following::default(),
        })
    }

    /// For a lease of the journal.
    pub(super) fn adopted(table: &Arc<Table>, record: LeaseRecord) -> Result<Self> {
        let following = Following::of(&record);
        let new = Self::requested(table, record)?;
        new.entry.state.lock().holders = 1;
        Ok(Self { is_new: false, following, ..new })
    }

    fn key(&self) -> &Key {
        &self.entry.key
    }

    /// Runs until the lease has ended.
    pub(super) fn run(mut self) {
        let Err(error) = self.keep();
        self.entry.state.lock().end(error);
        self.release();
    }

    /// Gets and renews the lease. Returns the error for the requests that wait for it when it ends.
    fn keep(&mut self) -> Result<Infallible> {
        if let Err(error) = self.verify() {
            // Give the clients their leases, because a client without a lease sends no RELEASE.
            self.clients.resume_to_release(&self.entry.record(), Time::now());
            return Err(error);
        }
        if !self.is_new {
            log(self.key(), "the lease is adopted");
        }
        self.clients.start(&self.table.site(&self.entry.record()), Time::now());
        loop {
            for event in self.clients.take_events() {
                self.handle(event)?;
            }
            self.follow();
            if self.publish()? {
                self.verify()?;
            }
            self.wait();
            self.clients.run(&self.table.site(&self.entry.record()), Time::now());
        }
    }

    /// Fails if the namespace or the link does not exist any more, or if the lease of the journal has a mark. The entry has the
    /// id of the namespace before the link is looked up, so that no report of a removed link is missed.
    fn verify(&self) -> Result<()> {
        let record = self.entry.record();
        let site = self.table.site(&record);
        let verify = || {
            if record.is_released {
                return Err(SiteError::Gone("it was released while no daemon ran"));
            }
            let netns = site.open()?;
            if let Ok(number) = Rtnl::open()?.ensure_nsid(&netns, record.netns_cookie) {
                self.entry.state.lock().number = Some(number);
            }
            site.verify()
        };
        match verify() {
            Err(SiteError::Gone(reason)) => Err(self.gone(reason)),
            Err(SiteError::Failed(_)) | Ok(_) => Ok(()),
        }
    }

    /// Sets the phase and the alarm. Returns whether the link must be verified. Fails if the lease must be released.
    fn publish(&self) -> Result<bool> {
        let mut state = self.entry.state.lock();
        if state.holders == 0 {
            state.end(cannot_get(self.key(), RELEASED));
        }
        if let Phase::Ending(error) = &state.phase {
            return Err(error.clone());
        }
        let slaac = self.clients.slaac.as_ref().map(|slaac| slaac.ips.clone());
        state.phase = match !self.is_new && self.clients.are_bound() {
            true => Phase::Bound(slaac.unwrap_or_default()),
            false => Phase::Searching,
        };
        self.entry.changed.notify_all();
        // Under the lock: another thread changes the state first, and then sets the alarm.
        let next = Time::first(self.clients.deadline(), self.following.at);
        if let Err(error) = self.entry.alarm.set(next.map(Duration::from)) {
            log(self.key(), &format!("cannot set the timer: {}", sys::reason(&error)));
        }
        Ok(mem::take(&mut state.must_verify))
    }

    /// Waits for the next packet or deadline, or for another thread.
    fn wait(&self) {
        let mut files = vec![self.entry.alarm.as_fd()];
        self.clients.add_sockets(&mut files);
        if let Err(error) = clock::readable(&files, None) {
            log(self.key(), &format!("cannot wait for packets: {}", sys::reason(&error)));
            // Without a pause the loop would use all of a core.
            let _ = clock::readable(&[], Some(FAILED_PAUSE));
        }
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
        let record = self.entry.record();
        self.table.journal.save(&record)?;
        if self.clients.are_bound() {
            self.is_new = false;
            self.following = Following::of(&record);
        }
        Ok(())
    }

    fn save_or_log(&self) {
        let saved = self.table.journal.save(&self.entry.record());
        saved.unwrap_or_else(|error| log(self.key(), &error.to_string()));
    }

    /// Copies the leases of the clients to the record. If they configure the interface in another way, keeps the old ones as
    /// former leases, and makes `follow` due.
    fn renew_record(&mut self) {
        let v4 = self.clients.v4.as_ref().and_then(|v4| v4.client.lease()).cloned();
        let v6 = self.clients.v6.as_ref().and_then(|v6| v6.client.lease()).cloned();
        let new = Leases { v4, v6 };
        let mut state = self.entry.state.lock();
        let record = Arc::make_mut(&mut state.record);
        if !self.is_new && !record.leases.same_terms(&new) {
            self.following.at = Some(Time::now());
            record.keep_former(record.leases.clone(), &new);
        }
        for subnet in admission::subnets(&new) {
            let is_of_family = |net: &IpNet| net.addr().is_ipv4() == subnet.addr().is_ipv4();
            if !record.subnets.iter().any(is_of_family) {
                record.subnets.push(subnet);
            }
        }
        record.leases = new;
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
        let record = self.entry.record();
        let leases = &record.leases;
        let applied = self.following.applied.as_ref();
        if applied.is_some_and(|applied| applied.same_terms(leases)) {
            return Ok(());
        }
        let (site, unknown) = (self.table.site(&record), Leases::default());
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
        let record = self.entry.record();
        // Do not wait: this thread also renews the lease, and releases it for a DEL.
        let Some(host) = self.table.host.try_lock() else {
            self.following.at = Some(Time::now() + BUSY_PAUSE);
            return Ok(());
        };
        let prefix = &self.table.flags.hostprefix;
        let moved = lease_change::follow(&host, prefix, &change(&record))?;
        drop(host);
        if !moved.is_empty() {
            let nets = apply::success(&record, &[]).nets();
            let nets = nets.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" and ");
            log(self.key(), &format!("moved to {nets}: {moved}"));
        }
        (self.following.at, self.following.failures) = (None, 0);
        Arc::make_mut(&mut self.entry.state.lock().record).forget_former();
        self.save_or_log();
        Ok(())
    }

    /// Logs why the lease ends, and returns the error for the requests that wait for it.
    fn gone(&self, reason: &str) -> Error {
        log(self.key(), reason);
        cannot_get(self.key(), reason)
    }

    /// Sends the RELEASE, and removes the file and the entry.
    fn release(mut self) {
        let record = self.entry.record();
        let key = &record.request.key;
        let packets = self.clients.release(Time::now());
        if !packets.is_empty() {
            // Because of the mark, the next daemon sends the RELEASE if this one is killed before.
            let marked = self.table.journal.mark(key).map(drop);
            marked.unwrap_or_else(|error| log(key, &error.to_string()));
            match self.send(&packets, &record) {
                Ok(()) => log(key, "the lease is released"),
                Err(error) => log(key, &format!("cannot release the lease: {error}")),
            }
        }
        let Self { table, entry, clients, .. } = self;
        // Close the sockets: a DEL returns when the lease has ended.
        drop(clients);
        table.journal.remove(key).unwrap_or_else(|error| log(key, &error.to_string()));
        table.leases.lock().remove(key);
        let mut state = entry.state.lock();
        if let Phase::Ending(error) = &state.phase {
            state.phase = Phase::Ended(error.clone());
        }
        entry.changed.notify_all();
    }

    /// Sends the packets of a RELEASE.
    fn send(&self, packets: &[ReleasePacket], record: &LeaseRecord) -> Result<()> {
        let site = self.table.site(record);
        let has_link = || !matches!(site.verify(), Err(SiteError::Gone(_)));
        let mut result = Ok(());
        for packet in packets {
            // Try twice: without a RELEASE the server keeps the lease until its end.
            let send = || packet.send(&site).or_else(|_| packet.send(&site)).is_ok();
            // While the kernel removes a link, it drops packets without an error.
            if !(has_link() && send() && has_link()) {
                let LeaseRecord { uplink, mac, .. } = record;
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

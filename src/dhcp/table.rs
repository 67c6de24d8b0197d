//! The leases of a daemon. The threads of the requests share the table with the thread of `events`, which runs all clients.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::cni::success::Success;
use crate::dhcp::apply::{self, Leases};
use crate::dhcp::clients::{Clients, Options, PacketOfRelease};
use crate::dhcp::exchange::News;
use crate::dhcp::follower::Following;
use crate::dhcp::journal::{Journal, Record};
use crate::dhcp::lease::Key;
use crate::dhcp::protocol::Ask;
use crate::dhcp::site::{Site, Trouble, prefixed};
use crate::dhcp::time::Time;
use crate::dhcp::uplink;
use crate::error::{Error, Result};
use crate::kernel::clock::Alarm;
use crate::kernel::netns::NetNs;
use crate::kernel::rtnl::{Batch, Ends, LinkChange, Rtnl};
use crate::kernel::sys::{thread, warn};
use crate::names::{Attachment, NetworkName};
use crate::steps::renumber::Follow;

/// The longest wait for the end of an earlier lease of the same attachment.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
/// The time that an exchange can take after the client gave up waiting: the probe of the address, and a loaded host.
const MARGIN: Duration = Duration::from_secs(15);

/// See the head of this file.
pub struct Table {
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    /// Wakes the thread of `events`. It is set while `state` is locked.
    pub(super) alarm: Alarm,
    /// Missing if the process lacks a capability: then a lease ends when its next packet cannot be sent.
    pub(super) ends: Option<Ends>,
    pub(super) journal: Journal,
    pub(super) options: Options,
    /// Moves what the host has for an attachment to its next address.
    pub(super) follow: Follow,
    home: NetNs,
    /// One survey at a time: the kernel executes their requests one after the other anyway, and the buffers of hundreds would
    /// be most of the daemon's memory.
    survey: Mutex<()>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) leases: Entries,
    /// Attachments with a lease that is being released. A new lease of the attachment waits.
    leaving: Vec<Key>,
    /// Leases that `farewell` releases.
    departures: Vec<Entry>,
    has_farewell: bool,
    /// Attachments with a changed lease that the thread of `follower` is at work for.
    pub(super) following: Vec<Key>,
    pub(super) has_follower: bool,
}

/// The entries, sorted by their keys.
#[derive(Default)]
pub(super) struct Entries(pub(super) Vec<Entry>);

impl Entries {
    fn find(&self, key: &Key) -> Result<usize, usize> {
        self.0.binary_search_by(|entry| entry.key().cmp(key))
    }

    fn get(&self, key: &Key) -> Option<&Entry> {
        self.find(key).ok().and_then(|at| self.0.get(at))
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut Entry> {
        self.find(key).ok().and_then(|at| self.0.get_mut(at))
    }

    /// The key is new.
    fn insert(&mut self, entry: Entry) {
        let at = self.find(entry.key()).unwrap_or_else(|at| at);
        self.0.insert(at, entry);
    }

    fn remove(&mut self, key: &Key) -> Option<Entry> {
        self.find(key).ok().map(|at| self.0.remove(at))
    }
}

/// A lease, or the attempt to get one.
pub(super) struct Entry {
    pub(super) record: Record,
    pub(super) clients: Clients,
    /// The kernel's number of the namespace.
    pub(super) number: Option<u32>,
    /// The answer for the requests that wait.
    answer: Arc<OnceLock<Result<Success>>>,
    /// No request has got this lease yet.
    is_new: bool,
    pub(super) following: Following,
}

impl Table {
    /// Opens the leases of the journal, and adopts those with a link that is still there.
    pub fn open(journal: Journal, options: Options, follow: Follow) -> Result<Arc<Self>> {
        let cannot = |error| Error::internal(format_args!("cannot make a timer: {error}"));
        let ends = Ends::subscribe();
        if let Err(error) = &ends {
            warn(format_args!("warning: {error}"));
        }
        let table = Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            alarm: Alarm::new().map_err(cannot)?,
            ends: ends.ok(),
            journal,
            options,
            follow,
            home: NetNs::own()?,
            survey: Mutex::default(),
        });
        table.adopt_all()?;
        Ok(table)
    }

    fn adopt_all(self: &Arc<Self>) -> Result<()> {
        let now = Time::now();
        let mut state = self.state.lock();
        for record in self.journal.read_all()? {
            let key = record.ask.key.clone();
            let mut entry = self.entry(record)?;
            entry.is_new = false;
            entry.following = Following::adopted(&entry.record);
            let found = match entry.record.is_released {
                true => Err(Trouble::Gone("it was released while no daemon ran")),
                false => self.site(&entry.record).verify(),
            };
            match found {
                Err(Trouble::Gone(reason)) => {
                    log(&key, reason);
                    // Only a client with a lease can release it.
                    entry.clients.resume_to_release(&entry.record, now);
                    self.depart_later(&mut state, entry);
                }
                found => {
                    if let Ok(netns) = found {
                        entry.number = Rtnl::open()?.number_of(&netns).ok();
                    }
                    log(&key, "the lease is adopted");
                    let news = entry.clients.start(&self.site(&entry.record), now);
                    state.leases.insert(entry);
                    self.handle(&mut state, &key, news);
                }
            }
        }
        Ok(())
    }

    pub(super) fn site<'a>(&'a self, record: &'a Record) -> Site<'a> {
        Site { home: &self.home, prefix: &self.options.prefix, record }
    }

    fn entry(&self, record: Record) -> Result<Entry> {
        let clients = Clients::new(&record, &self.options)?;
        let (answer, following) = (Arc::default(), Following::default());
        Ok(Entry { record, clients, number: None, answer, is_new: true, following })
    }

    /// The longest time that `acquire` takes.
    pub fn limit(&self) -> Duration {
        Duration::from(self.options.times.resend_timeout) + MARGIN
    }

    /// The lease of an attachment as a result. Waits until there is one. Two calls for one attachment share a lease.
    pub fn acquire(self: &Arc<Self>, ask: &Ask) -> Result<Success> {
        let key = &ask.key;
        let deadline = Instant::now() + self.limit();
        let new = self.survey(ask)?;
        let mut state = self.state.lock();
        let answer = loop {
            self.wait_for_departure(&mut state, key)?;
            match state.leases.get(key) {
                Some(entry) if entry.is_at(&new.record) => {
                    if !entry.is_new && entry.clients.are_bound() {
                        return Ok(entry.success());
                    }
                    break Arc::clone(&entry.answer);
                }
                // Its link is not the link of this call: no DEL came before.
                Some(_) => {
                    if let Some(entry) = self.take(&mut state, key) {
                        MutexGuard::unlocked(&mut state, || self.depart(entry));
                    }
                }
                None => break self.begin(&mut state, new),
            }
        };
        while answer.get().is_none() {
            let waited = self.changed.wait_until(&mut state, deadline);
            if waited.timed_out() && answer.get().is_none() {
                return Err(cannot_get(key, "the daemon is too slow"));
            }
        }
        answer.get().cloned().unwrap_or_else(|| Err(cannot_get(key, RELEASED)))
    }

    /// An entry for the link of a call, which is brought up.
    fn survey(&self, ask: &Ask) -> Result<Entry> {
        let _alone = self.survey.lock();
        let name = &ask.key.ifname;
        let netns = self.home.open(&prefixed(&self.options.prefix, &ask.netns))?;
        let rtnl = netns.rtnl()?;
        let link = rtnl.link(name)?.ok_or_else(|| cannot_get(&ask.key, "it does not exist"))?;
        let mac = link.mac.ok_or_else(|| cannot_get(&ask.key, "it has no Ethernet address"))?;
        if !link.up {
            let mut batch = Batch::new();
            let up = LinkChange { up: Some(true), ..LinkChange::default() };
            batch.change_link(link.index, name, &up);
            rtnl.commit(batch)?;
        }
        let host = Rtnl::open()?;
        let mut ask = ask.clone();
        // A frame to the MAC address would reach the master, which passes it on by the address of its packet.
        ask.settings.broadcast |= link.kind.as_deref() == Some("ipvlan");
        let record = Record {
            ask,
            netns_id: netns.identity()?,
            ifindex: link.index,
            mac,
            uplink: uplink::of(&host, &link)?,
            v4: None,
            v6: None,
            former_v4: Vec::new(),
            former_v6: Vec::new(),
            is_released: false,
        };
        let number = host.number_of(&netns).ok();
        Ok(Entry { number, ..self.entry(record)? })
    }

    fn begin(
        self: &Arc<Self>,
        state: &mut State,
        mut entry: Entry,
    ) -> Arc<OnceLock<Result<Success>>> {
        let now = Time::now();
        let (key, answer) = (entry.record.ask.key.clone(), Arc::clone(&entry.answer));
        let news = entry.clients.start(&self.site(&entry.record), now);
        state.leases.insert(entry);
        self.handle(state, &key, news);
        self.wake();
        answer
    }

    /// Lets the thread of `events` look at the table again.
    pub(super) fn wake(&self) {
        // The thread wakes at the next deadline anyway.
        let _ = self.alarm.set(Some(Duration::ZERO));
    }

    /// Handles the events of a client.
    pub(super) fn handle(self: &Arc<Self>, state: &mut State, key: &Key, news: Vec<News>) {
        for event in news {
            let Some(entry) = state.leases.get_mut(key) else { return };
            let end = match event {
                News::Bound => self.bound(entry).err(),
                News::Lost(reason) => {
                    self.lost(entry, reason);
                    None
                }
                News::Failed(tried) if entry.is_new => Some(cannot_get(key, &tried)),
                News::Failed(tried) => {
                    log(key, &tried);
                    None
                }
                News::Gone(reason) => {
                    log(key, reason);
                    Some(cannot_get(key, reason))
                }
            };
            if let Some(error) = end
                && let Some(entry) = state.leases.remove(key)
            {
                let _ = entry.answer.set(Err(error));
                self.depart_later(state, entry);
            }
            self.changed.notify_all();
        }
        self.follow(state);
    }

    /// A client has a lease: it is written to the journal. Changes follow in another thread.
    fn bound(&self, entry: &mut Entry) -> Result<()> {
        let key = entry.record.ask.key.clone();
        entry.renew_record();
        let saved = self.journal.save(&entry.record);
        if entry.is_new {
            saved?;
            if !entry.clients.are_bound() {
                return Ok(());
            }
            entry.is_new = false;
            entry.following = Following::adopted(&entry.record);
        } else {
            saved.unwrap_or_else(|error| log(&key, &error.to_string()));
        }
        if entry.clients.are_bound() {
            let _ = entry.answer.set(Ok(entry.success()));
        }
        Ok(())
    }

    fn lost(&self, entry: &mut Entry, reason: &str) {
        let key = entry.record.ask.key.clone();
        log(&key, reason);
        entry.renew_record();
        if !entry.is_new {
            entry.answer = Arc::default();
        }
        let saved = self.journal.save(&entry.record);
        saved.unwrap_or_else(|error| log(&key, &error.to_string()));
    }

    /// Fails if the attachment has no lease, or if its link is gone.
    pub fn check(&self, key: &Key) -> Result<()> {
        let cannot = |reason: &str| {
            let Key { network, ifname, .. } = key;
            let msg = format!("cannot find a lease for {ifname} in network {network}");
            Error::internal(msg).with_details(reason)
        };
        let state = self.state.lock();
        let entry = state.leases.get(key).ok_or_else(|| cannot("the daemon knows none"))?;
        if !entry.clients.are_bound() {
            return Err(cannot("it was lost"));
        }
        let record = entry.record.clone();
        drop(state);
        match self.site(&record).verify() {
            Ok(_) => Ok(()),
            Err(Trouble::Gone(reason)) => Err(cannot(reason)),
            Err(Trouble::Failed(error)) => Err(error),
        }
    }

    /// Sends a RELEASE if the attachment has a lease. It returns when the lease is gone.
    pub fn release(&self, key: &Key) -> Result<()> {
        let mut state = self.state.lock();
        self.wait_for_departure(&mut state, key)?;
        let entry = self.take(&mut state, key);
        drop(state);
        if let Some(entry) = entry {
            self.depart(entry);
            self.wake();
        }
        Ok(())
    }

    /// Releases the leases of a network except these.
    pub fn retain(self: &Arc<Self>, network: &NetworkName, keep: &[Attachment]) -> Result<()> {
        let is_kept = |key: &Key| {
            keep.iter().any(|at| at.container_id == key.container_id && at.ifname == key.ifname)
        };
        let mut state = self.state.lock();
        let mut stale = Vec::new();
        for entry in &state.leases.0 {
            let key = entry.key();
            if key.network == *network && !is_kept(key) {
                stale.push(key.clone());
            }
        }
        for key in &stale {
            if let Some(entry) = self.take(&mut state, key) {
                self.depart_later(&mut state, entry);
            }
        }
        let deadline = Instant::now() + LEAVE_LIMIT;
        while stale.iter().any(|key| state.leaving.contains(key)) {
            // The others are released soon.
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        Ok(())
    }

    /// Whether the attachment has a lease.
    pub fn has(&self, key: &Key) -> bool {
        self.state.lock().leases.get(key).is_some()
    }

    /// Whether there is no lease, no attempt to get one, and no RELEASE to send.
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.leases.0.is_empty() && state.leaving.is_empty()
    }

    /// Each lease, with a word for its state.
    pub fn list(&self) -> Vec<(Record, &'static str)> {
        let now = Time::now();
        let state = self.state.lock();
        let mut list = Vec::new();
        for Entry { record, clients, .. } in &state.leases.0 {
            let Record { v4, v6, .. } = record;
            let renews = Time::first(
                v4.as_ref().map(|lease| lease.renew_at),
                v6.as_ref().map(|lease| lease.renew_at),
            );
            let rebinds = Time::first(
                v4.as_ref().map(|lease| lease.rebind_at),
                v6.as_ref().map(|lease| lease.rebind_at),
            );
            let is_past = |at: Option<Time>| at.is_some_and(|at| at <= now);
            let word = match () {
                () if !clients.are_bound() => "searching",
                () if is_past(rebinds) => "rebinding",
                () if is_past(renews) => "renewing",
                () => "bound",
            };
            list.push((record.clone(), word));
        }
        list
    }

    /// Takes an entry out for `depart`.
    fn take(&self, state: &mut State, key: &Key) -> Option<Entry> {
        let entry = state.leases.remove(key)?;
        // Requests that wait for it get an answer at once.
        let _ = entry.answer.set(Err(cannot_get(key, RELEASED)));
        self.changed.notify_all();
        state.leaving.push(key.clone());
        Some(entry)
    }

    fn wait_for_departure(&self, state: &mut MutexGuard<'_, State>, key: &Key) -> Result<()> {
        let deadline = Instant::now() + LEAVE_LIMIT;
        while state.leaving.contains(key) || Self::is_followed(state, key) {
            if self.changed.wait_until(state, deadline).timed_out() {
                return Err(cannot_get(key, "an earlier lease is still being released"));
            }
        }
        Ok(())
    }

    /// Lets another thread release a lease: that can take a second.
    pub(super) fn depart_later(self: &Arc<Self>, state: &mut State, entry: Entry) {
        state.leaving.push(entry.record.ask.key.clone());
        state.departures.push(entry);
        if state.has_farewell {
            return;
        }
        let table = Arc::clone(self);
        match thread::start(Box::new(move || table.farewell())) {
            Ok(()) => state.has_farewell = true,
            // The next departure, or the next daemon, tries again.
            Err(error) => warn(format_args!("warning: cannot start a thread: {error}")),
        }
    }

    fn farewell(&self) {
        let mut state = self.state.lock();
        while let Some(entry) = state.departures.pop() {
            MutexGuard::unlocked(&mut state, || self.depart(entry));
        }
        state.has_farewell = false;
    }

    /// Releases the lease of an entry that was taken out.
    fn depart(&self, mut entry: Entry) {
        let key = &entry.record.ask.key;
        let packets = entry.clients.release(Time::now());
        if !packets.is_empty() {
            // If the daemon dies now, the next one sends the packets.
            let marked = self.journal.mark(key).map(drop);
            marked.unwrap_or_else(|error| log(key, &error.to_string()));
            match self.send_release(&entry.record, &packets) {
                Ok(()) => log(key, "the lease is released"),
                Err(error) => log(key, &format!("cannot release the lease: {error}")),
            }
        }
        let removed = self.journal.remove(key);
        removed.unwrap_or_else(|error| log(key, &error.to_string()));
        self.state.lock().leaving.retain(|other| other != key);
        self.changed.notify_all();
    }

    fn send_release(&self, record: &Record, packets: &[PacketOfRelease]) -> Result<()> {
        let site = self.site(record);
        let has_link = !matches!(site.verify(), Err(Trouble::Gone(_)));
        let mut result = Ok(());
        for packet in packets {
            // A second attempt, because the server keeps a lease that no packet releases.
            if !has_link || packet.send(&site).or_else(|_| packet.send(&site)).is_err() {
                let uplink = record.uplink.as_ref();
                let sent = Rtnl::open()
                    .and_then(|host| uplink::release(&host, uplink, record.mac, packet));
                result = result.and(sent);
            }
        }
        result
    }
}

impl Entry {
    pub(super) fn key(&self) -> &Key {
        &self.record.ask.key
    }

    /// The result of ADD.
    fn success(&self) -> Success {
        let slaac = self.clients.slaac.as_ref().map(|it| it.ips.as_slice());
        apply::success(&self.record, slaac.unwrap_or_default())
    }

    /// Copies the leases of the clients to the record. If they say something else than before, the rest has to follow.
    fn renew_record(&mut self) {
        let lease = self.clients.v4.as_ref().and_then(|it| it.client.lease()).cloned();
        let lease6 = self.clients.v6.as_ref().and_then(|it| it.client.lease()).cloned();
        let old = Leases::of(&self.record);
        let new = Leases { v4: lease, v6: lease6 };
        if !self.is_new && !old.says_the_same(&new) {
            self.record.keep_former(old, &new);
            self.following.at = Some(Time::now());
        }
        (self.record.v4, self.record.v6) = (new.v4, new.v6);
    }

    /// Whether the entry is about the same link.
    pub(super) fn is_at(&self, other: &Record) -> bool {
        let place = |record: &Record| (record.netns_id, record.ifindex, record.mac);
        place(&self.record) == place(other)
    }
}

const RELEASED: &str = "it was released meanwhile";

fn cannot_get(key: &Key, reason: &str) -> Error {
    let Key { network, container_id, ifname } = key;
    Error::internal(format_args!(
        "cannot get a lease for {ifname} of {container_id} in network {network}: {reason}"
    ))
}

/// Writes a line about a lease to stderr.
pub(super) fn log(key: &Key, text: &str) {
    let Key { network, container_id, ifname } = key;
    warn(format_args!("dhcp: {network} {container_id} {ifname}: {text}"));
}

//! The table of the leases of a daemon. These threads share it: one for each request, the one of `events`, those of `step`,
//! which run the clients, and the one of `follower`. No thread holds the lock of the table during a system call that can take
//! long.

mod events;
mod follower;
mod step;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::thread::Builder;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::cni::success::Success;
use crate::dhcp::apply;
use crate::dhcp::clients::Clients;
use crate::dhcp::flags::Flags;
use crate::dhcp::journal::{Journal, LeaseRecord, Listed};
use crate::dhcp::lease::{Key, Leases};
use crate::dhcp::protocol::LeaseRequest;
use crate::dhcp::site::{Site, SiteError, prefixed};
use crate::dhcp::time::Time;
use crate::dhcp::uplink;
use crate::error::{Error, Result};
use crate::kernel::clock::Alarm;
use crate::kernel::netns::NetNs;
use crate::kernel::sys::warn;
use crate::names::{Attachment, NetworkName};
use crate::netlink::rtnl::{Ends, LinkChange, Nsid, Rtnl};
use crate::steps::renumber::Follow;

use follower::Following;

/// The longest wait until a lease is released.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that an ADD gets in addition to `-resendtimeout`: for the probe of the address, and for a loaded host.
const MARGIN: Duration = Duration::from_secs(15);

/// The most links that are inspected at the same time. The buffers of hundreds of inspections would be most of the daemon's
/// memory.
const INSPECTIONS_MAX: usize = 16;

/// The leases, and what their clients need.
pub struct Table {
    state: Mutex<Shared>,
    changed: Condvar,
    /// Wakes the thread of `events`. It is set while `state` is locked.
    alarm: Alarm,
    /// The kernel's reports of removed namespaces and links. `None` if the process lacks a capability: then a lease ends when
    /// its next packet cannot be sent.
    ends: Option<Ends>,
    journal: Journal,
    flags: Flags,
    /// Changes the rules of the host and the cache entry of an attachment to its new address.
    follow: Follow,
    own_netns: NetNs,
    /// Signals the end of an inspection.
    inspected: Condvar,
}

#[derive(Default)]
struct Shared {
    /// In boxes: the map has room for twice as many entries.
    leases: BTreeMap<Key, Box<LeaseEntry>>,
    /// Attachments whose lease is being released. A new lease of such an attachment waits.
    releasing: Vec<Key>,
    /// Leases with events that no thread handles yet, in the order of the events.
    queue: VecDeque<Key>,
    /// The number of threads of `step`.
    workers: usize,
    /// Attachments whose rules the thread of `follower` changes now.
    following: Vec<Key>,
    has_follower: bool,
    /// The number of running inspections of links.
    inspections: usize,
}

/// A lease, or the attempt to get one. `LeaseWork` replaces the values when its events are handled.
struct LeaseEntry {
    record: LeaseRecord,
    /// `None` while a thread handles events of the lease. Only that thread changes or removes the entry then.
    clients: Option<Clients>,
    /// The events that are not handled yet.
    events: Vec<LeaseEvent>,
    /// The result of ADD, if each client has a lease.
    bound: Option<Success>,
    /// The id of the container's namespace (nsid) in the kernel's reports.
    number: Option<Nsid>,
    /// The result for the requests that wait for the lease.
    answer: Arc<OnceLock<Result<Success>>>,
    /// No request has received this lease yet.
    is_new: bool,
    following: Following,
}

/// An event of a lease. A thread of the module `step` handles it.
enum LeaseEvent {
    /// The daemon found the lease in the journal.
    Adopt,
    /// An ADD requests the lease.
    Start,
    /// A packet was received, or a deadline has passed.
    Due,
    /// The daemon missed reports of the kernel: the namespace or the link may be gone.
    Verify,
    /// The namespace or the link is gone, for this reason.
    Gone(&'static str),
    /// Release the lease. Requests that wait for it fail with this reason.
    End(&'static str),
    /// Change the interface, which is configured for these leases, to the current leases.
    Apply(Box<Leases>),
    /// The rules of the host and the cache entry now have the addresses of this record.
    Followed(Box<LeaseRecord>),
}

impl Table {
    /// Reads the leases of the journal, adopts those whose link still exists, and starts the thread of `events`.
    pub fn open(journal: Journal, flags: Flags, follow: Follow) -> Result<Arc<Self>> {
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
            flags,
            follow,
            own_netns: NetNs::own()?,
            inspected: Condvar::new(),
        });
        table.adopt_all()?;
        let events = Arc::clone(&table);
        Builder::new()
            .spawn(move || events.run())
            .map_err(|error| Error::internal(format_args!("cannot start a thread: {error}")))?;
        Ok(table)
    }

    fn adopt_all(self: &Arc<Self>) -> Result<()> {
        let records = self.journal.read_all()?;
        let mut state = self.state.lock();
        for record in records {
            let key = record.request.key.clone();
            let mut entry = self.entry(record)?;
            entry.is_new = false;
            entry.following = Following::adopted(&entry.record);
            entry.bound = entry.record.is_complete().then(|| apply::success(&entry.record, &[]));
            state.leases.insert(key.clone(), Box::new(entry));
            self.post(&mut state, &key, LeaseEvent::Adopt);
        }
        Ok(())
    }

    fn site<'a>(&'a self, record: &'a LeaseRecord) -> Site<'a> {
        Site { own_netns: &self.own_netns, prefix: &self.flags.hostprefix, record }
    }

    fn entry(&self, record: LeaseRecord) -> Result<LeaseEntry> {
        let clients = Some(Clients::new(&record, &self.flags)?);
        Ok(LeaseEntry {
            record,
            clients,
            events: Vec::new(),
            bound: None,
            number: None,
            answer: Arc::default(),
            is_new: true,
            following: Following::default(),
        })
    }

    /// The longest time that `acquire` takes.
    pub fn limit(&self) -> Duration {
        Duration::from(self.flags.times.resend_timeout) + MARGIN
    }

    /// Returns the result of ADD with the lease of an attachment, and whether the lease is new. Waits until there is one. Two
    /// calls for one attachment share a lease; it is new for the call that requested it.
    pub fn acquire(self: &Arc<Self>, request: &LeaseRequest) -> Result<(Success, bool)> {
        let key = &request.key;
        let deadline = Instant::now() + self.limit();
        let mut state = self.state.lock();
        self.inspected.wait_while(&mut state, |state| state.inspections == INSPECTIONS_MAX);
        state.inspections += 1;
        let new = MutexGuard::unlocked(&mut state, || self.inspect_link(request));
        state.inspections -= 1;
        self.inspected.notify_one();
        let new = new?;
        let (answer, is_new) = loop {
            self.wait_while(&mut state, key, |state| state.is_busy(key))?;
            match state.leases.get(key) {
                Some(entry) if entry.has_same_link(&new.record) => {
                    if let (false, Some(success)) = (entry.is_new, &entry.bound) {
                        return Ok((success.clone(), false));
                    }
                    break (Arc::clone(&entry.answer), false);
                }
                // The lease is for another link than this call: there was no DEL for that link.
                Some(_) => {
                    self.end(&mut state, key, "the interface was replaced by another link")?
                }
                None => {
                    let answer = Arc::clone(&new.answer);
                    state.leases.insert(key.clone(), Box::new(new));
                    self.post(&mut state, key, LeaseEvent::Start);
                    break (answer, true);
                }
            }
        };
        self.changed.wait_while_until(&mut state, |_| answer.get().is_none(), deadline);
        let answer = answer.get().cloned();
        let answer = answer.unwrap_or_else(|| Err(cannot_get(key, "the daemon is too slow")));
        answer.map(|success| (success, is_new))
    }

    /// Makes an entry for the container's link, and sets the link up.
    fn inspect_link(&self, request: &LeaseRequest) -> Result<LeaseEntry> {
        let name = &request.key.at.ifname;
        let netns = self.own_netns.open(&prefixed(&self.flags.hostprefix, &request.netns))?;
        let rtnl = netns.rtnl()?;
        let link = rtnl.link(name)?.ok_or_else(|| cannot_get(&request.key, "it does not exist"))?;
        let mac = link.mac.ok_or_else(|| cannot_get(&request.key, "it has no Ethernet address"))?;
        if !link.up {
            let up = LinkChange { up: Some(true), ..LinkChange::default() };
            rtnl.change_link(link.index, name, &up)?;
        }
        let host = Rtnl::open()?;
        let host_id = rtnl.nsid_of(&self.own_netns).ok().flatten();
        let mut request = request.clone();
        // All ipvlan links have the MAC address of their master, which delivers a frame by the IP address of its packet. A
        // client without an address receives broadcasts only.
        request.settings.broadcast |= link.kind.as_deref() == Some("ipvlan");
        let record = LeaseRecord {
            request,
            netns_id: netns.identity()?,
            ifindex: link.index,
            mac,
            uplink: uplink::of(&host, host_id, &link)?,
            leases: Leases::default(),
            subnets: Vec::new(),
            former_v4: Vec::new(),
            former_v6: Vec::new(),
            is_released: false,
        };
        let number = host.ensure_nsid(&netns, None).ok();
        Ok(LeaseEntry { number, ..self.entry(record)? })
    }

    /// Wakes the thread of `events`, which then reads the table again.
    fn wake(&self) {
        // If this fails, the thread wakes at the next deadline.
        let _ = self.alarm.set(Some(Duration::ZERO));
    }

    /// Fails if the attachment has no lease, or if its link is gone.
    pub fn check(&self, key: &Key) -> Result<()> {
        let cannot = |reason: &str| {
            let Key { network, at: Attachment { ifname, .. } } = key;
            let msg = format!("cannot find a lease for {ifname} in network {network}");
            Error::internal(msg).with_details(reason)
        };
        let state = self.state.lock();
        let entry = state.leases.get(key).ok_or_else(|| cannot("the daemon has none"))?;
        if entry.bound.is_none() {
            return Err(cannot("the lease was lost"));
        }
        let record = entry.record.clone();
        drop(state);
        match self.site(&record).verify() {
            Ok(_) => Ok(()),
            Err(SiteError::Gone(reason)) => Err(cannot(reason)),
            Err(SiteError::Failed(error)) => Err(error),
        }
    }

    /// Releases the lease of an attachment, if it has one. Returns when the lease and its file are removed.
    pub fn release(self: &Arc<Self>, key: &Key) -> Result<()> {
        let mut state = self.state.lock();
        self.end(&mut state, key, RELEASED)?;
        self.remove_file(&mut state, key)
    }

    /// Releases the leases of a network, except those of the attachments in `keep`, and removes their files.
    pub fn retain(self: &Arc<Self>, network: &NetworkName, keep: &[Attachment]) -> Result<()> {
        let is_stale = |key: &Key| key.network == *network && !keep.contains(&key.at);
        let mut state = self.state.lock();
        let stale: Vec<Key> = state.leases.keys().filter(|key| is_stale(key)).cloned().collect();
        for key in &stale {
            self.post(&mut state, key, LeaseEvent::End(RELEASED));
        }
        let is_left = |state: &mut Shared| stale.iter().any(|key| state.has_lease_or_is_busy(key));
        // On timeout, go on: other threads release the remaining leases soon.
        self.changed.wait_while_for(&mut state, is_left, RELEASE_TIMEOUT);
        for record in MutexGuard::unlocked(&mut state, || self.journal.read_all())? {
            let key = &record.request.key;
            if !is_stale(key) {
                continue;
            }
            self.wait_while(&mut state, key, |state| state.is_busy(key))?;
            if !state.leases.contains_key(key) {
                self.remove_file(&mut state, key)?;
            }
        }
        Ok(())
    }

    /// Removes the file of a lease that has no entry: an earlier removal can have failed. An ADD waits meanwhile.
    fn remove_file(&self, state: &mut MutexGuard<'_, Shared>, key: &Key) -> Result<()> {
        state.releasing.push(key.clone());
        let removed = MutexGuard::unlocked(state, || self.journal.remove(key));
        state.releasing.retain(|other| other != key);
        self.changed.notify_all();
        removed
    }

    /// Whether there is no lease, no attempt to get one, and no RELEASE to send.
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.leases.is_empty() && state.releasing.is_empty()
    }

    /// Lists the leases. The text is the state: `searching`, `bound`, `renewing` or `rebinding`.
    pub fn list(&self) -> Vec<Listed> {
        let now = Time::now();
        let is_past = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let listed = |entry: &LeaseEntry| {
            let state = match &entry.record.leases {
                _ if entry.bound.is_none() => "searching",
                leases if is_past(leases.rebind_at()) => "rebinding",
                leases if is_past(leases.renew_at()) => "renewing",
                _ => "bound",
            };
            Listed { record: entry.record.clone(), state }
        };
        self.state.lock().leases.values().map(|entry| listed(entry)).collect()
    }

    /// Releases a lease, if there is one, and waits until it is removed.
    fn end(
        self: &Arc<Self>,
        state: &mut MutexGuard<'_, Shared>,
        key: &Key,
        reason: &'static str,
    ) -> Result<()> {
        self.post(state, key, LeaseEvent::End(reason));
        self.wait_while(state, key, |state| state.has_lease_or_is_busy(key))
    }

    /// Waits while the condition is true. Fails after 5 s.
    fn wait_while(
        &self,
        state: &mut MutexGuard<'_, Shared>,
        key: &Key,
        condition: impl Fn(&Shared) -> bool,
    ) -> Result<()> {
        self.changed.wait_while_for(state, |state| condition(state), RELEASE_TIMEOUT);
        if condition(state) {
            return Err(cannot_get(key, "an earlier lease is still being released"));
        }
        Ok(())
    }
}

impl Shared {
    /// Whether the attachment has a lease, or an earlier lease is still being released.
    fn has_lease_or_is_busy(&self, key: &Key) -> bool {
        self.leases.contains_key(key) || self.is_busy(key)
    }

    /// Whether a lease of the attachment is being released, or the thread of `follower` changes its rules. DEL and GC wait
    /// for both: the cache entry must not be written after them.
    fn is_busy(&self, key: &Key) -> bool {
        self.releasing.contains(key) || self.following.contains(key)
    }
}

impl LeaseEntry {
    fn key(&self) -> &Key {
        &self.record.request.key
    }

    /// The time of the next `Clients::run`. `None` also while a thread handles events of the lease.
    fn deadline(&self) -> Option<Time> {
        self.clients.as_ref()?.deadline()
    }

    /// Whether the entry is for the link of the record.
    fn has_same_link(&self, other: &LeaseRecord) -> bool {
        let link = |record: &LeaseRecord| (record.netns_id, record.ifindex, record.mac);
        link(&self.record) == link(other)
    }
}

const RELEASED: &str = "it was released meanwhile";

fn cannot_get(key: &Key, reason: &str) -> Error {
    let Key { network, at: Attachment { container_id, ifname } } = key;
    Error::internal(format_args!(
        "cannot get a lease for {ifname} of {container_id} in network {network}: {reason}"
    ))
}

/// Writes a line about a lease to stderr.
fn log(key: &Key, text: &str) {
    let Key { network, at: Attachment { container_id, ifname } } = key;
    warn(format_args!("dhcp: {network} {container_id} {ifname}: {text}"));
}

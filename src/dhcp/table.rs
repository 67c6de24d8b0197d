//! The table of the leases of a daemon. Each lease has a thread of its own (`lease_thread`), which alone changes it. The threads
//! of requests read the table, and send events to the threads of leases. No thread holds the lock of the table during a system
//! call that can take long.

mod lease_thread;

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::cni::success::Success;
use crate::dhcp::flags::Flags;
use crate::dhcp::journal::{Journal, LeaseRecord, Listed};
use crate::dhcp::lease::{Key, Leases};
use crate::dhcp::protocol::LeaseRequest;
use crate::dhcp::site::{Site, SiteError};
use crate::dhcp::time::Time;
use crate::dhcp::uplink;
use crate::error::{Code, Error, Result};
use crate::kernel::clock::{self, Alarm};
use crate::kernel::file;
use crate::kernel::netns::NetNs;
use crate::kernel::sys::{self, thread, warn};
use crate::names::{Attachment, NetworkName};
use crate::netlink::rtnl::{End, Ends, LinkChange, Nsid, Rtnl};
use crate::steps::lease_change::Follow;

use lease_thread::LeaseThread;

/// The longest wait until a lease is released.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that an ADD gets in addition to `-resendtimeout`: for the probe of the address, and for a loaded host.
const MARGIN: Duration = Duration::from_secs(15);
/// The name of the thread that reads the reports of the kernel.
const WATCHER: &CStr = c"ends";
/// The pause after a failed wait.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

/// The leases, and what their threads need.
pub struct Table {
    leases: Mutex<Entries>,
    /// Signals an answer, and the end of a lease.
    changed: Condvar,
    journal: Journal,
    flags: Flags,
    /// Changes the rules of the host and the cache entry of an attachment to its new address. One lease at a time: several
    /// writers of nf_tables would only repeat their transactions.
    follow: Mutex<Follow>,
    own_netns: NetNs,
    /// A lease of the journal has no thread, because none could be started: it waits for `adopt`.
    has_waiting: AtomicBool,
}

/// The leases. In boxes: the map has room for twice as many entries.
type Entries = BTreeMap<Key, Box<LeaseEntry>>;

/// A lease, or the attempt to get one, as its thread published it last.
struct LeaseEntry {
    record: LeaseRecord,
    /// The id of the container's namespace (nsid) in the kernel's reports.
    number: Option<Nsid>,
    /// The events that the thread has not handled yet.
    events: Vec<LeaseEvent>,
    /// Wakes the thread. It is set while the table is locked.
    alarm: Arc<Alarm>,
    /// The result of ADD, if each client has a lease; the error, if the lease has ended. Requests wait while it is `None`.
    answer: Arc<Mutex<Option<Result<Success>>>>,
    /// Each request that waits for the lease, or whose answer is not sent yet, has a clone.
    requests: Arc<()>,
    /// A plugin has received the lease.
    is_received: bool,
    /// The thread releases the lease, or will do so next, and then removes the entry. A new lease of the attachment waits.
    is_ending: bool,
}

/// An event of a lease that another thread sends to its thread.
enum LeaseEvent {
    /// The kernel reported an end, or the daemon missed reports: the namespace or the link may be gone. A report alone is no
    /// proof: a later namespace can have the number in it by the time that the daemon reads it.
    Verify,
    /// Release the lease. Requests that wait for it fail with this reason.
    End(&'static str),
}

/// A lease for a request. The lease ends if its answer reaches no plugin: see `Table::answered`.
pub struct Acquired {
    pub success: Success,
    request: Arc<()>,
}

impl Table {
    /// Reads the leases of the journal, and starts their threads and the thread of `watch`.
    pub fn open(journal: Journal, flags: Flags, follow: Follow) -> Result<Arc<Self>> {
        let ends = Ends::subscribe();
        let table = Arc::new(Self {
            leases: Mutex::default(),
            changed: Condvar::new(),
            journal,
            flags,
            follow: Mutex::new(follow),
            own_netns: NetNs::own()?,
            has_waiting: AtomicBool::new(false),
        });
        match ends {
            Ok(ends) => spawn((Arc::clone(&table), ends), |(table, ends)| table.watch(&ends))?,
            // The process lacks a capability: a lease ends when its next packet cannot be sent.
            Err(error) => warn(format_args!("warning: {error}")),
        }
        for error in table.adopt()? {
            warn(format_args!("warning: {error}; the daemon tries again"));
        }
        Ok(table)
    }

    /// Starts a thread for each lease of the journal that has none. Returns the errors of those that have none yet.
    pub fn adopt(self: &Arc<Self>) -> Result<Vec<Error>> {
        // While the table is locked, a lease without an entry has no thread: a thread removes the file before the entry.
        let mut leases = self.leases.lock();
        let mut errors = Vec::new();
        for record in self.journal.read_all()? {
            let key = record.request.key.clone();
            if leases.contains_key(&key) {
                continue;
            }
            // The namespace can exist without its path. Then only its cookie tells its number.
            let number = record.netns_cookie.map(Nsid::of_cookie);
            let adopted = LeaseThread::adopted(self, record);
            let started =
                adopted.and_then(|lease| self.start(&mut leases, lease, number).map(drop));
            errors.extend(started.err().map(|error| error.context(cannot_adopt(&key))));
        }
        self.has_waiting.store(!errors.is_empty(), Relaxed);
        Ok(errors)
    }

    /// Whether a lease of the journal waits for a thread.
    pub fn has_waiting(&self) -> bool {
        self.has_waiting.load(Relaxed)
    }

    /// Lets the threads of leases verify the namespaces and links that the kernel reports as removed. Does not return.
    fn watch(&self, ends: &Ends) {
        thread::set_name(WATCHER);
        loop {
            if let Err(error) = clock::readable(&[ends.as_fd()], None) {
                warn(format_args!("warning: cannot wait for the ends of links: {error}"));
                // Without a pause the loop would use all of a core.
                let _ = clock::readable(&[], Some(FAILED_PAUSE));
            }
            let mut leases = self.leases.lock();
            while let Some(end) = ends.next() {
                let is_about = |entry: &LeaseEntry| match end {
                    End::Namespace(number) => entry.number == Some(number),
                    End::Link(number, index) => {
                        entry.number == Some(number) && entry.record.ifindex == index
                    }
                    End::Unknown => true,
                };
                for entry in leases.values_mut().filter(|entry| is_about(entry)) {
                    entry.post(LeaseEvent::Verify);
                }
            }
        }
    }

    fn site<'a>(&'a self, record: &'a LeaseRecord) -> Site<'a> {
        Site { own_netns: &self.own_netns, prefix: &self.flags.hostprefix, record }
    }

    /// The longest time that `acquire` takes.
    pub fn limit(&self) -> Duration {
        Duration::from(self.flags.times.resend_timeout) + MARGIN
    }

    /// Returns the lease of an attachment. Waits until there is one. Two calls for one attachment share a lease.
    pub fn acquire(self: &Arc<Self>, request: &LeaseRequest) -> Result<Acquired> {
        let key = &request.key;
        let deadline = Instant::now() + self.limit();
        let (new, number) = self.inspect_link(request)?;
        let mut leases = self.leases.lock();
        let (answer, request) = loop {
            self.wait_while(&mut leases, key, |leases| is_ending(leases, key))?;
            match leases.get(key) {
                Some(entry) if new.has_link_of(&entry.record) => {
                    break (Arc::clone(&entry.answer), Arc::clone(&entry.requests));
                }
                // The lease is for another link than this call: there was no DEL for that link.
                Some(_) => {
                    self.end(&mut leases, key, "the interface was replaced by another link")?
                }
                None => {
                    let entry = self.start(&mut leases, new, number)?;
                    break (Arc::clone(&entry.answer), Arc::clone(&entry.requests));
                }
            }
        };
        self.changed.wait_while_until(&mut leases, |_| answer.lock().is_none(), deadline);
        let answer = answer.lock().clone();
        let answer = answer.unwrap_or_else(|| Err(cannot_get(key, "the daemon is too slow")));
        answer.map(|success| Acquired { success, request })
    }

    /// Notes whether a plugin received the answer to `acquire`. Releases the lease if no plugin received it, and no other
    /// request waits for it: the ADD has failed, and the runtime may not call DEL.
    pub fn answered(&self, key: &Key, acquired: Acquired, is_received: bool) -> Result<()> {
        let mut leases = self.leases.lock();
        let is_of = |entry: &LeaseEntry| Arc::ptr_eq(&entry.requests, &acquired.request);
        let Some(entry) = leases.get_mut(key).filter(|entry| is_of(entry)) else { return Ok(()) };
        entry.is_received |= is_received;
        // Drop the clone while the table is locked: the last one of several requests releases the lease. One is of the entry.
        drop(acquired);
        if entry.is_received || Arc::strong_count(&entry.requests) > 1 {
            return Ok(());
        }
        self.end(&mut leases, key, RELEASED)
    }

    /// Starts the thread of a lease.
    fn start<'a>(
        &self,
        leases: &'a mut Entries,
        thread: LeaseThread,
        number: Option<Nsid>,
    ) -> Result<&'a LeaseEntry> {
        let (key, entry) = (thread.key().clone(), thread.entry(number));
        // The thread waits for the lock of the table before it reads its entry.
        spawn(thread, LeaseThread::run)?;
        Ok(leases.entry(key).or_insert_with(|| Box::new(entry)))
    }

    /// Prepares a lease for the container's link, and sets the link up. Also returns the id of its namespace.
    fn inspect_link(
        self: &Arc<Self>,
        request: &LeaseRequest,
    ) -> Result<(LeaseThread, Option<Nsid>)> {
        let name = &request.key.at.ifname;
        let netns = self.own_netns.open(&file::below(&self.flags.hostprefix, &request.netns))?;
        let rtnl = netns.rtnl()?;
        let link = rtnl.link(name)?.ok_or_else(|| cannot_get(&request.key, "it does not exist"))?;
        let mac = link.mac.ok_or_else(|| cannot_get(&request.key, "it has no Ethernet address"))?;
        if !link.up {
            let up = LinkChange { up: Some(true), ..LinkChange::default() };
            rtnl.change_link(link.index, name, &up)?;
        }
        let host = Rtnl::open()?;
        let host_id = rtnl.nsid_of(&self.own_netns)?;
        let mut request = request.clone();
        // All ipvlan links have the MAC address of their master, which delivers a frame by the IP address of its packet. A
        // client without an address receives broadcasts only.
        request.settings.broadcast |= link.kind.as_deref() == Some("ipvlan");
        let record = LeaseRecord {
            request,
            netns_id: netns.identity()?,
            netns_cookie: rtnl.netns_cookie(),
            ifindex: link.index,
            mac,
            uplink: uplink::of(&host, host_id, &link)?,
            leases: Leases::default(),
            subnets: Vec::new(),
            former_v4: Vec::new(),
            former_v6: Vec::new(),
            is_released: false,
        };
        let number = host.ensure_nsid(&netns, record.netns_cookie).ok();
        Ok((LeaseThread::requested(self, record)?, number))
    }

    /// Fails if the attachment has no lease, or if its link is gone.
    pub fn check(&self, key: &Key) -> Result<()> {
        let cannot = |reason: &str| {
            let Key { network, at: Attachment { ifname, .. } } = key;
            let msg = format!("cannot find a lease for {ifname} in network {network}");
            Error::internal(msg).with_details(reason)
        };
        let leases = self.leases.lock();
        let entry = leases.get(key).filter(|entry| !entry.is_ending);
        let entry = entry.ok_or_else(|| cannot("the daemon has none"))?;
        if entry.answer.lock().is_none() {
            return Err(cannot("the lease was lost"));
        }
        let record = entry.record.clone();
        drop(leases);
        match self.site(&record).verify() {
            Ok(_) => Ok(()),
            Err(SiteError::Gone(reason)) => Err(cannot(reason)),
            Err(SiteError::Failed(error)) => Err(error),
        }
    }

    /// Releases the lease of an attachment, if it has one. Returns when the lease and its file are removed.
    pub fn release(&self, key: &Key) -> Result<()> {
        let mut leases = self.leases.lock();
        self.end(&mut leases, key, RELEASED)?;
        // An earlier removal can have failed. The file of a new lease stays; the lock keeps an ADD from writing it meanwhile.
        if leases.contains_key(key) { Ok(()) } else { self.forget(key) }
    }

    /// Releases the leases of a network, except those of the attachments in `keep`, and removes their files.
    pub fn retain(&self, network: &NetworkName, keep: &[Attachment]) -> Result<()> {
        let is_stale = |key: &Key| key.network == *network && !keep.contains(&key.at);
        let mut leases = self.leases.lock();
        let stale = leases.iter_mut().filter(|(key, _)| is_stale(key));
        let ended: Vec<_> = stale.map(|(key, entry)| (key.clone(), entry.end(RELEASED))).collect();
        // On timeout, go on: the threads release the remaining leases soon.
        let is_left =
            |leases: &mut Entries| ended.iter().any(|(key, ended)| ended.is_in(leases, key));
        self.changed.wait_while_for(&mut leases, is_left, RELEASE_TIMEOUT);
        for record in MutexGuard::unlocked(&mut leases, || self.journal.read_all())? {
            let key = &record.request.key;
            if is_stale(key) {
                self.wait_while(&mut leases, key, |leases| is_ending(leases, key))?;
                if !leases.contains_key(key) {
                    self.forget(key)?;
                }
            }
        }
        Ok(())
    }

    /// Removes the file of a lease without a thread. If it can wait for a thread, marks it: its thread sends the RELEASE.
    fn forget(&self, key: &Key) -> Result<()> {
        match self.has_waiting() {
            true => self.journal.mark(key).map(drop),
            false => self.journal.remove(key),
        }
    }

    /// Whether there is no lease, no attempt to get one, and no RELEASE to send.
    pub fn is_idle(&self) -> bool {
        self.leases.lock().is_empty() && !self.has_waiting()
    }

    /// Lists the leases. The text is the state: `searching`, `bound`, `renewing` or `rebinding`.
    pub fn list(&self) -> Vec<Listed> {
        let now = Time::now();
        let is_past = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let listed = |entry: &LeaseEntry| {
            let state = match &entry.record.leases {
                _ if entry.answer.lock().is_none() => "searching",
                leases if is_past(leases.rebind_at()) => "rebinding",
                leases if is_past(leases.renew_at()) => "renewing",
                _ => "bound",
            };
            Listed { record: entry.record.clone(), state }
        };
        let leases = self.leases.lock();
        leases.values().filter(|entry| !entry.is_ending).map(|entry| listed(entry)).collect()
    }

    /// Ends a lease, if there is one, and waits until it is removed.
    fn end(
        &self,
        leases: &mut MutexGuard<'_, Entries>,
        key: &Key,
        reason: &'static str,
    ) -> Result<()> {
        let Some(entry) = leases.get_mut(key) else { return Ok(()) };
        let ended = entry.end(reason);
        self.wait_while(leases, key, |leases| ended.is_in(leases, key))
    }

    /// Waits while the condition is true. Fails after 5 s.
    fn wait_while(
        &self,
        leases: &mut MutexGuard<'_, Entries>,
        key: &Key,
        condition: impl Fn(&Entries) -> bool,
    ) -> Result<()> {
        self.changed.wait_while_for(leases, |leases| condition(leases), RELEASE_TIMEOUT);
        if condition(leases) {
            return Err(cannot_get(key, "an earlier lease is still being released"));
        }
        Ok(())
    }
}

impl LeaseEntry {
    /// Lets the thread release the lease. No request gets the lease any more.
    fn end(&mut self, reason: &'static str) -> Ended {
        self.is_ending = true;
        self.post(LeaseEvent::End(reason));
        Ended(Arc::clone(&self.alarm))
    }

    /// Sends an event to the thread of the lease.
    fn post(&mut self, event: LeaseEvent) {
        self.events.push(event);
        // If this fails, the thread handles the event at its next deadline.
        let _ = self.alarm.set(Some(Duration::ZERO));
    }
}

/// A lease that ends: its alarm, which no other lease of the attachment has.
struct Ended(Arc<Alarm>);

impl Ended {
    fn is_in(&self, entries: &Entries, key: &Key) -> bool {
        entries.get(key).is_some_and(|entry| Arc::ptr_eq(&entry.alarm, &self.0))
    }
}

/// Whether an earlier lease of the attachment is being released.
fn is_ending(leases: &Entries, key: &Key) -> bool {
    leases.get(key).is_some_and(|entry| entry.is_ending)
}

/// The stack of a thread, in bytes. Its pages are used only as far as the calls go.
const STACK_BYTES: usize = 256 * 1024;

/// Starts a thread. Without one, only this call fails, and its client tries again: another lease can end meanwhile.
fn spawn<T: Send + 'static>(argument: T, run: fn(T)) -> Result<()> {
    let failed = sys::failed_with(Code::TRY_AGAIN_LATER, "cannot start a thread");
    thread::spawn(STACK_BYTES, argument, run).map_err(|(_, error)| failed(error))
}

const RELEASED: &str = "it was released meanwhile";

fn cannot_adopt(key: &Key) -> String {
    let Key { network, at: Attachment { container_id, ifname } } = key;
    format!("cannot adopt the lease of {ifname} of {container_id} in network {network}")
}

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

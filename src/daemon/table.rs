//! The table of the leases of a daemon. Each lease has an entry, and a thread of its own (`lease_thread`), which alone changes the
//! record in the entry. The threads of requests read the entries, and end leases. No thread holds the lock of the table or of an
//! entry during a system call that can take long.

mod lease_thread;

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::cni::success::{Ip, Success};
use crate::dhcp::apply;
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
use crate::runtime::Runtime;

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
    journal: Journal,
    flags: Flags,
    /// Changes the rules of the host and the cache entry of an attachment to its new address. One lease at a time: several
    /// writers of nf_tables would only repeat their transactions.
    host: Mutex<Runtime>,
    own_netns: NetNs,
    /// A lease of the journal has no thread, because none could be started: it waits for `adopt`.
    has_waiting: AtomicBool,
}

type Entries = BTreeMap<Key, Arc<LeaseEntry>>;

/// A lease, or the attempt to get one.
struct LeaseEntry {
    key: Key,
    /// Wakes the thread at its next deadline, and after another thread has changed the state.
    alarm: Alarm,
    state: Mutex<LeaseState>,
    /// Signals a change of the phase.
    changed: Condvar,
}

struct LeaseState {
    /// Only the thread of the lease changes it.
    record: Arc<LeaseRecord>,
    /// The id of the container's namespace (nsid) in the kernel's reports.
    number: Option<Nsid>,
    phase: Phase,
    /// The kernel reported an end, or the daemon missed reports: the namespace or the link may be gone. A report alone is no
    /// proof: a later namespace can have the number in it by the time that the daemon reads it.
    must_verify: bool,
    /// The number of `Waiter`s, and of plugins that have received the lease. The thread releases a lease without holders: its
    /// ADD has failed, and the runtime may not call DEL.
    holders: usize,
}

enum Phase {
    /// A client has no lease. Requests wait.
    Searching,
    /// Each client has a lease; SLAAC has these addresses.
    Bound(Vec<Ip>),
    /// The thread releases the lease, or will do so next. Requests wait: the RELEASE is sent through the link, which an ADD that
    /// fails removes.
    Ending(Error),
    /// The file and the entry are removed. The error is the answer of the requests.
    Ended(Error),
}

/// A request that waits for a lease, or whose answer is not sent yet.
pub struct Waiter(Arc<LeaseEntry>);

impl Table {
    /// Reads the leases of the journal, and starts their threads and the thread of `watch`.
    pub fn open(journal: Journal, flags: Flags, host: Runtime) -> Result<Arc<Self>> {
        let ends = Ends::subscribe();
        let table = Arc::new(Self {
            leases: Mutex::default(),
            journal,
            flags,
            host: Mutex::new(host),
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
            let adopted = LeaseThread::adopted(self, record);
            let started = adopted.and_then(|lease| start(&mut leases, lease));
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
            let leases = self.leases.lock();
            while let Some(end) = ends.next() {
                let is_about = |state: &LeaseState| match end {
                    End::Namespace(number) => state.number == Some(number),
                    End::Link(number, index) => {
                        state.number == Some(number) && state.record.ifindex == index
                    }
                    End::Unknown => true,
                };
                for entry in leases.values() {
                    let mut state = entry.state.lock();
                    if is_about(&state) {
                        state.must_verify = true;
                        entry.wake();
                    }
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

    /// Returns the lease of an attachment. Waits until there is one. Two calls for one attachment share a lease. The lease ends
    /// if the waiter is dropped before a plugin has received it.
    pub fn acquire(self: &Arc<Self>, request: &LeaseRequest) -> Result<(Success, Waiter)> {
        let deadline = Instant::now() + self.limit();
        let record = self.inspect_link(request)?;
        let waiter = loop {
            let mut leases = self.leases.lock();
            let Some(entry) = leases.get(&request.key).map(Arc::clone) else {
                let lease = LeaseThread::requested(self, record)?;
                let waiter = Waiter::new(&lease.entry, &mut lease.entry.state.lock());
                start(&mut leases, lease)?;
                break waiter;
            };
            drop(leases);
            let mut state = entry.state.lock();
            if !state.is_ending() && state.record.has_link_of(&record) {
                break Waiter::new(&entry, &mut state);
            }
            drop(state);
            // If the lease is not ending already: it is for another link than this call, and there was no DEL for that link.
            end(&[entry], "the interface was replaced by another link")?;
        };
        waiter.wait(deadline).map(|success| (success, waiter))
    }

    /// Makes the record of a new lease for the container's link, and sets the link up.
    fn inspect_link(&self, request: &LeaseRequest) -> Result<LeaseRecord> {
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
        Ok(LeaseRecord {
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
        })
    }

    /// Fails if the attachment has no lease, or if its link is gone.
    pub fn check(&self, key: &Key) -> Result<()> {
        let cannot = |reason: &str| {
            let Key { network, at: Attachment { ifname, .. } } = key;
            let msg = format!("cannot find a lease for {ifname} in network {network}");
            Error::internal(msg).with_details(reason)
        };
        let entry = self.find(key).ok_or_else(|| cannot("the daemon has none"))?;
        match entry.state.lock().phase {
            Phase::Bound(_) => {}
            Phase::Searching => return Err(cannot("the lease was lost")),
            Phase::Ending(_) | Phase::Ended(_) => return Err(cannot("the daemon has none")),
        }
        let record = entry.record();
        match self.site(&record).verify() {
            Ok(_) => Ok(()),
            Err(SiteError::Gone(reason)) => Err(cannot(reason)),
            Err(SiteError::Failed(error)) => Err(error),
        }
    }

    fn find(&self, key: &Key) -> Option<Arc<LeaseEntry>> {
        self.leases.lock().get(key).map(Arc::clone)
    }

    /// Releases the lease of an attachment, if it has one. Returns when the lease and its file are removed.
    pub fn release(&self, key: &Key) -> Result<()> {
        end(self.find(key).as_slice(), RELEASED)?;
        self.forget(key)
    }

    /// Releases the leases of a network, except those of the attachments in `keep`, and removes their files.
    pub fn retain(&self, network: &NetworkName, keep: &[Attachment]) -> Result<()> {
        let is_stale = |key: &Key| key.network == *network && !keep.contains(&key.at);
        let mut stale: Vec<Arc<LeaseEntry>> = self.leases.lock().values().map(Arc::clone).collect();
        stale.retain(|entry| is_stale(&entry.key));
        let ended = end(&stale, RELEASED);
        for record in self.journal.read_all()? {
            let key = &record.request.key;
            if is_stale(key) {
                self.forget(key)?;
            }
        }
        ended
    }

    /// Removes the file of a lease without a thread: an earlier removal can have failed. If the lease can wait for a thread,
    /// marks it: its thread sends the RELEASE. The file of a lease with a thread stays.
    fn forget(&self, key: &Key) -> Result<()> {
        // The lock keeps an ADD from writing the file of a new lease meanwhile.
        let leases = self.leases.lock();
        match self.has_waiting() {
            _ if leases.contains_key(key) => Ok(()),
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
        let listed = |entry: &Arc<LeaseEntry>| {
            let state = entry.state.lock();
            let name = match (&state.phase, &state.record.leases) {
                (Phase::Ending(_) | Phase::Ended(_), _) => return None,
                (Phase::Searching, _) => "searching",
                (_, leases) if is_past(leases.rebind_at()) => "rebinding",
                (_, leases) if is_past(leases.renew_at()) => "renewing",
                _ => "bound",
            };
            Some(Listed { record: LeaseRecord::clone(&state.record), state: name })
        };
        self.leases.lock().values().filter_map(listed).collect()
    }
}

/// Starts the thread of a lease, and adds its entry. Until then the lock of the table keeps the thread from removing it.
fn start(leases: &mut Entries, lease: LeaseThread) -> Result<()> {
    let entry = Arc::clone(&lease.entry);
    spawn(lease, LeaseThread::run)?;
    leases.insert(entry.key.clone(), entry);
    Ok(())
}

/// Ends leases, and waits until their files and entries are removed. Fails after 5 s.
fn end(entries: &[Arc<LeaseEntry>], reason: &str) -> Result<()> {
    for entry in entries {
        entry.state.lock().end(cannot_get(&entry.key, reason));
        entry.wake();
    }
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    entries.iter().try_for_each(|entry| {
        let is_left = |state: &mut LeaseState| !matches!(state.phase, Phase::Ended(_));
        let mut state = entry.state.lock();
        entry.changed.wait_while_until(&mut state, is_left, deadline);
        match is_left(&mut state) {
            true => Err(cannot_get(&entry.key, "an earlier lease is still being released")),
            false => Ok(()),
        }
    })
}

impl LeaseState {
    fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending(_) | Phase::Ended(_))
    }

    /// Ends the lease, if it is not ending already.
    fn end(&mut self, error: Error) {
        if !self.is_ending() {
            self.phase = Phase::Ending(error);
        }
    }
}

impl LeaseEntry {
    fn record(&self) -> Arc<LeaseRecord> {
        Arc::clone(&self.state.lock().record)
    }

    /// Lets the thread see that the state was changed.
    fn wake(&self) {
        // If this fails, the thread sees it at its next deadline.
        let _ = self.alarm.set(Some(Duration::ZERO));
    }
}

impl Waiter {
    fn new(entry: &Arc<LeaseEntry>, state: &mut LeaseState) -> Self {
        state.holders += 1;
        Self(Arc::clone(entry))
    }

    /// Waits for the result of ADD.
    fn wait(&self, deadline: Instant) -> Result<Success> {
        let Self(entry) = self;
        let mut state = entry.state.lock();
        let waits =
            |state: &mut LeaseState| matches!(state.phase, Phase::Searching | Phase::Ending(_));
        entry.changed.wait_while_until(&mut state, waits, deadline);
        match &state.phase {
            Phase::Bound(slaac) => Ok(apply::success(&state.record, slaac)),
            Phase::Ended(error) => Err(error.clone()),
            _ => Err(cannot_get(&entry.key, "the daemon is too slow")),
        }
    }

    /// Notes that a plugin received the lease.
    pub fn received(&self) {
        self.0.state.lock().holders += 1;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.state.lock().holders -= 1;
        self.0.wake();
    }
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

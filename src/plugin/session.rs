//! The session of a call: the container's namespace, a netlink socket on the host, one in the container, and one for
//! nf_tables. Each socket is opened once, when it is first needed. The plugins of a chain can share a session.

use std::cell::{Cell, OnceCell, RefCell};
use std::mem;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::attachments::life;
use crate::attachments::record::{self, Begun, Made, Record, Records, Replaced};
use crate::cni::request::{Request, Verb};
use crate::error::{Code, Error, Result};
use crate::kernel::flock::Turns;
use crate::kernel::identity::Identity;
use crate::kernel::netns::NetNs;
use crate::kernel::sys;
use crate::names::{Attachment, NetworkName};
use crate::netlink::nft::{self, Nft};
use crate::netlink::rtnl::{Link, Rtnl};

/// The container's network namespace.
enum Namespace {
    /// CNI_NETNS is empty, or the verb is not about a container.
    NotGiven,
    /// The path does not exist, or is not a namespace any more.
    Gone(Error),
    /// The path leads to another namespace than that of the record, or to that of this process.
    Another(Error),
    /// The path can lead to another namespace than that of the record, which is unknown.
    PerhapsAnother(Error),
    /// The path cannot be opened; the namespace may exist.
    Unusable(Error),
    Open(NetNs),
}

/// A function that reads the rules and adds changes to the batch.
type Build = Box<dyn FnMut(&Nft, &mut nft::Batch) -> Result<()>>;

/// The changes of one plugin to nf_tables, until the session is committed.
struct PendingChange {
    plugin: String,
    build: Build,
    /// Called after the transaction has succeeded.
    then: Box<dyn FnOnce() -> Result<()>>,
}

/// The sockets and the pending changes of a call.
pub struct Session {
    namespace: Namespace,
    host: OnceCell<Rtnl>,
    host_netns: OnceCell<NetNs>,
    container: OnceCell<Rtnl>,
    pending: RefCell<Vec<PendingChange>>,
    /// Links of the host that the session deletes at its end.
    links: RefCell<Vec<Link>>,
    turns: Arc<Turns>,
    /// The timeout of a plugin that is executed as a process. `None`: no timeout.
    pub limit: Option<Duration>,
    /// The caller writes the record of the attachment, so the plugins write none.
    pub is_recorded: bool,
    /// A plugin of this `reconcile` has compared the record of the attachment with its present namespace.
    pub is_renewed: Cell<bool>,
    /// The record that the ADD of this session has written.
    pub(super) begun: RefCell<Option<Begun>>,
    /// The record of the attachment of a DEL or CHECK, read before the plugin runs.
    record: OnceCell<Result<Option<Record>>>,
    /// The ADD repeats one that may have succeeded, of a container that may live. If it fails, the addresses stay: they can be those
    /// of the earlier ADD.
    pub is_repeated: Cell<bool>,
    /// The node may have orphans, and no file lists them: see `record::orphans`.
    pub is_unlisted: Cell<bool>,
    /// The record that the ADD has replaced, of an attachment that had ended.
    ended_before: OnceCell<Replaced>,
    refused: RefCell<Vec<IpAddr>>,
    has_nf_tables: OnceCell<bool>,
    /// The last field, so that it is closed last. After a transaction that deletes objects, close(2) waits until the kernel has
    /// freed them; the kernel frees them while the session removes links.
    nft: OnceCell<Nft>,
}

impl Session {
    /// A session for the container of a request. An ADD is refused (code 8) if CNI_NETNS is the namespace of this process: it
    /// would change the host. A DEL treats this namespace as one that does not exist, see `host_namespace_of_del`.
    pub fn open(request: &Request, verb: &Verb) -> Result<Self> {
        let mut session = Self::without_container();
        if let (Verb::Add(_) | Verb::Del(_) | Verb::Check(_), Some(path)) =
            (verb, &request.parameters.netns_path)
        {
            let host = session.host_netns()?;
            session.namespace = match host.open_if_exists(path) {
                Ok(Some(netns)) => {
                    let is_own = !request.parameters.netns_override && netns.is(host)?;
                    match verb {
                        Verb::Add(_) if is_own => return Err(same_netns(verb, &netns)),
                        Verb::Del(at) if is_own => {
                            session.host_namespace_of_del(request, at, &netns)?
                        }
                        _ => session.namespace_of(request, verb, netns)?,
                    }
                }
                Ok(None) => {
                    let msg = format!("failed to open netns {path:?}: no such file or directory");
                    // Not code 3 (unknown container), after which a runtime need not call DEL: an earlier plugin of the chain,
                    // or an earlier ADD, may have left reservations, links and rules.
                    Namespace::Gone(Error::internal(msg))
                }
                Err(error) => {
                    let reason = sys::reason(&error);
                    let msg = format!("failed to open netns {path:?}: {reason}");
                    Namespace::Unusable(Error::internal(msg))
                }
            };
        }
        Ok(session)
    }

    /// The namespace of a DEL whose CNI_NETNS is the namespace of this process, for example because the runtime has lost the
    /// process of the container, and another process has its id now. It is never the namespace of the container. Fails (code 8)
    /// if the recorded namespace still exists: its DEL needs the right path.
    fn host_namespace_of_del(
        &self,
        request: &Request,
        at: &Attachment,
        netns: &NetNs,
    ) -> Result<Namespace> {
        let record = self.record.get_or_init(|| Records::of_host().read(&request.network, at));
        if let Ok(Some(record)) = record
            && life::is_alive(record)?
        {
            return Err(same_netns(&Verb::Del(at.clone()), netns));
        }
        sys::warn(format_args!(
            "{}: {} is the network namespace of the plugin itself, so only what is outside of the container is removed",
            request.conf.kind,
            netns.path().display()
        ));
        Ok(of_another(netns))
    }

    /// The namespace at the path of a call. Later than the ADD, the path can lead to the namespace of another container. A CHECK
    /// fails if this is unknown.
    fn namespace_of(&self, request: &Request, verb: &Verb, netns: NetNs) -> Result<Namespace> {
        let (Verb::Del(at) | Verb::Check(at)) = verb else { return Ok(Namespace::Open(netns)) };
        let read = || Records::of_host().read(&request.network, at);
        let compared = match self.record.get_or_init(read) {
            Ok(None) => return Ok(Namespace::Open(netns)),
            Ok(Some(record)) => self.is_of_another(record, request, &netns),
            Err(error) => Err(error.clone()),
        };
        Self::compared(compared, request, verb, netns)
    }

    /// The namespace at the path of a call. `is_of_another` tells whether it is another one than that of the record.
    fn compared(
        is_of_another: Result<bool>,
        request: &Request,
        verb: &Verb,
        netns: NetNs,
    ) -> Result<Namespace> {
        match is_of_another {
            Ok(false) => Ok(Namespace::Open(netns)),
            Ok(true) => Ok(of_another(&netns)),
            Err(error) => match verb {
                Verb::Del(at) => Self::namespace_by_interface(request, at, netns, error),
                _ => Err(error),
            },
        }
    }

    fn is_of_another(&self, record: &Record, request: &Request, netns: &NetNs) -> Result<bool> {
        record::is_of_another(record, request, netns, self.host()?)
    }

    /// The namespace of a DEL whose record cannot tell whether it is that of the ADD, because of `error`.
    fn namespace_by_interface(
        request: &Request,
        at: &Attachment,
        netns: NetNs,
        error: Error,
    ) -> Result<Namespace> {
        let made = Made::of(&request.prev_result().ok().flatten().unwrap_or_default());
        let is_in_it =
            netns.rtnl().and_then(|rtnl| life::is_attached_in(&rtnl, &request.network, at, &made));
        match is_in_it {
            Ok(Some(true)) => Ok(Namespace::Open(netns)),
            // The next DEL can perhaps read the record. It needs the saved state, which a DEL without a namespace removes.
            Ok(None) if error.code == Code::IO => Err(error),
            Ok(Some(false) | None) => {
                sys::warn(format_args!(
                    "{}: left what is in {}, which can be the namespace of another container: {error}",
                    request.conf.kind,
                    netns.path().display()
                ));
                Ok(Namespace::PerhapsAnother(other_namespace(&netns)))
            }
            Err(error) => Ok(Namespace::Unusable(error)),
        }
    }

    /// Returns the session of an attachment that exists. Its path can lead to the namespace of another container by now; then the
    /// session has no namespace.
    pub fn of_recorded(mut self, record: &Record, request: &Request, verb: &Verb) -> Self {
        self.namespace = match mem::replace(&mut self.namespace, Namespace::NotGiven) {
            Namespace::Open(netns) => {
                let is_of_another = self.is_of_another(record, request, &netns);
                Self::compared(is_of_another, request, verb, netns)
                    .unwrap_or_else(Namespace::Unusable)
            }
            other => other,
        };
        self
    }

    /// Keeps the record of the attachment for `record`.
    pub(super) fn keep_record(&self, record: Record) {
        let _ = self.record.set(Ok(Some(record)));
    }

    /// The record of an attachment: as `keep_record` got it, for a DEL or CHECK as it was when the session was opened, else as it is
    /// now.
    pub fn record(&self, network: &NetworkName, at: &Attachment) -> Result<Option<Record>> {
        let read = || Records::of_host().read(network, at);
        self.record.get().map_or_else(read, Clone::clone)
    }

    /// Notes addresses that an IPAM plugin has given to this ADD, and of which somebody on the link has one.
    pub fn note_refused(&self, addresses: &[IpAddr]) {
        self.refused.borrow_mut().extend_from_slice(addresses);
    }

    /// The addresses of `note_refused`.
    pub fn refused(&self) -> Vec<IpAddr> {
        self.refused.borrow().clone()
    }

    /// Notes that the ADD of this session has replaced the record of an attachment that had ended.
    pub(super) fn note_ended_before(&self, record: Replaced) {
        let _ = self.ended_before.set(record);
    }

    /// The record that the ADD of this session has replaced, if its attachment had ended.
    pub fn ended_before(&self) -> Option<&Replaced> {
        self.ended_before.get()
    }

    /// Whether a DEL comes too late: its path leads to another namespace than that of the record, whose attachment lives. The DEL is
    /// that of an earlier container of the same id.
    pub(super) fn is_of_successor(&self, request: &Request) -> Result<bool> {
        let Some(Ok(Some(record))) = self.record.get() else { return Ok(false) };
        let is_elsewhere = match &self.namespace {
            Namespace::Another(_) => true,
            // `prevResult` is not that of the record.
            Namespace::Open(netns) if !record::is_of_result(record, request) => {
                let now = Identity::of(netns.rtnl()?.netns_cookie());
                record.identity.is_another(&now)
            }
            _ => false,
        };
        Ok(is_elsewhere && life::is_alive(record)?)
    }

    /// A session without a container.
    pub fn without_container() -> Self {
        Self {
            namespace: Namespace::NotGiven,
            host: OnceCell::new(),
            host_netns: OnceCell::new(),
            container: OnceCell::new(),
            pending: RefCell::default(),
            links: RefCell::default(),
            turns: Arc::default(),
            limit: None,
            is_recorded: false,
            is_renewed: Cell::new(false),
            begun: RefCell::default(),
            record: OnceCell::new(),
            is_repeated: Cell::new(false),
            is_unlisted: Cell::new(false),
            ended_before: OnceCell::new(),
            refused: RefCell::default(),
            has_nf_tables: OnceCell::new(),
            nft: OnceCell::new(),
        }
    }

    /// Returns the session with these queues for file locks. The sessions of several threads share one `turns`.
    pub fn sharing(self, turns: Arc<Turns>) -> Self {
        Self { turns, ..self }
    }

    /// Returns the session with a timeout, for a runtime: an executed plugin is killed after this time.
    pub fn limited_to(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Returns the session for a runtime that writes the record of the attachment itself: the plugins write none.
    pub fn recorded(self) -> Self {
        Self { is_recorded: true, ..self }
    }

    /// The queues in which the threads of this process wait for the locks of files.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// The rtnetlink socket in the host's namespace.
    pub fn host(&self) -> Result<&Rtnl> {
        once(&self.host, Rtnl::open)
    }

    /// The host's namespace.
    pub fn host_netns(&self) -> Result<&NetNs> {
        once(&self.host_netns, || self.host()?.netns())
    }

    /// The rtnetlink socket in the container's namespace.
    pub fn container(&self) -> Result<&Rtnl> {
        once(&self.container, || self.required_netns()?.rtnl())
    }

    /// The nf_tables socket on the host.
    pub fn nft(&self) -> Result<&Nft> {
        once(&self.nft, || Ok(Nft::open()?))
    }

    /// The nf_tables socket; None if the kernel lacks netlink for netfilter (nfnetlink). With nfnetlink the kernel can still
    /// lack nf_tables.
    pub fn nft_if_any(&self) -> Result<Option<&Nft>> {
        match self.nft.get() {
            None => Ok(Nft::open_if_any()?.map(|nft| self.nft.get_or_init(|| nft))),
            opened => Ok(opened),
        }
    }

    /// The nf_tables socket; None if the kernel lacks nf_tables, so that no rule can exist.
    pub fn nft_if_supported(&self) -> Result<Option<&Nft>> {
        let Some(nft) = self.nft_if_any()? else { return Ok(None) };
        let is_supported = *once(&self.has_nf_tables, || Ok(nft.is_supported()?))?;
        Ok(is_supported.then_some(nft))
    }

    /// See `Context::defer`.
    pub(super) fn defer(
        &self,
        plugin: &str,
        build: impl FnMut(&Nft, &mut nft::Batch) -> Result<()> + 'static,
        then: impl FnOnce() -> Result<()> + 'static,
    ) {
        let change =
            PendingChange { plugin: plugin.into(), build: Box::new(build), then: Box::new(then) };
        self.pending.borrow_mut().push(change);
    }

    /// Commits all pending changes of nf_tables in one transaction. If it fails, commits the changes of each plugin in a
    /// separate transaction, and the error names the plugins that fail. Then deletes the links of `delete_link_later`. The
    /// caller that opened the session calls this at the end.
    pub fn commit(&self) -> Result<()> {
        match (self.commit_after(&|| Ok(())), self.delete_links(Vec::new())) {
            (Err(first), Err(second)) => Err(first.also(&second)),
            (committed, deleted) => committed.and(deleted),
        }
    }

    /// Deletes a link of the host later, together with the links of the other plugins in one request: the kernel waits once for
    /// all.
    pub fn delete_link_later(&self, link: Link) {
        self.links.borrow_mut().push(link);
    }

    /// Deletes these links of the host, and the links that were passed to `delete_link_later`.
    pub fn delete_links(&self, links: Vec<Link>) -> Result<()> {
        let mut all = self.links.take();
        all.extend(links);
        if all.is_empty() { Ok(()) } else { self.host()?.del_links(&all) }
    }

    /// Commits the pending changes of nf_tables. If the transaction has changes, calls `before` before it, and again if it is
    /// repeated. A session can be committed several times.
    pub fn commit_after(&self, before: &dyn Fn() -> Result<()>) -> Result<()> {
        let mut pending = self.pending.take();
        if pending.is_empty() {
            return Ok(());
        }
        let Some(nft) = self.nft_if_supported()? else { return Ok(()) };
        let together = nft.transact_on_tables(|nft, batch| {
            pending.iter_mut().try_for_each(|change| (change.build)(nft, batch))?;
            if batch.is_empty() { Ok(()) } else { before() }
        });
        let has_several = pending.len() > 1;
        let mut errors = Vec::new();
        for PendingChange { plugin, mut build, then } in pending {
            let committed = match &together {
                Err(_) if has_several => nft.transact_on_tables(&mut build),
                together => together.clone(),
            };
            let result = committed.and_then(|()| then());
            errors.extend(result.err().map(|error| {
                if has_several {
                    error.context(format!("cannot remove the rules of {plugin}"))
                } else {
                    error
                }
            }));
        }
        Error::joined(errors)
    }

    /// The container's namespace for a DEL, and the error if it exists but cannot be opened.
    pub fn netns_of_del(&self) -> (Option<&NetNs>, Option<&Error>) {
        match &self.namespace {
            Namespace::Open(netns) => (Some(netns), None),
            Namespace::NotGiven
            | Namespace::Gone(_)
            | Namespace::Another(_)
            | Namespace::PerhapsAnother(_) => (None, None),
            Namespace::Unusable(error) => (None, Some(error)),
        }
    }

    /// CNI_NETNS for a plugin that this call executes. `None` if the path leads to another namespace than the container's.
    pub fn netns_to_pass_on<'a>(&self, request: &'a Request) -> Option<&'a Path> {
        match &self.namespace {
            Namespace::Another(_) | Namespace::PerhapsAnother(_) => None,
            _ => request.parameters.netns_path.as_deref(),
        }
    }

    /// The container's namespace. Fails if it is not open.
    pub fn required_netns(&self) -> Result<&NetNs> {
        match &self.namespace {
            Namespace::Open(netns) => Ok(netns),
            Namespace::Gone(error)
            | Namespace::Another(error)
            | Namespace::PerhapsAnother(error)
            | Namespace::Unusable(error) => Err(error.clone()),
            Namespace::NotGiven => Err(Error::internal("failed to open netns: CNI_NETNS is empty")),
        }
    }
}

fn of_another(netns: &NetNs) -> Namespace {
    Namespace::Another(other_namespace(netns))
}

fn other_namespace(netns: &NetNs) -> Error {
    let path = netns.path();
    Error::internal(format!("{path:?} is another network namespace than at the ADD"))
}

fn same_netns(verb: &Verb, netns: &NetNs) -> Error {
    let (verb, path) = (verb.name(), netns.path().display());
    let msg = format!("cannot {verb} {path}: it is the network namespace of the plugin itself");
    Error::new(Code::SAME_NETNS, msg)
        .with_details("the container's namespace (CNI_NETNS) must be another one")
}

/// The value of the cell. `open` makes the value at the first call.
fn once<T>(cell: &OnceCell<T>, open: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(opened) = cell.get() {
        return Ok(opened);
    }
    let opened = open()?;
    Ok(cell.get_or_init(|| opened))
}

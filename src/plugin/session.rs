//! What a call opens: the container's namespace, a socket on the host and one in the container, and a conversation with
//! nf_tables. Each is opened once, when it is first needed; the plugins of a chain share them.

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use crate::cni::request::{Request, Verb};
use crate::error::{Code, Error, Result};
use crate::kernel::flock::Turns;
use crate::kernel::netns::NetNs;
use crate::kernel::nft::{self, Nft};
use crate::kernel::rtnl::Rtnl;

/// The container's network namespace, as far as there is one.
enum Namespace {
    /// CNI_NETNS is empty, or the verb is not about a container.
    NotGiven,
    /// There is nothing at its path, or something that is no namespace (any more).
    Gone(Error),
    /// It may well be there, but cannot be opened.
    Unusable(Error),
    Open(NetNs),
}

/// Looks at what is there, and puts what has to be done into the batch.
type Build = Box<dyn FnMut(&Nft, &mut nft::Batch) -> Result<()>>;

/// A part of the transaction in nf_tables that a DEL or GC makes.
struct Part {
    plugin: String,
    build: Build,
    /// What can be done only when the changes are made.
    then: Box<dyn FnOnce() -> Result<()>>,
}

/// See the head of this file.
pub struct Session {
    namespace: Namespace,
    host: OnceCell<Rtnl>,
    host_netns: OnceCell<NetNs>,
    container: OnceCell<Rtnl>,
    parts: RefCell<Vec<Part>>,
    turns: Arc<Turns>,
    has_nf_tables: OnceCell<bool>,
    /// The last field, so it is closed last: after a transaction that deletes, closing waits for the kernel, which does
    /// that work while a link is removed.
    nft: OnceCell<Nft>,
}

impl Session {
    /// A session for the container that a request names, if the verb is about one. Our own namespace is refused (code 8)
    /// before anything is touched: an ADD or DEL there would change the host.
    pub fn open(request: &Request, verb: &Verb) -> Result<Self> {
        let mut session = Self::without_container();
        if let (Verb::Add(_) | Verb::Del(_) | Verb::Check(_), Some(path)) =
            (verb, &request.netns_path)
        {
            let host = session.host_netns()?;
            session.namespace = match host.open_if_exists(path) {
                Ok(Some(netns)) => {
                    let is_check = matches!(verb, Verb::Check(_));
                    if !is_check && !request.netns_override && netns.is(host)? {
                        return Err(same_netns(verb, &netns));
                    }
                    Namespace::Open(netns)
                }
                Ok(None) => {
                    let msg = format!("failed to open netns {path:?}: no such file or directory");
                    // Not code 3, which tells runtimes that no DEL is needed: an earlier plugin of the chain, or an
                    // earlier ADD, may have left reservations, links and rules.
                    Namespace::Gone(Error::internal(msg))
                }
                Err(error) => Namespace::Unusable(error),
            };
        }
        Ok(session)
    }

    /// A session that is about no container.
    pub fn without_container() -> Self {
        Self {
            namespace: Namespace::NotGiven,
            host: OnceCell::new(),
            host_netns: OnceCell::new(),
            container: OnceCell::new(),
            parts: RefCell::default(),
            turns: Arc::default(),
            has_nf_tables: OnceCell::new(),
            nft: OnceCell::new(),
        }
    }

    /// The same session, for one of several threads that share these turns: they queue for the locks of files.
    pub fn sharing(self, turns: Arc<Turns>) -> Self {
        Self { turns, ..self }
    }

    /// Where the threads of this process queue for the locks of files.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Links, addresses and routes of the host.
    pub fn host(&self) -> Result<&Rtnl> {
        once(&self.host, Rtnl::open)
    }

    /// The host's namespace.
    pub fn host_netns(&self) -> Result<&NetNs> {
        once(&self.host_netns, || self.host()?.home())
    }

    /// Links, addresses and routes of the container.
    pub fn container(&self) -> Result<&Rtnl> {
        once(&self.container, || self.required_netns()?.rtnl())
    }

    /// The host's nf_tables.
    pub fn nft(&self) -> Result<&Nft> {
        once(&self.nft, || Ok(Nft::open()?))
    }

    /// The same; None where the kernel has no netlink for netfilter. It may have no nf_tables all the same.
    pub fn nft_if_any(&self) -> Result<Option<&Nft>> {
        if self.nft.get().is_none() {
            match Nft::open_if_any()? {
                Some(nft) => return Ok(Some(self.nft.get_or_init(|| nft))),
                None => return Ok(None),
            }
        }
        Ok(self.nft.get())
    }

    /// The same; None where the kernel has no nf_tables, so that there is nothing to remove.
    pub fn nft_if_supported(&self) -> Result<Option<&Nft>> {
        let Some(nft) = self.nft_if_any()? else { return Ok(None) };
        let is_supported = *once(&self.has_nf_tables, || Ok(nft.is_supported()?))?;
        Ok(is_supported.then_some(nft))
    }

    /// See `Context::later`.
    pub(super) fn later(
        &self,
        plugin: &str,
        build: impl FnMut(&Nft, &mut nft::Batch) -> Result<()> + 'static,
        then: impl FnOnce() -> Result<()> + 'static,
    ) {
        let part = Part { plugin: plugin.into(), build: Box::new(build), then: Box::new(then) };
        self.parts.borrow_mut().push(part);
    }

    /// Makes all changes to nf_tables that wait, in one transaction. If that fails, each plugin's part gets one of its own,
    /// and the error names the plugins whose parts fail. The caller that opened the session calls this at its end.
    pub fn settle(&self) -> Result<()> {
        self.settle_after(&|| Ok(()))
    }

    /// The same; if there is anything to change, `before` is called first. It may be called several times.
    pub fn settle_after(&self, before: &dyn Fn() -> Result<()>) -> Result<()> {
        let mut parts = self.parts.take();
        if parts.is_empty() {
            return Ok(());
        }
        let Some(nft) = self.nft_if_supported()? else { return Ok(()) };
        let shared = nft.transact(|nft, batch| {
            parts.iter_mut().try_for_each(|part| (part.build)(nft, batch))?;
            if batch.is_empty() { Ok(()) } else { before() }
        });
        let is_shared = parts.len() > 1;
        let mut errors = Vec::new();
        for Part { plugin, mut build, then } in parts {
            let own = match &shared {
                Err(_) if is_shared => nft.transact(&mut build),
                shared => shared.clone(),
            };
            let result = own.and_then(|()| then());
            errors.extend(result.err().map(|error| {
                if is_shared {
                    error.context(format!("cannot remove the rules of {plugin}"))
                } else {
                    error
                }
            }));
        }
        let errors = errors.into_iter();
        errors.reduce(|first, error| first.also(&error)).map_or(Ok(()), Err)
    }

    /// The container's namespace for a DEL, and why there is none although there may be.
    pub fn netns_of_del(&self) -> (Option<&NetNs>, Option<&Error>) {
        match &self.namespace {
            Namespace::Open(netns) => (Some(netns), None),
            Namespace::NotGiven | Namespace::Gone(_) => (None, None),
            Namespace::Unusable(error) => (None, Some(error)),
        }
    }

    /// The container's namespace, which has to be there.
    pub fn required_netns(&self) -> Result<&NetNs> {
        match &self.namespace {
            Namespace::Open(netns) => Ok(netns),
            Namespace::Gone(error) | Namespace::Unusable(error) => Err(error.clone()),
            Namespace::NotGiven => Err(Error::internal("failed to open netns: CNI_NETNS is empty")),
        }
    }
}

fn same_netns(verb: &Verb, netns: &NetNs) -> Error {
    let (verb, path) = (verb.name(), netns.path().display());
    let msg = format!("cannot {verb} {path}: it is the network namespace of the plugin itself");
    Error::new(Code::SAME_NETNS, msg)
        .with_details("the container's namespace (CNI_NETNS) must be another one")
}

/// What the cell has; if that is nothing yet, what `open` returns.
fn once<T>(cell: &OnceCell<T>, open: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(opened) = cell.get() {
        return Ok(opened);
    }
    let opened = open()?;
    Ok(cell.get_or_init(|| opened))
}

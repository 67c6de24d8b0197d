//! What a plugin is: its own configuration, plus one method per CNI verb.

use serde::de::DeserializeOwned;

use crate::cni::request::{Request, Verb};
use crate::cni::success::Success;
use crate::error::{Code, Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::Attachment;

/// The release of the reference plugins that we are compatible with, then our own; runtimes compare the first part.
pub const VERSION: &str = concat!("v1.9.1+cnibox.", env!("CARGO_PKG_VERSION"));

/// A plugin that makes or changes an interface. `self` is the configuration, read from stdin.
///
/// No default methods: the compiler asks five questions, and "nothing outlives the namespace" is a fine answer.
pub trait Plugin: DeserializeOwned {
    /// All or nothing: on an error everything that was done has been taken back.
    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success>;
    /// Goes on past errors and reports them at the end. What is not there is removed already. `netns` is None when
    /// the runtime names none, or when it is gone.
    fn del(&self, cx: &Context<'_>, at: &Attachment, netns: Option<&NetNs>) -> Result<()>;
    /// Fails when something that `add` made is missing or different.
    fn check(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<()>;
    /// Removes what belongs to this network and to none of `keep`.
    fn gc(&self, cx: &Context<'_>, keep: &[Attachment]) -> Result<()>;
    /// Fails with code 50 when an `add` could not succeed.
    fn status(&self, cx: &Context<'_>) -> Result<()>;
}

/// A plugin that only manages addresses. It gets no namespace, so it cannot touch the kernel, and works for callers
/// that have none yet.
pub trait Ipam: DeserializeOwned {
    fn add(&self, cx: &Context<'_>, at: &Attachment) -> Result<Success>;
    fn del(&self, cx: &Context<'_>, at: &Attachment) -> Result<()>;
    fn check(&self, cx: &Context<'_>, at: &Attachment) -> Result<()>;
    fn gc(&self, cx: &Context<'_>, keep: &[Attachment]) -> Result<()>;
    fn status(&self, cx: &Context<'_>) -> Result<()>;
}

/// A line of the table of plugins.
pub struct Entry {
    pub name: &'static str,
    /// One sentence for `cnibox --list-full` and the README.
    pub about: &'static str,
    pub run: fn(&Context<'_>, &Verb) -> Result<Option<Success>>,
}

/// What a plugin may look at besides its own configuration.
pub struct Context<'a> {
    pub request: &'a Request,
    pub namespace: &'a Namespace,
    /// All plugins, for those that delegate to another.
    pub plugins: &'static [Entry],
}

/// The container's network namespace, as far as there is one.
pub enum Namespace {
    /// CNI_NETNS is empty, or the verb is not about a container.
    NotGiven,
    /// There is nothing at its path, or something that is no namespace (any more).
    Gone(Error),
    /// It may well be there, but cannot be opened.
    Unusable(Error),
    Open(NetNs),
}

impl Namespace {
    /// Opens the container's namespace, and refuses (code 8) to work on our own one, before anything is touched: an ADD
    /// or DEL there would change the host.
    pub fn of(request: &Request) -> Result<Self> {
        let (Verb::Add(_) | Verb::Del(_) | Verb::Check(_), Some(path)) =
            (&request.verb, &request.netns_path)
        else {
            return Ok(Self::NotGiven);
        };
        let netns = match NetNs::open_if_exists(path) {
            Ok(Some(netns)) => netns,
            Ok(None) => {
                let path = path.display();
                let msg =
                    format!("cannot open network namespace {path}: no such file or directory");
                return Ok(Self::Gone(Error::new(Code::UNKNOWN_CONTAINER, msg)));
            }
            Err(error) => return Ok(Self::Unusable(error)),
        };
        let is_check = matches!(request.verb, Verb::Check(_));
        if !is_check && !request.netns_override && netns.is(&NetNs::own()?)? {
            let (verb, path) = (request.verb.name(), path.display());
            return Err(Error::new(
                Code::SAME_NETNS,
                format!("cannot {verb} {path}: it is the network namespace of the plugin itself"),
            )
            .with_details("the container's namespace (CNI_NETNS) must be another one"));
        }
        Ok(Self::Open(netns))
    }

    fn required(&self) -> Result<&NetNs> {
        match self {
            Self::Open(netns) => Ok(netns),
            Self::Gone(error) | Self::Unusable(error) => Err(error.clone()),
            Self::NotGiven => {
                Err(Error::internal("cannot open network namespace: CNI_NETNS is empty"))
            }
        }
    }
}

/// The entry of an interface plugin.
pub const fn entry<P: Plugin>(name: &'static str, about: &'static str) -> Entry {
    Entry { name, about, run: run::<P> }
}

/// The entry of an IPAM plugin.
pub const fn ipam_entry<P: Ipam>(name: &'static str, about: &'static str) -> Entry {
    Entry { name, about, run: run_ipam::<P> }
}

fn run<P: Plugin>(cx: &Context<'_>, verb: &Verb) -> Result<Option<Success>> {
    let plugin: P = cx.request.json.read("network configuration")?;
    match verb {
        Verb::Add(at) => return plugin.add(cx, at, cx.namespace.required()?).map(Some),
        Verb::Del(at) => match cx.namespace {
            Namespace::Open(netns) => plugin.del(cx, at, Some(netns))?,
            Namespace::NotGiven | Namespace::Gone(_) => plugin.del(cx, at, None)?,
            Namespace::Unusable(error) => {
                // What is outside of the namespace can be released all the same.
                plugin.del(cx, at, None)?;
                return Err(error.clone());
            }
        },
        Verb::Check(at) => plugin.check(cx, at, cx.namespace.required()?)?,
        Verb::Gc(keep) => plugin.gc(cx, keep)?,
        Verb::Status => plugin.status(cx)?,
    }
    Ok(None)
}

fn run_ipam<P: Ipam>(cx: &Context<'_>, verb: &Verb) -> Result<Option<Success>> {
    let plugin: P = cx.request.json.read("network configuration")?;
    match verb {
        Verb::Add(at) => return plugin.add(cx, at).map(Some),
        Verb::Del(at) => plugin.del(cx, at)?,
        Verb::Check(at) => plugin.check(cx, at)?,
        Verb::Gc(keep) => plugin.gc(cx, keep)?,
        Verb::Status => plugin.status(cx)?,
    }
    Ok(None)
}

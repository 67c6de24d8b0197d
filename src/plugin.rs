//! What a plugin is: its own configuration, and what the CNI verbs ask of it.

pub mod execute;
pub mod owner;
mod session;

use std::fmt::Display;

use serde::de::DeserializeOwned;

use crate::cni::request::{Request, Verb};
use crate::cni::success::Success;
use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::kernel::nft::{Batch, Nft};
use crate::kernel::sys;
use crate::names::Attachment;

pub use session::Session;

/// The release of the reference plugins that we are compatible with, then our own; runtimes compare the first part.
pub const VERSION: &str = concat!("v1.9.1+cnibox.", env!("CARGO_PKG_VERSION"));

/// A plugin that makes or changes an interface. `self` is the configuration, read from stdin.
///
/// No default methods: the compiler asks each question, and "nothing outlives the namespace" is a fine answer.
///
/// There is none that restores what others removed. Everything that an ADD makes beside its link is made by a
/// step that looks first and adds what is missing. For a chained plugin, ADD itself is that step: called again for a
/// living attachment, with the same previous result, it restores. `bridge` and `veth` call theirs from ADD.
pub trait Plugin: DeserializeOwned {
    /// How the reference's message begins when it cannot read the configuration.
    const UNREADABLE: &'static str;

    /// Fails when the configuration is wrong, whatever is in the container. Asked when the container's namespace cannot be
    /// opened: a wrong configuration is said to be wrong all the same.
    fn examine(&self, cx: &Context<'_>, at: &Attachment) -> Result<()>;
    /// All or nothing: on an error everything that was done has been taken back.
    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success>;
    /// Fails when something that `add` made is missing or different.
    fn check(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<()>;
    /// Fails with code 50 when an `add` could not succeed.
    fn status(&self, cx: &Context<'_>) -> Result<()>;
    /// DEL and GC: removes what belongs to the network and the scope. It is found by its owner, whatever the
    /// configuration says today. Goes on past errors and reports them at the end. What is not there is removed already.
    /// `netns` is None for GC, when the runtime names none, and when it is gone.
    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()>;
}

/// A plugin that only manages addresses. It gets no namespace, so it cannot touch the kernel, and works for callers
/// that have none yet.
pub trait Ipam: DeserializeOwned {
    fn add(&self, cx: &Context<'_>, at: &Attachment) -> Result<Success>;
    fn check(&self, cx: &Context<'_>, at: &Attachment) -> Result<()>;
    fn status(&self, cx: &Context<'_>) -> Result<()>;
    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>) -> Result<()>;
}

/// What of a network is removed.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// DEL: what belongs to this attachment.
    One(&'a Attachment),
    /// GC: what belongs to none of these.
    AllExcept(&'a [Attachment]),
}

impl<'a> Scope<'a> {
    /// The one attachment of a DEL.
    pub fn one(self) -> Option<&'a Attachment> {
        match self {
            Self::One(at) => Some(at),
            Self::AllExcept(_) => None,
        }
    }

    /// The verb that removes it, for a delegate.
    pub fn verb(self) -> Verb {
        match self {
            Self::One(at) => Verb::Del(at.clone()),
            Self::AllExcept(keep) => Verb::Gc(keep.to_vec()),
        }
    }
}

/// A line of the table of plugins.
pub struct Entry {
    pub name: &'static str,
    /// One sentence for `cnibox --list-full` and the README.
    pub about: &'static str,
    /// It only manages addresses.
    pub is_ipam: bool,
    /// It is an IPAM plugin that talks through the interface, which has to be there before the addresses and go after
    /// them.
    pub needs_link: bool,
    pub run: fn(&Context<'_>, &Verb) -> Result<Option<Success>>,
}

impl Entry {
    /// A whole call: runs the plugin, then makes the changes to nf_tables that wait.
    pub fn call(&self, cx: &Context<'_>, verb: &Verb) -> Result<Option<Success>> {
        match ((self.run)(cx, verb), cx.session.settle()) {
            (Err(first), Err(second)) => Err(first.also(&second)),
            (result, settled) => settled.and(result),
        }
    }
}

/// One call of a plugin on a session, which the plugins of a chain share.
pub struct Context<'a> {
    pub request: &'a Request,
    pub session: &'a Session,
    /// All plugins, for those that delegate to another.
    pub plugins: &'static [Entry],
}

impl Context<'_> {
    /// Says something that is no reason to fail, in one line on stderr.
    pub fn warn(&self, text: impl Display) {
        sys::warn(&format!("{}: {text}", self.request.conf.kind));
    }

    /// Adds changes to nf_tables to the one transaction that ends a DEL or GC, see `Session::settle`. `build` looks at what
    /// is there and puts what has to be done into the batch; it is called again when another process changed something in
    /// between. `then` is called when the changes are made.
    pub fn later(
        &self,
        build: impl FnMut(&Nft, &mut Batch) -> Result<()> + 'static,
        then: impl FnOnce() -> Result<()> + 'static,
    ) {
        self.session.later(&self.request.conf.kind, build, then);
    }
}

/// The entry of an interface plugin.
pub const fn entry<P: Plugin>(name: &'static str, about: &'static str) -> Entry {
    Entry { name, about, is_ipam: false, needs_link: false, run: run::<P> }
}

/// The entry of an IPAM plugin.
pub const fn ipam_entry<P: Ipam>(name: &'static str, about: &'static str) -> Entry {
    Entry { name, about, is_ipam: true, needs_link: false, run: run_ipam::<P> }
}

fn run<P: Plugin>(cx: &Context<'_>, verb: &Verb) -> Result<Option<Success>> {
    let plugin: P = configuration(cx, verb).map_err(|error| error.in_front(P::UNREADABLE))?;
    let netns = |at| {
        let netns = cx.session.required_netns();
        netns.or_else(|error| plugin.examine(cx, at).and(Err(error)))
    };
    match verb {
        Verb::Add(at) => return plugin.add(cx, at, netns(at)?).map(Some),
        Verb::Check(at) => plugin.check(cx, at, netns(at)?)?,
        Verb::Status => plugin.status(cx)?,
        // What is outside of a namespace that cannot be opened is released all the same.
        Verb::Del(at) => {
            let (netns, unusable) = cx.session.netns_of_del();
            plugin.clean(cx, Scope::One(at), netns)?;
            unusable.map_or(Ok(()), |error| Err(error.clone()))?;
        }
        Verb::Gc(keep) => plugin.clean(cx, Scope::AllExcept(keep), None)?,
    }
    Ok(None)
}

fn run_ipam<P: Ipam>(cx: &Context<'_>, verb: &Verb) -> Result<Option<Success>> {
    let plugin: P = configuration(cx, verb)?;
    match verb {
        Verb::Add(at) => return plugin.add(cx, at).map(Some),
        Verb::Check(at) => plugin.check(cx, at)?,
        Verb::Status => plugin.status(cx)?,
        Verb::Del(at) => plugin.clean(cx, Scope::One(at))?,
        Verb::Gc(keep) => plugin.clean(cx, Scope::AllExcept(keep))?,
    }
    Ok(None)
}

/// ADD, CHECK and STATUS read all keys or fail. DEL and GC do without a key that cannot be read, and say so: a mistake in
/// the configuration must not keep anything from being removed.
fn configuration<P: DeserializeOwned>(cx: &Context<'_>, verb: &Verb) -> Result<P> {
    let json = &cx.request.json;
    match verb {
        Verb::Add(_) | Verb::Check(_) | Verb::Status => json.read(CONFIGURATION),
        Verb::Del(_) | Verb::Gc(_) => {
            let (plugin, dropped) = json.read_or_drop(CONFIGURATION)?;
            dropped.iter().for_each(|error| cx.warn(error));
            Ok(plugin)
        }
    }
}

const CONFIGURATION: &str = "network configuration";

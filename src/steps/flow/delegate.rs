//! Calls another plugin for a part of the work, as a rule the IPAM plugin of `ipam.type`.

use crate::cni::request::Verb;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::names::Attachment;
use crate::plugin::execute::{Program, execute};
use crate::plugin::{Context, Scope};
use crate::steps::flow::undo::Undo;

/// Asks the IPAM plugin, if the network has one, for addresses; they are given back if the caller fails.
pub fn add_ipam<'a>(
    cx: &'a Context<'a>,
    at: &'a Attachment,
    undo: &mut Undo<'a>,
) -> Result<Success> {
    let kind = cx.request.conf.ipam.kind.as_str();
    if kind.is_empty() {
        return Ok(Success::default());
    }
    require_ipam(cx)?;
    let success = add(cx, kind, at).map_err(|failed| failed.error)?;
    undo.push("give the address back", || clean_ipam(cx, Scope::One(at)));
    if success.ips.is_empty() {
        return Err(Error::internal("IPAM plugin returned missing IP config"));
    }
    // Interfaces are not its business, and our indexes start at our own.
    Ok(Success { interfaces: Vec::new(), ..success })
}

/// An ADD that failed.
pub struct Failed {
    pub error: Error,
    /// Otherwise it may have left something behind, and a later DEL has to try again.
    pub is_taken_back: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, is_taken_back: true }
    }
}

/// Asks the plugin `kind` to ADD. What a failed ADD has done is taken back, if that is possible.
pub fn add(cx: &Context<'_>, kind: &str, at: &Attachment) -> Result<Success, Failed> {
    let delegate = Delegate::find(cx, kind)?;
    let error = match delegate.call(cx, &Verb::Add(at.clone())) {
        Ok(added) => return Ok(added.unwrap_or_default()),
        Err(error) => error,
    };
    // A plugin of ours takes back what it did. Of others the specification says that DEL has to follow.
    let is_taken_back = match &delegate.0 {
        Program::Ours(_) => true,
        Program::Executable(_) => match delegate.call(cx, &Verb::Del(at.clone())) {
            Ok(_) => true,
            Err(error) => {
                cx.warn(format_args!("cannot take back the failed ADD of plugin {kind}: {error}"));
                false
            }
        },
    };
    Err(Failed { error, is_taken_back })
}

/// Asks the plugin `kind` for anything but ADD.
pub fn call(cx: &Context<'_>, kind: &str, verb: &Verb) -> Result<()> {
    let delegate = match (Delegate::find(cx, kind), verb) {
        (Err(error), Verb::Status) => return Err(error.into_not_available()),
        (found, _) => found?,
    };
    delegate.call(cx, verb).map(drop)
}

/// DEL and GC of the IPAM plugin, if the network has one.
pub fn clean_ipam(cx: &Context<'_>, scope: Scope<'_>) -> Result<()> {
    call_ipam(cx, &scope.verb())
}

/// Fails if the network has an IPAM plugin that cannot be one, or is not found.
pub fn examine(cx: &Context<'_>) -> Result<()> {
    match cx.request.conf.ipam.kind.as_str() {
        "" => Ok(()),
        kind => require_ipam(cx).and_then(|()| Delegate::find(cx, kind).map(drop)),
    }
}

/// Whether the IPAM plugin talks through the interface. Ours declare it; of executed ones it is known by name. (The
/// reference's dhcp tries again after three seconds where it finds the interface down.)
pub fn ipam_needs_link(cx: &Context<'_>) -> bool {
    let kind = cx.request.conf.ipam.kind.as_str();
    let ours = cx.plugins.iter().find(|entry| entry.name == kind);
    ours.is_some_and(|entry| entry.needs_link) || EXECUTED_THAT_NEED_LINK.contains(&kind)
}

/// Asks the IPAM plugin, if the network has one, for anything but ADD.
pub fn call_ipam(cx: &Context<'_>, verb: &Verb) -> Result<()> {
    match cx.request.conf.ipam.kind.as_str() {
        "" => Ok(()),
        kind => require_ipam(cx).and_then(|()| call(cx, kind, verb)),
    }
}

/// An interface plugin of ours as IPAM plugin would delegate to itself, without end.
fn require_ipam(cx: &Context<'_>) -> Result<()> {
    let kind = cx.request.conf.ipam.kind.as_str();
    match cx.plugins.iter().find(|entry| entry.name == kind) {
        Some(entry) if !entry.is_ipam => {
            Err(Error::config(format!("ipam.type: {kind} is not an IPAM plugin")))
        }
        _ => Ok(()),
    }
}

const EXECUTED_THAT_NEED_LINK: [&str; 1] = ["dhcp"];

/// What is behind the type of a plugin.
struct Delegate(Program);

impl Delegate {
    fn find(cx: &Context<'_>, kind: &str) -> Result<Self> {
        Program::find(kind, &cx.request.path, cx.plugins).map(Self)
    }

    fn call(&self, cx: &Context<'_>, verb: &Verb) -> Result<Option<Success>> {
        match &self.0 {
            Program::Ours(entry) => (entry.run)(cx, verb),
            Program::Executable(path) => execute(path, cx.request, verb, cx.session.limit()),
        }
    }
}

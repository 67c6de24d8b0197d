//! Calls delegates: usually the IPAM plugin of `ipam.type`.

use crate::cni::request::{Parameters, Verb};
use crate::cni::success::Success;
use crate::error::{Code, Error, Result};
use crate::kernel::sys;
use crate::names::Attachment;
use crate::plugin::claim;
use crate::plugin::execute::{Program, execute};
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Expected, Scope};
use crate::steps::orphans;
use crate::steps::undo::Undo;

/// Calls ADD of the IPAM plugin, if the network has one; `undo` releases the addresses, unless the container may have them from an
/// earlier ADD. If `link` is given, claims the addresses on that link of the node, and fails if another container has one of them on
/// the link.
pub fn add_ipam<'a>(
    cx: &'a Context<'a>,
    at: &'a Attachment,
    link: Option<&str>,
    undo: &mut Undo<'a>,
) -> Result<Success> {
    let Some(kind) = ipam(cx)? else { return Ok(Success::default()) };
    let mut success = add(cx, kind, at).map_err(|failed| failed.error)?;
    if !cx.session.is_repeated.get() {
        undo.push("release the addresses", || clean_ipam(cx, Scope::One(at)));
    }
    if success.ips.is_empty() {
        return Err(Error::internal("IPAM plugin returned missing IP config"));
    }
    if let Some(link) = link {
        let mut refused = None;
        for _ in 0..ADDRESSES_MAX {
            let Err(error) = take(cx, at, link, &success) else {
                refused = None;
                break;
            };
            refused.get_or_insert(error);
            let before: Vec<_> = success.ips.iter().map(|ip| ip.address.addr()).collect();
            if kind != GIVES_THE_NEXT || cx.session.is_repeated.get() {
                break;
            }
            cx.session.note_refused(&before);
            clean_ipam(cx, Scope::One(at))?;
            let Ok(next) = add(cx, kind, at) else { break };
            success = next;
            // A requested address.
            if success.ips.iter().any(|ip| before.contains(&ip.address.addr())) {
                break;
            }
        }
        refused.map_or(Ok(()), Err)?;
    }
    // The indexes in the result of ADD refer to the interfaces of the calling plugin.
    Ok(Success { interfaces: Vec::new(), ..success })
}

/// The IPAM plugin that gives another address to each ADD. If somebody on the link has an address, it is asked for the next one.
const GIVES_THE_NEXT: &str = "host-local";
const ADDRESSES_MAX: usize = 8;

/// Takes the addresses of an ADD on a link. Fails if another container on the link has one of them.
fn take(cx: &Context<'_>, at: &Attachment, link: &str, success: &Success) -> Result<()> {
    claim::claim(cx, at, link, success)?;
    orphans::take_over(cx, at, link, success)
}

/// The error of a delegate's ADD.
pub struct DelegateFailure {
    pub error: Error,
    /// False if the delegate may have left objects that only a later DEL removes.
    pub is_undone: bool,
}

impl From<Error> for DelegateFailure {
    fn from(error: Error) -> Self {
        Self { error, is_undone: true }
    }
}

/// Calls ADD of the plugin `kind`. If ADD fails and the plugin is in another executable, calls its DEL.
pub fn add(cx: &Context<'_>, kind: &str, at: &Attachment) -> Result<Success, DelegateFailure> {
    let program = find(cx, kind)?;
    let error = match run(&program, cx, &Verb::Add(at.clone())) {
        Ok(added) => return Ok(added.unwrap_or_default()),
        Err(error) => error,
    };
    // The plugins of this executable undo a failed ADD themselves. For other executables the specification requires a DEL.
    let undo = || match run(&program, cx, &Verb::Del(at.clone())) {
        Ok(_) => Ok(true),
        Err(error) => Err(format!("cannot undo the failed ADD of plugin {kind}: {error}")),
    };
    // That DEL would also remove what an earlier ADD of a living container has got.
    let leaves_nothing = matches!(program, Program::Ours(_)) || cx.session.is_repeated.get();
    let is_undone = leaves_nothing || cx.or_warn(sys::despite_interrupt(undo));
    Err(DelegateFailure { error, is_undone })
}

/// Calls the plugin `kind` with any verb except ADD.
pub fn call(cx: &Context<'_>, kind: &str, verb: &Verb) -> Result<()> {
    let program = match (find(cx, kind), verb) {
        (Err(error), Verb::Status) => return Err(error.into_not_available()),
        (found, _) => found?,
    };
    run(&program, cx, verb).map(drop)
}

/// Passes the parts of the plugin `kind` to `parts`, if it is one of this executable.
pub fn reconcile(cx: &Context<'_>, kind: &str, at: &Attachment, parts: &mut Parts) -> Result<()> {
    match find(cx, kind)? {
        Program::Ours(entry) => entry.reconcile(cx, at, parts),
        Program::Executable(_) => {
            parts.skip_foreign(kind);
            Ok(())
        }
    }
}

/// DEL and GC: removes the claims, and calls DEL or GC of the IPAM plugin, if the network has one.
pub fn clean_ipam(cx: &Context<'_>, scope: Scope<'_>) -> Result<()> {
    // Release the claims first: after the DEL of the IPAM plugin, another container can get an address immediately.
    claim::release(cx, scope)?;
    if let Scope::Each(all) = scope
        && let Some(kind) = ipam(cx)?
        && let Program::Ours(entry) = find(cx, kind)?
    {
        return entry.remove_ended(cx, all);
    }
    Error::joined(scope.verbs().iter().filter_map(|verb| call_ipam(cx, verb).err()).collect())
}

/// Fails if `ipam.type` names a plugin that does not exist or is no IPAM plugin, or if an IPAM plugin of this executable
/// finds the configuration wrong. Its STATUS examines the configuration; the state of the host does not matter here.
pub fn examine(cx: &Context<'_>) -> Result<()> {
    let Some(kind) = ipam(cx)? else { return Ok(()) };
    match find(cx, kind)? {
        Program::Ours(entry) => match entry.run(cx, &Verb::Status) {
            Err(error) if [Code::DECODE, Code::INVALID_CONFIG].contains(&error.code) => Err(error),
            _ => Ok(()),
        },
        Program::Executable(_) => Ok(()),
    }
}

/// The addresses that every attachment gets from the IPAM plugin. Empty for a plugin in another executable, because they are
/// unknown.
pub fn expected(cx: &Context<'_>) -> Result<Expected> {
    let kind = cx.request.conf.ipam.kind.as_str();
    match find(cx, kind) {
        Ok(Program::Ours(entry)) => entry.expected(cx),
        Ok(Program::Executable(_)) | Err(_) => Ok(Expected::default()),
    }
}

/// Whether the IPAM plugin sends packets on the interface, so that it needs the interface up. The plugins of this executable
/// declare it; other executables are known by name. The reference's dhcp retries after three seconds if the interface is down.
pub fn ipam_needs_link(cx: &Context<'_>) -> bool {
    let kind = cx.request.conf.ipam.kind.as_str();
    let ours = cx.plugins.iter().find(|entry| entry.name == kind);
    ours.is_some_and(|entry| entry.needs_link) || EXECUTED_THAT_NEED_LINK.contains(&kind)
}

/// Calls the IPAM plugin with any verb except ADD, if the network has an IPAM plugin.
pub fn call_ipam(cx: &Context<'_>, verb: &Verb) -> Result<()> {
    ipam(cx)?.map_or(Ok(()), |kind| call(cx, kind, verb))
}

/// The name of the IPAM plugin. `None` if the network has none. Fails if it is the name of an interface plugin of this
/// executable, which would call itself without end.
fn ipam<'a>(cx: &'a Context<'_>) -> Result<Option<&'a str>> {
    let kind = cx.request.conf.ipam.kind.as_str();
    match cx.plugins.iter().find(|entry| entry.name == kind) {
        Some(entry) if !entry.is_ipam => {
            Err(Error::config(format_args!("ipam.type: {kind} is not an IPAM plugin")))
        }
        _ => Ok(Some(kind).filter(|kind| !kind.is_empty())),
    }
}

/// IPAM plugins in other executables that need the interface up. For IPAM plugins of this executable the table of plugins has
/// `needs_link`.
const EXECUTED_THAT_NEED_LINK: [&str; 1] = ["dhcp"];

/// The program of a plugin that this plugin calls.
fn find(cx: &Context<'_>, kind: &str) -> Result<Program> {
    let Parameters { path, makers, .. } = &cx.request.parameters;
    Program::find(kind, makers, path, cx.plugins)
}

fn run(program: &Program, cx: &Context<'_>, verb: &Verb) -> Result<Option<Success>> {
    match program {
        Program::Ours(entry) => entry.run(cx, verb),
        Program::Executable(path) => {
            let netns = cx.session.netns_to_pass_on(cx.request);
            execute(path, (cx.request, netns), verb, cx.session.limit)
        }
    }
}

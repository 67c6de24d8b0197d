//! Calls delegates: usually the IPAM plugin of `ipam.type`.
//!
//! The delegate is looked up on CNI_PATH, as the specification says, so another implementation there has priority. If the
//! file is this executable, or if there is no file and this executable has the plugin, the call is a function call, without
//! a process.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde::Deserialize;

use crate::cni::json::Json;
use crate::cni::request::{Request, Verb};
use crate::cni::success::Success;
use crate::cni::version;
use crate::error::{Code, Error, Result};
use crate::fault;
use crate::kernel::sys;
use crate::names::Attachment;
use crate::plugin::{Context, Entry, Scope};
use crate::steps::flow::undo::Undo;

/// The kernel does not start an executable that is open for writing, for example while an installer replaces it. libcni has
/// the same number of attempts and the same pause.
const BUSY_ATTEMPTS_MAX: u32 = 6;
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// ADD of the IPAM plugin, if the network has one. `undo` releases the addresses.
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
    undo.push("release the addresses", || clean_ipam(cx, Scope::One(at)));
    if success.ips.is_empty() {
        return Err(Error::internal("IPAM plugin returned missing IP config"));
    }
    // The indexes in the result of ADD refer to the interfaces of the calling plugin.
    Ok(Success { interfaces: Vec::new(), ..success })
}

/// An ADD that failed.
pub struct Failed {
    pub error: Error,
    /// False if the delegate may have left something that only a later DEL removes.
    pub is_taken_back: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, is_taken_back: true }
    }
}

/// ADD of the plugin `kind`. If it fails, its DEL follows where the specification asks for it.
pub fn add(cx: &Context<'_>, kind: &str, at: &Attachment) -> Result<Success, Failed> {
    let delegate = Delegate::find(cx, kind)?;
    let error = match delegate.call(cx, &Verb::Add(at.clone())) {
        Ok(added) => return Ok(added.unwrap_or_default()),
        Err(error) => error,
    };
    // The plugins of this executable undo a failed ADD themselves. For all others the specification requires a DEL.
    let is_taken_back = match delegate {
        Delegate::Ours(_) => true,
        Delegate::Executable(_) => match delegate.call(cx, &Verb::Del(at.clone())) {
            Ok(_) => true,
            Err(error) => {
                cx.warn(format_args!("cannot undo the failed ADD of plugin {kind}: {error}"));
                false
            }
        },
    };
    Err(Failed { error, is_taken_back })
}

/// Any verb except ADD of the plugin `kind`.
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

/// Fails if `ipam.type` names a plugin that does not exist or is no IPAM plugin.
pub fn examine(cx: &Context<'_>) -> Result<()> {
    match cx.request.conf.ipam.kind.as_str() {
        "" => Ok(()),
        kind => require_ipam(cx).and_then(|()| Delegate::find(cx, kind).map(drop)),
    }
}

/// Whether the IPAM plugin sends packets on the interface, so that it needs the interface up. The plugins of this executable
/// declare it; other executables are known by name. The reference's dhcp retries after three seconds if the interface is down.
pub fn ipam_needs_link(cx: &Context<'_>) -> bool {
    let kind = cx.request.conf.ipam.kind.as_str();
    let ours = cx.plugins.iter().find(|entry| entry.name == kind);
    ours.is_some_and(|entry| entry.needs_link) || EXECUTED_THAT_NEED_LINK.contains(&kind)
}

/// Any verb except ADD of the IPAM plugin, if the network has one.
pub fn call_ipam(cx: &Context<'_>, verb: &Verb) -> Result<()> {
    match cx.request.conf.ipam.kind.as_str() {
        "" => Ok(()),
        kind => require_ipam(cx).and_then(|()| call(cx, kind, verb)),
    }
}

/// Fails if `ipam.type` names an interface plugin of this executable, which would call itself without end.
fn require_ipam(cx: &Context<'_>) -> Result<()> {
    let kind = cx.request.conf.ipam.kind.as_str();
    match cx.plugins.iter().find(|entry| entry.name == kind) {
        Some(entry) if !entry.is_ipam => {
            Err(Error::config(format!("ipam.type: {kind} is not an IPAM plugin")))
        }
        _ => Ok(()),
    }
}

/// The maximum depth of delegates that run as processes. CNIBOX_DEPTH counts it.
const DEPTH_MAX: u32 = 8;
const EXECUTED_THAT_NEED_LINK: [&str; 1] = ["dhcp"];

enum Delegate {
    Ours(&'static Entry),
    Executable(PathBuf),
}

impl Delegate {
    fn find(cx: &Context<'_>, kind: &str) -> Result<Self> {
        if kind.is_empty() {
            return Err(Error::config("no plugin name provided"));
        }
        // A path would start any program of the host (CVE-2021-20206).
        if kind.contains('/') || kind == "." || kind == ".." {
            return Err(Error::config(format!("invalid plugin name: {kind}")));
        }
        let ours = cx.plugins.iter().find(|entry| entry.name == kind);
        let path = &cx.request.path;
        for candidate in path.iter().map(|directory| directory.join(kind)) {
            let Ok(found) = fs::metadata(&candidate) else { continue };
            if found.is_file() {
                return Ok(match ours {
                    Some(entry) if sys::is_own_executable(&found) => Self::Ours(entry),
                    _ => Self::Executable(candidate),
                });
            }
        }
        ours.map(Self::Ours).ok_or_else(|| {
            if path.is_empty() {
                return Error::config("no paths provided")
                    .with_details(format!("failed to find plugin {kind:?}: CNI_PATH is empty"));
            }
            Error::config(format!("failed to find plugin {kind:?} in path {path:?}"))
        })
    }

    fn call(&self, cx: &Context<'_>, verb: &Verb) -> Result<Option<Success>> {
        match self {
            Self::Ours(entry) => (entry.run)(cx, verb),
            Self::Executable(path) => execute(path, cx.request, verb),
        }
    }
}

/// Runs the delegate with the environment of this process, the CNI_ variables of the request, and the unchanged bytes of
/// stdin.
fn execute(path: &Path, request: &Request, verb: &Verb) -> Result<Option<Success>> {
    let failed = |error: io::Error| {
        Error::internal(format!("cannot run plugin {}: {error}", path.display()))
    };
    if request.depth >= DEPTH_MAX {
        let msg =
            format!("cannot run plugin {}: too many plugins call one another", path.display());
        return Err(Error::config(msg).with_details(format!("the limit is {DEPTH_MAX}")));
    }
    let mut child = spawn(path, request, verb).map_err(failed)?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(&request.stdin));
    let output = child.wait_with_output().map_err(failed)?;
    match written {
        // A plugin may exit without reading its configuration, for example on DEL.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(failed(error)),
        _ => {}
    }
    if !output.status.success() {
        return Err(reported_error(path, &output));
    }
    // The plugin succeeded, even if its warnings cannot be written.
    let _ = sys::write_all(io::stderr().as_fd(), &output.stderr);
    if !matches!(verb, Verb::Add(_)) {
        return Ok(None);
    }
    let unreadable = |error: Error| {
        error.context(format!("cannot read the result of plugin {}", path.display()))
    };
    let result = Json::parse(&output.stdout).map_err(unreadable)?;
    if result == Json::Null {
        return Ok(None);
    }
    version::parse_result(&result, request.version).map(Some).map_err(unreadable)
}

fn spawn(path: &Path, request: &Request, verb: &Verb) -> io::Result<Child> {
    let mut attempt = 1;
    loop {
        let mut command = Command::new(path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, value) in request.environment(verb) {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        match fault::kernel_request().and_then(|()| command.spawn()) {
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy && attempt < BUSY_ATTEMPTS_MAX =>
            {
                attempt += 1;
                // The kernel has no event for the end of the write.
                #[allow(clippy::disallowed_methods)]
                std::thread::sleep(BUSY_PAUSE);
            }
            other => return other,
        }
    }
}

/// The error of the delegate, unchanged, because runtimes match its code and its text.
fn reported_error(path: &Path, output: &Output) -> Error {
    #[derive(Deserialize)]
    struct Reported {
        code: u32,
        #[serde(default)]
        msg: String,
        #[serde(default)]
        details: String,
    }
    let name = path.display();
    let status = output.status;
    if output.stdout.trim_ascii().is_empty() {
        return match String::from_utf8_lossy(&output.stderr).trim() {
            "" => {
                Error::internal(format!("netplugin failed with no error message: {name}: {status}"))
            }
            text => Error::internal(format!("netplugin failed: {text:?}"))
                .with_details(format!("{name}: {status}")),
        };
    }
    match Json::parse(&output.stdout).and_then(|json| json.read::<Reported>("error")) {
        Ok(Reported { code, msg, details }) => {
            // To the runtime, code 3 means that there is nothing to delete. The calling plugin may have made something.
            let code = Some(Code(code)).filter(|code| *code != Code::UNKNOWN_CONTAINER);
            Error::new(code.unwrap_or(Code::INTERNAL), msg).with_details(details)
        }
        Err(error) => {
            let text = String::from_utf8_lossy(&output.stdout);
            Error::internal(format!("netplugin failed but its error cannot be read: {text:?}"))
                .with_details(format!("{name}: {status}: {error}"))
        }
    }
}

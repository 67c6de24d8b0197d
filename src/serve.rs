//! Serves one call of a plugin: reads the environment and stdin, runs the plugin, and prints the result. Only this file prints
//! the result of a plugin, so a caller never gets two documents.

use std::env::var_os;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::time::Instant;

use crate::cni::json::Json;
use crate::cni::request::{Refusal, Request, Verb};
use crate::cni::version::{self, Version};
use crate::error::{Code, Error, Result};
use crate::kernel::sys::{self, warn};
use crate::plugin::log::{Call, Log};
use crate::plugin::{Context, Entry, Session, VERSION};

const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;

/// Serves the call that the CNI_ variables describe. Without CNI_COMMAND it prints the banner, from which runtimes read the
/// version. Returns the exit code.
pub fn serve(entry: &Entry, plugins: &'static [Entry]) -> u8 {
    sys::survive_failed_writes();
    let command = command();
    let outcome = match command.as_str() {
        "" => {
            banner(entry.name);
            Ok(())
        }
        "VERSION" => print(version::SUPPORTED),
        _ => answer(&command, entry, plugins),
    };
    match outcome {
        Ok(()) => SUCCESS,
        Err(refusal) => refuse(&refusal),
    }
}

/// CNI_COMMAND; empty if it is not set.
pub fn command() -> String {
    var_os("CNI_COMMAND").map_or_else(String::new, |value| value.to_string_lossy().into_owned())
}

/// Answers a call for a plugin that does not exist. Exit code 127, as in a shell for an unknown command. A runtime also
/// gets an error object.
pub fn unknown(name: &str, plugins: &[Entry]) -> u8 {
    let known = plugins.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
    let msg = format!("cannot run {name}: cnibox has no plugin of that name");
    if command().is_empty() {
        warn(format_args!("{msg}; it has {known}"));
    } else {
        let error = Error::new(Code::INVALID_ENVIRONMENT, msg)
            .with_details(format_args!("known plugins: {known}"));
        warn(format_args!("{error}"));
        refuse(&error.into());
    }
    127
}

/// Prints an error object and returns the exit code.
///
/// Source: CNI specification 1.1.0, section 5, "Error".
fn refuse(Refusal { version, error }: &Refusal) -> u8 {
    let object = Json::object([
        ("cniVersion", Some(version.text().into())),
        ("code", Some(error.code.0.into())),
        ("msg", Some(error.msg.as_str().into())),
        ("details", (!error.details.is_empty()).then(|| error.details.as_str().into())),
    ]);
    if let Err(failure) = print(&object.to_pretty()) {
        warn(format_args!("{}; the error was: {error}", failure.error));
    }
    FAILURE
}

fn banner(name: &str) {
    let versions = Version::ALL.map(Version::text).join(", ");
    warn(format_args!("CNI {name} plugin {VERSION}"));
    warn(format_args!("CNI protocol versions supported: {versions}"));
}

fn print(document: &str) -> Result<(), Refusal> {
    let written = sys::write_all(io::stdout().as_fd(), document.as_bytes());
    written.map_err(|error| {
        let msg = "cannot write to stdout";
        Error::new(Code::IO, msg).with_details(sys::reason(&error)).into()
    })
}

/// Runs one call and logs it.
fn answer(command: &str, entry: &Entry, plugins: &'static [Entry]) -> Result<(), Refusal> {
    let log = log().map(|log| (log, Instant::now()));
    let read = Request::read(command, |name| var_os(name), io::stdin());
    let outcome = match &read {
        Ok((request, verb)) => run(entry, plugins, request, verb),
        Err(refusal) => Err(refusal.clone()),
    };
    if let Some((log, started)) = log {
        let request = read.as_ref().ok().map(|(request, verb)| (request, verb));
        let call = Call { plugin: entry.name, command, request, started };
        log.write(&call, outcome.as_ref().err().map(|refusal| &refusal.error));
    }
    outcome
}

/// The log of calls, if the environment or the host turns it on.
fn log() -> Option<Log> {
    let text = |name: &str| var_os(name)?.into_string().ok();
    Log::open(text("CNIBOX_LOG").as_deref(), text("TRACEPARENT"))
}

/// Runs one call, the only one of the process: the end of the process closes the sockets of its session.
fn run(
    entry: &Entry,
    plugins: &'static [Entry],
    request: &Request,
    verb: &Verb,
) -> Result<(), Refusal> {
    let refused = |error| Refusal { version: request.version, error };
    let session = ManuallyDrop::new(Session::open(request, verb).map_err(refused)?);
    let cx = Context { request, session: &session, plugins };
    request.dropped.iter().for_each(|error| cx.warn(error));
    let Some(success) = entry.call(&cx, verb).map_err(refused)? else {
        return Ok(());
    };
    let printed = version::print_result(&success, request.version)
        .map_err(refused)
        .and_then(|json| print(&json.to_pretty()));
    // If the result does not reach the caller, the ADD has failed and must be undone.
    if let (Err(_), Verb::Add(at)) = (&printed, verb)
        && let Err(error) = entry.call(&cx, &Verb::Del(at.clone()))
    {
        cx.warn(format!("cannot undo the failed ADD: {error}"));
    }
    printed
}

//! One call of a plugin: reads the environment and stdin, calls it, prints what comes of it. The only place where a
//! plugin's result reaches stdout, and once: a caller never sees two documents.

use std::io;
use std::os::fd::AsFd;

use crate::cni::json::Json;
use crate::cni::request::{Refusal, Request, Verb};
use crate::cni::version::{self, Version};
use crate::error::{Code, Error, Result};
use crate::kernel::sys::{self, warn};
use crate::plugin::{Context, Entry, Session, VERSION};

const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;

/// Serves the call that the environment describes. Without CNI_COMMAND that is the banner, which runtimes read to
/// learn the version.
pub fn serve(entry: &Entry, plugins: &'static [Entry]) -> u8 {
    sys::survive_failed_writes();
    let command = command();
    let outcome = match command.as_str() {
        "" => {
            warn(banner(entry.name).trim_end());
            Ok(())
        }
        "VERSION" => print(&format!("{}\n", version::supported().to_compact())),
        _ => answer(&command, entry, plugins),
    };
    match outcome {
        Ok(()) => SUCCESS,
        Err(refusal) => refuse(&refusal),
    }
}

/// CNI_COMMAND; empty when there is none.
pub fn command() -> String {
    std::env::var_os("CNI_COMMAND")
        .map_or_else(String::new, |value| value.to_string_lossy().into_owned())
}

/// Writes a line to stderr, if that can be written.
pub fn say(line: &str) {
    warn(line);
}

/// Answers a call that never got to be one.
pub fn fail(error: Error) -> u8 {
    refuse(&error.into())
}

/// Prints an error object and gives the exit code of a failed call.
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
        warn(&format!("{}; it is: {error}", failure.error));
    }
    FAILURE
}

fn banner(name: &str) -> String {
    let versions = Version::ALL.map(Version::text).join(", ");
    format!("CNI {name} plugin {VERSION}\nCNI protocol versions supported: {versions}\n")
}

fn print(document: &str) -> Result<(), Refusal> {
    let written = sys::write_all(io::stdout().as_fd(), document.as_bytes());
    written.map_err(|error| {
        let msg = "cannot write to stdout";
        Error::new(Code::IO, msg).with_details(sys::reason(&error)).into()
    })
}

/// One call: everything that it opens is closed when this returns.
fn answer(command: &str, entry: &Entry, plugins: &'static [Entry]) -> Result<(), Refusal> {
    let (request, verb) = Request::read(command, |name| std::env::var_os(name), sys::Stdin)?;
    let refused = |error| Refusal { version: request.version, error };
    let session = Session::open(&request, &verb).map_err(refused)?;
    let cx = Context { request: &request, session: &session, plugins };
    request.dropped.iter().for_each(|error| cx.warn(error));
    let Some(success) = entry.call(&cx, &verb).map_err(refused)? else {
        return Ok(());
    };
    let printed = version::print_result(&success, request.version)
        .map_err(refused)
        .and_then(|json| print(&json.to_pretty()));
    // An ADD whose result does not reach the caller has failed, so nothing may be left of it.
    if let (Err(_), Verb::Add(at)) = (&printed, verb)
        && let Err(error) = entry.call(&cx, &Verb::Del(at))
    {
        cx.warn(format!("cannot take back the failed ADD: {error}"));
    }
    printed
}

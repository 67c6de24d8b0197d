//! One call of a plugin: reads the environment and stdin, calls it, prints what comes of it. The only place where a
//! plugin's result reaches stdout, and once: a caller never sees two documents.

use std::io;
use std::os::fd::AsFd;

use crate::cni::json::Json;
use crate::cni::request::{Refusal, Request, Verb};
use crate::cni::version::{self, Version};
use crate::error::{Error, Result};
use crate::kernel::sys;
use crate::names::Attachment;
use crate::plugin::{Context, Entry, Namespace, VERSION};

const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;

/// Serves the call that the environment describes. Without CNI_COMMAND that is the banner, which runtimes read to
/// learn the version.
pub fn serve(entry: &Entry, plugins: &'static [Entry]) -> u8 {
    let command = command();
    let outcome = match command.as_str() {
        "" => {
            eprint!("{}", banner(entry.name));
            return SUCCESS;
        }
        "VERSION" => Ok(Some(format!("{}\n", version::supported().to_compact()))),
        _ => answer(&command, entry, plugins),
    };
    match outcome {
        Ok(None) => SUCCESS,
        Ok(Some(document)) => match print(&document) {
            Ok(()) => SUCCESS,
            Err(error) => {
                eprintln!("{}: cannot print the result: {error}", entry.name);
                FAILURE
            }
        },
        Err(refusal) => refuse(&refusal),
    }
}

/// CNI_COMMAND; empty when there is none.
pub fn command() -> String {
    std::env::var_os("CNI_COMMAND")
        .map_or_else(String::new, |value| value.to_string_lossy().into_owned())
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
        eprintln!("cannot print the error: {failure}; it is: {error}");
    }
    FAILURE
}

fn banner(name: &str) -> String {
    let versions = Version::ALL.map(Version::text).join(", ");
    format!("CNI {name} plugin {VERSION}\nCNI protocol versions supported: {versions}\n")
}

fn print(document: &str) -> io::Result<()> {
    sys::write_all(io::stdout().as_fd(), document.as_bytes())
}

fn answer(
    command: &str,
    entry: &Entry,
    plugins: &'static [Entry],
) -> Result<Option<String>, Refusal> {
    let request = Request::read(command, |name| std::env::var_os(name), io::stdin().lock())?;
    let refused = |error| Refusal { version: request.version, error };
    let namespace = Namespace::of(&request).map_err(refused)?;
    let cx = Context { request: &request, namespace: &namespace, plugins };
    let Some(success) = (entry.run)(&cx, &request.verb).map_err(refused)? else { return Ok(None) };
    match version::print_result(&success, request.version) {
        Ok(json) => Ok(Some(json.to_pretty())),
        Err(error) => {
            take_back(entry, &cx);
            Err(refused(error))
        }
    }
}

/// An ADD whose result cannot be written in the version asked for has failed, so nothing may be left of it.
fn take_back(entry: &Entry, cx: &Context<'_>) {
    let Verb::Add(at) = &cx.request.verb else { return };
    if let Err(error) = (entry.run)(cx, &Verb::Del(Attachment::clone(at))) {
        eprintln!("{}: cannot take back the failed ADD: {error}", entry.name);
    }
}

//! One call of a plugin: reads the environment and stdin, calls it, prints what comes of it. The only place where a
//! plugin's result reaches stdout, and once: a caller never sees two documents.

use std::io::{self, Write};

use crate::cni::json::Json;
use crate::cni::request::{Refusal, Request, Verb};
use crate::cni::version::{self, Version};
use crate::error::{Code, Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::Attachment;
use crate::plugin::{Context, Entry, Namespace};

/// The release of the reference plugins that we are compatible with, then our own; runtimes compare the first part.
pub const VERSION: &str = concat!("v1.9.1+cnibox.", env!("CARGO_PKG_VERSION"));

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

/// Prints an error object and gives the exit code of a failed call.
///
/// Source: CNI specification 1.1.0, section 5, "Error".
pub fn refuse(Refusal { version, error }: &Refusal) -> u8 {
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
    let mut stdout = io::stdout().lock();
    stdout.write_all(document.as_bytes())?;
    stdout.flush()
}

fn answer(
    command: &str,
    entry: &Entry,
    plugins: &'static [Entry],
) -> Result<Option<String>, Refusal> {
    let request = Request::read(command, |name| std::env::var_os(name), io::stdin().lock())?;
    let refused = |error| Refusal { version: request.version, error };
    let namespace = open_namespace(&request).map_err(refused)?;
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

/// Opens the container's namespace, and refuses (code 8) to work on our own one, before anything is touched: an ADD
/// or DEL there would change the host.
fn open_namespace(request: &Request) -> Result<Namespace> {
    let (Verb::Add(_) | Verb::Del(_) | Verb::Check(_), Some(path)) =
        (&request.verb, &request.netns_path)
    else {
        return Ok(Namespace::NotGiven);
    };
    let netns = match NetNs::open_if_exists(path) {
        Ok(Some(netns)) => netns,
        Ok(None) => {
            let msg = format!(
                "cannot open network namespace {}: no such file or directory",
                path.display()
            );
            return Ok(Namespace::Gone(Error::new(Code::UNKNOWN_CONTAINER, msg)));
        }
        Err(error) => return Ok(Namespace::Unusable(error)),
    };
    let is_check = matches!(request.verb, Verb::Check(_));
    if !is_check && !request.netns_override && netns.is(&NetNs::own()?)? {
        return Err(Error::new(
            Code::SAME_NETNS,
            format!(
                "cannot {} {}: it is the network namespace of the plugin itself",
                request.verb.name(),
                path.display()
            ),
        )
        .with_details("the container's namespace (CNI_NETNS) must be another one"));
    }
    Ok(Namespace::Open(netns))
}

//! The tool under its own name: what a busybox user expects of one, a container runtime by hand, and the demo.

mod attach;
mod attachments;
mod call;
#[cfg(feature = "tool")]
mod completion;
#[cfg(feature = "demo")]
mod demo;
pub mod dhcp;
#[cfg(feature = "tool")]
mod doctor;
mod gc;
#[cfg(feature = "tool")]
mod help;
mod install;
#[cfg(feature = "tool")]
mod ipam;
#[cfg(feature = "tool")]
mod lint;
#[cfg(feature = "tool")]
mod manual;
#[cfg(feature = "tool")]
mod metrics;
mod networks;
mod oci_hook;
mod packed;
mod parameters;
mod run;
mod table;

use std::ffi::OsString;
use std::fmt;

use crate::cni::json::Object;
use crate::error::{Code, Error, Result};
use crate::plugin::{Entry, VERSION};

use call::{Call, Exit};

const NAME: &str = "cnibox";

/// Where `--list-full` says that plugins live: the usual directory, relative to the root as busybox writes it.
const PLUGIN_DIRECTORY: &str = "opt/cni/bin/";

/// Runs a command. Returns the exit code.
type Run = fn(&Call<'_>) -> Result<u8>;

/// The commands, in the order of the overview.
const COMMANDS: &[(&str, Run)] = &[
    ("add", attach::add),
    ("check", attach::check),
    ("del", attach::del),
    ("gc", gc::gc),
    ("status", attach::status),
    ("run", run::run),
    ("exec", run::exec),
    ("oci-hook", oci_hook::oci_hook),
    ("networks", networks::networks),
    ("attachments", attachments::attachments),
    ("list", list),
    ("install", install::install),
    #[cfg(feature = "demo")]
    ("demo", demo::demo),
    ("version", version),
    #[cfg(feature = "tool")]
    ("completion", completion::completion),
    #[cfg(feature = "tool")]
    ("doctor", doctor::doctor),
    #[cfg(feature = "tool")]
    ("ipam", ipam::ipam),
    #[cfg(feature = "tool")]
    ("lint", lint::lint),
    #[cfg(feature = "tool")]
    ("man", help::man),
    #[cfg(feature = "tool")]
    ("metrics", metrics::metrics),
    #[cfg(feature = "tool")]
    ("help", help::help),
    #[cfg(not(feature = "tool"))]
    ("help", help),
];

fn command(name: &str) -> Option<Run> {
    COMMANDS.iter().find(|(known, _)| *known == name).map(|(_, run)| *run)
}

/// Whether a first argument is for the tool: an option, or one of its commands.
pub fn knows(first: &str) -> bool {
    first.starts_with('-') || command(first).is_some()
}

/// Runs the tool with its arguments. Exit codes: 0 fine, 1 failed, 2 not understood.
pub fn run(args: &[OsString], plugins: &'static [Entry]) -> u8 {
    let words = args;
    let args: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    let name = match args.first().copied() {
        None | Some("-h" | "--help") => {
            overview(plugins);
            return 0;
        }
        // As busybox spells them.
        Some("--list") => "list",
        Some("--list-full") => {
            args.insert(1, "--full");
            "list"
        }
        Some("--install") => "install",
        Some("--version" | "-V") => "version",
        Some(name) => name,
    };
    let Some(run) = command(name) else {
        eprintln!("{NAME}: Unrecognized argument: {name}");
        return 2;
    };
    match Call::parse(name, &args[1..], plugins, words) {
        Ok(call) => exit_code(run(&call)),
        Err(exit) => ended(NAME, &exit),
    }
}

/// Prints the text of an end before the command runs.
fn ended(name: &str, (code, text): &Exit) -> u8 {
    if *code == 0 {
        say(text);
    } else {
        eprintln!("{name}: {text}");
    }
    *code
}

fn list(call: &Call<'_>) -> Result<u8> {
    let directory = if call.has("--full") { PLUGIN_DIRECTORY } else { "" };
    for entry in call.plugins {
        say(&[directory, entry.name].concat());
    }
    Ok(0)
}

fn version(_: &Call<'_>) -> Result<u8> {
    tell(format_args!("{NAME} {VERSION} ({})", env!("CNIBOX_COMMIT")));
    Ok(0)
}

#[cfg(not(feature = "tool"))]
fn help(call: &Call<'_>) -> Result<u8> {
    overview(call.plugins);
    Ok(0)
}

/// Prints the error of a command.
fn exit_code(done: Result<u8>) -> u8 {
    done.unwrap_or_else(|error| {
        eprintln!("{NAME}: {error}");
        if error.code == parameters::NOT_UNDERSTOOD { 2 } else { 1 }
    })
}

/// Without arguments. The first line has the version by itself: Nomad runs every file of a plugin directory to find it.
fn overview(plugins: &[Entry]) {
    let mut table = String::new();
    for entry in plugins {
        table.push_str(&format!("  {:<12}{}\n", entry.name, entry.about));
    }
    let commands: Vec<&str> = COMMANDS.iter().map(|(name, _)| *name).collect();
    let commands = commands.join("|");
    tell(format_args!(
        "{NAME} {VERSION} : every CNI plugin in one executable\n\n\
         Usage: {NAME} [{commands}] [arguments...]\n   \
         or: {NAME} --list[-full]\n   \
         or: {NAME} --install [-s] [DIR]\n   \
         or: {NAME} dhcp daemon|leases [arguments...]\n   \
         or: PLUGIN, through a link of that name to {NAME}; {NAME} PLUGIN\n\n\
         A plugin reads CNI_COMMAND and the other variables of the CNI specification, and its configuration on stdin.\n\n\
         Plugins:\n{table}"
    ));
}

fn cannot_write(error: &std::io::Error) -> Error {
    Error::new(Code::IO, "cannot write to stdout").with_details(error.to_string())
}

/// Prints an object as a document.
fn say_json(object: &mut Object) {
    say(&object.json().to_pretty());
}

/// A line of what the tool has to tell. The only way for it to get to stdout.
#[allow(clippy::print_stdout)]
fn say(line: &str) {
    println!("{}", line.trim_end());
}

/// The same for a line that is formatted, which takes less code than a `String`.
#[inline(never)]
fn tell(line: fmt::Arguments<'_>) {
    say(&line.to_string());
}

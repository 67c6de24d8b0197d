//! The commands of `cnibox`: those that busybox has, those of a container runtime, and those that examine the host.

#[cfg(feature = "runtime")]
mod attach;
#[cfg(feature = "runtime")]
mod attachments;
#[cfg(feature = "tool")]
mod completion;
#[cfg(feature = "demo")]
mod demo;
pub mod dhcp;
#[cfg(feature = "tool")]
mod doctor;
#[cfg(any(feature = "tool", feature = "install"))]
mod executable;
#[cfg(feature = "runtime")]
mod gc;
#[cfg(feature = "tool")]
mod help;
#[cfg(feature = "install")]
mod install;
#[cfg(feature = "tool")]
mod ipam;
#[cfg(feature = "tool")]
mod lint;
#[cfg(feature = "tool")]
mod manual;
#[cfg(feature = "tool")]
mod metrics;
#[cfg(feature = "runtime")]
mod networks;
#[cfg(feature = "run")]
mod oci_hook;
mod output;
mod overview;
#[cfg(feature = "runtime")]
mod parameters;
#[cfg(feature = "tool")]
mod reconcile;
#[cfg(feature = "run")]
mod run;
mod similar;
mod table;

use std::ffi::OsString;

use argh::{EarlyExit, FromArgs, SubCommands};

use crate::error::Result;
use crate::kernel::sys::{warn, warn_lines};
use crate::plugin::{Entry, VERSION};

use output::{NAME, PLUGIN_DIRECTORY, USAGE_ERROR, print_args, print_line, print_text};
use overview::overview;
pub use overview::unknown;

/// This command is not in `Command`: argh reserves the name `help`.
const HELP: &str = "help";

/// Every CNI plugin in one executable.
#[derive(FromArgs)]
struct Tool {
    #[argh(subcommand)]
    command: Command,
}

#[derive(FromArgs)]
#[argh(subcommand)]
enum Command {
    #[cfg(feature = "runtime")]
    Add(attach::Add),
    #[cfg(feature = "runtime")]
    Check(attach::Check),
    #[cfg(feature = "runtime")]
    Del(attach::Del),
    #[cfg(feature = "runtime")]
    Gc(gc::Gc),
    #[cfg(feature = "tool")]
    Reconcile(reconcile::Reconcile),
    #[cfg(feature = "runtime")]
    Status(attach::Status),
    #[cfg(feature = "run")]
    Run(run::Run),
    #[cfg(feature = "run")]
    Exec(run::Exec),
    #[cfg(feature = "run")]
    OciHook(oci_hook::OciHook),
    #[cfg(feature = "runtime")]
    Networks(networks::Networks),
    #[cfg(feature = "runtime")]
    Attachments(attachments::Attachments),
    List(List),
    #[cfg(feature = "install")]
    Install(install::Install),
    #[cfg(feature = "install")]
    Uninstall(install::Uninstall),
    #[cfg(feature = "demo")]
    Demo(demo::Demo),
    Version(Version),
    #[cfg(feature = "tool")]
    Completion(completion::Completion),
    #[cfg(feature = "tool")]
    Doctor(doctor::Doctor),
    #[cfg(feature = "tool")]
    Ipam(ipam::Ipam),
    #[cfg(feature = "tool")]
    Lint(lint::Lint),
    #[cfg(feature = "tool")]
    Man(help::Man),
    #[cfg(feature = "tool")]
    Metrics(metrics::Metrics),
}

/// List the plugins.
#[derive(FromArgs)]
#[argh(subcommand, name = "list", help_triggers("-h", "--help", "help"))]
struct List {
    /// print the usual path of each plugin
    #[argh(switch)]
    full: bool,
}

/// Print the version.
#[derive(FromArgs)]
#[argh(subcommand, name = "version", help_triggers("-h", "--help", "help"))]
struct Version {}

/// The commands with their descriptions. `help` is the last.
fn commands() -> Vec<(&'static str, &'static str)> {
    let mut commands = Vec::new();
    for command in Command::COMMANDS {
        commands.push((command.name, command.description));
    }
    commands.push((HELP, "Show the manual of a plugin or of a command"));
    commands
}

fn has_command(name: &str) -> bool {
    commands().iter().any(|(known, _)| *known == name)
}

/// Whether the first argument is an option or a command of `cnibox`.
pub fn accepts(first: &str) -> bool {
    first.starts_with('-') || has_command(first)
}

/// Runs a command. Exit codes: 0 success, 1 failure, 2 usage error.
pub fn run(args: &[OsString], plugins: &'static [Entry]) -> u8 {
    let raw_args = args;
    let args = lossy_strings(args);
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.first().copied() {
        None | Some("-h" | "--help") => {
            overview(plugins);
            return 0;
        }
        // Options with the names that busybox uses.
        Some("--list") => args[0] = "list",
        Some("--list-full") => drop(args.splice(..1, ["list", "--full"])),
        Some("--install") => args[0] = "install",
        Some("--version" | "-V") => args[0] = "version",
        #[cfg(feature = "tool")]
        Some(HELP) => return exit_code(help::help(&args[1..], plugins)),
        #[cfg(not(feature = "tool"))]
        Some(HELP) => {
            overview(plugins);
            return 0;
        }
        _ => {}
    }
    match Tool::from_args(&[NAME], &args) {
        Ok(tool) => exit_code(tool.run(plugins, raw_args)),
        Err(exit) => print_early_exit(NAME, &exit),
    }
}

/// The arguments as UTF-8, which argh needs.
fn lossy_strings(args: &[OsString]) -> Vec<String> {
    args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
}

/// Prints the output of argh in place of a run: the help of the command, or an error in the arguments. Returns the exit code.
fn print_early_exit(name: &str, exit: &EarlyExit) -> u8 {
    match exit.status {
        Ok(()) => {
            print_text(&exit.output);
            0
        }
        Err(()) => {
            warn_lines(&format!("{name}: {}", exit.output.trim_end()));
            2
        }
    }
}

impl Tool {
    /// `raw_args` are the arguments before the conversion to UTF-8.
    #[cfg_attr(not(feature = "run"), allow(unused_variables))]
    fn run(&self, plugins: &'static [Entry], raw_args: &[OsString]) -> Result<u8> {
        match &self.command {
            #[cfg(feature = "runtime")]
            Command::Add(add) => add.run(plugins),
            #[cfg(feature = "runtime")]
            Command::Check(check) => check.run(plugins),
            #[cfg(feature = "runtime")]
            Command::Del(del) => del.run(plugins),
            #[cfg(feature = "runtime")]
            Command::Gc(gc) => gc.run(plugins),
            #[cfg(feature = "tool")]
            Command::Reconcile(reconcile) => reconcile.run(plugins),
            #[cfg(feature = "runtime")]
            Command::Status(status) => status.run(plugins),
            #[cfg(feature = "run")]
            Command::Run(run) => run.run(plugins, raw_args),
            #[cfg(feature = "run")]
            Command::Exec(exec) => exec.run(plugins, raw_args),
            #[cfg(feature = "run")]
            Command::OciHook(hook) => hook.run(plugins),
            #[cfg(feature = "runtime")]
            Command::Networks(networks) => networks.run(plugins),
            #[cfg(feature = "runtime")]
            Command::Attachments(attachments) => attachments.run(plugins),
            Command::List(list) => list.run(plugins),
            Command::Version(Version {}) => {
                print_args(format_args!("{NAME} {VERSION} ({})", env!("CNIBOX_COMMIT")));
                Ok(0)
            }
            #[cfg(feature = "install")]
            Command::Install(install) => install.run(plugins),
            #[cfg(feature = "install")]
            Command::Uninstall(uninstall) => uninstall.run(plugins),
            #[cfg(feature = "demo")]
            Command::Demo(demo) => demo.run(plugins),
            #[cfg(feature = "tool")]
            Command::Completion(completion) => completion.run(plugins),
            #[cfg(feature = "tool")]
            Command::Doctor(doctor) => doctor.run(plugins),
            #[cfg(feature = "tool")]
            Command::Ipam(ipam) => ipam.run(plugins),
            #[cfg(feature = "tool")]
            Command::Lint(lint) => lint.run(plugins),
            #[cfg(feature = "tool")]
            Command::Man(man) => man.run(plugins),
            #[cfg(feature = "tool")]
            Command::Metrics(metrics) => metrics.run(plugins),
        }
    }
}

impl List {
    fn run(&self, plugins: &[Entry]) -> Result<u8> {
        // Without the leading slash, as `busybox --list-full` prints paths.
        let [directory, slash] = if self.full { [&PLUGIN_DIRECTORY[1..], "/"] } else { [""; 2] };
        for entry in plugins {
            print_line(&[directory, slash, entry.name].concat());
        }
        Ok(0)
    }
}

/// Prints the error of a command, if there is one. Returns the exit code.
fn exit_code(done: Result<u8>) -> u8 {
    done.unwrap_or_else(|error| {
        warn(format_args!("{NAME}: {error}"));
        if error.code == USAGE_ERROR { 2 } else { 1 }
    })
}

/// The text that `--help` of a command prints.
#[cfg(feature = "tool")]
fn help_of_command(command: &str) -> String {
    Tool::from_args(&[NAME], &[command, "--help"])
        .map_or_else(|exit| exit.output, |_| String::new())
}

//! The commands of `cnibox`: those that busybox has, those of a container runtime, and those that examine the host.

mod attach;
mod attachments;
#[cfg(feature = "tool")]
mod completion;
mod demo;
pub mod dhcp;
#[cfg(feature = "tool")]
mod doctor;
#[cfg(any(feature = "tool", feature = "install"))]
mod executable;
#[cfg(feature = "tool")]
mod explain;
mod gc;
#[cfg(feature = "tool")]
mod help;
#[cfg(any(feature = "tool", feature = "install"))]
mod install;
#[cfg(feature = "tool")]
mod ipam;
#[cfg(feature = "tool")]
mod lint;
#[cfg(feature = "tool")]
mod man;
#[cfg(feature = "tool")]
mod manual;
#[cfg(feature = "tool")]
mod metrics;
#[cfg(feature = "netavark")]
pub mod netavark;
mod networks;
mod oci_hook;
mod output;
mod parameters;
mod podman;
#[cfg(feature = "tool")]
mod reconcile;
mod run;
mod similar;
mod table;
#[cfg(feature = "tool")]
mod words;

use std::ffi::OsString;

use argh::{ArgsInfo, EarlyExit, FromArgs, SubCommands};

use crate::error::Result;
use crate::kernel::sys::{warn, warn_lines};
use crate::plugin::VERSION;
use crate::plugins::PLUGINS;

use output::{NAME, PLUGIN_DIRECTORY, USAGE_ERROR, print_line, print_text};
use similar::hint;

/// This command is not in `Command`: argh reserves the name `help`.
const HELP: &str = "help";

/// The commands in groups. A build can lack some.
const GROUPS: [(&str, &str); 3] = [
    (
        "Networks of containers",
        "add check del gc reconcile explain status run exec oci-hook networks attachments",
    ),
    ("Operation of the host", "doctor lint ipam metrics install uninstall"),
    ("Information", "list version help man completion demo"),
];

/// Every CNI plugin in one executable.
#[derive(ArgsInfo, FromArgs)]
struct Tool {
    #[argh(subcommand)]
    command: Command,
}

/// Declares the commands, and calls the one of the arguments.
macro_rules! commands {
    ($($(#[$condition:meta])? $name:ident($arguments:path),)+) => {
        #[derive(ArgsInfo, FromArgs)]
        #[argh(subcommand)]
        enum Command {
            $($(#[$condition])? $name($arguments),)+
        }

        impl Command {
            fn run(&self) -> Result<u8> {
                match self {
                    $($(#[$condition])? Self::$name(command) => command.run(),)+
                }
            }
        }
    };
}

commands! {
    #[cfg(feature = "runtime")] Add(attach::Add),
    #[cfg(feature = "runtime")] Check(attach::Check),
    #[cfg(feature = "runtime")] Del(attach::Del),
    #[cfg(feature = "runtime")] Gc(gc::Gc),
    #[cfg(feature = "tool")] Reconcile(reconcile::Reconcile),
    #[cfg(feature = "tool")] Explain(explain::Explain),
    #[cfg(feature = "runtime")] Status(attach::Status),
    #[cfg(feature = "run")] Run(run::Run),
    #[cfg(feature = "run")] Exec(run::Exec),
    #[cfg(feature = "run")] OciHook(oci_hook::OciHook),
    #[cfg(feature = "runtime")] Networks(networks::Networks),
    #[cfg(feature = "runtime")] Attachments(attachments::Attachments),
    List(List),
    #[cfg(feature = "install")] Install(install::Install),
    #[cfg(feature = "install")] Uninstall(install::Uninstall),
    #[cfg(feature = "demo")] Demo(demo::Demo),
    Version(Version),
    #[cfg(feature = "tool")] Completion(completion::Completion),
    #[cfg(feature = "tool")] Doctor(doctor::Doctor),
    #[cfg(feature = "tool")] Ipam(ipam::Ipam),
    #[cfg(feature = "tool")] Lint(lint::Lint),
    #[cfg(feature = "tool")] Man(man::Man),
    #[cfg(feature = "tool")] Metrics(metrics::Metrics),
}

/// List the plugins.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "list", help_triggers("-h", "--help", "help"))]
struct List {
    /// print the usual path of each plugin
    #[argh(switch)]
    full: bool,
}

/// Print the version.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "version", help_triggers("-h", "--help", "help"))]
struct Version {}

/// Show the manual of a plugin or of a command: its keys, an example, and what each verb does.
#[cfg(feature = "tool")]
#[derive(ArgsInfo, FromArgs)]
#[argh(
    help_triggers("-h", "--help"),
    note = "The name \"network\" shows the keys that all plugins share."
)]
struct Help {
    /// print the manual of a plugin as Markdown
    #[argh(switch)]
    markdown: bool,
    /// a plugin, or a command and its action, or \"network\"; the commands and plugins if not given
    #[argh(positional)]
    name: Vec<String>,
}

/// The commands with their descriptions. `help` is the last.
fn commands() -> Vec<(&'static str, &'static str)> {
    let own = Command::COMMANDS.iter().map(|command| (command.name, command.description));
    own.chain([(HELP, "Show the manual of a plugin or of a command")]).collect()
}

fn has_command(name: &str) -> bool {
    commands().iter().any(|(known, _)| *known == name)
}

/// Whether the first argument is an option or a command of `cnibox`.
pub fn accepts(first: &str) -> bool {
    #[cfg(feature = "tool")]
    if words::is_known(first) {
        return true;
    }
    first.starts_with('-') || has_command(first)
}

/// Runs a command. Exit codes: 0 success, 1 failure, 2 usage error.
pub fn run(args: &[OsString]) -> u8 {
    let args = lossy_strings(args);
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    #[cfg(feature = "tool")]
    {
        args = match words::normalized(&args) {
            Ok(words) => words,
            Err(error) => return exit_code(Err(error)),
        };
    }
    match args.first().copied() {
        None | Some("-h" | "--help") => {
            overview();
            return 0;
        }
        Some(HELP) if cfg!(not(feature = "tool")) => {
            overview();
            return 0;
        }
        // Options with the names that busybox uses.
        Some("--list") => args[0] = "list",
        Some("--list-full") => drop(args.splice(..1, ["list", "--full"])),
        Some("--install") => args[0] = "install",
        Some("--version" | "-V") => args[0] = "version",
        _ => {}
    }
    let done = match args[0] {
        #[cfg(feature = "tool")]
        HELP => Help::from_args(&[NAME, HELP], &args[1..]).map(|help| help.run()),
        _ => Tool::from_args(&[NAME], &args).map(|tool| tool.command.run()),
    };
    match done {
        Ok(done) => exit_code(done),
        #[cfg(feature = "tool")]
        Err(exit) if exit.status.is_err() => {
            warn_lines(&format!("{NAME}: {}", words::explained(&exit.output, &args)));
            2
        }
        Err(exit) => print_early_exit(NAME, &exit),
    }
}

/// Prints the version, the usage, the commands and the plugins. The version is a word by itself in the first line: Nomad runs
/// every file of a plugin directory to read its version.
fn overview() {
    let mut table = String::new();
    let commands = commands();
    for (title, names) in GROUPS {
        table.push_str(&format!("\n{title}:\n"));
        for (name, about) in
            names.split(' ').flat_map(|name| commands.iter().find(|command| command.0 == name))
        {
            // The first clause of the description.
            let ends = [". ", "; ", ", ", ": "].map(|mark| about.find(mark).unwrap_or(about.len()));
            let about = ends.into_iter().min().and_then(|end| about.get(..end)).unwrap_or_default();
            table.push_str(&format!("  {name:<13}{}\n", about.trim_end_matches('.')));
        }
    }
    table.push_str("\nPlugins:\n");
    for entry in PLUGINS {
        table.push_str(&format!("  {:<13}{}\n", entry.name, entry.about));
    }
    let usage = usage();
    print_text(&format!(
        "{NAME} {VERSION} : {ABOUT}\n\nUsage: {}\n\n{CALL}\n{table}",
        usage.replace('\n', "\n   or: ")
    ));
}

const ABOUT: &str = "every CNI plugin in one executable";
const CALL: &str = "A plugin reads CNI_COMMAND and the other variables of the CNI specification, and its configuration on stdin.";

/// The forms of a call, each in a line.
fn usage() -> String {
    let of_install = match cfg!(feature = "install") {
        true => "\ncnibox --install [-s] [DIR]",
        false => "",
    };
    let of_dhcp = match cfg!(feature = "dhcp") {
        true => "\ncnibox dhcp daemon|leases [arguments...]",
        false => "",
    };
    format!(
        "{NAME} COMMAND [arguments...]\n{NAME} --list[-full]{of_install}{of_dhcp}\n\
         PLUGIN, through a link of that name to {NAME}; {NAME} PLUGIN"
    )
}

/// Reports a first argument that is neither a command nor a plugin. The exit code is 127, as in a shell for an unknown command.
pub fn unknown(name: &str) -> u8 {
    warn(format_args!("{NAME}: {}", no_such(name)));
    127
}

/// The reason for the refusal of a name that is neither of a command nor of a plugin.
fn no_such(name: &str) -> String {
    let commands = commands().into_iter().map(|(command, _)| command);
    let known: Vec<&str> = commands.chain(PLUGINS.iter().map(|entry| entry.name)).collect();
    let hint = hint(name, &known);
    let more = if hint.is_empty() { "; cnibox --help lists them" } else { "" };
    format!("there is no command or plugin {name}{hint}{more}")
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

impl List {
    fn run(&self) -> Result<u8> {
        // Without the leading slash, as `busybox --list-full` prints paths.
        let [directory, slash] = if self.full { [&PLUGIN_DIRECTORY[1..], "/"] } else { [""; 2] };
        for entry in PLUGINS {
            print_line(format_args!("{directory}{slash}{}", entry.name));
        }
        Ok(0)
    }
}

impl Version {
    fn run(&self) -> Result<u8> {
        print_line(format_args!("{NAME} {VERSION} ({})", env!("CNIBOX_COMMIT")));
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

/// The text that `--help` of a command prints. The command is a word, or two words such as `networks create`.
#[cfg(feature = "tool")]
fn help_of(command: &[&str]) -> String {
    if command == [HELP] {
        let printed = Help::from_args(&[NAME, HELP], &["--help"]);
        return printed.map_or_else(|exit| exit.output, |_| String::new());
    }
    Tool::from_args(&[NAME], &[command, &["--help"]].concat())
        .map_or_else(|exit| exit.output, |_| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_in_one_group() {
        let mut grouped: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| names.split(' ')).collect();
        let mut all: Vec<&str> = commands().into_iter().map(|(name, _)| name).collect();
        grouped.sort_unstable();
        all.sort_unstable();
        // The tests are built with all features.
        assert_eq!(grouped, all);
    }
}

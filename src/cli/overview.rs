//! The text that `cnibox` prints without arguments, and the error for an unknown first argument.

use crate::kernel::sys::warn;
use crate::plugin::VERSION;
use crate::plugins::PLUGINS;

use super::commands;
use super::output::{NAME, print_text};
use super::similar::hint;

/// The commands in groups. A build can lack some.
const GROUPS: [(&str, &str); 3] = [
    (
        "Networks of containers",
        "add check del gc reconcile explain status run exec oci-hook networks attachments",
    ),
    ("Operation of the host", "doctor lint ipam metrics install uninstall"),
    ("Information", "list version help man completion demo"),
];

/// Prints the version, the usage, the commands and the plugins. The version is a word by itself in the first line: Nomad runs
/// every file of a plugin directory to read its version.
pub(super) fn overview() {
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
    let of_install = match cfg!(feature = "install") {
        true => "\n   or: cnibox --install [-s] [DIR]",
        false => "",
    };
    let of_dhcp = match cfg!(feature = "dhcp") {
        true => "\n   or: cnibox dhcp daemon|leases [arguments...]",
        false => "",
    };
    print_text(&format!(
        "{NAME} {VERSION} : every CNI plugin in one executable\n\n\
         Usage: {NAME} COMMAND [arguments...]\n   \
         or: {NAME} --list[-full]{of_install}{of_dhcp}\n   \
         or: PLUGIN, through a link of that name to {NAME}; {NAME} PLUGIN\n\n\
         A plugin reads CNI_COMMAND and the other variables of the CNI specification, and its configuration on stdin.\n\
         {table}"
    ));
}

/// Reports a first argument that is neither a command nor a plugin. The exit code is 127, as in a shell for an unknown command.
pub fn unknown(name: &str) -> u8 {
    let commands = commands().into_iter().map(|(command, _)| command);
    let known: Vec<&str> = commands.chain(PLUGINS.iter().map(|entry| entry.name)).collect();
    let hint = hint(name, &known);
    let more = if hint.is_empty() { "; cnibox --help lists them" } else { "" };
    warn(format_args!("{NAME}: there is no command or plugin {name}{hint}{more}"));
    127
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

//! `cnibox completion`: scripts with which a shell completes the command line. They ask `cnibox completion words`.

use std::fs;

use argh::FromArgs;

use crate::error::Result;
use crate::plugin::Entry;
use crate::runtime::NAMED_NAMESPACES;

use super::parameters::{self, TIMEOUT_S, not_understood};
use super::{COMMANDS, help_of_command, say};

/// Print the script that completes the command line of cnibox in a shell.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "completion",
    help_triggers("-h", "--help"),
    example = ". <({command_name} bash)"
)]
pub(super) struct Completion {
    /// bash, zsh or fish
    #[argh(positional)]
    shell: String,
    /// after "words" instead of a shell: the words of a command line, to print those that can be the last one
    #[argh(positional, greedy)]
    words: Vec<String>,
}

const BASH: &str = r#"_cnibox() {
    COMPREPLY=($(compgen -W "$(cnibox completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _cnibox cnibox"#;

const ZSH: &str = r#"#compdef cnibox
_cnibox() {
    compadd -- ${(f)"$(cnibox completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"}
}
compdef _cnibox cnibox"#;

const FISH: &str = "complete -c cnibox -f -a '(cnibox completion words -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'";

impl Completion {
    pub(super) fn run(self, plugins: &'static [Entry]) -> Result<()> {
        match self.shell.as_str() {
            "bash" => say(BASH),
            "zsh" => say(ZSH),
            "fish" => say(FISH),
            "words" => {
                let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
                candidates(&words, plugins).iter().for_each(|word| say(word));
            }
            other => {
                return Err(not_understood(format!(
                    "there is no completion for {other}; there is bash, zsh, fish"
                )));
            }
        }
        Ok(())
    }
}

/// The words that can be the last one of a command line. The shell leaves those that do not begin as the last word does.
fn candidates(words: &[&str], plugins: &'static [Entry]) -> Vec<String> {
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let (&command, rest) = match words {
        [] | [_] => return owned(COMMANDS),
        [command, rest @ ..] => (command, rest),
    };
    let (last, before) = rest.split_last().map_or(("", rest), |(last, before)| (*last, before));
    if last.starts_with('-') {
        return options(command);
    }
    let operands = before.iter().filter(|word| !word.starts_with('-')).count();
    match (command, before.last().copied(), operands) {
        ("run", Some("-n" | "--network"), _) => networks(plugins),
        ("help" | "man", _, 0) => {
            let names = plugins.iter().map(|entry| entry.name);
            let commands = COMMANDS.iter().copied().filter(|_| command == "help");
            names.chain(commands).map(str::to_owned).collect()
        }
        ("completion", _, 0) => owned(&["bash", "zsh", "fish"]),
        ("ipam", Some("--network"), _) => networks(plugins),
        ("ipam", _, 0) => owned(&["list", "leaks", "release", "reserve"]),
        ("ipam", _, _) if before.first() == Some(&"release") => reserved(plugins),
        ("networks", _, 0) => owned(&["create", "rm"]),
        ("networks", _, _) if before.first() == Some(&"rm") => networks(plugins),
        ("add" | "check" | "del" | "gc" | "status", _, 0) => networks(plugins),
        ("add" | "check" | "del" | "gc" | "status", _, 1) | ("exec", _, 0) => namespaces(),
        _ => Vec::new(),
    }
}

fn networks(plugins: &'static [Entry]) -> Vec<String> {
    let listed = parameters::runtime(plugins, TIMEOUT_S).networks();
    let (listed, _) = listed.unwrap_or_default();
    listed.iter().map(|it| it.network.name.to_string()).collect()
}

fn reserved(plugins: &'static [Entry]) -> Vec<String> {
    let pools = parameters::runtime(plugins, TIMEOUT_S).survey().map(|it| it.pools);
    let reserved = pools.unwrap_or_default().into_iter().flat_map(|pool| pool.reservations);
    reserved.map(|it| it.reservation.address.to_string()).collect()
}

fn namespaces() -> Vec<String> {
    let entries = fs::read_dir(NAMED_NAMESPACES).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// The options of a command, which its help lists at the beginnings of lines.
fn options(command: &str) -> Vec<String> {
    let help = help_of_command(command);
    let names = help.lines().filter(|line| line.starts_with("  -")).flat_map(|line| {
        line.trim_start()
            .split([' ', ','])
            .take_while(|word| word.starts_with('-') || word.is_empty())
    });
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

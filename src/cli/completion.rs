//! `cnibox completion`: scripts with which a shell completes the command line. They call `cnibox completion words`.

use std::fs;

use argh::FromArgs;

use crate::error::Result;
use crate::plugins::PLUGINS;
use crate::runtime::NAMED_NAMESPACES;

use super::help_of_command;
use super::output::usage_error;
use super::output::{print_line, print_text};
use super::parameters::TIMEOUT_S;
use super::podman;

/// Print the script with which a shell completes command lines.
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
    /// for the scripts: with "words" in place of a shell, print the candidates for the last of these words of a command line
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
    pub(super) fn run(&self) -> Result<u8> {
        match self.shell.as_str() {
            "bash" => print_text(BASH),
            "zsh" => print_text(ZSH),
            "fish" => print_text(FISH),
            "words" => {
                let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
                candidates(&words).into_iter().for_each(print_line);
            }
            other => {
                return Err(usage_error(format!(
                    "there is no completion for {other}; there is bash, zsh, fish"
                )));
            }
        }
        Ok(0)
    }
}

/// The candidates for the last word of a command line. The shell drops those that do not begin with the word as typed so far.
fn candidates(words: &[&str]) -> Vec<String> {
    let (&command, rest) = match words {
        [] | [_] => return commands(),
        [command, rest @ ..] => (command, rest),
    };
    let (last, before) = rest.split_last().map_or(("", rest), |(last, before)| (*last, before));
    if last.starts_with('-') {
        return options(command);
    }
    let operands = before.iter().filter(|word| !word.starts_with('-')).count();
    let keywords: &[&str] = match (command, before.last().copied(), operands) {
        ("run", Some("-n" | "--network"), _) | ("ipam", Some("--network"), _) => {
            return networks();
        }
        ("help" | "man", _, 0) => {
            let mut names: Vec<String> = PLUGINS.iter().map(|entry| entry.name.into()).collect();
            if command == "help" {
                names.extend(commands());
            }
            return names;
        }
        ("completion", _, 0) => &["bash", "zsh", "fish"],
        ("ipam", _, 0) => &["list", "leaks", "release", "reserve"],
        ("ipam", _, _) if before.first() == Some(&"release") => return reserved(),
        ("networks", _, 0) => &["create", "rm", "export"],
        ("networks", _, _) if matches!(before, ["rm" | "export", ..]) => return networks(),
        ("add" | "check" | "del" | "gc" | "reconcile" | "explain" | "status", _, 0) => {
            return networks();
        }
        ("add" | "check" | "del" | "gc" | "status", _, 1) | ("exec", _, 0) => return namespaces(),
        _ => &[],
    };
    keywords.iter().map(|&word| word.to_owned()).collect()
}

fn commands() -> Vec<String> {
    super::commands().into_iter().map(|(name, _)| name.to_owned()).collect()
}

fn networks() -> Vec<String> {
    let listed = podman::runtime(TIMEOUT_S).networks();
    let (all, _) = listed.unwrap_or_default();
    all.iter().map(|listed| listed.name.to_string()).collect()
}

fn reserved() -> Vec<String> {
    let Ok(survey) = podman::runtime(TIMEOUT_S).survey() else { return Vec::new() };
    survey.reservations().map(|owned| owned.reservation.address.to_string()).collect()
}

fn namespaces() -> Vec<String> {
    let entries = fs::read_dir(NAMED_NAMESPACES).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The options of a command. Its help lists each at the beginning of a line.
fn options(command: &str) -> Vec<String> {
    let help = help_of_command(command);
    let lines = help.lines().filter(|line| line.starts_with("  -"));
    let words = lines.flat_map(|line| {
        let words = line.split([' ', ',']).filter(|word| !word.is_empty());
        words.take_while(|word| word.starts_with('-'))
    });
    words.map(str::to_owned).collect()
}

//! `cnibox completion`: scripts with which a shell completes the command line. They ask `cnibox completion words`.

use std::fs;

use crate::error::Result;
use crate::plugin::Entry;
use crate::runtime::NAMED_NAMESPACES;

use super::call::{self, Call};
use super::parameters::{self, TIMEOUT_S, not_understood};
use super::{COMMANDS, say};

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

/// `cnibox completion`. After "words" instead of a shell: the words of a command line, to print those that can be the last
/// one.
pub(super) fn completion(call: &Call<'_>) -> Result<u8> {
    match call.operands[0].as_str() {
        "bash" => say(BASH),
        "zsh" => say(ZSH),
        "fish" => say(FISH),
        "words" => {
            let words: Vec<&str> = call.operands[1..].iter().map(String::as_str).collect();
            let found = candidates(&words, call.plugins);
            if !found.is_empty() {
                say(&found.join("\n"));
            }
        }
        other => {
            return Err(not_understood(format!(
                "there is no completion for {other}; there is bash, zsh, fish"
            )));
        }
    }
    Ok(0)
}

/// The words that can be the last one of a command line. The shell leaves those that do not begin as the last word does.
fn candidates(words: &[&str], plugins: &'static [Entry]) -> Vec<String> {
    let (&command, rest) = match words {
        [] | [_] => return commands(),
        [command, rest @ ..] => (command, rest),
    };
    let (last, before) = rest.split_last().map_or(("", rest), |(last, before)| (*last, before));
    if last.starts_with('-') {
        return options(command);
    }
    let operands = before.iter().filter(|word| !word.starts_with('-')).count();
    let fixed: &[&str] = match (command, before.last().copied(), operands) {
        ("run", Some("-n" | "--network"), _) | ("ipam", Some("--network"), _) => {
            return networks(plugins);
        }
        ("help" | "man", _, 0) => {
            let mut names = if command == "help" { commands() } else { Vec::new() };
            for entry in plugins {
                names.push(entry.name.into());
            }
            return names;
        }
        ("completion", _, 0) => &["bash", "zsh", "fish"],
        ("ipam", _, 0) => &["list", "leaks", "release", "reserve"],
        ("ipam", _, _) if before.first() == Some(&"release") => return reserved(plugins),
        ("networks", _, 0) => &["create", "rm"],
        ("networks", _, _) if before.first() == Some(&"rm") => return networks(plugins),
        ("add" | "check" | "del" | "gc" | "status", _, 0) => return networks(plugins),
        ("add" | "check" | "del" | "gc" | "status", _, 1) | ("exec", _, 0) => return namespaces(),
        _ => &[],
    };
    fixed.iter().map(|&word| word.to_owned()).collect()
}

fn commands() -> Vec<String> {
    COMMANDS.iter().map(|(name, _)| (*name).to_owned()).collect()
}

fn networks(plugins: &'static [Entry]) -> Vec<String> {
    let listed = parameters::runtime(plugins, TIMEOUT_S).networks();
    let (listed, _) = listed.unwrap_or_default();
    let mut names = Vec::new();
    for it in listed {
        names.push(it.network.name.to_string());
    }
    names
}

fn reserved(plugins: &'static [Entry]) -> Vec<String> {
    let mut addresses = Vec::new();
    let Ok(survey) = parameters::runtime(plugins, TIMEOUT_S).survey() else { return addresses };
    for pool in &survey.pools {
        for it in &pool.reservations {
            addresses.push(it.reservation.address.to_string());
        }
    }
    addresses
}

fn namespaces() -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(NAMED_NAMESPACES).into_iter().flatten().flatten() {
        names.extend(entry.file_name().into_string());
    }
    names
}

/// The options of a command.
fn options(command: &str) -> Vec<String> {
    let mut options = Vec::new();
    for line in call::help(command).lines() {
        for name in call::names_in(line) {
            if name.starts_with('-') {
                options.push(name.to_owned());
            }
        }
    }
    options
}

//! `cnibox completion`: scripts with which a shell completes the command line. They call `cnibox completion words`.

use std::fs;

use argh::{ArgsInfo, FromArgs};

use crate::error::Result;
use crate::plugins::PLUGINS;
use crate::runtime::NAMED_NAMESPACES;

use super::help::NETWORK;
use super::output::{print_line, print_text, usage_error};
use super::parameters::{self, TIMEOUT_S};
use super::podman;
use super::words;

/// Print the script with which a shell completes command lines.
#[derive(ArgsInfo, FromArgs)]
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
fn candidates(line: &[&str]) -> Vec<String> {
    let (&command, rest) = match line {
        [] | [_] => return commands(),
        [command, rest @ ..] => (command, rest),
    };
    let (last, before) = rest.split_last().map_or(("", rest), |(last, before)| (*last, before));
    if last.starts_with('-') {
        let action = before.iter().take(1).copied();
        let path: Vec<&str> = [command].into_iter().chain(action).collect();
        return words::options(&words::command(&path).1);
    }
    let operands = before.iter().filter(|word| !word.starts_with('-')).count();
    let keywords: &[&str] = match (command, before.last().copied(), operands) {
        ("run", Some("-n" | "--network"), _) | ("ipam", Some("--network"), _) => {
            return networks();
        }
        ("man", Some("--to"), _) => &[],
        ("help" | "man", _, 0) => {
            let mut names = commands();
            names.extend(PLUGINS.iter().map(|entry| entry.name.to_owned()));
            names.push(NETWORK.to_owned());
            return names;
        }
        ("help" | "man", Some(last), 1) => &words::commands(&words::command(&[last]).1),
        ("completion", _, 0) => &["bash", "zsh", "fish"],
        ("ipam", _, 0) => &["list", "leaks", "release", "reserve"],
        ("del", Some("--container-id"), _) => return containers(),
        ("ipam", _, _) if before.first() == Some(&"release") => return reserved(),
        ("networks", _, 0) => &["create", "rm", "inspect", "export"],
        ("networks", _, _) if matches!(before, ["rm" | "inspect" | "export", ..]) => {
            return networks();
        }
        ("check" | "del" | "attachments", _, 0) => return [networks(), containers()].concat(),
        ("add" | "gc" | "reconcile" | "explain" | "status", _, 0) => return networks(),
        ("check" | "del", _, 1) | ("exec", _, 0) => return [namespaces(), containers()].concat(),
        ("add" | "gc" | "status", _, 1) => return namespaces(),
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

fn containers() -> Vec<String> {
    let mut ids: Vec<String> = parameters::runtime(TIMEOUT_S)
        .entries()
        .unwrap_or_default()
        .into_iter()
        .map(|entry| entry.at.container_id.to_string())
        .collect();
    ids.dedup();
    ids
}

fn namespaces() -> Vec<String> {
    let entries = fs::read_dir(NAMED_NAMESPACES).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

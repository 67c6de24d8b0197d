//! The words of a command line that argh does not know: other spellings of options, the words of podman and ip, and errors that
//! name the valid words.

use argh::{ArgsInfo, CommandInfoWithArgs, FlagInfo, FlagInfoKind, PositionalInfo};

use crate::error::Result;

use super::output::{NAME, usage_error};
use super::similar::{hint, nearest};
use super::{HELP, Help, Tool};

/// Words of other programs, and what they mean here: the beginning of a command line, and its replacement.
const SAME: [(&[&str], &[&str]); 10] = [
    (&["-v"], &["version"]),
    (&["network"], &["networks"]),
    (&["ps"], &["attachments"]),
    (&["networks", "ls"], &["networks"]),
    (&["networks", "list"], &["networks"]),
    (&["networks", "show"], &["networks", "inspect"]),
    (&["networks", "remove"], &["networks", "rm"]),
    (&["networks", "del"], &["networks", "rm"]),
    (&["attachments", "-a"], &["attachments"]),
    (&["ipam", "ls"], &["ipam", "list"]),
];

/// Options of other programs, by the command.
const SAME_OPTIONS: [(&[&str], &str, &str); 3] = [
    (&["networks", "create"], "-d", "--type"),
    (&["networks", "create"], "--driver", "--type"),
    (&["doctor"], "-n", "--dry-run"),
];

/// An option of other programs with its value, and the option of each command here.
const JSON: (&str, &str, &str) = ("--format", "json", "--json");

/// The commands whose first operand is followed by the words of another program.
const OF_PROGRAMS: [&str; 3] = ["run", "exec", "completion"];

/// Whether the first word of a command line is one of another program.
pub(super) fn is_known(first: &str) -> bool {
    SAME.iter().any(|(other, _)| *other == [first])
}

/// Whether all of these words are one command.
pub(super) fn is_command(words: &[&str]) -> bool {
    command(words).0 == words
}

/// Replaces the words of other programs at the beginning of a command line. Fails if a command follows a word that means no
/// command here: argh would execute it.
pub(super) fn own<'a>(words: &[&'a str]) -> Result<Vec<&'a str>> {
    let mut words = words.to_vec();
    for count in [1, 2] {
        let same =
            |(other, _): &&(&[&str], &[&str])| other.len() == count && words.starts_with(other);
        let Some((_, own)) = SAME.iter().find(same) else { continue };
        let known = if own.len() < count { commands(&command(own).1) } else { Vec::new() };
        if let Some(word) = words[count..].iter().find(|word| known.contains(*word)) {
            return Err(usage_error(format!("Unrecognized argument: {word}")));
        }
        words.splice(..count, own.iter().copied());
    }
    Ok(words)
}

/// Replaces the words of other programs, and splits `--option=value` and `-ovalue`. Fails if the option has no value.
pub(super) fn normalized<'a>(words: &[&'a str]) -> Result<Vec<&'a str>> {
    let words = own(words)?;
    let (path, info) = command(&words);
    let mut normal = path.clone();
    let mut rest = words[path.len()..].iter().copied().peekable();
    while let Some(word) = rest.next() {
        let is_operand = !word.starts_with('-');
        if word == "--" || is_operand && path.first().is_some_and(|name| OF_PROGRAMS.contains(name))
        {
            normal.push(word);
            normal.extend(rest);
            break;
        }
        let (option, end) = split(word);
        let value = end.map(|end| end.strip_prefix('=').unwrap_or(end));
        if option == JSON.0 && value.or_else(|| rest.peek().copied()) == Some(JSON.1) {
            rest.next_if(|_| value.is_none());
            normal.push(JSON.2);
            continue;
        }
        let same = SAME_OPTIONS.iter().find(|(of, other, _)| path == *of && option == *other);
        let own = same.map_or(option, |(_, _, own)| own);
        let flag = info.flags.iter().find(|flag| names(flag).iter().any(|name| name == own));
        match flag.map(|flag| &flag.kind) {
            Some(FlagInfoKind::Option { .. }) => {
                normal.push(own);
                normal.extend(value.or_else(|| rest.next()));
            }
            Some(FlagInfoKind::Switch) if end.is_some_and(|end| end.starts_with('=')) => {
                return Err(usage_error(format!("{option} takes no value")));
            }
            _ => normal.push(if end.is_none() { own } else { word }),
        }
    }
    Ok(normal)
}

/// The command at the beginning of a command line, with the action of `networks`; and its arguments.
pub(super) fn command<'a>(words: &[&'a str]) -> (Vec<&'a str>, CommandInfoWithArgs) {
    let (mut path, mut info) = (Vec::new(), Tool::get_args_info());
    if words.first() == Some(&HELP) {
        return (vec![HELP], Help::get_args_info());
    }
    for word in words {
        let Some(at) = info.commands.iter().position(|known| known.name == *word) else { break };
        info = info.commands.swap_remove(at).command;
        path.push(*word);
    }
    (path, info)
}

/// Splits a word into an option and what follows it: `=value`, or for a short option also `value`.
fn split(word: &str) -> (&str, Option<&str>) {
    let end = if word.starts_with("--") { word.find('=') } else { Some(2) };
    match end.and_then(|end| word.split_at_checked(end)) {
        Some((option, value)) if !value.is_empty() => (option, Some(value)),
        _ => (word, None),
    }
}

/// `-n` and `--network`. argh does not tell the short name of `--help`.
fn names(flag: &FlagInfo<'_>) -> Vec<String> {
    let short = if flag.long == "--help" { Some('h') } else { flag.short };
    let short = short.map(|short| format!("-{short}"));
    short.into_iter().chain([flag.long.to_owned()]).collect()
}

/// The options of a command. argh has `--help` first.
pub(super) fn flags(info: &CommandInfoWithArgs) -> impl Iterator<Item = &FlagInfo<'static>> {
    info.flags.iter().skip(1).chain(info.flags.first())
}

/// `-n, --network <network>`.
pub(super) fn name_and_value(flag: &FlagInfo<'_>) -> String {
    let mut names = names(flag).join(", ");
    if let FlagInfoKind::Option { arg_name } = flag.kind {
        names.extend([" <", arg_name, ">"]);
    }
    names
}

/// The names of the options of a command.
pub(super) fn options(info: &CommandInfoWithArgs) -> Vec<String> {
    flags(info).flat_map(names).collect()
}

/// The commands, or the actions of a command.
pub(super) fn commands(info: &CommandInfoWithArgs) -> Vec<&'static str> {
    info.commands.iter().map(|known| known.name).collect()
}

/// Adds the valid words to an error of argh.
pub(super) fn explained(error: &str, words: &[&str]) -> String {
    let (path, info) = command(words);
    let error = error.trim_end();
    let of = [&[NAME], path.as_slice()].concat().join(" ");
    let Some(word) = error.strip_prefix("Unrecognized argument: ") else {
        let operand = |one: &PositionalInfo<'_>| format!("\n  {:<18}{}", one.name, one.description);
        let operands: String = info.positionals.iter().map(operand).collect();
        return match error.starts_with("Required positional") {
            true => format!("{of} needs:{operands}"),
            false => error.into(),
        };
    };
    // All words after `--` are operands.
    let is_option = word.starts_with('-')
        && words.iter().take_while(|before| **before != "--").any(|before| *before == word);
    let options = options(&info);
    let known = match is_option {
        true => options.iter().map(String::as_str).collect(),
        false => commands(&info),
    };
    let name = word.split('=').next().unwrap_or(word);
    let list = match known.as_slice() {
        [] => "; it takes no more arguments".into(),
        _ if nearest(name, &known).is_some() => hint(name, &known),
        _ => format!("; there is {}", known.join(", ")),
    };
    format!("{error}{list}; {of} --help explains it")
}

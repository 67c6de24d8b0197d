//! The words of a command line that argh does not know: other spellings of options, the words of podman and ip, and errors that
//! name the valid words.

use crate::error::Result;

use super::help_of;
use super::output::{NAME, usage_error};
use super::similar::{hint, nearest};

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
    command(words) == words
}

/// Replaces the words of other programs at the beginning of a command line. Fails if a command follows a word that means no
/// command here: argh would execute it.
pub(super) fn own<'a>(words: &[&'a str]) -> Result<Vec<&'a str>> {
    let mut words = words.to_vec();
    for count in [1, 2] {
        let same =
            |(other, _): &&(&[&str], &[&str])| other.len() == count && words.starts_with(other);
        let Some((_, own)) = SAME.iter().find(same) else { continue };
        let help = if own.len() < count { help_of(own) } else { String::new() };
        if let Some(word) = words[count..].iter().find(|word| commands(&help).contains(word)) {
            return Err(usage_error(format!("Unrecognized argument: {word}")));
        }
        words.splice(..count, own.iter().copied());
    }
    Ok(words)
}

/// Replaces the words of other programs, and splits `--option=value` and `-ovalue`. Fails if the option has no value.
pub(super) fn normalized<'a>(words: &[&'a str]) -> Result<Vec<&'a str>> {
    let words = own(words)?;
    let path = command(&words);
    let help = help_of(&path);
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
        if takes_value(&help, own) {
            normal.push(own);
            normal.extend(value.or_else(|| rest.next()));
        } else if end.is_some_and(|end| end.starts_with('=')) && options(&help).contains(&own) {
            return Err(usage_error(format!("{option} takes no value")));
        } else {
            normal.push(if end.is_none() { own } else { word });
        }
    }
    Ok(normal)
}

/// The command at the beginning of a command line, with the action of `networks`.
fn command<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let mut path = Vec::new();
    for word in words.iter().take(2) {
        if !commands(&help_of(&path)).contains(word) {
            break;
        }
        path.push(*word);
    }
    path
}

/// Splits a word into an option and what follows it: `=value`, or for a short option also `value`.
fn split(word: &str) -> (&str, Option<&str>) {
    let end = if word.starts_with("--") { word.find('=') } else { Some(2) };
    match end.and_then(|end| word.split_at_checked(end)) {
        Some((option, value)) if !value.is_empty() => (option, Some(value)),
        _ => (word, None),
    }
}

/// Whether an option has a value, by the first line of the help of its command. This line has only the short name of an option
/// with two names.
fn takes_value(help: &str, option: &str) -> bool {
    let two = format!(", {option} ");
    let line =
        help.lines().find(|line| line.starts_with("  -") && format!("{line} ").contains(&two));
    let shown = line.and_then(|line| line.trim_start().split(',').next()).unwrap_or(option);
    let usage = help.lines().next().unwrap_or_default();
    shown.starts_with('-') && usage.contains(&format!("[{shown} <"))
}

/// The options in the help of a command.
pub(super) fn options(help: &str) -> Vec<&str> {
    let lines = help.lines().filter(|line| line.starts_with("  -"));
    let words = lines.flat_map(|line| {
        let words = line.split([' ', ',']).filter(|word| !word.is_empty());
        words.take_while(|word| word.starts_with('-'))
    });
    words.collect()
}

/// The lines of a part of a help that begins with `title`.
fn part<'a>(help: &'a str, title: &str) -> impl Iterator<Item = &'a str> {
    let lines = help.lines().skip_while(move |line| *line != title).skip(1);
    lines.take_while(|line| !line.is_empty())
}

/// The commands in the help of a command.
fn commands(help: &str) -> Vec<&str> {
    let words = part(help, "Commands:").filter_map(|line| line.get(2..)?.split(' ').next());
    words.filter(|word| !word.is_empty()).collect()
}

/// Adds the valid words to an error of argh.
pub(super) fn explained(error: &str, words: &[&str]) -> String {
    let path = command(words);
    let (error, help) = (error.trim_end(), help_of(&path));
    let of = [&[NAME], path.as_slice()].concat().join(" ");
    let Some(word) = error.strip_prefix("Unrecognized argument: ") else {
        let operands: Vec<&str> = match error.starts_with("Required positional") {
            true => part(&help, "Positional Arguments:").collect(),
            false => Vec::new(),
        };
        return match operands.as_slice() {
            [] => error.into(),
            _ => format!("{of} needs:\n{}", operands.join("\n")),
        };
    };
    // All words after `--` are operands.
    let is_option = word.starts_with('-')
        && words.iter().take_while(|before| **before != "--").any(|before| *before == word);
    let known = if is_option { options(&help) } else { commands(&help) };
    let name = word.split('=').next().unwrap_or(word);
    let hint = hint(name, &known);
    let list = match known.as_slice() {
        [] => "; it takes no more arguments".into(),
        _ if nearest(name, &known).is_some() => hint,
        _ => format!("; there is {}", known.join(", ")),
    };
    format!("{error}{list}; {of} --help explains it")
}

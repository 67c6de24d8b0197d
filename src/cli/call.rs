//! The arguments of a command. Its help says which options and operands it has: the parser reads the lines "Usage" and
//! "Options" of the text that it prints.

use std::ffi::OsString;

use crate::error::Result;
use crate::plugin::Entry;

use super::packed::unpacked;
use super::parameters::TIMEOUT_S;

/// The helps of all commands, from commands.txt.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/commands"));
const USAGE: &str = "Usage: cnibox ";
/// In the usage of a command that has subcommands.
const SUBCOMMAND: &str = "[<command>]";

/// A command with its arguments.
pub(super) struct Call<'a> {
    pub(super) plugins: &'static [Entry],
    /// All arguments of cnibox, as they were given: those of a command to execute need not be UTF-8.
    pub(super) words: &'a [OsString],
    /// The name of the command. Those of its subcommand and of the command have a space between them.
    pub(super) command: String,
    /// Long names of options with their values, in the order of the arguments.
    options: Vec<(String, String)>,
    pub(super) operands: Vec<String>,
    /// The value of `--timeout`: the seconds that an executed plugin may take.
    pub(super) timeout_s: u64,
}

/// An end before the command runs: the exit code, and the text for stdout (0) or stderr.
pub(super) type Exit = (u8, String);

/// The help of a command; empty if there is no such command.
pub(super) fn help(command: &str) -> String {
    let texts = unpacked(PACKED);
    let mut of_all = texts.split(USAGE);
    let is_its = |text: &&str| {
        let rest = text.strip_prefix(command).unwrap_or_default();
        rest.starts_with('\n') || rest.starts_with(" [") || rest.starts_with(" <")
    };
    match of_all.find(is_its) {
        Some(text) => USAGE.to_owned() + text.trim_end(),
        None => String::new(),
    }
}

/// The names of an option in its line of the help, the long one last; none in another line.
pub(super) fn names_in(line: &str) -> Vec<&str> {
    let mut names = Vec::new();
    if line.starts_with("  -") {
        for word in line.split([' ', ',']) {
            match word {
                "" => {}
                name if name.starts_with('-') || name == "help" => names.push(name),
                _ => break,
            }
        }
    }
    names
}

/// The parts of the usage in brackets: `[--json]`, `[-i <ifname>]`, `<network>`, `[<netns>]`, `[command...]`.
fn parts(help: &str) -> Vec<&str> {
    let mut rest = help.lines().next().unwrap_or_default();
    let mut parts = Vec::new();
    while let Some(start) = rest.find(['[', '<']) {
        let part = &rest[start..];
        let close = if part.starts_with('[') { ']' } else { '>' };
        let end = part.find(close).map_or(part.len(), |end| end + 1);
        // Subcommands have helps of their own.
        if &part[..end] == SUBCOMMAND {
            break;
        }
        parts.push(&part[..end]);
        rest = &part[end..];
    }
    parts
}

fn is_operand(part: &str) -> bool {
    !part.starts_with("[-")
}

impl<'a> Call<'a> {
    /// Parses the arguments after the command's name. A command without a help of its own gets all of them as operands.
    pub(super) fn parse(
        command: &str,
        args: &[&str],
        plugins: &'static [Entry],
        words: &'a [OsString],
    ) -> Result<Self, Exit> {
        let (options, operands) = (Vec::new(), Vec::new());
        let (timeout_s, name) = (TIMEOUT_S, command.to_owned());
        let mut call = Self { plugins, words, command: name, options, operands, timeout_s };
        let mut help = help(command);
        if help.is_empty() {
            call.operands = args.iter().map(|&word| word.into()).collect();
            return Ok(call);
        }
        let (mut wants_help, mut has_options) = (false, true);
        let mut rest = args.iter();
        while let Some(&word) = rest.next() {
            let of_word = if has_options { names_of(&help, word) } else { Vec::new() };
            if of_word.contains(&"--help") {
                wants_help = true;
            } else if has_options && word == "--" {
                has_options = false;
            } else if has_options && word.starts_with('-') {
                if wants_help {
                    return Err(wrong("Trailing arguments are not allowed after `help`."));
                }
                call.add_option(&help, &of_word, word, &mut rest)?;
            } else {
                let of_subcommand = call.help_of_subcommand(&help, word);
                if of_subcommand.is_empty() {
                    has_options &= !call.add_operand(&help, word)?;
                } else {
                    call.command = format!("{command} {word}");
                    (help, has_options) = (of_subcommand, true);
                }
            }
        }
        if wants_help {
            return Err((0, help));
        }
        call.require_operands(&help)?;
        Ok(call)
    }

    /// Empty if the word is no subcommand.
    fn help_of_subcommand(&self, help: &str, word: &str) -> String {
        let is_name = word.bytes().all(|byte| byte.is_ascii_lowercase());
        if !is_name || !help.contains(SUBCOMMAND) {
            return String::new();
        }
        self::help(&format!("{} {word}", self.command))
    }

    fn add_option(
        &mut self,
        help: &str,
        names: &[&str],
        word: &str,
        rest: &mut std::slice::Iter<'_, &str>,
    ) -> Result<(), Exit> {
        let Some(&name) = names.last() else { return Err(unknown(word)) };
        let mut part = "";
        for it in parts(help) {
            let flag = it.trim_matches(['[', ']']).split(' ').next();
            if names.iter().any(|name| flag == Some(name)) {
                part = it;
            }
        }
        let mut value = "";
        if part.contains('<') {
            value = match rest.next() {
                Some(value) => value,
                None => return Err(wrong(&format!("No value provided for option '{word}'."))),
            };
            if !part.contains("...") && self.value(name).is_some() {
                return Err(wrong(&invalid(word, value, "duplicate values provided")));
            }
        }
        if name == "--timeout" {
            let seconds = value.parse::<u64>();
            self.timeout_s =
                seconds.map_err(|error| wrong(&invalid(word, value, &error.to_string())))?;
        }
        self.options.push((name.into(), value.into()));
        Ok(())
    }

    /// Returns whether no option can follow.
    fn add_operand(&mut self, help: &str, word: &str) -> Result<bool, Exit> {
        let mut known = parts(help);
        known.retain(|part| is_operand(part));
        let last = known.last().copied().unwrap_or_default();
        if self.operands.len() >= known.len() && !last.contains("...") {
            return Err(unknown(word));
        }
        self.operands.push(word.into());
        Ok(self.operands.len() >= known.len() && last.starts_with('[') && !last.contains('<'))
    }

    fn require_operands(&self, help: &str) -> Result<(), Exit> {
        let mut required = parts(help);
        required.retain(|part| part.starts_with('<'));
        let missing = required.get(self.operands.len()..).unwrap_or_default();
        if missing.is_empty() {
            return Ok(());
        }
        let mut text = "Required positional arguments not provided:".to_owned();
        for part in missing {
            text.push_str("\n    ");
            text.push_str(part.trim_matches(['<', '>', '.']));
        }
        Err(wrong(&text))
    }

    /// Whether an option is given, by its long name with the dashes.
    pub(super) fn has(&self, option: &str) -> bool {
        self.value(option).is_some()
    }

    /// The value of an option.
    pub(super) fn value(&self, option: &str) -> Option<&str> {
        self.options.iter().find(|(name, _)| name == option).map(|(_, value)| value.as_str())
    }

    /// The values of an option that may be repeated.
    pub(super) fn values(&self, option: &str) -> Vec<String> {
        let mut values = Vec::new();
        for (name, value) in &self.options {
            if name == option {
                values.push(value.clone());
            }
        }
        values
    }

    /// An operand by its place.
    pub(super) fn operand(&self, at: usize) -> Option<&str> {
        self.operands.get(at).map(String::as_str)
    }
}

/// The names of the option that a word is one of.
fn names_of<'h>(help: &'h str, word: &str) -> Vec<&'h str> {
    let mut of_line = help.lines().map(names_in);
    of_line.find(|names| names.contains(&word)).unwrap_or_default()
}

fn invalid(option: &str, value: &str, reason: &str) -> String {
    format!("Error parsing option '{option}' with value '{value}': {reason}")
}

fn wrong(text: &str) -> Exit {
    (2, text.into())
}

fn unknown(word: &str) -> Exit {
    wrong(&format!("Unrecognized argument: {word}"))
}

//! `cnibox man`: the manual pages, in the format of man(7). A page is made of the manual of a plugin, or of what argh knows of a
//! command.

use std::fmt::Write;
use std::path::Path;

use argh::{ArgsInfo, FromArgs};

use crate::error::{Error, Result};
use crate::kernel::file;
use crate::plugin::VERSION;
use crate::plugins::PLUGINS;

use super::help::{Form, NETWORK, Subject, print};
use super::output::{NAME, print_text, usage_error};
use super::{ABOUT, CALL, commands, help_of, usage, words};

/// Print a manual page in the format of man(7).
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "man",
    help_triggers("-h", "--help"),
    example = "{command_name} networks create | man -l -",
    example = "{command_name} --to /usr/local/share/man/man8"
)]
pub(super) struct Man {
    /// write all pages as files into this directory, which is made if it is missing
    #[argh(option)]
    to: Option<String>,
    /// a plugin, or a command and its action, or "network"; the page of cnibox if not given
    #[argh(positional)]
    name: Vec<String>,
}

impl Man {
    pub(super) fn run(&self) -> Result<u8> {
        match &self.to {
            None => print_text(&page(&self.name.join(" "))?),
            Some(_) if !self.name.is_empty() => {
                return Err(usage_error("--to writes all pages: it takes no name of a page"));
            }
            Some(directory) => write_all(Path::new(directory))?,
        }
        Ok(0)
    }
}

fn write_all(directory: &Path) -> Result<()> {
    file::make_directory(directory, 0o777).map_err(Error::of_file("create", directory))?;
    let mut names = names();
    names.push(String::new());
    for name in names {
        let path = directory.join(title(&name) + ".8");
        file::replace(&path, page(&name)?.as_bytes(), 0o666)
            .map_err(Error::of_file("write", &path))?;
    }
    Ok(())
}

/// The names of all pages but that of `cnibox`.
fn names() -> Vec<String> {
    let mut names: Vec<String> = described().into_iter().map(|(name, _)| name).collect();
    for entry in PLUGINS {
        names.push(entry.name.to_owned());
    }
    names.push(NETWORK.to_owned());
    names
}

/// The commands and their actions, with their descriptions. The name of an action is two words, such as `networks create`.
fn described() -> Vec<(String, &'static str)> {
    let mut described = Vec::new();
    for (command, about) in commands() {
        described.push((command.to_owned(), about));
        for action in words::command(&[command]).1.commands {
            let name = [command, " ", action.name].concat();
            described.push((name, action.command.description));
        }
    }
    described
}

/// The name of a page as man(1) knows it: `cnibox-networks-create`. The empty name is that of `cnibox`.
fn title(name: &str) -> String {
    let dash = if name.is_empty() { "" } else { "-" };
    [NAME, dash, &name.replace(' ', "-")].concat()
}

fn page(name: &str) -> Result<String> {
    let words: Vec<&str> = name.split(' ').collect();
    let mut roff = Roff::new(name);
    let others = match name {
        "" => {
            print_tool(&mut roff);
            names()
        }
        _ => match Subject::find(&words)? {
            Subject::Manual(manual) => {
                print(manual, Some(&title(name)), &mut roff);
                vec![String::new()]
            }
            Subject::Command(command) => print_command(&command, &mut roff),
        },
    };
    roff.heading("SEE ALSO");
    for (at, name) in others.iter().enumerate() {
        let end = if at + 1 < others.len() { "(8)," } else { "(8)" };
        roff.text(&[&title(name), end].concat());
    }
    Ok(roff.page)
}

fn print_tool(roff: &mut Roff) {
    roff.heading("NAME");
    roff.paragraph(&[NAME, " - ", ABOUT].concat());
    roff.heading("SYNOPSIS");
    roff.example(&usage());
    roff.heading("DESCRIPTION");
    roff.paragraph(CALL);
    roff.heading("COMMANDS");
    for (name, about) in described() {
        roff.item(&name, summary(about));
    }
    roff.heading("PLUGINS");
    for entry in PLUGINS {
        roff.item(entry.name, entry.about);
    }
    roff.heading("EXIT STATUS");
    roff.paragraph(EXIT_STATUS);
}

const EXIT_STATUS: &str =
    "0 for success, 1 for a failure or a fault, 2 for a usage error, 127 for an unknown name.";

/// Prints all of the page of a command but its references. Returns the names of the pages that it refers to.
fn print_command(command: &[&str], roff: &mut Roff) -> Vec<String> {
    let (_, info) = words::command(command);
    let name = command.join(" ");
    roff.heading("NAME");
    roff.paragraph(&[&title(&name), " - ", summary(info.description)].concat());
    // The usage, the description, and parts with titles.
    let help = help_of(command);
    let mut parts = help.split("\n\n");
    let usage = parts.next().and_then(|usage| usage.strip_prefix("Usage: "));
    roff.heading("SYNOPSIS");
    roff.paragraph(usage.unwrap_or_default());
    roff.heading("DESCRIPTION");
    roff.paragraph(parts.next().unwrap_or_default());
    let mut others = vec![command[..command.len() - 1].join(" ")];
    for (part, lines) in parts.filter_map(|part| part.split_once(":\n")) {
        roff.heading(&part.to_ascii_uppercase());
        match part {
            "Positional Arguments" => {
                for operand in info.positionals {
                    roff.item(operand.name, operand.description);
                }
            }
            "Options" => {
                for flag in words::flags(&info) {
                    roff.item(&words::name_and_value(flag), flag.description);
                }
            }
            "Commands" => {
                for action in &info.commands {
                    roff.item(action.name, action.command.description);
                    others.push([&name, " ", action.name].concat());
                }
            }
            "Examples" => lines.lines().for_each(|line| roff.example(line.trim_start())),
            _ => lines.lines().for_each(|line| roff.paragraph(line.trim_start())),
        }
    }
    others
}

/// The first sentence of a description, without the full stop.
fn summary(description: &str) -> &str {
    let end = description.find(". ").unwrap_or(description.len());
    description[..end].trim_end_matches('.')
}

/// A page in the format of man(7).
struct Roff {
    page: String,
}

const HEADING: &str = ".SH ";

impl Roff {
    /// The page of a name.
    fn new(name: &str) -> Self {
        let date = env!("CNIBOX_DATE");
        let title = title(name).to_ascii_uppercase();
        Self { page: format!(".TH {title} 8 {date} \"{NAME} {VERSION}\"\n") }
    }

    /// Appends `.PP`, except after a heading, which begins a paragraph, too.
    fn begin_paragraph(&mut self) {
        if !self.page.lines().next_back().is_some_and(|line| line.starts_with(HEADING)) {
            self.page.push_str(".PP\n");
        }
    }

    fn text(&mut self, text: &str) {
        for line in text.lines() {
            let line = line.replace('\\', "\\e").replace('-', "\\-");
            // A dot or an apostrophe at the start of a line is a request.
            let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
            let _ = writeln!(self.page, "{guard}{line}");
        }
    }
}

impl Form for Roff {
    fn heading(&mut self, text: &str) {
        let _ = writeln!(self.page, "{HEADING}{text}");
    }

    fn paragraph(&mut self, text: &str) {
        self.begin_paragraph();
        self.text(text);
    }

    fn example(&mut self, text: &str) {
        self.begin_paragraph();
        self.page.push_str(".nf\n");
        self.text(text);
        self.page.push_str(".fi\n");
    }

    fn item(&mut self, name: &str, text: &str) {
        self.page.push_str(".TP\n.B ");
        self.text(name);
        self.text(text);
    }
}

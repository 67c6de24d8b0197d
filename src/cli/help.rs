//! `cnibox help` and `cnibox man`: the manuals of plugins and commands.

use std::fmt::Write;

use argh::{ArgsInfo, FromArgs};

use crate::error::Result;
use crate::plugin::VERSION;
use crate::plugins::PLUGINS;

use super::manual::{self, Key, Manual};
use super::output::{NAME, print_text, usage_error};
use super::similar::hint;
use super::{HELP, commands, has_command, help_of, overview, words};

/// Print a manual page in the format of man(7).
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "man",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} bridge | man -l -"
)]
pub(super) struct Man {
    /// a plugin or a command; the page of cnibox if not given
    #[argh(positional)]
    plugin: Option<String>,
}

/// The argument for the manual of the keys that all plugins share.
const NETWORK: &str = "network";
/// The widest line of the text that `help` prints.
const COLUMNS: usize = 80;

/// `help [--markdown] [PLUGIN|COMMAND [ACTION]|network]`. argh reserves the name `help`, so this function parses the arguments.
pub(super) fn help(args: &[&str]) -> Result<u8> {
    let own = words::own(args)?;
    // This word alone is the manual of the shared keys.
    let args = match args {
        [NETWORK] | [NETWORK, "--markdown"] => args,
        _ => &own,
    };
    let (is_markdown, subject) = match args {
        [] => {
            overview();
            return Ok(0);
        }
        ["-h" | "--help"] => {
            print_text(USAGE);
            return Ok(0);
        }
        ["--markdown", subject] | [subject, "--markdown"] => (true, *subject),
        [subject] => (false, *subject),
        [_, _] if words::is_command(args) => {
            print_text(&help_of(args));
            return Ok(0);
        }
        [_, other, ..] => return Err(usage_error(format!("Unrecognized argument: {other}"))),
    };
    match find(subject) {
        Some(manual) if is_markdown => print_text(manual.text),
        Some(manual) => {
            let mut plain = Plain::default();
            print(manual, &mut plain);
            print_text(&plain.page);
        }
        None if has_command(subject) => print_text(&help_of(&[subject])),
        None => {
            let mut known: Vec<&str> = PLUGINS.iter().map(|entry| entry.name).collect();
            known.extend(commands().iter().map(|(name, _)| name));
            let hint = hint(subject, &known);
            return Err(usage_error(format!("there is no plugin or command {subject}{hint}")));
        }
    }
    Ok(0)
}

const USAGE: &str = "Usage: cnibox help [--markdown] [PLUGIN|COMMAND [ACTION]|network]

Show the manual of a plugin or of a command: its keys, an example, and what each verb does.
The name \"network\" shows the keys that all plugins share.

Options:
  --markdown        print the manual of a plugin as Markdown";

impl Man {
    pub(super) fn run(&self) -> Result<u8> {
        let Some(plugin) = &self.plugin else {
            print_text(&page_of_tool());
            return Ok(0);
        };
        let mut roff = Roff { page: title(&format!("{NAME}-{plugin}")) };
        match find(plugin) {
            Some(manual) => print(manual, &mut roff),
            None if words::is_command(&[plugin]) => page_of_command(plugin, &mut roff),
            None => return Err(usage_error(format!("there is no plugin or command {plugin}"))),
        }
        print_text(&roff.page);
        Ok(0)
    }
}

fn find(subject: &str) -> Option<Manual> {
    if subject == NETWORK { Some(manual::network()) } else { manual::of(subject) }
}

fn title(name: &str) -> String {
    let date = env!("CNIBOX_DATE");
    format!(".TH {} 8 {date} \"{NAME} {VERSION}\"\n", name.to_uppercase())
}

fn page_of_command(command: &str, roff: &mut Roff) {
    let help = help_of(&[command]);
    let about = help.lines().nth(2).unwrap_or_default().trim_end_matches('.');
    roff.heading("NAME");
    roff.paragraph(&format!("{NAME}-{command} - {about}"));
    roff.heading("SYNOPSIS");
    roff.example(&help);
}

fn page_of_tool() -> String {
    let mut roff = Roff { page: title(NAME) };
    roff.heading("NAME");
    roff.paragraph(&format!("{NAME} - every CNI plugin in one executable"));
    roff.heading("PLUGINS");
    for entry in PLUGINS {
        roff.item(entry.name, entry.about);
    }
    roff.heading("COMMANDS");
    for (command, _) in commands() {
        if command != HELP {
            roff.example(&help_of(&[command]));
        }
    }
    roff.page
}

/// An output format of a manual.
trait Form {
    fn heading(&mut self, text: &str);
    fn paragraph(&mut self, text: &str);
    fn example(&mut self, text: &str);
    fn item(&mut self, name: &str, text: &str);
}

/// Formats a manual. The Markdown markup is removed.
fn print(manual: Manual, form: &mut dyn Form) {
    let mut blocks = blocks(manual.text).into_iter();
    if let Some(Block::Paragraph(text)) = blocks.next() {
        form.heading("NAME");
        form.paragraph(&text.replacen(':', " -", 1));
    }
    // The heading before the next paragraph or list item.
    let mut heading = Some("DESCRIPTION");
    for block in blocks {
        if let (Block::Paragraph(_) | Block::Item { .. }, Some(heading)) = (&block, heading.take())
        {
            form.heading(heading);
        }
        match block {
            Block::Paragraph(text) => form.paragraph(&text),
            Block::Item { name, text } => form.item(&name, &text),
            Block::Example(text) => {
                form.heading("EXAMPLE");
                form.example(&text);
                heading = Some("USE");
            }
            Block::Keys => {
                form.heading("KEYS");
                for key in manual.keys() {
                    form.item(&title_of(key), &plain(key.meaning));
                }
                heading = Some("USE");
            }
        }
    }
}

fn title_of(key: Key) -> String {
    let prefix = if key.is_in_args { "CNI_ARGS: " } else { "" };
    format!("{prefix}{} ({}; {})", key.path, plain(key.of_type), default(key.default))
}

fn default(text: &str) -> String {
    let text = plain(text);
    if text.starts_with("required") { text } else { format!("default {text}") }
}

/// The text without the Markdown markup.
fn plain(text: &str) -> String {
    text.replace("**", "").replace('`', "")
}

enum Block {
    Paragraph(String),
    Example(String),
    /// The position of the table of keys.
    Keys,
    /// An item of a list: a name in bold type, and a text.
    Item {
        name: String,
        text: String,
    },
}

/// Splits a manual into blocks.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.is_empty() {
        } else if line.starts_with("```") {
            let example = lines.by_ref().take_while(|line| !line.starts_with("```"));
            blocks.push(Block::Example(example.fold(String::new(), |all, line| all + line + "\n")));
        } else if line.starts_with('|') {
            while lines.next_if(|line| line.starts_with('|')).is_some() {}
            blocks.push(Block::Keys);
        } else {
            let mut text = line.to_owned();
            let is_continued = |line: &&str| !line.is_empty() && !line.starts_with(['|', '-', '`']);
            while let Some(line) = lines.next_if(|line| {
                is_continued(line) || line.starts_with('`') && !line.starts_with("```")
            }) {
                text.push(' ');
                text.push_str(line.trim_start());
            }
            blocks.push(match text.strip_prefix("- **").and_then(|rest| rest.split_once("**")) {
                Some((name, text)) => Block::Item { name: name.into(), text: plain(text.trim()) },
                None => Block::Paragraph(plain(&text)),
            });
        }
    }
    blocks
}

/// Plain text with lines of at most `COLUMNS` columns.
#[derive(Default)]
struct Plain {
    page: String,
}

impl Plain {
    /// Appends the words of a text, in lines that begin with `indent` spaces.
    fn wrap(&mut self, text: &str, indent: usize) {
        let mut column = 0;
        for word in text.split_whitespace() {
            if column == 0 || column + 1 + word.chars().count() > COLUMNS {
                let newline = if column == 0 { "" } else { "\n" };
                self.page.push_str(newline);
                self.page.extend(std::iter::repeat_n(' ', indent));
                column = indent;
            } else {
                self.page.push(' ');
                column += 1;
            }
            self.page.push_str(word);
            column += word.chars().count();
        }
        self.page.push('\n');
    }
}

impl Form for Plain {
    fn heading(&mut self, text: &str) {
        if !self.page.is_empty() {
            self.page.push('\n');
        }
        self.page.push_str(text);
        self.page.push('\n');
    }

    fn paragraph(&mut self, text: &str) {
        if self.page.ends_with("\n")
            && self.page.lines().next_back().is_some_and(|line| line.starts_with(' '))
        {
            self.page.push('\n');
        }
        self.wrap(text, 4);
    }

    fn example(&mut self, text: &str) {
        for line in text.lines() {
            let _ = writeln!(self.page, "    {line}");
        }
    }

    fn item(&mut self, name: &str, text: &str) {
        self.wrap(name, 4);
        self.wrap(text, 8);
    }
}

/// A page in the format of man(7).
struct Roff {
    page: String,
}

const HEADING: &str = ".SH ";

impl Roff {
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

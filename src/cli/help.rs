//! `cnibox help`: the manuals of plugins and commands, as text.

use std::fmt::Write;

use crate::error::{Error, Result};

use super::manual::{self, Key, Manual};
use super::output::{print_text, usage_error};
use super::{Help, help_of, no_such, overview, words};

/// The argument for the manual of the keys that all plugins share.
pub(super) const NETWORK: &str = "network";
/// The widest line of the text that `help` prints.
const COLUMNS: usize = 80;

impl Help {
    pub(super) fn run(&self) -> Result<u8> {
        let name: Vec<&str> = self.name.iter().map(String::as_str).collect();
        if name.is_empty() {
            overview();
            return Ok(0);
        }
        match Subject::find(&name)? {
            Subject::Manual(manual) if self.markdown => print_text(manual.text),
            Subject::Manual(manual) => {
                let mut plain = Plain::default();
                print(manual, None, &mut plain);
                print_text(&plain.page);
            }
            Subject::Command(command) => print_text(&help_of(&command)),
        }
        Ok(0)
    }
}

/// What `help` and `man` describe.
pub(super) enum Subject<'a> {
    Manual(Manual),
    /// A command, or a command and its action.
    Command(Vec<&'a str>),
}

impl<'a> Subject<'a> {
    pub(super) fn find(name: &[&'a str]) -> Result<Self> {
        // This word alone is the manual of the shared keys. With others it is a word of podman.
        if name == [NETWORK] {
            return Ok(Self::Manual(manual::network()));
        }
        if let [plugin] = name
            && let Some(manual) = manual::of(plugin)
        {
            return Ok(Self::Manual(manual));
        }
        let own = words::own(name)?;
        if words::is_command(&own) { Ok(Self::Command(own)) } else { Err(unknown(&own)) }
    }
}

/// The error for a name that is neither of a plugin nor of a command.
fn unknown(name: &[&str]) -> Error {
    if let [name] = name {
        return usage_error(no_such(name));
    }
    let (command, info) = words::command(name);
    let error = format!("Unrecognized argument: {}", name[command.len().max(1)]);
    let has_actions = !command.is_empty() && !info.commands.is_empty();
    usage_error(if has_actions { words::explained(&error, name) } else { error })
}

/// An output format of a manual.
pub(super) trait Form {
    fn heading(&mut self, text: &str);
    fn paragraph(&mut self, text: &str);
    fn example(&mut self, text: &str);
    fn item(&mut self, name: &str, text: &str);
}

/// Formats a manual. The Markdown markup is removed. A page with a title has it in place of the names of the plugins.
pub(super) fn print(manual: Manual, title: Option<&str>, form: &mut dyn Form) {
    let mut blocks = blocks(manual.text).into_iter();
    if let Some(Block::Paragraph(text)) = blocks.next() {
        let (names, about) = text.split_once(": ").unwrap_or(("", &text));
        form.heading("NAME");
        match title.unwrap_or(names) {
            "" => form.paragraph(about),
            name => form.paragraph(&format!("{name} - {about}")),
        }
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

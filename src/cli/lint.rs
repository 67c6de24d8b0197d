//! `cnibox lint`: mistakes in network configurations, with the line of each.

mod keys;
mod network;
mod place;
mod ranges;
mod values;

use std::path::{Path, PathBuf};

use argh::FromArgs;

use crate::cni::json::{Json, Object};
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::plugin::Entry;
use crate::runtime::conf;

use super::manual::Manuals;
use super::{parameters, say};
use place::{Path as JsonPath, line_and_column};
use ranges::Claim;

/// Find mistakes in network configurations. Exit code 1 if there is a mistake.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "lint",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} /etc/cni/net.d",
    note = "Notes on stderr are no mistakes: unknown keys, a portmap without its capability, routes that overlap."
)]
pub(super) struct Lint {
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// files and directories; the directory of NETCONFPATH if none is given
    #[argh(positional)]
    paths: Vec<String>,
}

/// The rules use it beside the document.
struct Host<'a> {
    manuals: &'a Manuals,
    plugins: &'static [Entry],
    /// CNI_PATH.
    path: &'a [PathBuf],
}

/// One file.
struct Document {
    file: PathBuf,
    text: String,
    findings: Vec<Finding>,
}

#[derive(Debug)]
struct Finding {
    /// Where in the text, in bytes.
    at: usize,
    is_fault: bool,
    text: String,
}

impl Lint {
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let (directory, path) = parameters::directories();
        let mut paths: Vec<PathBuf> = self.paths.iter().map(PathBuf::from).collect();
        if paths.is_empty() {
            paths.push(directory);
        }
        let Examined { mut documents, claims, unreadable } = examine(&paths, plugins, &path)?;
        ranges::compare_networks(&claims, &mut documents);
        ranges::compare_routes(&claims, &mut documents)?;
        let mut objects = Vec::new();
        let mut has_faults = false;
        for document in &documents {
            for finding in &document.findings {
                has_faults |= finding.is_fault;
                if self.json {
                    objects.push(object(document, finding));
                } else {
                    print(document, finding);
                }
            }
        }
        if self.json {
            super::say_json(Object::default().list("findings", objects));
        }
        for (_, error) in &unreadable {
            warn(format_args!("{error}"));
        }
        Ok(u8::from(has_faults || !unreadable.is_empty()))
    }
}

/// The documents, with the findings of each by itself.
struct Examined {
    documents: Vec<Document>,
    claims: Vec<Claim>,
    unreadable: Vec<(PathBuf, Error)>,
}

fn examine(paths: &[PathBuf], plugins: &'static [Entry], path: &[PathBuf]) -> Result<Examined> {
    let manuals = Manuals::unpack();
    let host = Host { manuals: &manuals, plugins, path };
    let (mut documents, mut claims, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
    for (file, content) in contents(paths)? {
        let text = match content {
            Ok(bytes) => Json::text_of(&bytes),
            Err(error) => {
                unreadable.push((file, error));
                continue;
            }
        };
        let mut document = Document { file, text, findings: Vec::new() };
        document.examine(&host, &mut claims, documents.len());
        documents.push(document);
    }
    Ok(Examined { documents, claims, unreadable })
}

/// For `cnibox doctor`: the files of a directory with the number of faults of each, and the faults between two networks.
pub(super) struct Faults {
    pub(super) files: Vec<(PathBuf, usize)>,
    /// Each with the file that lint reports.
    pub(super) between: Vec<(PathBuf, String)>,
    pub(super) unreadable: Vec<(PathBuf, Error)>,
}

impl Faults {
    pub(super) fn of(
        directory: &Path,
        plugins: &'static [Entry],
        path: &[PathBuf],
    ) -> Result<Self> {
        let Examined { mut documents, claims, unreadable } =
            examine(&[directory.to_owned()], plugins, path)?;
        let mut files = Vec::new();
        for it in &mut documents {
            files.push((it.file.clone(), it.faults()));
            it.findings.clear();
        }
        ranges::compare_networks(&claims, &mut documents);
        let mut between = Vec::new();
        for it in documents {
            for finding in it.findings {
                between.push((it.file.clone(), finding.text));
            }
        }
        Ok(Self { files, between, unreadable })
    }
}

/// The files in the order of the arguments; those of a directory in the order of runtimes. A FIFO that an argument names is
/// read, such as a shell makes for `<(command)`; in a directory it is a mistake.
fn contents(paths: &[PathBuf]) -> Result<Vec<(PathBuf, Result<Vec<u8>>)>> {
    let mut contents = Vec::new();
    for path in paths {
        if path.is_dir() {
            for file in conf::files(path)? {
                let content = conf::read(&file);
                contents.push((file, content));
            }
        } else {
            contents.push((path.clone(), conf::read_named(path)));
        }
    }
    Ok(contents)
}

impl Document {
    fn examine(&mut self, host: &Host<'_>, claims: &mut Vec<Claim>, index: usize) {
        match Json::parse_with_place(self.text.as_bytes()) {
            Err((at, reason)) => {
                self.insert(at, true, format!("cannot read JSON: {reason}"));
            }
            Ok(json) => network::examine(self, &json, host, claims, index),
        }
    }

    fn fault(&mut self, path: &JsonPath<'_>, text: impl Into<String>) {
        self.add(path, true, text.into());
    }

    fn note(&mut self, path: &JsonPath<'_>, text: impl Into<String>) {
        self.add(path, false, text.into());
    }

    fn add(&mut self, path: &JsonPath<'_>, is_fault: bool, text: String) {
        self.insert(path.place_in(&self.text), is_fault, text);
    }

    fn faults(&self) -> usize {
        self.findings.iter().filter(|it| it.is_fault).count()
    }

    /// Inserts a finding after those of the same place.
    fn insert(&mut self, at: usize, is_fault: bool, text: String) {
        let place = self.findings.iter().position(|it| it.at > at).unwrap_or(self.findings.len());
        self.findings.insert(place, Finding { at, is_fault, text });
    }
}

/// Faults on stdout, notes on stderr, each with its line below.
fn print(document: &Document, Finding { at, is_fault, text }: &Finding) {
    let (line, column) = line_and_column(&document.text, *at);
    let shown = document.text.lines().nth(line - 1).unwrap_or_default().trim();
    let shown = shown.replace(char::is_control, " ");
    let word = if *is_fault { "" } else { "note: " };
    let file = document.file.display();
    let finding = format!("{file}:{line}:{column}: {word}{text}\n    {shown}");
    if *is_fault {
        say(&finding);
    } else {
        warn(format_args!("{finding}"));
    }
}

fn object(document: &Document, finding: &Finding) -> Json {
    let (line, column) = line_and_column(&document.text, finding.at);
    let mut object = Object::default();
    object.text("file", &document.file.to_string_lossy());
    object.number("line", line as u64).number("column", column as u64);
    object.text("kind", if finding.is_fault { &"fault" } else { &"note" });
    object.text("text", &finding.text).json()
}

/// The name of the file, for a finding about two files.
pub(super) fn name(file: &Path) -> String {
    file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}

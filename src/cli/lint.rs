//! `cnibox lint`: mistakes in network configurations, with the line of each.

mod keys;
mod network;
mod place;
mod ranges;
mod similar;

use std::fs;
use std::path::{Path, PathBuf};

use argh::FromArgs;

use crate::cni::json::Json;
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
    note = "Notes on stderr are no mistakes: unknown keys, capabilities that are not declared, routes that overlap."
)]
pub(super) struct Lint {
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// files and directories; the directory of NETCONFPATH if none is given
    #[argh(positional)]
    paths: Vec<PathBuf>,
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
    /// Returns the exit code.
    pub(super) fn run(self, plugins: &'static [Entry]) -> Result<u8> {
        let (directory, path) = parameters::directories();
        let paths = if self.paths.is_empty() { vec![directory] } else { self.paths };
        let (mut documents, claims) = examine(&paths, plugins, &path)?;
        ranges::compare_networks(&claims, &mut documents);
        ranges::compare_routes(&claims, &mut documents)?;
        documents.iter_mut().for_each(|it| it.findings.sort_by_key(|finding| finding.at));
        if self.json {
            say(&json(&documents).to_pretty());
        } else {
            documents.iter().for_each(print);
        }
        let is_fault = |document: &Document| document.findings.iter().any(|it| it.is_fault);
        Ok(u8::from(documents.iter().any(is_fault)))
    }
}

/// The documents, with the findings of each by itself.
fn examine(
    paths: &[PathBuf],
    plugins: &'static [Entry],
    path: &[PathBuf],
) -> Result<(Vec<Document>, Vec<Claim>)> {
    let manuals = Manuals::unpack();
    let host = Host { manuals: &manuals, plugins, path };
    let (mut documents, mut claims) = (Vec::new(), Vec::new());
    for file in files(paths)? {
        let mut document = Document::read(file)?;
        document.examine(&host, &mut claims, documents.len());
        documents.push(document);
    }
    Ok((documents, claims))
}

/// For `cnibox doctor`: the files of a directory with the number of faults of each, and the faults between two networks.
pub(super) struct Faults {
    pub(super) files: Vec<(PathBuf, usize)>,
    /// Each with the file that lint reports.
    pub(super) between: Vec<(PathBuf, String)>,
}

impl Faults {
    pub(super) fn of(
        directory: &Path,
        plugins: &'static [Entry],
        path: &[PathBuf],
    ) -> Result<Self> {
        let (mut documents, claims) = examine(&[directory.to_owned()], plugins, path)?;
        let count = |it: &Document| it.findings.iter().filter(|it| it.is_fault).count();
        let files = documents.iter().map(|it| (it.file.clone(), count(it))).collect();
        documents.iter_mut().for_each(|it| it.findings.clear());
        ranges::compare_networks(&claims, &mut documents);
        let text = |it: Document| {
            let file = it.file;
            it.findings.into_iter().map(move |it| (file.clone(), it.text))
        };
        Ok(Self { files, between: documents.into_iter().flat_map(text).collect() })
    }
}

/// The files in the order of the arguments; those of a directory in the order of runtimes.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(conf::files(path)?);
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

impl Document {
    fn read(file: PathBuf) -> Result<Self> {
        let bytes = fs::read(&file).map_err(|error| {
            let msg = format!("cannot read {}", file.display());
            Error::internal(msg).with_details(error.to_string())
        })?;
        Ok(Self { file, text: Json::text_of(&bytes), findings: Vec::new() })
    }

    fn examine(&mut self, host: &Host<'_>, claims: &mut Vec<Claim>, index: usize) {
        match Json::parse_with_place(self.text.as_bytes()) {
            Err((at, reason)) => {
                let text = format!("cannot read JSON: {reason}");
                self.findings.push(Finding { at, is_fault: true, text });
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
        let at = path.place_in(&self.text);
        self.findings.push(Finding { at, is_fault, text });
    }
}

/// Faults on stdout, notes on stderr, each with its line below.
fn print(document: &Document) {
    for Finding { at, is_fault, text } in &document.findings {
        let (line, column) = line_and_column(&document.text, *at);
        let shown = document.text.lines().nth(line - 1).unwrap_or_default().trim();
        let shown = shown.replace(char::is_control, " ");
        let word = if *is_fault { "" } else { "note: " };
        let file = document.file.display();
        let finding = format!("{file}:{line}:{column}: {word}{text}\n    {shown}");
        if *is_fault {
            say(&finding);
        } else {
            finding.lines().for_each(warn);
        }
    }
}

fn json(documents: &[Document]) -> Json {
    let object = |document: &Document, finding: &Finding| {
        let (line, column) = line_and_column(&document.text, finding.at);
        let number = |number: usize| Some(u32::try_from(number).unwrap_or(u32::MAX).into());
        Json::object([
            ("file", Some(document.file.to_string_lossy().as_ref().into())),
            ("line", number(line)),
            ("column", number(column)),
            ("kind", Some(if finding.is_fault { "fault" } else { "note" }.into())),
            ("text", Some(finding.text.as_str().into())),
        ])
    };
    let of_document = |it: &'_ Document| {
        it.findings.iter().map(|finding| object(it, finding)).collect::<Vec<_>>()
    };
    Json::object([(
        "findings",
        Some(Json::Array(documents.iter().flat_map(of_document).collect())),
    )])
}

/// The name of the file, for a finding about two files.
pub(super) fn name(file: &Path) -> String {
    file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}

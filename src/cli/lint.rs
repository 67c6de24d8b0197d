//! `cnibox lint`: finds mistakes in network configurations, and prints the line of each.

mod document;
mod host;
mod json_path;
mod keys;
mod network;
mod ranges;
mod values;

use std::path::{Path, PathBuf};

use argh::{ArgsInfo, FromArgs};

use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::runtime::conf::{self, Network};

use super::output;
use super::parameters::{self, TIMEOUT_S};
use super::podman;
pub(super) use document::name;
use document::{Document, ShownFinding, print};

/// Find mistakes in network configurations. Exit code 1 if there is a mistake.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "lint",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} /etc/cni/net.d",
    note = "Notes on stderr are no mistakes: unknown keys, a portmap without its capability, a range that overlaps a route, a parent that this host does not have."
)]
pub(super) struct Lint {
    /// print one JSON document
    #[argh(switch)]
    json: bool,
    /// files and directories; the directory of NETCONFPATH if none is given
    #[argh(positional)]
    paths: Vec<String>,
}

impl Lint {
    pub(super) fn run(&self) -> Result<u8> {
        let (directory, path) = parameters::directories();
        let mut paths: Vec<PathBuf> = self.paths.iter().map(PathBuf::from).collect();
        if paths.is_empty() {
            paths.push(directory);
        }
        let (mut documents, unreadable) = examine(&paths, &path)?;
        let others = podman::runtime(TIMEOUT_S).others;
        compare(&others, &path, &mut documents);
        host::compare(&mut documents)?;
        documents.iter_mut().for_each(Document::sort);
        let mut shown = Vec::new();
        let mut has_faults = false;
        for document in &documents {
            for finding in &document.findings {
                has_faults |= finding.is_fault;
                if self.json {
                    shown.push(ShownFinding::new(document, finding));
                } else {
                    print(document, finding);
                }
            }
        }
        if self.json {
            output::print_json_list("findings", &shown);
        }
        for (_, error) in &unreadable {
            warn(format_args!("{error}"));
        }
        Ok(u8::from(has_faults || !unreadable.is_empty()))
    }
}

/// A file that could not be read.
type Unreadable = (PathBuf, Error);

/// Examines each file: returns the documents with the findings within each. The comparisons between networks follow later.
fn examine(paths: &[PathBuf], path: &[PathBuf]) -> Result<(Vec<Document>, Vec<Unreadable>)> {
    let (mut documents, mut unreadable) = (Vec::new(), Vec::new());
    for (file, content) in contents(paths)? {
        let mut document = match content {
            Ok(bytes) => Document::new(file, &bytes),
            Err(error) => {
                unreadable.push((file, error));
                continue;
            }
        };
        match Json::of_text(&document.text) {
            Err(error) => {
                let (offset, reason) = json_path::offset_and_reason(&document.text, &error);
                document.add(offset, true, format!("cannot read JSON: {reason}"));
            }
            Ok(json) => network::examine(&mut document, &json, path),
        }
        documents.push(document);
    }
    Ok((documents, unreadable))
}

/// Compares the ranges of the documents with one another, and with those of `others`, the networks without such a file.
fn compare(others: &[Network], path: &[PathBuf], documents: &mut Vec<Document>) {
    let mut all: Vec<Document> = others.iter().map(|other| examined(other, path)).collect();
    all.append(documents);
    ranges::compare_networks(&mut all);
    *documents = all.split_off(others.len());
}

fn examined(network: &Network, path: &[PathBuf]) -> Document {
    let mut document = Document::new(network.file.clone(), &network.bytes);
    network::examine(&mut document, &network.list, path);
    document
}

/// Fails with the first finding in a network without a file.
#[cfg(feature = "netavark")]
pub(super) fn refuse(network: &Network, path: &[PathBuf]) -> Result<()> {
    let mut document = examined(network, path);
    document.sort();
    let first = document.findings.into_iter().next();
    first.map_or(Ok(()), |finding| Err(Error::config(finding.text)))
}

/// The faults in a directory, for `cnibox doctor`.
pub(super) struct Faults {
    /// The files with the number of faults within each, and the text of the first one.
    pub(super) files: Vec<(PathBuf, usize, String)>,
    /// The faults between two networks, each with the file of the later network.
    pub(super) between: Vec<(PathBuf, String)>,
    pub(super) unreadable: Vec<Unreadable>,
}

impl Faults {
    /// `others` are networks that no file of the directory configures.
    pub(super) fn of(directory: &Path, path: &[PathBuf], others: &[Network]) -> Result<Self> {
        let (mut documents, unreadable) = examine(&[directory.to_owned()], path)?;
        let mut files = Vec::new();
        for document in &mut documents {
            document.sort();
            let first = document.findings.iter().find(|finding| finding.is_fault);
            let first = first.map_or_else(String::new, |finding| finding.text.clone());
            files.push((document.file.clone(), document.faults(), first));
            document.findings.clear();
        }
        compare(others, path, &mut documents);
        documents.iter_mut().for_each(Document::sort);
        let mut between = Vec::new();
        for document in documents {
            for finding in document.findings {
                between.push((document.file.clone(), finding.text));
            }
        }
        Ok(Self { files, between, unreadable })
    }
}

/// Reads the files in the order of the arguments, and those of a directory in the order of runtimes. A FIFO as an argument is
/// read (a shell makes one for `<(command)`); in a directory, a FIFO is a fault.
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

//! A configuration file with the findings of lint.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::output::print_finding;
use crate::cni::json::Json;

use super::json_path::{JsonPath, line_and_column};

/// One configuration file.
pub(super) struct Document {
    pub(super) file: PathBuf,
    pub(super) text: String,
    pub(super) findings: Vec<Finding>,
    pub(super) claims: Vec<Claim>,
    /// The links that are parents of networks, each with its offset in the text.
    pub(super) parents: Vec<(usize, String)>,
}

#[derive(Debug)]
pub(super) struct Finding {
    /// The position in the text, in bytes.
    pub(super) offset: usize,
    pub(super) is_fault: bool,
    pub(super) text: String,
}

/// A range of a network, and its position in the configuration.
pub(super) struct Claim {
    /// The offset of the range in the text of the document.
    pub(super) offset: usize,
    pub(super) network: String,
    /// The subnet as written in the file, for messages.
    pub(super) subnet: String,
    pub(super) first: IpAddr,
    pub(super) last: IpAddr,
    /// The bridge that has the subnet's route. `None`: the network makes no bridge.
    pub(super) bridge: Option<String>,
    /// The plugin attaches containers to an existing network, such as the LAN of a macvlan: the host may have a route to it.
    pub(super) is_shared: bool,
}

impl Claim {
    pub(super) fn overlaps(&self, first: IpAddr, last: IpAddr) -> bool {
        self.first.is_ipv4() == first.is_ipv4() && self.first <= last && first <= self.last
    }
}

/// Byte order marks and their encodings.
const MARKS: [(&[u8], &str); 3] =
    [(b"\xef\xbb\xbf", "UTF-8"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16")];

/// The maximum number of faults, and of notes, that are listed for one document.
const FINDINGS_MAX: usize = 100;

impl Document {
    /// Decodes the content of a file. A byte order mark at its start is a fault; the rest is decoded in the encoding of the
    /// mark.
    pub(super) fn new(file: PathBuf, content: &[u8]) -> Self {
        let (findings, claims, parents) = (Vec::new(), Vec::new(), Vec::new());
        let mut document = Self { file, text: String::new(), findings, claims, parents };
        let Some((mark, encoding)) = MARKS.iter().find(|(mark, _)| content.starts_with(mark))
        else {
            document.text = Json::text_of(content);
            return document;
        };
        let rest = &content[mark.len()..];
        let unit = |bytes: &[u8]| match mark {
            [0xff, _] => u16::from_le_bytes([bytes[0], bytes[1]]),
            _ => u16::from_be_bytes([bytes[0], bytes[1]]),
        };
        document.text = match *encoding {
            "UTF-8" => Json::text_of(rest),
            _ => String::from_utf16_lossy(&rest.chunks_exact(2).map(unit).collect::<Vec<_>>()),
        };
        let text = format!(
            "the file begins with a byte order mark (BOM) of {encoding}; JSON is UTF-8 without one"
        );
        document.add(0, true, text);
        document
    }

    pub(super) fn fault(&mut self, path: &JsonPath<'_>, text: impl Into<String>) {
        self.report(path, true, text.into());
    }

    pub(super) fn note(&mut self, path: &JsonPath<'_>, text: impl Into<String>) {
        self.report(path, false, text.into());
    }

    /// Adds a finding at a path. The search for its offset parses the whole text, so the number of findings is limited: a
    /// document can have hundreds of thousands of mistakes.
    fn report(&mut self, path: &JsonPath<'_>, is_fault: bool, text: String) {
        let known = self.findings.iter().filter(|known| known.is_fault == is_fault).count();
        match known.cmp(&FINDINGS_MAX) {
            Ordering::Less => self.add(path.offset_in(&self.text), is_fault, text),
            Ordering::Equal => {
                let kind = if is_fault { "faults" } else { "notes" };
                let text = format!("only the first {FINDINGS_MAX} {kind} of this file are listed");
                self.add(path.offset_in(&self.text), is_fault, text);
            }
            Ordering::Greater => {}
        }
    }

    pub(super) fn faults(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_fault).count()
    }

    /// Adds a finding at an offset in the text.
    pub(super) fn add(&mut self, offset: usize, is_fault: bool, text: String) {
        self.findings.push(Finding { offset, is_fault, text });
    }

    /// Sorts the findings by their offsets.
    pub(super) fn sort(&mut self) {
        self.findings.sort_by_key(|finding| finding.offset);
    }
}

/// Prints a finding, and below it the line of the file. Faults go to stdout, notes to stderr.
pub(super) fn print(document: &Document, Finding { offset, is_fault, text }: &Finding) {
    let (line, column) = line_and_column(&document.text, *offset);
    let shown = document.text.lines().nth(line - 1).unwrap_or_default().trim();
    let word = if *is_fault { "" } else { "note: " };
    let file = document.file.display();
    print_finding(*is_fault, format_args!("{file}:{line}:{column}: {word}{text}"));
    if !shown.is_empty() {
        print_finding(*is_fault, format_args!("    {shown}"));
    }
}

/// A finding in the output of --json.
#[derive(Serialize)]
pub(super) struct ShownFinding<'a> {
    file: Cow<'a, str>,
    line: usize,
    column: usize,
    kind: &'static str,
    text: &'a str,
}

impl<'a> ShownFinding<'a> {
    pub(super) fn new(document: &'a Document, finding: &'a Finding) -> Self {
        let (line, column) = line_and_column(&document.text, finding.offset);
        let file = document.file.to_string_lossy();
        let kind = if finding.is_fault { "fault" } else { "note" };
        Self { file, line, column, kind, text: &finding.text }
    }
}

/// The name of the file, for a finding about two files.
pub(in crate::cli) fn name(file: &Path) -> String {
    file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}

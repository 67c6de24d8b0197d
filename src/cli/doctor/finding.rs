//! The findings of the checks.

use std::collections::BTreeSet;
use std::fmt::{self, Display};

use serde::Serialize;

use super::filter::Filter;
use crate::cli::output::print_finding;

/// The harm of a finding. Findings are printed in the order of these variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Harm {
    /// Other users can become root.
    Insecure,
    /// Containers get no network, or packets are lost.
    Broken,
    /// A filter of another program may drop packets.
    May,
    /// The host will run out of addresses, or packets go to a removed container.
    Leaked,
    /// Not a fault.
    Note,
}

impl Harm {
    pub(super) fn is_fault(self) -> bool {
        !matches!(self, Self::May | Self::Note)
    }
}

impl Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Finding {
    #[serde(rename = "kind")]
    pub(super) harm: Harm,
    pub(super) what: String,
    /// Why the finding matters.
    pub(super) why: &'static str,
    /// The command that fixes the fault. Empty if it is unknown whether there is a fault.
    pub(super) fix: String,
    /// What the finding is about, if that is more than one thing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) lines: Vec<String>,
    /// The finding is about a network here, or about the host. Others are counted only, unless the operator asks for them.
    #[serde(skip)]
    pub(super) is_relevant: bool,
    /// The number of findings with the same command that are not listed.
    #[serde(skip)]
    pub(super) more: usize,
    /// `doctor --fix` sets the sysctl.
    #[serde(skip)]
    pub(super) sets_sysctl: bool,
}

impl Default for Finding {
    fn default() -> Self {
        let (what, fix, lines) = (String::new(), String::new(), Vec::new());
        Self {
            harm: Harm::Note,
            what,
            why: "",
            fix,
            lines,
            is_relevant: true,
            more: 0,
            sets_sysctl: false,
        }
    }
}

/// The findings of all checks.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) list: Vec<Finding>,
    /// The filters of other programs that may drop packets.
    pub(super) filters: Vec<Filter>,
}

impl Findings {
    /// Adds a finding: the fault, why it matters, and the command that fixes it.
    pub(super) fn add(
        &mut self,
        harm: Harm,
        what: impl Display,
        why: &'static str,
        fix: impl Display,
    ) {
        let (what, fix) = (what.to_string(), fix.to_string());
        self.list.push(Finding { harm, what, why, fix, ..Finding::default() });
    }

    /// The same. Of several findings with one command only the first is listed, with the number of the others.
    pub(super) fn add_one_of(
        &mut self,
        harm: Harm,
        what: impl Display,
        why: &'static str,
        fix: impl Display,
    ) {
        let fix = fix.to_string();
        let is_known =
            |known: &&mut Finding| (known.harm, known.why, &known.fix) == (harm, why, &fix);
        match self.list.iter_mut().find(is_known) {
            Some(known) => known.more += usize::from(known.what != what.to_string()),
            None => self.add(harm, what, why, fix),
        }
    }

    /// `add_one_of` for each of these findings.
    pub(super) fn add_each(&mut self, findings: Self) {
        for Finding { harm, what, why, fix, .. } in findings.list {
            self.add_one_of(harm, what, why, fix);
        }
    }

    /// Adds the finding that lists the filters. `fix` is what to type.
    pub(super) fn list_filters(&mut self, fix: &str) {
        let networks: BTreeSet<&String> =
            self.filters.iter().flat_map(|filter| &filter.networks).collect();
        let networks = networks.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let why = "Containers do not reach other networks, or their ports do not answer, if one of them drops their packets.";
        if !self.filters.is_empty() {
            self.list.push(Finding {
                harm: Harm::May,
                what: format!("filters may drop packets of {networks}"),
                why,
                fix: fix.into(),
                lines: self.filters.iter().map(Filter::line).collect(),
                ..Finding::default()
            });
        }
    }

    /// Completes the texts, and sorts the findings: the most harmful first.
    pub(super) fn finish(mut self) -> Vec<Finding> {
        for finding in self.list.iter_mut().filter(|finding| finding.more > 0) {
            finding.what.push_str(&format!(" (and {} more)", finding.more));
        }
        self.list.sort_by_key(|finding| finding.harm);
        self.list
    }

    /// Adds a note about something that no network here uses.
    pub(super) fn add_unused(&mut self, what: impl Display, why: &'static str, fix: impl Display) {
        self.add(Harm::Note, what, why, fix);
        self.list.last_mut().expect("a finding was added").is_relevant = false;
    }
}

impl Finding {
    /// Whether `doctor --fix` removes the fault.
    pub(super) fn is_fixable(&self) -> bool {
        self.harm == Harm::Leaked || self.sets_sysctl
    }

    pub(super) fn print(&self) {
        let Self { harm, what, why, fix, lines, .. } = self;
        let is_fault = *harm != Harm::Note;
        print_finding(is_fault, format_args!("{harm}: {what}"));
        lines.iter().for_each(|line| print_finding(is_fault, format_args!("    - {line}")));
        print_finding(is_fault, format_args!("    {why}"));
        if !fix.is_empty() {
            print_finding(is_fault, format_args!("    fix: {fix}"));
        }
    }
}

/// Quotes a word for a shell, if it has special characters.
pub(in crate::cli) fn quoted(word: impl Display) -> String {
    let word = word.to_string();
    if word.is_empty() {
        return "''".into();
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-@%+:,=".contains(c);
    if word.chars().all(is_plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell_are_quoted_if_they_must_be() {
        for (word, expected) in [
            ("/opt/cni/bin", "/opt/cni/bin"),
            ("a b", "'a b'"),
            ("it's $(x)", r"'it'\''s $(x)'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }

    #[test]
    fn a_shell_reads_a_quoted_word_as_it_is() {
        let all: String = (1..=127_u8).map(char::from).collect();
        let words = [
            &all, "", "'", "''", "$(id)", "`id`", "a;b", "a b", "*", "~", "#x", "!x", "\\", "a\nb",
            "{a,b}", "$HOME", "a&b", "a|b", "<x", "é", "-n", "a=b", "%s", "\t", "'; id #",
        ];
        for word in words {
            let script = format!("printf %s: {}", quoted(word));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{word}:"), "{script}");
        }
    }
}

//! `cnibox doctor`: faults of the host that break its networks, and the command that mends each.
//!
//! Each check is a function that reads the host and changes nothing. The kernel may load modules, as it does for plugins.

mod conflicts;
mod drops;
mod files;
mod forwarding;
mod host;
#[cfg(feature = "install")]
mod installed;
mod kernel;
mod leaks;
mod limits;
mod mends;
mod packets;

use std::fmt::{Arguments, Display};
use std::io::{IsTerminal, stdin};

use argh::FromArgs;

use crate::cni::json::{Json, Object};
use crate::error::Result;
use crate::kernel::sys::warn;
use crate::plugin::Entry;
use crate::runtime::lifecycle::Runtime;

use super::not_understood;
use super::parameters;
use super::say;
use super::table::printable;
use host::Host;

/// Find faults of this host that break its networks, and the command that mends each. Exit code 1 if something is wrong.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "doctor",
    help_triggers("-h", "--help", "help"),
    example = "{command_name}",
    example = "{command_name} --fix --dry-run",
    note = "Findings are in the order of their harm. Notes on stderr are no faults."
)]
pub(super) struct Doctor {
    /// remove what containers left that have ended: attachments, reservations, rules, links; after a question
    #[argh(switch)]
    fix: bool,
    /// with --fix: no question
    #[argh(switch)]
    yes: bool,
    /// with --fix: tell what would be removed, and remove nothing
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
}

/// The order is that of the findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Harm {
    /// Other users can become root.
    Insecure,
    /// Containers get no network, or packets are lost.
    Broken,
    /// The host will run out of addresses, or packets go to a removed container.
    Leaked,
    /// Not wrong.
    Note,
}

impl Harm {
    fn name(self) -> &'static str {
        match self {
            Self::Insecure => "insecure",
            Self::Broken => "broken",
            Self::Leaked => "leaked",
            Self::Note => "note",
        }
    }
}

#[derive(Debug)]
struct Finding {
    harm: Harm,
    what: String,
    /// Why it matters.
    why: &'static str,
    /// The command that mends it. Empty if it is not known whether something is wrong.
    mend: String,
}

/// The findings of all checks.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    /// Adds a finding: what is wrong, why it matters, and the command that mends it.
    #[inline(never)]
    fn add(&mut self, harm: Harm, what: Arguments<'_>, why: &'static str, mend: Arguments<'_>) {
        let (what, mend) = (what.to_string(), mend.to_string());
        self.0.push(Finding { harm, what, why, mend });
    }
}

type Check = fn(&Host<'_>, &mut Findings) -> Result<()>;

/// The checks, and the object of each for messages.
const CHECKS: &[(&str, Check)] = &[
    ("the plugin files", files::files),
    #[cfg(feature = "install")]
    ("the installed plugins", installed::installed),
    ("the network configurations", conflicts::conflicts),
    ("the kernel", kernel::features),
    ("IP forwarding", forwarding::forwarding),
    ("the reverse path filter", forwarding::reverse_path_filter),
    ("the rules for forwarded packets", drops::drops),
    ("the limits of the kernel", limits::limits),
    ("the remains of containers", leaks::leaks),
    ("the DHCP daemon", host::dhcp_daemon),
];

impl Doctor {
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let asks_nothing = self.yes || self.dry_run;
        if asks_nothing && !self.fix {
            return Err(not_understood("--yes and --dry-run need --fix"));
        }
        let runtime = parameters::runtime(plugins, parameters::TIMEOUT_S);
        let mut findings = examine(&runtime)?;
        if !self.json {
            findings.iter().for_each(Finding::print);
        }
        let mut done = Vec::new();
        let mut fixed = Ok(());
        let has_leaks = findings.iter().any(|it| it.harm == Harm::Leaked);
        if self.fix && has_leaks && (asks_nothing || may_fix()?) {
            let mut tell =
                |line: String| if self.json { done.push(line.into()) } else { say(&line) };
            fixed = leaks::fix(runtime, self.dry_run, &mut tell);
            if !self.dry_run {
                findings.retain(|it| it.harm != Harm::Leaked);
            }
        }
        if self.json {
            let mut objects = Vec::new();
            for finding in &findings {
                objects.push(finding.object());
            }
            let mut document = Object::default();
            document.list("findings", objects);
            if self.fix {
                document.list("done", done);
            }
            super::say_json(&mut document);
        }
        fixed.map(|()| u8::from(findings.iter().any(|it| it.harm != Harm::Note)))
    }
}

fn may_fix() -> Result<bool> {
    if !stdin().is_terminal() {
        return Err(not_understood("--fix needs a terminal for its question, or --yes"));
    }
    eprint!("Remove what is leaked? [y/N] ");
    let mut answer = String::new();
    // No answer is no.
    let _ = stdin().read_line(&mut answer);
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}

/// The findings of all checks.
fn examine(runtime: &Runtime) -> Result<Vec<Finding>> {
    let host = Host::look(runtime)?;
    let mut found = Findings::default();
    for (object, check) in CHECKS.iter().copied() {
        if let Err(error) = check(&host, &mut found) {
            let why = "The host may have a fault that is not found.";
            let what = format_args!("cannot examine {object}: {error}");
            found.add(Harm::Broken, what, why, format_args!("sudo cnibox doctor"));
        }
    }
    let mut sorted: Vec<Finding> = Vec::new();
    for finding in found.0 {
        let place = sorted.iter().position(|it| it.harm > finding.harm).unwrap_or(sorted.len());
        sorted.insert(place, finding);
    }
    Ok(sorted)
}

impl Finding {
    fn print(&self) {
        let Self { harm, what, why, mend } = self;
        let (what, mend) = (printable(what), printable(mend));
        let mend = if mend.is_empty() { mend } else { format!("\n    mend: {mend}") };
        let text = format!("{}: {what}\n    {why}{mend}", harm.name());
        if *harm == Harm::Note {
            warn(format_args!("{text}"));
        } else {
            say(&text);
        }
    }

    fn object(&self) -> Json {
        let mut object = Object::default();
        object.text("kind", &self.harm.name()).text("what", &self.what);
        object.text("why", &self.why).text("mend", &self.mend).json()
    }
}

/// A word of a command for a shell.
fn quoted(word: impl Display) -> String {
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

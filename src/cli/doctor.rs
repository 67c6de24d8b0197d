//! `cnibox doctor`: faults of the host that break its networks, and the command that fixes each.
//!
//! Each check is a function that reads the host and changes nothing. The kernel may load modules, as it does for plugins.

mod conflicts;
mod files;
mod filters;
mod finding;
mod forwarding;
mod host;
#[cfg(feature = "install")]
mod installed;
mod kernel;
mod leaks;
mod limits;
mod links;
mod marks;
mod replies;
mod timer;
mod traffic;
mod watcher;

use std::io::{BufRead, IsTerminal, Read, stdin};

use argh::FromArgs;
use serde::Serialize;

use crate::error::Result;
use crate::runtime::Runtime;

use super::output::{self, print_line, usage_error};
use super::{parameters, podman};
#[cfg(feature = "netavark")]
pub(super) use finding::quoted;
use finding::{Finding, Findings, Harm};
use host::Host;

/// Find faults of this host that break its networks, and print the command that fixes each. Exit code 1 if there is a fault.
#[derive(FromArgs)]
#[argh(
    subcommand,
    name = "doctor",
    help_triggers("-h", "--help", "help"),
    example = "{command_name}",
    example = "{command_name} --fix --dry-run",
    note = "The most harmful findings come first. Notes on stderr are no faults."
)]
pub(super) struct Doctor {
    /// ask, then remove what belongs to ended containers: attachments, reservations, rules, links; and set accept_ra=2 on links
    /// that ignore router advertisements
    #[argh(switch)]
    fix: bool,
    /// with --fix: do not ask
    #[argh(switch)]
    yes: bool,
    /// with --fix: print what would be removed or set, and change nothing
    #[argh(switch)]
    dry_run: bool,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
}

/// The output of --json.
#[derive(Serialize)]
struct JsonOutput<'a> {
    findings: &'a [Finding],
    /// The lines that --fix prints.
    #[serde(skip_serializing_if = "Option::is_none")]
    done: Option<Vec<String>>,
}

type Check = fn(&Host<'_>, &mut Findings) -> Result<()>;

/// The checks, and what each examines, for messages.
const CHECKS: &[(&str, Check)] = &[
    ("the plugin files", files::files),
    #[cfg(feature = "install")]
    ("the installed plugins", installed::installed),
    ("the network configurations", conflicts::conflicts),
    ("the kernel", kernel::features),
    ("IP forwarding", forwarding::forwarding),
    ("router advertisements", forwarding::advertisements),
    ("the reverse path filter", forwarding::reverse_path_filter),
    ("the replies of published ports", replies::replies),
    ("the filters of other programs", filters::filters),
    ("the bits of the packet mark", marks::marks),
    ("the limits of the kernel", limits::limits),
    ("the remains of containers", leaks::leaks),
    ("the DHCP daemon", host::dhcp_daemon),
    ("the timer of gc", timer::timer),
    ("the watcher", watcher::watcher),
];

impl Doctor {
    pub(super) fn run(&self) -> Result<u8> {
        let needs_no_answer = self.yes || self.dry_run;
        if needs_no_answer && !self.fix {
            return Err(usage_error("--yes and --dry-run need --fix"));
        }
        let runtime = podman::runtime(parameters::TIMEOUT_S);
        let mut findings = examine(&runtime)?;
        if !self.json {
            findings.iter().for_each(Finding::print);
        }
        let mut done = Vec::new();
        let mut fixed = Ok(());
        let fixable: Vec<Harm> =
            findings.iter().filter(|found| found.is_fixable).map(|found| found.harm).collect();
        if self.fix && !fixable.is_empty() && (needs_no_answer || ask(&fixable)?) {
            let mut print =
                |line: &str| if self.json { done.push(line.into()) } else { print_line(line) };
            let removed = leaks::fix(&runtime, self.dry_run, &mut print);
            let set = forwarding::fix_advertisements(self.dry_run, &mut print);
            fixed = removed.and(set);
            if !self.dry_run {
                findings.retain(|finding| !finding.is_fixable);
            }
        }
        if self.json {
            output::print_json(&JsonOutput { findings: &findings, done: self.fix.then_some(done) });
        }
        fixed.map(|()| u8::from(findings.iter().any(|finding| finding.harm.is_fault())))
    }
}

/// The most bytes that are read of the answer to `ask`. The answer is one letter.
const ANSWER_BYTES_MAX: u64 = 64;

/// Asks on the terminal whether to fix the findings. Returns whether the answer is `y`.
fn ask(fixable: &[Harm]) -> Result<bool> {
    if !stdin().is_terminal() {
        return Err(usage_error("--fix needs a terminal for its question, or --yes"));
    }
    let is_about_leaks = fixable.iter().all(|harm| *harm == Harm::Leaked);
    let more = if is_about_leaks { "" } else { ", and accept the router advertisements" };
    eprint!("Remove the leaks{more}? [y/N] ");
    let mut answer = String::new();
    // A failed read leaves the answer empty, which means no.
    let _ = stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut answer);
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}

/// Runs all checks. Returns their findings, the most harmful first.
fn examine(runtime: &Runtime) -> Result<Vec<Finding>> {
    let host = Host::read(runtime, false)?;
    let mut found = Findings::default();
    for (object, check) in CHECKS {
        if let Err(error) = check(&host, &mut found) {
            let why = "The check stopped, so it can have missed a fault.";
            let what = format_args!("cannot examine {object}: {error}");
            found.add(Harm::Broken, what, why, "sudo cnibox doctor");
        }
    }
    found.0.sort_by_key(|finding| finding.harm);
    Ok(found.0)
}

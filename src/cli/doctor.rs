//! `cnibox doctor`: faults of the host that break its networks, and the command that fixes each.
//!
//! Each check is a function that reads the host and changes nothing. The kernel may load modules, as it does for plugins.

mod conflicts;
mod files;
mod filter;
mod filters;
mod finding;
mod forwarding;
mod host;
#[cfg(feature = "install")]
mod installed;
mod interfaces;
mod kernel;
mod leaks;
mod limits;
mod links;
mod manager;
mod marks;
mod options;
mod parts;
mod probe;
mod published;
mod replies;
mod routes;
mod timer;
mod traffic;

use std::fs;
use std::io::{BufRead, IsTerminal, Read, stdin};
use std::os::unix::fs::MetadataExt;

use argh::{ArgsInfo, FromArgs};
use serde::Serialize;

use crate::attachments::life::Life;
use crate::attachments::life::Witness;
use crate::error::{Error, Result};
use crate::kernel::sys::{self, warn};
use crate::runtime::Runtime;

use super::output::{self, print_line, usage_error};
use super::{parameters, podman};
#[cfg(feature = "netavark")]
pub(super) use finding::quoted;
use finding::{Finding, Findings, Harm};
use host::Host;
use options::ExamineOptions;

/// Find faults of this host that break its networks, and print the command that fixes each. Exit code 1 if there is a fault.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "doctor",
    help_triggers("-h", "--help", "help"),
    example = "{command_name}",
    example = "{command_name} --fix --dry-run",
    example = "{command_name} --probe",
    example = "{command_name} --probe --port 8080",
    note = "What is broken comes first, then what may be. Notes on stderr are no faults."
)]
pub(super) struct Doctor {
    /// examine only what concerns a container: its id, the beginning of its id, or its network namespace
    #[argh(positional)]
    container: Option<String>,
    /// examine only what concerns the container that publishes this port of the host
    #[argh(option)]
    port: Option<u16>,
    /// ask the kernel which rule drops packets of containers: packets are traced through all rules of the host; they leave
    /// neither the host nor reach a program. With CONTAINER or --port, print their ways
    #[argh(switch)]
    probe: bool,
    /// with --probe: also if a rule could hand a packet to a program, or store its address
    #[argh(switch)]
    force: bool,
    /// also compare addresses, routes and settings in the containers; a container can have changed them on purpose
    #[argh(switch)]
    inside: bool,
    /// list also notes that concern no network here
    #[argh(switch, short = 'v')]
    verbose: bool,
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

/// The checks of the host, and what each examines, for messages. They do not concern a single container.
const CHECKS_OF_HOST: &[(&str, Check)] = &[
    ("the plugin files", files::files),
    #[cfg(feature = "install")]
    ("the installed plugins", installed::installed),
    ("the network configurations", conflicts::conflicts),
    ("the timer of gc", timer::timer),
    ("the watcher", watcher),
];

/// The checks of networks and attachments.
const CHECKS: &[(&str, Check)] = &[
    ("the remains of containers", leaks::leaks),
    ("the kernel", kernel::features),
    ("the parents of networks", conflicts::parents),
    ("IP forwarding", forwarding::forwarding),
    ("the default route", forwarding::default_route),
    ("router advertisements", forwarding::advertisements),
    ("the reverse path filter", forwarding::reverse_path_filter),
    ("the replies of published ports", replies::replies),
    ("the programs on published ports", replies::shadowed),
    ("the filters of other programs", filters::filters),
    ("the bits of the packet mark", marks::marks),
    ("the limits of the kernel", limits::limits),
    ("the DHCP daemon", host::dhcp_daemon),
    ("the attachments without proof", leaks::unexamined),
    ("the reservations", leaks::reservations),
    // After it, an interrupt ends no process.
    ("the attachments", parts::parts),
];

impl Doctor {
    pub(super) fn run(&self) -> Result<u8> {
        let needs_no_answer = self.yes || self.dry_run;
        if needs_no_answer && !self.fix {
            return Err(usage_error("--yes and --dry-run need --fix"));
        }
        let is_about_one = self.container.is_some() || self.port.is_some();
        if is_about_one && self.fix || self.container.is_some() && self.port.is_some() {
            return Err(usage_error("CONTAINER, --port and --fix exclude each other"));
        }
        if self.force && !self.probe {
            return Err(usage_error("--force needs --probe"));
        }
        let runtime = podman::runtime(parameters::TIMEOUT_S);
        let (mut findings, healthy, ways) = self.examine(&runtime)?;
        if !self.json {
            if is_about_one {
                ways.iter().for_each(print_line);
            }
            self.print(&findings, &healthy);
        }
        let mut done = Vec::new();
        let mut fixed = Ok(());
        let fixable = findings.iter().filter(|finding| finding.is_fixable());
        let fixable: Vec<Harm> = fixable.map(|found| found.harm).collect();
        if self.fix && !fixable.is_empty() && (needs_no_answer || ask(&fixable)?) {
            let mut print =
                |line: &str| if self.json { done.push(line.into()) } else { print_line(line) };
            let removed = leaks::fix(&runtime, self.dry_run, &mut print);
            let set = forwarding::fix_advertisements(self.dry_run, &mut print);
            fixed = removed.and(set);
            if !self.dry_run {
                findings.retain(|finding| !finding.is_fixable());
            }
        }
        if self.json {
            output::print_json(&JsonOutput { findings: &findings, done: self.fix.then_some(done) });
        }
        fixed.map(|()| u8::from(findings.iter().any(|finding| finding.harm.is_fault())))
    }

    /// Prints the findings. `healthy` is the line if there is none on stdout.
    fn print(&self, findings: &[Finding], healthy: &str) {
        let is_shown = |finding: &&Finding| finding.is_relevant || self.verbose;
        findings.iter().filter(is_shown).for_each(Finding::print);
        if findings.iter().all(|finding| finding.harm == Harm::Note) {
            print_line(healthy);
        }
        match findings.iter().filter(|finding| !is_shown(finding)).count() {
            0 => {}
            1 => warn(format_args!(
                "1 kernel feature that no network here uses is missing: -v lists it"
            )),
            count => warn(format_args!(
                "{count} kernel features that no network here uses are missing: -v lists them"
            )),
        }
    }

    /// Runs the checks. Returns their findings, the most harmful first, the line for a healthy host, and the ways of packets.
    fn examine(&self, runtime: &Runtime) -> Result<(Vec<Finding>, String, Vec<String>)> {
        let mut survey = Witness::new().and_then(|witness| runtime.read_survey(&witness));
        let all = survey.as_ref().map_or_else(|_| Vec::new(), |survey| survey.attachments.clone());
        let only = match (&self.container, self.port) {
            (Some(container), _) => {
                Some(options::of_container(survey.as_ref().map_err(Error::clone)?, container)?)
            }
            (None, Some(port)) => {
                Some(options::of_port(survey.as_ref().map_err(Error::clone)?, port)?)
            }
            (None, None) => None,
        };
        let is_verbose = self.verbose || only.is_some();
        let options = ExamineOptions { is_verbose, is_inside: self.inside, only };
        if let Ok(survey) = &mut survey {
            survey.retain(|network, at| options.concerns(network, at));
        }
        let of_host = if options.only.is_none() { CHECKS_OF_HOST } else { &[] };
        let host = Host::read(runtime, survey, options)?;
        let mut found = Findings::default();
        let shows_progress = !self.json && sys::has_terminal();
        for (object, check) in of_host.iter().chain(CHECKS) {
            if shows_progress {
                eprint!("\r\x1b[Kexamining {object} …");
            }
            if let Err(error) = check(&host, &mut found) {
                let why = "The check stopped, so it can have missed a fault.";
                let what = format_args!("cannot examine {object}: {error}");
                found.add(Harm::Broken, what, why, repeat());
            }
        }
        if shows_progress {
            eprint!("\r\x1b[K");
        }
        let (mut ways, mut line) = (Vec::new(), healthy(&host));
        let mut fix = "cnibox doctor --probe";
        if self.probe {
            let asked = probe::Asked { port: self.port, force: self.force };
            match probe::probe(&host, &all, asked, &mut found) {
                Ok(probed) => {
                    // The operator has called it.
                    fix = "";
                    ways = probed.ways;
                    line = probed.healthy.unwrap_or(line);
                }
                Err(error) => {
                    let why = "It is unknown which packets the host drops.";
                    let what = format_args!("cannot send the packets of the probe: {error}");
                    found.add(Harm::Broken, what, why, "sudo cnibox doctor --probe");
                }
            }
        }
        found.list_filters(fix);
        Ok((found.finish(), line, ways))
    }
}

/// What to type after a check that failed.
fn repeat() -> &'static str {
    let own = fs::metadata("/proc/self");
    match own.is_ok_and(|own| own.uid() == 0) {
        true => "mend what the error names, then: cnibox doctor",
        false => "sudo cnibox doctor",
    }
}

/// `1 network`, `3 networks`
fn counted(count: usize, name: &str) -> String {
    if count == 1 { format!("1 {name}") } else { format!("{count} {name}s") }
}

/// `no fault found in 3 networks and 12 attachments`
fn healthy(host: &Host<'_>) -> String {
    let survey = host.survey.as_ref().ok();
    let lives = || survey.into_iter().flat_map(|survey| survey.all_lives());
    let alive = lives().filter(|(_, _, life)| **life == Life::Alive).count();
    let unknown = lives().filter(|(_, _, life)| matches!(life, Life::Unknown(_))).count();
    let (networks, alive) = (counted(host.networks.len(), "network"), counted(alive, "attachment"));
    let unknown = match unknown {
        0 => String::new(),
        count => format!("; {} may have ended", counted(count, "attachment")),
    };
    format!("no fault found in {networks} and {alive}{unknown}")
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

/// Finds objects that the watcher of `reconcile` leaves, because another program removes them again and again.
fn watcher(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    for left in host.runtime.left_by_watcher()? {
        found.add(
            Harm::Broken,
            left,
            "Another program removes it again and again. The watcher repairs it at the latest 10 s after the last change.",
            "sudo cnibox reconcile",
        );
    }
    Ok(())
}

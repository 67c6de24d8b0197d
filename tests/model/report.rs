//! Counts of a run, and the failures that it found. `--report FILE` writes them as docs/reliability.md.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use crate::history::Options;
use crate::model::Failure;
use crate::step::Step;

/// Faults of the product that histories have found, with the commit that fixed each.
const FAULTS: &str = include_str!("found.md");
/// The parts of a node that histories lack.
const LIMITS: &str = include_str!("limits.md");

/// The heading of the section about histories.
const HEADING: &str = "## Random histories of a node";

pub struct Report {
    pub commit: String,
    pub kept: u64,
    seed: u64,
    histories: u64,
    steps: u64,
    nodes: Duration,
    counts: BTreeMap<String, u64>,
    found: Vec<Found>,
}

/// A history that fails.
pub struct Found {
    seed: u64,
    rule: &'static str,
    text: String,
    steps: String,
    command: String,
}

impl Found {
    pub fn new(seed: u64, failure: &Failure, steps: &[Step], options: &Options) -> Self {
        let lines: Vec<String> = steps.iter().map(ToString::to_string).collect();
        let mut command = format!(
            "cargo test --test model -- --seed {seed} --histories 1 --steps {}",
            options.steps
        );
        if options.all {
            command += " --all";
        }
        if !options.without.is_empty() {
            command += &format!(" --without {}", options.without.join(","));
        }
        let (rule, text) = (failure.rule, failure.text.clone());
        Self { seed, rule, text, steps: lines.join("\n"), command }
    }
}

impl Report {
    pub fn new(seed: u64) -> Self {
        let git = |words: &[&str]| {
            let output =
                Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR")]).args(words).output();
            output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).ok()
        };
        let commit = git(&["rev-parse", "--short", "HEAD"]).filter(|commit| !commit.is_empty());
        let is_changed =
            git(&["status", "--porcelain", "src"]).is_some_and(|changes| !changes.is_empty());
        let commit = commit.unwrap_or_else(|| "unknown".into());
        Self {
            commit: if is_changed { format!("{commit} with changes") } else { commit },
            kept: 0,
            seed,
            histories: 0,
            steps: 0,
            nodes: Duration::ZERO,
            counts: BTreeMap::new(),
            found: Vec::new(),
        }
    }

    pub fn add(
        &mut self,
        counts: &BTreeMap<String, u64>,
        steps: usize,
        time: Duration,
        found: Option<Found>,
    ) {
        self.histories += 1;
        self.steps += steps as u64;
        self.nodes += time;
        for (name, count) in counts {
            *self.counts.entry(name.clone()).or_default() += count;
        }
        self.found.extend(found);
    }

    pub fn has_failed(&self) -> bool {
        !self.found.is_empty()
    }

    /// Prints a failure as soon as it is known.
    pub fn print_found(&self, found: &Found) {
        println!(
            "\nmodel: seed {} at commit {} fails: {}\n{}\nagain: {}\nsteps:\n{}\n",
            found.seed, self.commit, found.rule, found.text, found.command, found.steps
        );
    }

    /// The numbers, in the form of the test harness too, which tests/run reads.
    pub fn print(&self) {
        let failed = self.found.len() as u64;
        println!(
            "\nmodel: {} kept histories, {} new ones with {} steps in {} s of nodes, {failed} of them failed",
            self.kept,
            self.histories,
            self.steps,
            self.nodes.as_secs(),
        );
        let passed = self.histories - failed + self.kept;
        let result = if failed == 0 { "ok" } else { "FAILED" };
        println!(
            "test result: {result}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
        );
    }

    /// docs/reliability.md, from its section about histories to its end. `tests/run` writes what is before.
    pub fn write(&self, file: &str, wall: Duration) -> std::io::Result<()> {
        let per_hour = self.steps * 3600 / wall.as_secs().max(1);
        let old = std::fs::read_to_string(file).unwrap_or_default();
        let before = old.split(HEADING).next().unwrap_or_default();
        let mut text = format!(
            "{before}{HEADING}\n\n\
             `cargo test --test model -- --minutes N --report docs/reliability.md` wrote this section. The program plays random steps on\n\
             nodes (user, mount, network and PID namespaces of their own) and compares each node with a small model: living attachments\n\
             keep all that they have, nothing is left of deleted ones, and an empty node is reached at the end.\n\n\
             | | |\n|---|---|\n\
             | commit | {} |\n| first seed | {} |\n| minutes | {} |\n| histories | {} |\n| steps | {} |\n| steps per hour | {per_hour} |\n\
             | failed histories | {} |\n| kept histories, played by `tests/run` | {} |\n\n\
             ### Steps\n\n| kind | count |\n|---|---|\n",
            self.commit,
            self.seed,
            wall.as_secs() / 60,
            self.histories,
            self.steps,
            self.found.len(),
            self.kept
        );
        for (name, count) in &self.counts {
            // A string takes all that is written to it.
            let _ = writeln!(text, "| {name} | {count} |");
        }
        let _ = write!(
            text,
            "\n### Faults that histories found\n\n{FAULTS}\n### Not modelled\n\n{LIMITS}"
        );
        std::fs::write(file, text)
    }
}

//! Counts of a run, and the failures that it found.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use crate::history::Options;
use crate::model::Failure;
use crate::step::Step;

pub struct Report {
    pub commit: String,
    pub kept: u64,
    histories: u64,
    steps: u64,
    time: Duration,
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
        Self {
            seed,
            rule: failure.rule,
            text: failure.text.clone(),
            steps: lines.join("\n"),
            command,
        }
    }
}

impl Report {
    pub fn new() -> Self {
        let commit = Command::new("git")
            .args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "--short", "HEAD"])
            .output()
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        Self {
            commit: commit.ok().filter(|it| !it.is_empty()).unwrap_or_else(|| "unknown".into()),
            kept: 0,
            histories: 0,
            steps: 0,
            time: Duration::ZERO,
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
        self.time += time;
        for (name, count) in counts {
            *self.counts.entry(name.clone()).or_default() += count;
        }
        self.found.extend(found);
    }

    pub fn has_failed(&self) -> bool {
        !self.found.is_empty()
    }

    pub fn print(&self) {
        for found in &self.found {
            println!(
                "\nmodel: seed {} at commit {} fails: {}\n{}\nagain: {}\nsteps:\n{}",
                found.seed, self.commit, found.rule, found.text, found.command, found.steps
            );
        }
        println!(
            "\nmodel: {} kept histories, {} new ones with {} steps in {} s of nodes, {} of them failed",
            self.kept,
            self.histories,
            self.steps,
            self.time.as_secs(),
            self.found.len()
        );
        let (passed, failed) =
            (self.histories - self.found.len() as u64 + self.kept, self.found.len());
        let result = if failed == 0 { "ok" } else { "FAILED" };
        println!(
            "test result: {result}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
        );
    }

    /// Writes the counts as a table, for docs/reliability.md.
    pub fn write(&self, file: &str) -> std::io::Result<()> {
        let mut text = String::new();
        for (name, count) in &self.counts {
            // A string takes all that is written to it.
            let _ = writeln!(text, "| {name} | {count} |");
        }
        std::fs::write(file, text)
    }
}

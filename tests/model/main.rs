//! A model of a node, and random histories that look for where the product differs from it. Run by hand for hours:
//!
//! `cargo test --test model -- --seed N --steps N --nodes N --minutes N`
//!
//! Without arguments it plays the kept histories of `tests/model/seeds` only. Each of them, and the history of each seed of
//! `SEEDS`, is a test for cargo-nextest: this program lists them and takes the name of one as the test harness does.

#![expect(
    clippy::print_stdout,
    reason = "it has the place of a test harness, which prints results"
)]

mod history;
mod look;
mod model;
mod node;
mod play;
mod random;
mod report;
mod shrink;
mod step;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use history::Options;
use model::Failure;
use play::Play;
use report::Report;
use step::Step;

const USAGE: &str = "usage: cargo test --test model -- [--seed N] [--steps N] [--nodes N] [--minutes N] [--histories N]
    [--all] [--without KIND,KIND] [--play FILE] [--verbose] [--no-shrink] [--go-on] [--report FILE]";

/// The seeds of the histories that are tests. Theirs have no step `race`, `beside` or `stop-daemon`, whose outcomes depend on
/// the scheduler, and no step `storm`, which waits until the host is quiet.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=4;
const WITHOUT_OF_SEEDS: [&str; 4] = ["race", "storm", "beside", "stop-daemon"];
/// About 10 s. An hour of histories is a tier of its own.
const STEPS: usize = 80;
/// The names of tests begin so.
const KEPT: &str = "kept::";
const SEED: &str = "seed::";

#[derive(Clone, Debug)]
struct Arguments {
    seed: Option<u64>,
    nodes: usize,
    minutes: Option<f64>,
    histories: Option<u64>,
    play: Option<String>,
    verbose: bool,
    shrink: bool,
    go_on: bool,
    is_other: bool,
    report: Option<String>,
    options: Options,
}

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    // cargo-nextest has it before the name of a test.
    let is_exact = words.first().is_some_and(|word| word == "--exact");
    words.retain(|word| word != "--exact");
    let done = match words.first().map(String::as_str) {
        Some("--node") => node::init::node(&words[1]).map_err(|error| error.to_string()),
        Some("--init") => node::init::serve(&words[1]).map_err(|error| error.to_string()),
        Some("--probe") => node::probe(&words[1..]),
        Some("--dhcp-server") => node::dhcp_server::serve(&words[1..]),
        Some("--forger") => node::forger::forge().map_err(|error| error.to_string()),
        Some("--list") if words.iter().any(|word| word == "--ignored") => Ok(()),
        Some("--list") => list(),
        Some(name) if name.starts_with(KEPT) || name.starts_with(SEED) => test(name),
        Some(name) if is_exact => Err(format!("there is no test {name}")),
        _ => match arguments(&words) {
            Ok(arguments) if arguments.is_other => Ok(()),
            Ok(arguments) => play(&arguments),
            Err(error) => Err(format!("{error}\n{USAGE}")),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the tests as the harness of Rust does.
fn list() -> Result<(), String> {
    for file in kept()? {
        println!("{KEPT}{}: test", file.file_stem().unwrap_or_default().to_string_lossy());
    }
    SEEDS.for_each(|seed| println!("{SEED}{seed}: test"));
    Ok(())
}

/// Plays the history of one test.
fn test(name: &str) -> Result<(), String> {
    if let Some(name) = name.strip_prefix(KEPT) {
        return play_file(&format!("{DIRECTORY}/{name}.steps"), false);
    }
    let seed = name.trim_start_matches(SEED);
    let seed: u64 = seed.parse().map_err(|_| format!("{seed}: not a number"))?;
    let options =
        Options { steps: STEPS, all: false, without: WITHOUT_OF_SEEDS.map(str::to_owned).into() };
    let steps = history::of_seed(seed, &options);
    let outcome = outcome_of(&mut Play::new(), &steps);
    outcome.map_err(|(at, failure)| {
        let without = WITHOUT_OF_SEEDS.join(",");
        let again = format!(
            "cargo test --test model -- --histories 1 --steps {STEPS} --without {without} --seed"
        );
        format!("step {at}: {}\n{}\nagain, shrunk: {again} {seed}", failure.rule, failure.text)
    })
}

fn arguments(words: &[String]) -> Result<Arguments, String> {
    let options = Options { steps: STEPS, all: false, without: Vec::new() };
    let mut arguments = Arguments {
        seed: None,
        nodes: 2,
        minutes: None,
        histories: None,
        play: None,
        verbose: false,
        shrink: true,
        go_on: false,
        is_other: false,
        report: None,
        options,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number =
            |text: &String| text.parse::<u64>().map_err(|_| format!("{text}: not a number"));
        match word.as_str() {
            "--seed" => arguments.seed = Some(number(value()?)?),
            "--steps" => {
                arguments.options.steps = usize::try_from(number(value()?)?).unwrap_or(STEPS)
            }
            "--nodes" => arguments.nodes = usize::try_from(number(value()?)?).unwrap_or(2).max(1),
            "--histories" => arguments.histories = Some(number(value()?)?),
            "--minutes" => {
                let text = value()?;
                let minutes = text.parse().map_err(|_| format!("{text}: not a number"))?;
                arguments.minutes = Some(minutes);
            }
            "--without" => {
                arguments.options.without = value()?.split(',').map(str::to_owned).collect();
            }
            "--play" => arguments.play = Some(value()?.clone()),
            "--report" => arguments.report = Some(value()?.clone()),
            "--all" => arguments.options.all = true,
            "--verbose" => arguments.verbose = true,
            "--no-shrink" => arguments.shrink = false,
            "--go-on" => arguments.go_on = true,
            // Options of other test executables.
            "--nocapture" | "--no-capture" | "--show-output" | "--quiet" | "-q" | "--exact" => {}
            "--test-threads" | "--skip" | "--format" | "--color" => drop(value()?),
            _ if word.starts_with('-') => return Err(format!("unknown option {word}")),
            // The name of a test of another one.
            _ => arguments.is_other = true,
        }
    }
    Ok(arguments)
}

fn play(arguments: &Arguments) -> Result<(), String> {
    let seed = arguments.seed.unwrap_or_else(new_seed);
    let mut report = Report::new(seed);
    match &arguments.play {
        Some(file) => return play_file(file, arguments.verbose),
        None if arguments.seed.is_none() => play_kept(&mut report)?,
        None => {}
    }
    let begin = Instant::now();
    let histories = match (arguments.seed, arguments.minutes, arguments.histories) {
        // The result of a test without arguments depends on the commit only.
        (None, None, None) => Some(0),
        (Some(_), None, None) => Some(arguments.nodes as u64),
        (_, _, histories) => histories,
    };
    println!("model: seed {seed}, commit {}, {} nodes", report.commit, arguments.nodes);
    let deadline =
        arguments.minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(minutes * 60.0));
    let next = AtomicU64::new(0);
    let shared = Arc::new(Mutex::new(report));
    std::thread::scope(|scope| {
        for _ in 0..arguments.nodes {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline)
                        || histories.is_some_and(|count| number >= count);
                    let has_failed =
                        !arguments.go_on && shared.lock().is_ok_and(|report| report.has_failed());
                    if is_over || has_failed {
                        break;
                    }
                    one(seed.wrapping_add(number), arguments, &shared);
                }
            });
        }
    });
    let report = shared.lock().map_err(|error| error.to_string())?;
    report.print();
    if let Some(file) = &arguments.report {
        report.write(file, begin.elapsed()).map_err(|error| format!("{file}: {error}"))?;
    }
    if report.has_failed() { Err("the model and the product differ".into()) } else { Ok(()) }
}

/// Plays the history of a seed, and shrinks it if it fails.
fn one(seed: u64, arguments: &Arguments, shared: &Mutex<Report>) {
    let steps = history::of_seed(seed, &arguments.options);
    let begin = Instant::now();
    let mut play = Play::new();
    play.is_verbose = arguments.verbose;
    let outcome = outcome_of(&mut play, &steps);
    let note = |found: Option<report::Found>| {
        if let Ok(mut report) = shared.lock() {
            if let Some(found) = &found {
                report.print_found(found);
            }
            report.add(&play.counts, steps.len(), begin.elapsed(), found);
        }
    };
    match outcome {
        Ok(()) => note(None),
        Err((at, failure)) => {
            println!("model: seed {seed} fails at step {at}: {}\n{}", failure.rule, failure.text);
            let until = &steps[..steps.len().min(at + 1)];
            let (few, failure) = if arguments.shrink {
                shrink::shrink(until, &failure)
            } else {
                (until.to_vec(), failure)
            };
            note(Some(report::Found::new(seed, &failure, &few, &arguments.options)));
        }
    }
}

/// A panic is a mistake of this program, and a failure as any other.
fn outcome_of(play: &mut Play, steps: &[Step]) -> Result<(), (usize, Failure)> {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play.history(steps)));
    caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        Err((steps.len(), Failure { rule: "this program works", text }))
    })
}

fn play_file(file: &str, verbose: bool) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let steps: Vec<Step> = step::parse(&text)?;
    let mut play = Play::new();
    play.is_verbose = verbose;
    let outcome = play.history(&steps);
    outcome.map_err(|(at, failure)| format!("step {at}: {}\n{}", failure.rule, failure.text))
}

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model/seeds");

/// The files of the kept histories.
fn kept() -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(DIRECTORY).map_err(|error| format!("{DIRECTORY}: {error}"))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "steps"));
    files.sort();
    Ok(files)
}

/// Plays all kept histories.
fn play_kept(report: &mut Report) -> Result<(), String> {
    let mut failed = Vec::new();
    for file in kept()? {
        let name = file.to_string_lossy();
        match play_file(&name, false) {
            Ok(()) => report.kept += 1,
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map(|time| u64::from(time.subsec_nanos()) ^ (time.as_secs() << 10)).unwrap_or(1)
        % 1_000_000_000
}

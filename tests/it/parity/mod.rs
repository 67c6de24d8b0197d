//! The same scenario on the reference plugins and on ours. Every difference is listed by name, with a reason; a difference that
//! is listed and does not occur is a failure, too.

mod differences;
mod mixed;
mod scenarios;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::world::state::{mask_macs, mask_veth};
use crate::world::{Container, Outcome, World, on_two_threads};
use differences::DIFFERENCES;
use scenarios::{Scenario, scenarios};

/// The directory of the reference plugins: CNI_REFERENCE, or where Debian has them.
#[expect(clippy::disallowed_methods, reason = "the one thing that is asked of who runs the tests")]
pub fn reference() -> String {
    let dir = std::env::var("CNI_REFERENCE").unwrap_or_else(|_| "/usr/lib/cni".into());
    assert!(
        Path::new(&dir).join("bridge").exists(),
        "there are no reference plugins in {dir}: apt-get install containernetworking-plugins, or set CNI_REFERENCE"
    );
    dir
}

/// The outcome of a scenario, one line per fact.
fn observe(scenario: &Scenario, world: &World) -> Vec<String> {
    let mut facts = Vec::new();
    world.host(["sh", "-c", scenario.on_host]);
    let containers: Vec<_> = ["c1", "c2"].map(|name| world.container(name)).into();
    let all: Vec<&Container<'_>> = containers.iter().collect();
    for container in &containers {
        container.exec(["sh", "-c", scenario.in_container]);
        let call =
            container.call(scenario.plugin, "ADD", &scenario.config).env("CNI_ARGS", scenario.args);
        outcome(&format!("{} ADD", container.name), &call.run(), &mut facts);
    }
    state("after ADD", world, &all, &mut facts);
    for container in &containers {
        let call =
            container.call(scenario.plugin, "DEL", &scenario.config).env("CNI_ARGS", scenario.args);
        outcome(&format!("{} DEL", container.name), &call.run(), &mut facts);
    }
    state("after DEL", world, &all, &mut facts);
    facts.sort();
    facts
}

fn outcome(what: &str, outcome: &Outcome, facts: &mut Vec<String>) {
    facts.push(format!("{what}: exit {}", outcome.status));
    if outcome.stdout.is_empty() {
        return;
    }
    let printed = mask_veth(&mask_macs(&outcome.stdout));
    let mut documents = serde_json::Deserializer::from_str(&printed).into_iter::<Value>();
    flatten(what, &documents.next().unwrap().unwrap(), facts);
    facts.push(format!("{what}: documents {}", documents.count() + 1));
}

/// One fact per leaf of a JSON value.
fn flatten(path: &str, value: &Value, facts: &mut Vec<String>) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            object.iter().for_each(|(key, value)| flatten(&format!("{path}.{key}"), value, facts));
        }
        Value::Array(array) if !array.is_empty() => {
            let indexed = array.iter().enumerate();
            indexed.for_each(|(index, value)| flatten(&format!("{path}[{index}]"), value, facts));
        }
        leaf => facts.push(format!("{path} = {leaf}")),
    }
}

fn state(when: &str, world: &World, containers: &[&Container<'_>], facts: &mut Vec<String>) {
    let state = world.state_with(containers).without_random_names();
    for line in state.lines() {
        // The content of a file and who may read it are different facts.
        match line.strip_prefix("file ").and_then(|file| file.split_once(" mode=")) {
            Some((path, rest)) => {
                let (mode, content) = rest.split_once(' ').unwrap();
                facts.push(format!("{when}: file {path} {content}"));
                facts.push(format!("{when}: mode of {path}: {mode}"));
            }
            None => facts.push(format!("{when}: {line}")),
        }
    }
}

/// Facts of `these` that are not in `those`, counting repetitions.
fn only_in(these: &[String], those: &[String]) -> Vec<String> {
    let mut rest = those.to_vec();
    let mut only = Vec::new();
    for fact in these {
        match rest.iter().position(|other| other == fact) {
            Some(index) => drop(rest.swap_remove(index)),
            None => only.push(fact.clone()),
        }
    }
    only
}

/// The differences of a scenario: `-` is of the reference only, `+` of ours only.
fn differences_of(scenario: &Scenario) -> Vec<String> {
    let theirs = observe(scenario, &World::with_plugins(&reference()));
    let ours = observe(scenario, &World::new());
    let mut lines: Vec<String> =
        only_in(&theirs, &ours).iter().map(|fact| format!("- {fact}")).collect();
    lines.extend(only_in(&ours, &theirs).iter().map(|fact| format!("+ {fact}")));
    lines
}

#[test]
fn everything_is_as_in_the_reference_but_for_the_differences_that_are_listed() {
    let mut occurred = BTreeSet::new();
    let mut unknown = Vec::new();
    let scenarios = scenarios();
    let differences = on_two_threads(&scenarios, differences_of);
    for (scenario, lines) in scenarios.iter().zip(differences) {
        for line in lines {
            let mut known = DIFFERENCES
                .iter()
                .filter_map(|known| Some((known.name, known.covers(scenario.name, &line)?)));
            match known.next() {
                Some(known) => drop(occurred.insert(known)),
                None => unknown.push(format!("{}: {line}", scenario.name)),
            }
        }
    }
    assert!(
        unknown.is_empty(),
        "{} differences that nobody has listed:\n{}",
        unknown.len(),
        unknown.join("\n")
    );
    let listed = DIFFERENCES
        .iter()
        .flat_map(|known| (0..known.patterns().len()).map(move |index| (known, index)));
    let stale = listed.filter(|(known, index)| !occurred.contains(&(known.name, *index)));
    let stale: Vec<_> = stale.map(|(known, index)| (known.name, known.patterns()[index])).collect();
    assert!(stale.is_empty(), "listed, but there is no such difference: {stale:?}");
}

//! Container ids that are longer than the name of a file may be: DEL and GC remove what ADD made.

use serde_json::{Value, json};

use crate::toggle::subject::Subject;
use crate::toggle::subjects;
use crate::world::{Container, Outcome};

/// In bytes. A file name has at most 255, some of them for the interface.
const LENGTHS: [usize; 2] = [255, 4000];

fn config(subject: &Subject) -> Value {
    match subject.cases.first() {
        Some(case) => subject.config_with(case),
        None => json!({"cniVersion": "1.1.0", "name": "net", "type": subject.plugin}),
    }
}

/// The life of an attachment. GC is about what is left outside of the container, so DEL follows it.
fn live(subject: &Subject, container: &Container<'_>, id: &str, verbs: &[&str]) -> Vec<Outcome> {
    let mut config = config(subject);
    let call = |plugin: &str, verb: &str, config: &Value| {
        container.call(plugin, verb, config).env("CNI_CONTAINERID", id).run()
    };
    if subject.is_chained() {
        config["prevResult"] = call("bridge", "ADD", &Subject::network()).success();
    }
    config["cni.dev/valid-attachments"] = json!([]);
    let mut outcomes: Vec<Outcome> =
        verbs.iter().map(|verb| call(subject.plugin, verb, &config)).collect();
    if subject.is_chained() {
        outcomes.push(call("bridge", "DEL", &Subject::network()));
    }
    outcomes
}

/// The mistakes of the calls of such a container.
fn problem(subject: &Subject, length: usize, verbs: &[&str]) -> Option<String> {
    let world = subject.world();
    let container = subject.container(&world);
    let state = || world.state_with(&[&container]).apart_from("cni0", "net");
    // This makes what stays.
    live(subject, &container, "c1", &["ADD", "DEL"]);
    let before = state();
    let outcomes = live(subject, &container, &"i".repeat(length), verbs);
    let difference = before.difference(&state());
    let failed: Vec<String> =
        outcomes.iter().filter(|outcome| outcome.status != 0).map(Outcome::report).collect();
    let is_wrong = !failed.is_empty() || !difference.is_empty();
    let plugin = subject.plugin;
    is_wrong.then(|| format!("{plugin}, {length} bytes, {verbs:?}: {failed:?} {difference:?}"))
}

#[test]
fn a_long_container_id_leaves_nothing() {
    let subjects = subjects();
    let mut problems = Vec::new();
    for subject in subjects.iter().filter(|subject| subject.is_runnable()) {
        for length in LENGTHS {
            for verbs in [&["ADD", "DEL"][..], &["ADD", "GC", "DEL"]] {
                problems.extend(problem(subject, length, verbs));
            }
        }
    }
    let report = problems.join("\n");
    assert!(problems.is_empty(), "{} problems:\n{report}", problems.len());
}

//! Input that cannot be read, and a stderr that cannot be written.

use serde_json::{Value, json};

use super::host_local;
use super::lenient::REFUSED;
use crate::toggle::subject::{NEIGHBOUR, Subject};
use crate::toggle::subjects;
use crate::world::{Bare, plugin_names, with};

/// Calls of each plugin that cannot make anything, since they have no good configuration.
fn every_plugin(check: impl Fn(&Bare, &str)) {
    let bare = Bare::new();
    plugin_names().iter().for_each(|plugin| check(&bare, plugin));
}

#[test]
fn invalid_json_stays_an_error() {
    every_plugin(|bare, plugin| {
        for stdin in ["", "{", "nonsense", "5", "[]", "\"text\"", "{} {}"] {
            for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
                let call = bare.call(plugin, verb, &json!({})).stdin(stdin);
                let error = call.run().error();
                assert_eq!(error.code, 6, "{plugin} {verb} <<< {stdin}: {error:?}");
            }
        }
    });
}

#[test]
fn gc_without_a_list_that_can_be_read_removes_nothing() {
    let bare = Bare::new();
    let config = host_local(&bare);
    bare.call("host-local", "ADD", &config).run().success();
    for list in [json!("c1"), json!(5), json!({"containerID": "c1"}), json!([5]), json!([[]])] {
        let config = with(&config, json!({"cni.dev/valid-attachments": list}));
        let code = bare.call("host-local", "GC", &config).run().error().code;
        assert!(REFUSED.contains(&code), "{list}: {code}");
        assert_eq!(bare.taken("net"), ["10.1.0.2"], "{list}");
    }
}

/// The difference that such a result makes to a DEL.
fn problem_of_result(subject: &Subject, result: &Value) -> Option<String> {
    let plugin = subject.plugin;
    let world = subject.world();
    let container = subject.container(&world);
    let state = || world.state_with(&[&container]).apart_from("cni0", "net");
    let mut good =
        subject.cases.first().map_or_else(|| named(plugin), |case| subject.config_with(case));
    let begin = |config: &mut Value| {
        if subject.is_chained() {
            container.del("bridge", &Subject::network());
            config["prevResult"] = container.add("bridge", &Subject::network());
        }
    };
    begin(&mut good);
    container.add(plugin, &good);
    container.del(plugin, &good);
    begin(&mut good);
    let before = state();
    container.add(plugin, &good);
    let mut bad = good.clone();
    bad["prevResult"] = result.clone();
    let outcome = container.call(plugin, "DEL", &bad).run();
    let is_good = outcome.status == 0 && outcome.stdout.is_empty();
    begin(&mut good);
    let difference = before.difference(&state());
    (!is_good || !difference.is_empty())
        .then(|| format!("{plugin} {result}: {}\n{difference:?}", outcome.report()))
}

fn named(plugin: &str) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": plugin})
}

#[test]
fn a_result_that_cannot_be_read_does_not_keep_a_del_from_anything() {
    let subjects = subjects();
    let results = [json!({"ips": 5}), json!("text"), json!([]), json!({"cniVersion": "9"})];
    let possible = subjects.iter().filter(|subject| subject.is_runnable());
    let problems: Vec<String> = possible
        .flat_map(|subject| results.iter().filter_map(|result| problem_of_result(subject, result)))
        .collect();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn a_stderr_that_cannot_be_written_changes_nothing() {
    let subjects = subjects();
    let subject = subjects.iter().find(|subject| subject.keys_of == "bridge").unwrap();
    assert_eq!(subject.targets, NEIGHBOUR);
    let world = subject.world();
    let c1 = subject.container(&world);
    let good = with(&Subject::network(), json!({"macspoofchk": true, "ipMasq": true}));
    c1.add("bridge", &good);
    c1.del("bridge", &good);
    let state = || world.state_with(&[&c1]).apart_from("cni0", "net");
    let before = state();
    let bad = with(&good, json!({"mtu": "1500", "cni.dev/valid-attachments": []}));
    for stderr in ["2>/dev/full", "2>&-", "2</dev/null"] {
        let script = format!("exec \"$0\" {stderr}");
        for (verb, config) in [("DEL", &bad), ("GC", &bad), ("DEL", &good)] {
            let added = c1.call("bridge", "ADD", &good).under(&["sh", "-c", &script]).run();
            added.success();
            let outcome = c1.call("bridge", verb, config).under(&["sh", "-c", &script]).run();
            assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""), "{verb} {stderr}");
            before.assert_same(&state(), &format!("after {verb} {stderr}"));
        }
        let refused = c1.call("bridge", "ADD", &bad).under(&["sh", "-c", &script]).run();
        assert_eq!(refused.error().code, 6, "{stderr}");
    }
}

//! A mistake in the configuration keeps an attachment from being made or checked, but not from being removed: DEL and GC
//! report it on stderr and do all that they can.

use serde_json::{Value, json};

use crate::toggle::subject::{Case, Place, Subject, set};
use crate::toggle::subjects;
use crate::world::{Call, Container, Outcome, State, World, runs_with, with};

/// The codes of a configuration that cannot be read, or that cannot be meant.
pub(super) const REFUSED: [u64; 2] = [6, 7];

/// The code of STATUS when an ADD could not succeed, for whatever reason.
const NOT_AVAILABLE: u64 = 50;

/// Keys of every plugin.
const SHARED: [&str; 2] = ["/dns", "/capabilities"];

/// Keys about one container, which only an ADD needs to read.
const OF_ONE_CONTAINER: [&str; 2] = ["/args", "/runtimeConfig"];

/// The plugin keeps the value that the ADD had, and CHECK uses that.
const KEPT_BY_ADD: [(&str, &str); 2] = [("flannel", "/delegate"), ("flannel", "/runtimeConfig")];

/// A value of another type than that of `value`.
fn wrong(value: &Value) -> Value {
    match value {
        Value::String(_) => json!(["text"]),
        Value::Number(number) => json!(number.to_string()),
        Value::Bool(_) => json!("yes"),
        Value::Array(_) => json!("text"),
        _ => json!([5]),
    }
}

/// One key of a plugin that has a value of a wrong type, in a container of its own.
struct Mistake<'a> {
    subject: &'a Subject,
    world: &'a World,
    container: &'a Container<'a>,
    key: &'static str,
    good: Value,
    bad: Value,
    problems: Vec<String>,
}

impl Mistake<'_> {
    fn state(&self) -> State {
        let state = self.world.state_with(&[self.container]);
        state.apart_from("cni0", "net").apart_from("br9", "net")
    }

    fn note(&mut self, what: &str, is_good: bool, report: &str) {
        if !is_good {
            self.problems.push(format!("{what}: {report}"));
        }
    }

    fn add(&self) -> Value {
        self.container.add(self.subject.plugin, &self.good)
    }

    /// The kernel of the integration tests may lack the links.
    fn can_add(&self) -> bool {
        self.subject.is_runnable()
    }

    fn call(&self, verb: &str) -> Call<'_> {
        let plugin = self.subject.plugin;
        if verb == "GC" {
            let bad = with(&self.bad, json!({"cni.dev/valid-attachments": []}));
            self.world.call(plugin, verb, &bad)
        } else {
            self.container.call(plugin, verb, &self.bad)
        }
    }

    /// Whether only an ADD needs to look at the key.
    fn is_of_one_container(&self) -> bool {
        OF_ONE_CONTAINER.iter().any(|start| self.key.starts_with(start))
    }

    /// A new interface for a chained plugin, with the same addresses: some of what a chained plugin did ends with it.
    fn renew(&mut self) {
        if !self.subject.is_chained() {
            return;
        }
        self.container.del("bridge", &Subject::network());
        let result = self.container.add("bridge", &Subject::network());
        for config in [&mut self.good, &mut self.bad] {
            config["prevResult"] = result.clone();
        }
    }

    /// ADD, CHECK and STATUS do nothing but fail.
    fn is_refused(&mut self) {
        self.renew();
        let before = self.state();
        for verb in ["ADD", "STATUS"] {
            let outcome = self.call(verb).run();
            self.refused(verb, &outcome);
        }
        let difference = before.difference(&self.state());
        self.note("after the failed ADD", difference.is_empty(), &difference.join("\n"));
        self.container.del(self.subject.plugin, &self.good);
        if self.can_add() {
            self.renew();
            let result = self.add();
            let config = with(&self.bad, json!({"prevResult": result}));
            let outcome = self.container.call(self.subject.plugin, "CHECK", &config).run();
            self.refused("CHECK", &outcome);
            self.container.del(self.subject.plugin, &self.good);
        }
    }

    fn refused(&mut self, verb: &str, outcome: &Outcome) {
        let report = outcome.report();
        let code = serde_json::from_str(&outcome.stdout).map(|error: Value| error["code"].as_u64());
        let is_code =
            |code: u64| REFUSED.contains(&code) || (verb == "STATUS" && code == NOT_AVAILABLE);
        let is_refused = outcome.status == 1 && matches!(code, Ok(Some(code)) if is_code(code));
        let is_kept = KEPT_BY_ADD.iter().any(|(plugin, start)| {
            verb == "CHECK" && self.subject.plugin == *plugin && self.key.starts_with(start)
        });
        let may_succeed = is_kept || (verb != "ADD" && self.is_of_one_container());
        let is_good = is_refused || (may_succeed && outcome.status == 0);
        self.note(verb, is_good, &report);
    }

    /// DEL and GC remove what the good configuration has made. GC cannot enter a container; things in it end with it.
    fn is_forgiven(&mut self, verb: &str) {
        self.renew();
        let before = self.state();
        if self.can_add() {
            self.add();
        }
        let outcome = self.call(verb).run();
        let report = outcome.report();
        let is_good = outcome.status == 0 && outcome.stdout.is_empty();
        let lines = outcome.stderr.lines().count();
        let is_said = lines == 1 || (lines == 0 && self.is_of_one_container());
        self.note(verb, is_good && is_said, &report);
        if verb == "GC" && self.subject.place != Place::Ipam && self.subject.keys_of != "bridge" {
            self.container.del(self.subject.plugin, &self.good);
        }
        self.renew();
        let difference = before.difference(&self.state());
        self.note(&format!("after {verb}"), difference.is_empty(), &difference.join("\n"));
        self.container.del(self.subject.plugin, &self.good);
    }
}

/// A plugin with one of its keys wrong.
fn problems_of(subject: &Subject, case: &Case) -> Vec<String> {
    let world = subject.world();
    let container = subject.container(&world);
    let mut good = subject.config_with(case);
    if subject.is_chained() {
        let result = container.add("bridge", &Subject::network());
        good = with(&good, json!({"prevResult": result}));
    }
    let mut bad = good.clone();
    set(&mut bad, case.key, wrong(&case.value));
    let (world, container) = (&world, &container);
    let (key, problems) = (case.key, Vec::new());
    let mut mistake = Mistake { subject, world, container, key, good, bad, problems };
    if mistake.can_add() {
        // It makes what stays.
        mistake.add();
        container.del(subject.plugin, &mistake.good);
    }
    mistake.is_refused();
    mistake.is_forgiven("DEL");
    mistake.is_forgiven("GC");
    let of_case = |problem| format!("{} {}: {problem}", subject.plugin, case.key);
    mistake.problems.into_iter().map(of_case).collect()
}

/// The cases of the keys that every plugin has, in a configuration that is good for this one.
fn shared(subject: &Subject, subjects: &[Subject]) -> Vec<Case> {
    let mut needs = json!({});
    if let Some(first) = subject.cases.first() {
        needs = first.needs.clone();
        set(&mut needs, first.key, first.value.clone());
    }
    let cases = subjects
        .iter()
        .filter(|subject| subject.keys_of == "network")
        .flat_map(|subject| &subject.cases);
    let cases = cases.filter(|case| SHARED.contains(&case.key)).cloned();
    cases.map(|case| case.with(needs.clone())).collect()
}

/// The keys of a plugin, each once. A key that needs what this kernel lacks, or a result, has its tests elsewhere.
fn keys_have_one_type(keys_of: &str) {
    let mut problems = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    let subjects = subjects();
    let subject = subjects.iter().find(|subject| subject.keys_of == keys_of).unwrap();
    for case in &[subject.cases.clone(), shared(subject, &subjects)].concat() {
        if !runs_with(case.option) || case.key == "/prevResult" || seen.contains(&case.key) {
            continue;
        }
        seen.push(case.key);
        problems.extend(problems_of(subject, case));
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn keys_of_network_have_one_type() {
    keys_have_one_type("network");
}

#[test]
fn keys_of_bandwidth_have_one_type() {
    keys_have_one_type("bandwidth");
}

#[test]
fn keys_of_bridge_have_one_type() {
    keys_have_one_type("bridge");
}

#[test]
fn keys_of_dummy_have_one_type() {
    keys_have_one_type("dummy");
}

#[test]
fn keys_of_firewall_have_one_type() {
    keys_have_one_type("firewall");
}

#[test]
fn keys_of_flannel_have_one_type() {
    keys_have_one_type("flannel");
}

#[test]
fn keys_of_host_device_have_one_type() {
    keys_have_one_type("host-device");
}

#[test]
fn keys_of_host_local_have_one_type() {
    keys_have_one_type("host-local");
}

#[test]
fn keys_of_ipvlan_have_one_type() {
    keys_have_one_type("ipvlan");
}

#[test]
fn keys_of_loopback_have_one_type() {
    keys_have_one_type("loopback");
}

#[test]
fn keys_of_macvlan_have_one_type() {
    keys_have_one_type("macvlan");
}

#[test]
fn keys_of_portmap_have_one_type() {
    keys_have_one_type("portmap");
}

#[test]
fn keys_of_ptp_have_one_type() {
    keys_have_one_type("ptp");
}

#[test]
fn keys_of_sbr_have_one_type() {
    keys_have_one_type("sbr");
}

#[test]
fn keys_of_static_have_one_type() {
    keys_have_one_type("static");
}

#[test]
fn keys_of_tap_have_one_type() {
    keys_have_one_type("tap");
}

#[test]
fn keys_of_tuning_have_one_type() {
    keys_have_one_type("tuning");
}

#[test]
fn keys_of_veth_have_one_type() {
    keys_have_one_type("veth");
}

#[test]
fn keys_of_vlan_have_one_type() {
    keys_have_one_type("vlan");
}

#[test]
fn keys_of_dnsname_have_one_type() {
    keys_have_one_type("dnsname");
}

#[test]
fn keys_of_vrf_have_one_type() {
    keys_have_one_type("vrf");
}

//! Configurations change between ADD and DEL. For every key of every plugin: what an ADD with the key made goes with a
//! DEL, or a GC, without it, and the other way round; and the same container then has an interface that carries packets.

mod again;
mod chained;
mod first;
mod keys;
pub mod subject;

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Value, json};

use crate::world::state::assert_same;
use crate::world::{Container, State, World, runs_with, with};
use subject::{BRIDGE, Case, Kind, Place, Subject};

pub fn subjects() -> Vec<Subject> {
    let mut subjects = first::subjects();
    subjects.extend(chained::subjects());
    subjects
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Del,
    Gc,
}

/// One case in one world.
struct Run<'w> {
    subject: &'w Subject,
    world: &'w World,
    container: Container<'w>,
}

impl<'w> Run<'w> {
    fn new(subject: &'w Subject, world: &'w World) -> Self {
        Self { subject, world, container: subject.container(world) }
    }

    /// All that can be seen. After a GC what is in the container ends with its namespace.
    fn look(&self, verb: Verb) -> Vec<String> {
        let is_whole = verb == Verb::Del;
        let state =
            if is_whole { self.world.state_with(&[&self.container]) } else { self.world.state() };
        let [on_host, in_container] = self.subject.look;
        let mut lines = lines(&state);
        lines.push(self.world.host(["sh", "-c", on_host]));
        if is_whole {
            lines.push(self.container.tool(["sh", "-c", in_container]).run().stdout);
        }
        lines
    }

    /// The interface that a chained plugin needs, and its result.
    fn begin(&self) -> Value {
        match self.subject.is_chained() {
            true => self.container.add("bridge", &Subject::network()),
            false => json!({}),
        }
    }

    fn add(&self, config: &Value, before: &Value) -> Value {
        let more =
            if self.subject.is_chained() { json!({"prevResult": before}) } else { json!({}) };
        self.container.add(self.subject.plugin, &with(config, more))
    }

    fn end(&self, verb: Verb, config: &Value) {
        let plugin = self.subject.plugin;
        match verb {
            Verb::Del => self.container.del(plugin, config),
            Verb::Gc => {
                self.world.host(["sh", "-c", self.subject.before_gc]);
                self.world.call(plugin, "GC", &of_none(config)).run().silence();
            }
        }
    }

    /// The end of the interface that a chained plugin had.
    fn finish(&self, verb: Verb) {
        match verb {
            _ if !self.subject.is_chained() => {}
            Verb::Del => self.container.del("bridge", &Subject::network()),
            Verb::Gc => {
                let config = of_none(&Subject::network());
                self.world.call("bridge", "GC", &config).run().silence();
            }
        }
    }

    /// Makes the things that the first ADD makes and that stay: the bridge, empty maps, base chains, directories.
    fn prime(&self, configs: &[&Value]) {
        for config in configs {
            let before = self.begin();
            self.add(config, &before);
            self.end(Verb::Del, &self.chained(config, &before, ""));
            self.finish(Verb::Del);
        }
    }

    /// A configuration as a runtime hands it to a DEL, which `/prevResult` may be missing from.
    fn chained(&self, config: &Value, before: &Value, missing: &str) -> Value {
        if self.subject.is_chained() && missing != "/prevResult" {
            with(config, json!({"prevResult": before}))
        } else {
            config.clone()
        }
    }

    /// The same container in a new namespace.
    fn renew(self) -> Self {
        self.container.exec(["sh", "-c", "ip link del eth0 2>/dev/null || true"]);
        self.container.destroy();
        Self::new(self.subject, self.world)
    }

    /// Pings from the addresses of the result, since `sbr` looks at the source; the first is of IPv4.
    fn reaches_its_targets(&self, case: &Case, result: &Value) {
        if !case.has_traffic {
            return;
        }
        for (target, ip) in self.subject.targets.iter().zip(result["ips"].as_array().unwrap()) {
            let own = ip["address"].as_str().unwrap().split('/').next().unwrap();
            // Only what is bound to a VRF finds its routes.
            let device: &[&str] = if self.subject.plugin == "vrf" { &["-I", "blue"] } else { &[] };
            self.container.pinging(target).args(device).args(&["-I", own]).run().output();
        }
    }
}

/// GC when no attachment is valid.
fn of_none(config: &Value) -> Value {
    with(config, json!({"cni.dev/valid-attachments": []}))
}

/// The state without what survives every DEL.
fn lines(state: &State) -> Vec<String> {
    let state = state.apart_from(BRIDGE, "net").apart_from("br9", "net");
    // A ruleset is one entry of many lines, of which few differ.
    state.lines().iter().flat_map(|entry| entry.split('\n')).map(str::to_owned).collect()
}

/// ADD with one configuration, DEL or GC with another; then the same container once more. Returns the host as it was before.
fn toggle<'w>(mut run: Run<'w>, case: &Case, verb: Verb, [first, second]: [&Value; 2]) -> Run<'w> {
    let without = run.subject.config_without(case);
    let plain = if case.kind == Kind::Required { first } else { &without };
    let before = run.look(verb);

    let result = run.begin();
    let behind = run.look(verb);
    run.add(first, &result);
    run.end(verb, &run.chained(second, &result, case.key));
    if run.subject.place == Place::Chained && verb == Verb::Del {
        assert_same(&behind, &run.look(verb), &format!("{verb:?}"));
    }
    run.finish(verb);
    assert_same(&before, &run.look(verb), &format!("{verb:?}"));

    if verb == Verb::Gc {
        run = run.renew();
    }
    let result = run.begin();
    let second = run.add(plain, &result);
    run.reaches_its_targets(case, &second);
    run.end(Verb::Del, &run.chained(plain, &result, ""));
    run.finish(Verb::Del);
    assert_same(&before, &run.look(verb), "second DEL");
    run
}

/// A case in both directions, by DEL and by GC, in one world: each leaves it as it was before. Returns how many there are.
fn toggle_case(subject: &Subject, case: &Case) -> Result<u32, String> {
    let world = subject.world();
    let (with, without) = (subject.config_with(case), subject.config_without(case));
    let mut ways = vec![("taken out", [&with, &without])];
    if case.kind != Kind::Required {
        ways.push(("put in", [&without, &with]));
    }
    let mut run = Run::new(subject, &world);
    let mut count = 0;
    for (way, configs) in ways {
        for verb in [Verb::Del, Verb::Gc] {
            let toggle = || {
                if count == 0 {
                    let is_required = case.kind == Kind::Required;
                    run.prime(if is_required { &configs[..1] } else { &configs });
                }
                toggle(run, case, verb, configs)
            };
            run = catch_unwind(AssertUnwindSafe(toggle)).map_err(|why| {
                let why = why.downcast_ref::<String>().map_or("?", String::as_str);
                let Case { key, needs, .. } = case;
                format!("{key} {way} before {verb:?}, beside {needs}: {why}")
            })?;
            count += 1;
        }
    }
    Ok(count)
}

/// Every case of a plugin; reports all that went wrong at once.
fn toggle_all(keys_of: &str) {
    let subjects: Vec<Subject> =
        subjects().into_iter().filter(|subject| subject.keys_of == keys_of).collect();
    if !subjects.iter().all(|subject| runs_with(subject.option)) {
        return;
    }
    let cases = subjects.iter().flat_map(|subject| {
        let cases = subject.cases.iter().filter(|case| case.is_runnable(subject));
        cases.map(move |case| toggle_case(subject, case))
    });
    let (mut count, mut problems) = (0, Vec::new());
    for case in cases {
        match case {
            Ok(toggles) => count += toggles,
            Err(problem) => problems.push(problem),
        }
    }
    assert!(count > 0 || !problems.is_empty(), "no cases");
    let report = problems.join("\n");
    assert!(problems.is_empty(), "{} cases of {keys_of}:\n{report}", problems.len());
}

#[test]
fn keys_of_every_network_are_toggled() {
    toggle_all("network");
}

#[test]
fn keys_of_bridge_are_toggled() {
    toggle_all("bridge");
}

#[test]
fn keys_of_veth_are_toggled() {
    toggle_all("veth");
}

#[test]
fn keys_of_ptp_are_toggled() {
    toggle_all("ptp");
}

#[test]
fn keys_of_macvlan_are_toggled() {
    toggle_all("macvlan");
}

#[test]
fn keys_of_dummy_are_toggled() {
    toggle_all("dummy");
}

#[test]
fn keys_of_vlan_are_toggled() {
    toggle_all("vlan");
}

#[test]
fn keys_of_ipvlan_are_toggled() {
    toggle_all("ipvlan");
}

#[test]
fn keys_of_dnsname_are_toggled() {
    toggle_all("dnsname");
}

#[test]
fn keys_of_vrf_are_toggled() {
    toggle_all("vrf");
}

#[test]
fn keys_of_host_device_are_toggled() {
    toggle_all("host-device");
}

#[test]
fn keys_of_tap_are_toggled() {
    toggle_all("tap");
}

#[test]
fn keys_of_flannel_are_toggled() {
    toggle_all("flannel");
}

#[test]
fn keys_of_host_local_are_toggled() {
    toggle_all("host-local");
}

#[test]
fn keys_of_static_are_toggled() {
    toggle_all("static");
}

#[test]
fn keys_of_portmap_are_toggled() {
    toggle_all("portmap");
}

#[test]
fn keys_of_firewall_are_toggled() {
    toggle_all("firewall");
}

#[test]
fn keys_of_bandwidth_are_toggled() {
    toggle_all("bandwidth");
}

#[test]
fn keys_of_sbr_are_toggled() {
    toggle_all("sbr");
}

#[test]
fn keys_of_tuning_are_toggled() {
    toggle_all("tuning");
}

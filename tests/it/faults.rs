//! Every request to the kernel, and every operation on a file of the state, fails once: after each failure there is one
//! well-formed error that says what could not be done, an ADD has left nothing, and after a DEL nothing is left at all.
//!
//! Debug builds of the executable take CNIBOX_FAIL_KERNEL=n and CNIBOX_FAIL_FILE=n for that.

use serde_json::{Value, json};

use crate::toggle;
use crate::toggle::subject::{Subject as Surroundings, VLANS};
use crate::world::{
    Container, Outcome, State, World, is_for_options, on_two_threads, plugin_names, runs_with, with,
};

/// The variables that make a request or an operation fail.
const FAULTS: [&str; 2] = ["CNIBOX_FAIL_KERNEL", "CNIBOX_FAIL_FILE"];

/// So many calls one after the other without a fault mean that there are no more requests. One is not enough: calls take turns
/// with and without a bridge, and make different numbers of requests.
const UNTOUCHED_MIN: u32 = 2;

/// No call makes more requests than this.
const REQUESTS_MAX: u32 = 400;

/// A plugin joins with one line: its name, its configuration (the network is always called `net`), and whether an ADD
/// must have made requests of each kind, so that a switch that does nothing cannot pass for a proof.
struct Subject {
    plugin: &'static str,
    config: Value,
    asks_kernel: bool,
    has_files: bool,
    /// The option of the kernel that the configuration needs, if not the plugin itself, or "".
    option: &'static str,
    /// A command of the container's shell that makes what an earlier plugin of the chain makes.
    in_container: &'static str,
}

fn subject(plugin: &'static str, config: Value, asks_kernel: bool, has_files: bool) -> Subject {
    Subject { plugin, config, asks_kernel, has_files, option: "", in_container: "" }
}

fn subjects() -> Vec<Subject> {
    let vlans = json!({"vlan": 10, "vlanTrunk": [{"minID": 20, "maxID": 29}], "isGateway": true,
        "ipam": dual_stack()});
    let on_lan = || json!({"master": "lan", "ipam": dual_stack()});
    let tap = json!({"mtu": 1400, "owner": 0, "group": 0, "ipam": dual_stack()});
    let passed_on = json!({"mode": "passthru", "mac": "02:00:00:00:00:07"});
    let masqueraded = || json!({"ipMasq": true, "ipam": dual_stack()});
    vec![
        subject("bridge", bridge(), true, true),
        Subject { option: VLANS, ..subject("bridge", vlans, true, true) },
        subject("bridge", with(&masqueraded(), json!({"macspoofchk": true})), true, true),
        subject("bridge", json!({"hairpinMode": true, "mtu": 1400}), true, false),
        subject("bridge", json!({"ipam": executed()}), true, true),
        subject("veth", masqueraded(), true, true),
        subject("veth", json!({"mtu": 1400}), true, false),
        subject("macvlan", with(&on_lan(), json!({"bcqueuelen": 5000})), true, true),
        subject("macvlan", passed_on, true, false),
        subject("host-device", json!({"device": "card", "ipam": dual_stack()}), true, true),
        subject("host-device", json!({"device": "card"}), true, false),
        subject("tap", tap, true, true),
        subject("flannel", json!({"delegate": {"hairpinMode": true}}), true, true),
        subject("host-local", json!({"ipam": dual_stack()}), false, true),
        subject("loopback", json!({}), true, false),
        subject("firewall", json!({"prevResult": chained()}), true, false),
        Subject { in_container: ETH0_ROUTED, ..subject("sbr", routed(), true, false) },
        Subject { in_container: ETH0, ..subject("tuning", tuning(), true, true) },
        subject("dnsname", json!({"prevResult": with_gateways()}), true, true),
        subject("dummy", json!({"mtu": 1400, "ipam": dual_stack()}), true, true),
        subject("vlan", with(&on_lan(), json!({"vlanId": 10})), true, true),
        subject("ipvlan", on_lan(), true, true),
        Subject { in_container: ETH0_ROUTED, ..subject("vrf", vrf(), true, false) },
    ]
}

/// An interface as it comes from the plugin before.
const ETH0: &str = "ip link del eth0 2>/dev/null; ip link add eth0 type veth peer name peer";

const ETH0_ROUTED: &str = "ip link del eth0 2>/dev/null; ip link add eth0 type veth peer name peer
    ip address add 10.1.0.2/29 dev eth0; ip address add fd00:1::2/64 dev eth0 nodad
    ip link set peer up; ip link set eth0 up; ip route add 10.9.0.0/16 via 10.1.0.1; ip route add fd09::/48 via fd00:1::1";

fn dual_stack() -> Value {
    json!({
        "type": "host-local", "ranges": [[{"subnet": "10.1.0.0/29"}], [{"subnet": "fd00:1::/64"}]],
        "routes": [{"dst": "10.9.0.0/16"}, {"dst": "fd09::/48"}],
    })
}

/// The IPAM plugin is `host-local`, as a process of its own: `world` makes the executable.
fn executed() -> Value {
    with(&dual_stack(), json!({"type": "executed"}))
}

/// The result of the plugin before.
fn chained() -> Value {
    json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.2/29"}, {"address": "fd00:1::2/64"}]})
}

/// The gateways are addresses of the host: those of `lo`.
fn with_gateways() -> Value {
    let ips = json!([
        {"address": "10.1.0.2/29", "gateway": "127.0.0.1"}, {"address": "fd00:1::2/64", "gateway": "::1"}
    ]);
    with(&chained(), json!({"ips": ips}))
}

/// For addresses that the interface has.
fn routed() -> Value {
    let ips =
        json!([{"address": "10.1.0.2/29", "gateway": "10.1.0.1"}, {"address": "fd00:1::2/64"}]);
    json!({"addSourceHints": true, "prevResult": with(&chained(), json!({"ips": ips}))})
}

fn vrf() -> Value {
    json!({"vrfname": "blue", "prevResult": chained()})
}

fn tuning() -> Value {
    json!({"prevResult": chained(), "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 77,
        "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1", "net/core/somaxconn": "77"}})
}

fn bridge() -> Value {
    json!({"isDefaultGateway": true, "promiscMode": true, "portIsolation": true, "ipam": dual_stack()})
}

impl Subject {
    fn config(&self) -> Value {
        let keys = json!({"cniVersion": "1.1.0", "name": "net", "type": self.plugin});
        with(&self.config, keys)
    }

    fn surroundings(&self) -> Surroundings {
        let mut all = toggle::subjects().into_iter();
        all.find(|subject| subject.keys_of == self.plugin).unwrap()
    }

    /// Whether this kernel has what it needs, and the tests that run are about it.
    fn is_runnable(&self) -> bool {
        let options = [self.option, self.surroundings().option];
        let is_wanted = !is_for_options() || options.iter().any(|option| !option.is_empty());
        is_wanted && options.iter().all(|option| runs_with(option))
    }

    /// Without a bridge: the plugin makes it, or fails.
    fn world(&self) -> World {
        let world = self.surroundings().lonely_world();
        world.host(["sh", "-ec", EXECUTED]);
        world
    }

    fn container<'w>(&self, world: &'w World) -> Container<'w> {
        let container = self.surroundings().container(world);
        container.exec(["sh", "-c", self.in_container]);
        container
    }

    /// GC that finds nothing valid.
    fn gc(&self) -> Value {
        with(&self.config(), json!({"cni.dev/valid-attachments": []}))
    }

    fn must_fail_by(&self, fault: &str) -> bool {
        if fault == "CNIBOX_FAIL_FILE" { self.has_files } else { self.asks_kernel }
    }
}

fn state(world: &World, container: &Container<'_>) -> State {
    world.state_with(&[container]).apart_from("cni0", "net")
}

/// A defect of the error of a failed call.
pub fn fault_of_error(outcome: Outcome) -> Option<String> {
    let report = outcome.report();
    let error = outcome.error();
    let said = format!("{}: {}", error.msg, error.details);
    // The sentence may belong to the step, or to the request behind it.
    let is_good = said.contains("cannot ") && !said.contains('\n');
    (!is_good).then(|| format!("does not say on one line what could not be done: {report}"))
}

pub fn fault_of_state(before: &State, after: &State, when: &str) -> Option<String> {
    let difference = before.difference(after);
    (!difference.is_empty())
        .then(|| format!("{when}, the world differs:\n    {}", difference.join("\n    ")))
}

/// The effect of a fault on a call.
#[derive(PartialEq)]
pub enum Effect {
    Failure,
    /// The call succeeded with the fault.
    Success,
    /// The call made fewer requests than the number of the one to fail.
    None,
}

impl Effect {
    pub fn on(outcome: &Outcome) -> Self {
        match outcome.status {
            0 if outcome.is_faulty => Self::Success,
            0 => Self::None,
            _ => Self::Failure,
        }
    }
}

/// Calls `run` with fault number 1, 2, 3 … until there is no more to fail; returns how often it failed.
pub fn for_every_fault(mut run: impl FnMut(u32) -> Effect) -> u32 {
    let (mut untouched, mut failures) = (0, 0);
    for number in 1..=REQUESTS_MAX {
        let effect = run(number);
        untouched = if effect == Effect::None { untouched + 1 } else { 0 };
        failures += u32::from(effect == Effect::Failure);
        if untouched == UNTOUCHED_MIN {
            return failures;
        }
    }
    panic!("there are still requests at number {REQUESTS_MAX}");
}

const EXECUTED: &str = "printf '#!/bin/sh\nexec /run/plugins/host-local\n' >/run/plugins/executed
    chmod 755 /run/plugins/executed";

/// The maps and base chains that plugins share in nf_tables stay from the first ADD on.
fn prime(subject: &Subject, container: &Container<'_>) {
    container.add(subject.plugin, &subject.config());
    container.del(subject.plugin, &subject.config());
    end_interface("ADD", subject, container);
}

/// Some things end with the interface only, so it is made again: settings that GC cannot restore without a namespace, and
/// the routes that `sbr` took from the main table.
fn end_interface(verb: &str, subject: &Subject, container: &Container<'_>) {
    if verb == "GC" || subject.plugin == "sbr" {
        container.exec(["sh", "-c", subject.in_container]);
    }
}

fn remove_bridge(world: &World) {
    if world.links().iter().any(|link| link == "cni0") {
        world.host(["ip", "link", "del", "cni0"]);
    }
}

fn faults_of_add(subject: &Subject, fault: &str) -> Vec<String> {
    let world = subject.world();
    let container = subject.container(&world);
    let config = subject.config();
    prime(subject, &container);
    let before = state(&world, &container);
    let mut problems = Vec::new();
    let failures = for_every_fault(|number| {
        // Every other time the bridge is there already.
        if number % 2 == 0 {
            remove_bridge(&world);
        }
        let outcome =
            container.call(subject.plugin, "ADD", &config).env(fault, &number.to_string()).run();
        let effect = Effect::on(&outcome);
        let mut found = Vec::new();
        if effect == Effect::Failure {
            found.extend(fault_of_error(outcome));
            found.extend(fault_of_state(
                &before,
                &state(&world, &container),
                "after the failed ADD",
            ));
        } else {
            outcome.success();
        }
        container.del(subject.plugin, &config);
        end_interface("ADD", subject, &container);
        found.extend(fault_of_state(&before, &state(&world, &container), "after DEL"));
        problems.extend(found.into_iter().map(|problem| format!("{fault}={number}: {problem}")));
        effect
    });
    if failures == 0 && subject.must_fail_by(fault) {
        problems.push(format!("{fault} does nothing"));
    }
    problems
}

/// DEL, GC and CHECK: whatever fails, the next DEL without a fault cleans up.
fn faults_of(verb: &str, subject: &Subject, fault: &str) -> Vec<String> {
    let world = subject.world();
    let container = subject.container(&world);
    let config = subject.config();
    prime(subject, &container);
    let before = state(&world, &container);
    let mut problems = Vec::new();
    for_every_fault(|number| {
        let result = container.add(subject.plugin, &config);
        let call = match verb {
            "GC" => world.call(subject.plugin, "GC", &subject.gc()),
            "CHECK" => container.checking(subject.plugin, &config, &result),
            _ => container.call(subject.plugin, verb, &config),
        };
        let outcome = call.env(fault, &number.to_string()).run();
        let effect = Effect::on(&outcome);
        let mut found = Vec::new();
        if effect == Effect::Failure {
            found.extend(fault_of_error(outcome));
        } else {
            outcome.silence();
        }
        container.del(subject.plugin, &config);
        end_interface(verb, subject, &container);
        found.extend(fault_of_state(&before, &state(&world, &container), "after DEL"));
        problems.extend(found.into_iter().map(|problem| format!("{fault}={number}: {problem}")));
        effect
    });
    problems
}

/// Runs every subject with every kind of fault, each in a world of its own, and reports all that went wrong at once.
fn assert_no_problems(verb: &str, check: impl Fn(&Subject, &str) -> Vec<String> + Sync) {
    let mut subjects = subjects();
    subjects.retain(Subject::is_runnable);
    let cases = subjects.iter().flat_map(|subject| FAULTS.map(|fault| (subject, fault)));
    let cases: Vec<_> = cases.collect();
    let problems = on_two_threads(&cases, |(subject, fault)| {
        let problems = check(subject, fault).into_iter();
        let name = |problem| format!("{} {verb} {}: {problem}", subject.plugin, subject.config);
        problems.map(name).collect::<Vec<_>>()
    });
    let problems = problems.concat();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

/// The plugins of `--list` that are not in the table, each with the reason.
const ELSEWHERE: [(&str, &str); 5] = [
    ("ptp", "is veth"),
    ("static", "makes no request and has no file"),
    ("portmap", "tests/it/portmap/faults.rs"),
    ("bandwidth", "tests/it/bandwidth/faults.rs"),
    ("dhcp", "needs a server: tests/it/dhcp/faults.rs"),
];

#[test]
fn every_plugin_is_in_the_table_or_has_a_reason() {
    let mut names: Vec<&str> = subjects().iter().map(|subject| subject.plugin).collect();
    names.dedup();
    names.extend(ELSEWHERE.map(|(name, _)| name));
    names.sort_unstable();
    let mut all = plugin_names();
    all.sort_unstable();
    assert_eq!(names, all);
}

#[test]
fn a_failing_add_leaves_nothing() {
    assert_no_problems("ADD", faults_of_add);
}

#[test]
fn after_a_failing_del_the_next_one_cleans_up() {
    assert_no_problems("DEL", |subject, fault| faults_of("DEL", subject, fault));
}

#[test]
fn after_a_failing_gc_a_del_cleans_up() {
    assert_no_problems("GC", |subject, fault| faults_of("GC", subject, fault));
}

#[test]
fn after_a_failing_check_a_del_cleans_up() {
    assert_no_problems("CHECK", |subject, fault| faults_of("CHECK", subject, fault));
}

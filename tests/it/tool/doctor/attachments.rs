//! What living attachments have lost is found, with the command that restores it.

use serde_json::{Value, json};

use super::{CONFIGURATIONS, cnibox, doctor, faults, healthy, is_mended_by, network, only_fault};
use crate::world::{Outcome, PLUGIN_DIR, World, parse};

/// The network `a` with both families, masquerading, published ports and the plugin firewall.
fn whole() -> Value {
    let mut network = network("a", 1);
    let ranges = json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    let bridge = &mut network["plugins"][0];
    bridge["ipam"] = json!({"type": "host-local", "ranges": ranges, "routes": routes});
    bridge["ipMasq"] = true.into();
    let plugins = network["plugins"].as_array_mut().unwrap();
    plugins.push(json!({"type": "portmap", "capabilities": {"portMappings": true}}));
    plugins.push(json!({"type": "firewall", "acceptPublished": true}));
    network
}

pub(super) fn call(world: &World, words: &[&str]) -> Outcome {
    let call = cnibox(world, words).env("CNI_PATH", PLUGIN_DIR);
    call.env("NETCONFPATH", CONFIGURATIONS).run()
}

/// A host with containers c1 and c2, which publish ports 8081 and 8082.
pub(super) fn host() -> World {
    let world = healthy(&[whole()]);
    world.host(["ip", "route", "add", "default", "via", "198.18.0.254"]);
    for number in 1..3 {
        let (name, port) = (format!("c{number}"), format!("808{number}:80"));
        let added = call(&world, &["add", "a", &name, "--create", "-p", &port]);
        assert_eq!(added.status, 0, "{}", added.report());
    }
    assert_eq!(faults(&world), [] as [Value; 0]);
    world
}

/// The command with the directories of this host.
pub(super) fn on_this_host(fix: &str) -> String {
    format!("export CNI_PATH={PLUGIN_DIR} NETCONFPATH={CONFIGURATIONS} PATH=$PATH:/run/bin; {fix}")
}

#[test]
fn a_healthy_host_is_one_line() {
    let world = host();
    let before = world.state();
    let outcome = doctor(&world, &[]);
    before.assert_same(&world.state(), "after doctor");
    let expected = "no fault found in 1 network and 2 attachments\n";
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, expected), "{}", outcome.report());
    let count = outcome.stderr.lines().count();
    assert!(
        count <= 1 && outcome.stderr.lines().all(|line| line.contains("-v lists ")),
        "{}",
        outcome.report()
    );
    let verbose = doctor(&world, &["-v"]);
    assert_eq!(verbose.stderr.contains("No network uses it."), count == 1, "{}", verbose.report());
}

#[test]
fn a_program_on_a_published_port_is_a_note() {
    let world = host();
    let server = world.tool(&["socat", "TCP-LISTEN:8082", "EXEC:cat"], None).start();
    let pid = server.pid_in_world();
    let is_up = || world.host(["ss", "-Hlnt"]).contains(":8082 ");
    world.eventually("the server listens", is_up);
    let note = format!(" publishes tcp port 8082: the program socat, process {pid}, uses it");
    for (words, is_named) in [(&[] as &[&str], true), (&["--port", "8082"], true), (&["c1"], false)]
    {
        let outcome = doctor(&world, words);
        assert_eq!(outcome.stderr.contains(&note), is_named, "{}", outcome.report());
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
}

#[test]
fn lost_rules_are_one_finding_for_each_plugin() {
    let world = host();
    world.host(["nft", "flush ruleset"]);
    let faults = faults(&world);
    let plugins: Vec<&str> = faults
        .iter()
        .map(|fault| fault["what"].as_str().unwrap().split(':').next().unwrap())
        .collect();
    assert_eq!(plugins, ["bridge", "portmap", "firewall"], "{faults:#?}");
    for fault in &faults {
        let what = fault["what"].as_str().unwrap();
        assert!(what.contains("what it made for 2 attachments of a is missing"), "{what}");
        assert_eq!(fault["fix"], "cnibox reconcile a", "{fault}");
    }
    is_mended_by(&world, &on_this_host("cnibox reconcile a"));
}

#[test]
fn each_lost_object_of_the_host_is_found() {
    let world = host();
    for (loss, text) in [
        ("iptables-nft -F FORWARD", "firewall: "),
        ("iptables-save >/run/saved; nft flush ruleset; iptables-restore </run/saved", "portmap: "),
        ("nft flush map ip cnibox masquerade-sources", "bridge: "),
    ] {
        world.host(["sh", "-ec", loss]);
        let faults = faults(&world);
        let has = |fault: &Value| fault["what"].as_str().unwrap().starts_with(text);
        assert!(faults.iter().any(has), "{loss}: {faults:#?}");
        is_mended_by(&world, &on_this_host("cnibox reconcile a"));
    }
}

#[test]
fn lost_links_addresses_and_routes_are_found_with_a_command() {
    let world = host();
    let address = world.host(["sh", "-c", "ip -n c1 -4 -br address show eth0 | awk '{print $3}'"]);
    let address = address.trim();
    let veth =
        world.host(["sh", "-c", "ip -br link show master cni-a | sed 's/@.*//' | head -n 1"]);
    let veth = veth.trim();
    for (loss, text, fix) in [
        ("ip link set cni-a down", "bridge cni-a of network a is down", "ip link set cni-a up"),
        (
            &format!("ip link set {veth} nomaster"),
            "is not in bridge cni-a",
            &format!("ip link set {veth} master cni-a"),
        ),
        (
            &format!("ip link set {veth} down"),
            &format!("its link {veth} on the host is down"),
            &format!("ip link set {veth} up"),
        ),
        (
            "ip -n c1 route delete default",
            "its default route of IPv4 is gone",
            "cnibox reconcile --inside a",
        ),
        (
            "ip -n c1 -4 address flush dev eth0",
            &format!("its address {address} is gone"),
            "cnibox reconcile --inside a",
        ),
        ("ip -n c1 link set eth0 down", "the interface is down", "cnibox reconcile --inside a"),
    ] {
        world.host(["sh", "-ec", loss]);
        let faults = faults(&world);
        let what = faults[0]["what"].as_str().unwrap();
        assert!(what.contains(text), "{loss}: {faults:#?}");
        let printed: Vec<&str> =
            faults.iter().map(|fault| fault["fix"].as_str().unwrap()).collect();
        assert!(printed[0].ends_with(fix), "{loss}: {faults:#?}");
        is_mended_by(&world, &on_this_host(&printed.join(" && ")));
        let inside = doctor(&world, &["--inside"]);
        assert_eq!(inside.status, 0, "{loss}: {}", inside.report());
    }
    world.host(["ip", "link", "add", "other", "up", "type", "bridge"]);
    world.host(["ip", "link", "set", veth, "master", "other"]);
    let fix = only_fault(&world, "broken", &["is in other, not in bridge cni-a"]);
    is_mended_by(&world, &fix);
    world.host(["ip", "-n", "c1", "link", "delete", "eth0"]);
    let faults = faults(&world);
    let has =
        |fault: &Value| fault["fix"].as_str().unwrap().starts_with("start the container again");
    assert!(faults.iter().any(has), "{faults:#?}");
}

#[test]
fn what_a_container_changed_is_found_with_inside() {
    let mut network = whole();
    let tuning = json!({"type": "tuning", "sysctl": {"net.ipv4.conf.all.log_martians": "1"}});
    network["plugins"].as_array_mut().unwrap().push(tuning);
    let world = healthy(&[network]);
    assert_eq!(call(&world, &["add", "a", "c1", "--create"]).status, 0);
    let set = "ip netns exec c1 sh -c 'echo 0 >/proc/sys/net/ipv4/conf/all/log_martians'";
    world.host(["sh", "-ec", set]);
    assert_eq!(faults(&world), [] as [Value; 0]);
    let outcome = doctor(&world, &["--inside"]);
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    for text in
        ["broken: tuning: what it made for 1 attachment of a", "fix: cnibox reconcile --inside a\n"]
    {
        assert!(outcome.stdout.contains(text), "{}", outcome.report());
    }
}

#[test]
fn only_one_container_is_examined() {
    let world = host();
    world.host(["ip", "-n", "c1", "route", "delete", "default"]);
    let ids = world.host(["sh", "-c", "ls /var/lib/cni/results"]);
    let id = ids.lines().next().unwrap().trim_start_matches("a-").trim_end_matches("-eth0");
    for (words, status) in [
        (&["c1"][..], 1),
        (&["c2"], 0),
        (&["--port", "8081"], 1),
        (&["--port", "8082"], 0),
        (&["c3"], 1),
        (&["--port", "9"], 1),
        (&["cnitool-"], 1),
        (&["c1", "--port", "8081"], 2),
    ] {
        let outcome = doctor(&world, words);
        assert_eq!(outcome.status, status, "{words:?}: {}", outcome.report());
        if words == ["c2"] {
            let expected = "no fault found in 1 network and 1 attachment\n";
            assert_eq!(outcome.stdout, expected, "{}", outcome.report());
        }
    }
    let with_id = doctor(&world, &[id]).stdout;
    let with_prefix = doctor(&world, &[&id[..12]]).stdout;
    assert_eq!(with_id, with_prefix);
    let error = doctor(&world, &["c3"]);
    let text = "cannot find container c3: it has no attachment";
    assert!(error.stderr.contains(text), "{}", error.report());
    // What concerns the host only is not examined.
    world.host(["chmod", "777", PLUGIN_DIR]);
    assert_eq!(doctor(&world, &["c2"]).status, 0);
    assert_eq!(doctor(&world, &[]).status, 1);
}

#[test]
fn a_file_of_the_state_that_cannot_be_read_is_a_finding() {
    let world = host();
    let entry = world.host(["sh", "-c", "echo /var/lib/cni/results/a-*-eth0"]);
    let entry = entry.split_whitespace().next().unwrap();
    world.write(entry, "{");
    let outcome = doctor(&world, &["--json"]);
    let document = parse(&outcome.stdout);
    let mut findings = document["findings"].as_array().unwrap().iter();
    let is_about = |finding: &&Value| finding["what"].as_str().unwrap().contains(entry);
    let finding = findings.find(is_about).unwrap();
    assert_eq!((outcome.status, &finding["kind"]), (1, &json!("broken")), "{finding}");
    assert!(!outcome.stderr.contains(entry), "{}", outcome.report());
}

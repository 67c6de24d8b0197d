//! Filters of other programs are listed if they can concern a network in use, with the program that they are of.

use serde_json::{Value, json};

use super::attachments::call;
use super::{attach, doctor, healthy, network, nft};
use crate::world::{World, parse};

/// The lines of the finding about filters.
fn lines(world: &World) -> Vec<String> {
    let document = parse(&doctor(world, &["--json"]).stdout);
    let mut findings = document["findings"].as_array().unwrap().iter();
    let found = findings.find(|finding| finding["kind"] == "may");
    let lines = found.map_or(&Value::Null, |finding| &finding["lines"]).as_array();
    let lines = lines.into_iter().flatten();
    lines.map(|line| line.as_str().unwrap().to_owned()).collect()
}

/// A host with the network `a` in use.
fn host() -> World {
    let network = network("a", 1);
    let world = healthy(std::slice::from_ref(&network));
    attach(&world, &network);
    world
}

#[test]
fn only_filters_that_can_concern_a_network_in_use_are_listed() {
    let world = healthy(&[network("a", 1)]);
    let policy = "chain forward { type filter hook forward priority 0; policy drop; }";
    nft(&world, policy);
    assert_eq!(lines(&world), [""; 0], "no container is in the network");
    attach(&world, &network("a", 1));
    let expected = "forward: chain forward, table inet mine (an nftables ruleset): new connections, answers of a";
    assert_eq!(lines(&world), [expected]);
    let outcome = doctor(&world, &[]);
    assert_eq!(outcome.status, 0, "{}", outcome.report());
    for text in
        ["may: filters may drop packets of a\n", expected, "\n    fix: cnibox doctor --probe\n"]
    {
        assert!(outcome.stdout.contains(text), "{text}: {}", outcome.report());
    }
    for chain in [
        "chain input { type filter hook input priority 0; policy drop; }",
        "chain forward { type filter hook forward priority 0; iifname docker0 drop; }",
        "chain forward { type filter hook forward priority 0; ip daddr 10.2.0.0/16 drop; }",
        "chain forward { type filter hook forward priority 0; ct state invalid drop; }",
        "chain forward { type filter hook forward priority 0; policy drop; iifname cni-a accept; oifname cni-a accept; }",
    ] {
        nft(&world, chain);
        assert_eq!(lines(&world), [""; 0], "{chain}");
    }
}

#[test]
fn only_the_networks_that_a_filter_concerns_are_named() {
    let networks = [network("a", 1), network("b", 2)];
    let world = healthy(&networks);
    for name in ["a", "b"] {
        let added = call(&world, &["add", name, &format!("in-{name}"), "--create"]);
        assert_eq!(added.status, 0, "{}", added.report());
    }
    nft(&world, "chain forward { type filter hook forward priority 0; iifname cni-b drop; }");
    let outcome = doctor(&world, &[]);
    let text = "may: filters may drop packets of b\n";
    assert!(outcome.stdout.contains(text), "{}", outcome.report());
}

#[test]
fn each_place_where_packets_can_be_dropped_is_listed() {
    let world = host();
    let has = |texts: &[&str]| {
        let lines = lines(&world);
        let is_there = |text: &&str| lines.iter().any(|line| line.contains(*text));
        assert!(texts.iter().all(is_there), "{texts:?}: {lines:#?}");
    };
    nft(&world, "chain output { type filter hook output priority 0; oifname cni-a drop; }");
    has(&["output: chain output, table inet mine"]);
    nft(
        &world,
        "chain raw { type filter hook prerouting priority -300; ip saddr 10.1.0.0/16 drop; }",
    );
    has(&["prerouting: chain raw, table inet mine"]);
    nft(
        &world,
        "chain sub { reject; }; chain forward { type filter hook forward priority 0; iifname cni-a jump sub; }",
    );
    has(&["forward: chain sub, from forward, table inet mine"]);
    nft(
        &world,
        "chain last { type filter hook postrouting priority 0; ip saddr 10.1.0.0/16 drop; }",
    );
    has(&["postrouting: chain last, table inet mine"]);
    world.host(["nft", "flush ruleset"]);
    for (family, hook) in [("netdev", "ingress device wan"), ("bridge", "forward")] {
        let table = format!(
            "table {family} mine {{ chain {hook_name} {{ type filter hook {hook} priority 0; drop; }}; }}",
            hook_name = hook.split(' ').next().unwrap()
        );
        world.tool(&["nft", "-f", "-"], None).stdin(table).output_of_success();
    }
    has(&[
        "ingress: chain ingress, table netdev mine",
        "forward: chain forward, table bridge mine",
    ]);
    world.host(["nft", "flush ruleset"]);
    world.host(["iptables-legacy", "-P", "FORWARD", "DROP"]);
    has(&["iptables-legacy: table filter has rules"]);
    world.host(["iptables-legacy", "-P", "FORWARD", "ACCEPT"]);
    world.host(["ip", "rule", "add", "from", "10.1.0.0/24", "lookup", "77", "priority", "9"]);
    has(&["ip rule 9: from 10.1.0.0/24: selects another routing table for packets of a"]);
    world.host(["ip", "rule", "delete", "priority", "9"]);
    world.host(["ip", "rule", "add", "fwmark", "1", "priority", "9", "prohibit"]);
    has(&["ip rule 9: from all: prohibit: can reject packets of a"]);
    world.host(["ip", "rule", "delete", "priority", "9"]);
    world.host(["ip", "rule", "add", "to", "10.77.0.0/16", "priority", "9", "prohibit"]);
    assert_eq!(lines(&world).iter().filter(|line| line.contains("ip rule")).count(), 0);
    world.host(["ip", "rule", "delete", "priority", "9"]);
    assert_eq!(lines(&world), [""; 0]);
}

/// Each chain has the name of the program that made it.
#[test]
fn the_program_of_a_chain_is_named() {
    let world = host();
    for (commands, program) in [
        ("iptables-nft -P FORWARD DROP", "(iptables-nft)"),
        (
            "iptables-nft -N DOCKER-USER; iptables-nft -A DOCKER-USER -i cni-a -j DROP; iptables-nft -A FORWARD -j DOCKER-USER",
            "(Docker)",
        ),
        (
            "iptables-nft -N ufw-user-forward; iptables-nft -A ufw-user-forward -i cni-a -j DROP; iptables-nft -A FORWARD -j ufw-user-forward",
            "(ufw)",
        ),
        (
            "nft 'table inet fw4 { chain forward { type filter hook forward priority 0; policy drop; }; }'",
            "(fw4 of OpenWrt)",
        ),
        (
            "nft 'table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; reject; }; }'",
            "(firewalld)",
        ),
    ] {
        world.host(["nft", "flush ruleset"]);
        world.host(["sh", "-ec", commands]);
        let lines = lines(&world);
        assert!(lines.len() == 1 && lines[0].contains(program), "{commands}: {lines:#?}");
    }
}

#[test]
fn a_translation_of_a_published_port_is_listed() {
    let mut network = network("a", 1);
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    network["plugins"].as_array_mut().unwrap().push(portmap);
    let world = healthy(&[network]);
    let add = |port: &str| {
        let name = format!("c{port}");
        let words = ["add", "a", &name, "--create", "-p", &format!("{port}:80")];
        let call = super::cnibox(&world, &words).env("CNI_PATH", super::PLUGIN_DIR);
        call.env("NETCONFPATH", super::CONFIGURATIONS).output_of_success();
    };
    add("8080");
    assert_eq!(lines(&world), [""; 0]);
    for port in ["8081", "8080"] {
        let rule = format!("PREROUTING -p tcp --dport {port} -j DNAT --to 10.9.0.2:80");
        world.host(["sh", "-c", &format!("iptables-nft -t nat -A {rule}")]);
    }
    let expected = "prerouting: chain PREROUTING, table ip nat (iptables-nft): translates the published port 8080";
    assert_eq!(lines(&world), [expected]);
}

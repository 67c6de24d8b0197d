//! Objects with the names of older builds. `old_names.nft` is the ruleset of a host with two containers, each attached by
//! `bridge` (`ipMasq`, `macspoofchk`), `portmap` and `firewall` (`isolated`) of the last build before the change.

use serde_json::{Value, json};

use super::network;
use crate::world::{Call, Outcome, World, with};

const OLD: &str = include_str!("old_names.nft");

/// Old and present names, as `nft` prints them before and after.
const NAMES: [(&str, &str); 17] = [
    ("map masq ", "map masquerade-sources "),
    ("@masq\n", "@masquerade-sources\n"),
    ("chain masq ", "chain masquerade-postrouting "),
    ("masq-", "masquerade-"),
    ("set spoof-check ", "set spoof-check-allowed "),
    ("@spoof-check drop", "@spoof-check-allowed drop"),
    ("chain spoof-check ", "chain spoof-check-prerouting "),
    ("set firewall ", "set firewall-addresses "),
    ("chain firewall ", "chain firewall-forward "),
    ("published_on_ports_5", "published_on_ports-5"),
    ("published_on_ports", "published_on-ports"),
    ("published_on_5", "published_on-5"),
    ("published_on", "published-on"),
    ("published_5", "published-5"),
    ("published", "portmap-published"),
    ("portmap_", "portmap-"),
    ("masqueraded_", "portmap-masqueraded-"),
];

/// A host as the older build left it.
fn old_host() -> World {
    let world = World::new();
    load(&world, OLD);
    world
}

fn load(world: &World, rules: &str) {
    world.write("/run/rules", rules);
    world.host(["nft", "--file", "/run/rules"]);
}

fn ruleset(world: &World) -> String {
    world.host(["nft", "list", "ruleset"])
}

fn config(plugin: &str) -> Value {
    match plugin {
        "bridge" => network("bridge", json!({"ipMasq": true, "macspoofchk": true})),
        "firewall" => json!({
            "cniVersion": "1.1.0", "name": "net", "type": "firewall", "backend": "iptables",
            "ingressPolicy": "isolated",
        }),
        _ => portmap(json!([])),
    }
}

fn portmap(mappings: Value) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "portmap",
        "runtimeConfig": {"portMappings": mappings},
    })
}

fn call<'w>(world: &'w World, plugin: &str, verb: &str, id: &str, config: &Value) -> Call<'w> {
    world.call(plugin, verb, config).env("CNI_CONTAINERID", id).env("CNI_IFNAME", "eth0")
}

/// ADD or CHECK of `portmap` for a container with this address.
fn publish(world: &World, verb: &str, id: &str, number: u8, mapping: Value) -> Outcome {
    let container = world.container(&format!("ns-{id}"));
    let result = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": container.netns()}],
        "ips": [
            {"address": format!("10.1.0.{number}/16"), "interface": 0},
            {"address": format!("fd00:1::{number}/64"), "interface": 0},
        ],
    });
    let config = with(&portmap(mapping), json!({"prevResult": result}));
    call(world, "portmap", verb, id, &config).env("CNI_NETNS", &container.netns()).run()
}

#[track_caller]
fn assert_no_old_name(world: &World) {
    let text = ruleset(world);
    for old in ["masq ", "masq-", "published_", "portmap_", "masqueraded_", "set firewall "] {
        assert!(!text.contains(old), "{old}: {text}");
    }
    world.write("/run/ruleset", &text);
    world.host(["nft", "--check", "--file", "/run/ruleset"]);
}

#[test]
fn del_removes_elements_of_an_older_build() {
    for plugin in ["bridge", "portmap", "firewall"] {
        let world = old_host();
        call(&world, plugin, "DEL", "c1", &config(plugin)).run().silence();
        assert_no_old_name(&world);
    }
    let world = old_host();
    for id in ["c1", "c2"] {
        for plugin in ["firewall", "portmap", "bridge"] {
            call(&world, plugin, "DEL", id, &config(plugin)).run().silence();
        }
        let text = ruleset(&world);
        assert!(!text.contains(&format!("\"net {id} eth0\"")), "{text}");
        let others = if id == "c1" { 20 } else { 0 };
        assert_eq!(text.matches("\"net c2 eth0\"").count(), others, "{text}");
    }
    let text = ruleset(&world);
    assert!(!text.contains("elements") && !text.contains("50358e964402b374"), "{text}");
    assert!(!text.contains("masquerade-10.1.0.0/16"), "{text}");
}

#[test]
fn gc_removes_stale_elements_of_an_older_build() {
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}]});
    let world = old_host();
    for plugin in ["firewall", "portmap", "bridge"] {
        world.call(plugin, "GC", &with(&config(plugin), valid.clone())).run().silence();
    }
    assert_no_old_name(&world);
    let text = ruleset(&world);
    assert_eq!(text.matches("\"net c1 eth0\"").count(), 0, "{text}");
    assert_eq!(text.matches("\"net c2 eth0\"").count(), 20, "{text}");
}

#[test]
fn add_refuses_a_port_that_an_older_build_published() {
    let tcp = |port: u16| json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    for (mapping, owner) in [(tcp(8080), "c1"), (tcp(8081), "c1"), (tcp(9090), "c2")] {
        let world = old_host();
        let container = format!("container {owner}");
        publish(&world, "ADD", "c3", 4, mapping.clone()).fails(999, &["is taken by", &container]);
        assert_no_old_name(&world);
        publish(&world, "ADD", "c4", 4, tcp(7070)).success();
    }
}

#[test]
fn check_accepts_ports_of_an_older_build() {
    let world = old_host();
    let mapping = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 8081, "containerPort": 81, "protocol": "tcp", "hostIP": "192.0.2.1"},
    ]);
    publish(&world, "CHECK", "c1", 2, mapping).silence();
}

#[test]
fn every_rule_and_element_moves_to_its_new_name() {
    let world = old_host();
    call(&world, "portmap", "DEL", "c9", &config("portmap")).run().silence();
    let mut expected = OLD.to_owned();
    for (old, new) in NAMES {
        expected = expected.replace(old, new);
    }
    let fresh = World::new();
    load(&fresh, &expected);
    let sorted = |world: &World| {
        let text = ruleset(world);
        let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&world), sorted(&fresh));
}

/// An ADD of the older build that was running during the upgrade.
#[test]
fn old_and_new_objects_are_merged() {
    let tcp = |port: u16| json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    let world = World::new();
    publish(&world, "ADD", "c3", 4, tcp(7070)).success();
    load(&world, OLD);
    publish(&world, "ADD", "c4", 5, tcp(6060)).success();
    assert_no_old_name(&world);
    let chain = world.host(["nft", "list", "chain", "ip", "cnibox", "portmap-published"]);
    let rules: Vec<&str> = chain.lines().skip(2).map(str::trim).collect();
    assert_eq!(rules[0], "jump portmap-published-50358e964402b374", "{chain}");
    assert_eq!(rules.iter().filter(|rule| rule.starts_with("dnat")).count(), 2, "{chain}");
    let map = world.host(["nft", "list", "map", "ip", "cnibox", "portmap-published"]);
    for port in ["6060", "7070", "8080"] {
        assert!(map.contains(port), "{port}: {map}");
    }
}

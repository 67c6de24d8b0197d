//! ADD restores flushed shared rules, for all containers that have elements.

use serde_json::{Value, json};

use super::{OUTSIDE, network, outside, ruleset};
use crate::world::{Container, World, without_tags};

/// The command that flushes, the plugin and its key.
const FLUSHED: [(&str, &str, &str); 8] = [
    ("nft flush table bridge cnibox", "bridge", "macspoofchk"),
    ("nft flush chain bridge cnibox spoof-check-prerouting", "bridge", "macspoofchk"),
    ("nft flush table ip cnibox", "bridge", "ipMasq"),
    ("nft flush table ip6 cnibox", "bridge", "ipMasq"),
    ("nft flush chain ip cnibox masquerade-srcnat", "bridge", "ipMasq"),
    ("nft flush chain ip cnibox masquerade-10.1.0.0/16", "bridge", "ipMasq"),
    ("nft flush chain ip6 cnibox masquerade-fd00_1__/64", "veth", "ipMasq"),
    ("nft flush table ip cnibox", "veth", "ipMasq"),
];

fn config(plugin: &str, key: &str) -> Value {
    network(plugin, json!({ key: true }))
}

/// The rules without the elements, which differ in their containers.
fn rules(world: &World) -> Vec<String> {
    let rules = without_tags(&ruleset(world));
    let is_rule = |line: &&str| !line.contains("comment") && !line.contains("elements");
    let mut lines: Vec<String> = rules.lines().filter(is_rule).map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn add_restores_flushed_rules() {
    for (command, plugin, key) in FLUSHED {
        let world = World::new();
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        let config = config(plugin, key);
        let result = c1.add(plugin, &config);
        let before = rules(&world);
        world.host(["sh", "-c", command]);
        assert_ne!(rules(&world), before, "{command}");
        let outcome = c1.checking(plugin, &config, &result).run();
        assert!(outcome.status == 1, "{command}: CHECK notices: {}", outcome.report());
        c2.add(plugin, &config);
        assert_eq!(rules(&world), before, "{command}: after the ADD of another container");
        c1.check(plugin, &config, &result);
    }
}

#[test]
fn masquerading_goes_on_for_containers_that_were_there() {
    let world = World::new();
    let (c1, c2, _outside) = (world.container("c1"), world.container("c2"), outside(&world));
    let config = config("bridge", "ipMasq");
    c1.add("bridge", &config);
    world.host(["nft", "flush", "table", "ip", "cnibox"]);
    let is_answered = |container: &Container<'_>| {
        let ping = ["ping", "-n", "-q", "-c", "1", "-W", "1", OUTSIDE[0]];
        container.tool(ping).run().status == 0
    };
    assert!(!is_answered(&c1), "nothing masquerades");
    c2.add("bridge", &config);
    for container in [&c1, &c2] {
        container.ping(OUTSIDE[0]);
    }
}

#[test]
fn an_add_once_more_does_not_double_a_rule() {
    let world = World::new();
    let config = network("bridge", json!({"ipMasq": true, "macspoofchk": true}));
    world.container("c1").add("bridge", &config);
    let once = rules(&world);
    world.container("c2").add("bridge", &config);
    assert_eq!(rules(&world), once);
}

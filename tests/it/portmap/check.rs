//! CHECK names the missing element or rule.

use serde_json::{Value, json};

use super::{portmap, publish, result, tcp, udp};
use crate::world::{World, with};

fn config() -> Value {
    let on = with(&tcp(8081, 81), json!({"hostIP": "192.0.2.1"}));
    with(
        &portmap(json!([tcp(8080, 80), udp(8053, 53), on])),
        json!({"conditionsV6": ["!", "-i", "lo"]}),
    )
}

/// A change with `nft`, and the text that CHECK must name. ID stands for the hash of the conditions.
const CHANGES: [(&str, &str); 16] = [
    ("delete element ip cnibox portmap-published { tcp . 8080 }", "host port tcp 8080"),
    ("delete element ip cnibox portmap-published { udp . 8053 }", "host port udp 8053"),
    (
        "delete element ip cnibox portmap-published-on { 192.0.2.1 . tcp . 8081 }",
        "192.0.2.1 tcp 8081",
    ),
    ("delete element ip6 cnibox portmap-published-ID { tcp . 8080 }", "host port tcp 8080"),
    (
        "delete element ip cnibox portmap-published { tcp . 8080 }; \
         add element ip cnibox portmap-published { tcp . 8080 comment \"net c1 eth0\" : 10.1.0.99 . 80 }",
        "host port tcp 8080",
    ),
    ("delete element ip cnibox portmap-masqueraded-16 { 10.1.0.0 . 10.1.0.3 }", "10.1.0.0/16"),
    ("delete element ip cnibox portmap-masqueraded-8 { 127.0.0.0 . 10.1.0.3 }", "127.0.0.0/8"),
    ("flush chain ip cnibox portmap-published", "published"),
    ("flush chain ip cnibox portmap-dstnat", "portmap-dstnat"),
    ("flush chain ip cnibox portmap-dstnat-output", "portmap-dstnat-output"),
    ("flush chain ip cnibox portmap-srcnat", "portmap-srcnat"),
    ("flush chain ip cnibox portmap-localnet", "portmap-localnet"),
    ("delete chain ip6 cnibox portmap-dstnat", "portmap-dstnat"),
    ("flush chain ip6 cnibox portmap-published-ID", "portmap-published-ID"),
    ("flush chain ip6 cnibox portmap-published", "published"),
    ("delete table ip6 cnibox", "host port tcp 8080"),
];

fn id(world: &World) -> String {
    let chains = world.host(["nft", "list", "chains", "ip6"]);
    let chain =
        chains.lines().find_map(|line| line.trim().strip_prefix("chain portmap-published-"));
    chain.unwrap().trim_end_matches(" {").to_owned()
}

#[test]
fn check_names_a_missing_object_and_add_restores_it() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = result(1, &c1.netns());
    publish(&c1, 1, &config());
    let id = id(&world);
    for (change, named) in CHANGES {
        c1.check("portmap", &config(), &result);
        world.host(["nft", &change.replace("ID", &id)]);
        let outcome = c1.checking("portmap", &config(), &result).run();
        outcome.fails(999, &[&named.replace("ID", &id)]);
        // A DEL in between, as a runtime does it. It must succeed although objects are missing.
        c1.del("portmap", &config());
        publish(&c1, 1, &config());
    }
    c1.check("portmap", &config(), &result);
}

#[test]
fn check_changes_nothing() {
    let world = World::new();
    let c1 = world.container("c1");
    publish(&c1, 1, &config());
    let before = world.state();
    c1.check("portmap", &config(), &result(1, &c1.netns()));
    before.assert_same(&world.state(), "after CHECK");
}

#[test]
fn check_ignores_rules_of_other_programs() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    publish(&c1, 1, &config());
    publish(&c2, 2, &portmap(json!([tcp(9000, 80)])));
    world.host([
        "nft",
        "add rule ip cnibox portmap-published counter; insert rule ip cnibox portmap-dstnat-output counter",
    ]);
    c1.check("portmap", &config(), &result(1, &c1.netns()));
    // And ADD does not mind it either.
    publish(&c1, 1, &config());
    assert!(
        world
            .host(["nft", "list", "chain", "ip", "cnibox", "portmap-published"])
            .contains("counter")
    );
}

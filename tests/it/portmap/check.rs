//! CHECK: whatever is missing is named.

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

/// A command of `nft`, and the text that CHECK must print. ID stands for the hash of the conditions.
const CHANGES: [(&str, &str); 17] = [
    ("delete element ip cnibox published { tcp . 8080 }", "host port tcp 8080"),
    ("delete element ip cnibox published { udp . 8053 }", "host port udp 8053"),
    ("delete element ip cnibox published_on { 192.0.2.1 . tcp . 8081 }", "192.0.2.1 tcp 8081"),
    ("delete element ip6 cnibox published_ID { tcp . 8080 }", "host port tcp 8080"),
    (
        "delete element ip cnibox published { tcp . 8080 }; \
         add element ip cnibox published { tcp . 8080 comment \"net c1 eth0\" : 10.1.0.99 . 80 }",
        "host port tcp 8080",
    ),
    ("delete element ip cnibox masqueraded_16 { 10.1.0.0 . 10.1.0.3 }", "10.1.0.0/16"),
    ("delete element ip cnibox masqueraded_8 { 127.0.0.0 . 10.1.0.3 }", "127.0.0.0/8"),
    ("flush set ip cnibox portmap_owners", "portmap_owners"),
    ("flush chain ip cnibox published", "published"),
    ("flush chain ip cnibox portmap_prerouting", "portmap_prerouting"),
    ("flush chain ip cnibox portmap_output", "portmap_output"),
    ("flush chain ip cnibox portmap_postrouting", "portmap_postrouting"),
    ("flush chain ip cnibox portmap_loopback", "portmap_loopback"),
    ("delete chain ip6 cnibox portmap_prerouting", "portmap_prerouting"),
    ("flush chain ip6 cnibox published_ID", "published_ID"),
    ("flush chain ip6 cnibox published", "published"),
    ("delete table ip6 cnibox", "host port tcp 8080"),
];

fn id(world: &World) -> String {
    let chains = world.host(["nft", "list", "chains", "ip6"]);
    let chain = chains.lines().find_map(|line| line.trim().strip_prefix("chain published_"));
    chain.unwrap().trim_end_matches(" {").to_owned()
}

#[test]
fn a_missing_element_is_named_and_add_restores_it() {
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
        // A DEL in between, as a runtime does it; also it must get along with what is missing.
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
fn elements_of_other_programs_are_not_compared() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    publish(&c1, 1, &config());
    publish(&c2, 2, &portmap(json!([tcp(9000, 80)])));
    world.host([
        "nft",
        "add rule ip cnibox published counter; insert rule ip cnibox portmap_output counter",
    ]);
    c1.check("portmap", &config(), &result(1, &c1.netns()));
    // And ADD does not mind it either.
    publish(&c1, 1, &config());
    assert!(world.host(["nft", "list", "chain", "ip", "cnibox", "published"]).contains("counter"));
}

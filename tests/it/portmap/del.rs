//! DEL removes every element of an attachment and no other element, also with little information from the runtime.

use serde_json::{Value, json};

use super::{chained, count, elements, portmap, publish, result, tcp, udp};
use crate::world::{Container, World, with, without};

type Way = (&'static str, fn(&Container<'_>));

fn config() -> Value {
    let on = with(&tcp(8081, 81), json!({"hostIP": "192.0.2.1"}));
    portmap(json!([tcp(8080, 80), udp(8053, 53), on]))
}

const NOTHING: [&str; 0] = [];

#[test]
fn del_needs_nothing_but_the_names() {
    let ways: [Way; 5] = [
        ("with everything", |c| c.del("portmap", &chained(&config(), &result(1, &c.netns())))),
        ("without a result", |c| c.del("portmap", &config())),
        ("without ports", |c| c.del("portmap", &without(&config(), "runtimeConfig"))),
        ("without a namespace", |c| {
            let bare = without(&config(), "runtimeConfig");
            c.call("portmap", "DEL", &bare).without("CNI_NETNS").run().silence();
        }),
        ("with the namespace gone", |c| {
            c.destroy();
            c.del("portmap", &without(&config(), "runtimeConfig"));
        }),
    ];
    for (way, del) in ways {
        let world = World::new();
        let c1 = world.container("c1");
        publish(&c1, 1, &config());
        assert_eq!(count(&world, "ip portmap-published"), 4);
        del(&c1);
        assert_eq!(elements(&world), NOTHING, "{way}");
    }
}

#[test]
fn del_again_and_del_of_nothing_are_fine() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state();
    c1.del("portmap", &config());
    before.assert_same(&world.state(), "after a DEL without an ADD");
    publish(&c1, 1, &config());
    c1.del("portmap", &config());
    let after = world.state();
    c1.del("portmap", &config());
    after.assert_same(&world.state(), "after the second DEL");
}

#[test]
fn invalid_ports_do_not_prevent_del() {
    let world = World::new();
    let c1 = world.container("c1");
    publish(&c1, 1, &config());
    let wrong = with(&portmap(json!([tcp(0, 0)])), json!({"backend": "none", "markMasqBit": 99}));
    c1.del("portmap", &wrong);
    assert_eq!(elements(&world), NOTHING);
}

#[test]
fn others_keep_theirs() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    publish(&c1, 1, &config());
    publish(&c2, 2, &portmap(json!([tcp(9080, 80)])));
    let other_network = with(&portmap(json!([tcp(9081, 80)])), json!({"name": "net2"}));
    publish(&c1, 3, &other_network);
    let other_interface = chained(&portmap(json!([tcp(9082, 80)])), &{
        let mut result = result(4, &c1.netns());
        result["interfaces"][1]["name"] = "eth1".into();
        result
    });
    c1.call("portmap", "ADD", &other_interface).env("CNI_IFNAME", "eth1").run().success();
    c1.del("portmap", &config());
    let lines = elements(&world);
    for (owner, elements) in
        [("net c1 eth0", 0), ("net c2 eth0", 5), ("net2 c1 eth0", 5), ("net c1 eth1", 5)]
    {
        let own = lines.iter().filter(|line| line.ends_with(&format!(", {owner}"))).count();
        // Two ports and three subnets.
        assert_eq!(own, elements, "{owner}:\n{}", lines.join("\n"));
    }
}

#[test]
fn names_that_are_too_long_for_a_comment_are_found_again() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = with(&config(), json!({"name": "n".repeat(200)}));
    let id = "c".repeat(200);
    let with_id = |verb: &str, config: &Value| {
        c1.call("portmap", verb, config).env("CNI_CONTAINERID", &id).run()
    };
    with_id("ADD", &chained(&config, &result(1, &c1.netns()))).success();
    assert_eq!(count(&world, "ip portmap-published "), 2);
    with_id("DEL", &config).silence();
    assert_eq!(elements(&world), NOTHING);
}

#[test]
fn a_second_add_replaces_the_first() {
    let world = World::new();
    let c1 = world.container("c1");
    publish(&c1, 1, &config());
    let before = elements(&world);
    publish(&c1, 1, &config());
    assert_eq!(elements(&world), before);
    // With other ports, another address, and for one family only.
    publish(&c1, 9, &portmap(json!([with(&tcp(9000, 90), json!({"hostIP": "0.0.0.0"}))])));
    let lines = elements(&world);
    assert!(lines.iter().all(|line| line.starts_with("ip ")), "{}", lines.join("\n"));
    assert_eq!(
        (lines.len(), count(&world, "ip portmap-published ")),
        (3, 1),
        "{}",
        lines.join("\n")
    );
    c1.del("portmap", &config());
    assert_eq!(elements(&world), NOTHING);
}

#[test]
fn an_address_that_is_given_out_again_belongs_to_the_new_one() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    // c1 died without a DEL.
    publish(&c1, 1, &portmap(json!([tcp(8080, 80)])));
    publish(&c2, 1, &portmap(json!([tcp(8081, 80)])));
    c1.del("portmap", &config());
    assert_eq!(count(&world, "ip portmap-masqueraded-"), 2);
    c2.del("portmap", &config());
    assert_eq!(elements(&world), NOTHING);
}

//! DEL in all its ways, and GC.

use serde_json::{Value, json};

use super::{attach, bridge, drop_forwarded, firewall, forget, rules};
use crate::world::{Container, World, with};

fn isolated() -> Value {
    json!({"ingressPolicy": "isolated"})
}

/// Makes the shared chains and sets. Returns the ruleset.
fn furnished(container: &Container<'_>) -> String {
    drop_forwarded(container.world);
    for policy in ["same-bridge", "isolated"] {
        attach(container, &bridge("net", 1), json!({"ingressPolicy": policy}));
        forget(container, "net");
        container.del("bridge", &bridge("net", 1));
    }
    rules(container.world)
}

#[test]
fn del_leaves_only_shared_rules() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = furnished(&c1);
    let network = bridge("net", 1);
    type Del = fn(&Container<'_>, &Value);
    let ways: [(&str, Del); 6] = [
        ("with everything", |c, result| {
            c.del("firewall", &firewall("net", isolated(), result));
        }),
        ("without a result", |c, _| c.del("firewall", &firewall("net", isolated(), &Value::Null))),
        ("without a namespace", |c, _| forget(c, "net")),
        ("with a namespace that is gone", |c, _| {
            let config = firewall("net", isolated(), &Value::Null);
            c.call("firewall", "DEL", &config).env("CNI_NETNS", "/run/netns/gone").run().silence();
        }),
        ("when the bridge and the pair are gone", |c, result| {
            c.world.host(["ip", "link", "del", "br1"]);
            c.exec(["ip", "link", "del", "eth0"]);
            c.del("firewall", &firewall("net", isolated(), result));
        }),
        ("with another configuration, which even is wrong", |c, result| {
            let keys = json!({"ingressPolicy": "nonsense", "backend": "nonsense", "iptablesAdminChainName": "a b"});
            c.del("firewall", &firewall("net", keys, result));
        }),
    ];
    for (way, del) in ways {
        let result = attach(&c1, &network, isolated());
        assert_ne!(rules(&world), before, "{way}");
        del(&c1, &result);
        assert_eq!(rules(&world), before, "{way}");
        // Twice, as containerd does.
        del_again(&c1, &result);
        assert_eq!(rules(&world), before, "{way}, twice");
        c1.del("bridge", &network);
    }
}

fn del_again(container: &Container<'_>, result: &Value) {
    container.del("firewall", &firewall("net", isolated(), result));
    forget(container, "net");
}

#[test]
fn del_without_rules_succeeds_and_adds_none() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    del_again(&c1, &result);
    assert_eq!(rules(&world), "");
}

#[test]
fn a_del_takes_nothing_from_others() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    drop_forwarded(&world);
    let result = attach(&c2, &bridge("net", 1), isolated());
    let before = rules(&world);
    attach(&c1, &bridge("net", 1), isolated());
    forget(&c1, "net");
    assert_eq!(rules(&world), before);
    // The same container, another network; the same network, another container with the same begin of its name.
    forget(&c2, "ne");
    forget(&c2, "net2");
    forget(&world.container("c22"), "net");
    forget(&world.container("c"), "net");
    assert_eq!(rules(&world), before);
    c2.check("firewall", &firewall("net", isolated(), &result), &result);
}

#[test]
fn a_result_that_cannot_be_read_does_not_keep_a_del_from_its_work() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = furnished(&c1);
    attach(&c1, &bridge("net", 1), isolated());
    let config = firewall(
        "net",
        json!({}),
        &json!({"cniVersion": "0.4.0", "ips": [{"address": "nonsense"}]}),
    );
    let outcome = c1.call("firewall", "DEL", &config).run();
    assert!(outcome.stderr.contains("could not parse prevResult"), "{}", outcome.report());
    outcome.silence();
    assert_eq!(rules(&world), before);
}

#[test]
fn gc_keeps_valid_attachments_and_other_networks() {
    let world = World::new();
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
    drop_forwarded(&world);
    attach(&c1, &bridge("net", 1), isolated());
    let other = with(&bridge("net2", 2), json!({}));
    attach(&c3, &other, isolated());
    let before = rules(&world);
    attach(&c2, &bridge("net", 1), isolated());
    // c2 dies: no DEL, no namespace, no pair.
    c2.exec(["ip", "link", "del", "eth0"]);
    c2.destroy();
    let valid = json!([{"containerID": "c1", "ifname": "eth0"}]);
    gc(&world, valid.clone());
    assert_eq!(rules(&world), before);
    gc(&world, valid);
    assert_eq!(rules(&world), before);
    gc(&world, json!([]));
    assert!(!rules(&world).contains("\"net c"), "{}", rules(&world));
    assert!(rules(&world).contains("\"net2 c3 eth0\""));
}

fn gc(world: &World, valid: Value) {
    let keys = json!({"cni.dev/valid-attachments": valid});
    world.call("firewall", "GC", &firewall("net", keys, &Value::Null)).run().silence();
}

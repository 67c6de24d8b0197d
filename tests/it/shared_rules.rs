//! Two containers on different links have one address: what both need of the host stays until the last of them is gone.

use serde_json::{Value, json};

use crate::firewall::{drop_forwarded, firewalld};
use crate::netfilter::{OUTSIDE, outside};
use crate::portmap::elements;
use crate::world::{Container, World, with};

/// A network with a bridge of its own. All of its containers have the same addresses.
fn bridge(number: u8, more: Value) -> Value {
    let addresses = json!([{"address": "10.1.0.7/24", "gateway": "10.1.0.1"},
        {"address": "fd00:1::7/64", "gateway": "fd00:1::1"}]);
    let config = json!({"cniVersion": "1.1.0", "name": format!("net{number}"), "type": "bridge",
        "bridge": format!("br{number}"), "isDefaultGateway": true, "ipMasq": true,
        "ipam": {"type": "static", "addresses": addresses}});
    with(&config, more)
}

fn chained(plugin: &str, number: u8, more: Value, result: &Value) -> Value {
    let config = json!({"cniVersion": "1.1.0", "name": format!("net{number}"), "type": plugin,
        "prevResult": result});
    with(&config, more)
}

fn ports(number: u8) -> Value {
    let port =
        json!([{"hostPort": 8080 + u16::from(number), "containerPort": 80, "protocol": "tcp"}]);
    json!({"runtimeConfig": {"portMappings": port}})
}

/// A container behind masquerade, published ports and an accept.
struct Attached<'a> {
    container: Container<'a>,
    number: u8,
    policy: Value,
    result: Value,
}

impl<'a> Attached<'a> {
    fn new(world: &'a World, number: u8, policy: Value) -> Self {
        let container = world.container(&format!("c{number}"));
        let mut attached = Self { container, number, policy, result: Value::Null };
        attached.add();
        attached
    }

    fn add(&mut self) {
        self.result = self.container.add("bridge", &bridge(self.number, json!({})));
        for (plugin, config) in self.chain() {
            self.container.add(plugin, &config);
        }
        self.check();
    }

    fn chain(&self) -> [(&'static str, Value); 2] {
        [
            ("portmap", chained("portmap", self.number, ports(self.number), &self.result)),
            ("firewall", chained("firewall", self.number, self.policy.clone(), &self.result)),
        ]
    }

    #[track_caller]
    fn check(&self) {
        self.container.check("bridge", &bridge(self.number, json!({})), &self.result);
        for (plugin, config) in self.chain() {
            self.container.check(plugin, &config, &self.result);
        }
    }

    #[track_caller]
    fn del(&self) {
        for (plugin, config) in self.chain().iter().rev() {
            self.container.del(plugin, config);
        }
        self.container.del("bridge", &bridge(self.number, json!({})));
    }

    #[track_caller]
    fn reaches_outside(&self) {
        for address in OUTSIDE {
            self.container.ping(address);
        }
    }
}

/// The number of elements that a network's attachments have.
fn owned(world: &World, number: u8) -> usize {
    let owner = format!(", net{number} ");
    elements(world).iter().filter(|line| line.contains(&owner)).count()
}

/// The ruleset without the links that are open to 127.0.0.1: they are as long as they are there.
fn without_links(world: &World) -> String {
    let flush = "flush set ip cnibox portmap-localnet";
    world.host(["nft", flush]);
    world.host(["nft", "list", "ruleset"])
}

/// The host has one route to the subnet of two bridges.
fn leave_way_to(world: &World, number: u8) {
    world.host(["ip", "link", "set", &format!("br{}", 3 - number), "down"]);
}

fn policies() -> [Value; 3] {
    ["open", "same-bridge", "isolated"].map(|policy| json!({"ingressPolicy": policy}))
}

#[test]
fn what_two_containers_need_stays_until_the_last_is_gone() {
    for policy in policies() {
        let world = World::new();
        let _outside = outside(&world);
        drop_forwarded(&world);
        let one = Attached::new(&world, 1, policy.clone());
        let alone = owned(&world, 1);
        one.reaches_outside();
        let mut two = Attached::new(&world, 2, policy.clone());
        one.check();
        assert_eq!(owned(&world, 1), alone, "{policy}");
        // The second one goes, and comes back.
        two.del();
        assert_eq!((owned(&world, 1), owned(&world, 2)), (alone, 0), "{policy}");
        one.check();
        leave_way_to(&world, 1);
        one.reaches_outside();
        two.add();
        // The first one goes.
        one.del();
        assert_eq!((owned(&world, 1), owned(&world, 2)), (0, alone), "{policy}");
        two.check();
        leave_way_to(&world, 2);
        two.reaches_outside();
        two.del();
        assert_eq!((owned(&world, 1), owned(&world, 2)), (0, 0), "{policy}");
    }
}

#[test]
fn gc_passes_on_what_another_container_needs() {
    let world = World::new();
    let _outside = outside(&world);
    drop_forwarded(&world);
    let one = Attached::new(&world, 1, json!({"ingressPolicy": "isolated"}));
    let alone = owned(&world, 1);
    let two = Attached::new(&world, 2, json!({"ingressPolicy": "isolated"}));
    let none = json!({"cni.dev/valid-attachments": []});
    for (plugin, config) in one.chain().iter().rev() {
        world.call(plugin, "GC", &with(config, none.clone())).run().silence();
    }
    world.call("bridge", "GC", &bridge(1, none)).run().silence();
    assert_eq!((owned(&world, 1), owned(&world, 2)), (0, alone));
    two.check();
    leave_way_to(&world, 2);
    two.reaches_outside();
}

/// A repeated ADD changes nothing for the other one, whichever was first.
#[test]
fn a_repeated_add_keeps_what_is_shared() {
    let world = World::new();
    let one = Attached::new(&world, 1, json!({"ingressPolicy": "isolated"}));
    let two = Attached::new(&world, 2, json!({"ingressPolicy": "isolated"}));
    let before = world.host(["nft", "list", "ruleset"]);
    for attached in [&one, &two] {
        for (plugin, config) in attached.chain() {
            attached.container.add(plugin, &config);
        }
        assert_eq!(world.host(["nft", "list", "ruleset"]), before, "{}", attached.number);
    }
    // The policy of the second one changes.
    let open = chained("firewall", 2, json!({"ingressPolicy": "same-bridge"}), &two.result);
    two.container.add("firewall", &open);
    one.check();
    two.container.check("firewall", &open, &two.result);
    two.del();
    one.check();
}

#[test]
fn an_owner_that_has_ended_shares_nothing() {
    let world = World::new();
    let one = Attached::new(&world, 1, json!({"ingressPolicy": "isolated"}));
    let alone = owned(&world, 1);
    let two = Attached::new(&world, 2, json!({"ingressPolicy": "isolated"}));
    two.container.destroy();
    one.container.destroy();
    // A published port in each family, and the isolated port of the bridge.
    let ports = 2 + 1;
    let three = Attached::new(&world, 3, json!({"ingressPolicy": "isolated"}));
    assert_eq!(owned(&world, 3), alone);
    assert_eq!((owned(&world, 1), owned(&world, 2)), (ports, ports));
    three.del();
    assert_eq!(owned(&world, 3), 0);
}

#[test]
fn what_two_containers_cannot_both_have_is_refused() {
    let world = World::new();
    let c1 = world.container("c1");
    let c2 = world.container("c2");
    let config = bridge(1, json!({}));
    let result = c1.add("bridge", &config);
    let before = world.state_with(&[&c2]);
    let addresses = json!([{"address": "10.1.0.7/16", "gateway": "10.1.0.1"}]);
    let other = bridge(2, json!({"ipam": {"addresses": addresses}}));
    c2.call("bridge", "ADD", &other).run().fails(
        999,
        &["cannot masquerade 10.1.0.7: network net1, container c1, interface eth0 has other rules for it"],
    );
    before
        .apart_from("br2", "one")
        .assert_same(&world.state_with(&[&c2]).apart_from("br2", "one"), "after the refused ADD");
    c1.check("bridge", &config, &result);
    c1.destroy();
    c2.add("bridge", &other);
    // The chain of the other subnet has gone with its last element.
    assert!(!world.host(["nft", "list", "ruleset"]).contains("masquerade-10.1.0.0/24"));
}

/// The text of an owner has only the hash of such a name.
#[test]
fn an_owner_with_a_long_name_that_has_ended_shares_nothing() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let name = json!({"name": "n".repeat(60)});
    let config = bridge(1, name.clone());
    let result = c1.add("bridge", &config);
    c1.add("portmap", &with(&chained("portmap", 1, ports(1), &result), name));
    c1.destroy();
    let other = json!([{"address": "10.1.0.7/16", "gateway": "10.1.0.1"}]);
    let other = bridge(2, json!({"ipam": {"addresses": other}}));
    let result = c2.add("bridge", &other);
    // Its port, too.
    let portmap = chained("portmap", 2, ports(1), &result);
    c2.add("portmap", &portmap);
    c2.check("portmap", &portmap, &result);
    assert_eq!(world.host(["nft", "list", "ruleset"]).matches("c1 eth0").count(), 1);
    // What no ADD needs.
    world.tool(&["/run/bin/cnibox", "doctor", "--fix", "--yes"], None).run();
    assert_eq!(world.host(["nft", "list", "ruleset"]).matches("c1 eth0").count(), 0);
}

/// Another program flushes what has a shared address.
#[test]
fn a_flushed_set_is_filled_again_by_its_owners() {
    let isolated = json!({"ingressPolicy": "isolated"});
    for flushed in [
        "map ip cnibox firewall-isolated",
        "map ip cnibox owners-of-firewall-isolated",
        "set ip cnibox firewall-addresses",
        "set ip6 cnibox portmap-masqueraded-64",
    ] {
        let world = World::new();
        let one = Attached::new(&world, 1, isolated.clone());
        let alone = owned(&world, 1);
        let two = Attached::new(&world, 2, isolated.clone());
        world.host(["nft", &format!("flush {flushed}")]);
        // The further owner is the first to come.
        for attached in [&two, &one] {
            for (plugin, config) in attached.chain() {
                attached.container.add(plugin, &config);
            }
        }
        one.check();
        two.check();
        two.del();
        assert_eq!((owned(&world, 1), owned(&world, 2)), (alone, 0), "{flushed}");
        one.check();
        one.del();
        let rules = without_links(&world);
        assert!(!rules.contains("\"br") && !rules.contains("comment \"net"), "{flushed}: {rules}");
    }
}

/// Another program flushes what has a shared address, and nothing fills it again.
#[test]
fn a_gc_after_a_flush_leaves_neither_chains_nor_bridges() {
    for flushed in ["map ip cnibox masquerade-sources", "map ip6 cnibox firewall-isolated"] {
        let world = World::new();
        let isolated = json!({"ingressPolicy": "isolated"});
        let both = [1, 2].map(|number| Attached::new(&world, number, isolated.clone()));
        world.host(["nft", &format!("flush {flushed}")]);
        both.iter().for_each(Attached::del);
        let none = json!({"cni.dev/valid-attachments": []});
        for (plugin, config) in both[0].chain() {
            world.call(plugin, "GC", &with(&config, none.clone())).run().silence();
        }
        world.call("bridge", "GC", &bridge(1, none)).run().silence();
        let rules = without_links(&world);
        let left =
            ["\"br", "comment \"net", "masquerade-10.1.0.0"].map(|text| rules.contains(text));
        assert_eq!(left, [false; 3], "{flushed}: {rules}");
    }
}

#[test]
fn an_address_in_two_subnets_is_masqueraded_in_the_first() {
    let world = World::new();
    let _outside = outside(&world);
    let c1 = world.container("c1");
    let addresses = json!([{"address": "10.1.0.7/24", "gateway": "10.1.0.1"},
        {"address": "10.1.0.7/16", "gateway": "10.1.0.1"}]);
    let config = bridge(1, json!({"ipam": {"addresses": addresses}, "forceAddress": true}));
    let result = c1.add("bridge", &config);
    c1.check("bridge", &config, &result);
    c1.ping(OUTSIDE[0]);
    c1.del("bridge", &config);
    assert_eq!(owned(&world, 1), 0);
}

/// The second network does without masquerade: the first one's stays.
#[test]
fn an_add_without_masquerade_leaves_that_of_a_living_container() {
    let world = World::new();
    let _outside = outside(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let config = bridge(1, json!({}));
    let result = c1.add("bridge", &config);
    let other = bridge(2, json!({"ipMasq": false, "macspoofchk": true}));
    c2.add("bridge", &other);
    c1.check("bridge", &config, &result);
    c2.del("bridge", &other);
    leave_way_to(&world, 1);
    OUTSIDE.iter().for_each(|address| c1.ping(address));
}

#[test]
fn a_source_of_firewalld_stays_until_the_last_is_gone() {
    let world = World::new();
    let _running = firewalld::start_firewalld(&world);
    let has = || {
        ["10.1.0.7/32", "fd00:1::7/128"]
            .map(|source| firewalld::has_source(&world, "trusted", source))
    };
    for first in [0, 1] {
        let both = [1, 2].map(|number| {
            let container = world.container(&format!("c{number}{first}"));
            let result = container.add("bridge", &bridge(number, json!({})));
            let config = chained("firewall", number, json!({"backend": "firewalld"}), &result);
            container.add("firewall", &config);
            (container, config, result)
        });
        let [(gone, config, _), (stays, other, result)] = if first == 0 {
            both
        } else {
            let [one, two] = both;
            [two, one]
        };
        gone.del("firewall", &config);
        assert_eq!(has(), [true, true], "{first}");
        stays.check("firewall", &other, &result);
        stays.del("firewall", &other);
        assert_eq!(has(), [false, false], "{first}");
        for (container, number) in [(&gone, 1 + first), (&stays, 2 - first)] {
            container.del("bridge", &bridge(number, json!({})));
        }
    }
}

//! `macspoofchk` of bridge.

use serde_json::{Value, json};

use super::{network, owned, ruleset};
use crate::world::{Container, World, with, without_tags};

const FOREIGN: &str = "02:00:00:00:00:99";

fn checked() -> Value {
    network("bridge", json!({"macspoofchk": true}))
}

/// One try of a second, where no answer is expected.
fn is_heard(container: &Container<'_>, address: &str) -> bool {
    container.tool(["ping", "-n", "-q", "-c", "1", "-W", "1", address]).run().status == 0
}

#[test]
fn only_frames_with_the_containers_address_pass() {
    let world = World::new();
    let (c1, c2, c3) = (world.container("c1"), world.container("c2"), world.container("c3"));
    c1.add("bridge", &checked());
    c2.add("bridge", &network("bridge", json!({})));
    c3.add("bridge", &checked());
    for container in [&c1, &c2, &c3] {
        container.ping("10.1.0.1");
    }
    for container in [&c1, &c2] {
        container.exec(["ip", "link", "set", "eth0", "address", FOREIGN]);
    }
    assert!(!is_heard(&c1, "10.1.0.1"), "it pretends to be another");
    // The configuration of c2 has no check.
    c2.ping("10.1.0.1");
    // The frames of c1 have no effect on c3.
    c3.ping("10.1.0.1");
}

#[test]
fn the_rules_are_as_documented() {
    let world = World::new();
    let mac = json!({"runtimeConfig": {"mac": "02:00:00:00:00:01"}});
    let result = world.container("c1").add("bridge", &with(&checked(), mac));
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let expected = "\
table bridge cnibox {
	set spoof-check-ports {
		type ifname
		elements = { \"PORT\" comment \"net c1 eth0\" }
	}

	set spoof-check-allowed {
		type ifname . ether_addr
		elements = { \"PORT\" . 02:00:00:00:00:01 comment \"net c1 eth0\" }
	}

	chain spoof-check-prerouting {
		type filter hook prerouting priority dstnat; policy accept;
		iifname @spoof-check-ports iifname . ether saddr != @spoof-check-allowed drop
	}
}
";
    assert_eq!(without_tags(&ruleset(&world)).replace(port, "PORT"), expected);
}

#[test]
fn del_and_gc_remove_it_with_the_namespace_gone() {
    for verb in ["DEL", "GC"] {
        let world = World::new();
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        c1.add("bridge", &checked());
        c2.add("bridge", &checked());
        c1.destroy();
        if verb == "DEL" {
            c1.del("bridge", &checked());
            c1.del("bridge", &checked());
        } else {
            let valid =
                json!({"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}]});
            world.call("bridge", "GC", &with(&checked(), valid)).run().silence();
        }
        assert_eq!(owned(&world), 2, "{verb}: one of each set");
        assert!(!ruleset(&world).contains("net c1"), "{verb}");
        c2.ping("10.1.0.1");
    }
}

#[test]
fn check_fails_if_a_rule_is_missing() {
    let perturbations = [
        "flush set bridge cnibox spoof-check-allowed",
        "flush set bridge cnibox spoof-check-ports",
        "flush chain bridge cnibox spoof-check-prerouting",
    ];
    for text in perturbations {
        let world = World::new();
        let c1 = world.container("c1");
        let result = c1.add("bridge", &checked());
        c1.check("bridge", &checked(), &result);
        world.host(["nft", text]);
        c1.checking("bridge", &checked(), &result).run().fails(999, &["spoof check"]);
    }
}

#[test]
fn an_address_of_an_earlier_container_is_not_allowed_after_a_flush_of_the_ports() {
    let config =
        json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "macspoofchk": true});
    let with_mac = |mac: &str| with(&config, json!({"runtimeConfig": {"mac": mac}}));
    let world = World::new();
    let c1 = world.container("c1");
    c1.add("bridge", &with_mac("02:00:00:00:00:01"));
    c1.destroy();
    world.host(["nft", "flush set bridge cnibox spoof-check-ports"]);
    // The port of a container with the same id has the same name.
    let c1 = world.container("c1");
    let new = with_mac("02:00:00:00:00:02");
    let result = c1.add("bridge", &new);
    let rules = ruleset(&world);
    assert!(rules.contains("02:00:00:00:00:02") && !rules.contains("02:00:00:00:00:01"), "{rules}");
    c1.check("bridge", &new, &result);
}

#[test]
fn the_spoof_check_works_without_addresses() {
    let world = World::new();
    let c1 = world.container("c1");
    let config =
        json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "macspoofchk": true});
    let result = c1.add("bridge", &config);
    c1.check("bridge", &config, &result);
    world.call("bridge", "STATUS", &config).run().silence();
    c1.del("bridge", &config);
    assert_eq!(owned(&world), 0);
}

//! A bridge that another program made: it has an address of its own, which is not the gateway's.

use serde_json::{Value, json};

use super::{fails, network, subnets, works};
use crate::world::{World, runs_with, with};

/// The addresses of the bridge before.
const OWN: [&str; 2] = ["10.9.0.1/24", "fd00:1::9/64"];

fn world() -> World {
    let world = World::new();
    world.host(["ip", "link", "add", "br0", "up", "type", "bridge"]);
    for address in OWN {
        world.host(["ip", "address", "add", address, "dev", "br0", "nodad"]);
    }
    world
}

fn gateway(keys: Value, nets: &[&str]) -> Value {
    let keys = with(&json!({"bridge": "br0", "isGateway": true}), keys);
    network("bridge", with(&keys, subnets(nets)))
}

#[test]
fn a_gateway_beside_another_address_is_refused_by_both() {
    let world = world();
    let c1 = world.container("c1");
    for subnet in ["10.1.0.0/24", "fd00:1::/64", "fd00:1::/48"] {
        let config = gateway(json!({}), &[subnet]);
        let text = "\"br0\" already has an IP address different from";
        fails(&c1, &config, [50, 999], &[text, "which forceAddress replaces"]);
    }
    let found = world.host(["ip", "-o", "address", "show", "dev", "br0"]);
    assert!(OWN.iter().all(|address| found.contains(address)), "{found}");
}

#[test]
fn what_has_no_conflict_works() {
    for (keys, subnet, address) in [
        (json!({"forceAddress": true}), "10.1.0.0/24", "10.1.0.1"),
        (json!({"forceAddress": true}), "fd00:1::/64", "fd00:1::1"),
        (json!({}), "10.9.0.0/24", "10.9.0.1"),
        (json!({}), "fd00:2::/64", "fd00:2::1"),
        (json!({"isGateway": false}), "10.9.0.64/26", ""),
    ] {
        let world = world();
        let c1 = world.container("c1");
        works(&c1, &gateway(keys, &[subnet]));
        if !address.is_empty() {
            c1.ping(address);
        }
    }
}

/// The container can get the address of the subnet whose gateway the bridge has.
#[test]
fn status_does_not_fail_while_one_subnet_of_a_set_is_possible() {
    let world = world();
    let set = |other: &str| {
        let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": other}]]});
        network("bridge", json!({"bridge": "br0", "isGateway": true, "ipam": ipam}))
    };
    world.call("bridge", "STATUS", &set("10.9.0.0/24")).run().silence();
    world.call("bridge", "STATUS", &set("10.2.0.0/24")).run().fails(50, &["forceAddress"]);
}

/// The gateway of a VLAN is a link of its own.
#[test]
fn the_link_of_a_vlan_gateway_counts_and_not_the_bridge() {
    if !runs_with("CONFIG_BRIDGE_VLAN_FILTERING") {
        return;
    }
    let world = world();
    let c1 = world.container("c1");
    world.host(["ip", "link", "set", "br0", "type", "bridge", "vlan_filtering", "1"]);
    let config = gateway(json!({"vlan": 7}), &["10.1.0.0/24"]);
    works(&c1, &config);
    c1.ping("10.1.0.1");
    let other = gateway(json!({"vlan": 7, "name": "other"}), &["10.2.0.0/24"]);
    fails(&world.container("c2"), &other, [50, 999], &["\"br0.7\" already has an IP address"]);
}

//! IPv6 is disabled on the host, by `default.disable_ipv6` or on a bridge: containers can have it, and the link of a gateway gets it.

use serde_json::{Value, json};

use super::{network, subnets, works};
use crate::world::{World, runs_with, with};

const BOTH: [&str; 2] = ["10.1.0.0/24", "fd00:1::/64"];

fn world() -> World {
    let world = World::new();
    world.host(["sysctl", "-q", "-w", "net/ipv6/conf/default/disable_ipv6=1"]);
    world
}

fn has_a_gateway(plugin: &str, keys: Value) {
    let world = world();
    let c1 = world.container("c1");
    works(&c1, &network(plugin, with(&json!({"isGateway": true}), keys)));
    c1.ping("fd00:1::1");
    assert_eq!(world.sysctl("net/ipv6/conf/default/disable_ipv6"), "1");
}

#[test]
fn a_gateway_has_it() {
    ["bridge", "ptp"].into_iter().for_each(|plugin| has_a_gateway(plugin, subnets(&BOTH)));
}

#[test]
fn a_gateway_of_a_vlan_has_it() {
    if runs_with("CONFIG_BRIDGE_VLAN_FILTERING") {
        has_a_gateway("bridge", with(&json!({"vlan": 7}), subnets(&BOTH)));
    }
}

#[test]
fn containers_reach_each_other_without_a_gateway() {
    let world = world();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let config = network("bridge", subnets(&BOTH));
    works(&c1, &config);
    works(&c2, &config);
    c1.ping("10.1.0.3");
    c1.ping("fd00:1::3");
}

#[test]
fn macvlan_and_gateways_of_ipv4_work() {
    let world = world();
    world.host(["ip", "link", "add", "up0", "up", "type", "veth", "peer", "name", "wire0"]);
    world.host(["ip", "link", "set", "wire0", "up"]);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let macvlan = network("macvlan", with(&json!({"master": "up0"}), subnets(&BOTH)));
    works(&c1, &macvlan);
    works(&c2, &macvlan);
    c1.ping("fd00:1::3");
    for (plugin, name) in [("bridge", "c3"), ("ptp", "c4")] {
        let container = world.container(name);
        let subnet = format!("10.{}.0.0/24", name.len() + plugin.len());
        let keys = with(&json!({"isGateway": true, "name": name}), subnets(&[&subnet]));
        works(&container, &network(plugin, keys));
        container.ping(&subnet.replace(".0/24", ".1"));
    }
}

#[test]
fn a_bridge_that_exists_gets_it() {
    for (default, own) in [("0", "1"), ("1", "0")] {
        let world = World::new();
        let set = |link: &str, value: &str| {
            world.host([
                "sysctl",
                "-q",
                "-w",
                &format!("net/ipv6/conf/{link}/disable_ipv6={value}"),
            ])
        };
        set("default", default);
        world.host(["ip", "link", "add", "cni0", "type", "bridge"]);
        set("cni0", own);
        let c1 = world.container("c1");
        let config = network("bridge", with(&json!({"isGateway": true}), subnets(&BOTH)));
        works(&c1, &config);
        c1.ping("fd00:1::1");
        assert_eq!(world.sysctl("net/ipv6/conf/default/disable_ipv6"), default);
    }
}

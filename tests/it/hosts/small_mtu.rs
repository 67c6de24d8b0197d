//! Links with an MTU below 1280, for a tunnel or a radio link: the kernel gives them no IPv6, and takes it from them in silence.

use serde_json::{Value, json};

use super::{fails, network, subnets, works};
use crate::world::{World, with};

const BOTH: [&str; 2] = ["10.1.0.0/24", "fd00:1::/64"];

/// With a link for containers, and its other end.
fn world() -> World {
    let world = World::new();
    world.host(["ip", "link", "add", "up0", "up", "type", "veth", "peer", "name", "wire0"]);
    world.host(["ip", "link", "set", "wire0", "up"]);
    world
}

fn configured(plugin: &str, mtu: u32, ipam: Value) -> Value {
    network(plugin, with(&json!({"mtu": mtu, "isGateway": true, "master": "up0"}), ipam))
}

#[test]
fn the_configuration_is_refused_with_the_number() {
    let fixed = json!({"ipam": {"type": "static", "addresses":
        [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"address": "fd00:1::2/64", "gateway": "fd00:1::1"}]}});
    for plugin in ["bridge", "ptp", "macvlan", "tap"] {
        for ipam in [subnets(&BOTH), fixed.clone()] {
            let world = world();
            let c1 = world.container("c1");
            let too_small = configured(plugin, 1279, ipam.clone());
            fails(&c1, &too_small, [7, 7], &["cannot use mtu 1279 with IPv6", "1280"]);
            works(&c1, &configured(plugin, 1280, ipam));
            if plugin != "tap" && plugin != "macvlan" {
                c1.ping("fd00:1::1");
            }
        }
        let world = world();
        works(&world.container("c1"), &configured(plugin, 1279, subnets(&BOTH[..1])));
    }
}

#[test]
fn an_mtu_that_no_link_can_have_is_refused() {
    for (plugin, mtus) in [
        ("bridge", [67, 70_000]),
        ("ptp", [67, 65_536]),
        ("tap", [67, 65_522]),
        ("macvlan", [67, 65_536]),
    ] {
        for mtu in mtus {
            let world = world();
            let config = configured(plugin, mtu, subnets(&BOTH[..1]));
            let text = format!("invalid MTU {mtu}, must be [");
            fails(&world.container("c1"), &config, [7, 7], &[&text]);
        }
    }
}

#[test]
fn a_link_of_the_host_with_a_small_mtu_is_named() {
    let gateway = with(&json!({"isGateway": true}), subnets(&BOTH));
    let on = |key: &str| with(&json!({key: "up0"}), subnets(&BOTH));
    let port = "ip link add cni0 up type bridge; ip link set up0 master cni0";
    for (plugin, keys, host, link) in [
        ("bridge", gateway, port, "cni0"),
        ("macvlan", on("master"), "true", "eth0"),
        ("host-device", on("device"), "true", "eth0"),
    ] {
        let world = world();
        world.host(["sh", "-ec", &format!("ip link set up0 mtu 1200; {host}")]);
        let config = network(plugin, keys);
        let status = world.call(plugin, "STATUS", &config).run();
        status.fails(50, &["cannot have IPv6 addresses: its mtu 1200 is below 1280"]);
        let text = format!("{link} cannot have IPv6 addresses: its mtu 1200 is below 1280");
        let c1 = world.container("c1");
        c1.call(plugin, "ADD", &config).run().fails(999, &["fd00:1::", &text]);
        world.host(["ip", "link", "set", "up0", "mtu", "1500"]);
        works(&c1, &config);
    }
}

/// The kernel gives a bridge the smallest MTU of its ports.
#[test]
fn a_port_does_not_take_the_addresses_of_its_bridge() {
    let world = world();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    works(&c1, &network("bridge", with(&json!({"isGateway": true}), subnets(&BOTH))));
    let small = configured("bridge", 1200, subnets(&["10.1.1.0/24"]));
    let small = with(&small, json!({"name": "small", "isGateway": false}));
    fails(&c2, &small, [50, 7], &["mtu 1200", "bridge cni0 has fd00:1::1/64 and would lose it"]);
    c1.ping("fd00:1::1");
    works(&c2, &with(&small, json!({"mtu": 1280})));
    c1.ping("fd00:1::1");
}

#[test]
fn tuning_does_not_take_the_addresses_of_an_interface() {
    let world = world();
    for (number, plugin) in ["bridge", "ptp"].into_iter().enumerate() {
        let c1 = world.container(&format!("six{number}"));
        let nets = [format!("10.2{number}.0.0/24"), format!("fd00:2{number}::/64")];
        let keys =
            with(&json!({"isGateway": true, "name": plugin}), subnets(&[&nets[0], &nets[1]]));
        let result = works(&c1, &network(plugin, with(&keys, json!({"bridge": "br6"}))));
        let tuned = |mtu: u32| network("tuning", json!({"mtu": mtu, "prevResult": result}));
        let args = json!({"args": {"cni": {"mtu": 1279}}, "prevResult": result});
        for config in [tuned(1200), network("tuning", args)] {
            fails(&c1, &config, [50, 7], &["with IPv6 addresses: the minimum is 1280"]);
        }
        c1.ping(&format!("fd00:2{number}::1"));
        works(&c1, &tuned(1280));
        c1.ping(&format!("fd00:2{number}::1"));

        let c2 = world.container(&format!("four{number}"));
        let keys = with(
            &json!({"isGateway": true, "name": format!("{plugin}4")}),
            subnets(&[&format!("10.3{number}.0.0/24")]),
        );
        let result = works(&c2, &network(plugin, with(&keys, json!({"bridge": "br4"}))));
        works(&c2, &network("tuning", json!({"mtu": 1200, "prevResult": result})));
        c2.ping(&format!("10.3{number}.0.1"));
    }
}

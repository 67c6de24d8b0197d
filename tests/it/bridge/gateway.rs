//! The bridge as gateway: its address, forwarding, default routes.

use serde_json::{Value, json};

use super::{dbnet, dbnet_with, dual_stack};
use crate::world::{Container, World, addresses, lan, through_dhcp, with};

const FORWARD: [&str; 2] = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"];

fn bridge_addresses(world: &World) -> Vec<String> {
    addresses(&world.host_json(["ip", "-j", "address", "show", "dev", "cni0"]))
}

#[test]
fn without_is_gateway_the_bridge_has_no_address_and_nothing_is_forwarded() {
    let world = World::new();
    world.container("c1").add("bridge", &dbnet());
    assert_eq!(bridge_addresses(&world), [""; 0]);
    assert_eq!(FORWARD.map(|name| world.sysctl(name)), ["0", "0"]);
}

#[test]
fn a_gateway_has_the_address_and_forwards_its_family() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dbnet_with(json!({"isGateway": true})));
    assert_eq!(bridge_addresses(&world), ["10.1.0.1/16"]);
    assert_eq!(FORWARD.map(|name| world.sysctl(name)), ["1", "0"]);
    assert_eq!(result.get("routes"), None, "a gateway is no default gateway");
    c1.ping("10.1.0.1");
}

#[test]
fn both_families_have_their_gateway_and_default_route() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dual_stack());
    assert_eq!(bridge_addresses(&world), ["10.1.0.1/16", "fd00:1::1/64"]);
    assert_eq!(FORWARD.map(|name| world.sysctl(name)), ["1", "1"]);
    let defaults =
        json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "::/0", "gw": "fd00:1::1"}]);
    assert_eq!(result["routes"], defaults);
    let gateway =
        |family| c1.json(["ip", "-j", family, "route", "show", "default"])[0]["gateway"].clone();
    assert_eq!((gateway("-4"), gateway("-6")), (json!("10.1.0.1"), json!("fd00:1::1")));
}

#[test]
fn a_gateway_that_ipam_does_not_name_is_the_first_address() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "isGateway": true,
        "ipam": {"type": "static", "addresses": [{"address": "10.1.7.5/16"}, {"address": "fd00:1::5/64"}]},
    });
    let result = c1.add("bridge", &config);
    let gateways = [0, 1].map(|index| result["ips"][index]["gateway"].clone());
    assert_eq!(gateways, ["10.1.0.1", "fd00:1::1"]);
    assert_eq!(bridge_addresses(&world), ["10.1.0.1/16", "fd00:1::1/64"]);
}

#[test]
fn a_default_route_of_ipam_is_not_added_twice() {
    for route in [json!({"dst": "0.0.0.0/0"}), json!({"dst": "0.0.0.0/0", "gw": "10.1.0.1"})] {
        let world = World::new();
        let c1 = world.container("c1");
        let config = dbnet_with(json!({"isDefaultGateway": true, "ipam": {"routes": [route]}}));
        c1.add("bridge", &config);
        let defaults = c1.json(["ip", "-j", "route", "show", "default"]);
        assert_eq!(defaults.as_array().unwrap().len(), 1, "{defaults}");
        assert_eq!(defaults[0]["gateway"], "10.1.0.1");
    }
}

#[test]
fn the_second_container_finds_the_gateway_ready() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    c1.add("bridge", &dual_stack());
    c2.add("bridge", &dual_stack());
    assert_eq!(bridge_addresses(&world), ["10.1.0.1/16", "fd00:1::1/64"]);
    c2.ping("fd00:1::1");
}

fn world_with_another_gateway(address: &str) -> World {
    let world = World::new();
    world.host(["ip", "link", "add", "cni0", "type", "bridge"]);
    world.host(["ip", "link", "set", "cni0", "up"]);
    world.host(["ip", "address", "add", address, "dev", "cni0", "nodad"]);
    world
}

#[test]
fn another_address_on_the_bridge_is_an_error() {
    let ipv6 =
        json!({"isGateway": true, "ipam": {"subnet": "fd00:1::/64", "gateway": "fd00:1::1"}});
    let cases: [(&str, Value, &str); 3] = [
        ("10.9.0.1/24", json!({"isGateway": true}), "10.1.0.1/16"),
        ("10.1.0.1/24", json!({"isGateway": true}), "10.1.0.1/16"),
        ("fd00:1::9/48", ipv6, "fd00:1::1/64"),
    ];
    for (other, keys, wanted) in cases {
        let world = world_with_another_gateway(other);
        let c1 = world.container("c1");
        let before = world.state_with(&[&c1]).apart_from("", "dbnet");
        let error = c1.call("bridge", "ADD", &dbnet_with(keys)).run().fails(999, &[]);
        let text = format!("already has an IP address different from {wanted}");
        assert!(error.msg.contains(&text), "{error:?}");
        before.assert_same(&world.state_with(&[&c1]).apart_from("", "dbnet"), "after a failed ADD");
    }
}

#[test]
fn another_address_gives_way_when_forced() {
    let world = world_with_another_gateway("10.9.0.1/24");
    let config = dbnet_with(json!({"isGateway": true, "forceAddress": true}));
    world.container("c1").add("bridge", &config);
    assert_eq!(bridge_addresses(&world), ["10.1.0.1/16"]);
}

#[test]
fn a_bridge_that_lost_its_mac_with_its_last_port_is_a_gateway_all_the_same() {
    let world = World::new();
    let port_comes_and_goes = "ip link add cni0 type bridge; ip link set cni0 up
        ip link add port type veth peer name cable; ip link set port master cni0; ip link del port";
    world.host(["sh", "-ec", port_comes_and_goes]);
    let mac = || world.host_json(["ip", "-j", "link", "show", "cni0"])[0]["address"].clone();
    assert_eq!(mac(), "00:00:00:00:00:00");
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dbnet_with(json!({"isGateway": true})));
    assert_eq!(result["interfaces"][0]["mac"], mac());
    c1.ping("10.1.0.1");
}

#[test]
fn ipv6_networks_that_do_not_overlap_share_a_bridge() {
    let world = world_with_another_gateway("fd00:9::1/64");
    let ipam = json!({"subnet": "fd00:1::/64", "gateway": "fd00:1::1"});
    let config = with(&dbnet(), json!({"isGateway": true, "ipam": ipam}));
    world.container("c1").add("bridge", &config);
    let mut both = bridge_addresses(&world);
    both.sort();
    assert_eq!(both, ["fd00:1::1/64", "fd00:9::1/64"]);
}

/// The bridge cni0 with the link to the machine outside, which has the addresses 10.1.0.254 and fd00:1::fe.
fn bridge_to_outside(world: &World) -> Container<'_> {
    let outside = lan(world);
    world.host([
        "sh",
        "-ec",
        "ip link add cni0 type bridge; ip link set lan master cni0; ip link set cni0 up",
    ]);
    world.eventually("the bridge forwards", || {
        world.host(["ip", "-d", "link", "show", "lan"]).contains("state forwarding")
    });
    outside
}

#[test]
fn a_gateway_that_another_machine_answers_for_is_refused() {
    let world = World::new();
    let outside = bridge_to_outside(&world);
    let c1 = world.container("c1");
    let mac = outside.json(["ip", "-j", "link", "show", "sw"])[0]["address"].clone();
    let state = || world.state_with(&[&c1]).apart_from("", "dbnet");
    let before = state();
    let network = |subnet: &str, gateway: &str| {
        let ipam = json!({"subnet": subnet, "gateway": gateway});
        dbnet_with(json!({"isDefaultGateway": true, "ipam": ipam}))
    };
    for (subnet, gateway) in [("10.1.0.0/24", "10.1.0.254"), ("fd00:1::/64", "fd00:1::fe")] {
        let config = network(subnet, gateway);
        let text = format!(
            "cannot set gateway {gateway} on cni0: {} answers for it",
            mac.as_str().unwrap()
        );
        c1.call("bridge", "ADD", &config).run().fails(7, &[&text, "isGateway"]);
        before.assert_same(&state(), "after a refused ADD");
        // The router is the gateway of a network without the key.
        let layer3 = with(&config, json!({"isDefaultGateway": false}));
        c1.add("bridge", &layer3);
        c1.ping(gateway);
        c1.del("bridge", &layer3);
    }
    for (subnet, gateway) in [("10.1.0.0/24", "10.1.0.1"), ("fd00:1::/64", "fd00:1::1")] {
        let config = network(subnet, gateway);
        c1.add("bridge", &config);
        c1.ping(gateway);
        c1.del("bridge", &config);
    }
}

#[test]
fn a_bridge_that_was_down_is_asked_too() {
    let world = World::new();
    let _outside = bridge_to_outside(&world);
    let c1 = world.container("c1");
    for (subnet, gateway) in [("10.1.0.0/24", "10.1.0.254"), ("fd00:1::/64", "fd00:1::fe")] {
        world.host(["ip", "link", "set", "cni0", "down"]);
        let ipam = json!({"subnet": subnet, "gateway": gateway});
        let config = dbnet_with(json!({"isGateway": true, "ipam": ipam}));
        c1.call("bridge", "ADD", &config).run().fails(7, &[gateway, "answers for it"]);
    }
}

#[test]
fn without_the_capability_for_packet_sockets_nobody_is_asked() {
    let world = World::new();
    let _outside = bridge_to_outside(&world);
    for (name, subnet) in [("c1", "10.1.0.0/24"), ("c2", "fd00:1::/64")] {
        let config = dbnet_with(json!({"isGateway": true, "ipam": {"subnet": subnet}}));
        let add = world.container(name).call("bridge", "ADD", &config);
        add.under(&["setpriv", "--bounding-set=-net_raw"]).run().success();
    }
}

#[test]
fn a_link_of_this_host_on_the_bridge_is_no_other_machine() {
    let world = World::new();
    let script = "ip link add cni0 type bridge; ip link set cni0 up; ip link add p0 type veth peer name p1
        ip link set p0 master cni0 up; ip link set p1 up; ip address add 10.1.0.1/32 dev lo; ip link set lo up";
    world.host(["sh", "-ec", script]);
    let c1 = world.container("c1");
    c1.add("bridge", &dbnet_with(json!({"isGateway": true})));
    assert_eq!(bridge_addresses(&world), ["10.1.0.1/16"]);
}

#[test]
fn the_gateway_of_a_dhcp_server_is_never_that_of_the_bridge() {
    let world = World::new();
    let c1 = world.container("c1");
    for key in ["isGateway", "isDefaultGateway"] {
        let config = with(&super::layer2(), json!({key: true, "ipam": {"type": "dhcp"}}));
        let outcome = through_dhcp(c1.call("bridge", "ADD", &config)).run();
        outcome.fails(7, &["cannot be the gateway of a network with dhcp", key]);
        assert!(!world.links().contains(&"cni0".to_owned()));
    }
}

#[test]
fn force_address_is_no_advice_where_it_cuts_the_host_off() {
    let world = world_with_another_gateway("10.9.0.1/24");
    let c1 = world.container("c1");
    let details = || {
        let config = dbnet_with(json!({"isGateway": true}));
        c1.call("bridge", "ADD", &config).run().fails(999, &["already has an IP address"]).details
    };
    assert_eq!(details(), "it has 10.9.0.1/24, which forceAddress replaces");
    world.host(["ip", "route", "add", "default", "via", "10.9.0.9"]);
    let details = details();
    assert!(details.contains("10.9.0.1/24") && !details.contains("forceAddress"), "{details}");
}

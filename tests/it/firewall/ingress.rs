//! `ingressPolicy`, with real packets.

use serde_json::{Value, json};

use super::{
    OUTSIDE, address, assert_does_not_reach, assert_reaches, attach, bridge, firewall, forget,
    outside, rules, set_br_netfilter,
};
use crate::world::{Container, World, with};

fn policy(name: &str) -> Value {
    json!({"ingressPolicy": name})
}

fn addresses(result: &Value) -> [String; 2] {
    [address(result, 0), address(result, 1)]
}

#[track_caller]
fn assert_connected(from: &Container<'_>, to: &Value, is_connected: bool) {
    let addresses = addresses(to);
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    if is_connected {
        assert_reaches(from, &addresses);
    } else {
        assert_does_not_reach(from, &addresses);
    }
}

#[test]
fn an_open_policy_lets_bridges_talk() {
    for keys in [json!({}), policy(""), policy("open"), json!({"ingressPolicy": null})] {
        let world = World::new();
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        attach(&c1, &bridge("one", 1), keys.clone());
        let two = attach(&c2, &bridge("two", 2), keys);
        assert_connected(&c1, &two, true);
        assert!(!rules(&world).contains(" drop"), "{}", rules(&world));
    }
}

#[test]
fn same_bridge_drops_only_packets_from_another_such_bridge() {
    let world = World::new();
    let outside = outside(&world);
    let [c1, c2, c3, c4] = ["c1", "c2", "c3", "c4"].map(|name| world.container(name));
    let one = attach(&c1, &bridge("one", 1), policy("same-bridge"));
    let neighbour = attach(&c2, &bridge("one", 1), policy("same-bridge"));
    let other = attach(&c3, &bridge("two", 2), policy("same-bridge"));
    let open = attach(&c4, &bridge("three", 3), policy("open"));
    for value in ["0", "1"] {
        set_br_netfilter(&world, value);
        assert_connected(&c1, &neighbour, true);
        assert_connected(&c1, &other, false);
        assert_connected(&c3, &one, false);
        assert_connected(&c1, &open, true);
        assert_connected(&c4, &one, true);
        assert_connected(&outside, &one, true);
        assert_reaches(&c1, &OUTSIDE);
        assert_reaches(&c1, &["10.1.0.1", "fd00:1::1"]);
    }
}

#[test]
fn isolated_stops_neighbours_too_with_and_without_br_netfilter() {
    let world = World::new();
    let outside = outside(&world);
    let [c1, c2, c3, c4] = ["c1", "c2", "c3", "c4"].map(|name| world.container(name));
    let one = attach(&c1, &bridge("one", 1), policy("isolated"));
    let neighbour = attach(&c2, &bridge("one", 1), policy("isolated"));
    // Of another network on the same bridge, with no policy.
    let open = with(&bridge("one", 1), json!({"name": "open"}));
    attach(
        &c3,
        &with(
            &open,
            json!({"ipam": {"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.100"}], [{"subnet": "fd00:1::/64", "rangeStart": "fd00:1::100"}]]}}),
        ),
        json!({}),
    );
    let other = attach(&c4, &bridge("two", 2), policy("same-bridge"));
    for value in ["0", "1"] {
        set_br_netfilter(&world, value);
        assert_connected(&c1, &neighbour, false);
        assert_connected(&c2, &one, false);
        assert_connected(&c3, &one, false);
        assert_connected(&c1, &other, false);
        assert_connected(&c4, &one, false);
        assert_reaches(&c1, &["10.1.0.1", "fd00:1::1"]);
        assert_reaches(&c1, &OUTSIDE);
        assert_connected(&outside, &one, true);
    }
}

/// Containers that talk by way of the host, as with proxy ARP or a route for each address.
#[test]
fn isolated_drops_packets_that_the_host_forwards_within_the_bridge() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    set_br_netfilter(&world, "0");
    attach(&c1, &bridge("one", 1), policy("isolated"));
    let two = attach(&c2, &bridge("one", 1), policy("isolated"));
    for (address, gateway) in addresses(&two).iter().zip(["10.1.0.1", "fd00:1::1"]) {
        c1.exec(["ip", "route", "add", address, "via", gateway]);
    }
    c2.exec(["ip", "route", "add", "10.1.0.2", "via", "10.1.0.1"]);
    c2.exec(["ip", "route", "add", "fd00:1::2", "via", "fd00:1::1"]);
    assert_connected(&c1, &two, false);
}

#[test]
fn del_of_the_last_container_ends_the_policy_of_a_bridge() {
    let world = World::new();
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
    attach(&c1, &bridge("one", 1), policy("same-bridge"));
    let skeleton = {
        attach(&c2, &bridge("two", 2), policy("isolated"));
        forget(&c2, "two");
        rules(&world)
    };
    c2.del("bridge", &bridge("two", 2));
    let two = attach(&c2, &bridge("two", 2), policy("same-bridge"));
    attach(&c3, &bridge("one", 1), policy("isolated"));
    assert_connected(&c1, &two, false);
    forget(&c3, "one");
    forget(&c2, "two");
    assert_eq!(rules(&world), skeleton);
    // br1 is still kept apart, br2 is not.
    assert_connected(&c1, &two, true);
    assert!(rules(&world).contains("\"br1\""));
    forget(&c1, "one");
    assert!(!rules(&world).contains("\"br1\""), "{}", rules(&world));
}

#[test]
fn isolated_ends_with_the_last_isolated_container_of_a_bridge() {
    let world = World::new();
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
    set_br_netfilter(&world, "1");
    attach(&c1, &bridge("one", 1), policy("same-bridge"));
    let two = attach(&c2, &bridge("one", 1), policy("same-bridge"));
    assert_connected(&c1, &two, true);
    attach(&c3, &bridge("one", 1), policy("isolated"));
    assert_connected(&c1, &two, false);
    forget(&c3, "one");
    assert_connected(&c1, &two, true);
}

#[test]
fn another_policy_takes_the_place_of_the_first() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = attach(&c1, &bridge("one", 1), policy("isolated"));
    for keys in [policy("same-bridge"), policy("isolated"), policy("open")] {
        let config = firewall("one", keys, &result);
        c1.add("firewall", &config);
        c1.check("firewall", &config, &result);
    }
    let rules = rules(&world);
    // Only the port stays isolated until DEL, since nothing else says whether it is.
    assert!(!rules.contains("\"br1\""), "{rules}");
}

#[test]
fn the_bridge_is_found_wherever_it_stands_in_the_result() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    for (container, network) in [(&c1, bridge("one", 1)), (&c2, bridge("two", 2))] {
        let mut result = container.add("bridge", &network);
        // A plugin in between put its own first, or the bridge was not named at all.
        result["interfaces"].as_array_mut().unwrap().remove(0);
        for ip in result["ips"].as_array_mut().unwrap() {
            ip["interface"] = json!(1);
        }
        let config = firewall(network["name"].as_str().unwrap(), policy("same-bridge"), &result);
        container.add("firewall", &config);
    }
    assert!(
        rules(&world).contains("elements = { \"br1\", \"br2\" }")
            || rules(&world).contains("\"br1\",\n"),
        "{}",
        rules(&world)
    );
    assert_does_not_reach(&c1, &["10.2.0.2", "fd00:2::2"]);
}

#[test]
fn a_pair_without_a_bridge_is_kept_apart_from_others() {
    let world = World::new();
    let _outside = outside(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let network = json!({
        "cniVersion": "1.1.0", "name": "p2p", "type": "ptp",
        "ipam": {"type": "host-local", "subnet": "10.7.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
    });
    let mut results = Vec::new();
    for container in [&c1, &c2] {
        let result = container.add("ptp", &network);
        results.push(result);
    }
    assert_reaches(&c1, &[&address(&results[1], 0)]);
    for (container, result) in [&c1, &c2].into_iter().zip(&results) {
        container.add("firewall", &firewall("p2p", policy("isolated"), result));
    }
    assert_does_not_reach(&c1, &[&address(&results[1], 0)]);
    assert_reaches(&c1, &OUTSIDE[..1]);
}

#[test]
fn a_container_without_addresses_has_its_port_isolated() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    set_br_netfilter(&world, "0");
    let network = json!({"cniVersion": "1.1.0", "name": "l2", "type": "bridge", "bridge": "br0"});
    for (container, address) in [(&c1, "192.168.5.1/24"), (&c2, "192.168.5.2/24")] {
        attach(container, &network, policy("isolated"));
        container.exec(["ip", "address", "add", address, "dev", "eth0"]);
    }
    assert_does_not_reach(&c1, &["192.168.5.2"]);
    forget(&c1, "l2");
    forget(&c2, "l2");
    assert_reaches(&c1, &["192.168.5.2"]);
}

#[test]
fn an_add_that_asks_for_no_policy_ends_the_isolation_of_an_earlier_one() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    let ports =
        || world.host(["nft", "list", "set", "bridge", "cnibox", "firewall-isolated-ports"]);
    c1.add("firewall", &firewall("net", policy("isolated"), &result));
    assert!(ports().contains("net c1 eth0"), "{}", ports());
    c1.add("firewall", &firewall("net", json!({}), &result));
    assert!(!ports().contains("elements"), "{}", ports());
}

/// Regression: a container gave itself an address of the family that its network does not have, and the policy did not hold for it.
#[test]
fn a_policy_holds_for_the_family_without_addresses() {
    for name in ["same-bridge", "isolated", "strict", "open"] {
        let world = World::new();
        let [c4, c6, both] = ["c4", "c6", "both"].map(|name| world.container(name));
        let single = |number: u8, family: usize| {
            let range = bridge("", number)["ipam"]["ranges"][family].clone();
            with(&bridge(&format!("net{number}"), number), json!({"ipam": {"ranges": [range]}}))
        };
        attach(&c4, &single(1, 0), policy(name));
        attach(&c6, &single(2, 1), policy(name));
        let to = attach(&both, &bridge("both", 3), policy(name));
        let [to_v4, to_v6] = addresses(&to);
        world.host([
            "sh",
            "-ec",
            "ip address add fd00:1::1/64 dev br1 nodad; ip address add 10.2.0.1/24 dev br2",
        ]);
        for (container, own, gateway) in
            [(&c4, "fd00:1::9/64", "fd00:1::1"), (&c6, "10.2.0.9/24", "10.2.0.1")]
        {
            let script = format!(
                "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0; ip address add {own} dev eth0 $(case {own} in *:*) echo nodad;; esac); \
                 ip route add default via {gateway}"
            );
            container.exec(["sh", "-c", &script]);
        }
        for (from, address) in [(&c4, &to_v6), (&c6, &to_v4)] {
            match name {
                "open" => assert_reaches(from, &[address]),
                _ => assert_does_not_reach(from, &[address]),
            }
        }
        assert_connected(&c4, &json!({"ips": [to["ips"][0], to["ips"][0]]}), name == "open");
        for (container, network) in [(&c4, "net1"), (&c6, "net2"), (&both, "both")] {
            forget(container, network);
        }
        for family in ["ip", "ip6"] {
            let left = world.host(["nft", "list", "table", family, "cnibox"]);
            assert!(!left.contains("\"br1") && !left.contains("\"br2"), "{name}: {left}");
        }
    }
}

/// The routes of each bridge for IPv6 match every frame on it: only the container's port is isolated.
#[test]
fn an_isolated_container_without_ipv6_leaves_that_of_its_neighbours() {
    let world = World::new();
    let [isolated, one, two] = ["isolated", "one", "two"].map(|name| world.container(name));
    let on_bridge = |name: &str, ranges: Value| {
        json!({"cniVersion": "1.1.0", "name": name, "type": "bridge", "bridge": "br1",
            "ipam": {"type": "host-local", "ranges": ranges}})
    };
    let both = json!([[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]]);
    let open = on_bridge("open", both);
    one.add("bridge", &open);
    let to = two.add("bridge", &open);
    let single = on_bridge("single", json!([[{"subnet": "10.1.0.0/24"}]]));
    attach(&isolated, &single, policy("isolated"));
    set_br_netfilter(&world, "1");
    assert_connected(&one, &to, true);
    assert!(!world.host(["nft", "list", "table", "ip6", "cnibox"]).contains("firewall-mark"));
    isolated.exec(["ip", "address", "add", "fd00:2::9/64", "dev", "eth0", "nodad"]);
    assert_does_not_reach(&isolated, &["fd00:2::3"]);
}

//! The rules and routes of ADD, with each key.

use serde_json::{Value, json};

use super::{call, container, result, routing, sbr, way};
use crate::world::{Container, VERSIONS, World, with};

#[test]
fn routes_of_the_interface_move_to_tables_of_its_addresses() {
    let world = World::new();
    let c1 = container(&world);
    let result = result(&c1);
    assert_eq!(call(&c1, "ADD", &sbr(json!({}), &result)).run().success(), result);
    let found = routing(&c1);
    for line in [
        "32765:	from 10.1.0.2 lookup 100 proto 203\n",
        "32765:	from fd00:1::2 lookup 101 proto 203\n",
        "default via 10.1.0.1 dev net1 table 100 \n",
        "10.1.0.0/24 dev net1 table 100 proto kernel scope link src 10.1.0.2\n",
        "10.8.0.0/16 dev net1 table 100 scope link\n",
        "10.9.0.0/16 via 10.1.0.1 dev net1 table 100 mtu 1400\n",
        "default via 10.0.0.1 dev eth0\n",
        "default via fd00:1::1 dev net1 table 101 metric 1024 pref medium\n",
        "fd00:1::/64 dev net1 table 101 proto kernel metric 256 pref medium\n",
        "fd08::/48 via fe80::1 dev net1 table 101 metric 1024 pref medium\n",
        "fd09::/48 via fd00:1::1 dev net1 table 101 metric 1024 pref medium\n",
        "fe80::/64 dev net1 table 101 proto kernel metric 256 pref medium\n",
        "fe80::/64 dev net1 proto kernel metric 256 pref medium\n",
    ] {
        assert!(found.contains(line.trim_end()), "{line} in\n{found}");
    }
    // Nothing else, and nothing else of net1 in the main table.
    assert_eq!(found.lines().filter(|line| line.contains("table 10")).count(), 9, "{found}");
    let main = found.lines().filter(|line| line.contains("net1") && !line.contains("table"));
    assert_eq!(main.count(), 1, "{found}");
    for (to, from, dev) in [
        ("192.0.2.1", "10.1.0.2", "net1"),
        ("10.0.0.9", "10.1.0.2", "net1"),
        ("192.0.2.1", "10.0.0.2", "eth0"),
        ("2001:db8::1", "fd00:1::2", "net1"),
        ("2001:db8::1", "fd00:0::2", "eth0"),
    ] {
        assert_eq!(way(&c1, to, from), dev, "{from} to {to}");
    }
}

#[test]
fn add_twice_is_as_once() {
    for keys in [
        json!({}),
        json!({"addSourceHints": true}),
        json!({"table": 500}),
        json!({"gateways": ["10.1.0.3"]}),
    ] {
        let world = World::new();
        let c1 = container(&world);
        let config = sbr(keys, &result(&c1));
        call(&c1, "ADD", &config).run().success();
        let once = routing(&c1);
        call(&c1, "ADD", &config).run().success();
        assert_eq!(routing(&c1), once, "{config}");
    }
}

/// Does an ADD, and adds an address in the subnet of the first to the interface. Returns the rules and routes of the ADD, and the
/// configuration of a later one.
pub(super) fn with_a_later_address(c1: &Container<'_>) -> (String, Value) {
    let mut result = result(c1);
    call(c1, "ADD", &sbr(json!({}), &result)).run().success();
    let before = routing(c1);
    c1.exec(["ip", "address", "add", "10.1.0.3/24", "dev", "net1", "noprefixroute"]);
    let more = json!({"address": "10.1.0.3/24", "gateway": "10.1.0.1", "interface": 1});
    result["ips"].as_array_mut().unwrap().push(more);
    (before, sbr(json!({}), &result))
}

#[test]
fn an_address_that_came_later_gets_its_table_and_the_first_keeps_its_own() {
    let world = World::new();
    let c1 = container(&world);
    let (before, config) = with_a_later_address(&c1);
    call(&c1, "ADD", &config).run().success();
    call(&c1, "CHECK", &config).run().silence();
    let after = routing(&c1);
    let missing: Vec<&str> = before.lines().filter(|line| !after.contains(*line)).collect();
    assert_eq!(missing, [""; 0], "{after}");
    let rule = after.lines().find(|line| line.contains("from 10.1.0.3 lookup")).unwrap();
    let table = rule.split_once(" lookup ").unwrap().1.split(' ').next().unwrap();
    let shown = c1.exec(["ip", "route", "show", "table", table]);
    assert!(shown.contains("default via 10.1.0.1 dev net1"), "{shown}");
    assert!(shown.contains("10.1.0.0/24 dev net1") && shown.contains("10.9.0.0/16"), "{shown}");
    assert_eq!(way(&c1, "10.7.0.1", "10.1.0.3"), "net1");
}

#[test]
fn used_tables_are_left_alone() {
    let world = World::new();
    let c1 = container(&world);
    c1.exec([
        "sh",
        "-ec",
        "ip route add 10.7.0.0/16 dev eth0 table 100; ip rule add from 10.7.0.1 lookup 101
        ip -6 route add fd07::/48 dev eth0 table 102",
    ]);
    call(&c1, "ADD", &sbr(json!({}), &result(&c1))).run().success();
    let found = routing(&c1);
    assert!(
        found.contains("from 10.1.0.2 lookup 103 ") && found.contains("from fd00:1::2 lookup 104 "),
        "{found}"
    );
}

#[test]
fn gateways_take_the_place_of_those_in_the_result() {
    let world = World::new();
    let c1 = container(&world);
    let config = sbr(json!({"gateways": ["10.1.0.254", "fe80::99"]}), &result(&c1));
    call(&c1, "ADD", &config).run().success();
    let found = routing(&c1);
    assert!(found.contains("default via 10.1.0.254 dev net1 table 100"), "{found}");
    assert!(found.contains("default via fe80::99 dev net1 table 101"), "{found}");
    assert_eq!(found.matches("default").count(), 4, "{found}");
    call(&c1, "CHECK", &config).run().silence();
}

#[test]
fn default_routes_are_moved_without_a_gateway() {
    let world = World::new();
    let c1 = container(&world);
    let ips = json!([{"address": "10.1.0.2/24"}]);
    let config = sbr(json!({}), &json!({"cniVersion": "1.1.0", "ips": ips}));
    call(&c1, "ADD", &config).run().success();
    let found = routing(&c1);
    assert!(found.contains("default via 10.1.0.1 dev net1 table 100 metric 10"), "{found}");
    // There was no address of IPv6, so its routes stay.
    assert!(found.contains("\nfd09::/48 via fd00:1::1 dev net1 metric"), "{found}");
}

#[test]
fn source_hints_stay_in_the_main_table() {
    let world = World::new();
    let c1 = container(&world);
    let config = sbr(json!({"addSourceHints": true}), &result(&c1));
    call(&c1, "ADD", &config).run().success();
    let found = routing(&c1);
    for line in [
        "10.1.0.0/24 dev net1 proto kernel scope link src 10.1.0.2",
        "10.8.0.0/16 dev net1 scope link",
        "fd00:1::/64 dev net1 src fd00:1::2 metric 256",
        "10.1.0.0/24 dev net1 table 100",
        "fd00:1::/64 dev net1 table 101",
    ] {
        assert!(
            found.contains(&format!("\n{line}")) || found.starts_with(line),
            "{line} in\n{found}"
        );
    }
    assert!(!found.contains("10.9.0.0/16 via 10.1.0.1 dev net1 mtu"), "{found}");
    assert_eq!(found.matches("\nfd00:1::/64 dev net1").count(), 2, "{found}");
    call(&c1, "CHECK", &config).run().silence();
}

#[test]
fn with_a_table_there_are_only_rules() {
    let world = World::new();
    let c1 = container(&world);
    let before = routing(&c1);
    let config = sbr(json!({"table": 70000}), &result(&c1));
    call(&c1, "ADD", &config).run().success();
    let (rules, routes): (Vec<String>, Vec<String>) =
        routing(&c1).lines().map(str::to_owned).partition(|line| line.contains("lookup"));
    assert_eq!(rules, ["32765:	from 10.1.0.2 lookup 70000", "32765:	from fd00:1::2 lookup 70000"]);
    assert_eq!(routes, before.lines().collect::<Vec<_>>());
    call(&c1, "CHECK", &config).run().silence();
    call(&c1, "DEL", &config).run().silence();
    assert_eq!(routing(&c1), before);
}

#[test]
fn two_addresses_in_one_family_have_two_tables() {
    let world = World::new();
    let c1 = container(&world);
    c1.exec(["ip", "address", "add", "10.2.0.2/24", "dev", "net1"]);
    let ips = json!([
        {"address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"address": "10.2.0.2/24", "gateway": "10.2.0.1"},
    ]);
    let config = sbr(json!({}), &json!({"cniVersion": "1.1.0", "ips": ips}));
    call(&c1, "ADD", &config).run().success();
    let found = routing(&c1);
    for (line, is_there) in [
        ("default via 10.1.0.1 dev net1 table 100", true),
        ("default via 10.2.0.1 dev net1 table 101", true),
        ("10.2.0.0/24 dev net1 table 101", true),
        ("10.2.0.0/24 dev net1 table 100", false),
        ("10.9.0.0/16 via 10.1.0.1 dev net1 table 101", false),
    ] {
        assert_eq!(found.contains(line), is_there, "{line} in\n{found}");
    }
    call(&c1, "CHECK", &config).run().silence();
    call(&c1, "DEL", &config).run().silence();
    assert!(!routing(&c1).contains("10.1.0.2 lookup") && !routing(&c1).contains("table 10"));
}

#[test]
fn only_our_route_of_two_to_one_destination_is_moved() {
    let world = World::new();
    let c1 = container(&world);
    // The kernel now shows one default route of IPv6, with two ways.
    c1.exec(["ip", "-6", "route", "append", "default", "via", "fd00:1::1", "dev", "net1"]);
    assert!(routing(&c1).contains("nexthop via fd00:1::1 dev net1"));
    call(&c1, "ADD", &sbr(json!({}), &result(&c1))).run().success();
    let found = routing(&c1);
    assert!(found.contains("\ndefault via fd00::1 dev eth0 metric 1024"), "{found}");
    assert!(found.contains("default via fd00:1::1 dev net1 table 101"), "{found}");
    assert!(!found.contains("nexthop"), "{found}");
}

#[test]
fn every_version_is_handed_on() {
    for version in VERSIONS {
        let world = World::new();
        let c1 = container(&world);
        let previous: Value = match version {
            "0.1.0" | "0.2.0" => {
                json!({"cniVersion": version, "ip4": {"ip": "10.1.0.2/24"}, "dns": {}})
            }
            "0.3.0" | "0.3.1" | "0.4.0" => json!({"cniVersion": version, "dns": {},
                "ips": [{"version": "4", "address": "10.1.0.2/24"}]}),
            _ => json!({"cniVersion": version, "ips": [{"address": "10.1.0.2/24"}]}),
        };
        let config = with(&sbr(json!({}), &previous), json!({"cniVersion": version}));
        assert_eq!(call(&c1, "ADD", &config).run().success(), previous);
        assert!(routing(&c1).contains("from 10.1.0.2 lookup 100"), "{version}");
    }
}

#[test]
fn the_plugin_before_still_finds_what_it_made() {
    for plugin in ["bridge", "veth", "macvlan"] {
        let world = World::new();
        let c1 = world.container("c1");
        world.host([
            "sh",
            "-c",
            "ip link add up0 type veth peer name up1; ip link set up0 up; ip link set up1 up",
        ]);
        let network = json!({
            "cniVersion": "1.1.0", "name": "net", "type": plugin, "isGateway": true, "master": "up0",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16"}, {"dst": "::/0"}]},
        });
        let result = c1.add(plugin, &network);
        for keys in [json!({}), json!({"addSourceHints": true})] {
            let config = sbr(keys, &result);
            c1.add("sbr", &config);
            c1.check("sbr", &config, &result);
            c1.check(plugin, &network, &result);
        }
        c1.del("sbr", &sbr(json!({}), &result));
        assert!(!routing(&c1).contains("lookup 1"), "{plugin}: {}", routing(&c1));
        c1.del(plugin, &network);
    }
}

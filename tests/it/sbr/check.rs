//! CHECK: one thing taken away is one thing named.

use serde_json::{Value, json};

use super::{call, container, result, sbr};
use crate::world::World;

#[test]
fn a_missing_rule_or_route_is_named() {
    let cases: [(Value, &str, &str); 11] = [
        (json!({}), "ip rule del from 10.1.0.2", "rule from 10.1.0.2 not found"),
        (json!({}), "ip -6 rule del from fd00:1::2", "rule from fd00:1::2 not found"),
        (json!({}), "ip route del default table 100", "route to 0.0.0.0/0 in table 100 not found"),
        (
            json!({}),
            "ip route replace default dev eth0 table 100",
            "route to 0.0.0.0/0 in table 100 not found",
        ),
        (
            json!({}),
            "ip route del 10.1.0.0/24 table 100",
            "route to 10.1.0.0/24 in table 100 not found",
        ),
        (
            json!({}),
            "ip route del 10.9.0.0/16 table 100",
            "route to 10.9.0.0/16 in table 100 not found",
        ),
        (
            json!({}),
            "ip -6 route del fd00:1::/64 table 101",
            "route to fd00:1::/64 in table 101 not found",
        ),
        (json!({}), "ip -6 route flush table 101", "route to ::/0 in table 101 not found"),
        (
            json!({"addSourceHints": true}),
            "ip route del 10.1.0.0/24 dev net1",
            "route to 10.1.0.0/24 in table 254",
        ),
        (
            json!({"addSourceHints": true}),
            "ip -6 route del fd00:1::/64 dev net1 table main",
            "route to fd00:1::/64 in table 254",
        ),
        (
            json!({"table": 500}),
            "ip rule del from 10.1.0.2",
            "rule from 10.1.0.2 lookup 500 not found",
        ),
    ];
    for (keys, command, text) in cases {
        let world = World::new();
        let c1 = container(&world);
        let config = sbr(keys, &result(&c1));
        call(&c1, "ADD", &config).run().success();
        call(&c1, "CHECK", &config).run().silence();
        c1.exec(["sh", "-c", command]);
        call(&c1, "CHECK", &config).run().fails(999, &[text]);
    }
}

/// The result of host-local for `ranges` of two subnets, and `routes` without gateways.
#[test]
fn a_route_without_a_gateway_is_in_the_table_of_the_first_one() {
    let world = World::new();
    let c1 = world.container("c1");
    let ranges = json!([
        [{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}],
        [{"subnet": "fd00:1::/64"}], [{"subnet": "fd00:2::/64"}],
    ]);
    let routes = json!([
        {"dst": "172.30.0.0/16"}, {"dst": "172.31.0.0/16", "scope": 253}, {"dst": "fd09::/48"},
        {"dst": "172.29.0.0/16", "gw": "10.2.0.9"},
    ]);
    let network = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br1",
        "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
    });
    let result = c1.add("bridge", &network);
    let config = sbr(json!({}), &result);
    c1.add("sbr", &config);
    c1.call("sbr", "CHECK", &config).run().silence();
    for (family, dst, tables) in [
        ("-4", "172.30.0.0/16", &["100"][..]),
        ("-4", "172.31.0.0/16", &["100", "101"]),
        ("-4", "172.29.0.0/16", &["101"]),
        ("-6", "fd09::/48", &["102"]),
    ] {
        for table in tables {
            let route = c1.exec(["ip", family, "route", "show", dst, "table", table]);
            c1.exec(["ip", family, "route", "del", dst, "table", table]);
            let missing = format!("route to {dst} in table {table} not found");
            c1.call("sbr", "CHECK", &config).run().fails(999, &[&missing]);
            let script = format!("ip {family} route add {} table {table}", route.trim());
            c1.exec(["sh", "-c", &script]);
            c1.call("sbr", "CHECK", &config).run().silence();
        }
    }
}

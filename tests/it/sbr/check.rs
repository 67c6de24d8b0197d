//! CHECK: one thing taken away is one thing named.

use serde_json::{Value, json};

use super::{call, container, result, sbr};
use crate::world::{World, with};

#[test]
fn what_is_missing_is_named() {
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

#[test]
fn a_check_needs_a_result() {
    let world = World::new();
    let c1 = container(&world);
    let config = with(&sbr(json!({}), &Value::Null), json!({"prevResult": null}));
    call(&c1, "CHECK", &config).run().fails(7, &["required prevResult missing"]);
}

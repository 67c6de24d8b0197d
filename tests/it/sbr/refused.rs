//! An ADD with an invalid or impossible configuration changes nothing.

use serde_json::{Value, json};

use super::{call, container, result, routing, sbr};
use crate::world::{World, with};

#[test]
fn invalid_keys_are_named_before_any_change() {
    let world = World::new();
    let c1 = container(&world);
    let before = routing(&c1);
    let good = result(&c1);
    for (keys, code, text) in [
        (json!({"table": 0}), 7, "table"),
        (json!({"table": -1}), 6, "table"),
        (json!({"table": "main"}), 6, "table"),
        (json!({"gateways": "10.1.0.1"}), 6, "gateways"),
        (json!({"gateways": ["10.1.0"]}), 7, "gateways"),
        (json!({"gateways": ["10.1.0.1", "10.1.0.2"]}), 7, "gateways"),
        (json!({"gateways": ["fd00::1", "fd00::2"]}), 7, "gateways"),
        (json!({"gateways": ["10.1.0.1", "fd00::1", "fd00::2"]}), 7, "gateways"),
        (json!({"addSourceHints": "yes"}), 6, "addSourceHints"),
        (
            json!({"prevResult": null}),
            7,
            "required prevResult missing: sbr must be called as chained plugin",
        ),
        (
            json!({"prevResult": {"ips": [{"address": "10.9.9.9/24", "interface": 0}]}}),
            7,
            "No IP addresses supplied",
        ),
    ] {
        call(&c1, "ADD", &with(&sbr(json!({}), &good), keys)).run().fails(code, &[text]);
        assert_eq!(routing(&c1), before, "{text}");
    }
    c1.call("sbr", "ADD", &sbr(json!({}), &json!({"ips": [{"address": "10.1.0.2/24"}]})))
        .env("CNI_IFNAME", "net9")
        .run()
        .fails(999, &["interface net9 not found"]);
}

#[test]
fn an_add_that_the_kernel_refuses_is_undone() {
    for keys in [json!({}), json!({"addSourceHints": true})] {
        let world = World::new();
        let c1 = container(&world);
        let before = routing(&c1);
        // The address of all hosts of the link.
        let gateways = with(&keys, json!({"gateways": ["ff02::1"]}));
        call(&c1, "ADD", &sbr(gateways, &result(&c1)))
            .run()
            .fails(999, &["cannot add route to ::/0 via ff02::1"]);
        assert_eq!(routing(&c1), before);
    }
}

#[test]
fn status_is_fine_here_and_bad_keys_are_not() {
    let world = World::new();
    let config = sbr(json!({}), &Value::Null);
    world.call("sbr", "STATUS", &config).run().silence();
    world.call("sbr", "STATUS", &with(&config, json!({"table": 0}))).run().fails(50, &["table"]);
}

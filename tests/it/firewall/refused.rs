//! ADD refuses an invalid value before it changes anything, and names the key.

use serde_json::{Value, json};

use super::{bridge, firewall, rules};
use crate::world::World;

#[test]
fn invalid_values_are_code_7_and_name_the_key() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    let cases = [
        ("backend", json!({"backend": "nftables"})),
        ("backend", json!({"backend": "Iptables"})),
        ("backend", json!({"BACKEND": "ipfw"})),
        ("ingressPolicy", json!({"ingressPolicy": "closed"})),
        ("ingressPolicy", json!({"ingressPolicy": "Isolated"})),
        ("ingressPolicy", json!({"ingressPolicy": "same-bridge "})),
        ("markAcceptBit", json!({"markAcceptBit": 32})),
        ("markAcceptBit", json!({"markAcceptBit": -1})),
        ("iptablesAdminChainName", json!({"iptablesAdminChainName": "a b"})),
        ("iptablesAdminChainName", json!({"iptablesAdminChainName": "-j"})),
        ("iptablesAdminChainName", json!({"iptablesAdminChainName": "!"})),
        ("iptablesAdminChainName", json!({"iptablesAdminChainName": "CNI-FORWARD"})),
        ("iptablesAdminChainName", json!({"iptablesAdminChainName": "FORWARD"})),
        ("iptablesAdminChainName", json!({"iptablesAdminChainName": "ACCEPT"})),
        ("iptablesAdminChainName", json!({"iptablesAdminChainName": "A".repeat(29)})),
    ];
    for (key, keys) in cases {
        for verb in ["ADD", "CHECK", "STATUS"] {
            let config = firewall("net", keys.clone(), &result);
            c1.call("firewall", verb, &config).run().fails(7, &[key]);
        }
    }
    assert_eq!(rules(&world), "");
}

#[test]
fn values_of_the_wrong_type_are_refused_by_their_key() {
    let world = World::new();
    let c1 = world.container("c1");
    for key in ["backend", "ingressPolicy", "iptablesAdminChainName", "firewalldZone"] {
        for value in [json!(1), json!(true), json!(["open"]), json!({})] {
            let config = firewall("net", json!({key: value}), &Value::Null);
            c1.call("firewall", "ADD", &config).run().fails(6, &[key]);
        }
    }
}

#[test]
fn empty_values_are_accepted() {
    let world = World::new();
    for (number, keys) in [
        json!({"backend": null, "ingressPolicy": null, "iptablesAdminChainName": null, "firewalldZone": null}),
        json!({"backend": "", "ingressPolicy": "", "iptablesAdminChainName": "", "firewalldZone": ""}),
        json!({"Backend": "iptables", "INGRESSPOLICY": "open", "someKeyOfTheFuture": {}}),
    ]
    .into_iter()
    .enumerate()
    {
        let container = world.container(&format!("c{number}"));
        super::attach(&container, &bridge("net", 1), keys);
    }
}

#[test]
fn a_policy_without_a_pair_is_an_error() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.exec(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]);
    let result = json!({
        "cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": c1.netns()}],
        "ips": [{"address": "10.9.0.2/24", "interface": 0}],
    });
    let config = firewall("net", json!({"ingressPolicy": "isolated"}), &result);
    c1.call("firewall", "ADD", &config).run().fails(999, &["ingressPolicy", "eth0"]);
    assert_eq!(rules(&world), "");
}

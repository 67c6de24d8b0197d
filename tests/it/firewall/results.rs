//! The result is handed on in every version, and its addresses are those of our interface.

use serde_json::{Value, json};

use super::{bridge, drop_forwarded, firewall, rules};
use crate::world::{VERSIONS, World, with};

#[test]
fn every_version_is_handed_on_as_it_came() {
    for version in VERSIONS {
        let world = World::new();
        let c1 = world.container("c1");
        drop_forwarded(&world);
        let versioned = json!({"cniVersion": version});
        let result = c1.add("bridge", &with(&bridge("net", 1), versioned.clone()));
        let config = with(&firewall("net", json!({}), &result), versioned);
        assert_eq!(c1.add("firewall", &config), result, "{version}");
        let rules = rules(&world);
        for address in ["10.1.0.2", "fd00:1::2"] {
            let element = format!("{address} comment \"net c1 eth0\"");
            assert_eq!(rules.matches(&element).count(), 2, "{version}: {rules}");
        }
        c1.del("firewall", &config);
    }
}

fn result(container: &str, ips: Value) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "br1"}, {"name": "eth0", "sandbox": container}, {"name": "net1", "sandbox": container},
        ],
        "ips": ips,
    })
}

#[test]
fn only_our_own_addresses_may_pass() {
    let world = World::new();
    let c1 = world.container("c1");
    let ips = json!([
        {"address": "10.1.0.1/24", "interface": 0},
        {"address": "10.1.0.5/24", "interface": 1},
        {"address": "10.1.0.6/24", "interface": 2},
        {"address": "10.1.0.7/24"},
    ]);
    c1.add("firewall", &firewall("net", json!({}), &result(&c1.netns(), ips)));
    let rules = rules(&world);
    for (address, is_ours) in
        [("10.1.0.1 ", false), ("10.1.0.5 ", true), ("10.1.0.6 ", false), ("10.1.0.7 ", true)]
    {
        assert_eq!(rules.contains(address), is_ours, "{address}: {rules}");
    }
}

#[test]
fn a_result_without_addresses_needs_nothing() {
    let world = World::new();
    let c1 = world.container("c1");
    drop_forwarded(&world);
    let before = rules(&world);
    c1.add("firewall", &firewall("net", json!({}), &result(&c1.netns(), json!([]))));
    c1.add("firewall", &firewall("net", json!({}), &json!({"cniVersion": "1.1.0"})));
    assert_eq!(rules(&world), before);
}

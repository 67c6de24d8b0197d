//! The result passes through in every version.

use serde_json::{Value, json};

use super::firewalld::{has_source, start_firewalld};
use super::{address, bridge, drop_forwarded, firewall, forget, rules};
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
            assert_eq!(rules.matches(&element).count(), 1, "{version}: {rules}");
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

/// Regression: an address counted only if its interface was called CNI_IFNAME and had a sandbox.
#[test]
fn addresses_of_every_interface_pass() {
    let world = World::new();
    let c1 = world.container("c1");
    drop_forwarded(&world);
    let addresses = ["10.1.0.1", "10.1.0.5", "10.1.0.6", "10.1.0.7", "fd00:1::8"];
    let ips = json!([
        {"address": "10.1.0.1/24", "interface": 0},
        {"address": "10.1.0.5/24", "interface": 1},
        {"address": "10.1.0.6/24", "interface": 2},
        {"address": "10.1.0.7/24"},
        {"address": "fd00:1::8/64", "interface": 3},
    ]);
    let mut result = result(&c1.netns(), ips);
    result["interfaces"].as_array_mut().unwrap().push(json!({"name": "eth0"}));
    let config = firewall("net", json!({}), &result);
    c1.add("firewall", &config);
    let listed = rules(&world);
    for address in addresses {
        let element = format!("{address} comment \"net c1 eth0\"");
        assert_eq!(listed.matches(&element).count(), 1, "{address}: {listed}");
    }
    c1.check("firewall", &config, &result);
    for (table, address) in [("ip", "10.1.0.1"), ("ip6", "fd00:1::8")] {
        world.host([
            "nft",
            &format!("delete element {table} cnibox firewall-addresses {{ {address} }}"),
        ]);
        c1.checking("firewall", &config, &result).run().fails(999, &[address, "is missing"]);
        c1.add("firewall", &config);
    }
    c1.del("firewall", &config);
    assert!(!rules(&world).contains("net c1"), "{}", rules(&world));
}

#[test]
fn a_result_without_addresses_makes_no_rule_and_a_warning() {
    let world = World::new();
    let c1 = world.container("c1");
    drop_forwarded(&world);
    let before = rules(&world);
    for result in [result(&c1.netns(), json!([])), json!({"cniVersion": "1.1.0"})] {
        let outcome = c1.call("firewall", "ADD", &firewall("net", json!({}), &result)).run();
        assert!(outcome.stderr.contains("prevResult has no addresses"), "{}", outcome.report());
        assert_eq!(outcome.success()["interfaces"], result["interfaces"]);
        c1.check("firewall", &firewall("net", json!({}), &result), &result);
        assert_eq!(rules(&world), before);
    }
}

/// A second ADD without a DEL, behind a plugin of another executable: the first address has nothing left.
#[test]
fn an_address_that_changed_has_the_place_of_the_first() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let c1 = world.container("c1");
    let mut result = c1.add("bridge", &bridge("net", 1));
    for keys in [json!({"backend": "iptables", "ingressPolicy": "isolated"}), json!({})] {
        let first = address(&result, 0);
        c1.add("firewall", &firewall("net", keys.clone(), &result));
        result["ips"][0]["address"] = json!("10.1.7.7/16");
        let config = firewall("net", keys, &result);
        c1.add("firewall", &config);
        let has = |address: &str| rules(&world).contains(&format!(" {address} "));
        assert!(!has(&first), "{first}: {}", rules(&world));
        assert!(has("10.1.7.7"), "{}", rules(&world));
        assert!(!has_source(&world, "trusted", &format!("{first}/32")));
        c1.check("firewall", &config, &result);
        result["ips"][0]["address"] = json!(format!("{first}/16"));
        forget(&c1, "net");
    }
}

//! CHECK names the missing element or rule, and changes nothing.

use serde_json::json;

use super::{address, attach, bridge, drop_forwarded, firewall, rules};
use crate::world::World;

#[test]
fn check_succeeds_after_add() {
    for policy in ["open", "same-bridge", "strict", "isolated"] {
        let world = World::new();
        let c1 = world.container("c1");
        let keys = json!({"ingressPolicy": policy, "iptablesAdminChainName": "MINE"});
        let result = attach(&c1, &bridge("net", 1), keys.clone());
        c1.check("firewall", &firewall("net", keys.clone(), &result), &result);
        drop_forwarded(&world);
        let config = firewall("net", keys.clone(), &result);
        let before = rules(&world);
        c1.check("firewall", &config, &result);
        assert_eq!(rules(&world), before);
    }
}

/// A change by an administrator, and the expected error.
const MISSING: [(&str, &str); 22] = [
    (
        "iptables -D FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD",
        "jump from FORWARD",
    ),
    (
        "ip6tables -D FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD",
        "ip6 filter",
    ),
    ("iptables -D CNI-FORWARD 1", "jump from CNI-FORWARD to CNI-ADMIN"),
    ("iptables -D CNI-FORWARD 2", "accepts marked packets"),
    ("iptables -F", "jump from FORWARD"),
    ("nft flush chain ip cnibox firewall-mark", "rules of chain firewall-mark"),
    ("nft delete chain ip6 cnibox firewall-unmark", "chain firewall-unmark not found"),
    (
        "nft flush set ip6 cnibox firewall-published",
        "address fd00:1::2 is not in the firewall: it is missing from set firewall-published",
    ),
    (
        "nft delete element ip cnibox firewall-addresses '{ 10.1.0.2 }'",
        "address 10.1.0.2 is not in the firewall: it is missing from set firewall-addresses",
    ),
    (
        "nft delete table ip6 cnibox",
        "address fd00:1::2 is not in the firewall: it is missing from set firewall-addresses",
    ),
    ("nft flush map ip cnibox firewall-isolated", "firewall-isolated"),
    (
        "nft flush set ip cnibox firewall-bridges",
        "bridge br1 is not in the firewall: it is missing from set firewall-bridges",
    ),
    (
        "nft flush set ip cnibox firewall-within",
        "bridge br1 is not in the firewall: it is missing from set firewall-within",
    ),
    (
        "nft flush set ip6 cnibox firewall-alone",
        "bridge br1 is not in the firewall: it is missing from set firewall-alone",
    ),
    ("nft flush chain ip cnibox firewall-policy", "rules of chain firewall-policy"),
    ("nft flush chain ip6 cnibox firewall-between", "rules of chain firewall-between"),
    ("nft flush chain ip cnibox firewall-alone", "rules of chain firewall-alone"),
    ("nft flush chain ip6 cnibox firewall-sources", "rules of chain firewall-sources"),
    ("nft flush set bridge cnibox firewall-isolated-ports", "is not isolated"),
    ("nft flush chain bridge cnibox firewall-policy", "is not isolated"),
    ("nft delete table ip filter", "jump from FORWARD"),
    ("nft flush ruleset", "is missing"),
];

#[test]
fn each_missing_rule_is_named() {
    let world = World::new();
    let c1 = world.container("c1");
    let network = bridge("net", 1);
    let keys = json!({"ingressPolicy": "isolated", "acceptPublished": true});
    let result = c1.add("bridge", &network);
    assert_eq!([address(&result, 0), address(&result, 1)], ["10.1.0.2", "fd00:1::2"]);
    let config = firewall("net", keys, &result);
    for (command, text) in MISSING {
        drop_forwarded(&world);
        c1.add("firewall", &config);
        let whole = rules(&world);
        c1.check("firewall", &config, &result);
        world.host(["sh", "-c", command]);
        let broken = rules(&world);
        assert_ne!(whole, broken, "{command}");
        let outcome = c1.checking("firewall", &config, &result).run();
        let report = outcome.report();
        let error = outcome.error();
        assert!(format!("{}: {}", error.msg, error.details).contains(text), "{command}: {report}");
        assert_eq!(rules(&world), broken, "a CHECK changes nothing");
    }
    // DEL succeeds after all changes.
    c1.del("firewall", &config);
    for mine in ["10.1.0.2", "fd00:1::2", "br1", "veth"] {
        assert!(!rules(&world).contains(mine), "{mine}: {}", rules(&world));
    }
}

#[test]
fn another_uplink_or_a_missing_rule_of_strict_is_named() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    let config = firewall("net", json!({"ingressPolicy": "strict"}), &result);
    for (command, text) in [
        (
            "ip link add up0 type bridge; ip link set up0 up; ip route add default dev up0",
            "firewall-uplinks",
        ),
        (
            "nft flush set ip6 cnibox firewall-apart",
            "bridge br1 is not in the firewall: it is missing from set firewall-apart",
        ),
        ("nft flush map ip cnibox firewall-strict", "firewall-strict"),
        ("nft flush chain ip6 cnibox firewall-policy", "rules of chain firewall-policy"),
        ("nft add element ip cnibox firewall-uplinks '{ gone }'", "firewall-uplinks"),
        (
            "nft -a list chain ip6 cnibox firewall-policy | sed -n 's/.* fib saddr oifname .br1. .*handle //p' |
             xargs nft delete rule ip6 cnibox firewall-policy handle",
            "sources of bridge br1",
        ),
        ("ip route replace default dev br1", "firewall-uplinks"),
        ("nft flush chain ip cnibox firewall-policy", "rules of chain firewall-policy"),
    ] {
        c1.add("firewall", &config);
        c1.check("firewall", &config, &result);
        world.host(["sh", "-c", command]);
        c1.checking("firewall", &config, &result).run().fails(999, &[text]);
    }
    // The rule of a development version.
    let former =
        "ct status dnat ct direction original meta iifkind \"bridge\" iifname != @firewall-uplinks";
    let to = "fib saddr . iif oif missing jump firewall-sources";
    world.host(["nft", &format!("insert rule ip cnibox firewall-policy {former} {to}")]);
    c1.add("firewall", &config);
    c1.check("firewall", &config, &result);
    let chain = world.host(["nft", "list", "chain", "ip", "cnibox", "firewall-policy"]);
    let of_containers =
        "ip saddr @firewall-addresses iifname != \"br1\" fib saddr oifname \"br1\" jump";
    assert_eq!(chain.matches(of_containers).count(), 1, "{chain}");
    assert_eq!(
        chain.matches("iifkind \"bridge\" iifname != @firewall-uplinks fib").count(),
        0,
        "{chain}"
    );
    // The list of uplinks stays.
    world.host(["ip", "route", "replace", "default", "dev", "up0"]);
    c1.add("firewall", &config);
    c1.del("firewall", &config);
    assert!(!rules(&world).contains("br1"), "{}", rules(&world));
}

#[test]
fn an_element_of_another_owner_counts_as_missing() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = attach(&c1, &bridge("net", 1), json!({}));
    let config = firewall("net", json!({}), &result);
    world.host(["nft", "delete element ip cnibox firewall-addresses { 10.1.0.2 }"]);
    let other = "{ 10.1.0.2 comment \"net c2 eth0\" }";
    world.host(["nft", &format!("add element ip cnibox firewall-addresses {other}")]);
    c1.checking("firewall", &config, &result).run().fails(999, &["10.1.0.2"]);
}

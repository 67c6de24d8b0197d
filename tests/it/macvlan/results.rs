//! The output of ADD in every version; only the MAC is masked.

use serde_json::json;

use super::{dual_stack, plain};
use crate::world::state::mask_macs;
use crate::world::{VERSIONS, World, lan, with};

const NEW: &str = r#"{
    "cniVersion": "VERSION",
    "interfaces": [
        {
            "mac": "MAC",
            "name": "eth0",
            "sandbox": "/run/netns/c1"
        }
    ],
    "ips": [
        {
            "address": "10.1.0.2/24",
            "gateway": "10.1.0.1",
            "interface": 0
        },
        {
            "address": "fd00:1::2/64",
            "gateway": "fd00:1::1",
            "interface": 0
        }
    ],
    "routes": [
        {
            "dst": "10.9.0.0/16"
        },
        {
            "dst": "fd09::/48"
        }
    ]
}"#;

const MIDDLE: &str = r#"{
    "cniVersion": "VERSION",
    "interfaces": [
        {
            "name": "eth0",
            "mac": "MAC",
            "sandbox": "/run/netns/c1"
        }
    ],
    "ips": [
        {
            "version": "4",
            "interface": 0,
            "address": "10.1.0.2/24",
            "gateway": "10.1.0.1"
        },
        {
            "version": "6",
            "interface": 0,
            "address": "fd00:1::2/64",
            "gateway": "fd00:1::1"
        }
    ],
    "routes": [
        {
            "dst": "10.9.0.0/16"
        },
        {
            "dst": "fd09::/48"
        }
    ],
    "dns": {}
}"#;

const OLD: &str = r#"{
    "cniVersion": "VERSION",
    "ip4": {
        "ip": "10.1.0.2/24",
        "gateway": "10.1.0.1",
        "routes": [
            {
                "dst": "10.9.0.0/16"
            }
        ]
    },
    "ip6": {
        "ip": "fd00:1::2/64",
        "gateway": "fd00:1::1",
        "routes": [
            {
                "dst": "fd09::/48"
            }
        ]
    },
    "dns": {}
}"#;

#[test]
fn every_version_has_its_shape() {
    for version in VERSIONS {
        let world = World::new();
        let _outside = lan(&world);
        let c1 = world.container("c1");
        let config = with(&dual_stack(), json!({"cniVersion": version}));
        let outcome = c1.call("macvlan", "ADD", &config).run();
        let shape = match version {
            "0.1.0" | "0.2.0" => OLD,
            "0.3.0" | "0.3.1" | "0.4.0" => MIDDLE,
            _ => NEW,
        };
        let printed = mask_macs(&outcome.stdout);
        assert_eq!(printed, shape.replace("VERSION", version), "{}", outcome.report());
        if version >= "0.4.0" {
            c1.check("macvlan", &config, &outcome.success());
        }
        c1.del("macvlan", &config);
    }
}

#[test]
fn versions_that_know_only_addresses_cannot_report_an_interface_without() {
    let world = World::new();
    let _outside = lan(&world);
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]);
    let config = with(&plain(), json!({"cniVersion": "0.2.0"}));
    let outcome = c1.call("macvlan", "ADD", &config).run();
    outcome.fails(999, &["cannot convert: no valid IP addresses"]);
    let after = world.state_with(&[&c1]).apart_from("", "net");
    before.apart_from("", "net").assert_same(&after, "after a failed ADD");
}

//! The output of ADD in every version; only MACs and the random name are masked.

use serde_json::json;

use super::{NAMES, dual_stack, routed_with};
use crate::world::state::{mask_macs, mask_veth};
use crate::world::{VERSIONS, World, with};

const NEW: &str = r#"{
    "cniVersion": "VERSION",
    "interfaces": [
        {
            "mac": "MAC",
            "name": "veth*"
        },
        {
            "mac": "MAC",
            "name": "eth0",
            "sandbox": "/run/netns/c1"
        }
    ],
    "ips": [
        {
            "address": "10.2.0.2/24",
            "gateway": "10.2.0.1",
            "interface": 1
        },
        {
            "address": "fd00:2::2/64",
            "gateway": "fd00:2::1",
            "interface": 1
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0"
        },
        {
            "dst": "::/0"
        }
    ]
}"#;

const MIDDLE: &str = r#"{
    "cniVersion": "VERSION",
    "interfaces": [
        {
            "name": "veth*",
            "mac": "MAC"
        },
        {
            "name": "eth0",
            "mac": "MAC",
            "sandbox": "/run/netns/c1"
        }
    ],
    "ips": [
        {
            "version": "4",
            "interface": 1,
            "address": "10.2.0.2/24",
            "gateway": "10.2.0.1"
        },
        {
            "version": "6",
            "interface": 1,
            "address": "fd00:2::2/64",
            "gateway": "fd00:2::1"
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0"
        },
        {
            "dst": "::/0"
        }
    ],
    "dns": {}
}"#;

const OLD: &str = r#"{
    "cniVersion": "VERSION",
    "ip4": {
        "ip": "10.2.0.2/24",
        "gateway": "10.2.0.1",
        "routes": [
            {
                "dst": "0.0.0.0/0"
            }
        ]
    },
    "ip6": {
        "ip": "fd00:2::2/64",
        "gateway": "fd00:2::1",
        "routes": [
            {
                "dst": "::/0"
            }
        ]
    },
    "dns": {}
}"#;

#[test]
fn every_version_has_its_shape() {
    for name in NAMES {
        for version in VERSIONS {
            let world = World::new();
            let c1 = world.container("c1");
            let config = with(&dual_stack(), json!({"cniVersion": version}));
            let outcome = c1.call(name, "ADD", &config).run();
            let shape = match version {
                "0.1.0" | "0.2.0" => OLD,
                "0.3.0" | "0.3.1" | "0.4.0" => MIDDLE,
                _ => NEW,
            };
            let printed = mask_veth(&mask_macs(&outcome.stdout));
            assert_eq!(printed, shape.replace("VERSION", version), "{}", outcome.report());
            if version >= "0.4.0" {
                c1.check(name, &config, &outcome.success());
            }
            c1.del(name, &config);
        }
    }
}

#[test]
fn dns_of_the_network_replaces_dns_of_ipam() {
    let world = World::new();
    world.write("/run/resolv.conf", "nameserver 10.0.0.53\n");
    let cases = [
        (json!({}), json!({"nameservers": ["10.0.0.53"]})),
        (json!({"domain": "example.org"}), json!({"domain": "example.org"})),
    ];
    for (number, (dns, expected)) in cases.into_iter().enumerate() {
        let config = routed_with(json!({"dns": dns, "ipam": {"resolvConf": "/run/resolv.conf"}}));
        let result = world.container(&format!("c{number}")).add("veth", &config);
        assert_eq!(result["dns"], expected);
    }
}

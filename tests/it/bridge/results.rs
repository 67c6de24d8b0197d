//! The output of ADD in every version; only MACs and the random name are masked.

use serde_json::json;

use super::{dual_stack, layer2};
use crate::world::state::{mask_macs, mask_veth};
use crate::world::{VERSIONS, World, with};

const NEW: &str = r#"{
    "cniVersion": "VERSION",
    "dns": {
        "nameservers": [
            "10.1.0.1"
        ]
    },
    "interfaces": [
        {
            "mac": "MAC",
            "name": "cni0"
        },
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
            "address": "10.1.0.2/16",
            "gateway": "10.1.0.1",
            "interface": 2
        },
        {
            "address": "fd00:1::2/64",
            "gateway": "fd00:1::1",
            "interface": 2
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0",
            "gw": "10.1.0.1"
        },
        {
            "dst": "::/0",
            "gw": "fd00:1::1"
        }
    ]
}"#;

const MIDDLE: &str = r#"{
    "cniVersion": "VERSION",
    "interfaces": [
        {
            "name": "cni0",
            "mac": "MAC"
        },
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
            "interface": 2,
            "address": "10.1.0.2/16",
            "gateway": "10.1.0.1"
        },
        {
            "version": "6",
            "interface": 2,
            "address": "fd00:1::2/64",
            "gateway": "fd00:1::1"
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0",
            "gw": "10.1.0.1"
        },
        {
            "dst": "::/0",
            "gw": "fd00:1::1"
        }
    ],
    "dns": {
        "nameservers": [
            "10.1.0.1"
        ]
    }
}"#;

const OLD: &str = r#"{
    "cniVersion": "VERSION",
    "ip4": {
        "ip": "10.1.0.2/16",
        "gateway": "10.1.0.1",
        "routes": [
            {
                "dst": "0.0.0.0/0",
                "gw": "10.1.0.1"
            }
        ]
    },
    "ip6": {
        "ip": "fd00:1::2/64",
        "gateway": "fd00:1::1",
        "routes": [
            {
                "dst": "::/0",
                "gw": "fd00:1::1"
            }
        ]
    },
    "dns": {
        "nameservers": [
            "10.1.0.1"
        ]
    }
}"#;

#[test]
fn every_version_has_its_shape() {
    for version in VERSIONS {
        let world = World::new();
        let c1 = world.container("c1");
        let keys = json!({"cniVersion": version, "dns": {"nameservers": ["10.1.0.1"]}});
        let config = with(&dual_stack(), keys);
        let outcome = c1.call("bridge", "ADD", &config).run();
        let shape = match version {
            "0.1.0" | "0.2.0" => OLD,
            "0.3.0" | "0.3.1" | "0.4.0" => MIDDLE,
            _ => NEW,
        };
        let printed = mask_veth(&mask_macs(&outcome.stdout));
        assert_eq!(printed, shape.replace("VERSION", version), "{}", outcome.report());
        if version >= "0.4.0" {
            c1.check("bridge", &config, &outcome.success());
        }
        c1.del("bridge", &config);
        assert_eq!(world.ports_of("cni0"), [""; 0]);
    }
}

#[test]
fn a_plain_switch_reports_its_links() {
    let world = World::new();
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let container = world.container(&version.replace('.', "-"));
        let config = with(&layer2(), json!({"cniVersion": version}));
        let result = container.add("bridge", &config);
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 3, "{result}");
        assert_eq!((result.get("ips"), result.get("routes")), (None, None), "{result}");
        if version >= "0.4.0" {
            container.check("bridge", &config, &result);
        }
    }
}

#[test]
fn versions_that_know_only_addresses_cannot_report_a_plain_switch() {
    for version in ["0.1.0", "0.2.0"] {
        let world = World::new();
        let c1 = world.container("c1");
        let before = world.state_with(&[&c1]).apart_from("cni0", "l2");
        let config = with(&layer2(), json!({"cniVersion": version}));
        let error = c1.call("bridge", "ADD", &config).run().fails(999, &[]);
        assert!(error.msg.contains("cannot convert: no valid IP addresses"), "{error:?}");
        before
            .assert_same(&world.state_with(&[&c1]).apart_from("cni0", "l2"), "after a failed ADD");
    }
}

#[test]
fn dns_of_the_network_replaces_dns_of_ipam() {
    let cases = [
        (json!({}), json!({"nameservers": ["10.0.0.53"]})),
        (json!({"nameservers": null, "domain": ""}), json!({"nameservers": ["10.0.0.53"]})),
        (json!({"nameservers": ["10.1.0.1"]}), json!({"nameservers": ["10.1.0.1"]})),
        (json!({"domain": "example.org"}), json!({"domain": "example.org"})),
        (json!({"search": ["a"], "options": ["b"]}), json!({"search": ["a"], "options": ["b"]})),
        (json!({"nameservers": []}), json!({})),
    ];
    let world = World::new();
    world.write("/run/resolv.conf", "nameserver 10.0.0.53\n");
    for (number, (dns, expected)) in cases.into_iter().enumerate() {
        let keys = json!({"dns": dns, "ipam": {"resolvConf": "/run/resolv.conf"}});
        let result = world.container(&format!("c{number}")).add("bridge", &super::dbnet_with(keys));
        assert_eq!(result.get("dns").cloned().unwrap_or_else(|| json!({})), expected, "{dns}");
    }
}

#[test]
fn the_mac_of_a_bridge_that_takes_that_of_its_port_is_the_new_one() {
    for ipam in [json!({}), json!({"ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}})] {
        let world = World::new();
        world.host(["ip", "link", "add", "cni0", "up", "type", "bridge"]);
        let mac = || world.host_json(["ip", "-j", "link", "show", "cni0"])[0]["address"].clone();
        let before = mac();
        let result = world.container("c1").add("bridge", &with(&layer2(), ipam));
        assert_eq!(result["interfaces"][0]["mac"], mac());
        assert_ne!(mac(), before);
    }
}

//! The output of ADD, byte for byte, in every version.

use serde_json::json;

use super::Net;
use crate::world::VERSIONS;

const NEW: &str = r#"{
    "cniVersion": "VERSION",
    "dns": {
        "domain": "example.org",
        "nameservers": [
            "10.0.0.53",
            "fd00::53"
        ],
        "options": [
            "ndots:5",
            "rotate"
        ],
        "search": [
            "a.example.org",
            "b.example.org"
        ]
    },
    "ips": [
        {
            "address": "10.1.0.2/24",
            "gateway": "10.1.0.1"
        },
        {
            "address": "fd00::2/64",
            "gateway": "fd00::1"
        }
    ],
    "routes": [
        {
            "advmss": 2,
            "dst": "0.0.0.0/0",
            "gw": "10.0.0.9",
            "mtu": 1,
            "priority": 3,
            "scope": 5,
            "table": 4
        },
        {
            "dst": "fd01::/48"
        }
    ]
}"#;

const MIDDLE: &str = r#"{
    "cniVersion": "VERSION",
    "ips": [
        {
            "version": "4",
            "address": "10.1.0.2/24",
            "gateway": "10.1.0.1"
        },
        {
            "version": "6",
            "address": "fd00::2/64",
            "gateway": "fd00::1"
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0",
            "gw": "10.0.0.9",
            "mtu": 1,
            "advmss": 2,
            "priority": 3,
            "table": 4,
            "scope": 5
        },
        {
            "dst": "fd01::/48"
        }
    ],
    "dns": {
        "nameservers": [
            "10.0.0.53",
            "fd00::53"
        ],
        "domain": "example.org",
        "search": [
            "a.example.org",
            "b.example.org"
        ],
        "options": [
            "ndots:5",
            "rotate"
        ]
    }
}"#;

const OLD: &str = r#"{
    "cniVersion": "VERSION",
    "ip4": {
        "ip": "10.1.0.2/24",
        "gateway": "10.1.0.1",
        "routes": [
            {
                "dst": "0.0.0.0/0",
                "gw": "10.0.0.9"
            }
        ]
    },
    "ip6": {
        "ip": "fd00::2/64",
        "gateway": "fd00::1",
        "routes": [
            {
                "dst": "fd01::/48"
            }
        ]
    },
    "dns": {
        "nameservers": [
            "10.0.0.53",
            "fd00::53"
        ],
        "domain": "example.org",
        "search": [
            "a.example.org",
            "b.example.org"
        ],
        "options": [
            "ndots:5",
            "rotate"
        ]
    }
}"#;

const RESOLV_CONF: &str = "\
# a comment
; another
domain old.example.org
nameserver
nameserver 10.0.0.53
  nameserver\tfd00::53 ignored
domain example.org
search a.example.org
search b.example.org
options ndots:5 rotate
sortlist 10.0.0.0

";

fn golden(version: &str) -> String {
    let shape = match version {
        "0.1.0" | "0.2.0" => OLD,
        "0.3.0" | "0.3.1" | "0.4.0" => MIDDLE,
        _ => NEW,
    };
    shape.replace("VERSION", version)
}

#[test]
fn every_version_has_its_shape() {
    for version in VERSIONS {
        let net = Net::of_version(
            version,
            json!({
                "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]],
                "routes": [
                    {"dst": "0.0.0.0/0", "gw": "10.0.0.9", "mtu": 1, "advmss": 2, "priority": 3, "table": 4, "scope": 5},
                    {"dst": "fd01::/48"},
                ],
            }),
        );
        net.bare.scratch.write_text("resolv.conf", RESOLV_CONF);
        let path = net.bare.scratch.text("resolv.conf");
        let config = net.with(json!({"ipam": {"resolvConf": path}}));
        let outcome = net.bare.call("host-local", "ADD", &config).run();
        assert_eq!(outcome.stdout, golden(version), "{}", outcome.report());
    }
}

#[test]
fn empty_keys_are_omitted_as_the_version_requires() {
    let cases = [
        (
            "1.1.0",
            "{\n    \"cniVersion\": \"1.1.0\",\n    \"ips\": [\n        {\n            \"address\": \"10.1.0.2/24\",\n            \"gateway\": \"10.1.0.1\"\n        }\n    ]\n}",
        ),
        (
            "0.4.0",
            "{\n    \"cniVersion\": \"0.4.0\",\n    \"ips\": [\n        {\n            \"version\": \"4\",\n            \"address\": \"10.1.0.2/24\",\n            \"gateway\": \"10.1.0.1\"\n        }\n    ],\n    \"dns\": {}\n}",
        ),
        (
            "0.2.0",
            "{\n    \"cniVersion\": \"0.2.0\",\n    \"ip4\": {\n        \"ip\": \"10.1.0.2/24\",\n        \"gateway\": \"10.1.0.1\"\n    },\n    \"dns\": {}\n}",
        ),
    ];
    for (version, expected) in cases {
        let net = Net::of_version(version, json!({"subnet": "10.1.0.0/24"}));
        assert_eq!(net.run("ADD", "abc").stdout, expected);
    }
}

#[test]
fn zero_is_not_absent_for_the_table_and_the_scope_of_a_route() {
    let net = Net::new(json!({"subnet": "10.1.0.0/24", "routes": [
        {"dst": "10.9.0.0/16", "table": 0, "scope": 0, "priority": 0, "mtu": 0, "advmss": 0, "gw": ""},
    ]}));
    let routes = &net.run("ADD", "abc").success()["routes"];
    assert_eq!(*routes, json!([{"dst": "10.9.0.0/16", "table": 0, "scope": 0}]));
}

#[test]
fn a_resolv_conf_that_cannot_be_read_fails_the_add_before_anything_is_taken() {
    let net = Net::new(json!({"subnet": "10.1.0.0/24", "resolvConf": "/none/resolv.conf"}));
    net.run("ADD", "abc").fails(5, &["/none/resolv.conf"]);
    assert_eq!(net.taken(), [""; 0]);
    net.del("abc");
}

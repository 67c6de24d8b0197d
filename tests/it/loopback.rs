//! `loopback`: switches `lo` on, whatever the interface is called.

use serde_json::{Value, json};

use crate::world::{Container, VERSIONS, World, with};

fn config() -> Value {
    json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"})
}

fn of_version(version: &str) -> Value {
    with(&config(), json!({"cniVersion": version}))
}

fn is_up(container: &Container<'_>) -> bool {
    let flags = container.json(["ip", "-j", "link", "show", "dev", "lo"])[0]["flags"].clone();
    flags.as_array().unwrap().contains(&json!("UP"))
}

const NEW: &str = r#"{
    "cniVersion": "VERSION",
    "interfaces": [
        {
            "mac": "00:00:00:00:00:00",
            "name": "lo",
            "sandbox": "/run/netns/c1"
        }
    ],
    "ips": [
        {
            "address": "127.0.0.1/8",
            "interface": 0
        },
        {
            "address": "::1/128",
            "interface": 0
        }
    ]
}"#;

const MIDDLE: &str = r#"{
    "cniVersion": "VERSION",
    "interfaces": [
        {
            "name": "lo",
            "mac": "00:00:00:00:00:00",
            "sandbox": "/run/netns/c1"
        }
    ],
    "ips": [
        {
            "version": "4",
            "interface": 0,
            "address": "127.0.0.1/8"
        },
        {
            "version": "6",
            "interface": 0,
            "address": "::1/128"
        }
    ],
    "dns": {}
}"#;

const OLD: &str = r#"{
    "cniVersion": "VERSION",
    "ip4": {
        "ip": "127.0.0.1/8"
    },
    "ip6": {
        "ip": "::1/128"
    },
    "dns": {}
}"#;

#[test]
fn every_version_has_its_shape() {
    for version in VERSIONS {
        let world = World::new();
        let c1 = world.container("c1");
        let outcome = c1.call("loopback", "ADD", &of_version(version)).run();
        let shape = match version {
            "0.1.0" | "0.2.0" => OLD,
            "0.3.0" | "0.3.1" | "0.4.0" => MIDDLE,
            _ => NEW,
        };
        assert_eq!(outcome.stdout, shape.replace("VERSION", version), "{}", outcome.report());
        assert!(is_up(&c1));
        c1.ping("127.0.0.1");
        c1.ping("::1");
    }
}

#[test]
fn check_sees_that_lo_is_down() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("loopback", &config());
    c1.exec(["ip", "link", "set", "lo", "down"]);
    c1.checking("loopback", &config(), &result).run().fails(999, &["lo", "down"]);
}

#[test]
fn the_name_of_the_interface_and_foreign_keys_do_not_matter() {
    let world = World::new();
    for (number, ifname) in ["lo", "eth0", "net1"].into_iter().enumerate() {
        let container = world.container(&format!("c{number}"));
        let keys = json!({"ipam": {"type": "host-local"}, "dns": {"nameservers": ["10.0.0.1"]}, "mtu": 1400});
        let call =
            container.call("loopback", "ADD", &with(&config(), keys)).env("CNI_IFNAME", ifname);
        let result = call.run().success();
        assert_eq!(result["interfaces"][0]["name"], "lo");
        assert!(is_up(&container));
    }
}

#[test]
fn a_previous_result_is_passed_on_in_the_version_of_the_configuration() {
    let previous = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/c1"}],
        "ips": [{"address": "10.1.0.2/16", "gateway": "10.1.0.1", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"nameservers": ["10.1.0.1"]},
    });
    let world = World::new();
    let c1 = world.container("c1");
    for version in ["1.0.0", "1.1.0"] {
        let config = with(&of_version(version), json!({"prevResult": previous}));
        let expected = with(&previous, json!({"cniVersion": version}));
        assert_eq!(c1.add("loopback", &config), expected);
    }
    let wrong = with(&of_version("0.4.0"), json!({"prevResult": previous}));
    c1.call("loopback", "ADD", &wrong).run().fails(999, &["1.0.0"]);
}

#[test]
fn lo_and_eth0_can_be_set_up_at_the_same_time() {
    let world = World::new();
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "isGateway": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00::/64"}]]},
    });
    for number in 0..8 {
        let container = world.container(&format!("c{number}"));
        // As go-cni does it.
        let lo =
            container.call("loopback", "ADD", &of_version("0.3.1")).env("CNI_IFNAME", "lo").start();
        let eth0 = container.call("bridge", "ADD", &bridge).start();
        lo.finish().success();
        eth0.finish().success();
        assert!(is_up(&container));
    }
}

//! CHECK and STATUS.

use serde_json::json;

use super::{config, config_with, world};

/// A command in the container, and the text that CHECK must print.
const CHANGES: [(&str, &str); 8] = [
    ("ip address del 10.7.0.10/24 dev eth0", "10.7.0.10"),
    ("ip address del fd07::10/64 dev eth0", "fd07::10"),
    ("ip route del 10.99.0.0/16", "10.99.0.0/16"),
    ("ip link set eth0 down", "eth0"),
    ("ip link set eth0 address 02:00:00:00:00:99", "eth0"),
    ("ip link set eth0 down; ip link set eth0 name eth9", "eth0"),
    ("ip link del eth0", "eth0"),
    (
        "ip link set eth0 alias ''; ip -j link show eth0 | grep -o 'cnibox[^\"]*' |
      xargs -n 1 ip link property del dev eth0 altname",
        "eth0",
    ),
];

#[test]
fn a_missing_setting_is_named() {
    for (script, named) in CHANGES {
        let world = world();
        let c1 = world.container("c1");
        let result = c1.add("host-device", &config());
        c1.check("host-device", &config(), &result);
        c1.exec(["sh", "-ec", script]);
        let outcome = c1.checking("host-device", &config(), &result).run();
        assert!(outcome.status != 0, "CHECK does not see: {script}");
        let error = outcome.error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!(said.contains(named), "{script}\nnot named {named}: {error:?}");
    }
}

#[test]
fn check_fails_for_another_interface_with_the_name() {
    let world = world();
    let c1 = world.container("c1");
    let result = c1.add("host-device", &config());
    c1.exec([
        "sh",
        "-ec",
        "ip link set eth0 down; ip link set eth0 name eth9
        ip link add eth0 address 02:00:00:00:07:01 type veth peer name peer0
        ip link set eth0 up; ip address add 10.7.0.10/24 dev eth0
        ip address add fd07::10/64 dev eth0 nodad; ip route add 10.99.0.0/16 dev eth0",
    ]);
    c1.checking("host-device", &config(), &result).run().fails(999, &["eth0", "saved state"]);
}

#[test]
fn status_says_whether_there_is_a_device_to_give() {
    let world = world();
    let status = |keys| world.call("host-device", "STATUS", &config_with(keys)).run();
    status(json!({})).silence();
    status(json!({"device": null, "hwaddr": super::MAC})).silence();
    status(json!({"device": "none0"})).fails(50, &["device: none0"]);
    status(json!({"device": null})).fails(50, &["specify either"]);
    status(json!({"ipam": {"type": "none-such"}})).error();
    let c1 = world.container("c1");
    c1.add("host-device", &config());
    // A card in a container is ready.
    status(json!({})).silence();
    status(json!({"device": null, "hwaddr": super::MAC})).silence();
    status(json!({"device": "none0"})).fails(50, &["device: none0"]);
    c1.del("host-device", &config());
    world.host(["ip", "link", "del", "nic0"]);
    status(json!({})).fails(50, &["device: nic0"]);
}

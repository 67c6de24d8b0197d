//! CHECK and STATUS.

use serde_json::json;

use super::config;
use crate::world::{World, with};

/// A command in the container, and the text that CHECK must print.
const CHANGES: [(&str, &str); 9] = [
    ("ip address del 10.6.0.2/24 dev eth0", "10.6.0.2"),
    ("ip route del default", "0.0.0.0/0"),
    ("ip link set eth0 down", "eth0"),
    ("ip link set eth0 mtu 1300", "mtu"),
    ("ip link set eth0 address 02:00:00:00:00:99", "eth0"),
    ("ip link set eth0 nomaster", "br0"),
    ("ip link del br0", "br0"),
    ("ip link del eth0", "eth0"),
    ("ip link del eth0; ip link add eth0 address 02:00:00:00:00:33 type bridge", "kind tun"),
];

/// The same interface made otherwise; what differs of it.
const OTHERS: [(&str, &str); 5] = [
    ("mode tun multi_queue user root group root", "eth0"),
    ("mode tap user root group root", "multiQueue"),
    ("mode tap multi_queue group root", "owner 0"),
    ("mode tap multi_queue user root", "group 0"),
    ("mode tap multi_queue user root group root", ""),
];

#[test]
fn a_missing_or_changed_setting_is_named() {
    let keys = json!({
        "mtu": 1400, "mac": "02:00:00:00:00:33", "owner": 0, "group": 0, "multiQueue": true,
        "bridge": "br0",
    });
    let config = with(&config(), keys);
    let others = OTHERS.map(|(words, named)| {
        let script = format!(
            "ip link del eth0; ip tuntap add eth0 {words}
            ip link set eth0 mtu 1400 master br0 up
            ip link set eth0 address 02:00:00:00:00:33 || true
            ip address add 10.6.0.2/24 dev eth0; ip address add fd06::2/64 dev eth0 nodad
            ip route add default via 10.6.0.1"
        );
        (script, named)
    });
    let changes = CHANGES.map(|(script, named)| (script.to_owned(), named));
    for (script, named) in changes.into_iter().chain(others) {
        let world = World::new();
        let c1 = world.container("c1");
        c1.exec(["ip", "link", "add", "br0", "type", "bridge"]);
        let result = c1.add("tap", &config);
        c1.check("tap", &config, &result);
        c1.exec(["sh", "-c", &script]);
        let call = c1.checking("tap", &config, &result);
        match named {
            // The counter-check: made by hand, and just the same.
            "" => call.run().silence(),
            named => {
                let error = call.run().error();
                let said = format!("{}: {}", error.msg, error.details);
                assert!(said.contains(named), "{script}\nnot named {named}: {said}");
            }
        }
    }
}

#[test]
fn status_asks_for_the_device_and_the_ipam_plugin() {
    let world = World::new();
    let status = |keys| world.call("tap", "STATUS", &with(&config(), keys)).run();
    status(json!({})).silence();
    status(json!({"ipam": {"type": "none-such"}})).error();
    status(json!({"mtu": -1})).fails(7, &["invalid MTU -1"]);
    status(json!({"mac": "nonsense"})).fails(7, &["mac"]);
}

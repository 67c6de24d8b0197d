//! Without `ipam`, `veth` is a cable: beyond the reference.

use serde_json::{Value, json};

use super::{host_end, host_link};
use crate::world::{World, with};

fn plain() -> Value {
    json!({"cniVersion": "1.0.0", "name": "cable", "type": "veth"})
}

#[test]
fn a_cable_carries_frames() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("veth", &plain());
    assert_eq!((result.get("ips"), result.get("routes")), (None, None), "{result}");
    world.host(["ip", "address", "add", "192.168.5.1/24", "dev", &host_end(&result)]);
    c1.exec(["ip", "address", "add", "192.168.5.2/24", "dev", "eth0"]);
    c1.ping("192.168.5.1");
}

#[test]
fn a_cable_has_mac_and_mtu_and_nothing_is_forwarded() {
    let world = World::new();
    let c1 = world.container("c1");
    let keys = json!({"mtu": 1400, "runtimeConfig": {"mac": "02:00:00:00:00:01"}, "ipam": {}});
    let result = c1.add("veth", &with(&plain(), keys));
    let link = c1.json(["ip", "-j", "link", "show", "dev", "eth0"])[0].clone();
    assert_eq!((&link["address"], &link["mtu"]), (&json!("02:00:00:00:00:01"), &json!(1400)));
    assert_eq!(host_link(&world, &host_end(&result))["mtu"], 1400);
    assert_eq!(world.sysctl("net/ipv4/ip_forward"), "0");
}

#[test]
fn a_cable_is_checked_removed_and_ready() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]).apart_from("", "net");
    let result = c1.add("veth", &plain());
    c1.check("veth", &plain(), &result);
    c1.exec(["ip", "link", "set", "eth0", "down"]);
    c1.checking("veth", &plain(), &result).run().fails(999, &["eth0"]);
    c1.del("veth", &plain());
    before.assert_same(&world.state_with(&[&c1]).apart_from("", "net"), "after DEL");
    c1.checking("veth", &plain(), &result).run().fails(999, &["eth0"]);
    c1.del("veth", &plain());
    let newest = with(&plain(), json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": []}));
    for verb in ["STATUS", "GC"] {
        world.call("veth", verb, &newest).run().silence();
    }
}

#[test]
fn versions_that_know_only_addresses_cannot_report_a_cable() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]).apart_from("", "net");
    let config = with(&plain(), json!({"cniVersion": "0.2.0"}));
    let error = c1.call("veth", "ADD", &config).run().fails(999, &[]);
    assert!(error.msg.contains("cannot convert: no valid IP addresses"), "{error:?}");
    before.assert_same(&world.state_with(&[&c1]).apart_from("", "net"), "after a failed ADD");
}

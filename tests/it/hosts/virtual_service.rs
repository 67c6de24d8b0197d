//! A container has the address of a virtual service on `lo`, as the real servers of a balancer do.

use serde_json::{Value, json};

use crate::world::{World, addresses};

const VIPS: [&str; 2] = ["192.0.2.77", "2001:db8::77"];

fn loopback() -> Value {
    json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"})
}

fn bridge() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "isDefaultGateway": true,
        "ipam": {"type": "static", "addresses": [{"address": "10.1.0.7/24"}, {"address": "fd00:1::7/64"}]}})
}

#[test]
fn the_service_answers_before_and_after_the_loopback_plugin() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.exec(["ip", "link", "set", "lo", "up"]);
    for (vip, length) in VIPS.iter().zip(["32", "128"]) {
        c1.exec(["ip", "address", "add", &format!("{vip}/{length}"), "dev", "lo"]);
    }
    c1.add("bridge", &bridge());
    for (vip, via) in VIPS.iter().zip(["10.1.0.7", "fd00:1::7"]) {
        world.host(["ip", "route", "add", vip, "via", via]);
    }
    let answers = || VIPS.iter().for_each(|vip| drop(world.pinging(vip, None).output_of_success()));
    answers();
    let result = c1.add("loopback", &loopback());
    assert_eq!(result["ips"].as_array().unwrap().len(), 2, "{result}");
    assert_eq!(
        (&result["ips"][0]["address"], &result["ips"][1]["address"]),
        (&json!("127.0.0.1/8"), &json!("::1/128"))
    );
    c1.check("loopback", &loopback(), &result);
    answers();
    c1.del("loopback", &loopback());
    answers();
    let left = addresses(&c1.json(["ip", "-j", "address", "show", "dev", "lo"]));
    assert!(VIPS.iter().all(|vip| left.iter().any(|address| address.starts_with(vip))), "{left:?}");
    // Without the service, DEL brings lo down.
    for vip in VIPS {
        c1.exec(["ip", "address", "flush", "dev", "lo", "to", vip]);
    }
    c1.add("loopback", &loopback());
    c1.del("loopback", &loopback());
    assert!(!c1.exec(["ip", "link", "show", "dev", "lo"]).contains(",UP"));
}

//! Requests that fail where the table of all plugins does not look.

use serde_json::json;

use super::layer2;
use crate::faults::{Effect, for_every_fault};
use crate::world::{World, through_dhcp, with};

#[test]
fn a_failed_add_takes_the_gateway_off_a_bridge_where_addresses_come_through_the_interface() {
    let world = World::new();
    world.host(["sh", "-c", "ip link add cni0 type bridge; ip link set cni0 up"]);
    let c1 = world.container("c1");
    let keys = json!({"cniVersion": "1.0.0", "isGateway": true, "ipam": {"type": "dhcp"}});
    let config = with(&layer2(), keys);
    let addresses = || world.host(["ip", "-4", "-o", "address", "show", "dev", "cni0"]);
    let failures = for_every_fault(|number| {
        let add = c1.call("bridge", "ADD", &config).env("CNIBOX_FAIL_KERNEL", &number.to_string());
        let outcome = through_dhcp(add).run();
        let effect = Effect::on(&outcome);
        if effect == Effect::Failure {
            assert_eq!(addresses(), "", "request {number}: {}", outcome.report());
        } else {
            through_dhcp(c1.call("bridge", "DEL", &config)).run().silence();
        }
        world.host(["ip", "-4", "address", "flush", "dev", "cni0"]);
        effect
    });
    assert!(failures > 8, "{failures}");
}

#[test]
fn a_bridge_that_a_failing_del_left_is_removed_by_the_next() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = with(&layer2(), json!({"removeUnused": true}));
    let failures = for_every_fault(|number| {
        c1.add("bridge", &config);
        let del = c1.call("bridge", "DEL", &config);
        let outcome = del.env("CNIBOX_FAIL_KERNEL", &number.to_string()).run();
        let effect = Effect::on(&outcome);
        if effect == Effect::Failure {
            c1.del("bridge", &config);
        }
        let links = world.links();
        assert!(!links.contains(&"cni0".to_owned()), "request {number}: {}", outcome.report());
        effect
    });
    assert!(failures > 3, "{failures}");
}

//! An IPv6 gateway with a link-local address, as routers have it: fe80::1.

use serde_json::{Value, json};

use crate::world::World;

fn network(force: bool) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0",
        "isDefaultGateway": true, "forceAddress": force,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "fd00:1::/64", "gateway": "fe80::1"}]]}})
}

/// The administrator's bridge has the address that the kernel gave it.
#[test]
fn it_is_added_to_a_bridge_with_a_link_local_address_of_its_own() {
    for force in [false, true] {
        let world = World::new();
        world.host(["ip", "address", "add", "2001:db8::1/128", "dev", "lo"]);
        for words in [
            "link add br0 type bridge",
            "link add port0 type veth peer name port1",
            "link set port0 master br0 up",
            "link set port1 up",
            "link set br0 up",
        ] {
            world.host(["sh", "-c", &format!("ip {words}")]);
        }
        let addresses = || world.host(["ip", "-6", "-o", "address", "show", "dev", "br0"]);
        world.eventually("the bridge has an address", || {
            addresses().contains("fe80:") && !addresses().contains("tentative")
        });
        // Nothing else tells the host where the subnet is.
        world.host(["ip", "route", "add", "fd00:1::/64", "dev", "br0"]);
        let before = addresses();
        let own = before.split_whitespace().nth(3).unwrap();
        let config = network(force);
        world.call("bridge", "STATUS", &config).run().silence();
        for name in ["c1", "c2"] {
            let container = world.container(name);
            let result = container.add("bridge", &config);
            container.check("bridge", &config, &result);
            container.ping("2001:db8::1");
        }
        let after = addresses();
        assert!(after.contains(own) && after.contains("fe80::1/64"), "{after}");
    }
}

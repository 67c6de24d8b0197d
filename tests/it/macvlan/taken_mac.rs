//! A MAC address that another interface on the same master has.

use std::time::Instant;

use serde_json::{Value, json};

use super::{dual_stack, dual_stack_with};
use crate::world::{PLUGIN_DIR, World, lan, with};

const MAC: &str = "02:00:00:00:00:01";
const TITLE: &str =
    "cannot use MAC address 02:00:00:00:00:01 for eth0: eth0 of container c1 in network net has it";

fn fixed() -> Value {
    dual_stack_with(json!({"runtimeConfig": {"mac": MAC}}))
}

#[test]
fn the_container_that_has_it_is_named() {
    let world = World::new();
    let _outside = lan(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let result = c1.add("macvlan", &fixed());
    let before = world.state_with(&[&c1, &c2]).apart_from("", "net");
    let start = Instant::now();
    c2.call("macvlan", "ADD", &fixed()).run().fails(999, &[TITLE, "Address already in use"]);
    assert!(start.elapsed().as_secs() < 5, "a living container is not waited for");
    before.assert_same(&world.state_with(&[&c1, &c2]).apart_from("", "net"), "after the ADD");
    c1.check("macvlan", &fixed(), &result);
    // By `tuning`, while the interface is up.
    let result = c2.add("macvlan", &dual_stack());
    let tuning = json!({"cniVersion": "1.0.0", "name": "net", "type": "tuning", "mac": MAC,
        "prevResult": result});
    c2.call("tuning", "ADD", &tuning).run().fails(999, &[TITLE]);
    c1.del("macvlan", &fixed());
    c2.call("tuning", "ADD", &tuning).run().success();
}

#[test]
fn the_link_of_the_host_that_has_it_is_named() {
    let world = World::new();
    let _outside = lan(&world);
    let c1 = world.container("c1");
    world.host(["ip", "link", "set", "lan", "address", MAC]);
    let named = |link: &str| format!("cannot use MAC address {MAC} for eth0: link {link} has it");
    c1.call("macvlan", "ADD", &fixed()).run().fails(999, &[&named("lan")]);
    world.host(["ip", "link", "set", "lan", "address", "02:00:00:00:00:77"]);
    world.host(["sh", "-ec", "ip link add mv0 link lan address 02:00:00:00:00:01 type macvlan mode bridge; ip link set mv0 up"]);
    c1.call("macvlan", "ADD", &fixed()).run().fails(999, &[&named("mv0")]);
    world.host(["ip", "link", "del", "mv0"]);
    let result = c1.add("macvlan", &fixed());
    assert_eq!(result["interfaces"][0]["mac"], MAC);
}

#[test]
fn a_container_that_is_ending_is_waited_for() {
    for is_by_runtime in [false, true] {
        let world = World::new();
        let outside = lan(&world);
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        c1.add("macvlan", &fixed());
        // The last process of the container ends some time after its path.
        let last = c1.tool(["sleep", "3"]).start();
        c1.unmount();
        let result = if is_by_runtime {
            let mut list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [with(&dual_stack(), json!({"mac": MAC}))]});
            list["plugins"][0].as_object_mut().unwrap().remove("name");
            world.write("/run/net.d/net.conflist", list.to_string());
            let words = ["/run/bin/cnibox", "add", "net", "c2", "--container-id", "c2"];
            let add = world.tool(&words, None).env("NETCONFPATH", "/run/net.d");
            add.env("CNI_PATH", PLUGIN_DIR).run().success()
        } else {
            c2.add("macvlan", &fixed())
        };
        last.finish();
        assert_eq!(result["interfaces"][0]["mac"], MAC);
        c2.ping("10.1.0.254");
        c2.ping("fd00:1::fe");
        drop(outside);
    }
}

//! Connectivity between containers, the host and the network.

use serde_json::json;

use super::{address, dual_stack, dual_stack_with};
use crate::world::{Container, OUTSIDE, World, lan};

/// One try of a second, where no answer is expected.
fn reaches(container: &Container<'_>, address: &str) -> bool {
    container.tool(["ping", "-n", "-q", "-c", "1", "-W", "1", address]).run().status == 0
}

#[test]
fn modes_decide_whether_containers_reach_one_another_and_all_reach_outside() {
    // A switch in hairpin mode sends frames back to where they came from.
    for (mode, hairpin, expected) in [
        ("bridge", "off", true),
        ("private", "off", false),
        ("private", "on", false),
        ("vepa", "off", false),
        ("vepa", "on", true),
    ] {
        let world = World::new();
        let outside = lan(&world);
        outside.exec(["ip", "link", "set", "port", "type", "bridge_slave", "hairpin", hairpin]);
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        let config = dual_stack_with(json!({"mode": mode}));
        c1.add("macvlan", &config);
        let result = c2.add("macvlan", &config);
        for (index, beyond) in OUTSIDE.into_iter().enumerate() {
            c1.ping(beyond);
            c2.ping(beyond);
            let other = address(&result, index);
            match expected {
                true => c1.ping(&other),
                false => assert!(!reaches(&c1, &other), "{mode}, hairpin {hairpin}, {other}"),
            }
        }
    }
}

#[test]
fn outside_reaches_the_container_and_the_host_does_not() {
    let world = World::new();
    let outside = lan(&world);
    let c1 = world.container("c1");
    world.host(["ip", "address", "add", "10.1.0.253/24", "dev", "lan"]);
    c1.add("macvlan", &dual_stack());
    outside.ping("10.1.0.2");
    outside.ping("fd00:1::2");
    outside.ping("10.1.0.253");
    let ping = ["ping", "-n", "-q", "-c", "1", "-W", "1", "10.1.0.2"];
    assert_ne!(world.tool(&ping, None).run().status, 0, "by design of macvlan");
    assert!(!reaches(&c1, "10.1.0.253"), "by design of macvlan");
}

#[test]
fn a_link_of_the_container_can_be_the_master() {
    let world = World::new();
    let _outside = lan(&world);
    let c1 = world.container("c1");
    world.host(["ip", "link", "set", "lan", "netns", &c1.netns()]);
    c1.exec(["ip", "link", "set", "lan", "up"]);
    let config = dual_stack_with(json!({"linkInContainer": true}));
    let result = c1.add("macvlan", &config);
    c1.check("macvlan", &config, &result);
    for address in OUTSIDE {
        c1.ping(address);
    }
    let wrong = dual_stack_with(json!({"linkInContainer": false}));
    c1.checking("macvlan", &wrong, &result).run().fails(7, &["master", "lan"]);
    c1.del("macvlan", &config);
    assert_eq!(c1.exec(["ip", "-o", "link"]).lines().count(), 2, "lo and lan");
}

#[test]
fn neighbours_with_a_stale_entry_get_an_announcement() {
    let world = World::new();
    let outside = lan(&world);
    let c1 = world.container("c1");
    let remembered = ["10.1.0.2", "fd00:1::2"];
    for ip in remembered {
        let script = format!("ip neigh replace {ip} lladdr 02:00:00:00:00:99 dev sw nud reachable");
        outside.exec(["sh", "-c", &script]);
    }
    let result = c1.add("macvlan", &dual_stack());
    let mac = result["interfaces"][0]["mac"].as_str().unwrap();
    for ip in remembered {
        world.eventually("the neighbour knows", || {
            outside.exec(["ip", "neigh", "show", ip]).contains(mac)
        });
    }
}

//! Together with the Go plugin, and after it.

use serde_json::{Value, json};

use super::{OUTSIDE, address, assert_reaches, bridge, drop_forwarded, firewall, outside, rules};
use crate::world::{Container, World};

const REFERENCE: &str = "/usr/lib/cni";

/// An ADD by the reference. It looks for iptables, which our plugins never do.
fn add_by_reference(container: &Container<'_>, result: &Value) {
    let config = config(result);
    let call = container.call("firewall", "ADD", &config).of_directory(REFERENCE);
    call.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").run().success();
}

/// 1.0.0 is what Debian's release of the reference knows.
fn config(result: &Value) -> Value {
    let mut config = firewall("net", json!({"cniVersion": "1.0.0"}), result);
    config["prevResult"]["cniVersion"] = "1.0.0".into();
    config
}

fn saved(world: &World) -> String {
    let save = "iptables-save; ip6tables-save";
    let saved = world.host(["sh", "-c", save]);
    // Comments hold the time, and brackets hold counters.
    let lines = saved.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| format!("{}\n", line.split(" [").next().unwrap())).collect()
}

#[test]
fn del_removes_rules_of_the_go_plugin() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    drop_forwarded(&world);
    let one = c1.add("bridge", &bridge("net", 1));
    let two = c2.add("bridge", &bridge("net", 1));
    add_by_reference(&c2, &two);
    let before = saved(&world);
    add_by_reference(&c1, &one);
    assert_ne!(saved(&world), before);
    // A rule of the administrator for the same address stays.
    assert_eq!(address(&one, 0), "10.1.0.2");
    let his = [
        "CNI-FORWARD -s 10.1.0.2 -j DROP",
        "CNI-FORWARD -s 10.1.0.2 -m comment --comment mine -j ACCEPT",
        "CNI-FORWARD -s 10.1.0.2 -p tcp -j ACCEPT",
        "CNI-FORWARD -s 10.1.0.0/24 -j ACCEPT",
        "CNI-FORWARD -d 10.1.0.2 -j ACCEPT",
    ];
    his.iter().for_each(|rule| drop(world.host(["sh", "-c", &format!("iptables -A {rule}")])));
    c1.del("firewall", &config(&one));
    his.iter().for_each(|rule| drop(world.host(["sh", "-c", &format!("iptables -D {rule}")])));
    assert_eq!(saved(&world), before);
}

#[test]
fn both_share_the_chains_and_find_each_others_jumps() {
    let world = World::new();
    let _outside = outside(&world);
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
    drop_forwarded(&world);
    let results = [&c1, &c2, &c3].map(|c| c.add("bridge", &bridge("net", 1)));
    c1.add("firewall", &config(&results[0]));
    add_by_reference(&c2, &results[1]);
    c3.add("firewall", &config(&results[2]));
    for container in [&c1, &c2, &c3] {
        assert_reaches(container, &OUTSIDE);
    }
    let saved = saved(&world);
    for jump in [
        "-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD",
        "-j CNI-ADMIN",
    ] {
        assert_eq!(saved.matches(jump).count(), 2, "once in each family: {saved}");
    }
    c3.check("firewall", &config(&results[2]), &config(&results[2])["prevResult"]);
}

#[test]
fn after_the_reference_an_add_of_ours_takes_over() {
    let world = World::new();
    let _outside = outside(&world);
    let c1 = world.container("c1");
    drop_forwarded(&world);
    let result = c1.add("bridge", &bridge("net", 1));
    add_by_reference(&c1, &result);
    c1.add("firewall", &config(&result));
    c1.del("firewall", &config(&result));
    assert!(!rules(&world).contains("10.1.0.2"), "{}", rules(&world));
}

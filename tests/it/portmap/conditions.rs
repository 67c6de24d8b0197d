//! Conditions, tested with connections.

use serde_json::{Value, json};

use super::{ask, ask_in_vain, attach, neighbours, portmap, serve, tcp};
use crate::world::{World, with};

#[test]
fn only_packets_that_meet_the_conditions_are_translated() {
    let world = World::new();
    let [outside, beyond] = neighbours(&world);
    let cases: [(Value, bool, bool); 14] = [
        (json!(["-s", "192.0.2.0/24"]), true, false),
        (json!(["!", "-s", "192.0.2.0/24"]), false, true),
        (json!(["-s", "192.0.2.2,198.51.100.2"]), true, true),
        (json!(["-i", "wan0"]), true, false),
        (json!(["-i", "wan+"]), true, true),
        (json!(["!", "-i", "wan0"]), false, true),
        (json!(["-d", "192.0.2.1", "-p", "tcp", "-m", "tcp", "--sport", "1024:"]), true, true),
        (json!(["-m", "comment", "--comment", "-s nothing", "-p", "udp"]), false, false),
        (json!(["-m", "multiport", "--sports", "1:1023,40000"]), false, false),
        (json!(["-m", "addrtype", "--dst-type", "LOCAL"]), true, true),
        (json!(["ip saddr 192.0.2.2"]), true, false),
        (json!(["ip", "saddr", "!=", "{ 192.0.2.2, 192.0.2.3 }"]), false, true),
        (json!(["iifname", "\"wan1\""]), false, true),
        (json!(["tcp sport 1024-65535 meta mark 0"]), true, true),
    ];
    for (number, (conditions, from_outside, from_beyond)) in cases.into_iter().enumerate() {
        let container = world.container(&format!("c{number}"));
        let config = portmap(json!([tcp(8080, 80)]));
        attach(&container, &with(&config, json!({"conditionsV4": conditions})));
        serve(&container, "tcp", 80);
        for (client, is_let_in) in [(&outside, from_outside), (&beyond, from_beyond)] {
            let ask = if is_let_in { ask } else { ask_in_vain };
            let answer = ask(&world, Some(&client.netns()), "tcp", "192.0.2.1", 8080);
            assert_eq!(answer != "nothing", is_let_in, "{conditions} {}: {answer}", client.name);
        }
        // Those of the other family are none of theirs.
        assert_ne!(ask(&world, Some(&outside.netns()), "tcp", "fd00:2::1", 8080), "nothing");
        container.del("portmap", &portmap(json!(null)));
    }
}

#[test]
fn one_port_has_several_targets_with_different_conditions() {
    let world = World::new();
    let [outside, beyond] = neighbours(&world);
    for (name, interface) in [("c1", "wan0"), ("c2", "wan1")] {
        let container = world.container(name);
        let conditions =
            json!({"conditionsV4": ["-i", interface], "conditionsV6": ["iifname", interface]});
        attach(&container, &with(&portmap(json!([tcp(8080, 80)])), conditions));
        serve(&container, "tcp", 80);
    }
    for host in ["192.0.2.1", "fd00:2::1"] {
        for (client, expected) in [(&outside, "c1"), (&beyond, "c2")] {
            let answer = ask(&world, Some(&client.netns()), "tcp", host, 8080);
            assert!(answer.starts_with(expected), "{host} from {}: {answer}", client.name);
        }
    }
}

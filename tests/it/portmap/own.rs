//! A DEL that looks up the ports of the record removes the same elements as a DEL that reads everything.

use serde_json::{Value, json};

use super::{chained, elements, portmap, publish, result, tcp, udp};
use crate::world::{World, with};

const NOTHING: [&str; 0] = [];

fn on(ip: &str, port: u16) -> Value {
    with(&tcp(port, 80), json!({"hostIP": ip}))
}

fn ports() -> Value {
    json!([tcp(8080, 80), udp(8053, 53), on("192.0.2.1", 8081), on("fd00:2::1", 8081)])
}

/// An event between an ADD and its DEL.
type Change = (&'static str, fn(&World));

const CHANGES: [Change; 7] = [
    ("nothing", |_| {}),
    ("the record is gone", |world| {
        world.host(["rm", "-r", "/var/lib/cni/attachments"]);
    }),
    ("the record has no ports, as one of an earlier release", |world| {
        world.host(["sed", "-i", "/ports/d", "/var/lib/cni/attachments/net+c1+eth0"]);
    }),
    ("the record has a port that was not published, as after a killed ADD", |world| {
        let ports = "ip portmap-published any tcp 8080 8083";
        let record = "/var/lib/cni/attachments/net+c1+eth0";
        let edit = format!("s/ip portmap-published any tcp 8080/{ports}/");
        world.host(["sed", "-i", &edit, record]);
        assert!(world.host(["cat", record]).contains(ports));
    }),
    ("a port is gone", |world| {
        world.host(["nft", "delete element ip cnibox portmap-published { tcp . 8080 }"]);
    }),
    ("the ports are gone", |world| {
        world.host(["nft", "flush map ip cnibox portmap-published"]);
    }),
    ("the rules were restored", |world| {
        world.host(["sh", "-ec", "nft list ruleset >/run/f; nft flush ruleset; nft -f /run/f"]);
    }),
];

#[test]
fn del_removes_all_after_any_change_of_rules_or_configuration() {
    let later = [
        portmap(ports()),
        portmap(json!([tcp(8080, 80)])),
        portmap(json!([tcp(8080, 80), udp(8053, 53), on("192.0.2.1", 8081), tcp(9000, 80)])),
        portmap(json!([tcp(8080, 80), udp(8053, 53), on("192.0.2.7", 8081)])),
        with(&portmap(ports()), json!({"conditionsV4": ["-i", "eth0"]})),
        with(&portmap(ports()), json!({"snat": false})),
    ];
    for (what, change) in CHANGES {
        for config in &later {
            let world = World::new();
            let (c1, c2) = (world.container("c1"), world.container("c2"));
            let of_c2 = with(&tcp(9080, 80), json!({"hostIP": "192.0.2.2"}));
            publish(&c2, 2, &portmap(json!([of_c2, on("192.0.2.2", 8081)])));
            let before = elements(&world);
            publish(&c1, 1, &portmap(ports()));
            change(&world);
            c1.del("portmap", config);
            assert_eq!(elements(&world), before, "{what}: {config}");
            c2.del("portmap", &portmap(json!([tcp(9080, 80), on("192.0.2.2", 8081)])));
            assert_eq!(elements(&world), NOTHING, "{what}: {config}");
        }
    }
}

#[test]
fn a_container_has_one_port_on_two_addresses() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = portmap(json!([on("192.0.2.1", 8081), on("192.0.2.3", 8081)]));
    // The second ADD puts the same elements.
    publish(&c1, 1, &config);
    publish(&c1, 1, &config);
    c1.del("portmap", &config);
    assert_eq!(elements(&world), NOTHING);
}

#[test]
fn a_port_on_several_addresses_stays_taken_until_the_last_del() {
    let orders = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]];
    for (order, knows_ports) in orders.into_iter().flat_map(|order| [(order, true), (order, false)])
    {
        let world = World::new();
        let containers = [1, 2, 3].map(|number| world.container(&format!("c{number}")));
        let config = |number: usize| portmap(json!([on(&format!("192.0.2.{number}"), 8080)]));
        for (number, container) in (1..).zip(&containers) {
            publish(container, number, &config(number as usize));
        }
        // One of them once more.
        publish(&containers[1], 2, &config(2));
        let other = world.container("other");
        let any = chained(&portmap(json!([tcp(8080, 80)])), &result(9, &other.netns()));
        for number in order {
            other.call("portmap", "ADD", &any).run().fails(999, &["it is taken by"]);
            let config = if knows_ports { config(number) } else { portmap(json!(null)) };
            containers[number - 1].del("portmap", &config);
        }
        assert_eq!(elements(&world), NOTHING, "{order:?} {knows_ports}");
        other.add("portmap", &any);
    }
}

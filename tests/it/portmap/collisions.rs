//! ADD refuses a port that another container has on an overlapping address, and names that container.

use serde_json::{Value, json};

use super::{attach, chained, elements, portmap, publish, result, tcp, udp};
use crate::world::{Container, World, with};

const OWNER: [&str; 3] = ["network net", "container c1", "interface eth0"];

fn on(ip: &str, port: u16) -> Value {
    with(&tcp(port, 80), json!({"hostIP": ip}))
}

fn adding(container: &Container<'_>, number: u32, config: &Value) -> crate::world::Outcome {
    let config = chained(config, &result(number, &container.netns()));
    container.call("portmap", "ADD", &config).run()
}

#[test]
fn a_port_is_given_out_once() {
    let cases = [
        (tcp(8080, 80), tcp(8080, 81), true),
        (tcp(8080, 80), udp(8080, 80), false),
        (tcp(8080, 80), tcp(8081, 80), false),
        (tcp(8080, 80), on("192.0.2.1", 8080), true),
        (tcp(8080, 80), on("fd00:2::1", 8080), true),
        (on("192.0.2.1", 8080), tcp(8080, 80), true),
        (on("fd00:2::1", 8080), tcp(8080, 80), true),
        (on("192.0.2.1", 8080), on("192.0.2.1", 8080), true),
        (on("192.0.2.1", 8080), on("192.0.2.2", 8080), false),
        (on("192.0.2.1", 8080), on("0.0.0.0", 8080), true),
        (on("192.0.2.1", 8080), on("::", 8080), false),
        (on("0.0.0.0", 8080), on("::", 8080), false),
        (on("::", 8080), tcp(8080, 80), true),
    ];
    for (first, second, is_taken) in cases {
        let world = World::new();
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        publish(&c1, 1, &portmap(json!([first])));
        let before = elements(&world);
        let outcome = adding(&c2, 2, &portmap(json!([udp(1, 1), second])));
        if is_taken {
            outcome.fails(999, &OWNER);
            assert_eq!(elements(&world), before, "{first} {second}");
            c1.del("portmap", &portmap(json!(null)));
            adding(&c2, 2, &portmap(json!([second]))).success();
        } else {
            outcome.success();
        }
    }
}

#[test]
fn one_port_is_one_mapping_however_its_addresses_are_written() {
    let all = [tcp(8080, 80), on("0.0.0.0", 8080), on("::", 8080)];
    let published = |ports: &[&Value]| {
        let world = World::new();
        let c1 = world.container("c1");
        let config = portmap(json!(ports));
        let config = chained(&config, &result(1, &c1.netns()));
        c1.call("portmap", "ADD", &config).run().success();
        c1.call("portmap", "CHECK", &config).run().silence();
        elements(&world)
    };
    let expected = published(&[&all[0]]);
    for order in [[0, 1, 2], [1, 0, 2], [2, 0, 1], [2, 1, 0], [1, 2, 1]] {
        assert_eq!(published(&order.map(|index| &all[index])), expected, "{order:?}");
    }
    let world = World::new();
    let c1 = world.container("c1");
    let other = with(&tcp(8080, 81), json!({"hostIP": "::"}));
    adding(&c1, 1, &portmap(json!([all[1], other]))).success();
    adding(&c1, 1, &portmap(json!([all[0], other])))
        .fails(7, &["host port tcp 8080 is mapped twice"]);
}

#[test]
fn the_same_container_may_be_more_specific() {
    let world = World::new();
    let c1 = world.container("c1");
    publish(
        &c1,
        1,
        &portmap(json!([
            tcp(8080, 80),
            with(&on("192.0.2.1", 8080), json!({"containerPort": 81}))
        ])),
    );
    // The elements with that address of the host.
    let specific = || {
        let lines = elements(&world).into_iter();
        lines.filter(|line| line.contains("192.0.2.1")).collect::<Vec<_>>()
    };
    let with_port = |port: &str| specific().iter().any(|line| line.contains(port));
    assert!(with_port("8080") && with_port("81"), "{:?}", specific());
    publish(&c1, 1, &portmap(json!([tcp(8080, 80), tcp(8080, 80)])));
    assert_eq!(specific(), [""; 0], "the second ADD replaces the first");
}

#[test]
fn a_port_on_another_address_stays_taken_after_a_del() {
    let world = World::new();
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
    publish(&c3, 3, &portmap(json!([on("192.0.2.3", 8080)])));
    publish(&c1, 1, &portmap(json!([on("192.0.2.1", 8080)])));
    c3.del("portmap", &portmap(json!(null)));
    adding(&c2, 2, &portmap(json!([tcp(8080, 80)]))).fails(999, &OWNER);
    // Also for a container that has the port on one address.
    publish(&c2, 2, &portmap(json!([on("192.0.2.2", 8080)])));
    adding(&c2, 2, &portmap(json!([tcp(8080, 80)]))).fails(999, &OWNER);
    c1.del("portmap", &portmap(json!(null)));
    adding(&c2, 2, &portmap(json!([tcp(8080, 80)]))).success();
    c2.del("portmap", &portmap(json!(null)));
    assert_eq!(elements(&world), [""; 0]);
}

#[test]
fn conditions_that_differ_may_share_a_port() {
    let if_from = |net: &str| json!({"conditionsV4": ["-s", net], "conditionsV6": ["-i", net]});
    for (first, second, is_taken) in [
        (if_from("10.0.0.0/8"), if_from("172.16.0.0/12"), false),
        (if_from("10.0.0.0/8"), if_from("10.0.0.0/8"), true),
        (json!({}), if_from("10.0.0.0/8"), true),
        (if_from("10.0.0.0/8"), json!({}), true),
    ] {
        for mapping in [tcp(8080, 80), on("192.0.2.1", 8080)] {
            let world = World::new();
            let (c1, c2) = (world.container("c1"), world.container("c2"));
            // The name of an interface has no slash.
            let real = |more: &Value| {
                let mut more = more.clone();
                if let Some(list) = more["conditionsV6"].as_array_mut() {
                    list[1] = list[1].as_str().unwrap().replace('/', "x").into();
                }
                with(&portmap(json!([mapping])), more)
            };
            publish(&c1, 1, &real(&first));
            let outcome = adding(&c2, 2, &real(&second));
            if is_taken {
                outcome.fails(999, &OWNER);
            } else {
                outcome.success();
            }
            for container in [&c1, &c2] {
                container.del("portmap", &portmap(json!(null)));
            }
            assert_eq!(elements(&world), [""; 0]);
        }
    }
}

#[test]
fn the_port_of_a_container_that_has_ended_is_free() {
    let mappings = [tcp(8080, 80), on("192.0.2.1", 8080), on("fd00:2::1", 8080)];
    for (mapping, again) in
        mappings.iter().flat_map(|one| mappings.iter().map(move |two| (one, two)))
    {
        let world = World::new();
        let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
        attach(&c1, &portmap(json!([mapping, udp(53, 53)])));
        c1.destroy();
        attach(&c2, &portmap(json!([again, udp(53, 53)])));
        let after = elements(&world);
        let owns =
            |owner: &str| after.iter().any(|line| line.ends_with(&format!("net {owner} eth0")));
        assert!(owns("c2") && !owns("c1"), "{mapping} {again}: {after:?}");
        // The late DEL of the first one.
        world
            .call("portmap", "DEL", &portmap(json!([mapping])))
            .env("CNI_CONTAINERID", "c1")
            .env("CNI_IFNAME", "eth0")
            .run()
            .silence();
        assert_eq!(elements(&world), after);
        adding(&c3, 3, &portmap(json!([udp(53, 53)]))).fails(999, &["container c2"]);
        c2.del("portmap", &portmap(json!(null)));
        assert_eq!(elements(&world), [""; 0]);
    }
}

//! Packets, not only configuration.

use serde_json::{Value, json};

use super::{address, dual_stack, layer2};
use crate::world::{Call, World, one_attempt_is, with};

/// One packet, which may not be lost. The answer has a minute to come.
pub fn first_packet(address: &str) -> [&str; 8] {
    ["ping", "-n", "-q", "-c", "1", "-W", "60", address]
}

pub fn answer_ms(ping: Call<'_>) -> f64 {
    ping.run().round_trip_ms()
}

/// No packet is lost in any attempt, and no answer takes a second in one of five: each is late on a loaded machine at times.
#[track_caller]
pub fn assert_prompt(attempt: impl Fn() -> Vec<f64>) {
    let are_prompt = |answers: &Vec<f64>| answers.iter().all(|answer| *answer < 1000.0);
    one_attempt_is(5, "answers after so many milliseconds", are_prompt, attempt);
}

#[test]
fn containers_reach_one_another_and_the_gateway_in_both_families() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let one = c1.add("bridge", &dual_stack());
    let two = c2.add("bridge", &dual_stack());
    for index in [0, 1] {
        c1.ping(&address(&two, index));
        c2.ping(&address(&one, index));
    }
    for gateway in ["10.1.0.1", "fd00:1::1"] {
        c1.ping(gateway);
    }
    world.host(first_packet(&address(&one, 0)));
}

#[test]
fn the_first_packet_after_an_add_arrives() {
    assert_prompt(|| {
        let world = World::new();
        let containers = (0..4).map(|number| world.container(&format!("c{number}")));
        let answers = containers.map(|container| {
            container.add("bridge", &dual_stack());
            ["10.1.0.1", "fd00:1::1"]
                .map(|gateway| answer_ms(container.tool(first_packet(gateway))))
        });
        answers.collect::<Vec<_>>().concat()
    });
}

/// The host finds the neighbour by its link-local address, which must not wait for duplicate address detection.
#[test]
fn the_first_packet_that_the_host_forwards_arrives() {
    let routed = json!({
        "cniVersion": "1.0.0", "name": "routed", "type": "ptp",
        "ipam": {
            "type": "host-local", "ranges": [[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        },
    });
    assert_prompt(|| {
        let world = World::new();
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        let one = c1.add("bridge", &dual_stack());
        let two = c2.add("ptp", &routed);
        let answers = [0, 1].map(|index| {
            let to_one = answer_ms(c2.tool(first_packet(&address(&one, index))));
            [to_one, answer_ms(c1.tool(first_packet(&address(&two, index))))]
        });
        answers.concat()
    });
}

/// Each container gets the addresses that the one before it had, which the host and a neighbour just talked to.
#[test]
fn addresses_of_a_container_that_went_are_reached_at_once() {
    assert_prompt(|| {
        let world = World::new();
        let neighbour = world.container("neighbour");
        neighbour.add("bridge", &fixed(20));
        let mut answers = Vec::new();
        for number in 0..8 {
            let container = world.container(&format!("c{number}"));
            container.add("bridge", &fixed(30));
            for address in ["10.1.0.30", "fd00:1::30"] {
                answers.push(answer_ms(neighbour.tool(first_packet(address))));
                answers.push(answer_ms(world.tool(&first_packet(address), None)));
            }
            container.del("bridge", &fixed(30));
        }
        answers
    });
}

/// The addresses that end with `number`.
fn fixed(number: u8) -> Value {
    let addresses = [format!("10.1.0.{number}/16"), format!("fd00:1::{number}/64")];
    let addresses = addresses.map(|address| json!({"address": address}));
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "isGateway": true,
        "ipam": {"type": "static", "addresses": addresses},
    })
}

#[test]
fn a_plain_switch_carries_frames() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    for (container, address) in [(&c1, "192.168.5.1/24"), (&c2, "192.168.5.2/24")] {
        container.add("bridge", &layer2());
        container.exec(["ip", "address", "add", address, "dev", "eth0"]);
    }
    c1.ping("192.168.5.2");
}

#[test]
fn isolated_ports_do_not_hear_one_another_but_the_gateway() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let config = with(&dual_stack(), json!({"portIsolation": true}));
    c1.add("bridge", &config);
    let two = c2.add("bridge", &config);
    c1.ping("10.1.0.1");
    c2.ping("10.1.0.1");
    let ping = c1.tool(["ping", "-n", "-q", "-c", "1", "-W", "1", &address(&two, 0)]).run();
    assert_eq!(ping.status, 1, "{}", ping.report());
}

#[test]
fn a_host_beyond_the_gateway_is_reached_through_the_default_route() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dual_stack());
    // A neighbour of the host that knows its way back.
    let outside = world.container("outside");
    connect(&world, &outside.netns());
    outside.exec(["ip", "route", "add", "10.1.0.0/16", "via", "192.0.2.1"]);
    c1.ping("192.0.2.2");
    outside.ping(&address(&result, 0));
}

/// A pair between the host (192.0.2.1) and the namespace (192.0.2.2).
fn connect(world: &World, netns: &str) {
    let script = format!(
        "ip link add wan0 type veth peer name wan1 &&
         ip link set wan1 netns {netns} &&
         ip address add 192.0.2.1/24 dev wan0 && ip link set wan0 up &&
         nsenter --net={netns} sh -c 'ip address add 192.0.2.2/24 dev wan1 && ip link set wan1 up'"
    );
    world.host(["sh", "-c", &script]);
}

/// As NetworkManager and libvirt make bridges: a port forwards after twice the forward delay, at least 4 s.
#[test]
fn an_add_to_a_bridge_with_spanning_tree_succeeds_before_the_port_forwards() {
    let world = World::new();
    world.host([
        "ip",
        "link",
        "add",
        "cni0",
        "up",
        "type",
        "bridge",
        "stp_state",
        "1",
        "forward_delay",
        "200",
    ]);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dual_stack());
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let state = world.host(["ip", "-d", "link", "show", port]);
    assert!(!state.contains("state forwarding"), "it did not wait: {state}");
    c1.check("bridge", &dual_stack(), &result);
    c1.ping("10.1.0.1");
    c1.del("bridge", &dual_stack());
}

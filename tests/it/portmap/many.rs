//! Many containers at the same time, and many existing elements.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{chained, count, elements, portmap, publish, result, tcp, udp};
use crate::world::{Call, Container, Outcome, World, all_at_once, with};

const MANY: u32 = 32;

fn config(number: u32) -> Value {
    let port = u16::try_from(number).unwrap() + 8000;
    portmap(json!([
        tcp(port, 80),
        udp(port, 53),
        with(&tcp(port + 1000, 81), json!({"hostIP": "192.0.2.1"})),
    ]))
}

fn call<'w>(container: &Container<'w>, verb: &str, number: u32) -> Call<'w> {
    container.call("portmap", verb, &chained(&config(number), &result(number, &container.netns())))
}

#[test]
fn thirty_two_at_once_lose_nothing_and_double_nothing() {
    let world = World::new();
    let containers: Vec<Container<'_>> =
        (0..2 * MANY).map(|number| world.container(&format!("c{number}"))).collect();
    let all: Vec<(u32, &Container<'_>)> = (0..).zip(&containers).collect();
    let (old, new) = all.split_at(MANY as usize);
    for outcome in all_at_once(old.iter().map(|(number, c)| call(c, "ADD", *number))) {
        outcome.success();
    }
    // Per container: two ports and one under an address in IPv4, two in IPv6, the port of the address, and three subnets.
    let per_container = 9;
    let expected = |owners: &[(u32, &Container<'_>)]| {
        let lines = elements(&world);
        assert_eq!(lines.len(), owners.len() * per_container, "{}", lines.join("\n"));
        let different: BTreeSet<&str> =
            lines.iter().map(|line| line.rsplit(", ").next().unwrap()).collect();
        let owners: BTreeSet<String> =
            owners.iter().map(|(_, container)| format!("net {} eth0", container.name)).collect();
        assert_eq!(different, owners.iter().map(String::as_str).collect());
    };
    expected(old);
    for outcome in all_at_once(old.iter().map(|(number, c)| call(c, "CHECK", *number))) {
        outcome.silence();
    }
    let both = old.iter().map(|(number, c)| call(c, "DEL", *number));
    let both = both.zip(new.iter().map(|(number, c)| call(c, "ADD", *number)));
    for outcome in all_at_once(both.flat_map(|(del, add)| [del, add])) {
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
    expected(new);
    all_at_once(new.iter().map(|(number, c)| call(c, "DEL", *number)))
        .into_iter()
        .for_each(Outcome::silence);
    assert_eq!(elements(&world), [""; 0]);
}

#[test]
fn one_of_many_concurrent_adds_gets_a_port() {
    let world = World::new();
    let containers: Vec<Container<'_>> =
        (0..MANY).map(|number| world.container(&format!("c{number}"))).collect();
    let config = portmap(json!([tcp(8080, 80)]));
    let calls = (0..).zip(&containers).map(|(number, container)| {
        container.call("portmap", "ADD", &chained(&config, &result(number, &container.netns())))
    });
    let outcomes = all_at_once(calls);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.status == 0).count(), 1);
    assert_eq!(
        (count(&world, "ip portmap-published "), count(&world, "ip6 portmap-published ")),
        (1, 1)
    );
    for outcome in outcomes.into_iter().filter(|outcome| outcome.status != 0) {
        outcome.fails(999, &["network net", "container c", "interface eth0"]);
    }
}

/// The least of five measurements, since a late event of the kernel is another system call.
fn least_costs(world: &World, container: &Container<'_>, number: u32) -> [(usize, usize); 2] {
    let measured = [(); 5].map(|()| costs(world, container, number));
    [0, 1].map(|verb| {
        let calls = measured.iter().map(|costs| costs[verb].0).min().unwrap();
        (calls, measured.iter().map(|costs| costs[verb].1).min().unwrap())
    })
}

/// The system calls of an ADD and of a DEL, and how many bytes they read and write in them.
fn costs(world: &World, container: &Container<'_>, number: u32) -> [(usize, usize); 2] {
    let on = with(&tcp(101, 81), json!({"hostIP": "192.0.2.1"}));
    let config = portmap(json!([tcp(100, 80), udp(100, 53), on]));
    let config = chained(&config, &result(number, &container.netns()));
    ["ADD", "DEL"].map(|verb| cost(world, container.call("portmap", verb, &config)))
}

fn cost(world: &World, call: Call<'_>) -> (usize, usize) {
    let outcome = call.under(&["strace", "-f", "-o", "/run/trace"]).run();
    assert_eq!(outcome.status, 0, "{}", outcome.report());
    let trace = world.read("/run/trace");
    let calls = trace.lines().filter(|line| line.contains(") = ") || line.contains(") = 0"));
    let bytes = trace.lines().filter(|line| line.contains("recvfrom(") || line.contains("sendto("));
    let returned = |line: &str| line.rsplit(" = ").next()?.parse::<usize>().ok();
    let sum = bytes.filter_map(returned).sum();
    (calls.count(), sum)
}

#[test]
fn the_cost_of_a_call_is_independent_of_published_ports() {
    let world = World::new();
    let c1 = world.container("c1");
    publish(&c1, 1, &portmap(json!([tcp(1, 1), tcp(2, 2), tcp(3, 3), tcp(4, 4), tcp(5, 5)])));
    let c2 = world.container("c2");
    // The first ADD makes what all share.
    costs(&world, &c2, 2);
    let few = least_costs(&world, &c2, 2);
    for number in 0..50 {
        let container = world.container(&format!("d{number}"));
        let ports = (0..100).map(|port| {
            let port = 1000 + u16::try_from(number).unwrap() * 100 + port;
            if port % 2 == 0 {
                tcp(port, 80)
            } else {
                with(&tcp(port, 80), json!({"hostIP": "192.0.2.1"}))
            }
        });
        publish(&container, 10 + number, &portmap(ports.collect()));
    }
    assert_eq!(count(&world, "ip portmap-published "), 2505);
    assert_eq!(count(&world, "ip portmap-published-on "), 2500);
    let many = least_costs(&world, &c2, 2);
    let is_as_much = |few: usize, many: usize| many * 20 <= few * 21;
    for (few, many) in few.into_iter().zip(many) {
        assert!(is_as_much(few.0, many.0) && is_as_much(few.1, many.1), "{few:?} {many:?}");
    }
    assert_eq!(elements(&world).iter().filter(|line| line.ends_with("net c2 eth0")).count(), 0);
}

#[test]
fn one_container_may_have_thousands_of_ports() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = portmap((1..=1500).map(|port| tcp(port, port)).collect());
    publish(&c1, 1, &config);
    assert_eq!(count(&world, "ip portmap-published "), 1500);
    c1.check("portmap", &config, &result(1, &c1.netns()));
    c1.del("portmap", &config);
    assert_eq!(elements(&world), [""; 0]);
}

//! The output of `tc`, side by side with that of the reference.

use serde_json::{Value, json};

use super::{bandwidth, chained, host_end, ifb, limited, limits, network, root, shaping};
use crate::parity::reference;
use crate::world::{Container, World, with};

/// By the reference's plugin, in our world.
fn by_reference(container: &Container<'_>, verb: &str, config: &Value) {
    let call = container.call("bandwidth", verb, config).of_directory(&reference());
    let outcome = call.run();
    assert_eq!(outcome.status, 0, "{}", outcome.report());
}

/// Without what is random, and without the second redirection that the reference has and nothing ever reaches.
fn comparable(world: &World) -> Vec<String> {
    let mut lines = shaping(world);
    lines.retain(|line| !line.contains("order 2: mirred") && !line.contains("index 2 ref"));
    lines
}

#[test]
fn they_are_those_of_the_reference() {
    for keys in [
        limits(),
        json!({"ingressRate": 1_000_000, "ingressBurst": 80_000}),
        json!({"egressRate": 999_999, "egressBurst": 123_457}),
        json!({"egressRate": 40_000_000_000_u64, "egressBurst": 4_000_000_000_u64}),
    ] {
        let world = World::new();
        let c1 = world.container("c1");
        let before = c1.add("bridge", &network());
        c1.add("bandwidth", &chained(keys.clone(), &before));
        let ours = comparable(&world);
        c1.del("bandwidth", &bandwidth(keys.clone()));
        assert_eq!(shaping(&world), [""; 0]);
        by_reference(&c1, "ADD", &chained(keys.clone(), &before));
        assert_eq!(comparable(&world), ours, "{keys}");
        c1.check("bandwidth", &bandwidth(keys.clone()), &before);
        c1.del("bandwidth", &bandwidth(keys));
        assert_eq!(shaping(&world), [""; 0], "our DEL after the reference's ADD");
    }
}

#[test]
fn the_reference_finds_ours() {
    let world = World::new();
    let c1 = world.container("c1");
    let (_, after) = limited(&c1, limits());
    by_reference(&c1, "CHECK", &chained(limits(), &after));
    by_reference(&c1, "DEL", &chained(limits(), &after));
    assert!(!world.links().contains(&ifb(&after)));
}

#[test]
fn latency_is_how_much_may_wait() {
    let world = World::new();
    let c1 = world.container("c1");
    for (keys, lat_us) in [(json!({}), 25_000), (json!({"latency": 100}), 100_000)] {
        let before = c1.add("bridge", &network());
        let after = c1.add("bandwidth", &chained(with(&limits(), keys), &before));
        for link in [host_end(&after), ifb(&after)] {
            assert_eq!(root(&world, &link)["lat"], lat_us, "{link}");
        }
        c1.del("bandwidth", &bandwidth(json!({})));
        c1.del("bridge", &network());
    }
}

#[test]
fn large_numbers_arrive() {
    let world = World::new();
    let c1 = world.container("c1");
    let keys = json!({"ingressRate": 80_000_000_000_u64, "ingressBurst": u32::MAX});
    let (_, after) = limited(&c1, keys.clone());
    assert_eq!(root(&world, &host_end(&after))["rate"], 10_000_000_000_u64);
    c1.check("bandwidth", &bandwidth(keys), &after);
}

#[test]
fn a_second_add_replaces_the_first() {
    let world = World::new();
    let c1 = world.container("c1");
    let (before, after) = limited(&c1, limits());
    let once = shaping(&world);
    assert_eq!(c1.add("bandwidth", &chained(limits(), &before))["ips"], after["ips"]);
    assert_eq!(shaping(&world), once);
    let keys = json!({"ingressRate": 8000, "ingressBurst": 80_000});
    c1.add("bandwidth", &chained(keys, &before));
    assert_eq!(root(&world, &host_end(&before))["rate"], 1000);
    assert!(!world.links().contains(&ifb(&after)));
}

#[test]
fn an_ifb_of_the_reference_for_another_interface_stays() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = c1.add("bridge", &network());
    by_reference(&c1, "ADD", &chained(limits(), &before));
    let there = comparable(&world);
    let second = |plugin, verb, config: &Value| {
        c1.call(plugin, verb, config).env("CNI_IFNAME", "eth1").run()
    };
    let result = second("bridge", "ADD", &network()).success();
    second("bandwidth", "ADD", &chained(limits(), &result)).success();
    second("bandwidth", "DEL", &chained(limits(), &result)).silence();
    second("bridge", "DEL", &network()).silence();
    assert_eq!(comparable(&world), there);
    c1.del("bandwidth", &bandwidth(limits()));
    assert_eq!(shaping(&world), [""; 0]);
}

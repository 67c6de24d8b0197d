//! Every request to the kernel fails once: an ADD that failed has left nothing, and after a DEL there is nothing.

use serde_json::json;

use super::{bandwidth, chained, limits, network, shaping};
use crate::faults::{Effect, for_every_fault};
use crate::world::{World, with};

const FAULT: &str = "CNIBOX_FAIL_KERNEL";

#[test]
fn an_add_that_fails_leaves_nothing() {
    for keys in
        [limits(), with(&limits(), json!({"shapedSubnets": ["10.0.0.0/8"], "fairQueue": true}))]
    {
        let world = World::new();
        let c1 = world.container("c1");
        let before = c1.add("bridge", &network());
        let config = chained(keys, &before);
        let failures = for_every_fault(|number| {
            let add = c1.call("bandwidth", "ADD", &config).env(FAULT, &number.to_string()).run();
            let effect = Effect::on(&add);
            if effect == Effect::Failure {
                assert!(add.error().msg.contains("cannot "), "request {number}");
                assert_eq!(shaping(&world), [""; 0], "request {number}");
            }
            c1.del("bandwidth", &config);
            assert_eq!(shaping(&world), [""; 0], "request {number}");
            effect
        });
        assert!(failures > 8, "{failures}");
    }
}

#[test]
fn a_second_add_that_fails_leaves_the_limits_of_the_first() {
    for keys in
        [limits(), with(&limits(), json!({"unshapedSubnets": ["10.0.0.0/8"], "fairQueue": true}))]
    {
        let world = World::new();
        let c1 = world.container("c1");
        let before = c1.add("bridge", &network());
        let config = chained(keys, &before);
        let after = c1.add("bandwidth", &config);
        let once = shaping(&world);
        let failures = for_every_fault(|number| {
            let add = c1.call("bandwidth", "ADD", &config).env(FAULT, &number.to_string()).run();
            let effect = Effect::on(&add);
            if effect != Effect::Failure {
                assert_eq!(add.success(), after, "request {number}");
            }
            assert_eq!(shaping(&world), once, "request {number}");
            effect
        });
        assert!(failures > 8, "{failures}");
    }
}

#[test]
fn a_del_that_fails_is_made_good_by_the_next() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = c1.add("bridge", &network());
    let config = chained(limits(), &before);
    let failures = for_every_fault(|number| {
        c1.add("bandwidth", &config);
        let del = c1.call("bandwidth", "DEL", &config).env(FAULT, &number.to_string()).run();
        let effect = Effect::on(&del);
        c1.del("bandwidth", &bandwidth(limits()));
        assert_eq!(shaping(&world), [""; 0], "request {number}");
        effect
    });
    assert!(failures > 3, "{failures}");
}

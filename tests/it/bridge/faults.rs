//! Requests that fail where the table of all plugins does not look.

use serde_json::json;

use super::layer2;
use crate::faults::{Effect, for_every_fault};
use crate::world::{World, with};

#[test]
fn a_bridge_that_a_failing_del_left_is_removed_by_the_next() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = with(&layer2(), json!({"removeUnused": true}));
    let failures = for_every_fault(|number| {
        c1.add("bridge", &config);
        let del = c1.call("bridge", "DEL", &config);
        let outcome = del.env("CNIBOX_FAIL_KERNEL", &number.to_string()).run();
        let effect = Effect::on(&outcome);
        if effect == Effect::Failure {
            c1.del("bridge", &config);
        }
        let links = world.links();
        assert!(!links.contains(&"cni0".to_owned()), "request {number}: {}", outcome.report());
        effect
    });
    assert!(failures > 3, "{failures}");
}

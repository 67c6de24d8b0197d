//! Configurations that cannot be meant: code 7 (6 for another type) with the name of the key, before anything is made.

use serde_json::json;

use super::dual_stack_with;
use crate::world::{World, lan};

#[test]
fn invalid_values_are_named() {
    let world = World::new();
    let _outside = lan(&world);
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]);
    for (keys, named) in [
        (json!({"mode": "source"}), "unknown macvlan mode \"source\""),
        (json!({"mode": "Bridge"}), "mode"),
        (json!({"mtu": 1501}), "invalid MTU 1501, must be [0, master MTU(1500)]"),
        (json!({"mtu": -1}), "invalid MTU -1, must be [0, master MTU(1500)]"),
        (json!({"mtu": 5_000_000_000_u64}), "invalid MTU 5000000000"),
        (json!({"mac": "nonsense"}), "mac"),
        (json!({"mac": "00:00:00:00:00:00"}), "mac"),
        (json!({"mac": "01:00:5e:00:00:01"}), "mac"),
        (json!({"runtimeConfig": {"mac": "nonsense"}}), "invalid args nonsense for MAC addr"),
        (json!({"master": "x".repeat(128)}), "master"),
        (json!({"master": "a/b"}), "master"),
    ] {
        let config = dual_stack_with(keys);
        c1.call("macvlan", "ADD", &config).run().fails(7, &[named]);
    }
    for (keys, named) in [
        (json!({"mode": 4}), "mode"),
        (json!({"mtu": "1400"}), "mtu"),
        (json!({"bcqueuelen": -1}), "bcqueuelen"),
        (json!({"linkInContainer": "yes"}), "linkInContainer"),
        (json!({"master": 7}), "master"),
    ] {
        c1.call("macvlan", "ADD", &dual_stack_with(keys)).run().fails(6, &[named]);
    }
    before.assert_same(&world.state_with(&[&c1]), "after refused ADDs");
}

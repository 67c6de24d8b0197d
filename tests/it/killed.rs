//! Every plugin is killed at each system call that changes something. The next DEL leaves nothing.

use std::cell::RefCell;

use serde_json::Value;

use crate::contract::{Scene, for_every_plugin};
use crate::world::at_every_change;

/// A killed call of this verb, then a DEL.
fn sweep(scene: &Scene<'_>, verb: &str) {
    scene.prime();
    let before = scene.state();
    let config = RefCell::new(Value::Null);
    let call = || scene.container.call(scene.plugin(), verb, &config.borrow());
    let prepare = || {
        let begun = scene.begin();
        if verb == "DEL" {
            scene.add(&begun);
        }
        config.replace(begun);
    };
    let clean_up = |point: &str| {
        scene.del(&config.borrow());
        scene.end();
        before.assert_same(&scene.state(), &format!("{verb} killed at {point}, then DEL"));
    };
    let killed = at_every_change(scene.world, call, prepare, clean_up);
    let changes_nothing = verb == "DEL" && ["static", "loopback"].contains(&scene.plugin());
    assert!(killed > 0 || changes_nothing, "{verb} was never killed");
}

#[test]
fn an_add_that_is_killed_leaves_nothing_that_del_does_not_find() {
    for_every_plugin(&["1.1.0"], |scene| sweep(scene, "ADD"));
}

#[test]
fn a_del_that_is_killed_is_finished_by_the_next() {
    for_every_plugin(&["1.1.0"], |scene| sweep(scene, "DEL"));
}

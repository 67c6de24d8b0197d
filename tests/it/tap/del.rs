//! DEL and GC.

use serde_json::json;

use super::{config, plain};
use crate::world::{Container, World, at_every_system_call, with};

type Happening = fn(&Container<'_>);

const HAPPENINGS: [(&str, Happening); 2] = [
    ("the interface is gone", |c| {
        c.exec(["ip", "link", "del", "eth0"]);
        c.del("tap", &config());
    }),
    ("the configuration has changed", |c| {
        let keys = json!({"mtu": -5, "mac": "x", "bridge": "gone0", "cniVersion": "0.2.0"});
        c.del("tap", &with(&config(), keys));
    }),
];

#[test]
fn del_frees_everything_whatever_happened() {
    for (what, happening) in HAPPENINGS {
        let world = World::new();
        let c1 = world.container("c1");
        let before = world.state().apart_from("", "vm");
        c1.add("tap", &config());
        happening(&c1);
        before.assert_same(&world.state().apart_from("", "vm"), what);
        c1.call("tap", "DEL", &config()).run().silence();
    }
}

#[test]
fn an_interface_of_another_kind_stays() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.exec(["ip", "link", "add", "eth0", "type", "bridge"]);
    let before = world.state_with(&[&c1]);
    c1.del("tap", &plain());
    before.assert_same(&world.state_with(&[&c1]), "after DEL");
}

#[test]
fn gc_releases_addresses_of_what_is_not_valid() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    c1.add("tap", &config());
    let result = c2.add("tap", &config());
    let valid = json!([{"containerID": "c2", "ifname": "eth0"}]);
    c1.destroy();
    let gc = with(&config(), json!({"cni.dev/valid-attachments": valid}));
    world.call("tap", "GC", &gc).run().silence();
    assert!(!world.state().has("file /var/lib/cni/networks/vm/10.6.0.2"));
    c2.check("tap", &config(), &result);
}

#[test]
fn an_add_that_is_killed_before_its_end_has_left_nothing() {
    let world = World::new();
    let c1 = world.container("c1");
    let call = || c1.call("tap", "ADD", &plain());
    let links = || c1.exec(["ip", "-d", "-o", "link"]);
    at_every_system_call(
        &world,
        call,
        || {},
        |point| {
            let left = links();
            // Either all has been done, or nothing.
            let is_whole = left.contains("persist on") && left.contains(",UP");
            assert!(left.lines().count() == 1 || is_whole, "{point}: {left}");
            c1.del("tap", &plain());
            assert_eq!(links().lines().count(), 1, "{point}");
        },
    );
}

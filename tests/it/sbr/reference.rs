//! Beside the Go plugin: the same rules and tables, but for what is better; each removes what the other made.

use serde_json::{Value, json};

use super::{call, container, result, routing, sbr};
use crate::parity::reference;
use crate::world::{PLUGIN_DIR, World, with};

fn config(result: &Value) -> Value {
    with(
        &sbr(json!({}), result),
        json!({"cniVersion": "1.0.0", "prevResult": {"cniVersion": "1.0.0"}}),
    )
}

/// One after the other on each line, so that they can be compared as sets.
fn lines(routing: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        routing.lines().map(|line| line.replace(" proto 203", "")).collect();
    lines.sort();
    lines
}

#[test]
fn both_do_the_same_but_for_what_is_better() {
    let theirs = reference();
    let done_by = |dir: &str| {
        let world = World::new();
        let c1 = container(&world);
        let result = call(&c1, "ADD", &config(&result(&c1))).of_directory(dir).run().success();
        (crate::world::without(&result, "dns"), lines(&routing(&c1)))
    };
    let ((their_result, theirs), (our_result, ours)) = (done_by(&theirs), done_by(PLUGIN_DIR));
    assert_eq!(their_result, our_result);
    let only = |these: &[String], those: &[String]| {
        these.iter().filter(|line| !those.contains(line)).cloned().collect::<Vec<_>>()
    };
    // A table for IPv4 has no use for routes of IPv6, nor the other way round; and none for a second default route.
    assert_eq!(
        only(&theirs, &ours),
        [
            "10.8.0.0/16 dev net1 table 101 scope link",
            "default via 10.1.0.1 dev net1 table 100 metric 10",
            "fd00:1::/64 dev net1 table 100 proto kernel metric 256 pref medium",
            "fe80::/64 dev net1 table 100 proto kernel metric 256 pref medium",
        ]
    );
    assert_eq!(
        only(&ours, &theirs),
        [
            // Its gateway is a neighbour of the interface.
            "fd08::/48 via fe80::1 dev net1 table 101 metric 1024 pref medium",
            // Without it the interface's neighbours could not be talked to.
            "fe80::/64 dev net1 proto kernel metric 256 pref medium",
        ]
    );
}

#[test]
fn each_removes_what_the_other_added() {
    let theirs = reference();
    for (adder, remover) in [(theirs.as_str(), PLUGIN_DIR), (PLUGIN_DIR, theirs.as_str())] {
        let world = World::new();
        let c1 = container(&world);
        let config = config(&result(&c1));
        call(&c1, "ADD", &config).of_directory(adder).run().success();
        call(&c1, "CHECK", &config).run().silence();
        call(&c1, "DEL", &config).of_directory(remover).run().silence();
        assert!(
            !routing(&c1).contains("from"),
            "ADD by {adder}, DEL by {remover}: {}",
            routing(&c1)
        );
    }
}

//! A failing request to the kernel during an ADD.

use super::add::with_a_later_address;
use super::{call, container, routing};
use crate::faults::{Effect, for_every_fault};
use crate::world::World;

const FAULT: &str = "CNIBOX_FAIL_KERNEL";

/// Each step of the later ADD fails once.
#[test]
fn a_later_add_that_fails_takes_nothing_of_the_first() {
    let world = World::new();
    let c1 = container(&world);
    let (before, config) = with_a_later_address(&c1);
    let failures = for_every_fault(|number| {
        let add = call(&c1, "ADD", &config).env(FAULT, &number.to_string()).run();
        let effect = Effect::on(&add);
        if effect == Effect::Failure {
            assert_eq!(routing(&c1), before, "request {number}");
        }
        effect
    });
    assert!(failures > 2, "{failures}");
}

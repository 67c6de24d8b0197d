//! Many at once, as after a reboot of a node.

use std::collections::BTreeSet;

use super::{address, dual_stack};
use crate::world::{Container, Outcome, World, all_at_once};

const MANY: usize = 64;

fn containers(world: &World) -> Vec<Container<'_>> {
    (0..MANY).map(|number| world.container(&format!("c{number}"))).collect()
}

#[test]
fn sixty_four_adds_at_once_give_working_links_and_sixty_four_dels_leave_nothing() {
    let world = World::new();
    let containers = containers(&world);
    let before = world.state().apart_from("cni0", "dual");

    let adds = all_at_once(containers.iter().map(|c| c.call("bridge", "ADD", &dual_stack())));
    let results: Vec<_> = adds.into_iter().map(Outcome::success).collect();
    for index in [0, 1] {
        let different: BTreeSet<_> = results.iter().map(|result| address(result, index)).collect();
        assert_eq!(different.len(), MANY);
    }
    assert_eq!(world.ports_of("cni0").len(), MANY);
    for gateway in ["10.1.0.1", "fd00:1::1"] {
        let pings = all_at_once(containers.iter().map(|c| c.pinging(gateway)));
        pings.into_iter().for_each(|ping| drop(ping.output()));
    }

    let attached = containers.iter().zip(&results);
    let checks =
        all_at_once(attached.map(|(c, result)| c.checking("bridge", &dual_stack(), result)));
    checks.into_iter().for_each(Outcome::silence);

    let dels = all_at_once(containers.iter().map(|c| c.call("bridge", "DEL", &dual_stack())));
    dels.into_iter().for_each(Outcome::silence);
    before.assert_same(&world.state().apart_from("cni0", "dual"), "after all DELs");
}

#[test]
fn adds_and_dels_at_once_do_not_disturb_one_another() {
    let world = World::new();
    let containers = containers(&world);
    let (old, new) = containers.split_at(MANY / 2);
    for container in old {
        container.add("bridge", &dual_stack());
    }
    let mut calls = Vec::new();
    for (old, new) in old.iter().zip(new) {
        calls.push(old.call("bridge", "DEL", &dual_stack()));
        calls.push(new.call("bridge", "ADD", &dual_stack()));
    }
    for outcome in all_at_once(calls) {
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
    assert_eq!(world.ports_of("cni0").len(), MANY / 2);
    new[0].ping("10.1.0.1");
}

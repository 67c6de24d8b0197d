//! Every request to the kernel fails once: a failing ADD leaves nothing, and after a DEL nothing is left at all.

use serde_json::{Value, json};

use super::{chained, elements, portmap, publish, result, tcp, udp};
use crate::world::{Container, World, with};

/// No call makes more requests than this; so many successes one after the other mean that there are no more.
const REQUESTS_MAX: u32 = 200;
const SUCCESSES_MIN: u32 = 12;

fn config() -> Value {
    let on = with(&tcp(8081, 81), json!({"hostIP": "192.0.2.1"}));
    with(&portmap(json!([tcp(8080, 80), udp(8053, 53), on])), json!({"conditionsV6": ["-i", "lo"]}))
}

fn for_every_fault(mut fails: impl FnMut(&str) -> bool) {
    let (mut successes, mut failures) = (0, 0);
    for number in 1..=REQUESTS_MAX {
        let failed = fails(&number.to_string());
        successes = if failed { 0 } else { successes + 1 };
        failures += u32::from(failed);
        if successes == SUCCESSES_MIN {
            assert!(failures > 2, "the switch does nothing");
            return;
        }
    }
    panic!("there are still failures at request {REQUESTS_MAX}");
}

fn is_good_error(outcome: crate::world::Outcome) {
    let report = outcome.report();
    let error = outcome.error();
    assert!(error.msg.contains("cannot ") && !error.msg.contains('\n'), "{report}");
}

fn call(container: &Container<'_>, verb: &str, fault: &str) -> crate::world::Outcome {
    let config = chained(&config(), &result(1, &container.netns()));
    let config = with(&config, json!({"cni.dev/valid-attachments": []}));
    container.call("portmap", verb, &config).env("CNIBOX_FAIL_KERNEL", fault).run()
}

#[test]
fn a_failing_add_leaves_nothing() {
    let world = World::new();
    let c1 = world.container("c1");
    for is_cold in [true, false] {
        for_every_fault(|number| {
            if is_cold {
                world.host(["nft", "flush", "ruleset"]);
            }
            let outcome = call(&c1, "ADD", number);
            let failed = outcome.status != 0;
            if failed {
                is_good_error(outcome);
                assert_eq!(elements(&world), [""; 0], "request {number}");
            }
            c1.del("portmap", &config());
            assert_eq!(elements(&world), [""; 0], "request {number}");
            failed
        });
    }
}

#[test]
fn after_any_failure_a_del_cleans_up() {
    let world = World::new();
    let c1 = world.container("c1");
    for verb in ["DEL", "GC", "CHECK"] {
        for_every_fault(|number| {
            publish(&c1, 1, &config());
            let outcome = call(&c1, verb, number);
            let failed = outcome.status != 0;
            if failed {
                is_good_error(outcome);
            }
            c1.del("portmap", &config());
            assert_eq!(elements(&world), [""; 0], "{verb}, request {number}");
            failed
        });
    }
}

//! Every request to the kernel fails once, in two worlds that `faults` does not have: with an isolated bridge and a
//! FORWARD policy of DROP, and with firewalld. A failed ADD leaves no rule and no source, and neither does a DEL.

use serde_json::json;

use super::firewalld::{sources, start_firewalld};
use super::{attach, bridge, drop_forwarded, firewall, forget, rules};
use crate::faults::{Effect, for_every_fault};
use crate::world::World;
use crate::world::call::Outcome;

const FAULT: &str = "CNIBOX_FAIL_KERNEL";

#[test]
fn a_failed_add_leaves_no_rule() {
    let world = World::new();
    let c1 = world.container("c1");
    drop_forwarded(&world);
    let keys = json!({"ingressPolicy": "isolated"});
    let result = attach(&c1, &bridge("net", 1), keys.clone());
    forget(&c1, "net");
    let before = rules(&world);
    let config = firewall("net", keys, &result);
    for verb in ["ADD", "DEL", "CHECK", "STATUS"] {
        let failures = for_every_fault(|number| {
            if verb != "ADD" {
                c1.add("firewall", &config);
            }
            let outcome = c1.call("firewall", verb, &config).env(FAULT, &number.to_string()).run();
            let effect = effect_of(outcome);
            if effect == Effect::Failure && verb == "ADD" {
                assert_eq!(rules(&world), before, "ADD {number}");
            }
            forget(&c1, "net");
            assert_eq!(rules(&world), before, "{verb} {number}");
            effect
        });
        assert!(failures > 0, "{verb}");
    }
}

/// The container lives, and its packets are accepted.
#[test]
fn a_later_add_that_fails_leaves_what_the_first_made() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    for keys in [
        json!({"backend": "iptables", "ingressPolicy": "isolated"}),
        json!({"backend": "firewalld", "ingressPolicy": "same-bridge"}),
    ] {
        let config = firewall("net", keys, &result);
        c1.add("firewall", &config);
        let state = || (rules(&world), sources(&world, "trusted"));
        let before = state();
        let failures = for_every_fault(|number| {
            let add = c1.call("firewall", "ADD", &config).env(FAULT, &number.to_string()).run();
            let effect = effect_of(add);
            assert_eq!(state(), before, "ADD {number}: {config}");
            effect
        });
        assert!(failures > 2, "{failures}: {config}");
        forget(&c1, "net");
    }
}

#[test]
fn a_failing_request_to_firewalld_leaves_no_source() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    for keys in [json!({}), json!({"backend": "firewalld"})] {
        let config = firewall("net", keys, &result);
        c1.add("firewall", &config);
        forget(&c1, "net");
        let is_clean = || {
            sources(&world, "trusted") == [false, false] && !rules(&world).contains("net c1 eth0")
        };
        for verb in ["ADD", "DEL", "CHECK", "STATUS"] {
            let failures = for_every_fault(|number| {
                if verb != "ADD" {
                    c1.add("firewall", &config);
                }
                let call = c1.call("firewall", verb, &config);
                let effect = effect_of(call.env(FAULT, &number.to_string()).run());
                let is_failed_add = effect == Effect::Failure && verb == "ADD";
                assert!(!is_failed_add || is_clean(), "ADD {number}: {config}");
                // Without the result, only the records name the sources.
                forget(&c1, "net");
                assert!(is_clean(), "{verb} {number}: {config}");
                effect
            });
            assert!(failures > 0, "{verb}: {config}");
        }
    }
}

/// An error says on one line what the plugin cannot do, or what CHECK misses: without its answer firewalld counts as not
/// running, so CHECK looks for the rules of iptables.
fn effect_of(outcome: Outcome) -> Effect {
    let effect = Effect::on(&outcome);
    if effect == Effect::Failure {
        let report = outcome.report();
        let error = outcome.error();
        let said = format!("{}: {}", error.msg, error.details);
        let is_good = said.contains("cannot ") || said.contains("is missing from");
        assert!(is_good && !said.contains('\n'), "{report}");
    }
    effect
}

//! Every request to the kernel fails once: a failing ADD leaves nothing, and after a DEL nothing is left at all.

use serde_json::{Value, json};

use super::{chained, elements, portmap, publish, result, tcp, udp};
use crate::faults::{Effect, for_every_fault};
use crate::world::{Container, Outcome, World, with};

/// No call makes more requests than this.
const REQUESTS_MAX: u32 = 200;

fn config() -> Value {
    let on = with(&tcp(8081, 81), json!({"hostIP": "192.0.2.1"}));
    with(&portmap(json!([tcp(8080, 80), udp(8053, 53), on])), json!({"conditionsV6": ["-i", "lo"]}))
}

/// A failure has a good error.
fn effect_of(outcome: Outcome) -> Effect {
    let effect = Effect::on(&outcome);
    if effect == Effect::Failure {
        let report = outcome.report();
        let error = outcome.error();
        assert!(error.msg.contains("cannot ") && !error.msg.contains('\n'), "{report}");
    }
    effect
}

fn call(container: &Container<'_>, verb: &str, fault: u32) -> Outcome {
    let config = chained(&config(), &result(1, &container.netns()));
    let config = with(&config, json!({"cni.dev/valid-attachments": []}));
    container.call("portmap", verb, &config).env("CNIBOX_FAIL_KERNEL", &fault.to_string()).run()
}

#[test]
fn a_failing_add_leaves_nothing() {
    let world = World::new();
    let c1 = world.container("c1");
    for is_cold in [true, false] {
        let failures = for_every_fault(|number| {
            if is_cold {
                world.host(["nft", "flush", "ruleset"]);
            }
            let effect = effect_of(call(&c1, "ADD", number));
            if effect == Effect::Failure {
                assert_eq!(elements(&world), [""; 0], "request {number}");
            }
            c1.del("portmap", &config());
            assert_eq!(elements(&world), [""; 0], "request {number}");
            effect
        });
        assert!((3..REQUESTS_MAX).contains(&failures), "{failures}");
    }
}

/// The container lives, and its ports answer.
#[test]
fn a_later_add_that_fails_leaves_the_ports_of_the_first() {
    let world = World::new();
    let c1 = world.container("c1");
    let link =
        "ip link add cni0 type bridge; ip link set cni0 up; ip route add 10.1.0.0/16 dev cni0";
    world.host(["sh", "-ec", link]);
    publish(&c1, 1, &config());
    let before = elements(&world);
    for fault in ["CNIBOX_FAIL_KERNEL", "CNIBOX_FAIL_FILE"] {
        let config = chained(&config(), &result(1, &c1.netns()));
        let failures = for_every_fault(|number| {
            let add = c1.call("portmap", "ADD", &config).env(fault, &number.to_string()).run();
            let effect = effect_of(add);
            assert_eq!(elements(&world), before, "{fault} {number}");
            effect
        });
        assert!(fault == "CNIBOX_FAIL_FILE" || failures > 3, "{failures}");
    }
    // Settings of the kernel that cannot be changed: `route_localnet` is the last step.
    world.host(["sysctl", "-qw", "net.ipv4.conf.cni0.route_localnet=0"]);
    world.host(["mount", "-o", "bind,ro", "/proc/sys", "/proc/sys"]);
    let add = c1.call("portmap", "ADD", &chained(&config(), &result(1, &c1.netns()))).run();
    assert!(effect_of(add) == Effect::Failure, "/proc/sys is read-only");
    assert_eq!(elements(&world), before);
}

#[test]
fn after_any_failure_a_del_cleans_up() {
    let world = World::new();
    let c1 = world.container("c1");
    for verb in ["DEL", "GC", "CHECK"] {
        let failures = for_every_fault(|number| {
            publish(&c1, 1, &config());
            let effect = effect_of(call(&c1, verb, number));
            c1.del("portmap", &config());
            assert_eq!(elements(&world), [""; 0], "{verb}, request {number}");
            effect
        });
        assert!((3..REQUESTS_MAX).contains(&failures), "{failures}");
    }
}

/// A transaction that is longer than the send buffer is made in parts, so a failure can leave some of them.
#[test]
fn a_large_add_that_fails_in_between_leaves_nothing_and_a_del_removes_the_rest() {
    let world = World::new();
    let c1 = world.container("c1");
    let ports: Vec<Value> = (1..=150).map(|port| tcp(8000 + port, port)).collect();
    let config = chained(&portmap(json!(ports)), &result(1, &c1.netns()));
    let call = |verb: &str, config: &Value| {
        c1.call("portmap", verb, config).env("CNIBOX_LIMIT_SEND", "4000")
    };
    let without_ports = portmap(json!(null));
    let mut partial = 0;
    let failures = for_every_fault(|number| {
        let fault = number.to_string();
        let effect = effect_of(call("ADD", &config).env("CNIBOX_FAIL_KERNEL", &fault).run());
        if effect == Effect::Failure {
            assert_eq!(elements(&world), [""; 0], "request {number}");
        }
        call("DEL", &without_ports).run().silence();
        assert_eq!(elements(&world), [""; 0], "request {number}");
        effect
    });
    assert!((10..REQUESTS_MAX).contains(&failures), "{failures}");
    let failures = for_every_fault(|number| {
        call("ADD", &config).run().success();
        let all = elements(&world).len();
        let fault = number.to_string();
        let effect = effect_of(call("DEL", &config).env("CNIBOX_FAIL_KERNEL", &fault).run());
        partial += u32::from(!elements(&world).is_empty() && elements(&world).len() < all);
        call("DEL", &without_ports).run().silence();
        assert_eq!(elements(&world), [""; 0], "request {number}");
        effect
    });
    assert!((5..REQUESTS_MAX).contains(&failures) && partial > 0, "{failures} {partial}");
}

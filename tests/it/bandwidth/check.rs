//! CHECK finds each change, and says what it is.

use serde_json::json;

use super::{bandwidth, host_end, ifb, limited, limits};
use crate::world::{World, with};

#[test]
fn every_change_is_found() {
    let cases = [
        ("tc qdisc del dev END root", "END has no queueing discipline"),
        (
            "tc qdisc change dev END root handle 1: tbf rate 20mbit burst 250001 latency 25ms",
            "END has another",
        ),
        (
            "tc qdisc change dev END root handle 1: tbf rate 21mbit burst 250000 latency 25ms",
            "END has another",
        ),
        (
            "tc qdisc change dev END root handle 1: tbf rate 20mbit burst 250000 latency 26ms",
            "END has another",
        ),
        (
            "tc qdisc replace dev END root handle 9: pfifo",
            "END has another queueing discipline than asked for: pfifo",
        ),
        ("tc qdisc del dev IFB root", "IFB has"),
        ("tc qdisc del dev END ingress", "what END receives is not sent on to IFB"),
        ("tc filter del dev END ingress", "what END receives is not sent on to IFB"),
        ("ip link set IFB down", "IFB is down"),
        ("ip link del IFB", "the ifb of eth0 not found"),
    ];
    for (change, expected) in cases {
        let world = World::new();
        let c1 = world.container("c1");
        let (_, after) = limited(&c1, limits());
        c1.check("bandwidth", &bandwidth(limits()), &after);
        let (end, ifb) = (host_end(&after), ifb(&after));
        let named = |text: &str| text.replace("END", &end).replace("IFB", &ifb);
        world.host(["sh", "-c", &named(change)]);
        c1.checking("bandwidth", &bandwidth(limits()), &after)
            .run()
            .fails(999, &[&named(expected)]);
    }
}

#[test]
fn every_change_to_a_part_is_found() {
    let keys = with(&limits(), json!({"unshapedSubnets": ["10.2.0.0/16", "fd02::/33"]}));
    let cases = [
        ("tc class change dev END parent 1: classid 1:30 htb rate 21mbit", "END has no class"),
        ("tc filter del dev END parent 1: prio 16", "END has no filter for 10.2.0.0/16"),
        ("tc filter del dev IFB parent 1: prio 15", "IFB has no filter for fd02::/33"),
    ];
    for (change, expected) in cases {
        let world = World::new();
        let c1 = world.container("c1");
        let (_, after) = limited(&c1, keys.clone());
        c1.check("bandwidth", &bandwidth(keys.clone()), &after);
        let (end, ifb) = (host_end(&after), ifb(&after));
        let named = |text: &str| text.replace("END", &end).replace("IFB", &ifb);
        world.host(["sh", "-c", &named(change)]);
        c1.checking("bandwidth", &bandwidth(keys.clone()), &after)
            .run()
            .fails(999, &[&named(expected)]);
    }
}

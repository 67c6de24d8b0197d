//! CHECK finds each change, and says what it is.

use serde_json::{Value, json};

use super::{bandwidth, host_end, ifb, limited, limits};
use crate::world::{World, with};

/// After each change, CHECK of the limits of `keys` says what is expected.
fn finds(keys: &Value, cases: &[(&str, &str)]) {
    for (change, expected) in cases {
        let world = World::new();
        let c1 = world.container("c1");
        let (_, after) = limited(&c1, keys.clone());
        let config = bandwidth(keys.clone());
        c1.check("bandwidth", &config, &after);
        let (end, ifb) = (host_end(&after), ifb(&after));
        let named = |text: &str| text.replace("END", &end).replace("IFB", &ifb);
        world.host(["sh", "-ec", &named(change)]);
        c1.checking("bandwidth", &config, &after).run().fails(999, &[&named(expected)]);
    }
}

#[test]
fn every_change_is_found() {
    finds(
        &limits(),
        &[
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
                "END has another queueing discipline than configured: pfifo",
            ),
            ("tc qdisc add dev END parent 1:1 pfifo", "END has another queue"),
            ("tc qdisc del dev IFB root", "IFB has"),
            ("tc qdisc del dev END ingress", NOT_REDIRECTED),
            ("tc filter del dev END ingress", NOT_REDIRECTED),
            (
                "tc filter del dev END ingress
                tc filter add dev END ingress prio 1 protocol ip u32 match u32 0 0 \
                    action mirred egress redirect dev IFB",
                NOT_REDIRECTED,
            ),
            (
                "tc filter del dev END ingress
                tc filter add dev END ingress prio 1 protocol all u32 match u32 1 1 \
                    action mirred egress redirect dev IFB",
                NOT_REDIRECTED,
            ),
            ("ip link set IFB down", "IFB is down"),
            ("ip link del IFB", "ifb of interface eth0 not found"),
        ],
    );
}

const NOT_REDIRECTED: &str = "interface END does not redirect its traffic to IFB";

#[test]
fn every_change_to_a_part_is_found() {
    let another_queue = "END has another queue";
    finds(
        &with(&limits(), json!({"unshapedSubnets": ["10.2.0.0/16", "fd02::/33"]})),
        &[
            ("tc class change dev END parent 1: classid 1:30 htb rate 21mbit", "END has no class"),
            (
                "tc class change dev END parent 1: classid 1:30 htb rate 20mbit ceil 21mbit \
                    burst 250000 cburst 250000",
                "END has no class",
            ),
            (
                "tc class change dev END parent 1: classid 1:30 htb rate 20mbit \
                    burst 250000 cburst 260000",
                "END has no class",
            ),
            ("tc filter del dev END parent 1: prio 16", "END has no filter for 10.2.0.0/16"),
            (
                "tc filter del dev END parent 1: prio 16
                tc filter add dev END parent 1: prio 16 protocol ip u32 match ip src 10.2.0.0/17 flowid 1:0",
                "END has no filter for 10.2.0.0/16",
            ),
            ("tc filter del dev IFB parent 1: prio 15", "IFB has no filter for fd02::/33"),
            ("tc qdisc replace dev END parent 1:30 handle 2: bfifo limit 1000", another_queue),
            ("tc qdisc del dev END parent 1:30", another_queue),
            (
                "tc qdisc del dev END root; tc qdisc add dev END root handle 1: htb default 31",
                "END has another queueing discipline than configured: htb",
            ),
        ],
    );
}

#[test]
fn a_fair_queue_that_is_gone_is_missed() {
    let another_queue = "END has another queue";
    for (part, class) in [(json!({}), "1:1"), (json!({"shapedSubnets": ["10.2.0.0/16"]}), "1:30")] {
        let keys = with(&with(&limits(), json!({"fairQueue": true})), part);
        let gone = format!("tc qdisc del dev END parent {class}");
        let other = format!("tc qdisc replace dev END parent {class} handle 9: pfifo");
        finds(&keys, &[(&gone, another_queue), (&other, another_queue)]);
    }
}

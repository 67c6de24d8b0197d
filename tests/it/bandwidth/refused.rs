//! Invalid and impossible configurations are refused before any change.

use serde_json::json;

use super::{bandwidth, chained, limits, network, shaping};
use crate::world::{World, with};

#[test]
fn invalid_keys_are_refused() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = c1.add("bridge", &network());
    for (keys, code, text) in [
        (json!({"ingressRate": 8000}), 7, "if rate is set, burst must also be set: ingressBurst"),
        (json!({"ingressBurst": 8000}), 7, "if burst is set, rate must also be set: ingressRate"),
        (
            json!({"egressRate": 8000, "egressBurst": 0}),
            7,
            "if rate is set, burst must also be set: egressBurst",
        ),
        (
            json!({"egressRate": 7, "egressBurst": 8000}),
            7,
            "cannot limit to fewer than 8 bits per second: egressRate",
        ),
        (
            json!({"ingressRate": 8, "ingressBurst": 34_359_738_368_u64}),
            7,
            "burst cannot be more than 4GB",
        ),
        (json!({"ingressRate": -1, "ingressBurst": 8}), 6, "ingressRate"),
        (json!({"egressRate": "8", "egressBurst": 8}), 6, "egressRate"),
        (json!({"latency": -1}), 6, "latency"),
        (with(&limits(), json!({"shapedSubnets": ["10.0.0.0/33"]})), 7, "shapedSubnets"),
        (
            with(
                &limits(),
                json!({"shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": ["10.0.0.0/8"]}),
            ),
            7,
            "cannot be both specified",
        ),
    ] {
        let config = with(&chained(keys.clone(), &before), json!({"cniVersion": "1.1.0"}));
        for verb in ["ADD", "CHECK", "STATUS"] {
            c1.call("bandwidth", verb, &config).run().fails(code, &[text]);
        }
        assert_eq!(shaping(&world), [""; 0], "{keys}");
        c1.del("bandwidth", &bandwidth(keys));
    }
}

#[test]
fn an_interface_that_is_no_veth_pair_or_not_in_the_result_is_refused() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.call("bandwidth", "ADD", &bandwidth(limits())).run().fails(7, &["prevResult"]);
    c1.call("bandwidth", "ADD", &bandwidth(json!({}))).run().fails(7, &["prevResult"]);
    let before = c1.add("bridge", &network());
    let mut unknown = before.clone();
    unknown["interfaces"][1]["name"] = "veth0".into();
    c1.call("bandwidth", "ADD", &chained(limits(), &unknown))
        .run()
        .fails(7, &["prevResult has no interface"]);
    c1.del("bridge", &network());
    c1.call("bandwidth", "ADD", &chained(limits(), &before))
        .run()
        .fails(999, &["no veth peer of container interface found in host ns", "interface eth0"]);
    c1.exec(["ip", "link", "add", "eth0", "type", "bridge"]);
    c1.call("bandwidth", "ADD", &chained(limits(), &before))
        .run()
        .fails(999, &["no veth peer of container interface found in host ns", "interface eth0"]);
    assert_eq!(shaping(&world), [""; 0]);
}

#[test]
fn a_discipline_of_another_program_stays() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = c1.add("bridge", &network());
    let end = super::host_end(&before);
    world.host(["tc", "qdisc", "add", "dev", &end, "root", "handle", "7:", "pfifo", "limit", "5"]);
    let there = shaping(&world);
    c1.call("bandwidth", "ADD", &chained(limits(), &before))
        .run()
        .fails(999, &["cannot limit the rate", &end]);
    assert_eq!(shaping(&world), there);
    c1.del("bandwidth", &bandwidth(limits()));
    assert_eq!(shaping(&world), there);
}

#[test]
fn filters_of_another_program_on_ingress_stay() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = c1.add("bridge", &network());
    let end = super::host_end(&before);
    world.host(["tc", "qdisc", "add", "dev", &end, "clsact"]);
    let script = format!(
        "tc filter add dev {end} ingress u32 match u32 0 0 action mirred egress mirror dev lo"
    );
    world.host(["sh", "-c", &script]);
    let there = shaping(&world);
    c1.call("bandwidth", "ADD", &chained(limits(), &before))
        .run()
        .fails(999, &["cannot redirect", &end]);
    assert_eq!(shaping(&world), there);
    let only_in = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000});
    c1.add("bandwidth", &chained(only_in.clone(), &before));
    c1.del("bandwidth", &bandwidth(only_in));
    assert_eq!(shaping(&world), there);
}

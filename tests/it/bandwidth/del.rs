//! DEL in all its ways, and GC.

use serde_json::{Value, json};

use super::{bandwidth, chained, ifb, limited, limits, network, shaping};
use crate::world::{Container, World, with};

#[test]
fn a_del_leaves_nothing() {
    type Del = fn(&Container<'_>, &Value);
    let ways: [(&str, Del); 6] = [
        ("with everything", |c, result| c.del("bandwidth", &chained(limits(), result))),
        ("without a result", |c, _| c.del("bandwidth", &bandwidth(limits()))),
        ("with another configuration, which even is wrong", |c, _| {
            c.del("bandwidth", &bandwidth(json!({"ingressRate": 1, "latency": "x"})));
        }),
        ("when the pair is gone", |c, _| {
            c.exec(["ip", "link", "del", "eth0"]);
            c.del("bandwidth", &bandwidth(limits()));
        }),
        ("without a namespace, after the pair", |c, _| {
            c.del("bridge", &network());
            let call = c.call("bandwidth", "DEL", &bandwidth(limits()));
            call.without("CNI_NETNS").run().silence();
        }),
        ("with a namespace that is gone, after the pair", |c, _| {
            c.del("bridge", &network());
            let call = c.call("bandwidth", "DEL", &bandwidth(limits()));
            call.env("CNI_NETNS", "/run/netns/gone").run().silence();
        }),
    ];
    let world = World::new();
    let c1 = world.container("c1");
    for (way, del) in ways {
        let (_, after) = limited(&c1, limits());
        del(&c1, &after);
        assert_eq!(shaping(&world), [""; 0], "{way}");
        c1.del("bandwidth", &bandwidth(limits()));
        c1.del("bridge", &network());
    }
}

#[test]
fn gc_removes_the_ifbs_of_what_is_not_valid() {
    let world = World::new();
    let containers = ["c1", "c2", "c3", "c4"].map(|name| world.container(name));
    let ifbs = containers.each_ref().map(|container| ifb(&limited(container, limits()).1));
    let gc = |network: &str, valid: Value| {
        let keys =
            json!({"cniVersion": "1.1.0", "name": network, "cni.dev/valid-attachments": valid});
        world.call("bandwidth", "GC", &with(&bandwidth(limits()), keys)).run().silence();
        ifbs.each_ref().map(|ifb| world.links().contains(ifb))
    };
    assert_eq!(gc("other", json!([])), [true; 4]);
    let first = json!([{"containerID": "c1", "ifname": "eth0"}]);
    assert_eq!(gc("net", first), [true, false, false, false]);
    assert_eq!(gc("net", json!([])), [false; 4]);
}

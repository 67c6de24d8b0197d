//! The results in every version, and the sources of the limits.

use serde_json::{Value, json};

use super::{bandwidth, chained, host_end, ifb, limited, limits, network, root, shaping};
use crate::world::{VERSIONS, World, with};

#[test]
fn the_ifb_is_added_in_the_versions_that_know_interfaces() {
    for version in VERSIONS {
        let world = World::new();
        let c1 = world.container("c1");
        let in_version = json!({"cniVersion": version});
        let before = c1.add("bridge", &with(&network(), in_version.clone()));
        let config = with(&chained(limits(), &before), in_version);
        let after = c1.add("bandwidth", &config);
        let link = world.links().into_iter().find(|link| link.starts_with("bwp")).unwrap();
        if version < "0.3.0" {
            assert_eq!(after, before, "{version}");
        } else {
            assert_eq!((after["ips"].clone(), ifb(&after)), (before["ips"].clone(), link));
            assert_eq!(after["interfaces"].as_array().unwrap().len(), 4);
            assert!(after["interfaces"][3].get("sandbox").is_none_or(|sandbox| sandbox == ""));
        }
        if version >= "0.4.0" {
            c1.check("bandwidth", &config, &after);
        }
        c1.del("bandwidth", &config);
        assert_eq!(shaping(&world), [""; 0], "{version}");
    }
}

#[test]
fn without_limits_nothing_happens() {
    let world = World::new();
    let c1 = world.container("c1");
    let none = json!({"ingressRate": 0, "ingressBurst": 0, "egressRate": null});
    for keys in [json!({}), none, json!({"runtimeConfig": {"bandwidth": {}}})] {
        let (before, after) = limited(&c1, keys.clone());
        assert_eq!(after, before);
        assert_eq!(shaping(&world), [""; 0]);
        c1.check("bandwidth", &bandwidth(keys.clone()), &after);
        c1.del("bandwidth", &bandwidth(keys));
        c1.del("bridge", &network());
    }
}

#[test]
fn an_add_without_limits_ends_those_of_an_earlier_one() {
    let world = World::new();
    let c1 = world.container("c1");
    let rates =
        json!({"ingressRate": 8000, "ingressBurst": 8000, "egressRate": 8000, "egressBurst": 8000});
    let (before, _) = limited(&c1, rates);
    assert_ne!(shaping(&world), [""; 0]);
    let config = with(&bandwidth(json!({})), json!({"prevResult": before}));
    assert_eq!(c1.add("bandwidth", &config), before);
    assert_eq!(shaping(&world), [""; 0]);
    assert!(!world.links().iter().any(|link| link.starts_with("bwp")), "{:?}", world.links());
}

#[test]
fn limits_of_the_runtime_are_used_if_the_configuration_has_none() {
    let world = World::new();
    let c1 = world.container("c1");
    let by_runtime = json!({"runtimeConfig": {"bandwidth": {
        "IngressRate": 16000, "ingressBurst": u32::MAX, "egressRate": 0, "egressBurst": 0,
    }}});
    for (keys, rate) in [
        (by_runtime.clone(), 2000),
        (with(&by_runtime, json!({"ingressRate": 8000, "ingressBurst": 8000})), 1000),
    ] {
        let (before, after) = limited(&c1, keys);
        assert_eq!(after, before, "nothing is sent through an ifb");
        assert_eq!(root(&world, &host_end(&after))["rate"], rate);
        c1.del("bandwidth", &bandwidth(json!({})));
        c1.del("bridge", &network());
    }
}

#[test]
fn two_interfaces_of_a_container_have_an_ifb_each() {
    let world = World::new();
    let c1 = world.container("c1");
    let mut names = Vec::new();
    for ifname in ["eth0", "eth1"] {
        let call =
            |plugin, config: &Value| c1.call(plugin, "ADD", config).env("CNI_IFNAME", ifname);
        let before = call("bridge", &network()).run().success();
        names.push(ifb(&call("bandwidth", &chained(limits(), &before)).run().success()));
    }
    assert_ne!(names[0], names[1]);
    let del = |ifname| {
        c1.call("bandwidth", "DEL", &bandwidth(limits())).env("CNI_IFNAME", ifname).run().silence();
    };
    del("eth0");
    assert!(!world.links().contains(&names[0]) && world.links().contains(&names[1]));
    del("eth1");
    assert_eq!(shaping(&world), [""; 0]);
}

#[test]
fn subnets_of_the_configuration_go_with_the_rates_of_the_runtime() {
    let world = World::new();
    let c1 = world.container("c1");
    let rates = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000});
    let keys = json!({"unshapedSubnets": ["10.2.0.0/16"], "runtimeConfig": {"bandwidth": rates}});
    let (_, after) = limited(&c1, keys.clone());
    let said = shaping(&world).join("\n");
    // 0a020000/ffff0000 is 10.2.0.0/16. The queue is 25 ms and the burst.
    assert!(said.contains("0a020000/ffff0000") && said.contains("limit 125000b"), "{said}");
    c1.check("bandwidth", &bandwidth(keys), &after);
}

#[test]
fn status_asks_the_kernel_and_leaves_nothing() {
    let world = World::new();
    let (links, before) = (world.links(), shaping(&world));
    for part in [json!({}), json!({"shapedSubnets": ["10.0.0.0/8"]})] {
        let config = with(&with(&bandwidth(limits()), part), json!({"cniVersion": "1.1.0"}));
        world.call("bandwidth", "STATUS", &config).run().silence();
    }
    assert_eq!((world.links(), shaping(&world)), (links, before));
}

//! DEL, GC, STATUS, and ADDs that fail.

use serde_json::{Value, json};

use super::{dual_stack, dual_stack_with, plain, plain_with};
use crate::world::{Container, World, lan, with, without};

type Happening = fn(&Container<'_>);

const HAPPENINGS: [(&str, Happening); 5] = [
    ("the link is gone", |c| {
        c.exec(["ip", "link", "del", "eth0"]);
        c.del("macvlan", &dual_stack());
    }),
    ("the master is gone", |c| {
        c.world.host(["ip", "link", "del", "lan"]);
        c.del("macvlan", &dual_stack());
    }),
    ("the master is not named any more, and there is no default route", |c| {
        c.del("macvlan", &without(&dual_stack(), "master"));
    }),
    ("the configuration has changed", |c| {
        let keys =
            json!({"mtu": 99999, "mode": "none", "mac": "x", "master": "a name that is too long"});
        c.del("macvlan", &dual_stack_with(keys));
    }),
    ("the previous result makes no sense", |c| {
        c.del("macvlan", &dual_stack_with(json!({"prevResult": {"interfaces": 7}})));
    }),
];

#[test]
fn del_frees_the_address_whatever_happened() {
    for (what, happening) in HAPPENINGS {
        let world = World::new();
        let _outside = lan(&world);
        let c1 = world.container("c1");
        c1.add("macvlan", &dual_stack());
        happening(&c1);
        let state = world.state();
        assert!(!state.has("file /var/lib/cni/networks/net/10.1.0.2 "), "{what}: {state:?}");
        assert!(!state.has("file /var/lib/cni/networks/net/fd00"), "{what}: {state:?}");
        c1.call("macvlan", "DEL", &dual_stack()).env("CNI_NETNS", "").run().silence();
    }
}

#[test]
fn del_removes_the_link_although_ipam_fails_with_an_error() {
    let world = World::new();
    let _outside = lan(&world);
    let c1 = world.container("c1");
    c1.add("macvlan", &dual_stack());
    let gone = dual_stack_with(json!({"ipam": {"type": "gone-ipam"}}));
    let error = c1.call("macvlan", "DEL", &gone).run().error();
    assert!(error.msg.contains("failed to find plugin"), "{error:?}");
    assert_eq!(c1.exec(["ip", "-o", "link"]).lines().count(), 1, "DEL goes on past a failure");
}

#[test]
fn gc_releases_addresses_and_status_sees_it() {
    let world = World::new();
    let _outside = lan(&world);
    let ipam = json!({"type": "host-local", "subnet": "10.1.0.0/30"});
    let config = with(&plain(), json!({"ipam": ipam}));
    let status = || world.call("macvlan", "STATUS", &config).run();
    status().silence();
    let c1 = world.container("c1");
    let result = c1.add("macvlan", &config);
    status().fails(50, &["10.1.0.1-10.1.0.2"]);
    let gc = |valid: Value| with(&config, json!({"cni.dev/valid-attachments": valid}));
    let keep = json!([{"containerID": "c1", "ifname": "eth0"}]);
    world.call("macvlan", "GC", &gc(keep)).run().silence();
    c1.check("macvlan", &config, &result);
    world.call("macvlan", "GC", &gc(json!([]))).run().silence();
    status().silence();
}

#[test]
fn status_is_50_while_an_add_could_not_succeed() {
    let world = World::new();
    let _outside = lan(&world);
    for (keys, code, named) in [
        (json!({"master": "gone"}), 50, "Link not found: master gone"),
        (json!({"mtu": 9000}), 50, "invalid MTU 9000, must be [0, master MTU(1500)]"),
        (json!({"ipam": {"type": "none-such"}}), 50, "none-such"),
        (json!({"mode": "none"}), 7, "mode"),
    ] {
        world.call("macvlan", "STATUS", &dual_stack_with(keys)).run().fails(code, &[named]);
    }
}

#[test]
fn a_failed_add_leaves_nothing() {
    // The kernel refuses a gateway for a destination of the scope host.
    let route =
        |dst: &str, gw: &str| json!({"ipam": {"routes": [{"dst": dst, "gw": gw, "scope": 254}]}});
    for (keys, says) in [
        (route("10.99.0.0/16", "192.168.77.1"), "10.99.0.0/16"),
        (json!({"ipam": {"ranges": [[{"subnet": "10.1.0.0/31"}]]}}), "10.1.0.0/31"),
        (json!({"ipam": {"type": "none-such"}}), "failed to find plugin"),
        (json!({"ipam": {"type": "static"}}), "missing IP config"),
        (json!({"mtu": 20}), "invalid MTU 20, must be [68, 1500]"),
        (json!({"master": "lo"}), "cannot add macvlan link eth0"),
        (json!({"master": "port"}), "its master is the port of a bridge"),
    ] {
        let world = World::new();
        let _outside = lan(&world);
        let c1 = world.container("c1");
        let port =
            "ip link add port type veth; ip link add sw type bridge; ip link set port master sw";
        world.host(["sh", "-ec", port]);
        let before = world.state_with(&[&c1]).apart_from("", "net");
        let config = dual_stack_with(keys);
        let error = c1.call("macvlan", "ADD", &config).run().error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!(said.contains(says), "{says} expected: {error:?}");
        let after = world.state_with(&[&c1]).apart_from("", "net");
        before.assert_same(&after, &format!("after a failed ADD of {config}"));
    }
}

#[test]
fn a_link_that_was_moved_to_the_host_is_removed_by_del_and_by_gc() {
    let world = World::new();
    let _outside = lan(&world);
    let containers = ["c1", "c2", "c3", "c4"].map(|name| world.container(name));
    let config = plain_with(json!({"cniVersion": "1.1.0"}));
    for container in &containers {
        container.add("macvlan", &config);
        let script = format!("ip link set eth0 netns 1 name of-{}", container.name);
        container.exec(["sh", "-ec", &script]);
    }
    let [c1, c2, ..] = &containers;
    let moved = || {
        let links = world.links();
        links.into_iter().filter(|link| link.starts_with("of-")).collect::<Vec<_>>()
    };
    c1.del("macvlan", &config);
    assert_eq!(moved(), ["of-c2", "of-c3", "of-c4"]);
    c2.destroy();
    c2.del("macvlan", &config);
    assert_eq!(moved(), ["of-c3", "of-c4"]);
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "c4", "ifname": "eth0"}]});
    world.call("macvlan", "GC", &with(&config, valid)).run().silence();
    assert_eq!(moved(), ["of-c4"]);
}

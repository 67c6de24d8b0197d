//! DEL, GC, STATUS, and ADDs that fail.

use serde_json::{Value, json};

use super::{NAMES, dual_stack, routed, routed_with};
use crate::world::{Container, World, names, with};

type Happening = fn(&Container<'_>, &str);

const HAPPENINGS: [(&str, Happening); 3] = [
    ("the link is gone", |c, name| {
        c.exec(["ip", "link", "del", "eth0"]);
        c.del(name, &dual_stack());
    }),
    ("the configuration has changed", |c, name| {
        let ipam = json!({"ranges": [[{"subnet": "10.200.0.0/24"}]]});
        c.del(name, &with(&dual_stack(), json!({"mtu": 99, "cniVersion": "0.2.0", "ipam": ipam})));
    }),
    ("the ranges make no sense any more", |c, name| {
        c.del(
            name,
            &with(&dual_stack(), json!({"ipam": {"ranges": [[{"subnet": "10.2.0.0/31"}]]}})),
        );
    }),
];

#[test]
fn del_frees_the_address_whatever_happened() {
    for name in NAMES {
        for (what, happening) in HAPPENINGS {
            let world = World::new();
            let c1 = world.container("c1");
            let before = world.state().apart_from("", "p2p");
            c1.add(name, &dual_stack());
            happening(&c1, name);
            // The kernel removes links of a namespace that ended some time later.
            world.eventually(what, || world.links() == ["lo"]);
            before.assert_same(&world.state().apart_from("", "p2p"), what);
            c1.call(name, "DEL", &dual_stack()).env("CNI_NETNS", "").run().silence();
        }
    }
}

#[test]
fn del_removes_the_link_although_ipam_fails_with_an_error() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.add("veth", &routed());
    let gone = routed_with(json!({"ipam": {"type": "gone-ipam"}}));
    let error = c1.call("veth", "DEL", &gone).run().error();
    assert!(error.msg.contains("failed to find plugin"), "{error:?}");
    assert_eq!(world.links(), ["lo"], "DEL goes on past a failure");
}

/// A killed ADD makes a pair whose other end is on the host, with a name that begins with veth. Another program made the other ones.
#[test]
fn a_del_after_a_killed_add_leaves_the_pair_of_another_program() {
    for (peer, is_on_host, stays) in
        [("peer0", false, true), ("peer0", true, true), ("veth01234567", true, false)]
    {
        let world = World::new();
        let c1 = world.container("c1");
        match is_on_host {
            true => drop(world.host([
                "ip", "link", "add", peer, "type", "veth", "peer", "name", "eth0", "netns", "c1",
            ])),
            false => {
                drop(c1.exec(["ip", "link", "add", peer, "type", "veth", "peer", "name", "eth0"]));
            }
        }
        let record = world.path("/var/lib/cni/attachments/p2p+c1+eth0");
        let inject = "inject=write:signal=KILL:when=3";
        let add = c1.call("veth", "ADD", &routed());
        add.under(&["strace", "-qq", "-o", "/run/trace", "-e", inject]).run();
        assert!(record.exists(), "it was killed between the record and the link");
        c1.del("veth", &routed());
        assert_eq!(
            names(&c1.json(["ip", "-j", "link"])).contains(&"eth0".into()),
            stays,
            "{peer:?}"
        );
        assert!(!record.exists());
    }
}

#[test]
fn gc_and_status_are_those_of_ipam() {
    for name in NAMES {
        let world = World::new();
        let keys = json!({"cniVersion": "1.1.0", "ipam": {"subnet": "10.2.0.0/30"}});
        let config = routed_with(keys);
        world.call(name, "STATUS", &config).run().silence();
        world.container("c1").add(name, &config);
        world.call(name, "STATUS", &config).run().fails(50, &["10.2.0.1-10.2.0.2"]);
        let gc = |valid: Value| with(&config, json!({"cni.dev/valid-attachments": valid}));
        let keep = json!([{"containerID": "c1", "ifname": "eth0"}]);
        world.call(name, "GC", &gc(keep)).run().silence();
        world.call(name, "STATUS", &config).run().fails(50, &[]);
        world.call(name, "GC", &gc(json!([]))).run().silence();
        world.call(name, "STATUS", &config).run().silence();
    }
}

#[test]
fn a_failed_add_leaves_nothing() {
    // The kernel refuses a gateway for a destination of the scope host.
    let route =
        |dst: &str, gw: &str| json!({"ipam": {"routes": [{"dst": dst, "gw": gw, "scope": 254}]}});
    let cases = [
        ("ip link add eth0 type bridge", json!({}), "eth0"),
        ("", route("10.99.0.0/16", "192.168.77.1"), "10.99.0.0/16"),
        ("", json!({"ipam": {"subnet": "10.1.0.0/31"}}), "10.1.0.0/31"),
        ("", json!({"ipam": {"type": "none-such"}}), "failed to find plugin"),
        ("", json!({"ipam": {"type": "static"}}), "ip"),
        ("", json!({"mtu": 20}), "invalid MTU 20, must be [68, 65535]"),
        ("", json!({"runtimeConfig": {"mac": "nonsense"}}), "invalid MAC address"),
    ];
    for name in NAMES {
        for (script, keys, says) in &cases {
            let world = World::new();
            let c1 = world.container("c1");
            c1.exec(["sh", "-c", script]);
            let before = world.state_with(&[&c1]).apart_from("", "p2p");
            let config = routed_with(keys.clone());
            let error = c1.call(name, "ADD", &config).run().error();
            let said = format!("{}: {}", error.msg, error.details).to_lowercase();
            assert!(said.contains(&says.to_lowercase()), "{says} expected: {error:?}");
            let after = world.state_with(&[&c1]).apart_from("", "p2p");
            before.assert_same(&after, &format!("after a failed ADD of {config}"));
        }
    }
}

#[test]
fn an_exhausted_range_leaves_nothing_at_all() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let config = routed_with(json!({"ipam": {"subnet": "10.2.0.0/30"}}));
    c1.add("veth", &config);
    let before = world.state_with(&[&c1, &c2]);
    let error = c2.call("veth", "ADD", &config).run().error();
    assert!(error.msg.contains("no IP addresses available in range set"), "{error:?}");
    before.assert_same(&world.state_with(&[&c1, &c2]), "after a failed ADD");
}

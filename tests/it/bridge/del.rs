//! DEL, GC and STATUS.

use serde_json::{Value, json};

use super::{dbnet, dbnet_with, dual_stack, host_end, layer2};
use crate::world::{Container, World, runs_with, with, without};

fn reservations(world: &World, network: &str) -> Vec<String> {
    let state = world.state();
    let dir = format!("file /var/lib/cni/networks/{network}/");
    let files = state.lines().iter().filter_map(|line| line.strip_prefix(&dir));
    let names = files.filter_map(|file| file.split(' ').next());
    names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).map(str::to_owned).collect()
}

#[test]
fn a_second_add_and_del_leave_the_exact_state() {
    let world = World::new();
    let c1 = world.container("c1");
    // Two addresses only, so the last reserved address is always the same.
    let config = dbnet_with(json!({"isGateway": true, "ipam": {"subnet": "10.1.0.0/30"}}));
    c1.add("bridge", &config);
    c1.del("bridge", &config);
    let before = world.state_with(&[&c1]);
    c1.add("bridge", &config);
    c1.del("bridge", &config);
    before.assert_same(&world.state_with(&[&c1]), "after DEL");
}

#[test]
fn other_containers_do_not_notice() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let result = c1.add("bridge", &dual_stack());
    c2.add("bridge", &dual_stack());
    c2.del("bridge", &dual_stack());
    c1.check("bridge", &dual_stack(), &result);
    c1.ping("10.1.0.1");
}

/// An event before the DEL of a container, and the DEL.
type Happening = fn(&Container<'_>, &Value);

const HAPPENINGS: [(&str, Happening); 4] = [
    ("the link is gone", |c, config| {
        c.exec(["ip", "link", "del", "eth0"]);
        c.del("bridge", config);
    }),
    ("CNI_PATH is not set", |c, config| {
        c.call("bridge", "DEL", config).without("CNI_PATH").run().silence();
    }),
    ("the bridge is gone", |c, config| {
        c.world.host(["ip", "link", "del", "cni0"]);
        c.del("bridge", config);
    }),
    ("the link was replaced by another kind", |c, config| {
        c.exec(["sh", "-c", "ip link del eth0; ip link add eth0 type bridge"]);
        c.del("bridge", config);
    }),
];

#[test]
fn del_frees_the_address_whatever_happened() {
    for (name, happening) in HAPPENINGS {
        let world = World::new();
        let c1 = world.container("c1");
        c1.add("bridge", &dual_stack());
        happening(&c1, &dual_stack());
        assert_eq!(reservations(&world, "dual"), [""; 0], "{name}");
        // The kernel removes links of a namespace that ended some time later.
        world.eventually(name, || world.links().iter().all(|link| !link.starts_with("veth")));
        c1.call("bridge", "DEL", &dual_stack()).env("CNI_NETNS", "").run().silence();
    }
}

#[test]
fn a_container_can_be_added_again_after_its_del_without_a_namespace() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.add("bridge", &dbnet());
    c1.destroy();
    c1.call("bridge", "DEL", &dbnet()).env("CNI_NETNS", "").run().silence();
    let again = world.container("c1");
    assert_eq!(again.add("bridge", &dbnet())["ips"][0]["address"], "10.1.0.3/16");
}

#[test]
fn del_succeeds_with_a_changed_configuration() {
    let changes = [
        json!({"bridge": "other0"}),
        json!({"bridge": ""}),
        json!({"mtu": 99}),
        json!({"hairpinMode": true, "promiscMode": true}),
        json!({"vlan": 4095, "vlanTrunk": [{"minID": 1}], "isGateway": true}),
        json!({"cniVersion": "0.2.0"}),
        json!({"isGateway": true, "dns": {"domain": "x"}}),
        json!({"ipam": {"subnet": "10.200.0.0/16", "gateway": null}}),
        json!({"ipam": {"subnet": "10.1.0.0/31"}}),
        json!({"ipam": {"subnet": null, "ranges": []}}),
        json!({"runtimeConfig": {"mac": "nonsense"}}),
    ];
    for change in changes {
        let world = World::new();
        let c1 = world.container("c1");
        let before = world.state_with(&[&c1]).apart_from("cni0", "dbnet");
        c1.add("bridge", &dbnet());
        c1.del("bridge", &dbnet_with(change.clone()));
        let after = world.state_with(&[&c1]).apart_from("cni0", "dbnet");
        before.assert_same(&after, &format!("after DEL with {change}"));
    }
}

#[test]
fn del_takes_a_result_or_none() {
    let world = World::new();
    let c1 = world.container("c1");
    for prev_result in [json!(null), json!({}), json!({"cniVersion": "1.0.0"})] {
        c1.add("bridge", &dbnet());
        c1.del("bridge", &dbnet_with(json!({"prevResult": prev_result})));
        assert_eq!(reservations(&world, "dbnet"), [""; 0]);
    }
    let result = c1.add("bridge", &dbnet());
    c1.del("bridge", &with(&dbnet(), json!({"prevResult": result})));
    assert_eq!(world.ports_of("cni0"), [""; 0]);
}

#[test]
fn del_removes_the_link_although_ipam_fails_with_an_error() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.add("bridge", &dbnet());
    let gone = dbnet_with(json!({"ipam": {"type": "gone-ipam"}}));
    let error = c1.call("bridge", "DEL", &gone).run().error();
    assert!(error.msg.contains("failed to find plugin"), "{error:?}");
    assert_eq!(world.ports_of("cni0"), [""; 0], "DEL goes on past a failure");
    c1.del("bridge", &dbnet());
    assert_eq!(reservations(&world, "dbnet"), [""; 0]);
}

fn gc(valid: &[&str]) -> Value {
    let valid: Value =
        valid.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
    with(&dual_stack(), json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid}))
}

#[test]
fn gc_releases_what_is_not_valid_and_spares_the_rest() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let config = with(&dual_stack(), json!({"cniVersion": "1.1.0"}));
    let result = c1.add("bridge", &config);
    c2.add("bridge", &config);
    c2.destroy();
    world.call("bridge", "GC", &gc(&["c1"])).run().silence();
    assert_eq!(reservations(&world, "dual"), ["10.1.0.2", "fd00:1::2"]);
    c1.check("bridge", &config, &result);
    c1.ping("10.1.0.1");
    world.call("bridge", "GC", &gc(&[])).run().silence();
    assert_eq!(reservations(&world, "dual"), [""; 0]);
}

#[test]
fn an_unused_bridge_is_removed_if_that_is_configured() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let config = with(&dual_stack(), json!({"cniVersion": "1.1.0", "removeUnused": true}));
    let has_bridge = || world.links().iter().any(|link| link == "cni0");
    c1.add("bridge", &config);
    let result = c2.add("bridge", &config);
    c1.del("bridge", &config);
    c2.check("bridge", &config, &result);
    c2.ping("10.1.0.1");
    c2.del("bridge", &config);
    assert!(!has_bridge());
    c2.del("bridge", &config);

    c1.add("bridge", &config);
    world.call("bridge", "GC", &with(&config, gc(&[]))).run().silence();
    assert!(!has_bridge());

    // A port of somebody else, and the port of a VLAN gateway, which goes first.
    let tagged = with(
        &config,
        json!({"vlan": if runs_with("CONFIG_BRIDGE_VLAN_FILTERING") { 7 } else { 0 }}),
    );
    c1.add("bridge", &tagged);
    world.host([
        "sh",
        "-c",
        "ip link add other type veth peer name another; ip link set other master cni0",
    ]);
    c1.del("bridge", &tagged);
    assert_eq!(world.ports_of("cni0"), ["other"]);
    world.host(["ip", "link", "del", "other"]);
    c1.del("bridge", &tagged);
    assert!(!has_bridge());
}

#[test]
fn gc_removes_links_of_containers_that_are_still_there() {
    let world = World::new();
    let (c1, c2, c3) = (world.container("c1"), world.container("c2"), world.container("c3"));
    let config = with(&dual_stack(), json!({"cniVersion": "1.1.0"}));
    let other = with(
        &config,
        json!({"name": "other", "ipam": {"ranges": [[{"subnet": "10.3.0.0/16"}]]}, "isDefaultGateway": false}),
    );
    let valid = c1.add("bridge", &config);
    let stale = c2.add("bridge", &config);
    let of_other_network = c3.add("bridge", &other);
    world.call("bridge", "GC", &gc(&["c1"])).run().silence();
    let ports = world.ports_of("cni0");
    assert!(!ports.contains(&host_end(&stale)), "{ports:?}");
    assert!(
        ports.contains(&host_end(&valid)) && ports.contains(&host_end(&of_other_network)),
        "{ports:?}"
    );
    c1.check("bridge", &config, &valid);
    c3.check("bridge", &other, &of_other_network);
    c2.del("bridge", &config);
}

#[test]
fn gc_without_ipam_succeeds() {
    let world = World::new();
    let config = with(&dual_stack(), json!({"cniVersion": "1.1.0"}));
    world.container("c1").add("bridge", &config);
    world.call("bridge", "GC", &without(&gc(&[]), "ipam")).run().silence();
}

#[test]
fn status_is_that_of_ipam() {
    let world = World::new();
    let small = dbnet_with(json!({"cniVersion": "1.1.0", "ipam": {"subnet": "10.1.0.0/30"}}));
    world.call("bridge", "STATUS", &small).run().silence();
    world.container("c1").add("bridge", &small);
    world.call("bridge", "STATUS", &small).run().fails(50, &["10.1.0.1-10.1.0.2"]);
    let layer2 = with(&layer2(), json!({"cniVersion": "1.1.0"}));
    world.call("bridge", "STATUS", &layer2).run().silence();
    let gone = with(&layer2, json!({"ipam": {"type": "gone-ipam"}}));
    let error = world.call("bridge", "STATUS", &gone).run().error();
    assert!(error.msg.contains("failed to find plugin"), "{error:?}");
}

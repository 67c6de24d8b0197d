//! `vrf` as far as a kernel without VRF goes: what is refused, and how it says so. The rest is in tests/vm/vrf.sh.

use serde_json::{Value, json};

use crate::world::{Container, World, half_for, with};

fn container(world: &World) -> Container<'_> {
    let c1 = world.container("c1");
    c1.exec([
        "sh",
        "-ec",
        "ip link add eth0 type veth peer name peer; ip link set peer up; ip link set eth0 up
        ip address add 10.1.0.2/24 dev eth0; ip address add fd00:1::2/64 dev eth0 nodad
        ip route add 10.9.0.0/16 via 10.1.0.1; ip -6 route add fd09::/48 via fd00:1::1",
    ]);
    c1
}

fn vrf(keys: Value) -> Value {
    let result = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.2/24"}, {"address": "fd00:1::2/64"}]});
    let base = json!({"cniVersion": "1.1.0", "name": "net", "type": "vrf", "vrfname": "blue", "prevResult": result});
    with(&base, keys)
}

#[test]
fn invalid_keys_are_named_before_any_change() {
    let world = World::new();
    let c1 = container(&world);
    c1.exec(["ip", "link", "add", "green", "type", "veth", "peer", "name", "peer2"]);
    let before = world.state_with(&[&c1]);
    for (keys, code, text) in [
        (json!({"vrfname": null}), 7, "vrfname"),
        (json!({"vrfname": ""}), 7, "vrfname"),
        (json!({"vrfname": "eth0"}), 7, "vrfname"),
        (json!({"vrfname": "a/b"}), 7, "vrfname"),
        (json!({"vrfname": "sixteen-bytes-xy"}), 7, "vrfname"),
        (json!({"vrfname": 5}), 6, "vrfname"),
        (json!({"vrfname": "green"}), 999, "Netlink green is not a VRF: its kind is veth"),
        (json!({"table": -1}), 6, "table"),
        (json!({"table": 4_294_967_296_u64}), 6, "table"),
        (json!({"table": 254}), 7, "table"),
        (
            json!({"prevResult": null}),
            7,
            "required prevResult missing: vrf must be called as chained plugin",
        ),
    ] {
        c1.call("vrf", "ADD", &vrf(keys)).run().fails(code, &[text]);
        before.assert_same(&world.state_with(&[&c1]), text);
    }
    let absent = c1.call("vrf", "ADD", &vrf(json!({}))).env("CNI_IFNAME", "net9").run();
    absent.fails(999, &["interface net9 not found"]);
}

#[test]
fn an_interface_with_a_master_keeps_it() {
    let world = World::new();
    let c1 = container(&world);
    c1.exec(["sh", "-ec", "ip link add br0 type bridge; ip link set eth0 master br0"]);
    let before = world.state_with(&[&c1]);
    c1.call("vrf", "ADD", &vrf(json!({})))
        .run()
        .fails(999, &["cannot put interface eth0 into VRF blue: it already has master br0"]);
    c1.del("vrf", &vrf(json!({})));
    before.assert_same(&world.state_with(&[&c1]), "after ADD and DEL");
}

#[test]
fn a_kernel_without_vrf_is_named() {
    let world = World::new();
    let c1 = container(&world);
    let before = world.state_with(&[&c1]);
    let add = c1.call("vrf", "ADD", &vrf(json!({}))).run();
    let status = world.call("vrf", "STATUS", &vrf(json!({}))).run();
    let probe = world.tool(&["ip", "link", "add", "probe", "type", "vrf", "table", "9"], None);
    if half_for("CONFIG_NET_VRF", probe.run().status == 0) {
        add.success();
        status.silence();
        c1.del("vrf", &vrf(json!({})));
        return;
    }
    add.fails(999, &["cannot add vrf link blue", "the kernel lacks CONFIG_NET_VRF"]);
    status.fails(50, &["CONFIG_NET_VRF"]);
    before.assert_same(&world.state_with(&[&c1]), "after a failed ADD");
    c1.call("vrf", "CHECK", &vrf(json!({}))).run().fails(999, &["VRF blue not found"]);
    world.call("vrf", "STATUS", &vrf(json!({"vrfname": null}))).run().fails(50, &["vrfname"]);
}

#[test]
fn del_needs_no_namespace_and_no_valid_keys() {
    let world = World::new();
    let c1 = container(&world);
    let before = world.state_with(&[&c1]);
    for keys in [
        json!({}),
        json!({"vrfname": null}),
        json!({"prevResult": null}),
        json!({"vrfname": "eth0"}),
    ] {
        c1.del("vrf", &vrf(keys.clone()));
        c1.call("vrf", "DEL", &vrf(keys)).env("CNI_IFNAME", "net9").run().silence();
    }
    before.assert_same(&world.state_with(&[&c1]), "after DEL");
    c1.call("vrf", "DEL", &vrf(json!({}))).without("CNI_NETNS").run().silence();
    c1.destroy();
    c1.del("vrf", &vrf(json!({})));
    let gc = vrf(json!({"cni.dev/valid-attachments": [], "prevResult": null}));
    world.call("vrf", "GC", &gc).run().silence();
}

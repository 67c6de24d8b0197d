//! `vlan` on any kernel; its interfaces and traffic are in the VM tier. The tests of macvlan cover the shared code.

use serde_json::{Value, json};

use crate::world::{LAN, World, is_made_or_missed, with};

fn config() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "vlan", "master": "lan", "vlanId": 10,
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}})
}

fn world() -> World {
    let world = World::new();
    world.host(["sh", "-ec", LAN]);
    world
}

#[test]
fn where_the_kernel_lacks_it_the_error_says_so_and_nothing_is_left() {
    is_made_or_missed(&world(), &config(), "CONFIG_VLAN_8021Q");
}

#[test]
fn invalid_values_are_named() {
    let world = world();
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]);
    for (code, keys, named) in [
        (7, json!({"vlanId": 4095}), "vlanId: 4095 is reserved"),
        (7, json!({"vlanId": -1}), "invalid VLAN ID -1"),
        (7, json!({"vlanId": 65546}), "invalid VLAN ID 65546"),
        (6, json!({"vlanId": "10"}), "vlanId"),
        (7, json!({"master": null}), "\"master\" field is required"),
        (7, json!({"master": "gone"}), "Link not found: master gone"),
        (7, json!({"linkInContainer": true}), "Link not found: master lan"),
        (7, json!({"mtu": 1501}), "invalid MTU 1501, must be [0, master MTU(1500)]"),
        (7, json!({"mtu": -1}), "invalid MTU -1"),
    ] {
        c1.call("vlan", "ADD", &with(&config(), keys)).run().fails(code, &[named]);
    }
    before.assert_same(&world.state_with(&[&c1]), "after refused ADDs");
}

#[test]
fn status_needs_the_master() {
    let world = World::new();
    let status = |config: &Value| world.call("vlan", "STATUS", config).run();
    status(&config()).fails(50, &["Link not found: master lan"]);
    status(&with(&config(), json!({"master": ""}))).fails(7, &["\"master\" field is required"]);
    world.host(["sh", "-ec", LAN]);
    world.status_as_the_kernel_has("CONFIG_VLAN_8021Q", "vlan", &config());
    status(&with(&config(), json!({"mtu": 9000}))).fails(50, &["invalid MTU 9000"]);
    status(&with(&config(), json!({"ipam": {"type": "none-such"}}))).fails(50, &["none-such"]);
}

#[test]
fn del_and_gc_need_neither_a_master_nor_valid_keys() {
    let world = World::new();
    let c1 = world.container("c1");
    let odd = json!({"master": null, "vlanId": 9999, "mtu": -1, "ipam": null});
    c1.del("vlan", &with(&config(), odd.clone()));
    c1.destroy();
    c1.del("vlan", &with(&config(), odd));
    let gc = with(&config(), json!({"cni.dev/valid-attachments": []}));
    world.call("vlan", "GC", &gc).run().silence();
}

//! `ipvlan` on any kernel; its interfaces and traffic are in the VM tier. The tests of macvlan cover the shared code.

use serde_json::{Value, json};

use crate::world::{LAN, World, is_made_or_missed, with, without};

fn config() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "ipvlan", "master": "lan",
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}})
}

fn world() -> World {
    let world = World::new();
    world.host(["sh", "-ec", LAN]);
    world
}

#[test]
fn where_the_kernel_lacks_it_the_error_says_so_and_nothing_is_left() {
    is_made_or_missed(&world(), &config(), "CONFIG_IPVLAN");
}

#[test]
fn invalid_values_are_named() {
    let world = world();
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]);
    let interfaces = |interfaces: Value| {
        let prev = json!({"cniVersion": "1.1.0", "interfaces": interfaces});
        json!({"master": null, "prevResult": prev})
    };
    for (code, keys, named) in [
        (7, json!({"mode": "l4"}), "unknown ipvlan mode \"l4\""),
        (7, json!({"mode": "L2"}), "mode"),
        (6, json!({"mode": 2}), "mode"),
        (7, json!({"flag": "secret"}), "unknown ipvlan flag \"secret\""),
        (6, json!({"flag": true}), "flag"),
        (7, json!({"mtu": -1}), "invalid MTU -1"),
        (7, json!({"master": "gone"}), "Link not found: master gone"),
        (7, json!({"linkInContainer": true}), "Link not found: master lan"),
        (7, interfaces(json!([])), "chained master failure"),
        (7, interfaces(json!([{"name": "lan"}, {"name": "lo"}])), "chained master failure"),
        (7, interfaces(json!([{"name": "gone"}])), "Link not found: master gone"),
    ] {
        c1.call("ipvlan", "ADD", &with(&config(), keys)).run().fails(code, &[named]);
    }
    before.assert_same(&world.state_with(&[&c1]), "after refused ADDs");
}

#[test]
fn status_needs_the_master_unless_a_chain_will_bring_it() {
    let world = World::new();
    let status = |config: &Value| world.call("ipvlan", "STATUS", config).run();
    status(&config()).fails(50, &["Link not found: master lan"]);
    status(&without(&config(), "master")).fails(50, &["no default route interface found"]);
    let ready = |config: &Value| world.status_as_the_kernel_has("CONFIG_IPVLAN", "ipvlan", config);
    ready(&without(&without(&config(), "master"), "ipam"));
    world.host(["sh", "-ec", LAN]);
    ready(&config());
    ready(&without(&config(), "master"));
    status(&with(&config(), json!({"mode": "l4"}))).fails(7, &["mode"]);
}

#[test]
fn del_and_gc_need_neither_a_master_nor_valid_keys() {
    let world = World::new();
    let c1 = world.container("c1");
    let odd = json!({"master": null, "mode": "l4", "mtu": -1, "prevResult": {"interfaces": 7}});
    c1.del("ipvlan", &with(&config(), odd.clone()));
    c1.destroy();
    c1.del("ipvlan", &with(&config(), odd));
    let gc = with(&config(), json!({"cni.dev/valid-attachments": []}));
    world.call("ipvlan", "GC", &gc).run().silence();
}

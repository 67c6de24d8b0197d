//! `dummy` on any kernel; its interfaces are in the VM tier. The tests of macvlan cover the shared code.

use serde_json::{Value, json};

use crate::world::{World, is_made_or_missed, with};

fn config() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "dummy",
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}})
}

#[test]
fn where_the_kernel_lacks_it_the_error_says_so_and_nothing_is_left() {
    is_made_or_missed(&World::new(), &config(), "CONFIG_DUMMY");
}

#[test]
fn invalid_values_are_named() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]);
    for (code, keys, named) in [
        (7, json!({"ipam": null}), "dummy interface requires an IPAM configuration"),
        (7, json!({"ipam": {"type": ""}}), "dummy interface requires an IPAM configuration"),
        (7, json!({"mtu": -1}), "invalid MTU -1"),
        (7, json!({"mtu": 5_000_000_000_u64}), "invalid MTU 5000000000"),
        (6, json!({"mtu": "1"}), "mtu"),
        (7, json!({"mac": "nonsense"}), "mac"),
        (7, json!({"mac": "ff:ff:ff:ff:ff:ff"}), "mac"),
    ] {
        c1.call("dummy", "ADD", &with(&config(), keys)).run().fails(code, &[named]);
    }
    before.assert_same(&world.state_with(&[&c1]), "after refused ADDs");
}

#[test]
fn status_is_that_of_ipam_and_needs_one() {
    let world = World::new();
    let status = |keys: Value| world.call("dummy", "STATUS", &with(&config(), keys)).run();
    world.status_as_the_kernel_has("CONFIG_DUMMY", "dummy", &config());
    status(json!({"ipam": null})).fails(7, &["requires an IPAM configuration"]);
    status(json!({"ipam": {"type": "none-such"}})).fails(50, &["none-such"]);
}

#[test]
fn del_and_gc_need_no_valid_keys() {
    let world = World::new();
    let c1 = world.container("c1");
    let odd = json!({"mtu": -1, "mac": "x", "ipam": null});
    c1.del("dummy", &with(&config(), odd.clone()));
    c1.destroy();
    c1.del("dummy", &with(&config(), odd));
    let gc = with(&config(), json!({"cni.dev/valid-attachments": []}));
    world.call("dummy", "GC", &gc).run().silence();
}

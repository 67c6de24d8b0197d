//! A plugin must never work on the host when a container is meant.

use serde_json::json;

use crate::world::{World, plugin_names};

#[test]
fn the_hosts_own_namespace_is_refused_before_anything_is_touched() {
    let world = World::new();
    let before = world.state();
    for plugin in plugin_names() {
        let config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": plugin, "isGateway": true,
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"},
        });
        for verb in ["ADD", "DEL"] {
            let call = world.call(&plugin, verb, &config).env("CNI_CONTAINERID", "abc");
            // `lo` is what a DEL on the host would hurt most.
            let call = call.env("CNI_IFNAME", "lo").env("CNI_NETNS", "/proc/self/ns/net");
            call.run().fails(8, &[]);
        }
    }
    before.assert_same(&world.state(), "after refused calls");
}

#[test]
fn the_check_of_the_namespace_can_be_overridden() {
    let world = World::new();
    let config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "host-local",
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"},
    });
    for (id, yes) in [("a", "1"), ("b", "true"), ("c", "TRUE")] {
        let call = world.call("host-local", "ADD", &config).env("CNI_CONTAINERID", id);
        let call = call.env("CNI_IFNAME", "eth0").env("CNI_NETNS", "/proc/self/ns/net");
        call.env("CNI_NETNS_OVERRIDE", yes).run().success();
    }
}

#[test]
fn a_namespace_that_is_none_is_refused_on_add() {
    let world = World::new();
    world.write("/run/netns/file", "");
    let before = world.state();
    for plugin in ["bridge", "veth", "ptp", "loopback"] {
        let config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": plugin,
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"},
        });
        for path in ["/run/netns/none", "/run/netns/file", "/proc/self/ns/mnt", "relative"] {
            let call = world.call(plugin, "ADD", &config).env("CNI_CONTAINERID", "abc");
            let error = call.env("CNI_IFNAME", "eth0").env("CNI_NETNS", path).run().error();
            assert!(format!("{error:?}").contains(path), "{error:?}");
        }
    }
    let after = world.state().apart_from("cni0", "net");
    before.apart_from("cni0", "net").assert_same(&after, "after refused calls");
}

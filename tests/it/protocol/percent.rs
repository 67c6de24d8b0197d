//! A percent sign in a name: the kernel takes such a name for a pattern, and chooses another name.

use serde_json::{Value, json};

use crate::world::{World, plugin_names, with};

const NAMES: [&str; 3] = ["a%d", "%", "a%"];

fn config(plugin: &str, keys: Value) -> Value {
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]});
    let base = json!({"cniVersion": "1.1.0", "name": "net", "type": plugin, "ipam": ipam});
    with(&base, keys)
}

#[test]
fn an_interface_name_with_a_percent_sign_is_refused_by_every_plugin() {
    let world = World::new();
    world.host(["ip", "link", "add", "up0", "up", "type", "veth", "peer", "name", "up1"]);
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]);
    let keys = json!({"master": "up0", "device": "up0", "vlanId": 7, "vrfname": "blue",
        "prevResult": {"cniVersion": "1.1.0", "interfaces": [], "ips": []}});
    for plugin in plugin_names() {
        for name in NAMES {
            for verb in ["ADD", "CHECK", "DEL"] {
                let call = c1.call(&plugin, verb, &config(&plugin, keys.clone()));
                call.env("CNI_IFNAME", name).run().fails(4, &[name, "it contains '%'"]);
            }
        }
    }
    before.assert_same(&world.state_with(&[&c1]), "nothing is made");
}

#[test]
fn a_key_with_a_percent_sign_names_no_link() {
    let world = World::new();
    world.host(["ip", "link", "add", "up0", "up", "type", "veth", "peer", "name", "up1"]);
    let c1 = world.container("c1");
    let prev_result = json!({"prevResult": {"cniVersion": "1.1.0", "ips": [],
        "interfaces": [{"name": "eth0", "sandbox": c1.netns()}]}});
    let before = world.state_with(&[&c1]);
    for (plugin, key, more) in [
        ("bridge", "bridge", json!({"isGateway": true})),
        ("bridge", "bridge", json!({"vlan": 7, "isGateway": true})),
        ("macvlan", "master", json!({})),
        ("ipvlan", "master", json!({})),
        ("vlan", "master", json!({"vlanId": 7})),
        ("host-device", "device", json!({})),
        ("tap", "bridge", json!({})),
        ("vrf", "vrfname", prev_result),
    ] {
        for name in NAMES {
            let config = config(plugin, with(&more, json!({ key: name })));
            c1.call(plugin, "ADD", &config).run().fails(7, &[name]);
            c1.del(plugin, &config);
            before.assert_same(&world.state_with(&[&c1]), &format!("{plugin}, {name}"));
        }
    }
}

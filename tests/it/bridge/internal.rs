//! An internal network of a bridge: its containers reach nothing behind the host.

use serde_json::{Value, json};

use super::dbnet_with;
use crate::firewall::outside;
use crate::world::{Container, Outcome, PLUGIN_DIR, World, with};

fn cnibox(world: &World, args: &[&str]) -> Outcome {
    let words = [&["/run/bin/cnibox"], args].concat();
    let call = world.tool(&words, None).env("CNI_PATH", PLUGIN_DIR);
    call.env("NETCONFPATH", "/run/net.d").run()
}

fn write_list(world: &World, config: &Value) {
    let name = config["name"].as_str().unwrap();
    let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": [config]});
    world.write(&format!("/run/net.d/{name}.conflist"), list.to_string());
}

/// A network with the subnets 10.NUMBER.0.0/24 and fd00:NUMBER::/64.
fn network(number: u8, keys: Value) -> Value {
    let [v4, v6] = [format!("10.{number}.0.0/24"), format!("fd00:{number}::/64")];
    let ranges = json!([[{"subnet": v4}], [{"subnet": v6}]]);
    let base = json!({"cniVersion": "1.0.0", "name": format!("net{number}"), "type": "bridge",
        "isDefaultGateway": true, "ipam": {"type": "host-local", "ranges": ranges}});
    with(&base, keys)
}

fn reaches(from: &Container<'_>, address: &str) -> bool {
    from.tool(["ping", "-nqc1", "-W1", address]).run().status == 0
}

#[test]
fn the_list_can_have_an_alternative_name_of_the_bridge() {
    let world = World::new();
    let script = "ip link add br0 type bridge; ip link set br0 up; ip link property add dev br0 altname inner";
    world.host(["sh", "-ec", script]);
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    write_list(&world, &network(1, json!({"bridge": "inner", "internal": true})));
    write_list(&world, &network(2, json!({"bridge": "br2"})));
    cnibox(&world, &["add", "net1", "c1"]).success();
    cnibox(&world, &["add", "net2", "c2"]).success();
    let is_cut_off = || {
        for address in ["10.2.0.2", "fd00:2::2"] {
            assert!(!reaches(&c1, address), "{address}");
        }
        cnibox(&world, &["check", "net1", "c1"]).silence();
    };
    ["10.2.0.1", "fd00:2::1"].into_iter().for_each(|address| c1.ping(address));
    ["10.2.0.1", "fd00:2::1"].into_iter().for_each(|address| c2.ping(address));
    is_cut_off();
    for family in ["ip", "ip6"] {
        world.host(["nft", "flush", "set", family, "cnibox", "internal-links"]);
    }
    let failed = cnibox(&world, &["check", "net1", "c1"]);
    assert!(failed.stderr.contains("br0 is missing from set"), "{}", failed.report());
    cnibox(&world, &["reconcile"]).output();
    is_cut_off();
}

#[test]
fn other_vlans_of_a_port_are_refused() {
    let world = World::new();
    let c1 = world.container("c1");
    let internal = |keys: Value| dbnet_with(with(&json!({"internal": true}), keys));
    for (keys, key) in [
        (json!({"vlanTrunk": [{"id": 10}]}), "vlanTrunk"),
        (json!({"vlan": 10, "vlanTrunk": [{"minID": 20, "maxID": 29}]}), "vlanTrunk"),
        (json!({"vlan": 10, "preserveDefaultVlan": true}), "preserveDefaultVlan"),
    ] {
        let config = internal(keys);
        let texts = ["cannot separate an internal network", key];
        c1.call("bridge", "ADD", &config).run().fails(7, &texts);
        write_list(&world, &config);
        let linted = cnibox(&world, &["lint", "/run/net.d"]);
        assert!(texts.iter().all(|text| linted.stdout.contains(text)), "{}", linted.report());
        assert!(!world.links().contains(&"cni0".to_owned()));
    }
    for keys in
        [json!({"vlanTrunk": []}), json!({"preserveDefaultVlan": true}), json!({"vlan": 10})]
    {
        write_list(&world, &internal(keys));
        cnibox(&world, &["lint", "/run/net.d"]).silence();
    }
}

/// One bridge cannot be internal for one network and not for another.
#[test]
fn another_network_on_the_bridge_is_refused() {
    let world = World::new();
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| world.container(name));
    let on =
        |name: &str, keys: Value| with(&network(1, json!({"bridge": "br1", "name": name})), keys);
    let (ordinary, internal) = (on("open", json!({})), on("inner", json!({"internal": true})));
    let first = c1.add("bridge", &ordinary);
    let added = c2.call("bridge", "ADD", &internal).run();
    let warning = "the host forwards no packet of bridge br1: it has 1 ports of other networks";
    assert!(added.stderr.contains(warning), "{}", added.report());
    let result = added.success();
    let texts = ["the host forwards no packet of link br1, because the network of inner c2 eth0"];
    for keys in [json!({}), json!({"macspoofchk": true}), json!({"ipMasq": true})] {
        c3.call("bridge", "ADD", &with(&ordinary, keys)).run().fails(7, &texts);
    }
    let checked = with(&ordinary, json!({"prevResult": first}));
    c1.call("bridge", "CHECK", &checked).run().fails(7, &texts);
    // A network of which the host is not the gateway, and the internal one itself.
    let layer2 = json!({"cniVersion": "1.0.0", "name": "l2", "type": "bridge", "bridge": "br1"});
    c3.add("bridge", &layer2);
    c3.del("bridge", &layer2);
    c2.check("bridge", &internal, &result);
    let gateways = || world.host(["ip", "-br", "address", "show", "dev", "br1"]);
    let before = gateways();
    let other = with(
        &network(2, json!({"bridge": "br1", "name": "other", "forceAddress": true})),
        json!({}),
    );
    c3.call("bridge", "ADD", &other).run().fails(7, &texts);
    assert_eq!(gateways(), before, "nothing on the bridge is touched");
    // The container has ended without a DEL.
    c2.destroy();
    let outside = outside(&world);
    c3.add("bridge", &ordinary);
    c1.ping("192.0.2.2");
    c1.call("bridge", "CHECK", &checked).run().silence();
    drop(outside);
}

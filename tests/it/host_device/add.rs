//! ADD: the card is in the container, and a failing ADD leaves it where it was, as it was.

use serde_json::{Value, json};

use super::{MAC, card, config, config_with, plain, world};
use crate::world::{Bare, through_dhcp, with};

#[test]
fn the_container_uses_the_card_under_its_own_name() {
    let world = world();
    let c1 = world.container("c1");
    let result = c1.add("host-device", &config());
    let interfaces = json!([{"name": "eth0", "mac": MAC, "sandbox": c1.netns()}]);
    assert_eq!(result["interfaces"], interfaces);
    assert_eq!(result["ips"][0]["interface"], 0);
    assert_eq!(c1.addresses("eth0"), ["10.7.0.10/24", "fd07::10/64"]);
    c1.ping("10.7.0.1");
    c1.ping("fd07::1");
    c1.exec(["ip", "route", "get", "10.99.0.1"]);
    c1.check("host-device", &config(), &result);

    assert!(!world.links().contains(&"nic0".into()), "it has left the host");
    let link = &c1.json(["ip", "-j", "-d", "link", "show", "dev", "eth0"])[0];
    assert_eq!((&link["ifalias"], &link["mtu"]), (&json!("nic0"), &json!(1400)));
}

#[test]
fn without_ipam_it_is_only_moved_and_up() {
    let world = world();
    let c1 = world.container("c1");
    let result = c1.add("host-device", &plain());
    let interfaces = json!([{"name": "eth0", "mac": MAC, "sandbox": c1.netns()}]);
    assert_eq!(result, json!({"cniVersion": "1.1.0", "interfaces": interfaces}));
    c1.exec(["ip", "address", "add", "10.7.0.2/24", "dev", "eth0"]);
    c1.ping("10.7.0.1");
    c1.check("host-device", &plain(), &result);
}

#[test]
fn an_interface_may_keep_its_name() {
    let world = world();
    let c1 = world.container("c1");
    let before = card(&world, "nic0");
    let ifname = |verb: &str| c1.call("host-device", verb, &config()).env("CNI_IFNAME", "nic0");
    let result = ifname("ADD").run().success();
    assert_eq!(result["interfaces"][0]["name"], "nic0");
    c1.ping("10.7.0.1");
    ifname("DEL").run().silence();
    assert_eq!(card(&world, "nic0"), before);
}

#[test]
fn an_ipam_plugin_can_talk_through_it() {
    let world = world();
    let c1 = world.container("c1");
    let before = card(&world, "nic0");
    let config = with(&plain(), json!({"cniVersion": "1.0.0", "ipam": {"type": "dhcp"}}));
    for verb in ["ADD", "DEL"] {
        let outcome = through_dhcp(c1.call("host-device", verb, &config)).run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
    assert_eq!(card(&world, "nic0"), before);
}

#[test]
fn dns_of_the_network_is_in_the_result() {
    let world = world();
    let c1 = world.container("c1");
    let result = c1.add("host-device", &config_with(json!({"dns": {"domain": "example"}})));
    assert_eq!(result["dns"], json!({"domain": "example"}));
}

#[test]
fn a_failed_add_leaves_the_card_where_it_was() {
    let far = json!([{"dst": "10.98.0.0/16", "gw": "192.168.77.1", "scope": 254}]);
    let cases = [
        ("ip link add eth0 type bridge", json!({}), "already exists"),
        ("", json!({"device": "none0"}), "device: none0"),
        ("", json!({"device": "lo"}), "lo"),
        ("", json!({"ipam": {"type": "none-such"}}), "failed to find plugin"),
        ("", json!({"ipam": {"type": "static"}}), "IP"),
        ("", json!({"ipam": {"ranges": [[{"subnet": "10.7.0.0/31"}]]}}), "10.7.0.0/31"),
        ("", json!({"ipam": {"routes": far}}), "10.98.0.0/16"),
    ];
    for (script, keys, says) in cases {
        let world = world();
        let c1 = world.container("c1");
        c1.exec(["sh", "-ec", script]);
        world.host(["ip", "link", "set", "nic0", "alias", "upstairs", "promisc", "on"]);
        let state = || world.state_with(&[&c1]).apart_from("", "uplink");
        let (before, links) = (card(&world, "nic0"), state());
        let config = config_with(keys);
        let error = c1.call("host-device", "ADD", &config).run().error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!(said.contains(says), "{says} expected: {error:?}");
        assert_eq!(card(&world, "nic0"), before, "after a failed ADD of {config}");
        links.assert_same(&state(), &format!("after a failed ADD of {config}"));
        c1.del("host-device", &config_with(json!({"ipam": null})));
        assert_eq!(card(&world, "nic0"), before, "after its DEL");
    }
}

#[test]
fn an_interface_that_is_there_already_costs_the_card_nothing() {
    let world = world();
    let c1 = world.container("c1");
    c1.exec(["ip", "link", "add", "eth0", "type", "bridge"]);
    world.host(["ip", "address", "add", "10.8.0.1/24", "dev", "nic0"]);
    let before = world.state_with(&[&c1]);
    c1.call("host-device", "ADD", &plain()).run().fails(999, &["eth0", "already exists"]);
    before.assert_same(&world.state_with(&[&c1]), "its addresses are still there");
}

#[test]
fn a_second_container_cannot_have_it_too() {
    let world = world();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let result = c1.add("host-device", &config());
    c2.call("host-device", "ADD", &config()).run().fails(7, &["device: nic0"]);
    c2.del("host-device", &config());
    c1.check("host-device", &config(), &result);
    c1.ping("10.7.0.1");
}

#[test]
fn one_of_many_adds_at_once_gets_the_card() {
    let world = world();
    let before = card(&world, "nic0");
    let containers: Vec<_> = (0..6).map(|n| world.container(&format!("c{n}"))).collect();
    let calls = containers.iter().map(|container| container.call("host-device", "ADD", &plain()));
    let outcomes = crate::world::all_at_once(calls);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.status == 0).count(), 1);
    let dels = containers.iter().map(|container| container.call("host-device", "DEL", &plain()));
    crate::world::all_at_once(dels).into_iter().for_each(|outcome| outcome.silence());
    assert_eq!(card(&world, "nic0"), before);
}

#[test]
fn invalid_keys_are_refused_before_any_change() {
    let bare = Bare::new();
    let device = json!({"cniVersion": "1.1.0", "name": "n", "type": "host-device"});
    let cases = [
        (json!({}), r#"specify either "device", "hwaddr", "kernelpath" or "pciBusID""#),
        (json!({"device": ""}), "specify either"),
        (json!({"hwaddr": "02:00:5e"}), "hwaddr"),
        (json!({"kernelpath": "devices/x"}), "kernelpath"),
        (json!({"kernelpath": "/sys/class/net/eth0"}), "kernelpath"),
        (json!({"kernelpath": "/sys/devices/../../etc"}), "kernelpath"),
        (json!({"kernelpath": "/sys/devicesx/a"}), "kernelpath"),
        (json!({"pciBusID": "../../x"}), "pciBusID"),
        (json!({"pciBusID": "ffff:ff:1f.7"}), "pciBusID: ffff:ff:1f.7: device not found"),
        (json!({"runtimeConfig": {"deviceID": "a/b"}}), "deviceID"),
        (json!({"runtimeConfig": {"deviceID": "none.sf.1"}}), "deviceID: none.sf.1"),
    ];
    for (keys, says) in cases {
        let config: Value = with(&device, keys);
        let error = bare.call("host-device", "STATUS", &config).run().error();
        assert!(error.code == 50 || error.code == 7, "{config}: {error:?}");
        assert!(format!("{}: {}", error.msg, error.details).contains(says), "{says}: {error:?}");
        let world = crate::world::World::new();
        let c1 = world.container("c1");
        c1.call("host-device", "ADD", &config).run().fails(7, &[says]);
    }
}

#[test]
fn keys_of_another_type_are_refused() {
    let bare = Bare::new();
    for (key, value) in [("device", json!(1)), ("hwaddr", json!([])), ("DPDKMode", json!("yes"))] {
        let config = config_with(json!({key: value}));
        bare.call("host-device", "ADD", &config).run().fails(6, &[key]);
    }
}

#[test]
fn a_card_that_came_back_by_itself_can_be_used_at_once() {
    let world = world();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let before = card(&world, "nic0");
    c1.add("host-device", &config());
    c1.exec(["ip", "link", "set", "eth0", "mtu", "1300", "address", "02:00:00:00:07:99"]);
    super::end_namespace(&c1, "eth0");
    assert!(world.links().contains(&"eth0".into()), "it has the name that it had in there");

    let by_mac = config_with(json!({"device": null, "hwaddr": MAC}));
    let result = c2.add("host-device", &by_mac);
    c2.ping("10.7.0.1");
    c2.check("host-device", &by_mac, &result);
    c1.call("host-device", "DEL", &config()).env("CNI_NETNS", "").run().silence();
    c2.ping("10.7.0.1");
    c2.del("host-device", &by_mac);
    assert_eq!(card(&world, "nic0"), before, "as it was before the first one");
}

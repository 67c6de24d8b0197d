//! ADD: every key, every version, and what cannot be.

use serde_json::{Value, json};

use super::{config, link, plain, plain_with};
use crate::world::{World, through_dhcp, with};

#[test]
fn a_persistent_tap_without_an_owner() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("tap", &plain());
    let tap = link(&c1, "eth0");
    let info = &tap["linkinfo"]["info_data"];
    assert_eq!((&tap["linkinfo"]["info_kind"], &info["type"]), (&json!("tun"), &json!("tap")));
    assert_eq!((&info["persist"], &info["multi_queue"]), (&json!(true), &json!(false)), "{info}");
    assert_eq!((info.get("user"), info.get("group")), (None, None), "{info}");
    let interfaces = json!([{"name": "eth0", "mac": tap["address"], "sandbox": c1.netns()}]);
    assert_eq!(result, json!({"cniVersion": "1.1.0", "interfaces": interfaces}));
    assert!(tap["flags"].as_array().unwrap().contains(&json!("UP")), "{tap}");
    c1.check("tap", &plain(), &result);
}

#[test]
fn every_key_counts_together_with_the_others() {
    let keys = [
        (json!({"mtu": 1400}), "mtu", json!(1400)),
        (json!({"mac": "02:00:00:00:00:33"}), "address", json!("02:00:00:00:00:33")),
        (json!({"owner": 0}), "user", json!("root")),
        (json!({"group": 0}), "group", json!("root")),
        (json!({"multiQueue": true}), "multi_queue", json!(true)),
        (json!({"bridge": "br0"}), "master", json!("br0")),
    ];
    let all = keys.iter().fold(json!({}), |all, (one, ..)| with(&all, one.clone()));
    for base in [json!({}), all] {
        for (key, what, value) in &keys {
            let world = World::new();
            let c1 = world.container("c1");
            c1.exec(["ip", "link", "add", "br0", "type", "bridge"]);
            let config = plain_with(with(&base, key.clone()));
            let result = c1.add("tap", &config);
            let tap = link(&c1, "eth0");
            let found = tap["linkinfo"]["info_data"].get(what).or_else(|| tap.get(what));
            // iproute2 has names for ids.
            assert_eq!(found, Some(value), "{config}: {tap}");
            c1.check("tap", &config, &result);
            c1.del("tap", &config);
        }
    }
}

#[test]
fn the_last_mac_address_counts() {
    let mac = |byte: u8| json!(format!("02:00:00:00:00:{byte:02x}"));
    let cases = [
        (json!({"mac": mac(1)}), "", mac(1)),
        (json!({"mac": mac(1)}), "MAC=02:00:00:00:00:02", mac(2)),
        (json!({"mac": mac(1), "args": {"cni": {"mac": mac(3)}}}), "MAC=02:00:00:00:00:02", mac(3)),
        (json!({"mac": mac(1), "runtimeConfig": {"mac": mac(4)}}), "MAC=02:00:00:00:00:02", mac(4)),
    ];
    for (keys, args, expected) in cases {
        let world = World::new();
        let c1 = world.container("c1");
        let call = c1.call("tap", "ADD", &plain_with(keys)).env("CNI_ARGS", args);
        assert_eq!(call.run().success()["interfaces"][0]["mac"], expected);
        assert_eq!(link(&c1, "eth0")["address"], expected);
    }
}

#[test]
fn addresses_routes_and_dns() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = with(&config(), json!({"dns": {"nameservers": ["10.6.0.1"]}}));
    let result = c1.add("tap", &config);
    assert_eq!(c1.addresses("eth0"), ["10.6.0.2/24", "fd06::2/64"]);
    assert_eq!(c1.json(["ip", "-j", "route", "show", "default"])[0]["gateway"], "10.6.0.1");
    assert_eq!(result["ips"][1]["interface"], 0);
    assert_eq!(result["dns"], json!({"nameservers": ["10.6.0.1"]}));
    assert_eq!(c1.sysctl("net/ipv4/conf/eth0/arp_notify"), "1");
    c1.check("tap", &config, &result);
}

#[test]
fn an_ipam_plugin_can_talk_through_it() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = plain_with(json!({"cniVersion": "1.0.0", "ipam": {"type": "dhcp"}}));
    for verb in ["ADD", "DEL"] {
        let outcome = through_dhcp(c1.call("tap", verb, &config)).run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
    assert_eq!(c1.exec(["ip", "-o", "link"]).lines().count(), 1);
}

#[test]
fn an_interface_of_that_name_is_an_error_and_survives() {
    // A tap that stays could be connected with instead of made.
    for kind in [
        "ip tuntap add eth0 mode tap",
        "ip tuntap add eth0 mode tun",
        "ip link add eth0 type bridge",
    ] {
        let world = World::new();
        let c1 = world.container("c1");
        c1.exec(["sh", "-c", kind]);
        let before = world.state_with(&[&c1]).apart_from("", "vm");
        c1.call("tap", "ADD", &config()).run().fails(999, &["eth0", "already exists"]);
        before.assert_same(&world.state_with(&[&c1]).apart_from("", "vm"), kind);
    }
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("tap", &config());
    c1.call("tap", "ADD", &config()).run().fails(999, &["eth0", "already exists"]);
    c1.check("tap", &config(), &result);
}

#[test]
fn one_of_many_adds_at_once_for_one_name_succeeds() {
    let world = World::new();
    let c1 = world.container("c1");
    let calls = (0..6).map(|_| c1.call("tap", "ADD", &plain()));
    let outcomes = crate::world::all_at_once(calls);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.status == 0).count(), 1);
    assert_eq!(link(&c1, "eth0")["linkinfo"]["info_data"]["persist"], true);
    assert_eq!(c1.json(["ip", "-j", "link"]).as_array().unwrap().len(), 2);
}

#[test]
fn a_failed_add_leaves_nothing() {
    let far = json!([{"dst": "10.98.0.0/16", "gw": "192.168.77.1", "scope": 254}]);
    let cases = [
        (json!({"ipam": {"type": "none-such"}}), 7, "failed to find plugin"),
        (json!({"ipam": {"type": "static"}}), 999, "IP"),
        (json!({"ipam": {"routes": far}}), 999, "10.98.0.0/16"),
        (json!({"mtu": 20}), 7, "invalid MTU 20, must be [68, 65521]"),
        (json!({"mtu": 70000}), 7, "invalid MTU 70000, must be [68, 65521]"),
        (json!({"mtu": -1}), 7, "invalid MTU -1"),
        (json!({"mac": "nonsense"}), 7, "mac"),
        (json!({"mac": "02:00:00:00:00:00:00:01"}), 7, "mac"),
        (json!({"bridge": "none0"}), 7, "bridge: interface none0"),
        (json!({"bridge": "lo"}), 7, "bridge: interface lo"),
        (json!({"bridge": "a-name-of-more-than-fifteen-bytes"}), 7, "bridge"),
        (json!({"owner": 12345}), 999, "owner"),
        (json!({"group": 4294967295u32}), 999, "owner"),
        (json!({"selinuxContext": "system_u:system_r:container_t:s0"}), 999, "container_t"),
        (json!({"owner": -1}), 6, "owner"),
        (json!({"owner": "root"}), 6, "owner"),
        (json!({"multiQueue": "yes"}), 6, "multiQueue"),
    ];
    for (keys, code, says) in cases {
        let world = World::new();
        let c1 = world.container("c1");
        let before = world.state_with(&[&c1]).apart_from("", "vm");
        let config: Value = with(&config(), keys);
        c1.call("tap", "ADD", &config).run().fails(code, &[says]);
        before.assert_same(&world.state_with(&[&c1]).apart_from("", "vm"), &config.to_string());
    }
}

#[test]
fn without_the_device_file_the_kernel_option_is_named() {
    let world = World::new();
    world.host(["sh", "-ec", "mount -t tmpfs none /dev/net"]);
    let c1 = world.container("c1");
    let call = |verb: &str| c1.call("tap", verb, &plain()).run();
    call("ADD").fails(999, &["cannot open /dev/net/tun", "the kernel lacks CONFIG_TUN"]);
    call("STATUS").fails(50, &["cannot open /dev/net/tun", "the kernel lacks CONFIG_TUN"]);
    call("DEL").silence();
}

//! Every key does what it says, from wherever it comes, and the result says so.

use serde_json::{Value, json};

use super::{AFTERWARDS, FILE, all, container, link, tuned, tuning};
use crate::world::{VERSIONS, World, with, without};

#[test]
fn all_keys_at_once_are_set_and_in_the_result() {
    let world = World::new();
    let (c1, result) = container(&world);
    let added = c1.add("tuning", &tuning(all(), &result));
    assert_eq!(tuned(&c1), AFTERWARDS);
    let mut expected = result;
    expected["interfaces"][1]["mtu"] = 1400.into();
    for index in [0, 1] {
        expected["interfaces"][index]["mac"] = "02:00:00:00:00:ff".into();
    }
    assert_eq!(added, expected, "by name, as in the reference");
    c1.check("tuning", &tuning(all(), &added), &added);
}

#[test]
fn the_result_tells_the_new_mac_and_mtu_however_the_sandbox_is_written() {
    let world = World::new();
    let (c1, result) = container(&world);
    for sandbox in ["", "/proc/1/ns/net", "/var/run/netns/c1"] {
        let mut result = result.clone();
        result["interfaces"][1]["sandbox"] = sandbox.into();
        result["interfaces"].as_array_mut().unwrap().push(json!({"name": "peer", "mtu": 1500}));
        let added = c1.add("tuning", &tuning(all(), &result));
        let eth0 = &added["interfaces"][1];
        assert_eq!((&eth0["mac"], &eth0["mtu"]), (&json!("02:00:00:00:00:ff"), &json!(1400)));
        assert_eq!(added["interfaces"][2], result["interfaces"][2], "another name");
    }
}

#[test]
fn an_add_without_keys_leaves_nothing() {
    let world = World::new();
    let (c1, result) = container(&world);
    let before = world.state_with(&[&c1]);
    for keys in
        [json!({}), json!({"sysctl": {}, "mac": "", "mtu": 0, "promisc": false, "allmulti": null})]
    {
        assert_eq!(c1.add("tuning", &tuning(keys.clone(), &result)), result);
        before.assert_same(&world.state_with(&[&c1]), "after an ADD of nothing");
        c1.check("tuning", &tuning(keys.clone(), &result), &result);
        c1.del("tuning", &tuning(keys, &result));
    }
}

#[test]
fn each_key_alone_changes_only_its_own() {
    let changed = |keys: Value| {
        let world = World::new();
        let (c1, result) = container(&world);
        c1.exec(["ip", "link", "set", "eth0", "allmulticast", "on"]);
        c1.add("tuning", &tuning(keys, &result));
        tuned(&c1)
    };
    let before = changed(json!({}));
    for (keys, from, to) in [
        (json!({"mac": "0200.0000.00fe"}), "02:00:00:00:00:01", "02:00:00:00:00:fe"),
        (json!({"mtu": 9000}), " 1500 ", " 9000 "),
        (json!({"txQLen": 5}), " 1000 ", " 5 "),
        (json!({"promisc": true}), " false true", " true true"),
        (json!({"allmulti": false}), " false true", " false false"),
        (json!({"sysctl": {"net.core.somaxconn": "0x10"}}), "\"4096\"", "\"16\""),
    ] {
        assert!(before.contains(from), "{before}");
        assert_eq!(changed(keys.clone()), before.replace(from, to), "{keys}");
    }
}

#[test]
fn interfaces_with_dots_are_reached_by_ifname() {
    let world = World::new();
    let (c1, result) = container(&world);
    c1.exec(["ip", "link", "add", "eth0.100", "type", "veth", "peer", "name", "peer.100"]);
    let keys = json!({"sysctl": {"net.ipv4.conf.IFNAME.forwarding": "1", "net/ipv6/conf/IFNAME/mtu": "1300"}});
    c1.call("tuning", "ADD", &tuning(keys, &result)).env("CNI_IFNAME", "eth0.100").run().success();
    assert_eq!(c1.sysctl("net/ipv4/conf/eth0.100/forwarding"), "1");
    assert_eq!(c1.sysctl("net/ipv6/conf/eth0.100/mtu"), "1300");
    assert_eq!(c1.sysctl("net/ipv4/conf/eth0/forwarding"), "0");
}

/// Those of sysctl(8), where the name of the interface has a dot.
#[test]
fn each_notation_leads_to_the_file_that_exists() {
    let world = World::new();
    let (c1, result) = container(&world);
    c1.exec(["ip", "link", "add", "eth0.100", "type", "veth", "peer", "name", "peer.100"]);
    for (number, key) in [
        "net/ipv4/conf/eth0.100/medium_id",
        "net.ipv4.conf.eth0/100.medium_id",
        "net/ipv6/conf/eth0.100/hop_limit",
        "net.ipv6.conf.eth0/100.hop_limit",
        // The reference's, where dots and slashes separate.
        "net.ipv4/conf.eth0/medium_id",
        "net.ipv4.conf.IFNAME/100.medium_id",
    ]
    .into_iter()
    .enumerate()
    {
        let path = match number {
            4 => "net/ipv4/conf/eth0/medium_id",
            2 | 3 => "net/ipv6/conf/eth0.100/hop_limit",
            _ => "net/ipv4/conf/eth0.100/medium_id",
        };
        let (value, before) = (format!("{}", 70 + number), c1.sysctl(path));
        let config = tuning(json!({"sysctl": {key: value}}), &result);
        let added = c1.add("tuning", &config);
        assert_eq!(c1.sysctl(path), value, "{key}");
        c1.check("tuning", &config, &added);
        c1.exec(["sysctl", "-q", "-w", &format!("{path}=1")]);
        c1.checking("tuning", &config, &added).run().fails(999, &["is 1, not"]);
        c1.del("tuning", &config);
        assert_eq!(c1.sysctl(path), before, "{key}");
    }
    let both =
        json!({"net/ipv4/conf/eth0.100/medium_id": "1", "net.ipv4.conf.eth0/100.medium_id": "1"});
    let twice = c1.call("tuning", "ADD", &tuning(json!({"sysctl": both}), &result)).run();
    twice.fails(7, &["duplicated sysctl keys are not allowed"]);
    for key in ["net/ipv4/conf/eth1.100/medium_id", "net.ipv4.conf.eth1/100.medium_id"] {
        let config = tuning(json!({"sysctl": {key: "1"}}), &result);
        c1.call("tuning", "ADD", &config).run().fails(999, &["No such file or directory"]);
    }
}

#[test]
fn sysctls_are_written_in_their_order() {
    let world = World::new();
    let (c1, result) = container(&world);
    // The first one sets all interfaces.
    for (value, other) in [("1", "0"), ("0", "1")] {
        let keys = json!({"sysctl": {"net.ipv4.conf.all.forwarding": value}, "args": {"cni": {"sysctl":
            {"net.ipv4.conf.IFNAME.forwarding": other}}}});
        c1.add("tuning", &tuning(keys, &result));
        assert_eq!(c1.sysctl("net/ipv4/conf/eth0/forwarding"), other);
        assert_eq!(c1.sysctl("net/ipv4/conf/lo/forwarding"), value);
    }
}

#[test]
fn a_sysctl_without_read_permission_is_written() {
    let world = World::new();
    let (c1, result) = container(&world);
    let keys = json!({"sysctl": {"net.ipv4.route.flush": "1", "net.ipv6.conf.IFNAME.stable_secret": "2001:db8::1"}});
    c1.add("tuning", &tuning(keys.clone(), &result));
    assert_eq!(
        c1.sysctl("net/ipv6/conf/eth0/stable_secret"),
        "2001:0db8:0000:0000:0000:0000:0000:0001"
    );
    c1.del("tuning", &tuning(keys, &result));
}

/// A DEL could not restore a value that was not saved.
#[test]
fn a_sysctl_that_was_not_read_is_not_written() {
    let world = World::new();
    let (c1, result) = container(&world);
    let config = tuning(json!({"sysctl": {"net.core.somaxconn": "77"}}), &result);
    let before = c1.sysctl("net/core/somaxconn");
    for error in ["EMFILE", "ENFILE", "ENOMEM"] {
        // The first open reads the value, the second one sets it.
        let inject = format!("inject=open,openat:error={error}:when=1");
        let sysctl = "/proc/sys/net/core/somaxconn";
        let strace = ["strace", "-qq", "-o", "/run/trace", "-P", sysctl, "-e", &inject];
        let add = c1.call("tuning", "ADD", &config).under(&strace).run();
        add.fails(999, &["cannot read net.core.somaxconn"]);
        assert_eq!(c1.sysctl("net/core/somaxconn"), before, "{error}");
    }
}

#[test]
fn the_last_source_counts() {
    let mac = |last: &str| format!("02:00:00:00:00:{last}");
    let cases = [
        (json!({"mac": mac("0a")}), "", "0a"),
        (json!({"mac": mac("0a")}), "0b", "0b"),
        (json!({"mac": mac("0a"), "runtimeConfig": {"mac": mac("0c")}}), "0b", "0c"),
        (
            json!({"runtimeConfig": {"mac": mac("0c")}, "args": {"cni": {"mac": mac("0d")}}}),
            "0b",
            "0d",
        ),
        (json!({"runtimeConfig": {"mac": ""}, "args": {"cni": {"mac": null}}}), "0b", "0b"),
    ];
    for (keys, by_env, expected) in cases {
        let world = World::new();
        let (c1, result) = container(&world);
        let args = if by_env.is_empty() { String::new() } else { format!("MAC={}", mac(by_env)) };
        let call =
            |verb| c1.call("tuning", verb, &tuning(keys.clone(), &result)).env("CNI_ARGS", &args);
        let added = call("ADD").run().success();
        assert_eq!(link(&c1)["address"], mac(expected), "{keys} {by_env}");
        assert_eq!(added["interfaces"][1]["mac"], mac(expected));
        call("CHECK").run().silence();
    }
}

#[test]
fn args_go_over_every_key() {
    let world = World::new();
    let (c1, result) = container(&world);
    let base = json!({"mtu": 1300, "promisc": true, "allmulti": false, "txQLen": 5, "mac": "02:00:00:00:00:02",
        "sysctl": {"net.core.somaxconn": "5", "net.ipv4.ip_local_port_range": "2000 3000"}});
    let mut args = all();
    args["sysctl"].as_object_mut().unwrap().remove("net.ipv4.ip_local_port_range");
    c1.add("tuning", &tuning(with(&base, json!({"args": {"cni": args}})), &result));
    assert_eq!(tuned(&c1), AFTERWARDS);
    let off = json!({"promisc": true, "args": {"cni": {"promisc": false}}});
    c1.exec(["ip", "link", "set", "eth0", "promisc", "off"]);
    c1.add("tuning", &tuning(off, &result));
    assert!(tuned(&c1).contains(" 77 false "));
}

#[test]
fn args_need_no_sysctl_beside_them() {
    let world = World::new();
    let (c1, result) = container(&world);
    // The reference panics.
    let keys = json!({"args": {"cni": {"sysctl": {"net.core.somaxconn": "77"}}}});
    c1.add("tuning", &tuning(keys, &result));
    assert_eq!(c1.sysctl("net/core/somaxconn"), "77");
}

#[test]
fn every_version_is_handed_on() {
    for version in VERSIONS {
        let world = World::new();
        let (c1, _) = container(&world);
        let network = json!({"cniVersion": version, "name": "net", "type": "veth",
            "ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]}});
        c1.exec(["ip", "link", "del", "eth0"]);
        let result = c1.add("veth", &network);
        let config = with(&tuning(json!({"mtu": 1400}), &result), json!({"cniVersion": version}));
        assert_eq!(
            without(&c1.add("tuning", &config), "interfaces"),
            without(&result, "interfaces")
        );
        assert_eq!(link(&c1)["mtu"], 1400, "{version}");
        c1.del("tuning", &config);
        assert_eq!(link(&c1)["mtu"], 1500, "{version}");
    }
}

#[test]
fn an_interface_that_is_not_wanted_need_not_be() {
    let world = World::new();
    let (c1, result) = container(&world);
    c1.exec(["ip", "link", "del", "eth0"]);
    let keys = json!({"sysctl": {"net.core.somaxconn": "77"}});
    c1.add("tuning", &tuning(keys, &result));
    let error = c1.call("tuning", "ADD", &tuning(json!({"mtu": 1400}), &result)).run();
    error.fails(999, &["interface eth0 not found"]);
    assert!(world.read(FILE).contains("\"4096\""));
}

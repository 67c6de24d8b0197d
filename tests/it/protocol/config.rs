//! The configuration on stdin: JSON as Go reads it, and what is said about JSON that is none.

use serde_json::json;

use super::host_local;
use crate::world::{Bare, World, with, without};

#[test]
fn only_one_json_object_is_accepted() {
    let bare = Bare::new();
    let good = host_local(&bare).to_string();
    let garbage = format!("{good} x");
    let second = format!("{good}{good}");
    let cases =
        ["", " \n", "{", "[]", "\"x\"", "5", "true", "{,}", "{\"name\"}", &garbage, &second];
    for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
        for stdin in cases {
            bare.call("host-local", verb, &json!({})).stdin(stdin).run().fails(6, &[]);
        }
    }
    assert_eq!(bare.taken("net"), [""; 0]);
}

#[test]
fn space_around_the_object_is_fine() {
    let bare = Bare::new();
    let spaced = format!("\r\n\t {} \n\n", host_local(&bare));
    bare.call("host-local", "ADD", &json!({})).stdin(spaced).run().success();
}

#[test]
fn a_network_needs_a_name() {
    let bare = Bare::new();
    let config = host_local(&bare);
    for nameless in [
        without(&config, "name"),
        with(&config, json!({"name": ""})),
        with(&config, json!({"name": null})),
    ] {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            let error = bare.call("host-local", verb, &nameless).run().fails(7, &[]);
            assert!(error.msg.contains("missing network name"), "{error:?}");
        }
    }
}

#[test]
fn an_invalid_network_name_is_refused() {
    let bare = Bare::new();
    for name in ["-a", ".a", "..", "a/b", "../a", "a b", "a\n", "ä", "a:b"] {
        let config = with(&host_local(&bare), json!({"name": name}));
        let error = bare.call("host-local", "ADD", &config).run().fails(7, &[]);
        assert_eq!(error.details, name, "{error:?}");
    }
    assert!(!bare.network("").exists(), "a refused call does nothing");
}

#[test]
fn keys_match_in_any_case() {
    let bare = Bare::new();
    let config = json!({
        "CNIVERSION": "1.0.0", "Name": "net", "TYPE": "host-local",
        "Ipam": {"Type": "host-local", "DATADIR": bare.data_dir(), "RANGES": [[{"Subnet": "10.1.0.0/24",
            "rangestart": "10.1.0.77", "GateWay": "10.1.0.9"}]], "Routes": [{"DST": "0.0.0.0/0", "GW": "10.1.0.5"}]},
    });
    let result = bare.call("host-local", "ADD", &config).run().success();
    let expected = json!({
        "cniVersion": "1.0.0",
        "ips": [{"address": "10.1.0.77/24", "gateway": "10.1.0.9"}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.5"}],
    });
    assert_eq!(result, expected);
}

#[test]
fn null_is_absent_everywhere() {
    let bare = Bare::new();
    let config = json!({
        "cniVersion": null, "name": "net", "type": null, "capabilities": null, "dns": null, "args": null,
        "runtimeConfig": null, "prevResult": null, "cni.dev/valid-attachments": null,
        "ipam": {"type": "host-local", "dataDir": bare.data_dir(), "subnet": "10.1.0.0/24", "rangeStart": null,
            "rangeEnd": null, "gateway": null, "ranges": null, "routes": null, "resolvConf": null},
    });
    let result = bare.call("host-local", "ADD", &config).run().success();
    assert_eq!(result["ip4"], json!({"ip": "10.1.0.2/24", "gateway": "10.1.0.1"}));
    let empty = with(
        &config,
        json!({"args": {"cni": null}, "runtimeConfig": {"ips": null, "ipRanges": null}, "capabilities": {}}),
    );
    bare.call("host-local", "DEL", &empty).run().silence();
}

#[test]
fn unknown_keys_and_broken_utf8_are_no_concern_of_ours() {
    let bare = Bare::new();
    let config =
        with(&host_local(&bare), json!({"keyA": ["some", {"more": 1.5e3}], "comment": "@"}));
    let text = config.to_string().into_bytes();
    let broken: Vec<u8> =
        text.into_iter().map(|byte| if byte == b'@' { 0xff } else { byte }).collect();
    bare.call("host-local", "ADD", &json!({})).stdin(broken).run().success();
}

#[test]
fn the_last_of_two_equal_keys_counts() {
    let bare = Bare::new();
    let text = host_local(&bare).to_string();
    let twice = text.replacen('{', r#"{"name": "first", "#, 1);
    bare.call("host-local", "ADD", &json!({})).stdin(twice).run().success();
    assert_eq!(bare.taken("net"), ["10.1.0.2"]);
    assert!(!bare.network("first").exists());
}

#[test]
fn two_objects_under_one_key_are_merged() {
    let bare = Bare::new();
    let text = host_local(&bare).to_string();
    let other = r#"{"IPAM": {"subnet": "10.9.0.0/24", "rangeStart": "10.1.0.7"}, "#;
    let twice = text.replacen('{', other, 1);
    let result = bare.call("host-local", "ADD", &json!({})).stdin(twice).run().success();
    assert_eq!(result["ips"][0]["address"], "10.1.0.7/24");
}

#[test]
fn a_value_of_the_wrong_type_is_refused_with_its_key() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]);
    let bridge = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge"});
    let cases = [
        ("cniVersion", json!({"cniVersion": 1})),
        ("name", json!({"name": 5})),
        ("type", json!({"type": []})),
        ("capabilities", json!({"capabilities": {"mac": "yes"}})),
        ("prevResult", json!({"prevResult": []})),
        ("dns", json!({"dns": "10.0.0.1"})),
        ("nameservers", json!({"dns": {"nameservers": "10.0.0.1"}})),
        ("search", json!({"dns": {"search": [5]}})),
        ("ipam", json!({"ipam": "host-local"})),
        ("type", json!({"ipam": {"type": 5}})),
        ("bridge", json!({"bridge": 5})),
        ("mtu", json!({"mtu": "1500"})),
        ("mtu", json!({"mtu": 1500.0})),
        ("mtu", json!({"mtu": 1.5e3})),
        ("isGateway", json!({"isGateway": "true"})),
        ("isDefaultGateway", json!({"isDefaultGateway": 1})),
        ("forceAddress", json!({"forceAddress": "no"})),
        ("hairpinMode", json!({"hairpinMode": 0})),
        ("promiscMode", json!({"promiscMode": {}})),
        ("ipMasq", json!({"ipMasq": "false"})),
        ("vlan", json!({"vlan": "100"})),
        ("enabledad", json!({"enabledad": "x"})),
        ("portIsolation", json!({"portIsolation": 1})),
        ("removeUnused", json!({"removeUnused": 1})),
        ("disableContainerInterface", json!({"disableContainerInterface": []})),
        ("mac", json!({"runtimeConfig": {"mac": 5}})),
        ("mac", json!({"args": {"cni": {"mac": ["x"]}}})),
    ];
    let mut accepted = Vec::new();
    for (key, wrong) in cases {
        let outcome = c1.call("bridge", "ADD", &with(&bridge, wrong.clone())).run();
        if outcome.status == 0 {
            accepted.push(wrong);
            c1.del("bridge", &bridge);
        } else {
            outcome.fails(6, &[key]);
        }
    }
    assert!(accepted.is_empty(), "accepted: {accepted:?}");
    before.assert_same(&world.state_with(&[&c1]), "after refused calls");
}

#[test]
fn a_wrong_type_in_ipam_is_refused_with_its_key() {
    let cases = [
        ("ipam", json!({"ipam": []})),
        ("ranges", json!({"ipam": {"ranges": {}}})),
        ("ranges", json!({"ipam": {"ranges": [{"subnet": "10.0.0.0/24"}]}})),
        ("subnet", json!({"ipam": {"ranges": [[{"subnet": 5}]]}})),
        ("rangeStart", json!({"ipam": {"rangeStart": 1}})),
        ("rangeEnd", json!({"ipam": {"rangeEnd": ["10.1.0.9"]}})),
        ("gateway", json!({"ipam": {"gateway": true}})),
        ("routes", json!({"ipam": {"routes": {"dst": "0.0.0.0/0"}}})),
        ("dst", json!({"ipam": {"routes": [{"dst": 0}]}})),
        ("mtu", json!({"ipam": {"routes": [{"dst": "0.0.0.0/0", "mtu": 1.5}]}})),
        ("priority", json!({"ipam": {"routes": [{"dst": "0.0.0.0/0", "priority": "1"}]}})),
        ("dataDir", json!({"ipam": {"dataDir": 7}})),
        ("resolvConf", json!({"ipam": {"resolvConf": false}})),
        ("ips", json!({"args": {"cni": {"ips": "10.1.0.5"}}})),
        ("ips", json!({"runtimeConfig": {"ips": [5]}})),
        ("ipRanges", json!({"runtimeConfig": {"ipRanges": "x"}})),
    ];
    let bare = Bare::new();
    for (key, wrong) in cases {
        let config = with(&host_local(&bare), wrong);
        bare.call("host-local", "ADD", &config).run().fails(6, &[key]);
    }
    assert!(!bare.network("").exists(), "a refused call does nothing");
}

#[test]
fn a_text_that_is_no_address_is_refused_and_shown() {
    let cases = [
        ("10.0.0.0", json!({"ipam": {"subnet": "10.0.0.0"}})),
        ("10.0.0/24", json!({"ipam": {"subnet": "10.0.0/24"}})),
        ("10.0.0.0/33", json!({"ipam": {"subnet": "10.0.0.0/33"}})),
        ("10.0.0.0/+8", json!({"ipam": {"subnet": "10.0.0.0/+8"}})),
        ("10.1.0.1/24", json!({"ipam": {"rangeStart": "10.1.0.1/24"}})),
        ("10.1.0.01", json!({"ipam": {"rangeStart": "10.1.0.01"}})),
        ("fe80::1%eth0", json!({"ipam": {"rangeEnd": "fe80::1%eth0"}})),
        ("0x0a000001", json!({"ipam": {"gateway": "0x0a000001"}})),
        ("10.0.0.0", json!({"ipam": {"routes": [{"dst": "10.0.0.0"}]}})),
        ("10.0", json!({"ipam": {"routes": [{"dst": "0.0.0.0/0", "gw": "10.0"}]}})),
        ("10.1.0.x", json!({"args": {"cni": {"ips": ["10.1.0.x"]}}})),
        ("10.1.0.5/99", json!({"runtimeConfig": {"ips": ["10.1.0.5/99"]}})),
    ];
    let bare = Bare::new();
    for (text, wrong) in cases {
        let error = bare.call("host-local", "ADD", &with(&host_local(&bare), wrong)).run().error();
        // The type is right, a text; whether what is in it is a matter of reading or of meaning may be judged
        // either way.
        let said = format!("{}: {}", error.msg, error.details);
        assert!([6, 7].contains(&error.code) && said.contains(text), "{text}: {error:?}");
    }
    assert!(!bare.network("").exists(), "a refused call does nothing");
}

/// With a stack of 128 KiB, whatever the number of levels.
#[test]
fn lone_surrogates_large_numbers_and_deep_values_of_unknown_keys_are_read() {
    let bare = Bare::new();
    let config = host_local(&bare).to_string();
    let with_value = |value: &str| config.replacen('{', &format!("{{\"unknown\": {value},"), 1);
    let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    let call = |verb: &str, value: &str| {
        let call = bare.call("host-local", verb, &json!({})).stdin(with_value(value));
        call.under(&["sh", "-c", "ulimit -s 128; exec \"$0\""]).run()
    };
    for value in ["\"\\ud800\"", "\"\\udc00\\ud800x\"", "1e400", "-1E999999", &nested(100_000)] {
        call("ADD", value).success();
        call("CHECK", value).silence();
        call("DEL", value).silence();
    }
    assert_eq!(bare.taken("net"), [""; 0]);
}

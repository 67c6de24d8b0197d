//! Requested addresses: by CNI_ARGS, by `args.cni.ips`, by `runtimeConfig.ips`.

use serde_json::{Value, json};

use super::{Net, addresses};
use crate::world::Call;

const TWO_SETS: &str = r#"{"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}"#;

fn net() -> Net {
    Net::new(serde_json::from_str(TWO_SETS).unwrap())
}

fn asking(net: &Net, args: &str, more: Value) -> Call<'static> {
    let call = net.bare.call("host-local", "ADD", &net.with(more));
    if args.is_empty() { call } else { call.env("CNI_ARGS", args) }
}

#[test]
fn an_address_can_be_asked_for_in_three_ways() {
    let cases = [
        ("IP=10.1.0.50", json!({}), ["10.1.0.50/24", "fd00::2/64"]),
        ("IP=10.1.0.50/8", json!({}), ["10.1.0.50/24", "fd00::2/64"]),
        ("IP=", json!({}), ["10.1.0.2/24", "fd00::2/64"]),
        ("IgnoreUnknown=1;K8S_POD_NAME=x;IP=fd00::50", json!({}), ["10.1.0.2/24", "fd00::50/64"]),
        (
            "",
            json!({"args": {"cni": {"ips": ["10.1.0.51", "fd00::51/64"]}}}),
            ["10.1.0.51/24", "fd00::51/64"],
        ),
        (
            "",
            json!({"runtimeConfig": {"ips": ["fd00::52", "10.1.0.52/24"]}}),
            ["10.1.0.52/24", "fd00::52/64"],
        ),
        (
            "IP=10.1.0.53",
            json!({"runtimeConfig": {"ips": ["fd00::53"]}}),
            ["10.1.0.53/24", "fd00::53/64"],
        ),
        (
            "IP=10.1.0.54",
            json!({"args": {"cni": {"ips": ["10.1.0.54"]}}}),
            ["10.1.0.54/24", "fd00::2/64"],
        ),
        ("", json!({"runtimeConfig": {"IPs": ["10.1.0.55"]}}), ["10.1.0.55/24", "fd00::2/64"]),
        ("", json!({"runtimeConfig": {"ips": []}}), ["10.1.0.2/24", "fd00::2/64"]),
    ];
    for (args, more, expected) in cases {
        let net = net();
        let result = asking(&net, args, more.clone()).run().success();
        assert_eq!(addresses(&result), expected, "{args} {more}");
    }
}

#[test]
fn the_next_address_follows_a_requested_one() {
    let net = net();
    asking(&net, "IP=10.1.0.50", json!({})).run().success();
    assert_eq!(net.read("last_reserved_ip.0"), "10.1.0.50");
    assert_eq!(net.add("next"), ["10.1.0.51/24", "fd00::3/64"]);
}

#[test]
fn an_address_that_cannot_be_had_fails_the_whole_add() {
    let cases = [
        ("IP=10.1.0.7", json!({}), "10.1.0.7"),
        ("IP=10.1.0.1", json!({}), "10.1.0.1"),
        ("IP=10.9.0.9", json!({}), "10.9.0.9"),
        ("", json!({"runtimeConfig": {"ips": ["10.1.0.50", "10.1.0.51"]}}), "10.1.0.5"),
        ("IP=10.1.0.50", json!({"args": {"cni": {"ips": ["10.1.0.51"]}}}), "10.1.0.5"),
        ("", json!({"runtimeConfig": {"ips": ["10.1.0.50", "fd01::1"]}}), "fd01::1"),
        ("", json!({"runtimeConfig": {"ips": ["10.1.0.50", "fd00::1"]}}), "fd00::1"),
    ];
    for (args, more, text) in cases {
        let net = net();
        net.write("10.1.0.7", "other\r\neth0");
        let error = asking(&net, args, more).run().error();
        // Not to be had now, or not in these ranges at all.
        let said = format!("{}: {}", error.msg, error.details);
        assert!([7, 999].contains(&error.code) && said.contains(text), "{args}: {error:?}");
        assert_eq!(net.taken(), ["10.1.0.7"], "{args}");
    }
}

#[test]
fn an_address_of_another_is_called_not_available() {
    let net = net();
    net.write("10.1.0.7", "other\r\neth0");
    let error = asking(&net, "IP=10.1.0.7", json!({})).run().fails(999, &[]);
    let text = "requested IP address 10.1.0.7 is not available in range set 10.1.0.1-10.1.0.254";
    assert!(error.msg.contains(text), "{error:?}");
    assert_eq!(net.read("10.1.0.7"), "other\r\neth0");
}

#[test]
fn a_container_gets_no_second_address_asked_for_or_not() {
    let net = net();
    net.add("abc");
    for args in ["", "IP=10.1.0.60", "IP=10.1.0.2"] {
        let error = asking(&net, args, json!({})).run().fails(999, &["10.1.0.2"]);
        assert!(error.msg.contains("duplicate allocation is not allowed"), "{args}: {error:?}");
        assert_eq!(
            net.taken(),
            ["10.1.0.2", "fd00::2"],
            "the first attachment keeps its addresses"
        );
    }
}

#[test]
fn arguments_are_read_strictly() {
    let bad = [
        "IP",
        "IP=10.1.0.5;",
        "=10.1.0.5",
        "IP=10.1.0.5=6",
        "IP=x",
        "IP=10.1.0.5/99",
        "FOO=1",
        "ip=10.1.0.5",
        "IgnoreUnknown=maybe",
        "IP=x;IgnoreUnknown=1",
    ];
    for args in bad {
        let net = net();
        let error = asking(&net, args, json!({})).run().error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!([4, 7].contains(&error.code) && said.contains("ARGS"), "{args}: {error:?}");
        assert_eq!(net.taken(), [""; 0]);
    }
    for args in [
        "IgnoreUnknown=true;FOO=1",
        "FOO=1;IgnoreUnknown=1",
        "FOO=;IgnoreUnknown=TRUE",
        "IgnoreUnknown=0",
    ] {
        asking(&net(), args, json!({})).run().success();
    }
}

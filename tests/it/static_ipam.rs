//! `static`: the addresses that the configuration names. It touches nothing at all, so it needs no world.

use serde_json::{Value, json};

use crate::world::{Bare, VERSIONS, World, with};

fn config() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge",
        "ipam": {
            "type": "static",
            "addresses": [
                {"address": "10.1.0.5/16", "gateway": "10.1.0.1"},
                {"address": "fd00:1::5/64", "gateway": "fd00:1::1"},
            ],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd09::/48", "gw": "fd00:1::9"}],
            "dns": {"nameservers": ["10.1.0.1"], "domain": "example.org", "search": ["a"], "options": ["b"]},
        },
    })
}

fn add(config: &Value, args: &str) -> crate::world::Outcome {
    Bare::new().call("static", "ADD", config).env("CNI_ARGS", args).run()
}

fn ips(pairs: &[(&str, &str)]) -> Value {
    let object = |&(address, gateway): &(&str, &str)| match gateway {
        "" => json!({"address": address}),
        gateway => json!({"address": address, "gateway": gateway}),
    };
    pairs.iter().map(object).collect()
}

/// Go marshals the reference's own structure with both keys, in this order.
#[test]
fn a_key_in_its_own_case_goes_before_the_same_in_another_case() {
    let of_go = r#"{"address": "10.10.0.1/24", "gateway": "10.10.0.254",
        "Address": {"IP": "10.10.0.1", "Mask": "////AA=="}, "Version": "4"}"#;
    let text = |address: &str| {
        let config = with(&config(), json!({"ipam": {"addresses": "ADDRESS"}}));
        config.to_string().replace("\"ADDRESS\"", &format!("[{address}]"))
    };
    let bare = Bare::new();
    for (address, expected) in [
        (of_go, "10.10.0.1/24"),
        (r#"{"Address": {}, "address": "10.10.0.1/24", "ADDRESS": 7}"#, "10.10.0.1/24"),
        (r#"{"Address": "10.10.0.2/24", "address": null}"#, "10.10.0.2/24"),
        (r#"{"ADDRESS": "10.10.0.3/24", "Address": "10.10.0.4/24"}"#, "10.10.0.4/24"),
    ] {
        let call = bare.call("static", "ADD", &config()).stdin(text(address));
        let result = call.run().success();
        assert_eq!(result["ips"][0]["address"], expected, "{address}");
    }
}

#[test]
fn every_version_has_its_shape() {
    for version in VERSIONS {
        let config = with(&config(), json!({"cniVersion": version}));
        let result = add(&config, "").success();
        let dns = config["ipam"]["dns"].clone();
        let expected = match version {
            "0.1.0" | "0.2.0" => json!({
                "cniVersion": version, "dns": dns,
                "ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0"}]},
                "ip6": {"ip": "fd00:1::5/64", "gateway": "fd00:1::1", "routes": [{"dst": "fd09::/48", "gw": "fd00:1::9"}]},
            }),
            "0.3.0" | "0.3.1" | "0.4.0" => json!({
                "cniVersion": version, "dns": dns, "routes": config["ipam"]["routes"],
                "ips": [
                    {"version": "4", "address": "10.1.0.5/16", "gateway": "10.1.0.1"},
                    {"version": "6", "address": "fd00:1::5/64", "gateway": "fd00:1::1"},
                ],
            }),
            _ => json!({
                "cniVersion": version, "dns": dns, "routes": config["ipam"]["routes"],
                "ips": config["ipam"]["addresses"],
            }),
        };
        assert_eq!(result, expected);
    }
}

#[test]
fn addresses_come_from_four_sources() {
    let own = [("10.1.0.5/16", "10.1.0.1"), ("fd00:1::5/64", "fd00:1::1")];
    let plus = |more: &[(&'static str, &'static str)]| ips(&[&own[..], more].concat());
    let bare = json!([{"address": "10.1.0.5/16"}]);
    let cases = [
        ("", json!({}), ips(&own)),
        ("IP=10.9.0.7/24", json!({}), plus(&[("10.9.0.7/24", "")])),
        ("IP=10.9.0.7/24, fd09::7/64", json!({}), plus(&[("10.9.0.7/24", ""), ("fd09::7/64", "")])),
        ("IP=10.9.0.7/24;GATEWAY=10.9.0.1", json!({}), plus(&[("10.9.0.7/24", "10.9.0.1")])),
        (
            "GATEWAY=fd09::1,10.9.0.1;IP=10.9.0.7/24,fd09::7/64",
            json!({}),
            plus(&[("10.9.0.7/24", "10.9.0.1"), ("fd09::7/64", "fd09::1")]),
        ),
        ("IP=10.9.0.7/24;GATEWAY=10.8.0.1", json!({}), plus(&[("10.9.0.7/24", "")])),
        ("IgnoreUnknown=true;FOO=bar;IP=10.9.0.7/24", json!({}), plus(&[("10.9.0.7/24", "")])),
        ("", json!({"args": {"cni": {"ips": ["10.8.0.7/24"]}}}), ips(&[("10.8.0.7/24", "")])),
        ("", json!({"args": {"cni": {"ips": []}}}), ips(&own)),
        (
            "",
            json!({"runtimeConfig": {"ips": ["10.7.0.7/24", "fd07::7/64"]}}),
            ips(&[("10.7.0.7/24", ""), ("fd07::7/64", "")]),
        ),
        (
            "IP=10.9.0.7/24",
            json!({"args": {"cni": {"ips": ["10.8.0.7/24"]}}, "runtimeConfig": {"ips": ["10.7.0.7/24"]}}),
            ips(&[("10.7.0.7/24", "")]),
        ),
        // GATEWAY is that of the addresses of IP alone.
        ("GATEWAY=10.1.0.9", json!({"ipam": {"addresses": bare}}), ips(&[("10.1.0.5/16", "")])),
        (
            "IP=10.8.0.9/24;GATEWAY=10.8.0.1",
            json!({"args": {"cni": {"ips": ["10.8.0.7/24"]}}}),
            ips(&[("10.8.0.7/24", "")]),
        ),
    ];
    for (args, keys, expected) in cases {
        let result = add(&with(&config(), keys.clone()), args).success();
        assert_eq!(result["ips"], expected, "{args} {keys}");
    }
}

#[test]
fn host_bits_and_spelling_are_as_in_the_reference() {
    let addresses =
        json!([{"address": "10.1.2.3/8"}, {"address": "FD00:0:0::00FF/48", "gateway": ""}]);
    let result = add(&with(&config(), json!({"ipam": {"addresses": addresses}})), "").success();
    assert_eq!(result["ips"], ips(&[("10.1.2.3/8", ""), ("fd00::ff/48", "")]));
}

#[test]
fn an_invalid_address_is_refused_and_named() {
    let cases = [
        ("", json!({"ipam": {"addresses": [{"address": "10.1.0.5"}]}}), "10.1.0.5"),
        ("", json!({"ipam": {"addresses": [{"address": "10.1.0.5/33"}]}}), "10.1.0.5/33"),
        ("", json!({"ipam": {"addresses": [{"address": ""}]}}), "address"),
        (
            "",
            json!({"ipam": {"addresses": [{"address": "10.1.0.5/24", "gateway": "x"}]}}),
            "gateway",
        ),
        ("", json!({"ipam": {"routes": [{"dst": "10.1.0.5"}]}}), "dst"),
        ("", json!({"args": {"cni": {"ips": ["10.8.0.7"]}}}), "10.8.0.7"),
        ("", json!({"runtimeConfig": {"ips": ["10.7.0.7"]}}), "10.7.0.7"),
    ];
    for (args, keys, text) in cases {
        let error = add(&with(&config(), keys.clone()), args).error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!([6, 7].contains(&error.code) && said.contains(text), "{keys}: {error:?}");
    }
    let with_args = [
        ("IP=10.9.0.7", "10.9.0.7"),
        ("IP=10.9.0.7/24;GATEWAY=x", "x"),
        ("IP=10.9.0.7/24;FOO=1", "FOO"),
        ("IP", "ARGS"),
    ];
    for (args, text) in with_args {
        let error = add(&config(), args).error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!([4, 7].contains(&error.code) && said.contains(text), "{args}: {error:?}");
    }
}

#[test]
fn early_versions_have_one_address_per_family() {
    let addresses = json!([{"address": "10.1.0.5/16"}, {"address": "10.2.0.5/16"}]);
    for version in ["0.1.0", "0.2.0"] {
        let keys = json!({"cniVersion": version, "ipam": {"addresses": addresses}});
        let text = format!("CNI version {version} does not support more than 1 address per family");
        add(&with(&config(), keys), "").fails(7, &[&text]);
    }
}

#[test]
fn no_address_is_accepted_in_versions_that_allow_it() {
    let none = json!({"ipam": {"addresses": []}});
    let result = add(&with(&config(), none.clone()), "").success();
    assert_eq!(result.get("ips"), None);
    let old = with(&with(&config(), none), json!({"cniVersion": "0.2.0"}));
    let error = add(&old, "").fails(999, &[]);
    assert!(error.msg.contains("cannot convert: no valid IP addresses"), "{error:?}");
}

#[test]
fn its_section_is_required() {
    let error = add(&with(&config(), json!({"ipam": null})), "").fails(7, &[]);
    assert!(error.msg.contains("IPAM config missing 'ipam' key"), "{error:?}");
}

#[test]
fn del_does_not_read_the_addresses() {
    let bare = Bare::new();
    let broken =
        with(&config(), json!({"ipam": {"addresses": [{"address": "nonsense"}], "routes": 5}}));
    bare.call("static", "DEL", &broken).run().silence();
    bare.call("static", "DEL", &with(&config(), json!({"ipam": null}))).run().silence();
}

#[test]
fn check_compares_with_the_result() {
    let bare = Bare::new();
    let result = bare.call("static", "ADD", &config()).run().success();
    let check = |result: &Value| {
        bare.call("static", "CHECK", &with(&config(), json!({"prevResult": result}))).run()
    };
    check(&result).silence();
    let mut other_gateway = result.clone();
    other_gateway["ips"][0]["gateway"] = "10.1.0.9".into();
    check(&other_gateway).fails(999, &["10.1.0.5"]);
    let mut missing = result;
    missing["ips"].as_array_mut().unwrap().remove(0);
    check(&missing).fails(999, &["10.1.0.5"]);
}

#[test]
fn bridge_gives_a_container_its_static_addresses() {
    let world = World::new();
    let c1 = world.container("c1");
    let config =
        with(&config(), json!({"isGateway": true, "ipam": {"routes": [{"dst": "0.0.0.0/0"}]}}));
    let before = world.state_with(&[&c1]).apart_from("cni0", "net");
    let result = c1.add("bridge", &config);
    assert_eq!(c1.addresses("eth0"), ["10.1.0.5/16", "fd00:1::5/64"]);
    c1.check("bridge", &config, &result);
    c1.ping("10.1.0.1");
    c1.ping("fd00:1::1");
    c1.del("bridge", &config);
    before.assert_same(&world.state_with(&[&c1]).apart_from("cni0", "net"), "after DEL");
}

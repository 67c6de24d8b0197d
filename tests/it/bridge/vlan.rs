//! VLANs on a kernel without VLAN filtering; everything else is in tests/vm/bridge_vlan.sh.

use serde_json::{Value, json};

use super::{dbnet_with, layer2};
use crate::world::{World, half_for, with};

/// Keys that cannot be meant, and what the error must say.
fn refused() -> Vec<(Value, &'static str)> {
    let trunk = |item: Value| json!({"vlanTrunk": [{"id": 2}, item]});
    vec![
        (json!({"vlan": -1}), "vlan: -1 is not a VLAN"),
        (json!({"vlan": 4095}), "vlan: 4095 is not a VLAN"),
        (json!({"vlan": 65546}), "vlan: 65546 is not a VLAN"),
        (trunk(json!({"id": 0})), "incorrect trunk id parameter: vlanTrunk: 0 is not a VLAN"),
        (trunk(json!({"id": 4095})), "incorrect trunk id parameter: vlanTrunk: 4095 is not a VLAN"),
        (
            trunk(json!({"minID": 0, "maxID": 9})),
            "incorrect trunk minID parameter: vlanTrunk: 0 is not a VLAN",
        ),
        (
            trunk(json!({"minID": 9, "maxID": 4095})),
            "incorrect trunk maxID parameter: vlanTrunk: 4095 is not a VLAN",
        ),
        (
            trunk(json!({"minID": 9, "maxID": 8})),
            "minID is greater than maxID in trunk parameter: vlanTrunk: minID is 9, maxID is 8",
        ),
        (trunk(json!({"minID": 9})), "maxID is missing"),
        (trunk(json!({"maxID": 9})), "minID is missing"),
        (trunk(json!({"maxID": 9, "id": 9})), "minID is missing"),
        (
            json!({"bridge": "eleven-byte", "vlan": 1000, "isGateway": true}),
            "interface name is too long: \"eleven-byte.1000\"",
        ),
        (
            json!({"bridge": "twelve-bytes", "vlan": 100, "isDefaultGateway": true}),
            "interface name is too long: \"twelve-bytes.100\"",
        ),
    ]
}

#[test]
fn invalid_vlans_are_refused_before_any_change() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]);
    for (keys, says) in refused() {
        let config = dbnet_with(with(&json!({"cniVersion": "1.1.0"}), keys));
        for verb in ["ADD", "STATUS"] {
            let error = c1.call("bridge", verb, &config).run().fails(7, &[]);
            let said = format!("{}: {}", error.msg, error.details);
            assert!(said.contains(says), "{says} expected: {said}");
        }
    }
    before.assert_same(&world.state_with(&[&c1]), "after refused calls");
}

#[test]
fn del_cleans_up_whatever_the_vlans_are() {
    let world = World::new();
    let c1 = world.container("c1");
    for (keys, _) in refused() {
        c1.add("bridge", &dbnet_with(json!({})));
        c1.del("bridge", &dbnet_with(keys));
        assert_eq!(world.ports_of("cni0"), [""; 0]);
    }
}

#[test]
fn wrong_types_are_refused() {
    let world = World::new();
    let c1 = world.container("c1");
    let cases = [
        json!({"vlan": "10"}),
        json!({"vlan": 10.5}),
        json!({"vlanTrunk": {"id": 10}}),
        json!({"vlanTrunk": [10]}),
        json!({"vlanTrunk": [{"id": "10"}]}),
        json!({"preserveDefaultVlan": 1}),
    ];
    for keys in cases {
        let named = keys.as_object().unwrap().keys().next().unwrap().clone();
        let error = c1.call("bridge", "ADD", &dbnet_with(keys)).run().error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!(said.contains(&named), "{named} expected: {said}");
    }
    assert_eq!(world.links(), ["lo"]);
}

#[test]
fn a_long_name_is_fine_where_no_link_gets_it() {
    let world = World::new();
    let c1 = world.container("c1");
    // Without addresses there is no gateway, and without a gateway no link.
    for config in [
        with(&layer2(), json!({"bridge": "fifteen-bytes-x", "vlan": 1000, "isGateway": true})),
        dbnet_with(json!({"bridge": "fifteen-bytes-x", "vlan": 1000})),
    ] {
        let outcome = c1.call("bridge", "ADD", &config).run();
        if kernel_filters_vlans(&world) {
            outcome.success();
        } else {
            outcome.fails(999, &["VLAN"]);
        }
        c1.del("bridge", &config);
    }
}

/// By what iproute2 gets to hear from this kernel.
fn kernel_filters_vlans(world: &World) -> bool {
    let script = "ip link add probe0 type bridge vlan_filtering 1 2>&1 && ip link del probe0; true";
    let said = world.host(["sh", "-c", script]);
    assert!(said.is_empty() || said.contains("Operation not supported"), "{said}");
    half_for("CONFIG_BRIDGE_VLAN_FILTERING", said.is_empty())
}

#[test]
fn a_kernel_without_vlan_filtering_is_named() {
    for keys in [json!({"vlan": 100}), json!({"vlanTrunk": [{"id": 100}]})] {
        let world = World::new();
        let c1 = world.container("c1");
        let config = dbnet_with(with(&json!({"cniVersion": "1.1.0", "isGateway": true}), keys));
        let before = world.state_with(&[&c1]).apart_from("", "dbnet");
        let (add, status) =
            (c1.call("bridge", "ADD", &config), world.call("bridge", "STATUS", &config));
        if kernel_filters_vlans(&world) {
            status.run().silence();
            let result = add.run().success();
            c1.check("bridge", &config, &result);
            continue;
        }
        let text = "the kernel lacks CONFIG_BRIDGE_VLAN_FILTERING";
        for (outcome, code) in [(status.run(), 50), (add.run(), 999)] {
            let error = outcome.fails(code, &[]);
            assert!(error.msg.contains(text), "{error:?}");
        }
        before.assert_same(
            &world.state_with(&[&c1]).apart_from("", "dbnet"),
            "after a failed ADD and a STATUS",
        );
    }
}

#[test]
fn a_bridge_that_does_not_filter_is_refused() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.add("bridge", &dbnet_with(json!({})));
    let c2 = world.container("c2");
    // Only a kernel with VLAN filtering can turn it on.
    let (code, remedy) = match kernel_filters_vlans(&world) {
        true => (7, "ip link set cni0 type bridge vlan_filtering 1"),
        false => (999, "CONFIG_BRIDGE_VLAN_FILTERING"),
    };
    for keys in [json!({"vlan": 100}), json!({"vlanTrunk": [{"id": 100}]})] {
        let before = world.state_with(&[&c1, &c2]).apart_from("", "dbnet");
        let config = dbnet_with(with(&json!({"cniVersion": "1.1.0"}), keys));
        for (verb, code) in [("ADD", code), ("STATUS", 50)] {
            let error = c2.call("bridge", verb, &config).run().fails(code, &["VLAN"]);
            assert!(format!("{} {}", error.msg, error.details).contains(remedy), "{error:?}");
        }
        let after = world.state_with(&[&c1, &c2]).apart_from("", "dbnet");
        before.assert_same(&after, "after a refused ADD");
    }
    // It asks for a bridge that filters, but not for a VLAN.
    let config = dbnet_with(json!({"cniVersion": "1.1.0", "vlanTrunk": []}));
    world.call("bridge", "STATUS", &config).run().silence();
    c2.add("bridge", &config);
}

#[test]
fn empty_vlan_keys_are_accepted() {
    let cases = [
        json!({"ipMasq": false, "macspoofchk": false, "preserveDefaultVlan": false, "vlan": 0}),
        json!({"ipMasq": null, "macspoofchk": null, "preserveDefaultVlan": null, "vlan": null, "vlanTrunk": null}),
        json!({"preserveDefaultVlan": true}),
        json!({"ipMasqBackend": "nftables"}),
        json!({"ipMasqBackend": "iptables", "ipMasq": false}),
        json!({"someKeyOfTheFuture": true, "mac": "02:00:00:00:00:01", "activeInterface": true}),
    ];
    let world = World::new();
    for (number, keys) in cases.into_iter().enumerate() {
        let container = world.container(&format!("c{number}"));
        container.add("bridge", &dbnet_with(keys.clone()));
        container.del("bridge", &dbnet_with(keys));
    }
}

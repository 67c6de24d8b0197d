//! ADD, key by key.

use serde_json::json;

use super::{dbnet, dbnet_with, dual_stack, host_end, host_link, layer2};
use crate::world::{World, through_dhcp, with};

#[test]
fn a_container_gets_a_link_to_the_bridge_and_an_address() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dbnet());
    let bridge = host_link(&world, "cni0");
    assert_eq!(bridge["linkinfo"]["info_kind"], "bridge");
    assert_eq!(world.ports_of("cni0"), [host_end(&result)]);
    assert_eq!(c1.addresses("eth0"), ["10.1.0.2/16"]);
    let routes = c1.json(["ip", "-j", "route"]);
    assert_eq!(routes.as_array().unwrap().len(), 1, "only the connected route: {routes}");
    assert_eq!(
        (&routes[0]["dst"], &routes[0]["prefsrc"]),
        (&json!("10.1.0.0/16"), &json!("10.1.0.2"))
    );
}

#[test]
fn the_host_end_has_a_random_name_as_in_the_reference() {
    let world = World::new();
    let result = world.container("c1").add("bridge", &dbnet());
    let name = host_end(&result);
    let digits = name.strip_prefix("veth").unwrap();
    assert!(
        digits.len() == 8 && digits.bytes().all(|byte| b"0123456789abcdef".contains(&byte)),
        "{name}"
    );
}

#[test]
fn a_name_that_is_taken_on_the_host_is_not_fought_for() {
    let world = World::new();
    let c1 = world.container("c1");
    let first = host_end(&c1.add("bridge", &dbnet()));
    c1.del("bridge", &dbnet());
    world.host(["ip", "link", "add", &first, "type", "bridge"]);
    let second = host_end(&c1.add("bridge", &dbnet()));
    assert_ne!(first, second);
    assert_eq!(world.ports_of("cni0"), [second]);
    c1.del("bridge", &dbnet());
    assert_eq!(host_link(&world, &first)["linkinfo"]["info_kind"], "bridge", "it is another's");
}

#[test]
fn the_result_tells_the_macs_that_the_kernel_has() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dual_stack());
    let container = c1.json(["ip", "-j", "link", "show", "dev", "eth0"]);
    let real = [
        host_link(&world, "cni0")["address"].clone(),
        host_link(&world, &host_end(&result))["address"].clone(),
        container[0]["address"].clone(),
    ];
    let reported = [0, 1, 2].map(|index| result["interfaces"][index]["mac"].clone());
    assert_eq!(reported, real);
}

#[test]
fn links_are_up_with_a_carrier_when_add_returns() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dbnet());
    for name in ["cni0", &host_end(&result)] {
        assert_eq!(host_link(&world, name)["operstate"], "UP", "{name}");
    }
    assert_eq!(c1.json(["ip", "-j", "link", "show", "dev", "eth0"])[0]["operstate"], "UP");
}

#[test]
fn the_default_bridge_is_cni0() {
    let world = World::new();
    let config = json!({"cniVersion": "1.0.0", "name": "l2", "type": "bridge", "bridge": null});
    let result = world.container("c1").add("bridge", &config);
    assert_eq!(result["interfaces"][0]["name"], "cni0");
    assert_eq!(world.ports_of("cni0").len(), 1);
}

#[test]
fn any_name_that_the_kernel_takes_will_do_for_the_bridge() {
    let world = World::new();
    for name in ["b", "abcdefghijklmno", "br-1.2_3", "ä"] {
        let container = world.container(&format!("c{}", name.len()));
        container.add("bridge", &with(&layer2(), json!({"bridge": name})));
        assert_eq!(world.ports_of(name).len(), 1, "{name}");
    }
}

#[test]
fn a_bridge_that_exists_is_used_as_it_is() {
    let world = World::new();
    world.host(["ip", "link", "add", "cni0", "mtu", "1300", "type", "bridge"]);
    let before = host_link(&world, "cni0")["ifindex"].clone();
    let result = world.container("c1").add("bridge", &dbnet_with(json!({"mtu": 1200})));
    let bridge = host_link(&world, "cni0");
    assert_eq!(bridge["ifindex"], before);
    assert_eq!(world.ports_of("cni0"), [host_end(&result)]);
    assert!(bridge["flags"].as_array().unwrap().contains(&json!("UP")), "{bridge}");
}

#[test]
fn several_interfaces_of_one_container_are_several_attachments() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.add("bridge", &dbnet());
    c1.call("bridge", "ADD", &dbnet()).env("CNI_IFNAME", "net.1").run().success();
    assert_eq!(c1.addresses("net.1"), ["10.1.0.3/16"]);
    c1.call("bridge", "DEL", &dbnet()).env("CNI_IFNAME", "net.1").run().silence();
    assert_eq!(c1.addresses("eth0"), ["10.1.0.2/16"]);
    assert_eq!(world.ports_of("cni0").len(), 1);
}

#[test]
fn mtu_is_that_of_the_pair_and_of_a_new_bridge() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dbnet_with(json!({"mtu": 1400})));
    assert_eq!(host_link(&world, "cni0")["mtu"], 1400);
    assert_eq!(host_link(&world, &host_end(&result))["mtu"], 1400);
    assert_eq!(c1.json(["ip", "-j", "link", "show", "dev", "eth0"])[0]["mtu"], 1400);
}

#[test]
fn an_mtu_of_0_leaves_the_mtu_of_the_kernel() {
    for (number, mtu) in [json!(0), json!(-5), json!(null)].into_iter().enumerate() {
        let world = World::new();
        let c1 = world.container(&format!("c{number}"));
        c1.add("bridge", &dbnet_with(json!({"mtu": mtu})));
        assert_eq!(c1.json(["ip", "-j", "link", "show", "dev", "eth0"])[0]["mtu"], 1500);
        assert_eq!(host_link(&world, "cni0")["mtu"], 1500);
    }
}

#[test]
fn port_flags_are_set_as_asked() {
    let cases = [
        (json!({}), false, false),
        (json!({"hairpinMode": true}), true, false),
        (json!({"portIsolation": true}), false, true),
        (json!({"hairpinMode": true, "portIsolation": true}), true, true),
        (json!({"hairpinMode": false, "portIsolation": false}), false, false),
    ];
    let world = World::new();
    for (number, (keys, hairpin, isolated)) in cases.into_iter().enumerate() {
        let result = world.container(&format!("c{number}")).add("bridge", &dbnet_with(keys));
        let port = host_link(&world, &host_end(&result))["linkinfo"]["info_slave_data"].clone();
        assert_eq!((&port["hairpin"], &port["isolated"]), (&json!(hairpin), &json!(isolated)));
    }
}

#[test]
fn the_bridge_becomes_promiscuous_also_if_it_exists() {
    let world = World::new();
    world.container("c1").add("bridge", &dbnet());
    let promiscuity = || host_link(&world, "cni0")["promiscuity"].clone();
    assert_eq!(promiscuity(), 0);
    world.container("c2").add("bridge", &dbnet_with(json!({"promiscMode": true})));
    assert_eq!(promiscuity(), 1);
}

#[test]
fn a_container_interface_can_stay_down() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.add("bridge", &with(&layer2(), json!({"disableContainerInterface": true})));
    let flags = c1.json(["ip", "-j", "link", "show", "dev", "eth0"])[0]["flags"].clone();
    assert!(!flags.as_array().unwrap().contains(&json!("UP")), "{flags}");
    assert_eq!(world.ports_of("cni0").len(), 1);
}

#[test]
fn the_mac_can_be_chosen_in_three_ways() {
    let world = World::new();
    let (runtime, args) = ("02:00:00:00:00:01", "02:00:00:00:00:02");
    let cases = [
        (json!({}), "MAC=02:00:00:00:00:03", "02:00:00:00:00:03"),
        (json!({"args": {"cni": {"mac": args}}}), "", args),
        (json!({"runtimeConfig": {"mac": runtime}}), "", runtime),
        (json!({"args": {"cni": {"mac": args}}}), "MAC=02:00:00:00:00:03", args),
        (
            json!({"runtimeConfig": {"mac": runtime}, "args": {"cni": {"mac": args}}}),
            "MAC=02:00:00:00:00:03",
            runtime,
        ),
        (json!({"runtimeConfig": {"Mac": "02-00-00-00-00-0A"}}), "", "02:00:00:00:00:0a"),
        (json!({"runtimeConfig": {"mac": "0200.0000.000b"}}), "", "02:00:00:00:00:0b"),
        (json!({"runtimeConfig": {"mac": ""}, "args": {"cni": {"mac": args}}}), "", args),
    ];
    for (number, (keys, cni_args, mac)) in cases.into_iter().enumerate() {
        let container = world.container(&format!("c{number}"));
        let config = with(&layer2(), keys);
        let result =
            container.call("bridge", "ADD", &config).env("CNI_ARGS", cni_args).run().success();
        let link = container.json(["ip", "-j", "link", "show", "dev", "eth0"])[0].clone();
        assert_eq!((&link["address"], &result["interfaces"][2]["mac"]), (&json!(mac), &json!(mac)));
    }
}

#[test]
fn a_mac_for_bridge_is_no_stranger_to_its_ipam() {
    let world = World::new();
    let mac = "02:00:00:00:00:03";
    for (number, args) in
        [format!("MAC={mac}"), format!("MAC={mac};IgnoreUnknown=1")].iter().enumerate()
    {
        let container = world.container(&format!("c{number}"));
        let result =
            container.call("bridge", "ADD", &dbnet()).env("CNI_ARGS", args).run().success();
        assert_eq!(result["interfaces"][2]["mac"], mac, "{args}");
    }
}

#[test]
fn the_mac_of_the_bridge_stays_when_ports_are_added_and_removed() {
    let world = World::new();
    let first = world.container("c0");
    let pinned = first.add("bridge", &layer2())["interfaces"][0]["mac"].clone();
    let containers: Vec<_> = (1..6).map(|number| world.container(&format!("c{number}"))).collect();
    for container in &containers {
        let result = container.add("bridge", &layer2());
        assert_eq!(result["interfaces"][0]["mac"], pinned);
        // The kernel would take the lowest MAC of all ports.
        world.host(["ip", "link", "set", &host_end(&result), "address", "02:00:00:00:00:01"]);
        assert_eq!(host_link(&world, "cni0")["address"], pinned);
    }
    first.del("bridge", &layer2());
    for container in &containers {
        container.del("bridge", &layer2());
        assert_eq!(host_link(&world, "cni0")["address"], pinned);
    }
}

#[test]
fn router_advertisements_from_containers_are_not_listened_to() {
    let world = World::new();
    let result = world.container("c1").add("bridge", &layer2());
    for link in ["cni0", &host_end(&result)] {
        assert_eq!(world.sysctl(&format!("net/ipv6/conf/{link}/accept_ra")), "0", "CVE-2020-10749");
    }
}

#[test]
fn the_containers_settings_are_those_of_the_reference() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.add("bridge", &dual_stack());
    assert_eq!(c1.sysctl("net/ipv4/conf/eth0/arp_notify"), "1");
    assert_eq!(c1.sysctl("net/ipv6/conf/eth0/keep_addr_on_down"), "1");
    assert_eq!(c1.sysctl("net/ipv6/conf/eth0/disable_ipv6"), "0");
}

#[test]
fn ipv6_is_switched_on_where_the_runtime_switched_it_off() {
    let world = World::new();
    let c1 = world.container("c1");
    let off = "for i in all default lo; do echo 1 > /proc/sys/net/ipv6/conf/$i/disable_ipv6; done";
    c1.exec(["sh", "-c", off]);
    c1.add("bridge", &dual_stack());
    assert_eq!(c1.addresses("eth0"), ["10.1.0.2/16", "fd00:1::2/64"]);
    c1.ping("fd00:1::1");
}

#[test]
fn duplicate_address_detection_is_off_unless_enabled() {
    let world = World::new();
    let usable = |keys| {
        let container = world.container(if keys == json!({}) { "c1" } else { "c2" });
        container.add("bridge", &with(&dual_stack(), keys));
        let links =
            container.json(["ip", "-j", "-6", "address", "show", "dev", "eth0", "scope", "global"]);
        (links[0]["addr_info"][0].clone(), container.sysctl("net/ipv6/conf/eth0/accept_dad"))
    };
    let (address, _) = usable(json!({}));
    assert_eq!(address.get("tentative"), None, "{address}");
    let (address, accept_dad) = usable(json!({"enabledad": true}));
    assert_eq!((address.get("nodad"), accept_dad.as_str()), (None, "1"), "{address}");
}

#[test]
fn routes_of_ipam_are_set_up() {
    let world = World::new();
    let c1 = world.container("c1");
    let routes = json!([
        {"dst": "0.0.0.0/0"},
        {"dst": "10.7.0.0/16", "gw": "10.1.0.7"},
        {"dst": "10.8.0.0/16", "priority": 42},
        {"dst": "10.9.0.0/16", "table": 1000},
        {"dst": "fd07::/48", "gw": "fd00:1::7"},
    ]);
    let ranges = json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]);
    let ipam = json!({"subnet": null, "gateway": null, "ranges": ranges, "routes": routes});
    let result = c1.add("bridge", &dbnet_with(json!({"ipam": ipam})));
    assert_eq!(result["routes"], routes);
    let state = world.state_with(&[&c1]);
    for line in [
        "c1 route dst=default dev=eth0 type=unicast via=10.1.0.1 src=- table=main",
        "c1 route dst=10.7.0.0/16 dev=eth0 type=unicast via=10.1.0.7 src=- table=main",
        "c1 route dst=10.8.0.0/16 dev=eth0 type=unicast via=10.1.0.1 src=- table=main proto=boot scope=global metric=42",
        "c1 route dst=10.9.0.0/16 dev=eth0 type=unicast via=10.1.0.1 src=- table=1000",
        "c1 route dst=fd07::/48 dev=eth0 type=unicast via=fd00:1::7 src=- table=main",
    ] {
        assert!(state.has(line), "{line}\nnot in {state:?}");
    }
}

#[test]
fn a_route_to_the_link_itself_needs_no_gateway() {
    let world = World::new();
    let c1 = world.container("c1");
    // RT_SCOPE_LINK.
    let routes = json!([{"dst": "10.5.0.0/16", "scope": 253}]);
    c1.add("bridge", &dbnet_with(json!({"ipam": {"routes": routes}})));
    let line = "c1 route dst=10.5.0.0/16 dev=eth0 type=unicast via=- src=- table=main proto=boot scope=link";
    let state = world.state_with(&[&c1]);
    assert!(state.has(line), "{state:?}");
}

#[test]
fn routes_carry_mtu_and_advmss() {
    let world = World::new();
    let c1 = world.container("c1");
    let routes = json!([{"dst": "10.5.0.0/16", "mtu": 1280, "advmss": 1200}]);
    c1.add("bridge", &dbnet_with(json!({"ipam": {"routes": routes}})));
    let shown = c1.json(["ip", "-j", "route", "show", "10.5.0.0/16"]);
    assert_eq!(shown[0]["metrics"], json!([{"mtu": 1280, "advmss": 1200}]), "{shown}");
}

#[test]
fn an_ipam_plugin_that_talks_through_the_interface_finds_it() {
    let world = World::new();
    let c1 = world.container("c1");
    let keys = json!({"cniVersion": "1.0.0", "ipam": {"type": "dhcp"}});
    for verb in ["ADD", "DEL"] {
        let config = with(&layer2(), keys.clone());
        let outcome = through_dhcp(c1.call("bridge", verb, &config)).run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
    assert_eq!(c1.exec(["ip", "-o", "link"]).lines().count(), 1);
}

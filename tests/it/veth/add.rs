//! ADD.

use serde_json::json;

use super::{NAMES, address, dual_stack, host_end, host_link, routed, routed_with};
use crate::bridge::traffic::{answer_ms, assert_prompt, first_packet};
use crate::world::state::mask_veth;
use crate::world::{Outcome, World, all_at_once};

#[test]
fn the_kernels_state_is_the_references() {
    let expected = [
        "c1 address dev=eth0 10.2.0.2/24 brd=10.2.0.255 scope=global",
        "c1 address dev=eth0 fd00:2::2/64 brd=- scope=global",
        "c1 link eth0 kind=veth master=- mtu=1500 flags=BROADCAST,MULTICAST,UP",
        "c1 route dst=10.2.0.0/24 dev=eth0 type=unicast via=10.2.0.1 src=10.2.0.2 table=main proto=boot scope=global",
        "c1 route dst=10.2.0.1 dev=eth0 type=unicast via=- src=10.2.0.2 table=main proto=boot scope=link",
        "c1 route dst=default dev=eth0 type=unicast via=10.2.0.1",
        "c1 route dst=default dev=eth0 type=unicast via=fd00:2::1",
        "c1 route dst=fd00:2::/64 dev=eth0 type=unicast via=fd00:2::1 src=fd00:2::2 table=main proto=boot",
        "c1 route dst=fd00:2::1 dev=eth0 type=unicast via=- src=fd00:2::2 table=main proto=boot",
        "host address dev=veth* 10.2.0.1/32 brd=- scope=global",
        "host address dev=veth* fd00:2::1/128 brd=- scope=global",
        "host link veth* kind=veth master=- mtu=1500 flags=BROADCAST,MULTICAST,UP",
        "host route dst=10.2.0.2 dev=veth* type=unicast via=- src=- table=main proto=boot scope=host",
        "host route dst=fd00:2::2 dev=veth* type=unicast via=- src=- table=main proto=boot",
        "host setting net/ipv4/ip_forward = 1",
        "host setting net/ipv6/conf/all/forwarding = 1",
    ];
    for name in NAMES {
        let world = World::new();
        let c1 = world.container("c1");
        c1.add(name, &dual_stack());
        let state = world.state_with(&[&c1]).without_random_names();
        for line in expected {
            assert!(state.has(line), "{name}: {line}\nis not in {state:?}");
        }
        let links =
            |place: &str| state.lines().iter().filter(|line| line.starts_with(place)).count();
        assert_eq!((links("host link "), links("c1 link ")), (2, 2), "{state:?}");
        let connected = "c1 route dst=10.2.0.0/24 dev=eth0 type=unicast via=-";
        assert!(!state.has(connected), "its own subnet is reached through the gateway: {state:?}");
    }
}

#[test]
fn only_the_families_of_the_addresses_are_forwarded() {
    let world = World::new();
    world.container("c1").add("veth", &routed());
    assert_eq!(world.sysctl("net/ipv4/ip_forward"), "1");
    assert_eq!(world.sysctl("net/ipv6/conf/all/forwarding"), "0");
}

#[test]
fn containers_reach_the_host_and_one_another_in_both_families() {
    for name in NAMES {
        let world = World::new();
        let (c1, c2) = (world.container("c1"), world.container("c2"));
        let one = c1.add(name, &dual_stack());
        let two = c2.add(name, &dual_stack());
        for (index, gateway) in ["10.2.0.1", "fd00:2::1"].into_iter().enumerate() {
            c1.ping(gateway);
            c1.ping(&address(&two, index));
            c2.ping(&address(&one, index));
        }
    }
}

#[test]
fn the_first_packet_after_an_add_arrives() {
    assert_prompt(|| {
        let world = World::new();
        let c1 = world.container("c1");
        c1.add("veth", &dual_stack());
        let answers =
            ["10.2.0.1", "fd00:2::1"].map(|gateway| answer_ms(c1.tool(first_packet(gateway))));
        let show = ["ip", "-j", "-6", "address", "show", "dev", "eth0", "scope", "global"];
        let links = c1.json(show);
        assert_eq!(links[0]["addr_info"][0].get("tentative"), None, "{links}");
        answers.into()
    });
}

#[test]
fn the_result_tells_what_the_kernel_has() {
    for name in NAMES {
        let world = World::new();
        let c1 = world.container("c1");
        let result = c1.add(name, &dual_stack());
        let host = host_end(&result);
        assert_eq!(mask_veth(&host), "veth*");
        let container = c1.json(["ip", "-j", "link", "show", "dev", "eth0"]);
        assert_eq!(result["interfaces"][0]["mac"], host_link(&world, &host)["address"]);
        assert_eq!(result["interfaces"][1]["mac"], container[0]["address"]);
        assert_eq!(result["interfaces"][1]["sandbox"], c1.netns());
    }
}

#[test]
fn both_ends_have_the_mtu() {
    for (number, (mtu, expected)) in
        [(json!(1400), 1400), (json!(0), 1500), (json!(-1), 1500), (json!(null), 1500)]
            .into_iter()
            .enumerate()
    {
        let world = World::new();
        let c1 = world.container(&format!("c{number}"));
        let result = c1.add("veth", &routed_with(json!({"mtu": mtu})));
        let container = c1.json(["ip", "-j", "link", "show", "dev", "eth0"]);
        assert_eq!(
            (&container[0]["mtu"], &host_link(&world, &host_end(&result))["mtu"]),
            (&json!(expected), &json!(expected))
        );
    }
}

#[test]
fn the_mac_can_be_chosen_as_for_bridge() {
    let mac = "02:00:00:00:00:01";
    let cases = [
        (json!({"args": {"cni": {"mac": mac}}}), ""),
        (json!({"runtimeConfig": {"mac": mac}}), ""),
        (json!({}), "IgnoreUnknown=1;MAC=02:00:00:00:00:01"),
        (
            json!({"runtimeConfig": {"mac": mac}, "args": {"cni": {"mac": "02:00:00:00:00:02"}}}),
            "IgnoreUnknown=1;MAC=02:00:00:00:00:03",
        ),
    ];
    for (number, (keys, args)) in cases.into_iter().enumerate() {
        let world = World::new();
        let container = world.container(&format!("c{number}"));
        let call = container.call("veth", "ADD", &routed_with(keys)).env("CNI_ARGS", args);
        let result = call.run().success();
        let link = container.json(["ip", "-j", "link", "show", "dev", "eth0"]);
        assert_eq!(
            (&link[0]["address"], &result["interfaces"][1]["mac"]),
            (&json!(mac), &json!(mac))
        );
        container.ping("10.2.0.1");
    }
}

#[test]
fn router_advertisements_from_containers_are_not_listened_to() {
    let world = World::new();
    let result = world.container("c1").add("veth", &dual_stack());
    let setting = format!("net/ipv6/conf/{}/accept_ra", host_end(&result));
    assert_eq!(world.sysctl(&setting), "0", "CVE-2020-10749");
}

#[test]
fn routes_of_ipam_are_set_up() {
    let world = World::new();
    let c1 = world.container("c1");
    let routes = json!([
        {"dst": "10.7.0.0/16"}, {"dst": "10.8.0.0/16", "gw": "10.2.0.1"}, {"dst": "10.9.0.0/16", "table": 1000},
    ]);
    let result = c1.add("veth", &routed_with(json!({"ipam": {"routes": routes}})));
    assert_eq!(result["routes"], routes);
    let state = world.state_with(&[&c1]);
    for line in [
        "c1 route dst=10.7.0.0/16 dev=eth0 type=unicast via=10.2.0.1 src=- table=main",
        "c1 route dst=10.8.0.0/16 dev=eth0 type=unicast via=10.2.0.1 src=- table=main",
        "c1 route dst=10.9.0.0/16 dev=eth0 type=unicast via=10.2.0.1 src=- table=1000",
    ] {
        assert!(state.has(line), "{line}\nis not in {state:?}");
    }
}

#[test]
fn many_at_once_give_many_working_links() {
    let world = World::new();
    let containers: Vec<_> = (0..32).map(|number| world.container(&format!("c{number}"))).collect();
    let before = world.state().apart_from("", "p2p");
    let adds = all_at_once(containers.iter().map(|c| c.call("veth", "ADD", &dual_stack())));
    adds.into_iter().for_each(|add| drop(add.success()));
    for gateway in ["10.2.0.1", "fd00:2::1"] {
        let pings = all_at_once(containers.iter().map(|c| c.pinging(gateway)));
        pings.into_iter().for_each(|ping| drop(ping.output()));
    }
    let dels = all_at_once(containers.iter().map(|c| c.call("veth", "DEL", &dual_stack())));
    dels.into_iter().for_each(Outcome::silence);
    before.assert_same(&world.state().apart_from("", "p2p"), "after all DELs");
}

#[test]
fn a_route_may_go_by_another_address_of_the_subnet() {
    for name in NAMES {
        let world = World::new();
        let c1 = world.container("c1");
        let ranges = json!([[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]]);
        let routes = json!([
            {"dst": "10.7.0.0/16", "gw": "10.2.0.77"}, {"dst": "fd07::/48", "gw": "fd00:2::77"},
        ]);
        let ipam = json!({"subnet": null, "ranges": ranges, "routes": routes});
        let config = routed_with(json!({"ipam": ipam}));
        let result = c1.add(name, &config);
        let state = world.state_with(&[&c1]);
        for line in [
            "c1 route dst=10.7.0.0/16 dev=eth0 type=unicast via=10.2.0.77 src=- table=main",
            "c1 route dst=fd07::/48 dev=eth0 type=unicast via=fd00:2::77 src=- table=main",
        ] {
            assert!(state.has(line), "{line}\nis not in {state:?}");
        }
        c1.check(name, &config, &result);
        // The host is that gateway, too.
        for (address, dev) in [
            ("10.2.0.77/32", &*host_end(&result)),
            ("fd00:2::77/128", &*host_end(&result)),
            ("10.7.0.1/32", "lo"),
            ("fd07::1/128", "lo"),
        ] {
            world.host(["ip", "address", "add", address, "dev", dev, "nodad"]);
        }
        c1.ping("10.7.0.1");
        c1.ping("fd07::1");
    }
}

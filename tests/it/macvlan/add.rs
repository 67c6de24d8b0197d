//! ADD.

use serde_json::{Value, json};

use super::{dual_stack, dual_stack_with, eth0, plain_with};
use crate::world::{World, all_at_once, lan, through_dhcp};

const MAC: &str = "02:00:00:00:00:01";

#[test]
fn the_kernels_state_is_the_references() {
    let world = World::new();
    let _outside = lan(&world);
    let c1 = world.container("c1");
    let on_host = world.links();
    c1.add("macvlan", &dual_stack());
    let state = world.state_with(&[&c1]);
    for line in [
        "c1 address dev=eth0 10.1.0.2/24 brd=10.1.0.255 scope=global",
        "c1 address dev=eth0 fd00:1::2/64 brd=- scope=global",
        "c1 link eth0 kind=macvlan master=- mtu=1500 flags=BROADCAST,MULTICAST,UP",
        "c1 route dst=10.1.0.0/24 dev=eth0 type=unicast via=- src=10.1.0.2 table=main proto=kernel scope=link",
        "c1 route dst=10.9.0.0/16 dev=eth0 type=unicast via=10.1.0.1 src=- table=main proto=boot scope=global",
        "c1 route dst=fd00:1::/64 dev=eth0 type=unicast via=- src=- table=main proto=kernel",
        "c1 route dst=fd09::/48 dev=eth0 type=unicast via=fd00:1::1 src=- table=main proto=boot",
    ] {
        assert!(state.has(line), "{line}\nis not in {state:?}");
    }
    let links = state.lines().iter().filter(|line| line.starts_with("c1 link ")).count();
    assert_eq!((links, world.links()), (2, on_host), "{state:?}");
    assert_eq!(c1.sysctl("net/ipv4/conf/eth0/arp_notify"), "1");
    assert_eq!(c1.sysctl("net/ipv6/conf/eth0/ndisc_notify"), "1");
}

#[test]
fn every_key_is_honoured() {
    const MODE: &str = "/linkinfo/info_data/mode";
    for (keys, what, expected) in [
        (json!({}), MODE, json!("bridge")),
        (json!({"mode": ""}), MODE, json!("bridge")),
        (json!({"mode": "private"}), MODE, json!("private")),
        (json!({"mode": "vepa"}), MODE, json!("vepa")),
        (json!({"mode": "passthru"}), MODE, json!("passthru")),
        (json!({"bcqueuelen": 5000}), "/linkinfo/info_data/bcqueuelen", json!(5000)),
        (json!({"mtu": 1400}), "/mtu", json!(1400)),
        (json!({"mtu": 1500}), "/mtu", json!(1500)),
        (json!({"mtu": 0}), "/mtu", json!(1500)),
        (json!({"mtu": null, "mac": null}), "/mtu", json!(1500)),
        (json!({"mac": MAC}), "/address", json!(MAC)),
        (json!({"mode": "passthru", "mac": MAC}), "/address", json!(MAC)),
        (json!({}), "/operstate", json!("UP")),
    ] {
        let world = World::new();
        let _outside = lan(&world);
        let c1 = world.container("c1");
        let config = plain_with(keys);
        let result = c1.add("macvlan", &config);
        let link = eth0(&c1);
        assert_eq!(link.pointer(what), Some(&expected), "{config}");
        assert_eq!(result["interfaces"][0]["mac"], link["address"], "{config}");
        c1.check("macvlan", &config, &result);
    }
}

#[test]
fn the_runtimes_mac_goes_before_cni_args_and_both_before_the_configurations() {
    let other = "02:00:00:00:00:99";
    for (keys, args, expected) in [
        (json!({"mac": other, "runtimeConfig": {"mac": MAC}}), "MAC=02:00:00:00:00:98", MAC),
        (json!({"mac": other}), "IgnoreUnknown=1;MAC=02:00:00:00:00:01", MAC),
        (json!({"mac": MAC}), "", MAC),
    ] {
        let world = World::new();
        let _outside = lan(&world);
        let c1 = world.container("c1");
        let call = c1.call("macvlan", "ADD", &plain_with(keys)).env("CNI_ARGS", args);
        assert_eq!(call.run().success()["interfaces"][0]["mac"], expected);
        assert_eq!(eth0(&c1)["address"], expected);
    }
}

#[test]
fn passthru_takes_the_link_over_and_gives_it_back() {
    let world = World::new();
    let _outside = lan(&world);
    let c1 = world.container("c1");
    let parent = || {
        let link = world.host_json(["ip", "-j", "-d", "link", "show", "dev", "lan"])[0].clone();
        (link["address"].clone(), link["promiscuity"].clone())
    };
    let before = parent();
    let config = dual_stack_with(json!({"mode": "passthru", "mac": MAC}));
    c1.add("macvlan", &config);
    assert_eq!(parent(), (json!(MAC), json!(1)));
    c1.ping("10.1.0.254");
    let second = world.container("c2").call("macvlan", "ADD", &config).run();
    second.fails(999, &["cannot add macvlan link eth0"]);
    c1.del("macvlan", &config);
    assert_eq!(parent(), before);
}

#[test]
fn containers_that_start_together_all_get_their_own() {
    let world = World::new();
    let _outside = lan(&world);
    let containers: Vec<_> = (0..16).map(|n| world.container(&format!("c{n}"))).collect();
    let outcomes = all_at_once(containers.iter().map(|c| c.call("macvlan", "ADD", &dual_stack())));
    let results: Vec<Value> = outcomes.into_iter().map(|outcome| outcome.success()).collect();
    let mut macs: Vec<&str> =
        results.iter().map(|result| result["interfaces"][0]["mac"].as_str().unwrap()).collect();
    macs.sort_unstable();
    macs.dedup();
    assert_eq!(macs.len(), 16);
    for (container, result) in containers.iter().zip(&results) {
        container.check("macvlan", &dual_stack(), result);
        container.ping("10.1.0.254");
    }
    for outcome in all_at_once(containers.iter().map(|c| c.call("macvlan", "DEL", &dual_stack()))) {
        outcome.silence();
    }
    assert!(containers.iter().all(|c| c.exec(["ip", "-o", "link"]).lines().count() == 1));
}

#[test]
fn a_name_that_is_taken_is_an_error_and_what_has_it_stays() {
    let world = World::new();
    let _outside = lan(&world);
    let c1 = world.container("c1");
    c1.exec(["ip", "link", "add", "eth0", "type", "bridge"]);
    let before = world.state_with(&[&c1]).apart_from("", "net");
    let outcome = c1.call("macvlan", "ADD", &dual_stack()).run();
    outcome.fails(999, &["cannot create interface eth0 in the container: it already exists"]);
    // The runtime's DEL after a failed ADD.
    c1.del("macvlan", &dual_stack());
    before.assert_same(&world.state_with(&[&c1]).apart_from("", "net"), "after ADD and DEL");
}

#[test]
fn dns_is_the_networks_and_else_that_of_ipam() {
    for (keys, expected) in [
        (json!({}), json!({"domain": "ipam.example"})),
        (json!({"dns": {"domain": "net.example"}}), json!({"domain": "net.example"})),
    ] {
        let world = World::new();
        let _outside = lan(&world);
        let ipam = json!({"type": "static", "addresses": [{"address": "10.1.0.9/24"}],
            "dns": {"domain": "ipam.example"}});
        let config = plain_with(json!({"ipam": ipam}));
        let result = world.container("c1").add("macvlan", &crate::world::with(&config, keys));
        assert_eq!(result["dns"], expected);
    }
}

#[test]
fn an_ipam_plugin_that_talks_through_the_interface_finds_it() {
    let world = World::new();
    let _outside = lan(&world);
    let c1 = world.container("c1");
    let config = plain_with(json!({"cniVersion": "1.0.0", "ipam": {"type": "dhcp"}}));
    for verb in ["ADD", "DEL"] {
        let outcome = through_dhcp(c1.call("macvlan", verb, &config)).run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
    assert_eq!(c1.exec(["ip", "-o", "link"]).lines().count(), 1);
}

//! Errors about the state of the host or of the container.

use serde_json::json;

use super::{base, none, problem};
use crate::world::{World, with};

#[test]
fn the_errors_of_unavailable_addresses_have_the_words_of_the_reference() {
    let world = World::new();
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let config = with(&base("host-local"), json!({"ipam": {"subnet": "10.1.0.0/30"}}));
    let asking = |args: &str| c2.call("host-local", "ADD", &config).env("CNI_ARGS", args);
    c1.add("host-local", &config);
    let held = "failed to allocate for range 0: 10.1.0.2 has been allocated to c1, duplicate allocation is not allowed";
    let exhausted =
        "failed to allocate for range 0: no IP addresses available in range set: 10.1.0.1-10.1.0.2";
    let gateway = "failed to allocate for range 0: requested ip 10.1.0.1 is subnet's gateway";
    let taken = "failed to allocate for range 0: requested IP address 10.1.0.2 is not available in range set 10.1.0.1-10.1.0.2";
    let stray = with(&config, json!({"ipam": {"subnet": "10.1.0.0/24"}}));
    let stray = c2.call("host-local", "ADD", &stray).env("CNI_ARGS", "IP=10.9.0.9");
    let not_found = "host-local: Failed to find address added by container c2";
    let rows = [
        (c1.call("host-local", "ADD", &config), held),
        (c2.call("host-local", "ADD", &config), exhausted),
        (asking("IP=10.1.0.1"), gateway),
        (asking("IP=10.1.0.2"), taken),
        (stray, "failed to allocate all requested IPs: 10.9.0.9"),
        (c2.call("host-local", "CHECK", &config), not_found),
    ];
    let problems: Vec<String> =
        rows.into_iter().filter_map(|(call, begins)| problem("2.1", call, 999, begins)).collect();
    none(&problems);
}

#[test]
fn the_errors_of_existing_links_have_the_words_of_the_reference() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.exec(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]);
    world.host(["ip", "link", "add", "br0", "type", "bridge"]);
    world.host(["ip", "address", "add", "10.9.0.1/24", "dev", "br0"]);
    let ipam =
        json!({"ipam": {"type": "host-local", "dataDir": "/run/nets", "subnet": "10.1.0.0/24"}});
    let gateway = with(&base("bridge"), json!({"bridge": "br0", "isGateway": true}));
    let vrf = with(&base("vrf"), json!({"vrfname": "eth1"}));
    let result = json!({"prevResult": {"cniVersion": "0.2.0"}, "cniVersion": "0.2.0"});
    let exists = "container veth name (\"eth0\") peer provided (\"veth";
    let rows = [
        (
            "0.10",
            "loopback",
            with(&base("loopback"), result),
            "cannot convert: no valid IP addresses",
        ),
        (
            "1.2",
            "bridge",
            with(&gateway, ipam.clone()),
            "\"br0\" already has an IP address different from 10.1.0.1/24",
        ),
        ("4.1", "bridge", base("bridge"), exists),
        ("4.1", "ptp", with(&base("ptp"), ipam), exists),
        ("3.6", "vrf", vrf, "cmdAdd failed: Netlink eth1 is not a VRF"),
    ];
    let problems: Vec<String> = rows
        .into_iter()
        .filter_map(|(section, plugin, config, begins)| {
            let call = c1.call(plugin, "ADD", &config);
            problem(&format!("{section} {plugin}"), call, 999, begins)
        })
        .collect();
    none(&problems);
    let lo = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "lo", "sandbox": c1.netns()}]});
    let check = c1.checking("loopback", &base("loopback"), &lo);
    none(&problem("1.1", check, 999, "loopback interface is down").into_iter().collect::<Vec<_>>());
}

/// The configuration is right on another host.
#[test]
fn the_errors_of_keys_that_name_no_such_link_have_the_words_of_the_reference() {
    let world = World::new();
    let c1 = world.container("c1");
    let device = |keys| with(&base("host-device"), keys);
    let rows = [
        (
            "1.2",
            with(&base("bridge"), json!({"bridge": "lo"})),
            "failed to create bridge \"lo\": \"lo\" already exists but is not a bridge",
        ),
        ("1.7", device(json!({"device": "none0"})), "failed to find host device: Link not found"),
        (
            "1.7",
            device(json!({"hwaddr": "02:00:00:00:99:99"})),
            "failed to find host device: failed to find physical interface",
        ),
    ];
    let problems: Vec<String> = rows
        .into_iter()
        .filter_map(|(section, config, begins)| {
            let call = c1.call(config["type"].as_str().unwrap(), "ADD", &config);
            problem(section, call, 7, begins)
        })
        .collect();
    none(&problems);
}

#[test]
fn the_error_of_a_bandwidth_without_a_peer_has_the_words_of_the_reference() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.exec(["ip", "link", "add", "eth0", "type", "bridge"]);
    let limits = json!({"ingressRate": 8000, "ingressBurst": 8000});
    let call = c1.call("bandwidth", "ADD", &with(&base("bandwidth"), limits));
    let begins = "no veth peer of container interface found in host ns";
    none(&problem("3.2", call, 999, begins).into_iter().collect::<Vec<_>>());
}

#[test]
fn the_error_of_a_check_without_result_has_the_words_of_the_reference() {
    let world = World::new();
    let c1 = world.container("c1");
    let rows = [
        ("1.2", "bridge", base("bridge"), "required prevResult missing"),
        ("1.3", "ptp", base("ptp"), "required prevResult missing"),
        ("1.9", "tap", base("tap"), "required prevResult missing"),
        (
            "3.1",
            "portmap",
            with(&base("portmap"), json!({"prevResult": null})),
            "required prevResult missing",
        ),
        (
            "3.4",
            "tuning",
            with(&base("tuning"), json!({"prevResult": null})),
            "Required prevResult missing",
        ),
    ];
    let problems: Vec<String> = rows
        .into_iter()
        .filter_map(|(section, plugin, config, begins)| {
            problem(&format!("{section} {plugin}"), c1.call(plugin, "CHECK", &config), 7, begins)
        })
        .collect();
    none(&problems);
}

#[test]
fn the_error_of_a_port_that_left_its_bridge_has_the_words_of_the_reference() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = base("bridge");
    let result = c1.add("bridge", &config);
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    world.host(["ip", "link", "set", port, "nomaster"]);
    let check = c1.checking("bridge", &config, &result);
    let begins = "CNI veth created for bridge cni0 was not found";
    none(&problem("1.2", check, 999, begins).into_iter().collect::<Vec<_>>());
}

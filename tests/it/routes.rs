//! Several routes to one destination: the kernel tells them apart by gateway or priority, so every plugin that makes an
//! interface sets all of them, and CHECK misses each.

use serde_json::{Value, json};

use crate::toggle::subject::Place;
use crate::toggle::subjects;
use crate::world::{Container, World, is_for_options, with};

/// Each pair has one destination.
fn routes() -> Value {
    json!([
        {"dst": "10.9.0.0/16", "gw": "10.1.0.3"},
        {"dst": "10.9.0.0/16", "gw": "10.1.0.4", "priority": 100},
        {"dst": "10.7.0.0/16", "gw": "10.1.0.3", "priority": 100},
        {"dst": "10.7.0.0/16", "gw": "10.1.0.3", "priority": 200},
        {"dst": "10.8.0.0/16", "gw": "10.1.0.3"},
        {"dst": "10.8.0.0/16", "gw": "10.1.0.4"},
        {"dst": "fd09::/48", "gw": "fd00:1::3"},
        {"dst": "fd09::/48", "gw": "fd00:1::4", "priority": 100},
        {"dst": "fd07::/48", "gw": "fd00:1::3", "priority": 100},
        {"dst": "fd07::/48", "gw": "fd00:1::3", "priority": 200},
        {"dst": "fd08::/48", "gw": "fd00:1::3"},
        {"dst": "fd08::/48", "gw": "fd00:1::4"},
    ])
}

fn ipam() -> Value {
    let addresses = json!([{"address": "10.1.0.2/24", "gateway": "10.1.0.1"},
        {"address": "fd00:1::2/64", "gateway": "fd00:1::1"}]);
    json!({"ipam": {"type": "static", "addresses": addresses, "routes": routes()}})
}

/// The gateways of the routes to a destination.
fn gateways(container: &Container<'_>, dst: &str) -> Vec<String> {
    let family = if dst.contains(':') { "-6" } else { "-4" };
    let shown = container.json(["ip", "-j", family, "route", "show", "to", dst]);
    let shown = shown.as_array().unwrap();
    let hops = shown.iter().flat_map(|route| match route["nexthops"].as_array() {
        Some(hops) => hops.iter().collect::<Vec<_>>(),
        None => vec![route],
    });
    let mut gateways: Vec<String> =
        hops.map(|hop| hop["gateway"].as_str().unwrap().to_owned()).collect();
    gateways.sort();
    gateways
}

fn check(container: &Container<'_>, plugin: &str, config: &Value) {
    let result = container.add(plugin, config);
    container.check(plugin, config, &result);
    for route in routes().as_array().unwrap() {
        let (dst, gw) = (route["dst"].as_str().unwrap(), route["gw"].as_str().unwrap());
        let all = routes();
        let wanted = all.as_array().unwrap().iter().filter(|other| other["dst"] == dst);
        let wanted: Vec<&str> = wanted.map(|other| other["gw"].as_str().unwrap()).collect();
        assert_eq!(gateways(container, dst), wanted, "{plugin}");
        let metric =
            route["priority"].as_u64().map_or(String::new(), |metric| format!("metric {metric}"));
        let change = |verb: &str| {
            // `veth` routes all addresses of the subnet via its gateway.
            let onlink = if verb == "append" { "onlink" } else { "" };
            let route = format!("ip route {verb} {dst} via {gw} dev eth0 {metric} {onlink}");
            container.exec(["sh", "-ec", &route]);
        };
        change("del");
        let error = container.checking(plugin, config, &result).run().error();
        assert!(error.msg.contains(dst), "{plugin}: {error:?}");
        change("append");
        container.check(plugin, config, &result);
    }
    container.del(plugin, config);
}

#[test]
fn every_plugin_sets_all_routes_to_a_destination() {
    let mut plugins = Vec::new();
    for subject in subjects() {
        let is_interface = subject.place == Place::First && subject.keys_of == subject.plugin;
        let is_elsewhere = ["flannel", "loopback"].contains(&subject.plugin);
        if !is_interface || is_elsewhere || !subject.is_runnable() {
            continue;
        }
        let world: World = subject.world();
        let container = subject.container(&world);
        let names = json!({"cniVersion": "1.1.0", "name": "net", "type": subject.plugin});
        let keys = match subject.plugin {
            "host-device" => json!({"device": "card"}),
            "vlan" => json!({"master": "lan", "vlanId": 10}),
            _ => json!({}),
        };
        let config = with(&with(&names, ipam()), keys);
        check(&container, subject.plugin, &config);
        plugins.push(subject.plugin);
    }
    let always = ["bridge", "veth", "ptp", "macvlan", "host-device", "tap"];
    assert!(is_for_options() || plugins.starts_with(&always), "{plugins:?}");
    assert!(!plugins.is_empty());
}

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

/// Routes that packets do not pass, of both families.
fn rejecting() -> Value {
    json!([
        {"dst": "10.9.0.0/16", "type": "blackhole"},
        {"dst": "10.7.0.0/16", "type": "unreachable", "priority": 50},
        {"dst": "10.8.0.0/16", "type": "prohibit", "table": 77},
        {"dst": "fd09::/48", "type": "blackhole", "priority": 50},
        {"dst": "fd07::/48", "type": "unreachable"},
        {"dst": "fd08::/48", "type": "prohibit", "table": 77},
        {"dst": "0.0.0.0/0", "type": "unicast"},
        {"dst": "::/0", "type": ""},
    ])
}

fn ipam(routes: &Value) -> Value {
    let addresses = json!([{"address": "10.1.0.2/24", "gateway": "10.1.0.1"},
        {"address": "fd00:1::2/64", "gateway": "fd00:1::1"}]);
    json!({"ipam": {"type": "static", "addresses": addresses, "routes": routes}})
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

/// All routes of a container that reject packets, in the words of `ip route`.
fn rejected(container: &Container<'_>) -> Vec<String> {
    let mut found = Vec::new();
    for family in ["-4", "-6"] {
        for kind in ["blackhole", "unreachable", "prohibit"] {
            let shown =
                container.exec(["ip", "-o", family, "route", "show", "table", "all", "type", kind]);
            found.extend(shown.lines().map(str::to_owned));
        }
    }
    found
}

/// A result without the key that only cnibox has.
fn as_libcni_passes(result: &Value) -> Value {
    let mut result = result.clone();
    for route in result["routes"].as_array_mut().unwrap() {
        route.as_object_mut().unwrap().remove("type");
    }
    result
}

fn check_rejecting(container: &Container<'_>, plugin: &str, config: &Value) {
    let result = container.add(plugin, config);
    assert_eq!(result["routes"][0], json!({"dst": "10.9.0.0/16", "type": "blackhole"}), "{plugin}");
    assert_eq!(rejected(container).len(), 6, "{plugin}: {:?}", rejected(container));
    // libcni passes the keys that it knows.
    let result = as_libcni_passes(&result);
    container.check(plugin, config, &result);
    // The answer of the kernel to a program of the container: the default route is not used.
    for (address, reason) in [("10.9.0.1", "Invalid argument"), ("fd07::1", "No route to host")] {
        let outcome = container.tool(["ip", "route", "get", address]).run();
        assert!(outcome.stderr.contains(reason), "{plugin}: {}", outcome.report());
    }
    for route in rejecting().as_array().unwrap().iter().take(6) {
        let [dst, kind] = ["dst", "type"].map(|key| route[key].as_str().unwrap());
        let option = |word: &str, key: &str| {
            route[key].as_u64().map_or(String::new(), |value| format!("{word} {value}"))
        };
        let rest = format!("{dst} {} {}", option("metric", "priority"), option("table", "table"));
        let ip = |words: String| container.exec(["sh", "-ec", &format!("ip route {words}")]);
        ip(format!("del {kind} {rest}"));
        // A route that lets the packets pass is the opposite.
        ip(format!("add {rest} dev eth0"));
        let error = container.checking(plugin, config, &result).run().error();
        assert!(error.msg.contains(dst), "{plugin}: {error:?}");
        ip(format!("del {rest} dev eth0"));
        ip(format!("add {kind} {rest}"));
        container.check(plugin, config, &result);
    }
    // The interface is in the way of a second ADD, which must not remove the routes of the first.
    let again = container.call(plugin, "ADD", config).run();
    assert!(again.status == 0 || rejected(container).len() == 6, "{plugin}: {}", again.report());
    // The container goes on without the interface. In some worlds it has another one, which keeps the routes while it is up.
    let up = container.json(["ip", "-j", "link", "show", "up"]);
    let names = up.as_array().unwrap().iter().filter_map(|link| link["ifname"].as_str());
    for name in names.filter(|name| !["lo", "eth0"].contains(name)) {
        container.exec(["ip", "link", "set", name, "down"]);
    }
    container.del(plugin, &with(config, json!({"prevResult": result})));
    assert_eq!(rejected(container), Vec::<String>::new(), "{plugin}");
}

#[test]
fn every_plugin_sets_all_routes_to_a_destination() {
    for_each_plugin(&ipam(&routes()), check);
}

#[test]
fn every_plugin_sets_routes_that_reject_packets() {
    for_each_plugin(&ipam(&rejecting()), check_rejecting);
}

/// These routes have no interface, so those of two attachments of a container can be the same.
#[test]
fn a_second_interface_leaves_the_routes_of_the_first_that_reject_packets() {
    let world = World::new();
    let container = world.container("c1");
    let config = |number: u8, more: &[Value]| {
        let mut routes = rejecting().as_array().unwrap()[..6].to_vec();
        routes.extend_from_slice(more);
        let address = json!([{"address": format!("10.{number}.0.2/24")},
            {"address": format!("fd00:{number}::2/64")}]);
        json!({"cniVersion": "1.1.0", "name": format!("net{number}"), "type": "bridge",
            "bridge": format!("br{number}"), "ipam": {"type": "static", "addresses": address, "routes": routes}})
    };
    let call = |verb: &str, config: &Value| {
        container.call("bridge", verb, config).env("CNI_IFNAME", "eth1").run()
    };
    let first = config(1, &[]);
    let result = container.add("bridge", &first);
    let of_first = rejected(&container);
    assert_eq!(of_first.len(), 6);
    // The kernel refuses the last route, and adds the others before.
    let refused = json!({"dst": "10.66.0.0/16", "gw": "10.2.0.1", "scope": 254});
    let own = json!({"dst": "10.6.0.0/16", "type": "blackhole"});
    let error = call("ADD", &config(2, &[own.clone(), refused])).error();
    assert!(error.msg.contains("10.66.0.0/16"), "{error:?}");
    assert_eq!(rejected(&container), of_first);

    let second = config(2, &[own]);
    let added = call("ADD", &second).success();
    assert_eq!(rejected(&container).len(), 7);
    call("DEL", &with(&second, json!({"prevResult": added}))).silence();
    container.check("bridge", &first, &result);
    assert!(rejected(&container).len() >= 6);

    // `lo` and an interface that is down have no traffic.
    container.exec(["ip", "link", "add", "down0", "type", "veth", "peer", "name", "down1"]);
    container.exec(["ip", "link", "set", "lo", "up"]);
    call("ADD", &second).success();
    container.del("bridge", &with(&first, json!({"prevResult": result})));
    call("DEL", &with(&second, json!({"prevResult": added}))).silence();
    assert_eq!(rejected(&container), Vec::<String>::new());
}

/// Packets with the address of the interface would not see these routes, so the chained plugins refuse them.
#[test]
fn a_plugin_that_routes_by_other_tables_refuses_routes_that_reject_packets() {
    let world = World::new();
    let container = world.container("c1");
    let names = json!({"cniVersion": "1.1.0", "name": "net"});
    let bridge = with(&with(&names, ipam(&rejecting())), json!({"type": "bridge"}));
    let result = container.add("bridge", &bridge);
    for result in [as_libcni_passes(&result), result] {
        let chained = with(&names, json!({"prevResult": result, "vrfname": "red"}));
        for plugin in ["sbr", "vrf"] {
            let config = with(&chained, json!({"type": plugin}));
            let error = container.call(plugin, "ADD", &config).run().error();
            assert!(error.msg.contains("blackhole route to 10.9.0.0/16"), "{plugin}: {error:?}");
        }
    }
}

#[test]
fn an_unknown_type_of_a_route_is_refused() {
    let world = World::new();
    let container = world.container("c1");
    let routes = json!([{"dst": "10.9.0.0/16", "type": "throw"}]);
    let names = json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge"});
    let config = with(&names, ipam(&routes));
    let error = container.call("bridge", "ADD", &config).run().error();
    assert!(error.msg.contains("not one of unicast, blackhole"), "{error:?}");
    // What was configured before must go.
    container.del("bridge", &config);
}

/// Calls `check` for each plugin that makes an interface.
fn for_each_plugin(ipam: &Value, check: fn(&Container<'_>, &str, &Value)) {
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
        let config = with(&with(&names, ipam.clone()), keys);
        check(&container, subject.plugin, &config);
        plugins.push(subject.plugin);
    }
    let always = ["bridge", "veth", "ptp", "macvlan", "host-device", "tap"];
    assert!(is_for_options() || plugins.starts_with(&always), "{plugins:?}");
    assert!(!plugins.is_empty());
}

/// Hosters give a container a single address, and a gateway that is in no subnet of it. The order of the routes is that of the
/// operator.
#[test]
fn every_plugin_reaches_a_gateway_outside_of_the_subnet() {
    let addresses = json!([{"address": "198.51.100.7/32", "gateway": "203.0.113.1"},
        {"address": "2001:db8::7/128", "gateway": "2001:db8:1::1"}]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"},
        {"dst": "10.9.0.0/16", "gw": "192.0.2.1"}, {"dst": "fd09::/48", "gw": "2001:db8:2::1"},
        {"dst": "10.8.0.0/16", "gw": "192.0.2.9", "priority": 50}]);
    let ipam = json!({"ipam": {"type": "static", "addresses": addresses, "routes": routes}});
    for_each_plugin(&ipam, |container, plugin, config| {
        let result = container.add(plugin, config);
        container.check(plugin, config, &result);
        let routes =
            || ["-4", "-6"].map(|family| container.exec(["ip", family, "route", "show"])).concat();
        let found = routes();
        for line in [
            "default via 203.0.113.1 dev eth0",
            "203.0.113.1 dev eth0",
            "10.9.0.0/16 via 192.0.2.1 dev eth0",
            "192.0.2.1 dev eth0",
            "192.0.2.9 dev eth0 scope link metric 50",
            "default via 2001:db8:1::1 dev eth0",
            "2001:db8:1::1 dev eth0",
            "fd09::/48 via 2001:db8:2::1 dev eth0",
            "2001:db8:2::1 dev eth0",
        ] {
            let count = found.lines().filter(|found| found.starts_with(line)).count();
            assert_eq!(count, 1, "{plugin}: {line} in\n{found}");
        }
        for gateway in ["203.0.113.1", "192.0.2.1", "2001:db8:2::1"] {
            container.exec(["ip", "route", "del", gateway, "dev", "eth0"]);
            let error = container.checking(plugin, config, &result).run().error();
            assert!(error.msg.contains(gateway), "{plugin}: {error:?}");
            container.exec(["ip", "route", "add", gateway, "dev", "eth0"]);
            container.check(plugin, config, &result);
        }
        container.del(plugin, config);
    });
}

//! A gateway outside of the container's subnet, as hosters have it: the address is a single one, and the router is elsewhere.

use serde_json::{Value, json};

use crate::world::{Container, OUTSIDE, Outcome, PLUGIN_DIR, World, lan, runs_with, with};

/// Addresses of the container, with the prefix lengths of single ones, and of the router.
const OWN: [&str; 2] = ["198.51.100.7/32", "2001:db8::7/128"];
const ROUTERS: [&str; 2] = ["203.0.113.1", "2001:db8:1::1"];

/// The LAN with the router, which knows the containers' addresses on the link.
fn router(world: &World) -> Container<'_> {
    let outside = lan(world);
    for (own, router) in OWN.into_iter().zip(ROUTERS) {
        outside.exec(["ip", "address", "add", router, "dev", "sw"]);
        outside.exec(["ip", "route", "add", own, "dev", "sw"]);
    }
    outside
}

fn macvlan(ipam: Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": "lan", "ipam": ipam})
}

/// Both families, with default routes via the router. With `has_gateways` each address of the result has its gateway.
fn hosted(has_gateways: bool) -> Value {
    let [v4, v6] = ROUTERS;
    let address = |index: usize| match has_gateways {
        true => json!({"address": OWN[index], "gateway": ROUTERS[index]}),
        false => json!({"address": OWN[index]}),
    };
    let routes = match has_gateways {
        true => json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]),
        false => json!([{"dst": "0.0.0.0/0", "gw": v4}, {"dst": "::/0", "gw": v6}]),
    };
    json!({"type": "static", "addresses": [address(0), address(1)], "routes": routes})
}

#[test]
fn a_single_address_is_online() {
    for has_gateways in [true, false] {
        let world = World::new();
        router(&world);
        let c1 = world.container("c1");
        let config = macvlan(hosted(has_gateways));
        world.call("macvlan", "STATUS", &config).run().silence();
        let result = c1.add("macvlan", &config);
        c1.check("macvlan", &config, &result);
        // These addresses are behind the router for the container.
        OUTSIDE.into_iter().for_each(|address| c1.ping(address));
        c1.del("macvlan", &config);
    }
}

fn cnibox(world: &World, args: &[&str]) -> Outcome {
    let words = [&["/run/bin/cnibox"], args].concat();
    let call = world.tool(&words, None).env("CNI_PATH", PLUGIN_DIR);
    call.env("NETCONFPATH", "/run/net.d").run()
}

/// By the runtime: with a range of `host-local`, and `reconcile --inside` restores the routes.
#[test]
fn the_routes_are_restored() {
    let world = World::new();
    let outside = router(&world);
    for subnet in ["198.51.100.0/24", "2001:db8::/64"] {
        outside.exec(["ip", "route", "add", subnet, "dev", "sw"]);
    }
    let [v4, v6] = ROUTERS;
    let ranges = json!([[{"subnet": "198.51.100.0/24", "gateway": v4}],
        [{"subnet": "2001:db8::/64", "gateway": v6}]]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    let ipam = json!({"type": "host-local", "ranges": ranges, "routes": routes});
    let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [macvlan(ipam)]});
    world.write("/run/net.d/net.conflist", list.to_string());
    let c1 = world.container("c1");
    cnibox(&world, &["lint", "/run/net.d"]).silence();
    cnibox(&world, &["add", "net", "c1"]).success();
    OUTSIDE.into_iter().for_each(|address| c1.ping(address));
    for router in ROUTERS {
        c1.exec(["ip", "route", "del", router, "dev", "eth0"]);
    }
    c1.exec(["ip", "-6", "route", "del", "default"]);
    let said = cnibox(&world, &["reconcile", "--inside"]);
    assert!(said.stdout.contains(v4), "{}", said.report());
    cnibox(&world, &["check", "net", "c1"]).silence();
    OUTSIDE.into_iter().for_each(|address| c1.ping(address));
    cnibox(&world, &["del", "net", "c1"]).silence();
}

/// The gateway is the host, by a bridge or by a pair: the host has the way to the container, and loses it with the DEL.
#[test]
fn the_host_reaches_the_container() {
    for plugin in ["bridge", "ptp"] {
        let world = World::new();
        for address in OUTSIDE {
            world.host(["ip", "address", "add", address, "dev", "lo"]);
        }
        world.host(["ip", "link", "set", "lo", "up"]);
        let plugins = json!({"type": plugin, "isGateway": true, "ipam": hosted(true)});
        let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [plugins]});
        world.write("/run/net.d/net.conflist", list.to_string());
        let c1 = world.container("c1");
        cnibox(&world, &["add", "net", "c1"]).success();
        let is_online = || {
            ROUTERS.into_iter().chain(OUTSIDE).for_each(|address| c1.ping(address));
            for own in OWN {
                world.pinging(own.split('/').next().unwrap(), None).run().output();
            }
        };
        is_online();
        let routes = || {
            [("-4", OWN[0]), ("-6", OWN[1])]
                .map(|(family, own)| world.host(["ip", family, "route", "show", own]))
        };
        let [v4, v6] = routes();
        assert!(!v4.is_empty() && !v6.is_empty(), "{plugin}: {v4} {v6}");
        for own in OWN {
            world.host(["ip", "route", "del", own]);
        }
        let said = cnibox(&world, &["reconcile"]).stdout;
        assert!(OWN.into_iter().all(|own| said.contains(own)), "{plugin}: {said}");
        is_online();
        cnibox(&world, &["check", "net", "c1"]).silence();
        cnibox(&world, &["del", "net", "c1"]).silence();
        assert_eq!(routes(), ["", ""], "{plugin}");
    }
}

/// A bridge with the host as router of the addresses. `keys` replace those of the configuration.
fn bridge(keys: Value) -> Value {
    let base = json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0",
        "isGateway": true, "ipam": hosted(true)});
    with(&base, keys)
}

/// The routes of the host to the addresses: one for each family.
fn host_routes(world: &World) -> [String; 2] {
    [("-4", OWN[0]), ("-6", OWN[1])].map(|(family, own)| {
        world.host(["ip", family, "route", "show", own]).replace("linkdown ", "")
    })
}

/// The call of a runtime that no longer has the namespace.
fn late_del(world: &World, config: &Value) {
    let call = world.call("bridge", "DEL", config).env("CNI_CONTAINERID", "c1");
    call.env("CNI_IFNAME", "eth0").run().silence();
}

#[test]
fn a_late_del_leaves_the_route_of_the_next_container() {
    // The list can have an alternative name of the bridge.
    for (name, vlan) in [("br0", 0), ("br0", 10), ("inner", 0), ("inner", 10)] {
        if vlan != 0 && !runs_with("CONFIG_BRIDGE_VLAN_FILTERING") {
            continue;
        }
        let world = World::new();
        let filtering = if vlan == 0 { "" } else { "vlan_filtering 1" };
        let script = format!(
            "ip link add br0 type bridge {filtering}; ip link property add dev br0 altname inner"
        );
        world.host(["sh", "-ec", &script]);
        let config = bridge(json!({"bridge": name, "vlan": vlan}));
        let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
        let result = c1.add("bridge", &config);
        c1.destroy();
        c2.add("bridge", &config);
        let routes = host_routes(&world);
        assert!(routes.iter().all(|route| !route.is_empty()), "{routes:?}");
        for config in [with(&config, json!({"prevResult": result})), config.clone()] {
            late_del(&world, &config);
            assert_eq!(host_routes(&world), routes);
        }
        let gc = with(
            &config,
            json!({"cni.dev/valid-attachments":
            [{"containerID": "c2", "ifname": "eth0"}]}),
        );
        world.call("bridge", "GC", &gc).run().silence();
        assert_eq!(host_routes(&world), routes);
        c2.del("bridge", &config);
        assert_eq!(host_routes(&world), ["", ""], "without prevResult");
    }
}

#[test]
fn gc_removes_the_routes_of_an_ended_container() {
    let world = World::new();
    let config = bridge(json!({}));
    let c1 = world.container("c1");
    c1.add("bridge", &config);
    c1.destroy();
    let gc = with(&config, json!({"cni.dev/valid-attachments": []}));
    world.call("bridge", "GC", &gc).run().silence();
    assert_eq!(host_routes(&world), ["", ""]);
}

#[test]
fn the_routes_of_the_administrator_stay() {
    for is_gateway in [false, true] {
        let world = World::new();
        let config = bridge(json!({"isGateway": is_gateway}));
        let c1 = world.container("c1");
        world.host(["sh", "-ec", "ip link add cni0 type bridge; ip link set cni0 up"]);
        for (own, router) in OWN.into_iter().zip(ROUTERS) {
            // The kernel removes the IPv4 routes of a link with its last address.
            world.host(["ip", "address", "add", router, "dev", "cni0"]);
            world.host(["ip", "route", "add", own, "dev", "cni0"]);
        }
        let routes = host_routes(&world);
        // The interface exists, so the ADD fails after it has the addresses.
        c1.exec(["ip", "link", "add", "eth0", "type", "veth"]);
        c1.call("bridge", "ADD", &config).run().fails(999, &["already exists"]);
        assert_eq!(host_routes(&world), routes, "after the failed ADD");
        c1.exec(["ip", "link", "del", "eth0"]);
        let result = c1.add("bridge", &config);
        c1.del("bridge", &with(&config, json!({"prevResult": result})));
        assert_eq!(host_routes(&world), routes, "after the DEL");
    }
}

/// `sbr` has a gateway of its own, in no subnet of the interface, and one from the result.
#[test]
fn sbr_reaches_it_in_its_table() {
    for keys in [json!({}), json!({"gateways": ROUTERS})] {
        let world = World::new();
        router(&world);
        let c1 = world.container("c1");
        let mut ipam = hosted(keys == json!({}));
        if keys != json!({}) {
            ipam["routes"] = json!([]);
        }
        let config = macvlan(ipam);
        let result = c1.add("macvlan", &config);
        let sbr =
            json!({"cniVersion": "1.1.0", "name": "net", "type": "sbr", "prevResult": result});
        let sbr = with(&sbr, keys);
        for _ in 0..2 {
            c1.call("sbr", "ADD", &sbr).run().success();
            c1.call("sbr", "CHECK", &sbr).run().silence();
        }
        c1.check("macvlan", &config, &result);
        for (own, address) in OWN.into_iter().zip(OUTSIDE) {
            let source = own.split('/').next().unwrap();
            c1.exec(["ping", "-n", "-c", "1", "-w", "60", "-I", source, address]);
        }
        let table = c1.exec(["ip", "route", "show", "table", "100"]);
        assert!(table.contains("203.0.113.1 dev eth0"), "{table}");
        c1.exec(["ip", "route", "del", ROUTERS[0], "table", "100"]);
        c1.call("sbr", "CHECK", &sbr).run().fails(999, &[ROUTERS[0]]);
    }
}

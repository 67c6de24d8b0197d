//! The backend firewalld: the real firewalld, on a bus of the test.

use serde_json::{Value, json};

use super::{
    OUTSIDE, assert_does_not_reach, assert_reaches, bridge, drop_forwarded, firewall, outside,
    rules,
};
use crate::world::call::{BUS_LIMIT, Running};
use crate::world::{Container, World};

const BUS: &str = include_str!("../../fixtures/bus.conf");

fn start_bus(world: &World) -> Running {
    world.write("/run/dbus/bus.conf", BUS);
    let words = ["dbus-daemon", "--config-file=/run/dbus/bus.conf", "--nofork"];
    let bus = world.tool(&words, None).start();
    world.eventually("a bus", || world.path("/run/dbus/system_bus_socket").exists());
    bus
}

/// A world with a bus and firewalld, which end with the test.
pub fn start_firewalld(world: &World) -> [Running; 2] {
    start_firewalld_in(world, None)
}

/// The same with firewalld in this network namespace.
fn start_firewalld_in(world: &World, netns: Option<&str>) -> [Running; 2] {
    let bus = start_bus(world);
    let words = ["firewalld", "--nofork", "--nopid", "--log-target", "console"];
    let firewalld = world.tool(&words, netns).start();
    // It has its name before it has its rules, but answers only then.
    world
        .eventually("firewalld", || dbus(world, "org.fedoraproject.FirewallD1", "getZones", &[]).0);
    [bus, firewalld]
}

/// A call with dbus-send: its success and its output.
pub fn dbus(world: &World, destination: &str, method: &str, arguments: &[&str]) -> (bool, String) {
    let object = format!("/{}", destination.replace('.', "/"));
    let to = format!("--dest={destination}");
    let arguments: Vec<String> = arguments.iter().map(|text| format!("string:{text}")).collect();
    let interface =
        if destination.ends_with('1') { format!("{destination}.zone") } else { destination.into() };
    let member = format!("{interface}.{method}");
    let mut words = vec!["dbus-send", "--system", "--print-reply=literal", &to, &object, &member];
    words.extend(arguments.iter().map(String::as_str));
    let outcome = world.tool(&words, None).run();
    (outcome.status == 0, outcome.stdout)
}

pub fn has_source(world: &World, zone: &str, source: &str) -> bool {
    let (_, answer) = dbus(world, "org.fedoraproject.FirewallD1", "querySource", &[zone, source]);
    answer.contains("true")
}

const SOURCES: [&str; 2] = ["10.1.0.2/32", "fd00:1::2/128"];

pub fn sources(world: &World, zone: &str) -> [bool; 2] {
    SOURCES.map(|source| has_source(world, zone, source))
}

pub fn without_result(network: &str, keys: Value) -> Value {
    firewall(network, keys, &Value::Null)
}

#[test]
fn addresses_are_sources_of_the_zone_as_long_as_they_are_attached() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    for (keys, zone) in [
        (json!({}), "trusted"),
        (json!({"backend": "firewalld"}), "trusted"),
        (json!({"backend": null, "firewalldZone": "home"}), "home"),
    ] {
        let config = firewall("net", keys.clone(), &result);
        world.call("firewall", "STATUS", &config).run().silence();
        assert_eq!(c1.add("firewall", &config), result);
        assert_eq!(sources(&world, zone), [true, true], "{keys}");
        c1.check("firewall", &config, &result);
        c1.add("firewall", &config);
        let removed = ["removeSource", "addSource"].map(|method| {
            let done = dbus(&world, "org.fedoraproject.FirewallD1", method, &[zone, SOURCES[0]]);
            let check = c1.checking("firewall", &config, &result).run();
            assert!(done.0, "{}", done.1);
            check.status != 0
        });
        assert_eq!(removed, [true, false]);
        // The runtime has lost the result and the namespace.
        let del = without_result("net", keys.clone());
        for _ in 0..2 {
            c1.call("firewall", "DEL", &del).without("CNI_NETNS").run().silence();
            assert_eq!(sources(&world, zone), [false, false], "{keys}");
        }
        assert!(!rules(&world).contains("net c1"), "{}", rules(&world));
    }
}

#[test]
fn del_removes_sources_after_a_change_of_the_configuration() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    let mut problems = Vec::new();
    for (keys, zone) in [
        (json!({"firewalldZone": "home"}), "home"),
        (json!({"backend": "firewalld"}), "trusted"),
        (json!({}), "trusted"),
    ] {
        for later in [json!({}), json!({"backend": "iptables"}), json!({"firewalldZone": "work"})] {
            for verb in ["DEL", "GC"] {
                c1.add("firewall", &firewall("net", keys.clone(), &result));
                let none = json!({"cni.dev/valid-attachments": []});
                let config = crate::world::with(&without_result("net", later.clone()), none);
                c1.call("firewall", verb, &config).run().silence();
                if sources(&world, zone) != [false, false] {
                    problems.push(format!("{keys}, then {verb} with {later}"));
                }
                c1.del("firewall", &firewall("net", keys.clone(), &result));
                for source in SOURCES {
                    dbus(&world, "org.fedoraproject.FirewallD1", "removeSource", &[zone, source]);
                }
            }
        }
    }
    assert!(problems.is_empty(), "sources are left:\n{}", problems.join("\n"));
}

#[test]
fn del_of_another_network_keeps_the_sources() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    c1.add("firewall", &firewall("net", json!({}), &result));
    c1.del("firewall", &firewall("other", json!({}), &result));
    assert_eq!(sources(&world, "trusted"), [true, true]);
    c1.del("firewall", &firewall("net", json!({}), &result));
    assert_eq!(sources(&world, "trusted"), [false, false]);
}

#[test]
fn packets_pass_where_firewalld_does_not_let_others() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let _outside = outside(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    assert_does_not_reach(&c1, &OUTSIDE);
    c1.add("firewall", &firewall("net", json!({}), &result));
    assert_reaches(&c1, &OUTSIDE);
}

#[test]
fn the_policy_is_kept_beside_firewalld() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let mut addresses = Vec::new();
    for (container, network) in [(&c1, bridge("one", 1)), (&c2, bridge("two", 2))] {
        let result = container.add("bridge", &network);
        addresses.push(super::address(&result, 0));
        let name = network["name"].as_str().unwrap();
        container.add("firewall", &firewall(name, json!({}), &result));
        addresses.push(super::address(&result, 1));
    }
    assert_reaches(&c1, &[&addresses[2], &addresses[3]]);
    for (container, network) in [(&c1, "one"), (&c2, "two")] {
        let result = if network == "one" { &addresses[..2] } else { &addresses[2..] };
        let ips: Vec<Value> = result.iter().map(|ip| json!({"address": full(ip)})).collect();
        let result = json!({"cniVersion": "1.1.0", "ips": ips});
        let keys = json!({"ingressPolicy": "same-bridge"});
        container.add("firewall", &firewall(network, keys, &result));
    }
    assert_does_not_reach(&c1, &[&addresses[2], &addresses[3]]);
}

fn full(ip: &str) -> String {
    format!("{ip}/{}", if ip.contains(':') { 64 } else { 24 })
}

#[test]
fn gc_removes_sources_of_stale_attachments() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    for container in [&c1, &c2] {
        let result = container.add("bridge", &bridge("net", 1));
        container.add("firewall", &firewall("net", json!({}), &result));
    }
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}]});
    world.call("firewall", "GC", &without_result("net", valid)).run().silence();
    assert_eq!(sources(&world, "trusted"), [false, false]);
    assert!(has_source(&world, "trusted", "10.1.0.3/32"));
    assert!(has_source(&world, "trusted", "fd00:1::3/128"));
}

#[test]
fn iptables_means_iptables_even_if_firewalld_is_running() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let c1 = world.container("c1");
    drop_forwarded(&world);
    let result = c1.add("bridge", &bridge("net", 1));
    c1.add("firewall", &firewall("net", json!({"backend": "iptables"}), &result));
    assert_eq!(sources(&world, "trusted"), [false, false]);
    assert!(rules(&world).contains("CNI-FORWARD"));
}

#[test]
fn a_missing_zone_is_named_and_nothing_is_left() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    let before = rules(&world);
    let config = firewall("net", json!({"firewalldZone": "nowhere"}), &result);
    c1.call("firewall", "ADD", &config).run().fails(999, &["nowhere", "INVALID_ZONE"]);
    assert_eq!(rules(&world), before);
    c1.del("firewall", &config);

    // The second source is in another zone already: the first one is taken back.
    let taken = dbus(&world, "org.fedoraproject.FirewallD1", "addSource", &["home", SOURCES[1]]);
    assert!(taken.0);
    let config = firewall("net", json!({}), &result);
    c1.call("firewall", "ADD", &config).run().fails(999, &["fd00:1::2", "ZONE_CONFLICT"]);
    assert_eq!(sources(&world, "trusted"), [false, false]);
}

#[test]
fn a_configured_firewalld_that_does_not_run_is_an_error() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    let config = firewall("net", json!({"backend": "firewalld"}), &result);
    refused(&world, &c1, &config);
    let _bus = start_bus(&world);
    refused(&world, &c1, &config);
    // Without the key, the backend is iptables.
    drop_forwarded(&world);
    c1.add("firewall", &firewall("net", json!({}), &result));
    assert!(rules(&world).contains("CNI-FORWARD"));
}

fn refused(world: &World, container: &Container<'_>, config: &Value) {
    let texts = ["backend", "firewalld", "not running"];
    container.call("firewall", "ADD", config).run().fails(7, &texts);
    world.call("firewall", "STATUS", config).run().fails(50, &texts);
    container.del("firewall", config);
    assert!(!rules(world).contains("net c1"));
}

/// As a rootless runtime, and a node in a container, see the bus of the host. Regression: ADD gave the addresses to that
/// firewalld, and the packets were dropped.
#[test]
fn a_firewalld_of_another_network_namespace_has_no_say() {
    const NAME: &str = "org.fedoraproject.FirewallD1";
    let world = World::new();
    let other = world.container("other");
    let _running = start_firewalld_in(&world, Some(&other.netns()));
    let _outside = outside(&world);
    let c1 = world.container("c1");
    drop_forwarded(&world);
    let result = c1.add("bridge", &bridge("net", 1));
    let config = firewall("net", json!({}), &result);
    world.call("firewall", "STATUS", &config).run().silence();
    c1.add("firewall", &config);
    assert_eq!(sources(&world, "trusted"), [false, false]);
    assert_reaches(&c1, &OUTSIDE);
    c1.check("firewall", &config, &result);
    // This source is of a container there: DEL takes only what an ADD here recorded.
    assert!(dbus(&world, NAME, "addSource", &["trusted", SOURCES[0]]).0);
    c1.del("firewall", &config);
    assert_eq!(sources(&world, "trusted"), [true, false]);
    let record = "add set ip cnibox firewall-zone-trusted { type ipv4_addr; }
         add element ip cnibox firewall-zone-trusted { 10.1.0.2 comment \"net c1 eth0\" }";
    world.host(["nft", record]);
    c1.del("firewall", &config);
    assert_eq!(sources(&world, "trusted"), [false, false]);

    let config = firewall("net", json!({"backend": "firewalld"}), &result);
    let texts = ["backend", "firewalld", "it runs in another network namespace"];
    c1.call("firewall", "ADD", &config).run().fails(7, &texts);
    world.call("firewall", "STATUS", &config).run().fails(50, &texts);
}

/// In another PID namespace, the process that the bus names is unknown.
#[test]
fn a_firewalld_whose_process_is_not_visible_is_used_if_the_configuration_names_it() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    for (keys, is_used) in [(json!({}), false), (json!({"backend": "firewalld"}), true)] {
        let config = firewall("net", keys, &result);
        let call = |verb| {
            let alone = ["unshare", "--pid", "--fork", "--mount-proc"];
            c1.call("firewall", verb, &config).under(&alone).run()
        };
        let added = call("ADD");
        let has_warning = added.stderr.contains("its process is not visible");
        assert_eq!(has_warning, !is_used, "{}", added.report());
        added.success();
        assert_eq!(sources(&world, "trusted"), [is_used; 2]);
        assert_eq!(rules(&world).contains("firewall-zone-trusted"), is_used);
        call("DEL").silence();
        assert_eq!(sources(&world, "trusted"), [false, false]);
    }
}

#[test]
fn something_else_at_the_place_of_the_bus_is_no_firewalld() {
    for answer in ["b'nonsense\\r\\n'", "b'DATA\\r\\nOK 1\\r\\n' + b'l' * 400", "b''"] {
        let world = World::new();
        let c1 = world.container("c1");
        world.write("/run/dbus/x", "");
        let script = format!(
            "import socket\n\
             server = socket.socket(socket.AF_UNIX)\n\
             server.bind('/run/dbus/system_bus_socket')\n\
             server.listen()\n\
             while True:\n    peer = server.accept()[0]\n    peer.recv(4096)\n    peer.sendall({answer})\n    peer.close()"
        );
        let _server = world.tool(&["python3", "-c", &script], None).start();
        world.eventually("a server", || world.path("/run/dbus/system_bus_socket").exists());
        let result = c1.add("bridge", &bridge("net", 1));
        c1.add("firewall", &firewall("net", json!({}), &result));
        let config = firewall("net", json!({"backend": "firewalld"}), &result);
        c1.call("firewall", "ADD", &config).run().fails(7, &["not running"]);
    }
}

#[test]
fn reconcile_restores_the_sources_that_a_reload_forgets() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let ranges = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
    let ipam = json!({"type": "host-local", "ranges": ranges});
    let plugins =
        json!([{"type": "bridge", "isGateway": true, "ipam": ipam}, {"type": "firewall"}]);
    let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins});
    world.write("/run/net.d/1.conflist", list.to_string());
    world.container("c1");
    let call = |args: &[&str]| {
        let call = world.tool(&[&["/run/bin/cnibox"], args].concat(), None);
        call.env("NETCONFPATH", "/run/net.d").env("CNI_PATH", "/run/plugins").env(BUS_LIMIT, "60")
    };
    let cnibox = |args: &[&str]| call(args).run();
    cnibox(&["add", "net", "c1"]).success();
    assert_eq!(sources(&world, "trusted"), [true, true]);
    let name = "org.fedoraproject.FirewallD1";
    let (to, reload) = (format!("--dest={name}"), format!("{name}.reload"));
    let object = "/org/fedoraproject/FirewallD1";
    let reload = || world.host(["dbus-send", "--system", "--print-reply", &to, object, &reload]);
    reload();
    assert_eq!(sources(&world, "trusted"), [false, false]);
    let said = cnibox(&["reconcile"]).output();
    for source in ["10.1.0.2", "fd00:1::2"] {
        let line = format!("firewall: address {source} is not in zone trusted of firewalld");
        assert!(said.contains(&line), "{said}");
    }
    assert_eq!(sources(&world, "trusted"), [true, true]);
    cnibox(&["reconcile"]).silence();
    // A reload changes nf_tables, which the watcher is told.
    let _watcher = call(&["reconcile", "--watch"]).start();
    world.within(60, "it is ready", || {
        world.host(["nft", "list", "tables"]).contains("cnibox-guard")
    });
    reload();
    world.within(60, "it restores them", || sources(&world, "trusted") == [true, true]);
}

//! The system bus: its address, and errors if the bus or firewalld does not reply.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::firewalld::{dbus, has_source, sources, start_firewalld, without_result};
use super::{bridge, firewall, rules};
use crate::world::World;
use crate::world::call::{BUS_LIMIT, Call, Outcome, Running};

/// A server that sends a byte from time to time must not extend the limit of 3 s. The rest of this is for a machine under load.
const DEADLINE: Duration = Duration::from_secs(72);

/// A call with the limit that users have.
fn in_time(call: Call<'_>) -> Outcome {
    let start = Instant::now();
    let outcome = call.without(BUS_LIMIT).run();
    assert!(start.elapsed() < DEADLINE, "{:?}: {}", start.elapsed(), outcome.report());
    outcome
}

/// A server at the place of the bus, which does this and then does not answer.
fn start_silent_server(world: &World, script: &str) -> Running {
    world.write("/run/dbus/x", "");
    let script = format!(
        "import socket, time\n\
         server = socket.socket(socket.AF_UNIX)\n\
         server.bind('/run/dbus/system_bus_socket')\n\
         server.listen(0)\n\
         {script}\n\
         open('/run/dbus/ready', 'w')\n\
         time.sleep(600)"
    );
    let server = world.tool(&["python3", "-c", &script], None).start();
    world.eventually("a server", || world.path("/run/dbus/ready").exists());
    server
}

/// Threads, so that the script comes to its end.
const DRIP: &str = "import threading
def drip():
    while True:
        peer = server.accept()[0]
        peer.sendall(b'DATA\\r\\nOK 1\\r\\n')
        try:
            while True:
                peer.sendall(b'l')
                time.sleep(0.5)
        except OSError: pass
threading.Thread(target=drip, daemon=True).start()";

const ACCEPTS: &str = "import threading
def accept():
    peers = []
    while True:
        peers.append(server.accept()[0])
        peers[-1].sendall(b'DATA\\r\\nOK 1\\r\\n')
threading.Thread(target=accept, daemon=True).start()";

/// No process accepts connections, and the queue is full.
const FULL: &str = "peers = []
try:
    while True:
        peer = socket.socket(socket.AF_UNIX)
        peer.setblocking(False)
        peer.connect('/run/dbus/system_bus_socket')
        peers.append(peer)
except BlockingIOError: pass";

#[test]
fn a_silent_bus_costs_3_seconds_and_is_an_error() {
    for script in ["", ACCEPTS, DRIP, FULL] {
        let world = World::new();
        let c1 = world.container("c1");
        let result = c1.add("bridge", &bridge("net", 1));
        let before = rules(&world);
        let _server = start_silent_server(&world, script);
        let config = firewall("net", json!({}), &result);
        let texts = ["cannot find out whether firewalld runs", "timeout after 3 s"];
        in_time(c1.call("firewall", "ADD", &config)).fails(999, &texts);
        assert_eq!(rules(&world), before, "{script}");
    }
}

/// A bus that answers the first call after `Hello` with these errors: each has a sender and a name.
fn refusing_with(errors: &[(&str, &str)]) -> String {
    format!(
        "import struct, threading
def text(value): return struct.pack('<I', len(value)) + value.encode() + b'\\0'
def padded(value): return value + bytes(-len(value) % 8)
def field(code, value): return bytes([code]) + b'\\x01s\\0' + text(value)
def error(sender, name):
    fields = b'\\x05\\x01u\\0' + struct.pack('<I', 2) + padded(field(7, sender)) + field(4, name)
    return b'l\\x03\\0\\x01' + struct.pack('<III', 0, 1, len(fields)) + padded(fields)
def refuse():
    while True:
        peer = server.accept()[0]
        peer.sendall(b'DATA\\r\\nOK 1\\r\\n' + b''.join(error(*pair) for pair in {errors:?}))
        while peer.recv(4096): pass
threading.Thread(target=refuse, daemon=True).start()"
    )
}

/// The name of the bus.
const BUS: &str = "org.freedesktop.DBus";

#[test]
fn only_the_error_of_the_bus_for_a_name_without_an_owner_says_that_firewalld_is_not_running() {
    let no_owner = "org.freedesktop.DBus.Error.NameHasNoOwner";
    let refused = "org.freedesktop.DBus.Error.AccessDenied";
    for (errors, is_known) in [
        (&[(BUS, no_owner)][..], true),
        (&[(BUS, refused)], false),
        // Another client sends the first one.
        (&[(":1.99", no_owner), (BUS, refused)], false),
        (&[("", no_owner), (BUS, refused)], false),
        (&[(":1.99", refused), (BUS, no_owner)], true),
    ] {
        let world = World::new();
        let c1 = world.container("c1");
        let result = c1.add("bridge", &bridge("net", 1));
        let _server = start_silent_server(&world, &refusing_with(errors));
        let config = firewall("net", json!({}), &result);
        if is_known {
            c1.add("firewall", &config);
        } else {
            let texts = ["cannot find out whether firewalld runs", refused];
            c1.call("firewall", "ADD", &config).run().fails(999, &texts);
        }
    }
}

#[test]
fn a_silent_bus_does_not_delay_calls_without_firewalld() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    let _server = start_silent_server(&world, "");
    let texts = ["timeout after 3 s"];
    for keys in [json!({}), json!({"backend": "firewalld"})] {
        let config = firewall("net", keys, &result);
        in_time(world.call("firewall", "STATUS", &config)).fails(50, &texts);
        in_time(c1.checking("firewall", &config, &result)).fails(999, &texts);
        // Nothing says that an address is in a zone, but the reference may have put it there.
        let outcome = in_time(c1.call("firewall", "DEL", &config));
        assert!(outcome.stderr.contains(texts[0]), "{}", outcome.report());
        outcome.silence();
    }
    let config = firewall("net", json!({"backend": "iptables"}), &result);
    c1.add("firewall", &config);
    c1.check("firewall", &config, &result);
    for later in [config, firewall("net", json!({}), &result)] {
        let outcome = c1.call("firewall", "DEL", &without_result("net", later)).run();
        assert_eq!(outcome.stderr, "", "{}", outcome.report());
        outcome.silence();
    }
}

#[test]
fn a_source_that_a_silent_firewalld_keeps_is_removed_by_the_next_del_or_gc() {
    let world = World::new();
    let running = start_firewalld(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    let firewalld = running[1].pid_in_world().to_string();
    let texts = ["firewalld", "timeout after 3 s"];
    let none = json!({"cni.dev/valid-attachments": []});
    for verb in ["DEL", "GC"] {
        c1.add("firewall", &firewall("net", json!({}), &result));
        assert_eq!(sources(&world, "trusted"), [true, true]);
        world.host(["kill", "-STOP", &firewalld]);
        let call = c1.call("firewall", verb, &without_result("net", none.clone()));
        in_time(call.clone()).fails(999, &texts);
        let zone = firewall("net", json!({}), &result);
        in_time(c1.call("firewall", "ADD", &zone)).fails(999, &texts);
        world.host(["kill", "-CONT", &firewalld]);
        call.run().silence();
        assert_eq!(sources(&world, "trusted"), [false, false], "{verb}");
        assert!(!rules(&world).contains("net c1"), "{}", rules(&world));
    }
}

#[test]
fn the_bus_is_where_dbus_system_bus_address_says() {
    const VARIABLE: &str = "DBUS_SYSTEM_BUS_ADDRESS";
    let world = World::new();
    let _running = start_firewalld(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    let config = firewall("net", json!({"backend": "firewalld"}), &result);
    let usual = "/run/dbus/system_bus_socket";
    let moved = "/run/dbus/a b,c;d";
    world.host(["mv", usual, moved]);
    let words = ["socat", "ABSTRACT-LISTEN:the bus,fork", &format!("UNIX-CONNECT:{usual}")];
    let _proxy = world.tool(&words, None).start();
    let addresses = [
        "unix:path=/run/dbus/a%20b%2cc%3Bd",
        "unix:path=/run/nowhere;unix:guid=00,path=/run/dbus/a b%2cc%3bd;",
        "tcp:host=localhost,port=1;autolaunch:;nonsense;unix:path=/run/dbus/%61%20b%2cc%3bd",
    ];
    let of_abstract = ["unix:abstract=the%20bus", "unix:path=/run/nowhere;unix:abstract=the bus"];
    c1.call("firewall", "ADD", &config).run().fails(7, &["not running", usual]);
    let mut expected = Vec::new();
    for (address, is_moved) in addresses
        .iter()
        .map(|address| (address, true))
        .chain(of_abstract.iter().map(|address| (address, false)))
    {
        if !is_moved && !world.path(usual).exists() {
            world.host(["mv", moved, usual]);
            world.eventually("a proxy", || world.host(["ss", "-lx"]).contains("@the bus"));
        }
        let call = |verb| c1.call("firewall", verb, &config).env(VARIABLE, address);
        assert_eq!(call("ADD").run().success(), result, "{address}");
        expected.push(zone_of(&world, is_moved.then_some([usual, moved])));
        call("DEL").run().silence();
    }
    assert_eq!(expected, [true; 5]);
    assert_eq!(sources(&world, "trusted"), [false, false]);
    for wrong in ["tcp:host=localhost", "unix:path=/run/nowhere", usual, "unix:path=/run/%"] {
        let call = c1.call("firewall", "ADD", &config).env(VARIABLE, wrong);
        call.run().fails(7, &["not running", wrong]);
    }
    // As if it were not there.
    assert_eq!(c1.call("firewall", "ADD", &config).env(VARIABLE, "").run().success(), result);
}

/// Whether the first address is in the zone, asked at the bus's usual place, to which its socket is moved back meanwhile.
fn zone_of(world: &World, moved: Option<[&str; 2]>) -> bool {
    if let Some([usual, moved]) = moved {
        world.host(["mv", moved, usual]);
    }
    let is_there = sources(world, "trusted")[0];
    if let Some([usual, moved]) = moved {
        world.host(["mv", usual, moved]);
    }
    is_there
}

#[test]
fn a_del_leaves_an_address_in_the_zone_that_the_administrator_put_it_into() {
    const NAME: &str = "org.fedoraproject.FirewallD1";
    let world = World::new();
    let _running = start_firewalld(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    let none = json!({"cni.dev/valid-attachments": []});
    let source = "10.1.0.2/32";
    for keys in [json!({}), json!({"backend": "iptables"})] {
        let config = firewall("net", keys.clone(), &result);
        let ways: [(&str, Value); 3] = [
            ("DEL", config.clone()),
            ("DEL", without_result("net", keys.clone())),
            ("GC", crate::world::with(&without_result("net", keys.clone()), none.clone())),
        ];
        for (verb, way) in ways {
            c1.add("firewall", &config);
            dbus(&world, NAME, "removeSource", &["trusted", source]);
            assert!(dbus(&world, NAME, "addSource", &["home", source]).0);
            c1.call("firewall", verb, &way).run().silence();
            assert!(has_source(&world, "home", source), "{verb} with {keys}");
            assert_eq!(sources(&world, "trusted"), [false, false], "{verb} with {keys}");
            dbus(&world, NAME, "removeSource", &["home", source]);
        }
    }
}

#[test]
fn a_del_removes_the_sources_that_the_reference_added() {
    let world = World::new();
    let _running = start_firewalld(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    for source in ["10.1.0.2/32", "fd00:1::2/128"] {
        assert!(dbus(&world, "org.fedoraproject.FirewallD1", "addSource", &["home", source]).0);
    }
    let config = firewall("net", json!({"firewalldZone": "home"}), &result);
    c1.call("firewall", "DEL", &config).without("CNI_NETNS").run().silence();
    assert_eq!(sources(&world, "home"), [false, false]);
}
